"""Tables of numbers as text: `.csv`, also with semicolons or tabs."""

from __future__ import annotations

import csv
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

import numpy as np

from lamina.data.untrusted import reading
from lamina.disk import open_regular
from lamina.errors import DataError, FileFormatError
from lamina.shapes import Array

_DELIMITERS = ",;\t"
# float64 represents all whole numbers up to this one exactly.
_EXACT = 2.0**53


class NotNumbers(FileFormatError):
    """A table has words or empty entries."""


def read_csv(path: Path, targets: str | int | None) -> tuple[Array, Array]:
    """Inputs and targets from a table of numbers.

    A first line that is not all numbers is a header.

    Args:
        path: the file, UTF-8.
        targets: the name or the number (from 0; negative ones from the end) of the column of
            targets; None means the last.

    Returns:
        Inputs float32[rows, columns - 1]; targets int64[rows] if all are whole numbers, else
        float32[rows, 1].
    """
    with reading(path, "a table of numbers, UTF-8"):
        delimiter, names, column_count = _read_layout(path)
        column = _target_column(targets, names, column_count)
        table = _read_numbers(path, delimiter, header=names is not None, columns=column_count)
        inputs = np.delete(table, column, axis=1).astype(np.float32)
        values = table[:, column]
        whole = bool(np.all(np.isfinite(values) & (np.trunc(values) == values)))
        if whole and bool(np.all(np.abs(values) <= _EXACT)):
            return inputs, values.astype(np.int64)
        return inputs, values.astype(np.float32)[:, None]


def read_texts(path: Path) -> dict[str, list[str]]:
    """The entries of a table by column, without spaces around them.

    Raises:
        DataError: if there are no rows.
        FileFormatError: if a row has another number of columns than the first.
    """
    delimiter, names, count = _read_layout(path)
    names = [str(number) for number in range(count)] if names is None else names
    columns: list[list[str]] = [[] for _ in names]
    with _opened(path) as file:
        rows = csv.reader(file, delimiter=delimiter)
        for row in islice(rows, 0 if names[0] == "0" else 1, None):
            if not row:
                continue
            if len(row) != count:
                raise _uneven(rows.line_num, count, len(row))
            for column, field in zip(columns, row, strict=True):
                column.append(field.strip())
    if not columns[0]:
        raise _no_rows()
    return dict(zip(names, columns, strict=True))


def _read_layout(path: Path) -> tuple[str, list[str] | None, int]:
    """The delimiter, the names in the header if there is one, and the number of columns."""
    with _opened(path) as file:
        first = file.readline()
    delimiter = next((mark for mark in _DELIMITERS if mark in first), ",")
    fields = [field.strip() for row in csv.reader([first], delimiter=delimiter) for field in row]
    if len(fields) < 2:
        raise FileFormatError(
            "the first line is not a row of a table",
            facts=(
                ("expected", "two columns or more, divided by commas, semicolons or tabs"),
                ("found", repr(first[:60])),
            ),
            advice="Check that this is the right file, and that it begins with the header or data.",
        )
    has_header = not all(_is_number(field) for field in fields)
    return delimiter, fields if has_header else None, len(fields)


def _opened(path: Path) -> TextIOWrapper:
    return TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="")


def _target_column(targets: str | int | None, names: list[str] | None, count: int) -> int:
    if targets is None:
        return count - 1
    if isinstance(targets, int):
        if -count <= targets < count:
            return targets % count
    elif names is not None and targets in names:
        return names.index(targets)
    columns = ", ".join(names) if names is not None else f"{count} columns without names"
    raise DataError(
        f"there is no column {targets!r}",
        facts=(("expected", f"0 to {count - 1}, or a name"), ("found", columns)),
        advice="Give the name of the column of targets in the header, or its number.",
    )


def _read_numbers(path: Path, delimiter: str, *, header: bool, columns: int) -> Array:
    try:
        with _opened(path) as file:
            lines = islice(file, 1 if header else 0, None)
            rows = [line for line in lines if line.strip()]
        if not rows:
            raise _no_rows()
        table = np.loadtxt(
            rows, np.float64, comments=None, delimiter=delimiter, quotechar='"', ndmin=2
        )
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise _first_fault(path, delimiter, header, columns) or error from None
    if table.shape[1] != columns:
        raise _first_fault(path, delimiter, header, columns) or ValueError("uneven rows")
    return table


def _first_fault(path: Path, delimiter: str, header: bool, columns: int) -> FileFormatError | None:
    """Reads the table again, line by line, to find the fault."""
    with _opened(path) as file:
        rows = csv.reader(file, delimiter=delimiter)
        for row in islice(rows, 1 if header else 0, None):
            if row and len(row) != columns:
                return _uneven(rows.line_num, columns, len(row))
            for index, field in enumerate(row):
                if not _is_number(field):
                    return NotNumbers(f"line {rows.line_num}, column {index + 1} is not a number")
    return None


def _uneven(line: int, expected: int, found: int) -> FileFormatError:
    return FileFormatError(
        f"line {line} has another number of columns than the first",
        facts=(("expected", str(expected)), ("found", str(found))),
        advice="Correct that line; a truncated file ends in such a line.",
    )


def _no_rows() -> DataError:
    return DataError(
        "the table has no rows",
        facts=(("expected", "one row of numbers or more"), ("found", "only a header")),
        advice="Check that the file was written to its end.",
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # a number for Python, 1_000, but not in tables
