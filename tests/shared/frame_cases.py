"""A table as frames of several packages."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DAYS = [datetime.date(1970, 1, 11), datetime.date(1970, 1, 2), datetime.date(1969, 12, 31)] * 10
TABLE: dict[str, list[Any]] = {
    "size": [30.5, 52.0, 41.5] * 10,
    "rooms": [1, 2, 3] * 10,
    "town": ["Ulm", "Bonn", "Köln"] * 10,
    "new": [True, False, False] * 10,
    "built": DAYS,
    "rent": [1.25, 2.5, 0.75] * 10,
}


def pandas_frame(table: dict[str, list[Any]]) -> Any:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table)
    if "built" in table:
        frame["built"] = pandas.to_datetime(frame["built"])
    return frame


def polars_frame(table: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(table)


def arrow_table(table: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("pyarrow").table(table)


def by_name(table: dict[str, list[Any]]) -> Any:
    found: dict[str, Any] = dict(table)
    if "built" in found:
        found["built"] = np.array(found["built"], "datetime64[D]")
    return found


MAKERS = (pandas_frame, polars_frame, arrow_table, by_name)
maker = pytest.mark.parametrize("make", MAKERS, ids=[make.__name__ for make in MAKERS])


def table(folder: Path, text: str) -> Path:
    """The path of a file with this table."""
    path = folder / "a.csv"
    path.write_text(text, encoding="utf-8")
    return path
