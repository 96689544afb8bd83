"""The workloads that Lamina is measured on, and how its side of them is measured.

A workload is a record: `lamina bench` and `benchmarks/` build the same step from it, and hand it to
other frameworks as plain data. Data is synthetic and already in memory.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast, final

import numpy as np

from lamina import networks
from lamina.derive import default_targets
from lamina.engines.discovery import DEFAULT_ENGINE
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
from lamina.model import Model
from lamina.network import Network, Sequential
from lamina.program.steps import Contraction
from lamina.records import frozen_dataclass
from lamina.shapes import Array, float32, size_of, static
from lamina.training.losses import BCE, MSE, CrossEntropy, Loss
from lamina.training.optimizers import SGD, Adam, Optimizer
from lamina.training.training import Training

# Of the data, the initial parameters, and the order of the examples.
SEED = 0
# Steps are timed in groups that take at least this long, so that the clock's own time is nothing.
SHORTEST_SAMPLE = 0.02
# A run of a given length is cut short where it would take longer than so many times what was asked.
LONGEST_RUN = 10.0

Timed = Literal["forward", "step", "run"]


@frozen_dataclass
class Stack:
    """Layers that follow one another.

    Attributes:
        input_shape: of one example.
        layers: what follows the input, hyper-parameters and penalties included.
    """

    input_shape: tuple[int, ...]
    layers: tuple[Layer, ...]

    def network(self) -> Network:
        """The definition."""
        return Sequential(Input(*self.input_shape), *self.layers)


@frozen_dataclass
class Ready:
    """A network of `lamina.networks`. Other frameworks write it as their users do.

    Attributes:
        function: which one.
        options: what the function is given; they must say all that a peer needs to know.
    """

    function: str
    options: Mapping[str, Any]

    def network(self) -> Network:
        """The definition."""
        return getattr(networks, self.function)(**self.options)


@frozen_dataclass
class Workload:
    """A network, its data, and what of it is timed. All floats are float32.

    Attributes:
        name: how people ask for it.
        architecture: what the network is made of.
        batch: examples in a step.
        timed: `"forward"`: `model.predict` of one batch, the way users get outputs, which hands out
            a new array; `"step"`: `training.step(x, y)`, called from Python; `"run"`: a step of
            `training.run`, the native loop.
        loss, optimizer: of the training step; None for a forward pass.
        examples: how many there are, where that is not one batch.
        steps: how many belong to one run, if runs are timed.
        compared_steps: how many peers take before it is compared how far their parameters moved.
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

    def network(self) -> Network:
        """The definition."""
        return self.architecture.network()

    def flops(self) -> int:
        """Multiplications and additions in the matrix products of a step.

        The gradient for the network's input is not needed and does not count; neither do losses,
        activations and optimizers, as nobody agrees on how many operations an exponential is.
        Convolutions count as direct sums, however they are made.
        """
        program = self.network().plan(self.batch, self.loss, self.optimizer).program
        total = 0
        for number, step in enumerate(program.steps):
            if isinstance(step, Contraction):
                repeat = program.repeated(number)
                iterations = 1 if repeat is None else repeat.axis.extent
                total += 2 * iterations * size_of(step.extents)
        return total

    def data(self) -> tuple[Array, Array | None]:
        """Inputs and targets, the same on every machine.

        Inputs are normal noise; indices and targets are drawn evenly. The second half of the
        inputs repeats the first, with other targets: what contradicts itself is never learnt, so
        that gradients do not fade into denormal numbers, which are slow.
        """
        generator = np.random.default_rng(SEED)
        examples = self.examples or self.batch
        network = self.network()
        (given,) = network.inputs
        extents = (examples, *static(given.shape[1:]))
        if given.dtype.is_float:
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
        """The workload as plain data, each part with its `kind`: what JSON can hold."""
        return _plain(self)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__} | {
            name: _plain(part) for name, part in fields.items()
        }
    if isinstance(value, Mapping):
        table = cast(Mapping[str, Any], value)
        return {name: _plain(part) for name, part in table.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in cast(tuple[Any, ...], value)]
    return value


