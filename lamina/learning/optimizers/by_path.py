"""Different optimizers, or different rates, for different parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from lamina.base.records import frozen_dataclass
from lamina.errors import DefinitionError
from lamina.graph import Tensor
from lamina.learning.optimizers.optimizer import Optimizer, Slots, Update
from lamina.learning.protocols import Optimizer as AnyOptimizer
from lamina.learning.protocols import PerParameter, check_optimizer, matching, optimizers_by_name

__all__ = ["ByPath"]


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
        given = cast(object, self.patterns)
        patterns = cast(Mapping[object, object], given) if isinstance(given, Mapping) else [None]
        if not all(isinstance(one, str) for one in patterns):
            raise DefinitionError(
                "the optimizers are given as a dict, by patterns",
                facts=(("expected", '{"*.bias": lm.Adam(1e-3)}'), ("found", repr(self.patterns))),
            )
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
            own = [name for name in fitting if name not in chosen]
            if not own:
                raise DefinitionError(
                    "earlier patterns leave no parameter to this one",
                    facts=(("pattern", repr(pattern)), ("fits", ", ".join(fitting))),
                    advice="The first pattern that fits a name decides: put this one before them.",
                )
            chosen |= optimizers_by_name(optimizer, own)
        others = [name for name in names if name not in chosen]
        return {**chosen, **optimizers_by_name(self.default, others)}
