"""Trainings in mixed precision, and how far they are from the same trainings in float32.

Each network is defined once for Lamina and once for PyTorch, whose `torch.autocast` is compared.
Weights are Lamina's initial ones, the same in both. `torch` is an argument, so that the table is
usable without it.

A single deviation depends on luck: some differ by a factor of ten, as a training may go either way
at a saddle. So the ratio of Lamina's deviation to PyTorch's is taken for each seed, and the mean of
its logarithms with a standard error. With more seeds than the tests take:

    python tests/golden/mixed.py 32    # needs PyTorch; prints the ratios
"""

import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from cases import in_a_row, numbers

import lamina as lm
from lamina.base.shapes import Array, as_dtype
from lamina.step.precision import Rounding

STEPS, SEEDS, BATCHES, BATCH_SIZE = 50, 8, 5, 16
CLASSES = 10
RECORDED = Path(__file__).parent / "mixed_deviations.json"


@dataclass(frozen=True)
class Recipe:
    """A classifier, in Lamina and in PyTorch.

    Attributes:
        network: builds it in Lamina.
        forward: (torch, parameters in order, inputs) -> scores.
        optimizer: in Lamina.
        torch_optimizer: the name of PyTorch's.
        options: its arguments.
    """

    network: Callable[[], lm.Network]
    forward: Callable[..., Any]
    optimizer: Any
    torch_optimizer: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Deviation:
    """How far a training in mixed precision is from the same one in float32.

    Attributes:
        losses: the root mean square of the differences of losses, over all training steps.
        parameters: the same of all parameters after the last training step.
    """

    losses: float
    parameters: float


class Ratio(NamedTuple):
    """The geometric mean of ratios, and the bounds of the expected one with 95 % confidence."""

    mean: float
    low: float
    high: float


def ratio(some: Sequence[float], others: Sequence[float]) -> Ratio:
    """How large deviations are, compared with others of the same seeds."""
    logarithms = np.log(some) - np.log(others)
    mean = float(np.mean(logarithms))
    error = float(np.std(logarithms, ddof=1)) / math.sqrt(len(logarithms))
    return Ratio(math.exp(mean), math.exp(mean - 2 * error), math.exp(mean + 2 * error))


# Networks -----------------------------------------------------------------------------------------


def _convolutions() -> lm.Network:
    return lm.Sequential(
        *(lm.Input(8, 12, 12), lm.Conv2d(16, 3, padding=1, bias=False), lm.BatchNorm(), lm.ReLU()),
        *(lm.MaxPool2d(2), lm.Conv2d(16, 3, padding=1), lm.ReLU(), lm.Flatten()),
        lm.Linear(CLASSES),
    )


def _convolutions_forward(torch: Any, p: list[Any], x: Any) -> Any:
    functional = torch.nn.functional
    x = functional.conv2d(x, p[0], padding=1)
    x = functional.batch_norm(x, None, None, p[1], p[2], training=True)
    x = functional.max_pool2d(torch.relu(x), 2)
    x = torch.relu(functional.conv2d(x, p[3], p[4], padding=1))
    return functional.linear(x.flatten(1), *p[5:])


def _recurrence() -> lm.Network:
    return lm.Sequential(lm.Input(12, 16), lm.LSTM(32, returns="last"), lm.Linear(CLASSES))


def _recurrence_forward(torch: Any, p: list[Any], x: Any) -> Any:
    states = torch.zeros(1, len(x), 32), torch.zeros(1, len(x), 32)
    # oneDNN refuses an LSTM in bfloat16 on processors without AVX-512. Its flags warn of GPUs.
    has_avx512 = torch.cpu._is_avx512_supported()
    with warnings.catch_warnings(action="ignore"), torch.backends.mkldnn.flags(enabled=has_avx512):
        _, last, _ = torch.lstm(x, states, p[:4], True, 1, 0.0, True, False, True)
    return torch.nn.functional.linear(last[0], *p[4:])


def _attention() -> lm.Network:
    x = lm.Input(12, 32)
    y = lm.LayerNorm()(x + lm.MultiHeadAttention(4)(x))
    y = y + lm.Linear(32)(lm.GELU()(lm.Linear(64)(y)))
    return lm.Network(x, lm.Linear(CLASSES)(lm.ops.mean(y, 1)))


def _attention_forward(torch: Any, p: list[Any], x: Any) -> Any:
    functional = torch.nn.functional

    def heads(weight: Any, bias: Any) -> Any:
        return functional.linear(x, weight, bias).unflatten(-1, (4, 8)).transpose(1, 2)

    context = functional.scaled_dot_product_attention(heads(*p[:2]), heads(*p[2:4]), heads(*p[4:6]))
    y = x + functional.linear(context.transpose(1, 2).flatten(2), *p[6:8])
    y = functional.layer_norm(y, (32,), p[8], p[9])
    hidden = functional.gelu(functional.linear(y, *p[10:12]))
    y = y + functional.linear(hidden, *p[12:14])
    return functional.linear(y.mean(1), *p[14:])


_LINEAR = in_a_row(32, lm.Linear(64), lm.ReLU(), lm.Linear(64), lm.Tanh(), lm.Linear(CLASSES))
_MOMENTUM = lm.SGD(0.05, momentum=0.9), "SGD", {"lr": 0.05, "momentum": 0.9}
_ADAM = lm.Adam(1e-3), "Adam", {"lr": 1e-3}

