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
from lamina.elsewhere import names_known
from lamina.errors import DefinitionError
from lamina.graph import Graph, Tensor, evaluate, leaf
from lamina.graph.kinds import AnyOf, Count, Function, NotNegative, Number, Positive, Row, Whole
from lamina.layers.checks import Sourced, origin_text
from lamina.records import frozen_dataclass
from lamina.shapes import float64


class Schedule(Sourced, ABC):
    """The base of all learning-rate schedules."""

    @abstractmethod
    def __call__(self, step: Tensor) -> Tensor:
        """Builds the rate.

        Args:
            step: f32[] or f64[], a whole number: the number of finished training steps.

        Returns:
            The rate, without axes, in the same dtype.
        """

    def at(self, step: NotNegative) -> float:
        """The rate of one training step, in float64; for plots and tests."""
        time = leaf("step", "input", (), float64)
        graph = Graph((time,), (("rate", self(time)),))
        outputs, _ = evaluate(graph, {"step": np.asarray(step, np.float64)})
        return float(outputs["rate"])


@frozen_dataclass
class Constant(Schedule):
    """The same rate in every training step.

    Args:
        rate: the learning rate.

    Raises:
        DefinitionError: if the rate is negative or not finite.

    Example:
        >>> import lamina as lm
        >>> lm.schedules.Constant(0.1).at(1000)
        0.1
    """

    rate: NotNegative

    def __call__(self, step: Tensor) -> Tensor:
        """Builds the rate."""
        return ops.full((), self.rate, step.dtype)


@frozen_dataclass
class StepDecay(Schedule):
    """rate factor^floor(step / every).

    Args:
        rate: at the start.
        every: the number of training steps with the same rate.
        factor: by which the rate is multiplied after them.

    Raises:
        DefinitionError: for a number out of range.

    Example:
        >>> import lamina as lm
        >>> lm.schedules.StepDecay(0.1, every=30, factor=0.5).at(60)
        0.025
    """

    rate: NotNegative
    every: Count
    _: KW_ONLY
    factor: Positive = 0.1

    def __call__(self, step: Tensor) -> Tensor:
        """Builds the rate."""
        # Adding one half keeps the quotient away from whole numbers, where rounding would decide.
        times = ops.floor((step + 0.5) / float(self.every))
        return ops.pow(float(self.factor), times) * self.rate


@frozen_dataclass
class Exponential(Schedule):
    """rate factor^(step / every).

    Args:
        rate: at the start.
        factor: the rate is multiplied by it over `every` training steps.
        every: the number of those training steps.

    Raises:
        DefinitionError: for a number out of range.

    Example:
        >>> import lamina as lm
        >>> lm.schedules.Exponential(0.1, factor=0.5, every=100).at(200)
        0.025
    """

    rate: NotNegative
    _: KW_ONLY
    factor: Positive
    every: Count = 1

    def __call__(self, step: Tensor) -> Tensor:
        """Builds the rate."""
        return ops.exp(step * (math.log(self.factor) / self.every)) * self.rate


@frozen_dataclass
class Cosine(Schedule):
    """From rate to final along half a cosine wave; final from then on.

    From Loshchilov, Hutter: SGDR: stochastic gradient descent with warm restarts (2017),
    formula 5, without restarts.

    Args:
        rate: at the start.
        steps: the number of training steps until `final`.
        final: the rate at the end.

    Raises:
        DefinitionError: for a number out of range.

    Example:
        >>> import lamina as lm
        >>> lm.schedules.Cosine(0.1, steps=1000).at(500)
        0.05
    """

    rate: NotNegative
    steps: Count
    _: KW_ONLY
    final: NotNegative = 0.0

    def __call__(self, step: Tensor) -> Tensor:
        """Builds the rate."""
        wave = ops.cos(_progress(step, self.steps) * math.pi)
        return (wave + 1.0) * ((self.rate - self.final) / 2) + self.final


