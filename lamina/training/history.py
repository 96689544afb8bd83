"""The history of a fit: loss and metrics of every epoch."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import numpy as np

from lamina import reports
from lamina.base.shapes import Array
from lamina.checks import Called
from lamina.checks.kinds import Instance, OrNone, Word
from lamina.errors import Named, UnknownNameError
from lamina.foreign import did_you_mean, nearest, spelling
from lamina.reports import table_text, value_text

VALIDATION = "validation_"
# Whether the least or the greatest value of a measure is the best one; None: the measure says it.
SMALLEST = "min"
Best = Annotated[str | None, OrNone(Word((SMALLEST, "max")))]


@dataclass
class History(Named, metaclass=Called):
    """Loss and metrics, one value for each epoch; `history["loss"]`, `history["accuracy"]`.

    Values measured on the validation data have names that begin with `validation_`. Training
    values are averages over the epoch, while the model was changing. Before the end of the first
    epoch the names give empty lists. Unknown names raise UnknownNameError, which is a KeyError.
    `list(history)` are the names, `len(history)` the number of epochs. A metric with a number for
    each class has a name for each: `history["f1[0]"]`. One with a matrix has none.

    Attributes:
        values: lists by name, with one value for each epoch.
        seconds: the duration of each epoch; unlike the values it is not reproducible.
        interrupted: whether Ctrl-C ended the fit early.
        averaged_parameters: arrays for `Model.set_parameters`, if the optimizer keeps averages, as
            `lm.EMA` and `lm.SWA` do; empty otherwise.
        measured: the names that the fit will measure, also before the end of its first epoch.
    """

    values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    seconds: list[float] = field(default_factory=list[float])
    interrupted: bool = False
    averaged_parameters: dict[str, Array] = field(default_factory=dict[str, Array], repr=False)
    measured: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __getitem__(self, name: str) -> list[float]:
        names = tuple(self.values) or self.measured
        if names and name not in names:
            raise UnknownNameError(
                f"nothing named {name!r} was measured",
                facts=(("expected", ", ".join(names)), ("found", repr(name))),
                where="history",
                advice=_advice_on_name(name, names, self.measured),
            )
        return self.values.get(name, [])

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def keys(self) -> Iterable[str]:
        """The names; `dict(history)` has the values too."""
        return self.values.keys()

    def __len__(self) -> int:
        return len(self.seconds)

    def add(self, row: Annotated[Mapping[str, Any], Instance(Mapping)], seconds: float) -> None:
        """Appends one epoch. A row of numbers has a name for each, `f1[0]`; matrices are omitted.

        A name that is measured in some epochs only, after a resume for example, is NaN in the
        others.
        """
        numbers = numbers_in(row)
        for name in numbers:
            self.values.setdefault(name, [math.nan] * len(self))
        for name, values in self.values.items():
            values.append(numbers.get(name, math.nan))
        self.seconds.append(seconds)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Writes the curves as a picture.

        Raises:
            MissingExtraError: without matplotlib.
            DataError: before the first epoch has ended.
        """
        reports.plot_curves(self.values, path)

    def __str__(self) -> str:
        rows = [
            (str(epoch + 1), *(value_text(values[epoch]) for values in self.values.values()))
            for epoch in range(len(self))
        ]
        return table_text(("epoch", *self.values), rows, align="r")


def numbers_in(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an epoch by name; of a row of them each by its position, `f1[0]`."""
    numbers: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, float | int):
            numbers[name] = value if isinstance(value, int) else float(value)
        elif isinstance(value, np.ndarray) and value.ndim == 1:
            listed = cast(list[float], cast(Array, value).tolist())
            numbers |= {f"{name}[{number}]": element for number, element in enumerate(listed)}
    return numbers


def _advice_on_name(name: object, names: Sequence[str], measured: Sequence[str]) -> str:
    """What an unknown name is called here, or how to measure more."""
    if not isinstance(name, str):
        return f"Give a name first: history['loss'][{name!r}]."
    if f"{name}[0]" in names:
        return f"It has a number for each class: history['{name}[0]']."
    if name in measured:
        return "It is a matrix: model.evaluate(data, loss, metrics) gives it."
    return advice_on_measure(name, names)


def advice_on_measure(name: str, names: Sequence[str]) -> str:
    """What the name of a measured value is called here, or how to measure more."""
    bare = re.sub("^(val|valid|validation|test)_", "", name)
    here = spelling(["history"], bare) or bare
    ours = VALIDATION * (bare != name) + here
    if ours != name and ours in names:
        return f"Here it is called {ours!r}."
    if bare != name and here in names:
        return f"Without validation data there is none: fit(validation=...) measures {ours!r}."
    more = "fit(metrics=[lm.Accuracy()], validation=...) measures more."
    return did_you_mean(nearest(name, names)) or more
