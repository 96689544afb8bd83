"""The table of trainings whose losses and parameters are compared with PyTorch's.

Each case is a network with a loss, an optimizer and perhaps clipping, defined once for Lamina and
once for PyTorch. `torch` is an argument of PyTorch's functions, so that the table is usable without
it. Weights and batches come from the counter of `lamina.program.philox`, which never changes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from lamina.base.shapes import Array
from lamina.program.philox import random_bits

STEPS = 50
BATCHES = 5
BATCH_SIZE = 8
RECORDED = Path(__file__).parent / "trajectories.npz"


@dataclass(frozen=True)
class Recipe:
    """A network and its loss, in Lamina and in PyTorch.

    Attributes:
        network: builds it in Lamina.
        forward: (torch, parameters in order, *inputs) -> prediction.
        loss: in Lamina.
        torch_loss: (torch, parameters, prediction, target) -> loss, penalties included.
        classes: targets are labels below this number; 0: floats in the prediction's shape.
    """

    network: Callable[[], lm.Network]
    forward: Callable[..., Any]
    loss: Any
    torch_loss: Callable[..., Any]
    classes: int = 0


@dataclass(frozen=True)
class Case:
    """A training.

    Attributes:
        network: a name in `RECIPES`.
        optimizer: a name in `OPTIMIZERS`.
        clip: a name in `CLIPS`, or "".
    """

    network: str
    optimizer: str
    clip: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.network, self.optimizer, self.clip)))


@dataclass(frozen=True)
class Trajectory:
    """The result of a training: the loss of each training step, and all parameters at the end."""

    losses: Array
    parameters: Array


# Networks -----------------------------------------------------------------------------------------


# What PyTorch computes for a layer: (its functional module, x, the layer).
_FUNCTIONS: Mapping[type, Callable[[Any, Any, Any], Any]] = {
    lm.Tanh: lambda f, x, _: f.tanh(x),
    lm.Sigmoid: lambda f, x, _: f.sigmoid(x),
    lm.ReLU: lambda f, x, _: f.relu(x),
    lm.LeakyReLU: lambda f, x, layer: f.leaky_relu(x, layer.slope),
    lm.GELU: lambda f, x, layer: f.gelu(x, approximate=layer.approximate),
    lm.SiLU: lambda f, x, _: f.silu(x),
    lm.ELU: lambda f, x, _: f.elu(x),
    lm.SELU: lambda f, x, _: f.selu(x),
    lm.Softplus: lambda f, x, _: f.softplus(x),
    lm.Hardtanh: lambda f, x, _: f.hardtanh(x),
    lm.Dropout: lambda f, x, layer: f.dropout(x, layer.probability),
    lm.LogSoftmax: lambda f, x, _: f.log_softmax(x, -1),
}


def in_a_row(extent: int, *layers: Any) -> tuple[Callable[[], lm.Network], Callable[..., Any]]:
    """Linear layers and functions of `_FUNCTIONS`, in Lamina and in PyTorch."""

    def forward(torch: Any, parameters: Sequence[Any], x: Any) -> Any:
        functional, rest = torch.nn.functional, [*parameters]
        for layer in layers:
            if isinstance(layer, lm.Linear):
                x = functional.linear(x, rest.pop(0), rest.pop(0))
            else:
                x = _FUNCTIONS[type(layer)](functional, x, layer)
        return x

    return lambda: lm.Sequential(lm.Input(extent), *layers), forward


def _branches() -> lm.Network:
    a, b = lm.Input(4), lm.Input(3)
    joined = lm.Tanh()(lm.Linear(5)(a)) + lm.Linear(5)(b)
    return lm.Network(inputs=[a, b], outputs=lm.Linear(2)(lm.concat([joined, b])))


def _branches_forward(torch: Any, p: Sequence[Any], a: Any, b: Any) -> Any:
    linear = torch.nn.functional.linear
    joined = torch.tanh(linear(a, *p[:2])) + linear(b, *p[2:4])
    return linear(torch.cat([joined, b], 1), *p[4:])


def _shared() -> lm.Network:
    x, twice = lm.Input(4), lm.Linear(4)
    return lm.Network(inputs=[x], outputs=lm.Linear(3)(twice(lm.Tanh()(twice(x)))))


def _shared_forward(torch: Any, p: Sequence[Any], x: Any) -> Any:
    linear = torch.nn.functional.linear
    return linear(linear(torch.tanh(linear(x, *p[:2])), *p[:2]), *p[2:])


def _regularised_loss(torch: Any, p: Sequence[Any], y: Any, target: Any) -> Any:
    penalty = 0.01 * p[0].abs().sum() + 0.01 * (p[1] ** 2).sum() + 0.025 * (p[2] ** 2).sum()
    return torch.nn.functional.huber_loss(y, target, delta=0.5) + penalty


def _loss(name: str, **options: Any) -> Callable[..., Any]:
    """A loss of PyTorch's functional module."""
    return lambda torch, p, y, target: getattr(torch.nn.functional, name)(y, target, **options)