@frozen_dataclass
class Linear(Schedule):
    """From rate to final along a line; final from then on.

    Args:
        rate: at the start.
        steps: the number of training steps until `final`.
        final: the rate at the end.

    Raises:
        DefinitionError: for a number out of range.

    Example:
        >>> import lamina as lm
        >>> lm.schedules.Linear(0.1, steps=1000).at(500)
        0.05
    """

    rate: NotNegative
    steps: Count
    _: KW_ONLY
    final: NotNegative = 0.0

    def __call__(self, step: Tensor) -> Tensor:
        """Builds the rate."""
        return (1.0 - _progress(step, self.steps)) * (self.rate - self.final) + self.final


@frozen_dataclass
class Polynomial(Schedule):
    """(rate - final) (1 - step / steps)^power + final; final from then on.

    Args:
        rate: at the start.
        steps: the number of training steps until `final`.
        power: 1 is a line, 2 a parabola.
        final: the rate at the end.

    Raises:
        DefinitionError: for a number out of range.

    Example:
        >>> import lamina as lm
        >>> lm.schedules.Polynomial(0.1, steps=1000, power=2).at(500)
        0.025
    """

    rate: NotNegative
    steps: Count
    _: KW_ONLY
    power: Positive = 1.0
    final: NotNegative = 0.0

    def __call__(self, step: Tensor) -> Tensor:
        """Builds the rate."""
        remaining = ops.pow(1.0 - _progress(step, self.steps), float(self.power))
        return remaining * (self.rate - self.final) + self.final


@frozen_dataclass
class PiecewiseConstant(Schedule):
    """rates[k] from training step boundaries[k - 1] to before boundaries[k].

    Args:
        boundaries: the training steps at which the rate changes, rising.
        rates: one more than boundaries.

    Raises:
        DefinitionError: if the numbers do not fit together.

    Example:
        >>> import lamina as lm
        >>> lm.schedules.PiecewiseConstant([100, 200], [0.1, 0.01, 0.001]).at(100)
        0.01
    """

    boundaries: Annotated[Sequence[int], Row(Whole(1))]
    rates: Annotated[Sequence[float], Row(Number("[0, inf)"))]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in itertools.pairwise(self.boundaries))
        if not rising or len(self.rates) != len(self.boundaries) + 1:
            raise DefinitionError(
                "boundaries must rise, and there must be one rate more than boundaries",
                facts=(
                    ("expected", "PiecewiseConstant([100, 200], [0.1, 0.01, 0.001])"),
                    ("found", f"{self.boundaries} and {self.rates}"),
                ),
                where=origin_text(self),
            )

    def __call__(self, step: Tensor) -> Tensor:
        """Builds the rate."""
        result = ops.full((), self.rates[0], step.dtype)
        for boundary, rate in zip(self.boundaries, self.rates[1:], strict=True):
            result = ops.where(step < float(boundary), result, float(rate))
        return result


@frozen_dataclass
class Warmup(Schedule):
    """Rises linearly to the first rate of another learning-rate schedule, which then begins.

    The rate of training step k is (k + 1) / steps times that rate, so it does not begin at 0. From
    Goyal et al.: Accurate, large minibatch SGD (2017), section 2.2.

    Args:
        steps: the number of training steps of the rise.
        then: a learning-rate schedule that counts from the end of the rise, or a constant rate.

    Raises:
        DefinitionError: for a number out of range.

    Example:
        >>> import lamina as lm
        >>> lm.schedules.Warmup(10, then=lm.schedules.Cosine(0.1, steps=990)).at(4)
        0.05
    """

    steps: Count
    then: Annotated[
        Schedule | float, AnyOf((Number("[0, inf)"), Function("a learning-rate schedule")))
    ]

    def __call__(self, step: Tensor) -> Tensor:
        """Builds the rate."""
        later = ops.maximum(step - float(self.steps), 0.0)
        rate = self.then(later) if callable(self.then) else self.then
        return ops.minimum((step + 1.0) / float(self.steps), 1.0) * rate


def _progress(step: Tensor, steps: int) -> Tensor:
    """From 0 at the start to 1 after `steps`, and 1 from then on."""
    return ops.minimum(step / float(steps), 1.0)


names_known(__name__)
