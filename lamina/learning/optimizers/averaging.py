"""Averages of parameters over training steps: wrappers of another optimizer, which is unchanged.

The average is a state of the optimizer, so it is computed by the compiled program, planned, and
saved in checkpoints; `Training.averaged_parameters` reads it. States of layers, such as running
statistics, are not averaged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.checks.kinds import Count, Fraction
from lamina.errors import DefinitionError
from lamina.graph import Tensor
from lamina.learning.optimizers.optimizer import Optimizer, Slots, Update
from lamina.learning.protocols import (
    AVERAGE,
    PerParameter,
    check_optimizer,
    joins_parameters,
    optimizers_by_name,
)
from lamina.learning.protocols import Optimizer as AnyOptimizer

__all__ = ["EMA", "SWA"]


@frozen_dataclass
class Averaging(Optimizer):
    """The base of optimizers that keep an average of each parameter."""

    optimizer: AnyOptimizer

    def __post_init__(self) -> None:
        check_optimizer(self.optimizer)
        self._check_single(self.optimizer)

    @abstractmethod
    def average(self, before: Tensor, parameter: Tensor, step: Tensor) -> Tensor:
        """Builds the new average of one parameter.

        Args:
            before: the average after the previous training step; undefined in the first.
            parameter: its value after this training step.
            step: i64[], the number of training steps finished before this one.
        """

    def slots(self) -> dict[str, float | PerParameter]:
        return {**self.optimizer.slots(), AVERAGE: 0.0}

    def update(self, parameter: Tensor, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        new, new_slots = self.optimizer.update(parameter, gradient, slots, step)
        return new, {**new_slots, AVERAGE: self.average(slots[AVERAGE], new, step)}

    def for_parameters(self, names: Sequence[str]) -> Mapping[str, AnyOptimizer]:
        """The optimizer of each parameter, wrapped by this one, unless it has an average."""
        chosen = optimizers_by_name(self.optimizer, names)
        for name, optimizer in chosen.items():
            self._check_single(optimizer)
            if AVERAGE in optimizer.slots():
                raise DefinitionError(
                    "the wrapped optimizer keeps an average already",
                    facts=(("parameter", name), ("optimizer", type(optimizer).__name__)),
                    advice="One of EMA and SWA is enough.",
                )
        return {name: self._around(optimizer) for name, optimizer in chosen.items()}

    def _around(self, optimizer: AnyOptimizer) -> AnyOptimizer:
        # `replace` would make plain numbers of hyper-parameters.
        wrapped = copy(self)
        object.__setattr__(wrapped, "optimizer", optimizer)
        return wrapped

    def _check_single(self, optimizer: AnyOptimizer) -> None:
        if joins_parameters(optimizer):
            raise DefinitionError(
                "averages are kept of parameters that are updated one by one",
                facts=(
                    ("expected", "an optimizer that updates them so, such as lm.Adam(1e-3)"),
                    ("found", f"{type(optimizer).__name__}, which updates all as one vector"),
                ),
                advice="Use the optimizer alone, or another one within the average.",
            )


@frozen_dataclass(kw_only=True)
class EMA(Averaging):
    """An exponential moving average of the parameters: a = decay a + (1 - decay) w.

    It begins with the parameters after the first training step. Training itself is not affected;
    `Training.averaged_parameters` and the history of a `fit` have the average. From Polyak,
    Juditsky: Acceleration of stochastic approximation by averaging (1992); the exponential average
    is as in PyTorch's `get_ema_multi_avg_fn`.

    Args:
        optimizer: changes the parameters.
        decay: the share of the average that each training step keeps.

    Example:
        >>> lm.EMA(lm.SGD(0.1), decay=0.99).slots()
        {'average': 0.0}
    """

    decay: Fraction = 0.999

    def average(self, before: Tensor, parameter: Tensor, step: Tensor) -> Tensor:
        mixed = ops.multiply_add(parameter - before, 1.0 - self.decay, before)
        return ops.where(ops.equal(step, 0), parameter, mixed)


@frozen_dataclass(kw_only=True)
class SWA(Averaging):
    """Stochastic weight averaging: the mean of the parameters after some of the training steps.

    These are the training steps `start`, `start + every`, `start + 2 every` and so on, counted from
    1. Before them the average is the parameters themselves. Training itself is not affected;
    `Training.averaged_parameters` and the history of a `fit` have the average. From Izmailov et
    al.: Averaging weights leads to wider optima and better generalization (2018).

    Args:
        optimizer: changes the parameters; usually with a high constant or cyclical rate.
        start: the first training step that counts.
        every: the distance between two training steps that count; often the length of an epoch.

    Example:
        >>> lm.SWA(lm.SGD(0.1), start=1000, every=50).slots()
        {'average': 0.0}
    """

    start: Count
    every: Count = 1

    def average(self, before: Tensor, parameter: Tensor, step: Tensor) -> Tensor:
        since = step - (self.start - 1)
        passed = ops.cast(ops.maximum(since, 0), parameter.dtype)
        # Adding one half keeps the quotient away from whole numbers, where rounding would decide.
        finished = ops.floor((passed + 0.5) / self.every)
        counts = ops.equal(passed, finished * self.every)
        mixed = before + (parameter - before) / (finished + 1.0)
        later = ops.where(counts, mixed, before)
        return ops.where(ops.less_equal(since, 0), parameter, later)
