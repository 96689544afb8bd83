"""Callbacks that end a fit, lower its rate or keep models, by a measure or by the time."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from lamina.base.shapes import Array
from lamina.checks.kinds import (
    Count,
    Kind,
    Measured,
    Misfit,
    NotNegative,
    Number,
    ReadBy,
    Row,
    Whole,
)
from lamina.errors import DefinitionError
from lamina.training.callbacks.callback import Callback, RunningFit
from lamina.training.history import SMALLEST, Best, advice_on_measure

Epochs = Annotated[int, Whole(0)]


def _name(value: object) -> str:
    """The name of a measure."""
    if not isinstance(value, str) or not value:
        raise Misfit("the name of a measure", '"validation_loss"')
    return value


Monitor = Annotated[str, ReadBy(_name)]
# Which values of a measure are the best; None: what the metric says.


class Monitoring(Callback):
    """The base of callbacks that compare a measure from epoch to epoch."""

    monitor: str
    best: str | None
    # Errors name it, also for a user's subclass.
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


@dataclass
class EarlyStopping(Monitoring):
    """Ends the fit when a measure has not improved for some epochs.

    The model gets the parameters and states of the best epoch, however the fit ends: also after
    all epochs, Ctrl-C or an error. The optimizer keeps the state of the last epoch.

    Args:
        monitor: the name of the measure in the history.
        patience: the number of epochs in a row without improvement that end the fit.
        least_change: an improvement is larger than this.
        restore_best: whether the model gets the values of the best epoch at the end of the fit.
        best: the best values, `"min"` or `"max"`. By default what the metric says;
            of losses the smallest. NaN and infinity are never the best.

    Attributes:
        best_epoch: the number of the best epoch, from 1; 0 before the first one.

    Raises:
        DefinitionError: when the fit begins, if nothing of that name is measured, or neither `best`
            nor the metric says which values are better.

    Example:
        >>> lm.callbacks.EarlyStopping("validation_accuracy", patience=3).best_epoch
        0
    """

    monitor: Monitor = "validation_loss"
    _: KW_ONLY
    patience: Count = 5
    least_change: NotNegative = 0.0
    restore_best: bool = True
    best: Best = None
    best_epoch: int = field(default=0, init=False)

    _where: ClassVar[str] = "EarlyStopping"
    state_kinds: ClassVar[Mapping[str, Kind]] = {
        "best_epoch": Whole(0),
        "best": Measured(),
        "waited": Whole(0),
    }

    @property
    def reads_history_only(self) -> bool:
        """Unless it keeps the parameters of the best epoch."""
        return not self.restore_best

    def restore(self, state: Mapping[str, Any]) -> None:
        self.best_epoch: int = state.get("best_epoch", 0)
        self._best: float = state.get("best", math.inf)
        self._waited: int = state.get("waited", 0)
        self._values: dict[str, Array] = {
            name.removeprefix("best/"): value
            for name, value in state.items()
            if name.startswith("best/")
        }

    def state(self) -> dict[str, Any]:
        """The best epoch, its value and parameters, and the epochs since then."""
        numbers = {"best_epoch": self.best_epoch, "best": self._best, "waited": self._waited}
        return numbers | {f"best/{name}": value for name, value in self._values.items()}

    def fit_begins(self, fit: RunningFit) -> None:
        """Checks the name, and ends a resumed fit that was stopped before."""
        super().fit_begins(fit)
        if self._waited >= self.patience:
            fit.stop()

    def epoch_ends(self, fit: RunningFit) -> None:
        """Compares the measure with the best one."""
        value = self._last_value(fit)
        if value < self._best - self.least_change:
            self._best, self._waited, self.best_epoch = value, 0, fit.epoch
            if self.restore_best:
                self._values = {**fit.model.parameters(), **fit.model.states()}
        else:
            self._waited += 1
            if self._waited >= self.patience:
                fit.stop()

    def fit_ends(self, fit: RunningFit) -> None:
        """Restores the best values."""
        if self._values:
            fit.model.set_parameters(self._values)

    def fit_fails(self, fit: RunningFit, error: BaseException) -> None:
        """Restores the best values, and says so."""
        if self._values:
            self.fit_ends(fit)
            error.add_note(f"EarlyStopping: the model has the values of epoch {self.best_epoch}.")


@dataclass
class ReduceOnPlateau(Monitoring):
    """Multiplies the learning rate by a factor when a measure has not improved for some epochs.

    For measures above 0 it decides as PyTorch's `ReduceLROnPlateau` with a relative threshold. If
    the rate is a learning-rate schedule, the factor stays for all later training steps.

    Args:
        monitor: the name of the measure in the history.
        factor: the factor of the rate.
        patience: the most epochs in a row without improvement before the rate is reduced.
        threshold: an improvement is larger than this fraction of the best value.
        cooldown: the number of epochs after a reduction that do not count.
        least_rate: the rate does not fall below it.
        best: the best values, `"min"` or `"max"`, as in `EarlyStopping`.

    Raises:
        DefinitionError: when the fit begins, if nothing of that name is measured.

    Example:
        >>> lm.callbacks.ReduceOnPlateau("loss", factor=0.5).patience
        10
    """

    monitor: Monitor = "validation_loss"
    _: KW_ONLY
    factor: Annotated[float, Number("(0, 1)")] = 0.1
    patience: Epochs = 10
    threshold: NotNegative = 1e-4
    cooldown: Epochs = 0
    least_rate: NotNegative = 0.0
    best: Best = None

    _where: ClassVar[str] = "ReduceOnPlateau"
    changes_rate: ClassVar[bool] = True
    state_kinds: ClassVar[Mapping[str, Kind]] = {
        "best": Measured(),
        "waited": Whole(0),
        "cooling": Whole(0),
    }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._best: float = state.get("best", math.inf)
        self._waited: int = state.get("waited", 0)
        self._cooling: int = state.get("cooling", 0)

    def state(self) -> dict[str, Any]:
        """The best value, and the epochs since then."""
        return {"best": self._best, "waited": self._waited, "cooling": self._cooling}

    def epoch_ends(self, fit: RunningFit) -> None:
        """Compares the measure with the best one, and may lower the rate."""
        value = self._last_value(fit)
        # For negated values the same fraction of the best one is added.
        change = self.threshold * abs(self._best) if math.isfinite(self._best) else 0.0
        if value < self._best - change:
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        if self._cooling:
            self._cooling -= 1
            self._waited = 0
        if self._waited > self.patience:
            rates = fit.training.rates.items()
            reduced = {n: min(r, max(r * self.factor, self.least_rate)) for n, r in rates}
            fit.training.set_rates(reduced)
            self._cooling, self._waited = self.cooldown, 0


def _ranked(value: Any) -> tuple[float, ...]:
    """The value and the number of an epoch, as they are stored."""
    pair = Row(Measured()).read(value)
    if len(pair) != 2 or not float(pair[1]).is_integer():
        raise Misfit("a value and the number of an epoch")
    return pair


@dataclass
class SaveModels(Monitoring):
    """Saves the model after each epoch as `last.safetensors`, and the best ones of all epochs.

    `best.safetensors` is the model of the best epoch, and `epoch-0007.safetensors` the model of a
    further epoch, if several are kept. `lm.load` reads them. To resume a fit, use its
    `checkpoint`.

    Args:
        folder: the folder of the files; it is made if it does not exist.
        monitor: the name of the measure in the history.
        keep: the number of models of the best epochs.
        best: the best values, `"min"` or `"max"`, as in `EarlyStopping`.

    Raises:
        DataError: if a file cannot be written.
        DefinitionError: when the fit begins, if nothing of that name is measured.

    Example:
        >>> lm.callbacks.SaveModels("models", "validation_accuracy", keep=3).keep
        3
    """

    folder: str | os.PathLike[str]
    monitor: Monitor = "validation_loss"
    _: KW_ONLY
    keep: Count = 1
    best: Best = None

    _where: ClassVar[str] = "SaveModels"
    state_kinds: ClassVar[Mapping[str, Kind]] = {"best": Row(ReadBy(_ranked))}

    def restore(self, state: Mapping[str, Any]) -> None:
        # Values and numbers of the best epochs, the best first.
        self._best: list[list[float]] = [list(pair) for pair in state.get("best", [])]

    def state(self) -> dict[str, Any]:
        """The best values and their epochs."""
        return {"best": self._best}

    def fit_begins(self, fit: RunningFit) -> None:
        """Checks the name of the measure, and makes the folder."""
        super().fit_begins(fit)
        self.folder = fit.path_of(self.folder)
        Path(self.folder).mkdir(parents=True, exist_ok=True)

    def epoch_ends(self, fit: RunningFit) -> None:
        """Saves the model."""
        fit.model.save(self._path("last"))
        value = self._last_value(fit)
        before = self._best
        # Of equal values the earlier epoch is better.
        self._best = sorted([*before, [value, float(fit.epoch)]])[: self.keep]
        kept = [int(epoch) for _, epoch in self._best]
        if fit.epoch in kept and self.keep > 1:
            fit.model.save(self._path(f"epoch-{fit.epoch:04}"))
        if kept[0] == fit.epoch:
            fit.model.save(self._path("best"))
        for _, epoch in before:
            if int(epoch) not in kept:
                self._path(f"epoch-{int(epoch):04}").unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return Path(self.folder) / f"{name}.safetensors"


@dataclass
class TimeLimit(Callback):
    """Ends the fit after some seconds, between two training steps, as Ctrl-C does.

    The seconds count from the begin of the fit, anew if it is resumed. The limit holds while the
    fit waits for a stream, too. A fit cannot begin without the first batch of a stream: if it is
    not there after as many seconds, `fit` raises DataError.

    Args:
        seconds: the time of the fit, without compilation.

    Example:
        >>> lm.callbacks.TimeLimit(3600).seconds
        3600.0
    """

    seconds: Annotated[float, Number("(0, inf)")]

    @property
    def waits_at_most(self) -> float:
        """The same limit."""
        return self.seconds

    def fit_begins(self, fit: RunningFit) -> None:
        """Starts the clock."""
        fit.stop(after=self.seconds)
