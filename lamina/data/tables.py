"""Tables of numbers as text: `.csv`, also with semicolons or tabs."""

from __future__ import annotations

import csv
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np

from lamina.data.columns import EXACT, GAPS, LARGEST, is_number, require_float32
from lamina.data.untrusted import reading
from lamina.disk import open_regular
from lamina.errors import DataError, FileFormatError
from lamina.records import frozen_dataclass
from lamina.shapes import Array

_DELIMITERS = ",;\t"
_LEAST = {1: "one column", 2: "two columns"}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class NotNumbers(FileFormatError):
    """A table has words or empty entries."""


@frozen_dataclass
class Texts:
    """The cells of a table, without spaces around them.

    Attributes:
        columns: the cells by the names of the columns, which are "0", "1", ... without a header.
        lines: of the file, in which the rows end; from 1.
    """

    columns: Mapping[str, list[str]]
    lines: Sequence[int]

    def where(self, row: int) -> str:
        """The position of a row, for people."""
        return f"in line {self.lines[row]}"


def read_csv(path: Path, targets: str | int | None) -> tuple[Array, Array]:
    """Inputs and targets from a table of numbers.

    A first line with an entry that is neither a number nor missing is a header.

    Args:
        path: the file, UTF-8.
        targets: the name or the number (from 0; negative ones from the end) of the column of
            targets; None means the last.

    Returns:
        Inputs float32[rows, columns - 1]; targets int64[rows] if all are whole numbers, else
        float32[rows, 1].
    """
    with reading_table(path):
        layout = _read_layout(path, least=2)
        column = column_number(targets, layout.names)
        table = _read_numbers(path, layout)
        inputs = np.delete(table, column, axis=1).astype(np.float32)
        values = table[:, column]
        whole = bool(np.all(np.isfinite(values) & (np.trunc(values) == values)))
        if whole and bool(np.all(np.abs(values) <= EXACT)):
            return inputs, values.astype(np.int64)
        return inputs, values.astype(np.float32)[:, None]


def read_numbers(path: Path) -> Array:
    """All columns of a table of numbers, float32[rows, columns].

    Raises:
        NotNumbers: if an entry is missing or a word.
    """
    with reading_table(path):
        return _read_numbers(path, _read_layout(path)).astype(np.float32)


def read_texts(path: Path) -> Texts:
    """The entries of a table.

    Raises:
        DataError: if there are no rows.
        FileFormatError: if a row has another number of columns than the first.
    """
    layout = _read_layout(path)
    columns: list[list[str]] = [[] for _ in layout.names]
    count = layout.count
    lines: list[int] = []
    with _opened(path) as file:
        rows = csv.reader(file, delimiter=layout.delimiter)
        for row in islice(rows, int(layout.headed), None):
            if not row:
                continue
            if len(row) != count:
                raise _uneven(rows.line_num, count, len(row))
            lines.append(rows.line_num)
            for column, field in zip(columns, row, strict=True):
                column.append(field.strip())
    if not lines:
        raise _no_rows()
    return Texts(dict(zip(layout.names, columns, strict=True)), lines)


@contextmanager
def reading_table(path: Path) -> Generator[None]:
    """Names the file in every error, and states the encoding of a file that is not UTF-8."""
    with reading(path, "a table, UTF-8"):
        try:
            yield
        except UnicodeDecodeError:
            raise _no_utf8(path) from None


def _no_utf8(path: Path) -> FileFormatError:
    with open_regular(path) as file:
        content = file.read()
    if content[:2] in _UTF_16:
        found, encoding = "UTF-16", "utf-16"
    else:
        try:
            content.decode()
            position = 0
        except UnicodeDecodeError as error:
            position = error.start
        byte, line = content[position : position + 1], content.count(b"\n", 0, position) + 1
        encoding = "latin1"
        found = f"byte 0x{byte.hex()} in line {line}, {byte.decode(encoding)!r} in Latin-1"
    return FileFormatError(
        "the table has another encoding than UTF-8",
        facts=(("expected", "UTF-8"), ("found", found)),
        advice=f"Save it as UTF-8, or convert it: iconv -f {encoding} -t utf-8 {path.name}",
    )


