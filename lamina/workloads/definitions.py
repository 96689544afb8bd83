"""The workloads on which Lamina is measured: their networks and data.

A workload is a record: `lamina bench` and `benchmarks/` build the same training step or forward
pass from it, and pass it to other frameworks as plain data. Data is synthetic and in memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np

from lamina import networks
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, float32, size_of, static
from lamina.errors import DefinitionError
from lamina.layers import (
    L2,
    LSTM,
    BatchNorm,
    Conv2d,
    Flatten,
    Input,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
    Sigmoid,
    Tanh,
)
from lamina.learning.losses import BCE, MSE, CrossEntropy, Loss
from lamina.learning.optimizers import SGD, Adam, Optimizer
from lamina.network import Network, Sequential
from lamina.program.steps import Contraction
from lamina.step.derive import default_targets

# The seed of the data, the initial parameters, and the order of the examples.
SEED = 0

Timed = Literal["forward", "predict", "step", "run"]


@frozen_dataclass
class Stack:
    """A sequence of layers."""

    input_shape: tuple[int, ...]
    layers: tuple[Layer, ...]

    def network(self) -> Network:
        return Sequential(Input(*self.input_shape), *self.layers)


@frozen_dataclass
class Ready:
    """A network of `lamina.networks`. For other frameworks it is written in their own idiom."""

    function: str
    options: Mapping[str, Any]

    def network(self) -> Network:
        return getattr(networks, self.function)(**self.options)


@frozen_dataclass
class Workload:
    """A network, its data, and the call that is timed. All floats are float32.

    Attributes:
        timed: `"forward"`: `model.predict` of one batch, which returns a new array; `"predict"`:
            `predict(x, out=y)` of a predictor; `"step"`: `training.step(x, y)`, called from
            Python; `"run"`: one training step of `training.run`, the native loop.
        loss, optimizer: the loss and optimizer of the training step; None for a forward pass.
        compared_steps: the number of training steps after which parameters are compared between
            frameworks.
        members: of a population, each with its own order of the examples; None for one network.
    """

    name: str
    architecture: Stack | Ready
    batch: int
    timed: Timed
    loss: Loss | None = None
    optimizer: Optimizer | None = None
    examples: int | None = None
    steps: int = 0
    compared_steps: int = 5
    members: int | None = None

    def network(self) -> Network:
        return self.architecture.network()

    def flops(self) -> int:
        """Multiplications and additions in the matrix products of one timed call, of all members.

        The gradient of the network's input is not needed and does not count. Losses, activations
        and optimizers do not count either, as there is no agreed count for an exponential.
        Convolutions count as direct sums, for every algorithm.
        """
        program = self.network().plan(self.batch, self.loss, self.optimizer).program
        total = 0
        for number, step in enumerate(program.steps):
            if isinstance(step, Contraction):
                iteration = program.iteration(number)
                iterations = 1 if iteration is None else iteration.extent
                total += 2 * iterations * size_of(step.extents)
        return total * (self.members or 1)

    def data(self) -> tuple[Array, Array | None]:
        """Inputs and targets, the same on every machine.

        Inputs are normal noise; indices and targets are uniform. The second half of the inputs
        repeats the first with other targets. Contradictory targets cannot be fitted, so gradients
        do not decay to denormal numbers, which are slow.
        """
        generator = np.random.default_rng(SEED)
        examples = self.examples or self.batch
        network = self.network()
        (tensor,) = network.inputs
        extents = (examples, *static(tensor.shape[1:]))
        if tensor.dtype.is_float:
            x = generator.standard_normal(extents, dtype="float32")
        else:
            limits = network.variables(float32).index_limits
            x = generator.integers(0, min(limit.count for limit in limits), extents)
        half = (examples + 1) // 2
        x[half:] = x[: examples - half]
        if self.loss is None:
            return x, None
        ((shape, dtype),) = default_targets(network, self.loss, float32)
        extents = (examples, *static(shape[1:]))
        if not dtype.is_float:
            classes, *_ = static(network.outputs[0].shape[1:])
            return x, generator.integers(0, classes, extents)
        y = generator.random(extents, dtype="float32")
        return x, y.round() if isinstance(self.loss, BCE) else y

    def record(self) -> dict[str, Any]:
        """The workload as data for JSON, each record with its class as `kind`."""
        return _plain(self)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        fields = {name: _plain(getattr(value, name)) for name in names}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        table = cast(Mapping[str, Any], value)
        return {name: _plain(item) for name, item in table.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in cast(tuple[Any, ...], value)]
    return value


_WIDE = Stack((2000,), (Linear(1000), Tanh(), Linear(200), Sigmoid(), Linear(10), Sigmoid()))


def _decayed(features: int) -> Linear:
    """A layer with L2 on weight and bias, like the weight decay of other frameworks."""
    return Linear(features, weight_regularizer=L2(5e-4), bias_regularizer=L2(5e-4))


_TINY = Stack((2,), (_decayed(40), Tanh(), _decayed(10), ReLU(), _decayed(1), Sigmoid()))
_SOFTMAX = Stack((784,), (Linear(10),))
_MLP = Stack((784,), (Linear(256), ReLU(), Linear(128), ReLU(), Linear(10)))
_WIDE_RELU = Stack((2000,), (Linear(1000), ReLU(), Linear(200), ReLU(), Linear(10)))
_LARGE = Stack((10_000,), (Linear(5000), ReLU(), Linear(1000), ReLU(), Linear(10)))
_LENET = Stack(
    (1, 28, 28),
    (
        *(Conv2d(20, 5), MaxPool2d(2), Conv2d(50, 5), MaxPool2d(2)),
        *(Flatten(), Linear(500), ReLU(), Linear(10)),
    ),
)


def _stage(channels: int) -> tuple[Layer, ...]:
    """Two 3x3 convolutions, each with batch normalisation and ReLU, and pooling by 2."""
    layers: list[Layer] = []
    for _ in range(2):
        layers += [Conv2d(channels, 3, padding=1), BatchNorm(), ReLU()]
    return (*layers, MaxPool2d(2))


_VGG = Stack(
    (3, 32, 32),
    (
        *(layer for channels in (32, 64, 128) for layer in _stage(channels)),
        *(Flatten(), Linear(256), ReLU(), Linear(10)),
    ),
)
_RESNET_18 = Ready("resnet", {"depth": 18, "classes": 10, "stem": "cifar", "input": (3, 32, 32)})
_MOBILENET_V2 = Ready(
    "mobilenet_v2", {"classes": 10, "width": 1.0, "input": (3, 96, 96), "dropout": 0.0}
)
_LSTM = Stack((64, 64), (LSTM(128, returns="last"), Linear(10)))


def _transformer(length: int) -> Ready:
    """A language model: predicts the next letter."""
    options = {"vocabulary": 256, "length": length, "features": 256, "heads": 8, "layers": 4}
    return Ready("transformer_encoder", {**options, "hidden": 1024, "causal": True, "dropout": 0.0})


def _by_name(*workloads: Workload) -> dict[str, Workload]:
    return {workload.name: workload for workload in workloads}


WORKLOADS = _by_name(
    Workload("wide-forward", _WIDE, 2000, "forward"),
    Workload("wide-step", _WIDE, 2000, "step", MSE(), SGD(0.01)),
    Workload("tiny-step", _TINY, 1, "step", BCE(), SGD(0.01, momentum=0.9)),
    Workload(
        *("tiny-run", _TINY, 1, "run", BCE(), SGD(0.01, momentum=0.9)), examples=1000, steps=100_000
    ),
    Workload("softmax", _SOFTMAX, 100, "step", CrossEntropy(), Adam(1e-3)),
    Workload("mlp", _MLP, 128, "step", CrossEntropy(), Adam(1e-3)),
    Workload("lenet", _LENET, 100, "step", CrossEntropy(), Adam(1e-3)),
    Workload("vgg", _VGG, 64, "step", CrossEntropy(), SGD(0.01, momentum=0.9)),
    Workload("resnet-18", _RESNET_18, 32, "step", CrossEntropy(), SGD(0.01, momentum=0.9)),
    Workload(
        *("mobilenet-v2", _MOBILENET_V2, 8, "step", CrossEntropy(), SGD(0.01, momentum=0.9)),
        # Each of its 52 normalisations amplifies rounding errors; two correct digits of a
        # float32 gradient remain. After further training steps no two frameworks agree.
        compared_steps=1,
    ),
    Workload("lstm", _LSTM, 32, "step", CrossEntropy(), Adam(1e-3)),
    Workload("transformer", _transformer(128), 16, "step", CrossEntropy(), Adam(1e-3)),
)

# Single matrix products; by default they are measured on devices only.
PRODUCTS = _by_name(
    Workload("product-1024", Stack((1024,), (Linear(1024, bias=False),)), 1024, "forward"),
    Workload("product-2000", Stack((2000,), (Linear(2000, bias=False),)), 2000, "forward"),
)

# The layers of `wide-step` with ReLU between them, five times as many of everything, and longer
# sequences. On a GPU they are measured with all others (`benchmarks/gpu.py`), elsewhere only if
# they are named.
LARGE = _by_name(
    Workload("seed-forward", _WIDE_RELU, 2000, "forward"),
    Workload("seed-step", _WIDE_RELU, 2000, "step", MSE(), SGD(0.01)),
    Workload("large-forward", _LARGE, 10_000, "forward"),
    Workload("large-step", _LARGE, 10_000, "step", MSE(), SGD(0.01)),
    Workload("transformer-512", _transformer(512), 16, "step", CrossEntropy(), Adam(1e-3)),
)

# Single examples; they are measured only if they are named.
LATENCIES = _by_name(
    Workload("tiny-predict", _TINY, 1, "predict"),
    Workload("mlp-predict", _MLP, 1, "predict"),
    Workload("lenet-predict", _LENET, 1, "predict"),
)

_CONTROL = Stack((8,), (Linear(64), ReLU(), Linear(64), ReLU(), Linear(4)))
_TABLE = Stack((54,), (Linear(200), ReLU(), Linear(200), ReLU(), Linear(7)))


def _populations(
    name: str,
    architecture: Stack,
    batch: int,
    loss: Loss,
    optimizer: Optimizer,
    members: tuple[int, ...],
    steps: int,
) -> list[Workload]:
    """Populations of several sizes; all members together do about so many training steps."""
    more = {"examples": max(1024, 4 * batch), "compared_steps": 3}
    return [
        Workload(
            *(f"{name}-x{count}", architecture, batch, "run", loss, optimizer),
            **more,
            steps=max(steps // count, 20),
            members=count,
        )
        for count in members
    ]


# Populations; they are measured only if they are named.
POPULATIONS = _by_name(
    *_populations("tiny-1", _TINY, 1, BCE(), SGD(0.01, momentum=0.9), (1, 32, 1000), 1_024_000),
    *_populations("tiny-32", _TINY, 32, BCE(), SGD(0.01, momentum=0.9), (1, 32, 1000), 64_000),
    *_populations("control-32", _CONTROL, 32, CrossEntropy(), Adam(1e-3), (1, 32, 1000), 32_000),
    *_populations("table-256", _TABLE, 256, CrossEntropy(), Adam(1e-3), (1, 32, 1000), 400),
    *_populations("lenet-100", _LENET, 100, CrossEntropy(), Adam(1e-3), (8,), 160),
)

# The names that commands take.
NAMES = (*WORKLOADS, *PRODUCTS, *LARGE, *LATENCIES, *POPULATIONS)


def chosen(names: Sequence[str]) -> list[Workload]:
    """The workloads of these names, which `NAMES` lists; all of `WORKLOADS` without a name."""
    workloads = WORKLOADS | PRODUCTS | LARGE | LATENCIES | POPULATIONS
    for name in names:
        if name not in workloads:
            facts = (("expected", " or ".join(workloads)), ("found", repr(name)))
            raise DefinitionError(f"there is no workload {name!r}", facts=facts)
    return [workloads[name] for name in names or WORKLOADS]
