"""What the columns of a table hold: numbers, dates or words, and which of their values are missing.

The arrays of columns are of bools, integers or floats (NaN where a number is missing), datetime64
(NaT), or objects that are words (None).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, cast

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.checks.kinds import Misfit, OrNone, ReadBy, Word
from lamina.checks.origin import warn
from lamina.errors import DataError

# Cells of a file that stand for a missing value; pandas reads them so too.
GAPS = frozenset(("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "NaN", "nan"))
# With so many numbers, the other cells of a column are taken for mistakes.
_NEARLY_ALL = 0.9
# float64 represents all whole numbers up to this one exactly.
EXACT = 2.0**53
LARGEST = float(np.finfo(np.float32).max)
# Cells of a file that are bools, as Python, R and Excel write them.
_BOOLS = {"True": 1.0, "true": 1.0, "TRUE": 1.0, "False": 0.0, "false": 0.0, "FALSE": 0.0}
# What can be said of a column; only a target has classes.
KINDS = ("number", "date", "word", "class")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?", re.ASCII)


def _column_kinds(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise Misfit("the kinds of columns by name", "{name}={'town': 'word'}")
    kinds: dict[str, str] = {}
    for name, kind in cast(Mapping[Any, Any], value).items():
        try:
            kinds[str(name)] = Word(KINDS).read(kind)
        except Misfit as misfit:
            raise misfit.within(f"[{name!r}]", kind) from None
    return kinds


# A kind for each of some columns, where it shall be another than is found.
Kinds = Annotated[Mapping[str, str] | None, OrNone(ReadBy(_column_kinds))]


def _delimiter(value: Any) -> str:
    if isinstance(value, str) and len(value) == 1 and value not in '"\r\n':
        return value
    raise Misfit("one character", "{name}=';'")


# The notation of a file, where it shall not be found.
Delimiter = Annotated[str | None, OrNone(ReadBy(_delimiter))]
Decimal = Annotated[str | None, OrNone(Word(tuple(".,")))]
# Describes the position of a row that is counted from 0: `"in line 3"`.
Where = Callable[[int], str]
in_row: Where = "in row {}".format


def kind_of(values: Array) -> str:
    """`"number"`, `"date"` or `"word"`."""
    return {"O": "word", "M": "date"}.get(values.dtype.kind, "number")


def missing(values: Array) -> Array:
    """Which values of a column are missing, bool[n]; an empty word is a missing one."""
    if values.dtype.kind == "O":
        return np.array([not word for word in cast(list[Any], values.tolist())], np.bool_)
    if values.dtype.kind == "M":
        return np.isnat(values)
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), np.bool_)


def require_float32(name: str, numbers: Array, unscaled: Array, where: Where = in_row) -> None:
    """Requires float64 numbers that are finite in float32; NaN is a missing one."""
    broken = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(broken):
        row = int(broken[0])
        number = f"{unscaled[row]:g} {where(row)}"
        raise DataError(
            f"the column {name!r} has a number that float32 cannot hold",
            facts=(("expected", "numbers up to 3.4e+38"), ("found", number)),
            advice="Correct it, scale the column, or make it a missing number: NaN, or an empty "
            "cell.",
        )


def as_kind(name: str, values: Array, kind: str, learned: Collection[str] | None = None) -> Array:
    """The values of a column as values of a kind; `learned` are the words of the training data."""
    present, kind = kind_of(values), "number" if kind == "class" else kind
    if present == kind:
        return values
    if missing(values).all():
        if kind == "word":
            return np.full(len(values), None)
        notation = _notations(None)[kind]
        return np.full(len(values), notation.gap, notation.dtype)
    if present == "word":
        cells = [word or "" for word in cast(list[Any], values.tolist())]
        return of_cells(name, cells, kind, in_row)
    # Numbers of bools are words of earlier versions.
    if values.dtype.kind == "b" and kind == "word" and not {"0", "1"} & set(learned or ()):
        return np.array([str(value) for value in cast(list[Any], values.tolist())], object)
    if present == "number" and kind == "word" and (learned is None or any(map(is_number, learned))):
        listed = cast(list[Any], values.tolist())
        words = [None if number != number else category(number) for number in listed]
        _doubt_numbers(name, words, learned)
        return np.array(words, object)
    raise DataError(
        f"the column {name!r} is of another kind",
        facts=(("expected", f"{kind}s"), ("found", f"{present}s")),
        advice="Convert it to what the model was trained on.",
    )


def _doubt_numbers(name: str, words: Sequence[str | None], learned: Collection[str] | None) -> None:
    """Warns of numbers that are no known words, if such words have leading zeros."""
    if learned is None or not any(word.startswith("0") and len(word) > 1 for word in learned):
        return
    unknown = next((word for word in words if word is not None and word not in learned), None)
    if unknown is not None:
        warn(
            f"the column {name!r} was learned as words with leading zeros, and holds numbers here; "
            f"{unknown} is none of the words. Read the column as text, or give the path of the "
            "file: model.coding.inputs(path)."
        )


def recognised(name: str, values: Array) -> Array:
    """A column whose kind is not stated: words that are all dates of ISO 8601 become dates."""
    if kind_of(values) != "word":
        return values
    cells = [word or "" for word in cast(list[Any], values.tolist())]
    counts = Counter(cell for cell in cells if cell not in GAPS)
    is_date = _found_kind(name, cells, counts, in_row) == "date"
    return of_cells(name, cells, "date", in_row) if is_date else values


def doubt_words(name: str, values: Array, *, is_target: bool, decimal: str | None) -> None:
    """Warns of a column of words that look like numbers or dates, or hardly repeat."""
    counts = Counter(word for word in cast(list[Any], values.tolist()) if word)
    total, doubt = counts.total(), None
    if not total:
        return
    for kind, pattern, how in _LOOKS:
        fitting = [word for word in counts if pattern.fullmatch(word)]
        example = next((word for word in fitting if not is_number(word, decimal)), None)
        if example and sum(counts[word] for word in fitting) >= _NEARLY_ALL * total:
            right = how.replace(".", decimal or ".")
            remedy = f"convert them to {kind}, {right}"
            if decimal is None and all(is_number(example, mark) for mark in ".,"):
                remedy += ", or say of a file what marks decimals, decimal='.' or decimal=','"
            doubt = example, f"look like {kind}", remedy
            break
    else:
        if len(values) >= _FEW_ROWS and len(counts) > len(values) / 2:
            remedy = "leave it out if it numbers the rows"
            if all(is_number(word, decimal) for word in counts):
                remedy = f"make numbers of them, kinds={{{name!r}: 'number'}}, or {remedy}"
            doubt = next(iter(counts)), "hardly repeat", remedy
    if doubt is not None:
        example, reason, remedy = doubt
        warn(
            f"the column {name!r} has {len(counts):,} different words that {reason}, such as "
            f"{example!r}; each becomes a {'class' if is_target else 'feature'}. If that is a "
            f"mistake, {remedy}; otherwise say that they are words: kinds={{{name!r}: 'word'}}, "
            f"or --kind {_quoted(name)}=word."
        )


# Marks between thousands besides point and comma, some of them spaces that break no line.
_SPACES = "' \xa0\u2009\u202f"
# Texts that are no numbers or dates here, but in other notations, and how they are written here.
_DATE_LOOK = r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}([ T]\d\d?:\d\d(:\d\d)?)?"
_NUMBER_LOOK = rf"[-+]?[$€£]? ?(\d{{1,3}}([.,{_SPACES}]\d{{3}})+|\d+)([.,]\d+)?( ?[%$€£])?"
_LOOKS = (
    ("dates", re.compile(_DATE_LOOK, re.ASCII), "2024-12-31"),
    ("numbers", re.compile(_NUMBER_LOOK, re.ASCII), "1200.5"),
)
# Of fewer rows, words may all differ by chance.
_FEW_ROWS = 20


def category(value: Any) -> str:
    """A word, number or other value as a word: a column of integers with gaps is of floats."""
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if is_whole else value)


# Cells of text ------------------------------------------------------------------------------------


def of_cells(
    name: str, cells: Sequence[str], kind: str | None, where: Where, decimal: str | None = None
) -> Array:
    """The values of a column of text.

    Without a kind, it is of bools, numbers or dates if all its cells are, and otherwise of words.
    Bools are numbers too, 0 and 1.

    Args:
        cells: texts without spaces around them.
        kind: one of `KINDS`; a word is any cell that is not empty. None finds it.
        decimal: the decimal mark, as for `number_in`.
    """
    kind, kinds = "number" if kind == "class" else kind, _notations(decimal)
    if kind == "word":
        return np.array([cell or None for cell in cells], object)
    # Dates and words are often repeated: each is looked at once.
    counts = Counter(cell for cell in cells if cell not in GAPS)
    if kind in (None, "number") and counts and counts.keys() <= _BOOLS.keys():
        bools = np.array([_BOOLS.get(cell, np.nan) for cell in cells])
        return bools if np.isnan(bools).any() else bools.astype(np.bool_)
    if kind is None:
        kind = _found_kind(name, cells, counts, where, decimal)
    elif not all(map(kinds[kind].fits, counts)):
        marks = " with decimal commas" if kind == "number" and decimal == "," else ""
        other_cell = _other(cells, kinds[kind].fits, where)
        raise DataError(
            f"the column {name!r} is of another kind",
            facts=(("expected", f"{kind}s{marks}"), ("found", other_cell)),
            advice=f"Correct it, or leave it empty if the {kind} is missing.",
        )
    if kind == "word":
        return np.array([None if cell in GAPS else cell for cell in cells], object)
    notation = kinds[kind]
    read = [notation.read(notation.gap if cell in GAPS else cell) for cell in cells]
    values = np.array(read, notation.dtype)
    if kind == "number":
        require_float32(name, values, values, where)
    return values


def _found_kind(
    name: str, cells: Sequence[str], counts: Counter[str], where: Where, decimal: str | None = None
) -> str:
    """The kind of the cells that are not missing; `counts` says how often each is there."""
    total = counts.total()
    for kind, notation in _notations(decimal).items():
        fitting = sum(count for cell, count in counts.items() if notation.fits(cell))
        if total and fitting == total:
            return kind
        if total and fitting >= _NEARLY_ALL * total:
            other_cell = _other(cells, notation.fits, where)
            raise DataError(
                f"nearly all cells of the column {name!r} are {kind}s",
                facts=(("expected", f"{kind}s in all {total:,} cells"), ("found", other_cell)),
                advice=f"Correct the cell, or empty it if the {kind} is missing. If the column is "
                f"of words, say so: kinds={{{name!r}: 'word'}}, or --kind {_quoted(name)}=word.",
            )
    return "word"


def _other(cells: Sequence[str], fits: Callable[[str], bool], where: Where) -> str:
    """The first cell that does not fit, with its position."""
    row = next(row for row, cell in enumerate(cells) if cell not in GAPS and not fits(cell))
    return f"{cells[row]!r} {where(row)}"


def _quoted(name: str) -> str:
    return name if name.isidentifier() else repr(name)


def number_in(text: str, decimal: str | None = None) -> float | None:
    """The number in a cell; only with a known decimal mark it may have marks between thousands."""
    plain = text
    if decimal == ",":
        plain = "" if "." in text else text.replace(",", ".")
    # Numbers for Python, but not in tables: 1_000, and digits of other scripts.
    if "_" not in text and text.isascii():
        try:
            return float(plain)
        except ValueError:
            pass
    if decimal is None or not _GROUPED[decimal].fullmatch(text):
        return None
    kept = [mark for mark in text if mark in _SIGNED_DIGITS or mark == decimal]
    return float("".join(kept).replace(",", "."))


_SIGNED_DIGITS = "+-0123456789"
# Numbers with marks between thousands, by the decimal mark: 1,200.5 and 1.200,5; 1 200 and 1'200.
_GROUPED = {
    mark: re.compile(
        rf"[-+]?[1-9]\d{{0,2}}([{other}{_SPACES}])\d{{3}}(\1\d{{3}})*([{mark}]\d+)?", re.ASCII
    )
    for mark, other in (".,", ",.")
}
_MAY_BE_GROUPED = re.compile(rf",|[{_SPACES}]\d{{3}}|\.\d{{3}}\.", re.ASCII)


def is_number(text: str, decimal: str | None = None) -> bool:
    """Whether a cell is a number with this decimal mark."""
    return number_in(text, decimal) is not None


def decimal_mark(columns: Mapping[str, Sequence[str]]) -> str | None:
    """The decimal mark of the numbers in a table; None if they do not show it.

    A mark is shown by a column, if nearly all its cells are numbers with it, and one of them is a
    number with no other mark: `1,5`, `1.234,5` and `1.234.567` show the comma. `1,200` and `1.200`
    show nothing, because the mark may be one between thousands. A table with only such points has
    decimal points.
    """
    texts = "\n".join("\n".join(cells) for cells in columns.values())
    if not _MAY_BE_GROUPED.search(texts):
        points = (c for cells in columns.values() for c in cells if "." in c and is_number(c))
        return "." if any(points) else None
    shown = {mark: _first_with(mark, columns, sure=True) for mark in ".,"}
    if not any(shown.values()):
        shown = {mark: _first_with(mark, columns, sure=False) for mark in ".,"}
        if not shown["."]:
            return None
    if all(shown.values()):
        raise DataError(
            "the table has decimal commas and decimal points",
            facts=(("commas", shown[","] or ""), ("points", shown["."] or "")),
            advice="Say what marks decimals: decimal=',' or decimal='.', or --decimal on the "
            "command line. Numbers with the other mark are words then, unless it is one between "
            "thousands.",
        )
    return "." if shown["."] else ","


def _first_with(mark: str, columns: Mapping[str, Sequence[str]], *, sure: bool) -> str | None:
    """The first number with a decimal mark, as text; if `sure`, it has no other decimal mark."""
    other = "," if mark == "." else "."
    for name, cells in columns.items():
        marked = (cell for cell in cells if mark in cell or (sure and cell.count(other) > 1))
        shown = (c for c in marked if is_number(c, mark) and not (sure and is_number(c, other)))
        example = next(shown, None)
        if example is not None:
            counts = Counter(cell for cell in cells if cell not in GAPS)
            fitting = sum(count for cell, count in counts.items() if is_number(cell, mark))
            if fitting >= _NEARLY_ALL * counts.total():
                return f"{example!r} in the column {name!r}"
    return None


def doubt_index(name: str, values: Array) -> None:
    """Warns of a first column of inputs that has no name and numbers the rows."""
    if name not in _UNNAMED or values.dtype.kind not in "iuf" or len(values) < _FEW_NUMBERS:
        return
    # Without a header, it may also be of years.
    counts = name != "0" or values[0] in (0, 1)
    steps = np.diff(values if name == "0" else np.sort(values))
    if counts and bool(np.all(steps == 1 if name == "0" else steps >= 1)):
        warn(
            f"the first column, {name!r}, has no name of its own and numbers the rows, as the "
            "index of pandas does in a file. It becomes a feature. If that is a mistake, leave it "
            f"out: table = lm.data.read_table(path); del table[{name!r}]; "
            "lm.data.from_frame(table, ...); or write the file without it: "
            "frame.to_csv(path, index=False). Otherwise name it in the header."
        )


# Names of columns without a name: in a file, in a frame of pandas, in a file without a header.
_UNNAMED = ("", "Unnamed: 0", "0")
_FEW_NUMBERS = 3


def _is_date(text: str) -> bool:
    """Whether a cell is a date of ISO 8601, perhaps with a time, without a time zone."""
    if not _DATE.fullmatch(text):
        return False
    try:
        np.datetime64(text)
    except ValueError:
        return False
    return True


@frozen_dataclass
class _Notation:
    """The notation of a kind of values in cells."""

    fits: Callable[[str], bool]
    read: Callable[[str], Any]
    gap: str
    dtype: str


_DATES = _Notation(_is_date, lambda cell: np.datetime64(cell, "us"), "NaT", "datetime64[us]")


def _notations(decimal: str | None) -> dict[str, _Notation]:
    """The notations of numbers with a decimal mark, and of dates."""
    fits, read = partial(is_number, decimal=decimal), partial(number_in, decimal=decimal)
    return {"number": _Notation(fits, read, "nan", "float64"), "date": _DATES}
