"""`Coding`: how the columns of a table become numbers. It is stored with the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np

from lamina.data.dataset import Arrays, Dataset
from lamina.data.frames import columns_of
from lamina.errors import DataError
from lamina.records import frozen_dataclass
from lamina.shapes import Array

Words = Literal["one-hot", "index"]
# More words would make too many features.
_MOST_ONE_HOT = 1000
_DAY = np.timedelta64(1, "D")


@frozen_dataclass
class Column:
    """How a column is coded.

    Attributes:
        name: of the column.
        kind: `"number"`, `"date"` (in days since 1970) or `"word"`; of a target also `"class"`, a
            number of a class.
        words: the known words, sorted.
        gap: replaces missing numbers; None refuses them.
        indicator: whether a further feature states where a number is missing.
        mean, deviation: are subtracted from the numbers, and divide them.
    """

    name: str
    kind: str
    words: tuple[str, ...] = ()
    gap: float | None = None
    indicator: bool = False
    mean: float = 0.0
    deviation: float = 1.0


@frozen_dataclass
class Coding:
    """How the columns of a table become the inputs and targets of a model. Made by `from_frame`.

    Attributes:
        columns: the columns of the inputs; others of a table are ignored.
        target: the column of the targets, if any.
        words: how words are coded: `"one-hot"` or `"index"`.
    """

    columns: tuple[Column, ...]
    target: Column | None
    words: Words

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the float features of the first input, in order."""
        found: list[str] = []
        for column in self.columns:
            if column.kind != "word":
                found += [column.name, *[f"{column.name} is missing"] * column.indicator]
            elif self.words == "one-hot":
                found += [f"{column.name}={word}" for word in column.words]
        return tuple(found)

    @property
    def classes(self) -> tuple[str, ...]:
        """The words of the target, in the order of their class numbers; empty for numbers."""
        return () if self.target is None else self.target.words

    def inputs(self, frame: Any) -> Arrays:
        """The inputs of a model for a table with the same columns.

        Raises:
            DataError: for columns that are missing or of another kind, and for missing numbers.
        """
        table = columns_of(frame)
        absent = [column.name for column in self.columns if column.name not in table]
        if absent:
            raise DataError(
                "columns are missing",
                facts=(("missing", ", ".join(absent)), ("found", ", ".join(table) or "none")),
                where="Coding",
                advice="Give a table with the columns with which the model was trained.",
            )
        features: list[Array] = []
        indices: list[Array] = []
        for column in self.columns:
            values = table[column.name]
            if column.kind != "word":
                features += _numbers(column, values)
            elif self.words == "one-hot":
                codes = _codes(column, values)
                features += [codes == number for number in range(1, len(column.words) + 1)]
            else:
                indices.append(_codes(column, values))
        arrays: list[Array] = []
        if features:
            arrays.append(np.stack(features, axis=1).astype(np.float32))
        if indices:
            arrays.append(np.stack(indices, axis=1))
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def dataset(self, frame: Any) -> Dataset:
        """A table as a data set, with targets if the coding has any.

        Raises:
            DataError: as for `inputs`, and for targets that are missing or unknown.
        """
        inputs = self.inputs(frame)
        if self.target is None:
            return Dataset(inputs, coding=self)
        table = columns_of(frame)
        if self.target.name not in table:
            raise DataError(
                "the column of targets is missing",
                facts=(("expected", self.target.name), ("found", ", ".join(table))),
                where="Coding",
                advice="coding.inputs(frame) needs no targets.",
            )
        return Dataset(inputs, _targets(self.target, table[self.target.name]), coding=self)

    def notes(self) -> dict[str, Any]:
        """It as plain data, for a file."""
        target = None if self.target is None else dict(vars(self.target))
        columns = [dict(vars(column)) for column in self.columns]
        return {"columns": columns, "target": target, "words": self.words}

    @staticmethod
    def of(notes: Mapping[str, Any]) -> Coding:
        """The coding of these notes."""

        def column(fields: Mapping[str, Any]) -> Column:
            known: dict[str, Any] = {**fields, "words": tuple(fields["words"])}
            return Column(**known)

        target = notes["target"]
        columns = tuple(column(one) for one in notes["columns"])
        return Coding(columns, None if target is None else column(target), notes["words"])


def coding_of(
    table: Mapping[str, Array],
    target: str | None,
    words: Words,
    gaps: str | float,
    *,
    standardise: bool,
) -> Coding:
    """The coding of a table that is trained on."""
    if target is not None and target not in table:
        raise DataError(
            f"there is no column {target!r}",
            facts=(("found", ", ".join(table) or "no columns"),),
            where="from_frame",
            advice="Name the column of the targets, or leave out target.",
        )
    columns = tuple(
        _column(name, values, words, gaps, standardise=standardise)
        for name, values in table.items()
        if name != target
    )
    if not columns:
        raise DataError("the table has no columns of inputs", where="from_frame")
    return Coding(columns, None if target is None else _target_column(target, table[target]), words)


def _kind_of(values: Array) -> str:
    return {"O": "word", "M": "date"}.get(values.dtype.kind, "number")


