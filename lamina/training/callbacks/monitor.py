"""Measured values that callbacks compare from epoch to epoch."""

from __future__ import annotations

import math
import re
from typing import Annotated

from lamina.checks.kinds import Kind, Misfit, Operands, OrNone, Word
from lamina.errors import DefinitionError
from lamina.training.callbacks.callback import RunningFit
from lamina.training.history import advice_on_measure

SMALLEST = "min"


class _Name(Kind):
    """The name of a measure."""

    def read(self, value: object, operands: Operands = ()) -> str:
        if not isinstance(value, str) or not value:
            raise Misfit("the name of a measure", '"validation_loss"')
        return value


Monitor = Annotated[str, _Name()]
# Which values of a measure are the best; None: what the metric says.
Best = Annotated[str | None, OrNone(Word((SMALLEST, "max")))]


def require_measured(fit: RunningFit, monitor: str, best: str | None, where: str) -> None:
    """Checks that a fit measures something of that name, and that its best values are known."""
    measured = dict.fromkeys((*fit.history.measured, *fit.history))
    # How many numbers a row has is known after an epoch.
    if _without_position(monitor) not in measured:
        raise DefinitionError(
            f"nothing named {monitor!r} is measured",
            facts=(("expected", ", ".join(measured)), ("found", repr(monitor))),
            where=where,
            advice=advice_on_measure(monitor, [*measured]),
        )
    if best is None and fit.smaller_is_better.get(_without_position(monitor)) is None:
        raise DefinitionError(
            f"nothing says whether small or large values of {monitor!r} are better",
            facts=(("expected", 'best="min" or best="max"'), ("found", "None")),
            where=where,
            advice="A metric's class may say it too: smaller_is_better = True, or False.",
        )


def last_value(fit: RunningFit, monitor: str, best: str | None, where: str) -> float:
    """The value of a measure in the last epoch, negated if larger values are better."""
    if monitor not in fit.history:
        first = f"{_without_position(monitor)}[0]"
        raise DefinitionError(
            f"{monitor!r} is no number, so no epoch is the best one",
            facts=(("expected", ", ".join(fit.history)), ("found", repr(monitor))),
            where=where,
            advice=f"It has a number for each class: monitor {first!r}, or a mean over the classes."
            if first in fit.history
            else "Monitor the loss, or a metric with one number.",
        )
    value = fit.history[monitor][-1]
    # NaN and infinity are never better.
    if not math.isfinite(value):
        return math.inf
    says = fit.smaller_is_better.get(_without_position(monitor))
    return value if (says if best is None else best == SMALLEST) else -value


def _without_position(monitor: str) -> str:
    """The name of the measure: `"f1"` of `"f1[0]"`, a number of a row."""
    return re.sub(r"\[\d+\]$", "", monitor, flags=re.ASCII)