WEIGHTS = (0.5, 2.0, 1.0)

RECIPES: Mapping[str, Recipe] = {
    "classifier": Recipe(
        *in_a_row(6, lm.Linear(8), lm.ReLU(), lm.Linear(4)),
        *(lm.CrossEntropy(), _loss("cross_entropy")),
        classes=4,
    ),
    "regression": Recipe(
        *in_a_row(3, lm.Linear(5), lm.Tanh(), lm.Linear(4), lm.Sigmoid(), lm.Linear(2)),
        *(lm.MSE(), _loss("mse_loss")),
    ),
    "branches": Recipe(
        _branches, _branches_forward, lm.MAE(reduction="sum"), _loss("l1_loss", reduction="sum")
    ),
    "shared": Recipe(
        *(_shared, _shared_forward, lm.CrossEntropy(label_smoothing=0.1)),
        _loss("cross_entropy", label_smoothing=0.1),
        classes=3,
    ),
    "regularised": Recipe(
        *in_a_row(
            5,
            lm.Linear(6, weight_regularizer=lm.L1(0.01), bias_regularizer=lm.L2(0.02)),
            lm.LeakyReLU(slope=0.1),
            lm.Linear(1, weight_regularizer=lm.L2(0.05)),
        ),
        *(lm.Huber(delta=0.5), _regularised_loss),
    ),
    "activations": Recipe(
        *in_a_row(
            *(4, lm.Linear(5), lm.GELU(), lm.Linear(5), lm.SiLU(), lm.Linear(5), lm.ELU()),
            *(lm.Linear(5), lm.SELU(), lm.Linear(5), lm.Softplus(), lm.Linear(4), lm.Hardtanh()),
            *(lm.GELU(approximate="tanh"), lm.Linear(3)),
        ),
        *(lm.BCEWithLogits(), _loss("binary_cross_entropy_with_logits")),
    ),
    "dropout": Recipe(
        *in_a_row(6, lm.Linear(7), lm.Dropout(0.0), lm.ReLU(), lm.Linear(3), lm.LogSoftmax()),
        lm.NLL(class_weights=WEIGHTS),
        lambda torch, p, y, target: torch.nn.functional.nll_loss(
            y, target, weight=torch.tensor(WEIGHTS, dtype=torch.float64)
        ),
        classes=3,
    ),
}

# Optimizers and clipping --------------------------------------------------------------------------