_WIDE = Stack((2000,), (Linear(1000), Tanh(), Linear(200), Sigmoid(), Linear(10), Sigmoid()))


def _decayed(features: int) -> Linear:
    """A layer with L2 on weight and bias alike, as other frameworks' weight decay has it."""
    return Linear(features, weight_regularizer=L2(5e-4), bias_regularizer=L2(5e-4))


_TINY = Stack((2,), (_decayed(40), Tanh(), _decayed(10), ReLU(), _decayed(1), Sigmoid()))
_SOFTMAX = Stack((784,), (Linear(10),))
_MLP = Stack((784,), (Linear(256), ReLU(), Linear(128), ReLU(), Linear(10)))
_CONTROL = Stack((8,), (Linear(64), ReLU(), Linear(64), ReLU(), Linear(4)))
_TABLE = Stack(
    (54,),
    (*(Linear(200), ReLU(), Linear(200), ReLU()), *(Linear(200), ReLU(), Linear(7))),
)
_LENET = Stack(
    (1, 28, 28),
    (
        *(Conv2d(20, 5), MaxPool2d(2), Conv2d(50, 5), MaxPool2d(2)),
        *(Flatten(), Linear(500), ReLU(), Linear(10)),
    ),
)


def _stage(channels: int) -> tuple[Layer, ...]:
    """Two convolutions of windows of 3 x 3, each with its normalisation, and a half as large."""
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
# A model of texts: which letter follows those so far?
_TRANSFORMER = Ready(
    "transformer_encoder",
    {
        "vocabulary": 256,
        "length": 128,
        "features": 256,
        "heads": 8,
        "layers": 4,
        "hidden": 1024,
        "causal": True,
        "dropout": 0.0,
    },
)

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("wide-forward", _WIDE, 2000, "forward"),
        Workload("wide-step", _WIDE, 2000, "step", MSE(), SGD(0.01)),
        Workload("tiny-step", _TINY, 1, "step", BCE(), SGD(0.01, momentum=0.9)),
        Workload(
            *("tiny-run", _TINY, 1, "run", BCE(), SGD(0.01, momentum=0.9)),
            examples=1000,
            steps=100_000,
        ),
        Workload("softmax", _SOFTMAX, 100, "step", CrossEntropy(), Adam(1e-3)),
        Workload("mlp", _MLP, 128, "step", CrossEntropy(), Adam(1e-3)),
        Workload("lenet", _LENET, 100, "step", CrossEntropy(), Adam(1e-3)),
        Workload("vgg", _VGG, 64, "step", CrossEntropy(), SGD(0.01, momentum=0.9)),
        Workload("resnet-18", _RESNET_18, 32, "step", CrossEntropy(), SGD(0.01, momentum=0.9)),
        Workload(
            *("mobilenet-v2", _MOBILENET_V2, 8, "step", CrossEntropy(), SGD(0.01, momentum=0.9)),
            # Behind 52 normalisations float32 has two digits of a gradient left, as at each of them
            # rounding grows: more steps are no longer the same in any two frameworks.
            compared_steps=1,
        ),
        Workload("lstm", _LSTM, 32, "step", CrossEntropy(), Adam(1e-3)),
        Workload("transformer", _TRANSFORMER, 16, "step", CrossEntropy(), Adam(1e-3)),
    )
}

# Small ones, for which threads that wait for each other cost the most: `benchmarks/contention.py`.
SMALL: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("control", _CONTROL, 32, "step", CrossEntropy(), SGD(0.1)),
        Workload("table", _TABLE, 512, "step", CrossEntropy(), SGD(0.01)),
    )
}