RECIPES: Mapping[str, Recipe] = {
    "linear": Recipe(*_LINEAR, *_MOMENTUM),
    "linear-adam": Recipe(*_LINEAR, *_ADAM),
    "convolutions": Recipe(_convolutions, _convolutions_forward, *_MOMENTUM),
    "recurrence": Recipe(_recurrence, _recurrence_forward, *_ADAM),
    "attention": Recipe(_attention, _attention_forward, *_MOMENTUM),
    # Gradients of biases of keys are nothing but rounding, which Adam enlarges to its rate.
    "attention-adam": Recipe(_attention, _attention_forward, *_ADAM),
}


# Trainings ----------------------------------------------------------------------------------------


def _batches(network: lm.Network, seed: int) -> list[tuple[Array, Array]]:
    extents = tuple(dim for dim in network.inputs[0].shape[1:] if isinstance(dim, int))
    return [
        (
            numbers((BATCH_SIZE, *extents), 1000 * seed + number).astype("float32"),
            numbers((BATCH_SIZE,), 1000 * seed + 500 + number, 0, CLASSES).astype("int64"),
        )
        for number in range(BATCHES)
    ]


def _trained(
    recipe: Recipe, seed: int, dtype: str, engine: str, *, leaves: bool
) -> tuple[Array, Array]:
    """The losses of each training step, and all parameters at the end, of Lamina."""
    network = recipe.network()
    model = lm.Model(network, engine=engine, dtype=dtype, seed=seed)
    made = _batches(network, seed)
    half = as_dtype(dtype.removeprefix("mixed-"))
    rounding = Rounding(half, leaves) if "mixed" in dtype else None
    with (
        patch("lamina.runtime.parameters.rounding_of", lambda *_: rounding),
        model.training(lm.CrossEntropy(), recipe.optimizer, batch_size=BATCH_SIZE) as training,
    ):
        losses = [float(training.step(*made[step % BATCHES])) for step in range(STEPS)]
    final = [array.reshape(-1) for array in model.parameters().values()]
    return np.array(losses), np.concatenate(final)


def _torch_trained(torch: Any, recipe: Recipe, seed: int, *, mixed: bool) -> tuple[Array, Array]:
    """The same of PyTorch, with one thread: its threads wait for each other for long."""
    torch.set_num_threads(1)
    network = recipe.network()
    first = lm.Model(network, engine="interpreter", seed=seed).parameters()
    parameters = [torch.tensor(array, requires_grad=True) for array in first.values()]
    optimizer = getattr(torch.optim, recipe.torch_optimizer)(parameters, **recipe.options)
    made = _batches(network, seed)
    losses: list[float] = []
    for step in range(STEPS):
        x, target = map(torch.tensor, made[step % BATCHES])
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            scores = recipe.forward(torch, parameters, x)
            loss = torch.nn.functional.cross_entropy(scores, target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    final = [parameter.detach().numpy().reshape(-1) for parameter in parameters]
    return np.array(losses), np.concatenate(final)


def _deviation(mixed: tuple[Array, Array], wide: tuple[Array, Array]) -> Deviation:
    differences = (one - other for one, other in zip(mixed, wide, strict=True))
    return Deviation(*(float(np.sqrt(np.mean(each**2))) for each in differences))


def lamina_deviation(name: str, seed: int, dtype: str, *, leaves: bool) -> Deviation:
    """Of Lamina's training in one of the mixed precisions.

    With `leaves`, parameters and inputs are rounded, as on devices that multiply such floats.
    """
    found = lamina_training(name, seed, dtype, "cpu", leaves=leaves)
    return _deviation(found, lamina_training(name, seed, "float32", "cpu"))


@cache
def lamina_training(
    name: str, seed: int, dtype: str, engine: str, *, leaves: bool = True
) -> tuple[Array, Array]:
    """The losses of each training step, and all parameters at the end."""
    return _trained(RECIPES[name], seed, dtype, engine, leaves=leaves)


@cache
def torch_deviation(name: str, seed: int) -> Deviation:
    """Of PyTorch's training under `torch.autocast`, in bfloat16."""
    import torch

    mixed, wide = (_torch_trained(torch, RECIPES[name], seed, mixed=one) for one in (True, False))
    return _deviation(mixed, wide)


def print_ratios(seeds: int) -> None:
    """Prints the ratios of Lamina's deviations to PyTorch's, both in bfloat16."""
    for name, leaves in product(RECIPES, (True, False)):
        ours = [lamina_deviation(name, n, "mixed-bfloat16", leaves=leaves) for n in range(seeds)]
        theirs = [torch_deviation(name, n) for n in range(seeds)]
        what = "all operands" if leaves else "computed operands"
        for kind in ("losses", "parameters"):
            sides = ([getattr(deviation, kind) for deviation in side] for side in (ours, theirs))
            estimate = ratio(*sides)
            bounds = f"{estimate.mean:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"
            print(f"{name:16} {kind:10} {what:17} {bounds}")


if __name__ == "__main__":
    print_ratios(int(sys.argv[1]))