_MOMENTUM: dict[str, Any] = {"lr": 0.05, "momentum": 0.9}
_DECAY: dict[str, Any] = {"weight_decay": 0.01}
# (in Lamina, the name of PyTorch's, its arguments)
OPTIMIZERS: Mapping[str, tuple[Any, str, dict[str, Any]]] = {
    "sgd": (lm.SGD(0.1), "SGD", {"lr": 0.1}),
    "momentum": (lm.SGD(0.05, momentum=0.9), "SGD", _MOMENTUM),
    "damped": (lm.SGD(0.05, momentum=0.9, dampening=0.3), "SGD", _MOMENTUM | {"dampening": 0.3}),
    "nesterov": (lm.SGD(0.05, momentum=0.9, nesterov=True), "SGD", _MOMENTUM | {"nesterov": True}),
    "decay": (lm.SGD(0.1, momentum=0.5, **_DECAY), "SGD", {"lr": 0.1, "momentum": 0.5, **_DECAY}),
    "adagrad": (lm.Adagrad(0.05, rate_decay=0.01), "Adagrad", {"lr": 0.05, "lr_decay": 0.01}),
    "rmsprop": (lm.RMSProp(0.01), "RMSprop", {"lr": 0.01}),
    "centered": (
        *(lm.RMSProp(0.01, decay=0.9, centered=True), "RMSprop"),
        {"lr": 0.01, "alpha": 0.9, "centered": True},
    ),
    "rmsprop-momentum": (
        *(lm.RMSProp(0.01, momentum=0.8, **_DECAY), "RMSprop"),
        {"lr": 0.01, "momentum": 0.8, **_DECAY},
    ),
    "adam": (lm.Adam(0.01), "Adam", {"lr": 0.01}),
    "amsgrad": (
        *(lm.Adam(0.02, beta1=0.8, beta2=0.99, amsgrad=True, **_DECAY), "Adam"),
        {"lr": 0.02, "betas": (0.8, 0.99), "amsgrad": True, **_DECAY},
    ),
    "adadelta": (
        *(lm.Adadelta(0.5, decay=0.8, epsilon=1e-3, **_DECAY), "Adadelta"),
        {"lr": 0.5, "rho": 0.8, "eps": 1e-3, **_DECAY},
    ),
    "rprop": (lm.Rprop(0.01, longest=0.05), "Rprop", {"lr": 0.01, "step_sizes": (1e-6, 0.05)}),
    "adamax": (
        *(lm.Adamax(0.01, beta1=0.8, beta2=0.99, **_DECAY), "Adamax"),
        {"lr": 0.01, "betas": (0.8, 0.99), **_DECAY},
    ),
    "nadam": (lm.NAdam(0.01, momentum_decay=0.1), "NAdam", {"lr": 0.01, "momentum_decay": 0.1}),
    # Larger steps amplify rounding errors, because each batch has other examples.
    "lbfgs": (
        *(lm.LBFGS(0.005, history=2), "LBFGS"),
        {"lr": 0.005, "max_iter": 1, "history_size": 2},
    ),
    "adamw": (lm.AdamW(0.01, weight_decay=0.1), "AdamW", {"lr": 0.01, "weight_decay": 0.1}),
}


def _clip_each(torch: Any, parameters: Sequence[Any]) -> None:
    for parameter in parameters:
        torch.nn.utils.clip_grad_norm_([parameter], 0.2)


CLIPS: Mapping[str, tuple[Any, Callable[[Any, Sequence[Any]], Any]]] = {
    "global": (
        lm.ClipGlobalNorm(0.3),
        lambda torch, parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.3),
    ),
    "norm": (lm.ClipNorm(0.2), _clip_each),
    "value": (
        lm.ClipValue(0.05),
        lambda torch, parameters: torch.nn.utils.clip_grad_value_(parameters, 0.05),
    ),
}

_OTHERS = ("adadelta", "rprop", "adamax", "nadam", "lbfgs")

CASES: tuple[Case, ...] = (
    *(Case("classifier", optimizer) for optimizer in OPTIMIZERS),
    *(Case("regression", name) for name in ("nesterov", "adagrad", "adam", "adamw", "rmsprop")),
    *(Case("branches", name) for name in ("sgd", "rmsprop", "amsgrad", "adagrad", "adamw")),
    *(Case("shared", name) for name in ("momentum", "centered", "adam", "adagrad", "adamw")),
    *(Case("regularised", "sgd", clip) for clip in ("", "global", "norm", "value")),
    *(Case("regularised", "adam", clip) for clip in ("", "global")),
    *(Case("activations", name) for name in ("momentum", "rmsprop-momentum", "adamw", "adagrad")),
    *(Case("dropout", name) for name in ("decay", "adagrad", "adam", "adamw", "centered")),
    *(Case("regression", name) for name in _OTHERS),
    # Gradients of the absolute error cancel to 0, and rounding would decide on rprop's signs.
    *(Case("branches", name) for name in _OTHERS if name != "rprop"),
    *(Case("regularised", name) for name in ("rprop", "lbfgs")),
    *(Case("shared", name) for name in _OTHERS),
    *(Case("activations", name) for name in _OTHERS),
    *(Case("dropout", name) for name in _OTHERS),
)

