"""The columns of data frames, of columns by name, and of rows.

Data frames of pandas, Polars, PyArrow and others are read through the package narwhals.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import date
from numbers import Real
from typing import Any, cast

import numpy as np

from lamina.base.shapes import Array, is_masked_array
from lamina.data.arrays import OF_A_PATH
from lamina.data.columns import category
from lamina.data.conversion import has_columns, is_row, is_rows, to_array
from lamina.errors import DataError, imported_extra


def columns_of(frame: Any) -> dict[str, Array]:
    """The columns of a table by name.

    Returns:
        One-dimensional arrays of one length: of bools, integers, floats (NaN where one is missing),
        datetime64 (NaT), or objects that are words (None).
    """
    if isinstance(frame, str | os.PathLike):
        raise DataError(
            "this is the path of a file, not a data frame",
            facts=(("expected", "a data frame"), ("found", repr(os.fspath(cast(str, frame))))),
            advice=OF_A_PATH,
        )
    if is_rows(frame) and any(cast(list[Any], frame)):
        frame = _columns_of_rows(cast(list[Mapping[Any, Any]], frame))
    if isinstance(frame, Mapping):
        named = cast(Mapping[Any, Any], frame)
        if is_row(named):
            named = {name: [value] for name, value in named.items()}
        _require_distinct(list(named))
        columns = {str(name): _plain(str(name), values) for name, values in named.items()}
    else:
        columns = _of_data_frame(frame)
    counts = {name: len(values) for name, values in columns.items()}
    if len(set(counts.values())) > 1:
        facts = tuple((name, f"{count:,}") for name, count in counts.items())
        raise DataError("the columns differ in length", facts=facts)
    if not columns or not next(iter(counts.values())):
        raise DataError("the table has no rows")
    return columns


def _columns_of_rows(rows: list[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    """The columns of rows, which all have the same names."""
    first = list(rows[0])
    for number, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            raise DataError(
                "the rows differ in their columns",
                facts=tuple((f"row {n}", ", ".join(map(str, rows[n]))) for n in (0, number)),
                advice="Give all values in each row; a missing one is None.",
            )
    return {name: [row[name] for row in rows] for name in first}


def _plain(name: str, values: Any) -> Array:
    """A column that is given as a list or an array."""
    if str(getattr(values, "dtype", "")) == "category":  # of pandas
        return _categories(list(values))
    if str(getattr(values, "type", "")).startswith("dictionary"):  # of PyArrow
        return _categories(values.to_pylist())
    if is_masked_array(values):
        values = values.astype("datetime64[us]") if values.dtype.kind == "M" else values
        values = values.tolist()  # None where one is masked
    if isinstance(values, list):
        values = [None if cell is np.ma.masked else cell for cell in cast(list[Any], values)]
    array = to_array(values, f"the column {name!r} cannot be converted to an array")
    if array.ndim == 1 and array.dtype.kind in "OUS":
        # NumPy makes texts of all values of a list that has one.
        listed = cast(list[Any], values) if isinstance(values, list) else array.tolist()
        return _of_objects(name, cast(list[Any], listed))
    if array.ndim == 1 and array.dtype.kind == "M":
        return array.astype("datetime64[us]")
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise _unknown(name, f"{array.dtype}, {array.ndim} axes")
    return array


def _of_objects(name: str, values: list[Any]) -> Array:
    """A column of Python's objects: words, numbers or missing values."""
    cells = _cells(values)
    present = [cell for cell in cells if cell is not None]
    if all(isinstance(cell, str) for cell in present):
        return np.array(cells, object)
    if all(isinstance(cell, Real | np.bool_) for cell in present):
        return _numbers(cells)
    if all(isinstance(cell, date | np.datetime64) for cell in present):
        if any(getattr(cell, "tzinfo", None) is not None for cell in present):
            raise _unknown(name, "dates with a time zone", "Remove the zone, or leave it out.")
        return np.array(cells, "datetime64[us]")
    raise _unknown(name, next(type(cell).__name__ for cell in present if not isinstance(cell, str)))