@final
class Runner:
    """Lamina's side of a workload: compiled on an engine, with its data in memory.

    Args:
        workload: what is run.
        engine: where, by its name.

    Raises:
        EngineError: for an engine that is not there.

    Example:
        >>> runner = Runner(WORKLOADS["tiny-step"])
        >>> runner.run(steps=3)
        >>> runner.release()
    """

    def __init__(self, workload: Workload, engine: str = DEFAULT_ENGINE) -> None:
        self._x, self._y = workload.data()
        self._timed: Timed = workload.timed
        self._model = Model(workload.network(), engine=engine, seed=SEED)
        self._first = self._model.parameters()
        self._training: Training | None = None
        if workload.loss is not None and workload.optimizer is not None:
            self._training = self._model.training(
                loss=workload.loss, optimizer=workload.optimizer, batch_size=workload.batch
            )
            self._first_state = self._training.state()

    def run(self, steps: int) -> None:
        """So many steps as a user writes them; comes back when the last one is finished."""
        x, y, training = self._x, self._y, self._training
        if training is None:
            for _ in range(steps):
                self._model.predict(x)
        elif self._timed == "run":
            training.run((x, y), steps=steps, seed=SEED)
        else:
            loss = training.step(x, y)
            for _ in range(steps - 1):
                loss = training.step(x, y)
            float(loss)

    def reset(self) -> None:
        """Back to the initial parameters and the first step."""
        self._model.set_parameters(self._first)
        if self._training is not None:
            self._training.restore(self._first_state)

    def outputs(self) -> Array:
        """What the network says about one example or more."""
        return self._model.predict(self._x)

    def parameters(self) -> dict[str, Array]:
        """Copies of what is trained."""
        return self._model.parameters()

    def release(self) -> None:
        """Gives the training's memory back."""
        if self._training is not None:
            self._training.release()


def measure(workload: Workload, engine: str = DEFAULT_ENGINE, seconds: float = 0.3) -> list[float]:
    """Seconds per step, several samples of it.

    Args:
        workload: what is measured.
        engine: on which engine.
        seconds: how long to measure, without compiling and warming up.

    Raises:
        EngineError: for an engine that is not there.
    """
    runner = Runner(workload, engine)

    def timed(steps: int) -> float:
        started = time.perf_counter()
        runner.run(steps)
        return time.perf_counter() - started

    try:
        return samples(timed, seconds, workload.steps)
    finally:
        runner.release()


def samples(run: Callable[[int], float], seconds: float, run_length: int = 0) -> list[float]:
    """Seconds per step, from groups of steps that are long enough for the clock.

    Args:
        run: does so many steps, waits for the last, and returns the seconds they took. The calls
            that find out how many make a group warm it up as well; they are no samples.
        seconds: how long to measure.
        run_length: the number of steps in a group, if it is given. A group that would take more
            than ten times `seconds` is cut to about `seconds`.

    Example:
        >>> samples(lambda steps: steps * 0.25, seconds=0.5)
        [0.25, 0.25]
    """
    steps, taken = 1, run(1)
    shortest = seconds if run_length else SHORTEST_SAMPLE
    most = run_length or sys.maxsize
    while taken < shortest and steps < most:
        # The first calls are slower than those that follow: a guess from them is not trusted far.
        guess = int(1.2 * shortest / max(taken, 1e-9) * steps)
        steps = min(max(guess, 2 * steps), 16 * steps, most)
        taken = run(steps)
    if run_length and run_length * taken / steps <= LONGEST_RUN * seconds:
        steps = run_length
    found: list[float] = []
    total = 0.0
    while total < seconds:
        taken = run(steps)
        total += taken
        found.append(taken / steps)
    return found


def chosen(names: Sequence[str]) -> list[Workload]:
    """The workloads of these names; all of them if no name is given.

    Raises:
        DefinitionError: for a name that no workload has.
    """
    for name in names:
        if name not in WORKLOADS:
            raise DefinitionError(
                f"there is no workload {name!r}",
                facts=(("expected", " or ".join(WORKLOADS)), ("found", repr(name))),
            )
    return [WORKLOADS[name] for name in names or WORKLOADS]
