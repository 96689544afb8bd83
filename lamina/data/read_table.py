"""`read_table`, and the formats of files of tables.

A further format is a further row of `TABLE_FORMATS`. `load`, the coding of a model and the command
line read tables by these rows. If the contents tell the format, `load.py` has its first bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.checks import checked
from lamina.data.columns import Decimal, Delimiter, Kinds, decimal_mark, of_cells
from lamina.data.csv_text import DELIMITERS, read_csv, read_numbers, read_texts, reading_table
from lamina.data.untrusted import PathLike


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
    """The columns of a file; `other` is the kind of columns that `kinds` does not name.

    A file without the suffix of a table is read as text.
    """
    table = table_format(path) or _CSV
    return table.columns(path, kinds, other, delimiters, decimal)


def _columns_of_text(
    path: Path, kinds: Mapping[str, str], other: str | None, delimiters: str, decimal: str | None
) -> FileColumns:
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


@frozen_dataclass
class TableFormat:
    """A format of files of tables: its suffixes, and its readers.

    Attributes:
        suffixes: the endings of the names of its files, in lower case.
        columns: reads words, dates and gaps as well; the arguments are those of `read_columns`.
        inputs: reads inputs, the name of the column of targets, and targets, of a table of numbers
            alone. Raises `NotNumbers` for any other.
        numbers: reads all columns of such a table.
    """

    suffixes: tuple[str, ...]
    columns: Callable[[Path, Mapping[str, str], str | None, str, str | None], FileColumns]
    inputs: Callable[[Path, str | int | None], tuple[Array, str, Array]]
    numbers: Callable[[Path], Array]


_CSV = TableFormat((".csv", ".tsv"), _columns_of_text, read_csv, read_numbers)
TABLE_FORMATS = {"csv": _CSV}


def table_format(path: Path) -> TableFormat | None:
    """The format of a file by its suffix; None if that is not a table's."""
    suffix = path.suffix.lower()
    return next((table for table in TABLE_FORMATS.values() if suffix in table.suffixes), None)