def _cells(values: list[Any]) -> list[Any]:
    """The values of a column; None for missing ones."""
    return [None if _is_gap(value) else value for value in values]


def _categories(values: list[Any]) -> Array:
    """The words of a column of categories, which may be numbers, bools or intervals."""
    return np.array([cell if cell is None else category(cell) for cell in _cells(values)], object)


def _numbers(cells: list[Any]) -> Array:
    return np.array([np.nan if cell is None else _float(cell) for cell in cells], np.float64)


def _float(value: Any) -> float:
    """A number; an infinity for an integer that float64 cannot hold."""
    try:
        return float(value)
    except OverflowError:
        return np.inf


def _is_gap(value: Any) -> bool:
    """Whether a value stands for a missing one: None, NaN, NaT, or NA of pandas."""
    if value is None:
        return True
    try:
        return bool(value != value)
    except TypeError:
        return True  # NA has no truth value
    except ValueError:
        return False  # an array


def _unknown(name: str, content: str, advice: str = "Convert it, or leave it out.") -> DataError:
    return DataError(
        f"the column {name!r} cannot be coded",
        facts=(("expected", "numbers, bools, words or dates"), ("found", content)),
        where="from_frame",
        advice=advice,
    )


def _of_data_frame(frame: Any) -> dict[str, Array]:
    # The columns of a frame of pandas may have numbers for names.
    names: list[Any] = list(frame.columns) if hasattr(frame, "iloc") and has_columns(frame) else []
    if not all(isinstance(name, str) for name in names):
        frame = frame.copy(deep=False)
        frame.columns = list(map(str, names))
    narwhals = imported_extra("narwhals", "data", "reading a data frame")
    try:
        table = narwhals.from_native(frame, eager_only=True)
        _require_distinct(table.columns)
    except narwhals.exceptions.DuplicateError:
        # Of pandas or PyArrow, whose columns are arrays.
        _require_distinct(list(getattr(frame, "column_names", frame.columns)))
        raise
    except TypeError:
        expected = "a data frame of pandas, Polars, PyArrow, columns by name, or rows"
        raise DataError(
            "this is not a data frame",
            facts=(("expected", expected), ("found", type(frame).__name__)),
            advice=next((text for name, text in _ADVICE.items() if hasattr(frame, name)), _USUAL),
        ) from None
    return {str(name): _of_series(narwhals, str(name), table[name]) for name in table.columns}


# What makes a data frame, by a method of the object that is none.
_ADVICE = {
    "collect": "Collect it first: frame.collect().",
    "to_frame": "It is one column: series.to_frame() makes a data frame of it.",
}
_USUAL = "Columns by name are lists or arrays, rows dicts of single values."


def _require_distinct(names: Sequence[Any]) -> None:
    texts = list(map(str, names))
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        raise DataError(
            f"the table has the column {twice!r} more than once",
            facts=(("expected", "a name for each column"), ("found", ", ".join(texts))),
            advice="Rename the columns, or leave one of them out.",
        )


def _of_series(narwhals: Any, name: str, series: Any) -> Array:
    dtype, gaps, values = series.dtype, series.is_null(), None
    if dtype.is_numeric() or dtype == narwhals.Boolean:
        if not gaps.any() and dtype not in (narwhals.Int128, narwhals.UInt128):
            values = np.asarray(series.to_numpy())
        if values is None or values.dtype.kind == "O":
            return _numbers(_cells(series.to_list()))
        return values
    if dtype in (narwhals.Date, narwhals.Datetime):
        if getattr(dtype, "time_zone", None) is not None:
            raise _unknown(name, f"{dtype}: dates with a time zone")
        return np.array(_cells(series.to_list()), "datetime64[us]")
    if dtype in (narwhals.Categorical, narwhals.Enum):
        return _categories(series.to_list())
    if dtype in (narwhals.String, narwhals.Object) or gaps.all():
        return _of_objects(name, series.to_list())
    raise _unknown(name, str(dtype))