def _column(
    name: str, values: Array, words: Words, gaps: str | float, *, standardise: bool
) -> Column:
    kind = _kind_of(values)
    if kind == "word":
        known = _vocabulary(values)
        if words == "one-hot" and len(known) > _MOST_ONE_HOT:
            raise DataError(
                f"the column {name!r} has too many different words",
                facts=(("expected", f"at most {_MOST_ONE_HOT:,}"), ("found", f"{len(known):,}")),
                where="from_frame",
                advice="Leave it out, or give words='index' and a layer lm.Embedding.",
            )
        return Column(name, kind, known)
    numbers = _as_floats(values)
    missing: Array = np.isnan(numbers)
    gap = None if gaps == "error" else _gap(name, numbers[~missing], gaps)
    filled = _filled(name, numbers, gap)
    mean, deviation = 0.0, 1.0
    if standardise and values.dtype.kind != "b":
        mean, deviation = float(filled.mean()), float(filled.std()) or 1.0
    return Column(name, kind, (), gap, gaps == "indicator", mean, deviation)


def _gap(name: str, present: Array, gaps: str | float) -> float:
    """What replaces the missing numbers of a column."""
    if not isinstance(gaps, str):
        return gaps
    if not len(present):
        raise DataError(
            f"the column {name!r} has no numbers",
            where="from_frame",
            advice="Leave it out.",
        )
    return float(np.median(present) if gaps == "median" else present.mean())


def _gaps_error(name: str, missing: int, count: int) -> DataError:
    return DataError(
        f"numbers are missing in the column {name!r}",
        facts=(("missing", f"{missing:,} of {count:,}"),),
        where="from_frame",
        advice="Choose what replaces them: gaps='mean', 'median', 'indicator' (the mean, and a "
        "feature that is 1 where a number is missing), or a number.",
    )


def _vocabulary(values: Array) -> tuple[str, ...]:
    """The different words, sorted; a missing word is "" ."""
    return tuple(sorted({word or "" for word in cast(list[Any], values.tolist())}))


def _as_floats(values: Array) -> Array:
    """Numbers as float64, dates in days since 1970; what is missing is NaN."""
    if values.dtype.kind == "M":
        days = (values - np.datetime64("1970-01-01", "us")) / _DAY
        return np.where(np.isnat(values), np.nan, days)
    return values.astype(np.float64)


def _require_kind(column: Column, values: Array) -> None:
    found, expected = _kind_of(values), "number" if column.kind == "class" else column.kind
    if found != expected:
        raise DataError(
            f"the column {column.name!r} is of another kind",
            facts=(("expected", f"{expected}s"), ("found", f"{found}s")),
            where="Coding",
            advice="Convert it to what the model was trained on.",
        )


def _numbers(column: Column, values: Array) -> list[Array]:
    """The features of a column of numbers or dates."""
    _require_kind(column, values)
    numbers = _as_floats(values)
    filled = _filled(column.name, numbers, column.gap)
    scaled: Array = (filled - column.mean) / column.deviation
    return [scaled, np.isnan(numbers)] if column.indicator else [scaled]


def _filled(name: str, numbers: Array, gap: float | None) -> Array:
    """The numbers of a column, with a number in place of those that are missing."""
    missing: Array = np.isnan(numbers)
    if not missing.any():
        return numbers
    if gap is None:
        raise _gaps_error(name, int(missing.sum()), len(numbers))
    return np.where(missing, gap, numbers)


def _codes(column: Column, values: Array) -> Array:
    """The numbers of words, from 1, int64; 0 for words that are not known."""
    _require_kind(column, values)
    numbers = {word: number for number, word in enumerate(column.words, 1)}
    words = cast(list[Any], values.tolist())
    return np.array([numbers.get(word or "", 0) for word in words], np.int64)


def _target_column(name: str, values: Array) -> Column:
    kind = _kind_of(values)
    if kind == "word":
        return Column(name, kind, _vocabulary(values))
    numbers = _as_floats(values)
    whole = bool(np.all(np.isfinite(numbers) & (np.trunc(numbers) == numbers)))
    return Column(name, "class" if whole and kind == "number" else kind)


def _targets(column: Column, values: Array) -> Array:
    """The targets: class numbers int64[n], or float32[n, 1]."""
    if column.kind == "word":
        codes = _codes(column, values) - 1
        if codes.min() < 0:
            example = int(codes.argmin())
            raise DataError(
                f"a target is not one of the known words of {column.name!r}",
                facts=(
                    ("expected", ", ".join(column.words)),
                    ("found", f"{values[example]!r} in row {example}"),
                ),
                where="Coding",
                advice="Make the coding of a table that has all classes.",
            )
        return codes
    _require_kind(column, values)
    numbers = _as_floats(values)
    missing = np.isnan(numbers)
    if missing.any():
        raise DataError(
            f"targets are missing in the column {column.name!r}",
            facts=(("missing", f"{int(missing.sum()):,} of {len(numbers):,}"),),
            where="Coding",
            advice="Leave out the rows that have none.",
        )
    if column.kind == "class":
        return numbers.astype(np.int64)
    return numbers.astype(np.float32)[:, None]
