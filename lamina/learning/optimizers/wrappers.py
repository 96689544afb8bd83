"""Optimizers around others: averages over training steps, and different ones for parameters.

An average is a state of the optimizer, so it is computed by the compiled program, planned, and
saved in checkpoints; `Training.averaged_parameters` reads it. States of layers, such as running
statistics, are not averaged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import cast

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
    matching,
    optimizers_by_name,
)
from lamina.learning.protocols import Optimizer as AnyOptimizer

__all__ = ["EMA", "SWA", "ByPath"]


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
            parameter: the value after this training step.
            step: the number of training steps finished before this one, i64[].
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
        optimizer: the optimizer of the parameters.
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
        optimizer: the optimizer of the parameters; usually with a high constant or cyclical rate.
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
        periods = ops.floor((passed + 0.5) / self.every)
        counts = ops.equal(passed, periods * self.every)
        mixed = before + (parameter - before) / (periods + 1.0)
        later = ops.where(counts, mixed, before)
        return ops.where(ops.less_equal(since, 0), parameter, later)


@frozen_dataclass
class ByPath(Optimizer):
    """An optimizer for each parameter, chosen by its name, such as `"1.weight"`.

    Args:
        patterns: patterns of names and their optimizers; the first that fits a name decides. A
            star stands for any text: `"1.*"` is all of layer 1, `"*.bias"` every bias.
        default: the optimizer of all other parameters.

    Raises:
        DefinitionError: for a value that is not an optimizer; when a training is compiled, also
            for a pattern that fits no parameter, or only parameters that earlier patterns fit.

    Example:
        >>> net = lm.Sequential(lm.Input(3), lm.Linear(4), lm.ReLU(), lm.Linear(2))
        >>> slow_start = lm.ByPath({"1.*": lm.Adam(1e-4)}, default=lm.Adam(1e-3))
        >>> net.plan(8, loss=lm.MSE(), optimizer=slow_start).state_bytes
        272
    """

    patterns: Mapping[str, AnyOptimizer]
    default: AnyOptimizer

    def __post_init__(self) -> None:
        table = cast(object, self.patterns)
        patterns = cast(Mapping[object, object], table) if isinstance(table, Mapping) else [None]
        if not all(isinstance(pattern, str) for pattern in patterns):
            facts = (("expected", '{"*.bias": lm.Adam(1e-3)}'), ("found", repr(self.patterns)))
            raise DefinitionError("the optimizers are given as a dict, by patterns", facts=facts)
        for optimizer in (*self.patterns.values(), self.default):
            check_optimizer(optimizer, where="")

    def slots(self) -> Mapping[str, float | PerParameter]:
        return self.default.slots()

    def update(self, parameter: Tensor, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        """Builds the update of a parameter that no pattern fits."""
        new, new_slots = self.default.update(parameter, gradient, slots, step)
        return new, dict(new_slots)

    def for_parameters(self, names: Sequence[str]) -> Mapping[str, AnyOptimizer]:
        """The optimizer of each parameter, by its name; each pattern must decide for one."""
        chosen: dict[str, AnyOptimizer] = {}
        for pattern, optimizer in self.patterns.items():
            fitting = matching(pattern, names)
            remaining = [name for name in fitting if name not in chosen]
            if not remaining:
                raise DefinitionError(
                    "earlier patterns leave no parameter to this one",
                    facts=(("pattern", repr(pattern)), ("fits", ", ".join(fitting))),
                    advice="The first pattern that fits a name decides: put this one before them.",
                )
            chosen |= optimizers_by_name(optimizer, remaining)
        others = [name for name in names if name not in chosen]
        return {**chosen, **optimizers_by_name(self.default, others)}
