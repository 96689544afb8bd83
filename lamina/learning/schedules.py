"""Learning-rate schedules, public as `lamina.schedules`: rates that depend on the training step.

A learning-rate schedule is a frozen record that an optimizer takes as its `rate`. It builds the
rate from ops, so the rate is computed on the device; `schedule.at(step)` evaluates the same graph
for a number. `step` and `steps` are training steps, counted from 0.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import float64
from lamina.checks.kinds import AnyOf, Count, Function, NotNegative, Number, Positive, Row, Whole
from lamina.errors import DefinitionError, names_known
from lamina.graph import Graph, Tensor, evaluate, leaf, of_numbers
from lamina.layers.checks import Sourced

_RATE = AnyOf((Number("[0, inf)"), Function("a learning-rate schedule")))


class Schedule(Sourced, ABC):
    """The base of all learning-rate schedules."""

    @abstractmethod
    def __call__(self, step: Tensor) -> Tensor:
        """Builds the rate.

        Args:
            step: the number of finished training steps, f32[] or f64[], a whole number.

        Returns:
            The rate, without axes, in the same dtype.
        """

    @property
    def ends_after(self) -> int | None:
        """After so many training steps it has come to its end, where nothing is learned.

        None for rates that go on, also at a last value above 0.
        """
        return None

    def at(self, step: NotNegative) -> float:
        """The rate of one training step, in float64; for plots and tests."""
        time = leaf("step", "input", (), float64)
        graph = Graph((time,), (("rate", self(time)),))
        outputs, _ = evaluate(graph, {"step": np.asarray(step, np.float64)})
        return float(outputs["rate"])


@frozen_dataclass
class _ToFinal(Schedule):
    """The base of schedules that reach a last rate after some training steps."""

    rate: NotNegative
    steps: Count
    _: KW_ONLY
    final: NotNegative = 0.0

    @property
    def ends_after(self) -> int | None:
        return None if self.final else self.steps


@frozen_dataclass
class Constant(Schedule):
    """The same rate in every training step.

    Args:
        rate: the learning rate.

    Example:
        >>> lm.schedules.Constant(0.1).at(1000)
        0.1
    """

    rate: NotNegative

    def __call__(self, step: Tensor) -> Tensor:
        return ops.cast(self.rate, step.dtype)


@frozen_dataclass
class StepDecay(Schedule):
    """rate factor^floor(step / every).

    Args:
        rate: the rate at the start.
        every: the number of training steps with the same rate.
        factor: the factor of the rate after them.

    Example:
        >>> lm.schedules.StepDecay(0.1, every=30, factor=0.5).at(60)
        0.025
    """

    rate: NotNegative
    every: Count
    _: KW_ONLY
    factor: Positive = 0.1

    def __call__(self, step: Tensor) -> Tensor:
        # Adding one half keeps the quotient away from whole numbers, where rounding would decide.
        times = ops.floor((step + 0.5) / self.every)
        return ops.pow(self.factor, times) * self.rate


@frozen_dataclass
class Exponential(Schedule):
    """rate factor^(step / every).

    Args:
        rate: the rate at the start.
        factor: the rate is multiplied by it over `every` training steps.
        every: the number of those training steps.

    Example:
        >>> lm.schedules.Exponential(0.1, factor=0.5, every=100).at(200)
        0.025
    """

    rate: NotNegative
    _: KW_ONLY
    factor: Positive
    every: Count = 1

    def __call__(self, step: Tensor) -> Tensor:
        return ops.exp(step * (of_numbers(math.log, self.factor) / self.every)) * self.rate


@frozen_dataclass
class Cosine(_ToFinal):
    """From rate to final along half a cosine wave; final from then on.

    From Loshchilov, Hutter: SGDR: stochastic gradient descent with warm restarts (2017),
    formula 5, without restarts.

    Args:
        rate: the rate at the start.
        steps: the number of training steps until `final`.
        final: the rate at the end.

    Example:
        >>> lm.schedules.Cosine(0.1, steps=1000).at(500)
        0.05
    """

    def __call__(self, step: Tensor) -> Tensor:
        return _wave(_progress(step, self.steps), self.rate, self.final)


@frozen_dataclass
class Linear(_ToFinal):
    """From rate to final along a line; final from then on.

    It takes the arguments of `Cosine`.

    Example:
        >>> lm.schedules.Linear(0.1, steps=1000).at(500)
        0.05
    """

    def __call__(self, step: Tensor) -> Tensor:
        return (1.0 - _progress(step, self.steps)) * (self.rate - self.final) + self.final


@frozen_dataclass(kw_only=True)
class Polynomial(_ToFinal):
    """(rate - final) (1 - step / steps)^power + final; final from then on.

    Args:
        power: the exponent; 1 is a line, 2 a parabola.
        others: the arguments of `Cosine`.

    Example:
        >>> lm.schedules.Polynomial(0.1, steps=1000, power=2).at(500)
        0.025
    """

    power: Positive = 1.0

    def __call__(self, step: Tensor) -> Tensor:
        remaining = ops.pow(1.0 - _progress(step, self.steps), self.power)
        return remaining * (self.rate - self.final) + self.final


@frozen_dataclass
class PiecewiseConstant(Schedule):
    """rates[k] from training step boundaries[k - 1] to before boundaries[k].

    Args:
        boundaries: the training steps at which the rate changes, rising.
        rates: the rates, one more than boundaries.

    Example:
        >>> lm.schedules.PiecewiseConstant([100, 200], [0.1, 0.01, 0.001]).at(100)
        0.01
    """

    boundaries: Annotated[Sequence[int], Row(Whole(1))]
    rates: Annotated[Sequence[float], Row(Number("[0, inf)"))]

    def __post_init__(self) -> None:
        example = "PiecewiseConstant([100, 200], [0.1, 0.01, 0.001])"
        _require_boundaries(self.boundaries, self.rates, "rate", example)

    def __call__(self, step: Tensor) -> Tensor:
        result = ops.cast(self.rates[0], step.dtype)
        for boundary, rate in zip(self.boundaries, self.rates[1:], strict=True):
            result = ops.where(step < boundary, result, rate)
        return result


@frozen_dataclass
class CosineRestarts(Schedule):
    """Falls from rate to final along half a cosine wave, again and again.

    From Loshchilov, Hutter: SGDR: stochastic gradient descent with warm restarts (2017), formula 5;
    PyTorch's `CosineAnnealingWarmRestarts`.

    Args:
        rate: the rate at the start of each fall.
        steps: the number of training steps of the first fall.
        growth: the length of a fall in training steps, divided by the length of the fall before.
        final: the rate that a fall approaches.

    Example:
        >>> lm.schedules.CosineRestarts(0.1, steps=10, growth=2).at(20)
        0.05
    """

    rate: NotNegative
    steps: Count
    _: KW_ONLY
    growth: Count = 1
    final: NotNegative = 0.0

    def __call__(self, step: Tensor) -> Tensor:
        # Adding one half keeps quotients away from whole numbers, where rounding would decide.
        first = self.steps
        if self.growth == 1:
            begin = ops.floor((step + 0.5) / first) * first
            length: Tensor | float = first
        else:
            ratio = self.growth - 1.0
            passed = ops.log(((step + 0.5) / first) * ratio + 1.0)
            passed = passed / of_numbers(math.log, self.growth)
            times = ops.floor(passed)
            scale = ops.floor(ops.pow(self.growth, times) + 0.5)
            begin, length = (scale - 1.0) * (first / ratio), scale * first
        return _wave((step - begin) / length, self.rate, self.final)


@frozen_dataclass
class Cyclic(Schedule):
    """Rises from least to rate along a line, falls back, and begins again.

    From Smith: Cyclical learning rates for training neural networks (2017), section 3; PyTorch's
    `CyclicLR`.

    Args:
        rate: the largest.
        steps: the number of training steps of a rise, and of a fall.
        least: the smallest rate.
        factor: the factor of the height after each cycle.

    Example:
        >>> lm.schedules.Cyclic(0.1, steps=10).at(15)
        0.05
    """

    rate: NotNegative
    steps: Count
    _: KW_ONLY
    least: NotNegative = 0.0
    factor: Positive = 1.0

    def __call__(self, step: Tensor) -> Tensor:
        cycle = self.steps * 2.0
        finished = ops.floor((step + 0.5) / cycle)
        position = (step - finished * cycle) / self.steps
        height = (1.0 - ops.abs(position - 1.0)) * ops.pow(self.factor, finished)
        return height * (self.rate - self.least) + self.least


@frozen_dataclass
class OneCycle(Schedule):
    """Rises from a small rate to rate, and falls to a much smaller one, along cosine waves.

    From Smith, Topin: Super-convergence: very fast training of neural networks using large learning
    rates (2018); PyTorch's `OneCycleLR`, without the cycle of the momentum.

    Args:
        rate: the largest.
        steps: the training steps of the cycle, at least 2; the rate stays at its end.
        rise: the fraction of the training steps in which the rate rises.
        start: the first rate is rate / start.
        end: the last rate is the first one / end.

    Example:
        >>> lm.schedules.OneCycle(0.25, steps=101, rise=0.3).at(0)
        0.01
    """

    rate: NotNegative
    steps: Annotated[int, Whole(2)]
    _: KW_ONLY
    rise: Annotated[float, Number("(0, 1)")] = 0.3
    start: Positive = 25.0
    end: Positive = 1e4

    def __call__(self, step: Tensor) -> Tensor:
        last = self.steps - 1.0
        top = self.rise * self.steps - 1.0
        first = self.rate / self.start
        rise = ops.clip(step / of_numbers(max, top, 1e-9), 0.0, 1.0)
        fall = ops.clip((step - top) / (last - top), 0.0, 1.0)
        rising, falling = _wave(rise, first, self.rate), _wave(fall, self.rate, first / self.end)
        return ops.where(step <= top, rising, falling)

    @property
    def ends_after(self) -> int:
        return self.steps


@frozen_dataclass
class Chain(Schedule):
    """Several learning-rate schedules, one after the other.

    Each counts from its own begin, as in PyTorch's `SequentialLR`.

    Args:
        boundaries: the training steps at which the next schedule begins, rising.
        schedules: schedules or constant rates, one more than boundaries.

    Example:
        >>> falling = lm.schedules.Linear(0.1, steps=100)
        >>> lm.schedules.Chain([50], [0.01, falling]).at(100)
        0.05
    """

    boundaries: Annotated[Sequence[int], Row(Whole(1))]
    schedules: Annotated[Sequence[Schedule | float], Row(_RATE)]

    def __post_init__(self) -> None:
        example = "Chain([50], [0.01, lm.schedules.Linear(0.1, steps=100)])"
        _require_boundaries(self.boundaries, self.schedules, "schedule", example)

    def __call__(self, step: Tensor) -> Tensor:
        begins = (0, *self.boundaries)
        result = _rate_of(self.schedules[0], step) + ops.zeros_like(step)
        for begin, schedule in zip(begins[1:], self.schedules[1:], strict=True):
            # Before its begin a schedule is not used, and counts no negative steps.
            later = _rate_of(schedule, ops.maximum(step - begin, 0.0))
            result = ops.where(step < begin, result, later)
        return result

    @property
    def ends_after(self) -> int | None:
        return _end_of((0, *self.boundaries)[-1], self.schedules[-1])


@frozen_dataclass
class Warmup(Schedule):
    """Rises linearly to the first rate of another learning-rate schedule, which then begins.

    The rate of training step k is (k + 1) / steps times that rate, so it does not begin at 0. From
    Goyal et al.: Accurate, large minibatch SGD (2017), section 2.2.

    Args:
        steps: the number of training steps of the rise.
        then: a learning-rate schedule that counts from the end of the rise, or a constant rate.

    Example:
        >>> lm.schedules.Warmup(10, then=lm.schedules.Cosine(0.1, steps=990)).at(4)
        0.05
    """

    steps: Count
    then: Annotated[Schedule | float, _RATE]

    def __call__(self, step: Tensor) -> Tensor:
        later = ops.maximum(step - self.steps, 0.0)
        rate = _rate_of(self.then, later)
        return ops.minimum((step + 1.0) / self.steps, 1.0) * rate

    @property
    def ends_after(self) -> int | None:
        return _end_of(self.steps, self.then)


def _progress(step: Tensor, steps: int) -> Tensor:
    """From 0 at the start to 1 after `steps`, and 1 from then on."""
    return ops.minimum(step / steps, 1.0)


def _wave(progress: Tensor, first: float, last: float) -> Tensor:
    """From the first rate to the last one along half a cosine wave; progress is from 0 to 1."""
    wave = ops.cos(progress * math.pi)
    return (wave + 1.0) * ((first - last) / 2) + last


def _rate_of(schedule: Schedule | float, step: Tensor) -> Tensor | float:
    """The rate of a schedule, or a constant one."""
    return schedule(step) if callable(schedule) else schedule


def _end_of(begin: int, schedule: Schedule | float) -> int | None:
    """`ends_after` of a schedule that begins later."""
    own: int | None = getattr(schedule, "ends_after", None)
    return None if own is None else begin + own


def _require_boundaries(
    boundaries: Sequence[int], values: Sequence[object], what: str, example: str
) -> None:
    """Raises DefinitionError unless boundaries rise and there is one value more."""
    rising = all(a < b for a, b in itertools.pairwise(boundaries))
    if not rising or len(values) != len(boundaries) + 1:
        raise DefinitionError(
            f"boundaries must rise, and there must be one {what} more than boundaries",
            facts=(("expected", example), ("found", f"{boundaries} and {values}")),
        )


names_known(__name__)
