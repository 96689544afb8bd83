"""`from_frame`: the coding of a table, learned from its columns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Annotated, Any, cast

import numpy as np

from lamina.base.shapes import Array
from lamina.checks import checked
from lamina.checks.kinds import AnyOf, Misfit, Number, OrNone, ReadBy, Word
from lamina.data.coding import (
    Coding,
    Column,
    Words,
    as_floats,
    dataset_of_table,
    require_all,
    without_gaps,
)
from lamina.data.columns import (
    EXACT,
    Kinds,
    as_kind,
    doubt_index,
    doubt_words,
    kind_of,
    missing,
    recognised,
    require_float32,
)
from lamina.data.dataset import Dataset
from lamina.data.frames import columns_of
from lamina.errors import DataError, errors_at
from lamina.foreign import did_you_mean, nearest


def _column_name(value: Any) -> str:
    """The name of a column as text; pandas has numbers too."""
    if isinstance(value, Hashable) and value is not None:
        return str(value)
    raise Misfit("the name of a column", "'rent'")


ColumnName = Annotated[Any, OrNone(ReadBy(_column_name))]
Gaps = Annotated[str | float, AnyOf((Word(("error", "mean", "median", "indicator")), Number()))]
# More words would make too many features.
_MOST_ONE_HOT = 1000


@checked
def from_frame(
    frame: Any,
    target: ColumnName = None,
    *,
    words: Words = "one-hot",
    gaps: Gaps = "error",
    standardise: bool = False,
    kinds: Kinds = None,
) -> Dataset:
    """A data frame as a data set, whose `coding` codes further frames alike.

    `fit` stores the coding with the model, so that `model.predict(frame)` takes such frames.

    | column | becomes |
    | --- | --- |
    | numbers, bools | one float32 feature |
    | dates | one float32 feature: days since 1970 |
    | words, one-hot | a feature for each word, in sorted order; an unknown word is all zeros |
    | words, index | an int64 index in a second input: 1, 2, ... in sorted order, 0 is unknown |
    | target, whole numbers | int64 class numbers; see `kinds` |
    | target, other numbers | float32 of shape (n, 1) |
    | target, words | int64 class numbers in sorted order: `coding.classes` |

    Args:
        frame: a data frame of pandas, Polars, PyArrow, or another that narwhals reads; or columns
            by name, such as `read_table` returns; or a list of rows, dicts by the names of columns.
        target: the name of the column of targets. Names that are not text, as pandas has them,
            become text.
        words: the coding of words: `"one-hot"`, or `"index"` for `lm.Embedding`. A missing word is
            the word "".
        gaps: the replacement of missing numbers: `"mean"`, `"median"`, a number, or `"indicator"`,
            the mean and a further feature that is 1 where a number is missing. `"error"` refuses
            them.
        standardise: whether numbers and dates are shifted and scaled to mean 0 and deviation 1.
        kinds: the kinds of columns, by name, where the values do not tell: `"number"`, `"date"` or
            `"word"`, and `"class"` for a target. `{"rent": "number"}` makes a regression of whole
            numbers, and `{"zip": "word"}` words of numbers.

    Raises:
        DataError: if numbers or targets are missing, or a column cannot be coded.
        MissingExtraError: if narwhals is not installed, unless columns are given by name.

    Example:
        >>> data = lm.data.from_frame({"size": [30, 52], "town": ["Ulm", "Bonn"], "rent": [1.5, 2]},
        ...                           target="rent")
        >>> data.coding.features, data.inputs.tolist()
        (('size', 'town=Bonn', 'town=Ulm'), [[30.0, 0.0, 1.0], [52.0, 1.0, 0.0]])
    """
    with errors_at("from_frame"):
        stated = {target, *(kinds or {})}
        columns = columns_of(frame).items()
        table = {n: values if n in stated else recognised(n, values) for n, values in columns}
        return coded(table, target, words, gaps, standardise=standardise, kinds=kinds)


def coded(
    table: Mapping[str, Array],
    target: str | None,
    words: Words = "one-hot",
    gaps: str | float = "error",
    *,
    standardise: bool = False,
    kinds: Mapping[str, str] | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
) -> Dataset:
    """The data set of a table that is trained on, with the coding that is learned from it."""
    kinds = kinds or {}
    absent = [name for name in (target, *kinds) if name is not None and name not in table]
    if absent:
        advice = "Give the kinds of columns of this table."
        if absent[0] == target:
            advice = "Name the column of the targets, or leave out target."
        raise DataError(
            f"there is no column {absent[0]!r}",
            facts=(("found", ", ".join(table) or "no columns"),),
            advice=did_you_mean(nearest(absent[0], table)) or advice,
        )
    inputs = ((n, _known_kind(n, cells, kinds.get(n))) for n, cells in table.items() if n != target)
    columns = tuple(_column(name, cells, words, gaps, standardise) for name, cells in inputs)
    if not columns:
        raise DataError("the table has no columns of inputs")
    first = next(iter(table))
    if first != target:
        doubt_index(first, table[first])
    goal = None if target is None else target_column(target, table[target], kinds.get(target))
    for column in filter(None, (*columns, goal)):
        if column.kind == "word" and column.name not in kinds:
            values = table[column.name]
            doubt_words(column.name, values, is_target=column is goal, decimal=decimal)
    with errors_at("Coding"):
        coding = Coding(columns, goal, words, delimiter=delimiter, decimal=decimal)
        return dataset_of_table(coding, table)


def _known_kind(name: str, values: Array, kind: str | None) -> Array:
    """The values of a column of inputs, of the kind that the user has given, if any."""
    if kind == "class":
        raise DataError(
            f"the column {name!r} is an input, and has no classes",
            facts=(("expected", "'number', 'date' or 'word'"), ("found", "'class'")),
            advice="kinds={'NAME': 'word'} gives each value of a column a feature of its own.",
        )
    if kind is not None:
        return as_kind(name, values, kind)
    if kind_of(values) == "word" and missing(values).all():
        raise DataError(
            f"the column {name!r} has no values",
            advice=f"Leave it out, or say of what kind it is: kinds={{{name!r}: 'word'}}.",
        )
    return values


def _column(name: str, values: Array, words: Words, gaps: str | float, standardise: bool) -> Column:
    kind = kind_of(values)
    if kind == "word":
        distinct = _vocabulary(values)
        if words == "one-hot" and len(distinct) > _MOST_ONE_HOT:
            raise DataError(
                f"the column {name!r} has too many different words",
                facts=(("expected", f"at most {_MOST_ONE_HOT:,}"), ("found", f"{len(distinct):,}")),
                advice="Leave it out, or give words='index' and a layer lm.Embedding.",
            )
        return Column(name, kind, distinct)
    numbers = as_floats(values)
    require_float32(name, numbers, numbers)
    gap = None if gaps == "error" else _gap(name, numbers[~np.isnan(numbers)], gaps)
    filled = without_gaps(name, numbers, gap)
    mean, deviation = 0.0, 1.0
    if standardise and values.dtype.kind != "b":
        mean, deviation = float(filled.mean()), _deviation(filled, values.dtype)
    return Column(name, kind, (), gap, gaps == "indicator", mean, deviation)


def _deviation(numbers: Array, dtype: np.dtype[Any]) -> float:
    """The standard deviation, which is to divide; 1 if it is no more than rounding."""
    deviation = float((numbers - numbers[0]).std())  # exact for equal numbers, whatever their mean
    rounding = np.finfo(dtype if dtype.kind == "f" else np.float64).eps
    return deviation if deviation > 4 * rounding * np.abs(numbers).max() else 1.0


def _gap(name: str, present: Array, gaps: str | float) -> float:
    if not isinstance(gaps, str):
        return gaps
    statistic = "median" if gaps == "median" else "mean"
    if not len(present):
        raise DataError(
            f"the column {name!r} has no number to take the {statistic} of",
            facts=(("expected", "one number or more"), ("found", "all are missing")),
            advice="Leave it out, or give a number in place of missing ones: gaps=0.",
        )
    return float(np.median(present) if gaps == "median" else present.mean())


def _vocabulary(values: Array) -> tuple[str, ...]:
    """The different words, sorted; a missing word is "" ."""
    return tuple(sorted({word or "" for word in cast(list[Any], values.tolist())}))


def target_column(name: str, values: Array, given_kind: str | None) -> Column:
    """The column of targets of these values, of the kind that the user has given, if any."""
    kind = given_kind or kind_of(values)
    targets = as_kind(name, values, kind)
    require_all(name, missing(targets))
    if kind == "word":
        return Column(name, kind, _vocabulary(targets))
    numbers = as_floats(targets)
    require_float32(name, numbers, numbers)
    broken, large = np.trunc(numbers) != numbers, np.abs(numbers) >= EXACT
    if kind == "class" or (given_kind is None and kind == "number" and not broken.any()):
        kind = "class"
        if (wrong := np.flatnonzero(broken | large)).size:
            raise DataError(
                f"the column {name!r} has numbers that are no class numbers",
                facts=(
                    ("expected", "whole numbers below 9,007,199,254,740,992 (2**53)"),
                    ("found", f"{numbers[wrong[0]]:.17g} in row {wrong[0]}"),
                ),
                advice=f"Targets that are numbers: kinds={{{name!r}: 'number'}}. Targets that are "
                f"words: kinds={{{name!r}: 'word'}}.",
            )
    return Column(name, kind)
