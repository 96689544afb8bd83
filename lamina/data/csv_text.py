"""Tables as text, `.csv`: cells that are divided by commas, semicolons, tabs or bars.

Read `read_table` first, which returns columns; `read_csv` reads tables of numbers alone.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import StringIO, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np

from lamina.base.disk import open_regular
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.checks import checked
from lamina.checks.origin import warn
from lamina.data.columns import (
    GAPS,
    LARGEST,
    Decimal,
    Delimiter,
    Kinds,
    decimal_mark,
    doubt_index,
    is_number,
    of_cells,
    require_float32,
)
from lamina.data.untrusted import PathLike, reading
from lamina.errors import DataError, FileFormatError
from lamina.foreign import did_you_mean, nearest

TABLE_SUFFIXES = (".csv", ".tsv")
# Where several divide all rows alike, the first does: commas are the most usual within cells.
DELIMITERS = "\t;|,"
# The delimiter is found in so many characters, and empty cells at the end in so many rows.
_SAMPLE = 1 << 20
_FIRST_ROWS = 1000
_DIVIDERS = "commas, semicolons, tabs or bars"
_LEAST = {1: "one column", 2: "two columns"}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# Begins or ends a cell of some delimiter.
_QUOTE = re.compile(f'[{DELIMITERS}] *"|" *[{DELIMITERS}]')
# Excel writes such a line before the header.
_SEPARATOR = re.compile(r"sep=([^\r\n])[\r\n]")
# The problems of quotes by words in the errors of Python's module csv, and what to do.
_QUOTES = {
    "unexpected end": (
        "a quote is opened and not closed",
        'Close it after the cell, or double a quote that is part of a cell: "5"" pipe".',
    ),
    "expected after": (
        "text follows the closing quote of a cell",
        (
            'Double a quote that is part of a cell: "5"" pipe". Remove spaces after a closing '
            "quote. Or the cell before is not closed."
        ),
    ),
    "field larger": (
        "a cell is longer than is usual",
        "Close the quote that makes it, or allow it: csv.field_size_limit(10**9), from Python.",
    ),
}


@checked
def read_table(
    path: PathLike, *, kinds: Kinds = None, delimiter: Delimiter = None, decimal: Decimal = None
) -> dict[str, Array]:
    """The columns of a `.csv` file by name, with words, dates and gaps; pandas is not needed.

    A column is of numbers or of dates (2024-12-31, perhaps with a time) if all its entries are,
    otherwise of words. If nine in ten are numbers or dates, but not all, the others are taken for
    mistakes. Entries that are empty, NA, N/A, n/a, #N/A, <NA>, NULL, null, NaN or nan are missing.
    Without a header, the columns are named "0", "1", ...

    Args:
        path: the file, UTF-8.
        kinds: `"number"`, `"date"` or `"word"` for columns that shall not be recognised. In a
            column of words, only empty entries are missing.
        delimiter: the character between the entries of a row; by default the comma, semicolon, tab
            or bar that divides all rows alike.
        decimal: the decimal mark, `"."` or `","`; by default found in the columns of numbers.

    Raises:
        DataError, FileFormatError: if the file is missing, has no rows, or uneven ones, or an entry
            is not of the kind of its column, or a quote is not closed.
    """
    return read_columns(Path(path), kinds or {}, None, delimiter or DELIMITERS, decimal)[0]


class NotNumbers(FileFormatError):
    """A table has words or empty entries."""


@frozen_dataclass
class Texts:
    """The cells of a table, without spaces around them.

    Attributes:
        columns: the cells by the names of the columns, which are "0", "1", ... without a header.
        lines: the numbers, from 1, of the lines in which the rows end.
    """

    columns: Mapping[str, list[str]]
    lines: Sequence[int]
    delimiter: str

    def where(self, row: int) -> str:
        """The position of a row, for people."""
        return f"in line {self.lines[row]}"


def read_csv(path: Path, targets: str | int | None) -> tuple[Array, str, Array]:
    """Inputs, float32[rows, columns - 1], from a table of numbers with decimal points.

    Then the name of the column of targets, and its values, float64[rows]. `targets` is the name or
    the number of that column, from 0 or negative from the end; None for the last one.
    """
    with reading_table(path):
        layout = _read_layout(path, least=2)
        column = column_number(targets, layout.names)
        table = _read_numbers(path, layout)
        if column:
            doubt_index(layout.names[0], table[:, 0])
        inputs = np.delete(table, column, axis=1).astype(np.float32)
        return inputs, layout.names[column], table[:, column]


def read_numbers(path: Path) -> Array:
    """All columns of a table of numbers, float32[rows, columns]."""
    with reading_table(path):
        return _read_numbers(path, _read_layout(path)).astype(np.float32)


def read_texts(path: Path, delimiters: str = DELIMITERS, decimal: str | None = None) -> Texts:
    """The entries of a table."""
    layout = _read_layout(path, delimiters=delimiters, decimal=decimal)
    columns: list[list[str]] = [[] for _ in layout.names]
    lines: list[int] = []
    for line, row in _rows(path, layout):
        lines.append(line)
        for column, field in zip(columns, row, strict=True):
            column.append(field.strip())
    if not lines:
        raise _no_rows()
    return Texts(dict(zip(layout.names, columns, strict=True)), lines, layout.delimiter)


def read_columns(
    path: Path,
    kinds: Mapping[str, str],
    other: str | None = None,
    delimiters: str = DELIMITERS,
    decimal: str | None = None,
) -> tuple[dict[str, Array], str, str | None]:
    """The columns of a file, its delimiter, and its decimal mark if a number has one.

    `other` is the kind of columns that `kinds` does not name.
    """
    with reading_table(path):
        texts = read_texts(path, delimiters, decimal)
        cells = {name: (column, kinds.get(name, other)) for name, column in texts.columns.items()}
        if decimal is None:
            kinds_of_numbers = (None, "number", "class")
            decimal = decimal_mark({n: c for n, (c, k) in cells.items() if k in kinds_of_numbers})
        columns = {
            name: of_cells(name, column, kind, texts.where, decimal)
            for name, (column, kind) in cells.items()
        }
        return columns, texts.delimiter, decimal


def is_table(path: Path) -> bool:
    """Whether a file is a table, by its suffix."""
    return path.suffix.lower() in TABLE_SUFFIXES


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
        evidence, encoding = "UTF-16", "utf-16"
    else:
        try:
            content.decode()
            position = 0
        except UnicodeDecodeError as error:
            position = error.start
        byte, line = content[position : position + 1], content.count(b"\n", 0, position) + 1
        encoding = "latin1"
        evidence = f"byte 0x{byte.hex()} in line {line}, {byte.decode(encoding)!r} in Latin-1"
    return FileFormatError(
        "the table has another encoding than UTF-8",
        facts=(("expected", "UTF-8"), ("found", evidence)),
        advice=f"Save it as UTF-8, or convert it: iconv -f {encoding} -t utf-8 {path.name}",
    )


@frozen_dataclass
class _Layout:
    """The layout of a file; `skip` lines precede its first row."""

    delimiter: str
    names: tuple[str, ...]
    skip: int


def _read_layout(
    path: Path, least: int = 1, delimiters: str = DELIMITERS, decimal: str | None = None
) -> _Layout:
    """The layout of a file with at least so many columns."""
    with _opened(path) as file:
        delimiter = _delimiter_of(file.read(_SAMPLE), delimiters, decimal)
    with _opened(path) as file:
        before, line, row, comment = _first_row(file, delimiter)
    names, numbers = row or [""], sum(map(_is_numeric, row))
    if row and len(comment) == len(row) and (numbers or not comment[0].startswith("# ")):
        # NumPy writes headers as comments. Others may begin with the name "#" or "#id".
        names, line = [comment[0].removeprefix("# "), *comment[1:]], before
    elif numbers and all(_is_numeric(cell) or cell in GAPS for cell in row):
        names, line = None, before
    with _opened(path) as file:
        rows = islice(_records(islice(file, line, None), delimiter, line), _FIRST_ROWS)
        used = max(map(_without_end, [names or [], *(cells for _, cells in rows)]))
    # Cells at the end of all rows that have neither names nor values are no columns.
    names = (names or list(map(str, range(len(row)))))[:used]
    if len(names) < least:
        expected = f"{_LEAST[least]} or more, divided by {_DIVIDERS}"
        raise FileFormatError(
            "the first line is not a row of a table",
            facts=(("expected", expected), ("found", repr(delimiter.join(row)[:60]))),
            advice="Check that this is the right file, and that it begins with the header or data. "
            "Cells may also be divided by another character: load(path, delimiter=' '). "
            "lm.data.read_table(path) reads a file of one column.",
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        numbers = [str(number) for number, name in enumerate(names) if name == twice]
        columns = f"columns {', '.join(numbers)}, counted from 0"
        raise FileFormatError(
            f"the header has the name {twice!r} more than once",
            facts=(("expected", "a name for each column"), ("found", columns)),
            advice="Give each column its own name in the first line.",
        )
    return _Layout(delimiter, tuple(names), line)


def _without_end(cells: Sequence[str]) -> int:
    """The number of cells without the empty ones at the end."""
    return max((number for number, cell in enumerate(cells, 1) if cell.strip()), default=0)


def _is_numeric(cell: str) -> bool:
    """Whether a cell is a number with either decimal mark."""
    return is_number(cell, ".") or is_number(cell, ",")


def _delimiter_of(sample: str, delimiters: str, decimal: str | None) -> str:
    """The delimiter that divides the most rows into as many cells as the first row."""
    # Of several such delimiters, the best leaves the fewest quotes beside another one within cells.
    # The commas of a single column of numbers divide nothing. If each row may be such a number or
    # two numbers, it is two numbers, with a warning, unless the decimal mark is known.
    if len(delimiters) == 1:
        return delimiters
    if declared := _SEPARATOR.match(sample):
        return declared[1]
    lines = [line.strip() for line in sample.splitlines()[: -1 if len(sample) == _SAMPLE else None]]
    lines = [line for line in lines if line and not line.startswith("#")]
    rows: Sequence[str] = () if decimal == "." else _single_column(lines)
    is_surely_single = decimal == "," or len(rows) < len(lines)
    if rows and (is_surely_single or any("," not in row for row in rows[:-1])):
        return ";"
    if rows and "," in rows[-1]:
        warn(
            f"each line has two whole numbers, or one with a decimal comma, such as {rows[0]!r}. "
            "It is read as two columns. If it is one, read it so: "
            "table = lm.data.read_table(path, decimal=','); otherwise say delimiter=','."
        )
    ranks: dict[str, tuple[float, int]] = {}
    for mark in delimiters:
        counts: list[int] = []
        divided = 0  # the number of cells of another delimiter that this one divides
        try:
            for _, row in _records(StringIO(sample, newline=""), mark):
                if any(map(str.strip, row)) and (counts or not row[0].lstrip().startswith("#")):
                    counts.append(len(row))
                    divided += sum('"' in cell and bool(_QUOTE.search(cell)) for cell in row)
        except FileFormatError:  # another delimiter, or a fault that is found again
            counts.append(0)
        if len(sample) == _SAMPLE and len(counts) > 1:
            counts.pop()  # its row may be longer
        first = counts[0] if counts else 0
        if first > 1:
            ranks[mark] = (counts.count(first) / len(counts), -divided)
    return max(ranks, key=lambda mark: ranks[mark], default=",")


def _single_column(lines: Sequence[str]) -> Sequence[str]:
    """The lines after a header, if they may be numbers, some with decimal commas."""
    has_header = bool(lines) and not _is_numeric(lines[0])
    rows = lines[has_header:]
    has_commas = any("," in row for row in rows)
    is_single = has_commas and all(is_number(row, ",") or row in GAPS for row in rows)
    if has_header and len(next(csv.reader(lines[:1]))) > 1:
        return ()
    return rows if is_single else ()


def _first_row(file: Iterable[str], delimiter: str) -> tuple[int, int, list[str], list[str]]:
    """The first row of a file, a header or data, after comments, blank lines and Excel's `sep=;`.

    Returns:
        The number of lines before it, the line in which it ends, its cells, and the cells of the
        last comment before it.
    """
    before, comment = 0, list[str]()
    for line, fields in _records(file, delimiter):
        row = [field.strip() for field in fields]
        is_separator = line == 1 and "".join(row) in ("sep=", f"sep={delimiter}")
        if any(row) and not is_separator:
            if not row[0].startswith("#"):
                return before, line, row, comment
            comment = row
        before = line
    return before, before, comment, []


def _rows(path: Path, layout: _Layout) -> Iterator[tuple[int, list[str]]]:
    """The rows of a file, each with the line in which it ends."""
    count = len(layout.names)
    with _opened(path) as file:
        lines = islice(file, layout.skip, None)
        for line, row in _records(lines, layout.delimiter, layout.skip):
            if len(row) > count:
                del row[max(count, _without_end(row)) :]
            if len(row) == count:
                yield line, row
            elif len(row) > 1 or row[0].strip():
                raise FileFormatError(
                    f"line {line} has another number of columns than the first",
                    facts=(("expected", str(count)), ("found", str(len(row)))),
                    advice="Correct that line; a truncated file ends in such a line. A cell that "
                    "contains the delimiter needs quotes. If another character divides the cells, "
                    "or commas mark decimals, say so to lm.data.load or lm.data.read_table: "
                    "delimiter=' ', decimal=','; on the command line --delimiter, --decimal.",
                )


def _records(
    lines: Iterable[str], delimiter: str, before: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """The cells of the lines that are not empty, with the numbers of their lines after `before`."""
    skips = delimiter != " "  # a space before a quote is none of the cell
    if not skips:  # several spaces may align columns
        lines = (line if '"' in line else re.sub(" +", " ", line).strip(" ") for line in lines)
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=skips)
    end = before
    try:
        for row in reader:
            end = before + reader.line_num
            if row:
                yield end, row
    except csv.Error as error:
        problem, advice = next(texts for words, texts in _QUOTES.items() if words in str(error))
        raise FileFormatError(
            f"{problem}, in the row that begins in line {end + 1}",
            facts=(("found", f"{error}, in line {before + reader.line_num}"),),
            advice=advice,
        ) from None


def _opened(path: Path) -> TextIOWrapper:
    return TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="")


def column_number(targets: str | int | None, names: Sequence[str]) -> int:
    """The number of a column, by its name or number; the last one for -1 or None."""
    if targets is None:
        return len(names) - 1
    if isinstance(targets, int) and -len(names) <= targets < len(names):
        return targets % len(names)
    if targets in names:
        return list(names).index(cast(str, targets))
    headed = names[0] != "0"
    columns = ", ".join(names) if headed else f"{len(names)} columns without names"
    raise DataError(
        f"there is no column {targets!r}",
        facts=(("expected", f"0 to {len(names) - 1}, or a name"), ("found", columns)),
        advice=did_you_mean(nearest(str(targets), names))
        or "Give the name of the column of targets in the header, or its number.",
    )


def _read_numbers(path: Path, layout: _Layout) -> Array:
    """All numbers of a table, float64[rows, columns]."""
    with _opened(path) as file:
        lines = islice(file, layout.skip, None)
        rows = [line for line in lines if line.strip(" \r\n")]
    if not rows:
        raise _no_rows()
    table: Array = np.zeros((0, 0))
    if not any('"' in row for row in rows):  # NumPy ignores quotes that are not closed
        with suppress(ValueError):
            table = np.loadtxt(rows, comments=None, delimiter=layout.delimiter, ndmin=2)
    if table.shape[1] != len(layout.names) or np.isnan(table).any():
        table = _read_rows(path, layout)
    if np.abs(table).max() > LARGEST:
        texts = read_texts(path, layout.delimiter)
        for name, column in zip(layout.names, table.T, strict=True):
            require_float32(name, column, column, texts.where)
    return table


def _read_rows(path: Path, layout: _Layout) -> Array:
    """All numbers of a table, row by row."""
    rows: list[list[float]] = []
    for line, row in _rows(path, layout):
        for name, field in zip(layout.names, row, strict=True):
            cell = field.strip()
            if cell in GAPS or not is_number(cell):
                raise NotNumbers(
                    f"the column {name!r} has an entry that is not a number",
                    facts=(("expected", "numbers"), ("found", f"{cell!r} in line {line}")),
                )
        rows.append([float(cell) for cell in row])
    return np.array(rows)


def _no_rows() -> DataError:
    return DataError(
        "the table has no rows",
        facts=(("expected", "one row of numbers or more"), ("found", "only a header")),
        advice="Check that the file was written to its end.",
    )
