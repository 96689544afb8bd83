"""Measured values that callbacks compare from epoch to epoch."""

from __future__ import annotations

import math
import re
from typing import Annotated, ClassVar

from lamina.checks.kinds import Misfit, OrNone, ReadBy, Word
from lamina.errors import DefinitionError
from lamina.training.callbacks.callback import Callback, RunningFit
from lamina.training.history import advice_on_measure

SMALLEST = "min"


def _name(value: object) -> str:
    """The name of a measure."""
    if not isinstance(value, str) or not value:
        raise Misfit("the name of a measure", '"validation_loss"')
    return value


Monitor = Annotated[str, ReadBy(_name)]
# Which values of a measure are the best; None: what the metric says.
Best = Annotated[str | None, OrNone(Word((SMALLEST, "max")))]


class Monitoring(Callback):
    """The base of callbacks that compare a measure from epoch to epoch."""

    monitor: str
    best: str | None
    # Errors name it, those of a user's subclass too.
    _where: ClassVar[str]

    def __post_init__(self) -> None:
        self.restore({})

    def fit_begins(self, fit: RunningFit) -> None:
        """Checks that something of that name is measured, and that its best values are known."""
        monitor = self.monitor
        measured = dict.fromkeys((*fit.history.measured, *fit.history))
        # How many numbers a row has is known after an epoch.
        if _without_position(monitor) not in measured:
            raise DefinitionError(
                f"nothing named {monitor!r} is measured",
                facts=(("expected", ", ".join(measured)), ("found", repr(monitor))),
                where=self._where,
                advice=advice_on_measure(monitor, [*measured]),
            )
        if self.best is None and fit.smaller_is_better.get(_without_position(monitor)) is None:
            raise DefinitionError(
                f"nothing says whether small or large values of {monitor!r} are better",
                facts=(("expected", 'best="min" or best="max"'), ("found", "None")),
                where=self._where,
                advice="A metric's class may say it too: smaller_is_better = True, or False.",
            )

    def _last_value(self, fit: RunningFit) -> float:
        """The measure in the last epoch, negated if larger values are better."""
        monitor = self.monitor
        if monitor not in fit.history:
            first = f"{_without_position(monitor)}[0]"
            raise DefinitionError(
                f"{monitor!r} is no number, so no epoch is the best one",
                facts=(("expected", ", ".join(fit.history)), ("found", repr(monitor))),
                where=self._where,
                advice=f"It has a number for each class: monitor {first!r}, or a mean over the "
                "classes."
                if first in fit.history
                else "Monitor the loss, or a metric with one number.",
            )
        value = fit.history[monitor][-1]
        # NaN and infinity are never better.
        if not math.isfinite(value):
            return math.inf
        says = fit.smaller_is_better.get(_without_position(monitor))
        return value if (says if self.best is None else self.best == SMALLEST) else -value


def _without_position(monitor: str) -> str:
    """The name of the measure: `"f1"` of `"f1[0]"`, a number of a row."""
    return re.sub(r"\[\d+\]$", "", monitor, flags=re.ASCII)