@frozen_dataclass
class _Layout:
    """The layout of a file.

    Attributes:
        delimiter: between the columns.
        names: of the columns; numbers from 0 without a header.
        headed: whether the first line is a header.
    """

    delimiter: str
    names: tuple[str, ...]
    headed: bool

    @property
    def count(self) -> int:
        """The number of columns."""
        return len(self.names)


def _read_layout(path: Path, least: int = 1) -> _Layout:
    """The layout of a file with at least so many columns."""
    with _opened(path) as file:
        first = file.readline()
    delimiter = next((mark for mark in _DELIMITERS if mark in first), ",")
    fields = [field.strip() for row in csv.reader([first], delimiter=delimiter) for field in row]
    if len(fields) < least:
        raise FileFormatError(
            "the first line is not a row of a table",
            facts=(
                ("expected", f"{_LEAST[least]} or more, divided by commas, semicolons or tabs"),
                ("found", repr(first[:60])),
            ),
            advice="Check that this is the right file, and that it begins with the header or data.",
        )
    numbers = sum(map(is_number, fields))
    if numbers and all(is_number(field) or field in GAPS for field in fields):
        return _Layout(delimiter, tuple(map(str, range(len(fields)))), headed=False)
    twice = next((name for name in fields if fields.count(name) > 1), None)
    if twice is not None:
        numbered = [str(number) for number, name in enumerate(fields) if name == twice]
        raise FileFormatError(
            f"the header has the name {twice!r} more than once",
            facts=(("expected", "a name for each column"), ("found", _columns_text(numbered))),
            advice="Give each column its own name in the first line.",
        )
    return _Layout(delimiter, tuple(fields), headed=True)


def _columns_text(numbered: Sequence[str]) -> str:
    return f"columns {', '.join(numbered)}, counted from 0"


def _opened(path: Path) -> TextIOWrapper:
    return TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="")


def column_number(targets: str | int | None, names: Sequence[str]) -> int:
    """The number of the column of targets, by its name or number; None means the last.

    Raises:
        DataError: if there is no such column.
    """
    if targets is None:
        return len(names) - 1
    if isinstance(targets, int) and -len(names) <= targets < len(names):
        return targets % len(names)
    if targets in names:
        return list(names).index(cast(str, targets))
    headed = names[0] != "0"
    raise DataError(
        f"there is no column {targets!r}",
        facts=(
            ("expected", f"0 to {len(names) - 1}, or a name"),
            ("found", ", ".join(names) if headed else f"{len(names)} columns without names"),
        ),
        advice="Give the name of the column of targets in the header, or its number.",
    )


def _read_numbers(path: Path, layout: _Layout) -> Array:
    """All numbers of a table, float64[rows, columns].

    Raises:
        NotNumbers: if an entry is missing or a word.
    """
    try:
        with _opened(path) as file:
            lines = islice(file, int(layout.headed), None)
            rows = [line for line in lines if line.strip()]
        if not rows:
            raise _no_rows()
        table = np.loadtxt(
            rows, np.float64, comments=None, delimiter=layout.delimiter, quotechar='"', ndmin=2
        )
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise _first_fault(path, layout) or error from None
    if table.shape[1] != layout.count:
        raise _first_fault(path, layout) or ValueError("uneven rows")
    if np.isnan(table).any():
        raise _first_fault(path, layout) or NotNumbers("a number is missing")
    if np.abs(table).max() > LARGEST:
        texts = read_texts(path)
        for name, column in zip(layout.names, table.T, strict=True):
            require_float32(name, column, column, texts.where)
    return table


def _first_fault(path: Path, layout: _Layout) -> FileFormatError | None:
    """Reads the table again, line by line, to find the fault."""
    with _opened(path) as file:
        rows = csv.reader(file, delimiter=layout.delimiter)
        for row in islice(rows, int(layout.headed), None):
            if row and len(row) != layout.count:
                return _uneven(rows.line_num, layout.count, len(row))
            for name, field in zip(layout.names, row, strict=False):
                cell = field.strip()
                if cell in GAPS or not is_number(cell):
                    return NotNumbers(
                        f"the column {name!r} has an entry that is not a number",
                        facts=(
                            ("expected", "numbers"),
                            ("found", f"{cell!r} in line {rows.line_num}"),
                        ),
                    )
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