# Weights and batches ------------------------------------------------------------------------------


def numbers(shape: tuple[int, ...], stream: int, low: float = -1.0, high: float = 1.0) -> Array:
    """Numbers from low to high, the same on every machine and in every version."""
    counters = np.arange(int(np.prod(shape)), dtype=np.int64)
    bits = random_bits(2024, 0, counters, stream)
    return (low + (high - low) * bits / 2.0**32).reshape(shape)


def first_parameters(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Weights of moderate size, by name."""
    return {
        name: numbers(shape, 100 + number) / np.sqrt(shape[-1])
        for number, (name, shape) in enumerate(shapes.items())
    }


def batches(case: Case) -> list[tuple[tuple[Array, ...], Array]]:
    """(inputs, target) of each batch; training steps cycle through them."""
    recipe = RECIPES[case.network]
    network = recipe.network()
    made: list[tuple[tuple[Array, ...], Array]] = []
    for number in range(BATCHES):
        inputs = tuple(
            numbers((BATCH_SIZE, *extents_of(tensor)), 200 + 10 * number + position)
            for position, tensor in enumerate(network.inputs)
        )
        if recipe.classes:
            target = numbers((BATCH_SIZE,), 300 + number, 0, recipe.classes).astype("int64")
        else:
            shape = (BATCH_SIZE, *extents_of(network.outputs[0]))
            target = numbers(shape, 300 + number, 0, 1)
        made.append((inputs, target))
    return made


def extents_of(tensor: lm.Tensor) -> tuple[int, ...]:
    """The shape of one example."""
    return tuple(dim for dim in tensor.shape[1:] if isinstance(dim, int))


# Trajectories -------------------------------------------------------------------------------------


@cache
def lamina_trajectory(case: Case, engine: str = "interpreter") -> Trajectory:
    """Trains with Lamina."""
    recipe = RECIPES[case.network]
    model = lm.Model(recipe.network(), engine=engine, dtype="float64")
    shapes = {name: array.shape for name, array in model.parameters().items()}
    model.set_parameters(first_parameters(shapes))
    clip = CLIPS[case.clip][0] if case.clip else None
    made = batches(case)
    with model.training(
        recipe.loss, OPTIMIZERS[case.optimizer][0], batch_size=BATCH_SIZE, clip=clip
    ) as training:
        losses = [float(training.step(*made[step % BATCHES])) for step in range(STEPS)]
    final = [array.reshape(-1) for array in model.parameters().values()]
    return Trajectory(np.array(losses), np.concatenate(final))


def torch_trajectory(case: Case) -> Trajectory:
    """Trains with PyTorch."""
    import torch

    # NAdam keeps the product of its momenta in the default dtype.
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return _torch_trajectory(torch, case)
    finally:
        torch.set_default_dtype(usual)


def _torch_trajectory(torch: Any, case: Case) -> Trajectory:
    recipe = RECIPES[case.network]
    model = lm.Model(recipe.network(), dtype="float64")
    shapes = {name: array.shape for name, array in model.parameters().items()}
    parameters = [
        torch.tensor(array, requires_grad=True) for array in first_parameters(shapes).values()
    ]
    _, name, arguments = OPTIMIZERS[case.optimizer]
    if name != "LBFGS":
        arguments = {"foreach": False, **arguments}
    optimizer = getattr(torch.optim, name)(parameters, **arguments)
    made = batches(case)
    losses: list[float] = []
    for step in range(STEPS):
        inputs, target = made[step % BATCHES]

        def differentiated(inputs: Any = inputs, target: Any = target) -> Any:
            optimizer.zero_grad()
            prediction = recipe.forward(torch, parameters, *map(torch.tensor, inputs))
            loss = recipe.torch_loss(torch, parameters, prediction, torch.tensor(target))
            loss.backward()
            if case.clip:
                CLIPS[case.clip][1](torch, parameters)
            return loss

        losses.append(float(optimizer.step(differentiated).detach()))
    final = [parameter.detach().numpy().reshape(-1) for parameter in parameters]
    return Trajectory(np.array(losses), np.concatenate(final))
