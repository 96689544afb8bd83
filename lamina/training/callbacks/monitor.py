"""Measured values that callbacks compare from epoch to epoch."""

from __future__ import annotations

import math
from typing import Annotated

from lamina.errors import DefinitionError
from lamina.graph.kinds import Kind, Misfit, Operands
from lamina.training.history import History

# Measures with one of these words in their names are better if they are smaller.
_SMALLER = ("loss", "error", "norm")


class _Name(Kind):
    """The name of a measure."""

    def read(self, value: object, operands: Operands = ()) -> str:
        if not isinstance(value, str) or not value:
            raise Misfit("the name of a measure", '"validation_loss"')
        return value


Monitor = Annotated[str, _Name()]


def smaller_is_better(monitor: str) -> bool:
    """Whether the measure of a name is better if it is smaller."""
    return any(word in monitor for word in _SMALLER)


def last_value(history: History, monitor: str, where: str) -> float:
    """The value of a measure in the last epoch, negated if larger values are better.

    Raises:
        DefinitionError: if it was not measured.
    """
    if monitor not in history:
        raise DefinitionError(
            f"nothing named {monitor!r} was measured",
            facts=(("expected", ", ".join(history)), ("found", repr(monitor))),
            where=where,
            advice="fit(validation=..., metrics=[lm.Accuracy()]) measures more."
            if monitor.startswith("validation")
            else "",
        )
    value = history[monitor][-1]
    # A value that is not a number is never better.
    if math.isnan(value):
        return math.inf
    return value if smaller_is_better(monitor) else -value
