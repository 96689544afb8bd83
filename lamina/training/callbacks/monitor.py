"""Measured values that callbacks compare from epoch to epoch."""

from __future__ import annotations

import math
from typing import Annotated

from lamina.errors import DefinitionError
from lamina.graph.kinds import Kind, Misfit, Operands, OrNone, Word
from lamina.training.callbacks.callback import RunningFit
from lamina.training.history import VALIDATION

# Measures that do not say it themselves are better if they are smaller if their names have one of
# these words.
_SMALLER = ("loss", "error", "norm")
SMALLEST = "smallest"


class _Name(Kind):
    """The name of a measure."""

    def read(self, value: object, operands: Operands = ()) -> str:
        if not isinstance(value, str) or not value:
            raise Misfit("the name of a measure", '"validation_loss"')
        return value


Monitor = Annotated[str, _Name()]
# Which values of a measure are the best; None: what the metric says.
Best = Annotated[str | None, OrNone(Word((SMALLEST, "largest")))]


def require_measured(fit: RunningFit, monitor: str, where: str) -> None:
    """Raises DefinitionError if a fit that begins will not measure something of that name."""
    measured = dict.fromkeys((*fit.history.measured, *fit.history))
    if monitor not in measured:
        ours = monitor.replace("val_", VALIDATION, 1)
        raise DefinitionError(
            f"nothing named {monitor!r} is measured",
            facts=(("expected", ", ".join(measured)), ("found", repr(monitor))),
            where=where,
            advice=f"Here it is called {ours!r}."
            if ours in measured
            else "fit(validation=..., metrics=[lm.Accuracy()]) measures more."
            if ours.startswith(VALIDATION)
            else "",
        )


def last_value(fit: RunningFit, monitor: str, best: str | None, where: str) -> float:
    """The value of a measure in the last epoch, negated if larger values are better.

    Raises:
        DefinitionError: if it is not in the history, as a matrix is not.
    """
    if monitor not in fit.history:
        raise DefinitionError(
            f"{monitor!r} is no number, so no epoch is the best one",
            facts=(("expected", ", ".join(fit.history)), ("found", repr(monitor))),
            where=where,
            advice="Monitor the loss, or a metric with one number.",
        )
    value = fit.history[monitor][-1]
    # A value that is not a number is never better.
    if math.isnan(value):
        return math.inf
    return value if _smaller_is_better(fit, monitor, best) else -value


def _smaller_is_better(fit: RunningFit, monitor: str, best: str | None) -> bool:
    if best is not None:
        return best == SMALLEST
    name = monitor.removeprefix(VALIDATION)
    metric = next((one for one in fit.metrics if one.name == name), None)
    says: bool | None = getattr(metric, "smaller_is_better", None)
    return any(word in name for word in _SMALLER) if says is None else says
