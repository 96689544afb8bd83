"""Columns of tables that are masked, categorical, wide or constant, and what is no table."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest
from error_texts import error_text, refused

from lamina.data import Dataset, from_frame
from lamina.data.stream import as_data, as_inputs
from lamina.errors import DataError


@pytest.mark.parametrize(
    ("values", "row", "scaled"),
    [
        ([14.62] * 1000, 14.63, 0.01),
        (np.full(1000, 14.62, "f4"), 14.63, 0.01),
        ([0.1 + 0.2, 0.3, 0.3], 0.4, 0.1),
        (np.nextafter(np.full(9, 1e3, "f4"), np.arange(9, dtype="f4") * 1e3), 1001, 1),
        ([-7] * 3, -9, -2),
        ([0.0, 0.0], 3, 3),
        ([datetime.datetime(2024, 12, 31, 7)] * 3, datetime.datetime(2025, 1, 2, 7), 2),
        ([5.0, None, 5.0], 6, 1),
        # A small deviation that is no rounding.
        ([1e9, 1e9 + 2], 1e9 + 4, 3),
        (np.array([1000.0, 1000.5], "f4"), 1001, 3),
    ],
)
def test_only_a_deviation_beyond_rounding_scales_a_column(
    values: Any, row: Any, scaled: float
) -> None:
    data = from_frame({"a": values}, standardise=True, gaps="mean")
    np.testing.assert_allclose(data.coding.inputs({"a": [row]}), scaled, rtol=1e-4, atol=1e-4)


def hidden(values: Any) -> Any:
    """The values with the first one masked."""
    return np.ma.array(values, mask=[n == 0 for n in range(len(values))])


@pytest.mark.parametrize(
    ("values", "inputs"),
    [
        (hidden([7.0, 1, 3]), [2, 1, 3]),
        (hidden([7, 1, 3]), [2, 1, 3]),
        (hidden(np.array(["1970-01-09", "1970-01-02", "1970-01-04"], "datetime64[D]")), [2, 1, 3]),
        ([np.ma.masked, 1.0, 3.0], [2, 1, 3]),
        (np.ma.array([7.0, 1.0, 3.0]), [7, 1, 3]),
    ],
)
def test_masked_elements_of_a_column_are_gaps(values: Any, inputs: list[float]) -> None:
    assert from_frame({"a": values}, gaps="mean").inputs[:, 0].tolist() == inputs
    rows = [{"a": value} for value in values]
    assert from_frame(rows, gaps="mean").inputs[:, 0].tolist() == inputs
    if inputs[0] == 2:
        text = error_text(DataError, from_frame, {"a": values})
        assert "numbers are missing in the column 'a'\n  missing  1 of 3" in text
    masked = from_frame({"a": hidden(["p", "q", "r"])})
    assert masked.coding.features == ("a=", "a=q", "a=r")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([10, 2, 10], ("10", "2")),
        ([1.5, 2.0, None], ("", "1.5", "2")),
        ([True, False, True], ("False", "True")),
        (["b", "a", None], ("", "a", "b")),
    ],
)
@pytest.mark.parametrize("form", ["frame", "series", "categorical", "arrow", "arrow by name"])
def test_categories_are_words_whatever_they_are(form: str, values: Any, words: Any) -> None:
    if form.startswith("arrow"):
        arrow = pytest.importorskip("pyarrow")
        column = arrow.array(values).dictionary_encode()
        table: Any = arrow.table({"a": column}) if form == "arrow" else {"a": column}
    else:
        pandas = pytest.importorskip("pandas")
        column = pandas.Categorical(values)
        column = column if form == "categorical" else pandas.Series(column)
        table = pandas.DataFrame({"a": column}) if form == "frame" else {"a": column}
    coding = from_frame(table).coding
    assert coding.columns[0].words == words
    codes = [words.index("" if value is None else coding_word(value)) for value in values]
    assert coding.inputs(table).argmax(axis=1).tolist() == codes
    # Plain values of the same column have the same codes.
    assert coding.inputs({"a": values}).argmax(axis=1).tolist() == codes
    assert from_frame({**dict(table), "b": [1, 2, 3]} if isinstance(table, dict) else table)


def coding_word(value: Any) -> str:
    return "2" if value == 2 else str(value)


def test_integers_of_128_bits_are_numbers() -> None:
    polars = pytest.importorskip("polars")
    for dtype in (polars.Int128, polars.UInt128):
        for values, expected in (([1, 3], [1, 3]), ([None, 3], [7, 3])):
            series = polars.Series(values, dtype=dtype)
            data = from_frame(polars.DataFrame({"a": series}), gaps=7)
            assert data.inputs[:, 0].tolist() == expected
    error = refused(DataError, Dataset, polars.Series([1, 3], dtype=polars.Int128))
    assert "which has no 128-bit integer types" in str(error)
    assert error.advice == "Cast it first: series.cast(polars.Float64)."
    Dataset(polars.Series([1, 3], dtype=polars.Int128).cast(polars.Float64))


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_column_of_a_frame_is_no_table(package: str) -> None:
    series = pytest.importorskip(package).Series([1, 2])
    advice = "It is one column: series.to_frame() makes a data frame of it."
    assert refused(DataError, from_frame, series).advice == advice
    assert from_frame(series.to_frame()).inputs.tolist() == [[1], [2]]


def test_a_lazy_frame_is_refused_without_computing_it() -> None:
    polars = pytest.importorskip("polars")
    lazy = polars.LazyFrame({"a": [1, 2]})
    for call in (from_frame, lambda frame: Dataset(frame, [1, 2])):
        assert refused(DataError, call, lazy).advice == "Collect it first: frame.collect()."
    assert "this is not a data frame" in error_text(DataError, from_frame, lazy)
    for call in (as_data, lambda frame: as_inputs(frame, None)):
        assert "the columns of a data frame are not coded" in error_text(DataError, call, lazy)
