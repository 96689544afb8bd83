"""Tables with named columns: data frames, and files of comma-separated values with words and gaps.

Data frames of pandas, Polars, PyArrow and others are read through the package narwhals.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from lamina.calls import checked
from lamina.data.arrays import to_array
from lamina.data.tables import read_texts
from lamina.data.untrusted import PathLike, reading
from lamina.errors import DataError, missing_extra
from lamina.shapes import Array


def columns_of(frame: Any) -> dict[str, Array]:
    """The columns of a table by name.

    Returns:
        One-dimensional arrays of one length: of bools, integers, floats (NaN where one is missing),
        datetime64 (NaT), or objects that are words (None).

    Raises:
        DataError: if it is no table, has no rows, or a column of another type.
        MissingExtraError: if narwhals is needed and not installed.
    """
    if isinstance(frame, Mapping):
        named = cast(Mapping[str, Any], frame)
        columns = {str(name): _plain(str(name), values) for name, values in named.items()}
    else:
        columns = _of_data_frame(frame)
    counts = {name: len(values) for name, values in columns.items()}
    if len(set(counts.values())) > 1:
        raise DataError(
            "the columns differ in length",
            facts=tuple((name, f"{count:,}") for name, count in counts.items()),
            where="from_frame",
        )
    if not columns or not next(iter(counts.values())):
        raise DataError("the table has no rows", where="from_frame")
    return columns


def _plain(name: str, values: Any) -> Array:
    """A column that is given as a list or an array."""
    array = to_array(values, f"the column {name!r} cannot be converted to an array")
    if array.ndim == 1 and array.dtype.kind in "US":
        return array.astype(object)
    if array.ndim == 1 and array.dtype.kind == "O":
        return _of_objects(name, cast(list[Any], array.tolist()))
    if array.ndim == 1 and array.dtype.kind == "M":
        return array.astype("datetime64[us]")
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise _unknown(name, f"{array.dtype}, {array.ndim} axes")
    return array


def _of_objects(name: str, values: list[Any]) -> Array:
    """A column of Python's objects: words, numbers or None."""
    present = [value for value in values if value is not None]
    if all(isinstance(value, str) for value in present):
        return np.array(values, object)
    if all(isinstance(value, bool | int | float) for value in present):
        return np.array([np.nan if value is None else value for value in values], np.float64)
    found = next(value for value in present if not isinstance(value, str))
    raise _unknown(name, type(found).__name__)


def _unknown(name: str, found: str) -> DataError:
    return DataError(
        f"the column {name!r} cannot be coded",
        facts=(("expected", "numbers, bools, words or dates"), ("found", found)),
        where="from_frame",
        advice="Convert it, or leave it out.",
    )


def _of_data_frame(frame: Any) -> dict[str, Array]:
    try:
        narwhals: Any = importlib.import_module("narwhals")
    except ImportError as error:
        raise missing_extra("narwhals", "data", "reading a data frame") from error
    try:
        table = narwhals.from_native(frame, eager_only=True)
    except TypeError:
        raise DataError(
            "this is not a data frame",
            facts=(
                ("expected", "a data frame of pandas, Polars, PyArrow, or columns by name"),
                ("found", type(frame).__name__),
            ),
            where="from_frame",
            advice="Collect a lazy frame first.",
        ) from None
    return {str(name): _of_series(narwhals, str(name), table[name]) for name in table.columns}


def _of_series(narwhals: Any, name: str, series: Any) -> Array:
    """A column of a data frame."""
    dtype = series.dtype
    gaps = bool(series.is_null().any())
    if dtype.is_numeric() or dtype == narwhals.Boolean:
        if not gaps:
            return np.asarray(series.to_numpy())
        return _of_objects(name, [_scalar(value) for value in series.to_list()])
    if dtype in (narwhals.Date, narwhals.Datetime):
        if getattr(dtype, "time_zone", None) is not None:
            raise _unknown(name, f"{dtype}: dates with a time zone")
        return np.array([_scalar(value) for value in series.to_list()], "datetime64[us]")
    if dtype in (narwhals.String, narwhals.Categorical, narwhals.Enum, narwhals.Object):
        return _of_objects(name, [_scalar(value) for value in series.to_list()])
    raise _unknown(name, str(dtype))


def _scalar(value: Any) -> Any:
    """A value of a column; None for all that stands for a missing one."""
    return None if value is None or value != value else value


@checked
def read_table(path: PathLike) -> dict[str, Array]:
    """The columns of a `.csv` file by name, with words and gaps; pandas is not needed.

    A column is of numbers if all its entries are numbers or empty, otherwise of words. Without a
    header, the columns are named "0", "1", ...

    Raises:
        DataError, FileFormatError: if the file is missing, has no rows, or uneven ones.
    """
    source = Path(path)
    with reading(source, "a table, UTF-8"):
        return {name: _of_texts(texts) for name, texts in read_texts(source).items()}


def _of_texts(texts: list[str]) -> Array:
    try:
        return np.array([float(text) if text else np.nan for text in texts], np.float64)
    except ValueError:
        return np.array([text or None for text in texts], object)
