"""`read_table`, and the typed columns of files of tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.checks import checked
from lamina.data.columns import Decimal, Delimiter, Kinds, decimal_mark, of_cells
from lamina.data.csv_text import DELIMITERS, read_texts, reading_table
from lamina.data.untrusted import PathLike

TABLE_SUFFIXES = (".csv", ".tsv")


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
    return read_columns(Path(path), kinds or {}, None, delimiter or DELIMITERS, decimal).columns


@frozen_dataclass
class FileColumns:
    """The columns of a file; `decimal` is None if no number has a decimal mark."""

    columns: dict[str, Array]
    delimiter: str
    decimal: str | None


def read_columns(
    path: Path,
    kinds: Mapping[str, str],
    other: str | None = None,
    delimiters: str = DELIMITERS,
    decimal: str | None = None,
) -> FileColumns:
    """The columns of a file; `other` is the kind of columns that `kinds` does not name."""
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
        return FileColumns(columns, texts.delimiter, decimal)


def is_table(path: Path) -> bool:
    """Whether a file is a table, by its suffix."""
    return path.suffix.lower() in TABLE_SUFFIXES
