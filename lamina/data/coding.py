"""`Coding`: how the columns of tables, or names of classes, become numbers of a model."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.checks.kinds import Positive, Word, shown
from lamina.checks.origin import warn
from lamina.data.columns import GAPS, KINDS, Decimal, Delimiter, as_kind, missing, require_float32
from lamina.data.conversion import columns_in
from lamina.data.csv_text import DELIMITERS, read_columns
from lamina.data.dataset import Arrays, Dataset
from lamina.data.frames import columns_of
from lamina.data.images import read_image_folder
from lamina.data.untrusted import reading
from lamina.errors import DataError, errors_at

Words = Literal["one-hot", "index"]
_DAY = np.timedelta64(1, "D")


@frozen_dataclass
class Column:
    """How a column is coded.

    Attributes:
        kind: `"number"`, `"date"` (in days since 1970) or `"word"`; of a target also `"class"`, a
            number of a class.
        words: the known words, sorted.
        gap: the number in place of missing ones; None refuses them.
        indicator: whether a further feature states where a number is missing.
        mean, deviation: the shift and the divisor of the numbers: (number - mean) / deviation.
    """

    name: str
    kind: Annotated[str, Word(KINDS)]
    words: tuple[str, ...] = ()
    gap: float | None = None
    indicator: bool = False
    mean: float = 0.0
    deviation: Positive = 1.0

    def read(self, values: Array) -> Array:
        """The values of such a column in a table; raises DataError if they are of another kind."""
        words = self.words if self.kind == "word" else None
        return as_kind(self.name, values, self.kind, words)


@frozen_dataclass
class Coding:
    """How the columns of a table become the inputs and targets of a model. Made by `from_frame`.

    `load` makes one for a folder of pictures too, which codes the names of the subfolders.

    Attributes:
        columns: the columns of the inputs; others of a table are ignored. None for pictures.
        target: the column of the targets, if any.
        words: the coding of words, `"one-hot"` or `"index"`.
        indices_first: whether the input of indices is before the input of numbers, as in a part of
            a model whose inputs are in this order.
        delimiter, decimal: the marks between cells and in numbers, if the table was in a file, and
            if a number has any; further files are read so. Another delimiter is found too.
    """

    columns: tuple[Column, ...]
    target: Column | None
    words: Words
    indices_first: bool = False
    delimiter: Delimiter = field(default=None, compare=False)
    decimal: Decimal = field(default=None, compare=False)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the float features of the first input, in order."""
        names: list[str] = []
        for column in self.columns:
            if column.kind != "word":
                names += [column.name, *[f"{column.name} is missing"] * column.indicator]
            elif self.words == "one-hot":
                names += [f"{column.name}={word}" for word in column.words]
        return tuple(names)

    @property
    def inputs_text(self) -> str:
        """The inputs of a network for such tables, and their features, for errors."""
        indices = [column.name for column in self.columns if column.kind == "word"]
        texts = [f"lm.Input({len(self.features)}): {_some(self.features)}"] * bool(self.features)
        if self.words == "index" and indices:
            texts.append(f"lm.Input({len(indices)}, dtype='int64'): {_some(indices)}")
        return f"The table needs {'; and '.join(texts[:: -1 if self.indices_first else 1])}."

    @property
    def classes(self) -> tuple[str, ...]:
        """The words of the target, in the order of their class numbers; empty for numbers."""
        return () if self.target is None else self.target.words

    def inputs(self, frame: Any) -> Arrays:
        """The inputs of a model for a table with the same columns.

        Args:
            frame: a data frame, columns by name, rows (a dict of values by the names of columns,
                or a list of them), or the path of a `.csv` file or of a folder of pictures.

        Raises:
            DataError: for columns that are missing or of another kind, and for missing numbers.
        """
        with errors_at(_path(frame) or "Coding"):
            if not self.columns:
                return dataset_of_pictures(frame, self).inputs
            return _inputs(self, _table(self, frame, self.columns))

    def dataset(self, frame: Any) -> Dataset:
        """A table as a data set, with targets if the coding has any.

        Args:
            frame: a table as for `inputs`.

        Raises:
            DataError: as for `inputs`, and for targets that are missing or unknown.
        """
        target = () if self.target is None else (self.target,)
        with errors_at(_path(frame) or "Coding"):
            if not self.columns:
                return dataset_of_pictures(frame, self)
            return dataset_of_table(self, _table(self, frame, (*self.columns, *target)))


def _path(frame: Any) -> str:
    """The path of a table in a file, or of a folder; "" for other tables."""
    return os.fsdecode(cast(Any, frame)) if isinstance(frame, str | os.PathLike) else ""


def dataset_of_pictures(folder: Any, coding: Coding | None = None) -> Dataset:
    """The pictures of a folder; with a coding, labelled by its classes."""
    is_path = isinstance(cast(object, folder), str | os.PathLike)
    if not is_path or not Path(folder).is_dir():
        raise DataError(
            "this is not a folder of pictures",
            facts=(("expected", "the path of a folder"), ("found", shown(folder))),
            advice="The model was trained on pictures: give it arrays of them, or a folder.",
        )
    path = Path(folder)
    with reading(path, "a folder of pictures"):
        images, labels, classes = read_image_folder(path, coding and coding.classes)
        coding = coding or Coding((), Column("class", "word", classes), "one-hot")
        return Dataset(images, labels, coding=coding)


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:30], "..."] if len(names) > 30 else names)


def _parts(coding: Coding, with_target: bool) -> Iterator[tuple[str, Any]]:
    """All that decides the numbers that a coding makes, each with a label."""
    yield "columns: ", tuple(column.name for column in coding.columns)
    yield "words=", repr(coding.words)
    yield "indices_first=", repr(coding.indices_first)
    for column in filter(None, (*coding.columns, coding.target if with_target else None)):
        for name, value in vars(column).items():
            yield f"{name} of {'the target' if name == 'name' else repr(column.name)}: ", value


def _text(value: Any, other: Any) -> str:
    """A part that differs from another one; of names the number, and the first that differs."""
    if not isinstance(value, tuple):
        return str(value)
    names, others = cast(tuple[str, ...], value), cast(tuple[str, ...], other)
    position = next(n for n, (a, b) in enumerate(zip_longest(names, others)) if a != b)
    first = f"; number {position} is {names[position]!r}" if position < len(names) else ""
    return f"{len(names):,}{first}"


def require_equal(coding: Coding, other: Coding, *, is_training: bool = False) -> None:
    """Raises DataError if data is not coded as the model needs it; in training only warns."""
    # Targets are compared if both have one.
    parts = [_parts(c, bool(coding.target and other.target)) for c in (coding, other)]
    pairs = zip(*parts, strict=False)
    different = next(((label, a, b) for (label, a), (_, b) in pairs if a != b), None)
    if different is None:
        return
    label, a, b = different
    expected, other_text = label + _text(a, b), label + _text(b, a)
    problem = f"the {'table' if coding.columns else 'folder'} is coded otherwise than the "
    what, calls = "tables", ("'test.csv'", "frame")
    if not coding.columns:
        what, calls = "folders", ("'test'", "'test'")
    advice = (
        f"Words, classes and scales would get other numbers than in training. Code further {what} "
        f"as the training data: model.coding.dataset({calls[0]}), "
        f"train.coding.dataset({calls[1]}); or load all examples and divide them afterwards: "
        "data.split(0.8)."
    )
    if not is_training:
        facts = (("expected", expected), ("found", other_text))
        raise DataError(f"{problem}training data", facts=facts, advice=advice)
    warn(
        f"{problem}data on which the model was trained before: expected {expected}, "
        f"found {other_text}. {advice}"
    )


def dataset_of_table(coding: Coding, table: Mapping[str, Array]) -> Dataset:
    """The data set of columns by name, with targets if the coding has any."""
    target = coding.target
    targets = None if target is None else targets_of(target, table[target.name])
    return Dataset(_inputs(coding, table), targets, coding=coding)


def _inputs(coding: Coding, table: Mapping[str, Array]) -> Arrays:
    features: list[Array] = []
    indices: list[Array] = []
    for column in coding.columns:
        values = column.read(table[column.name])
        if column.kind != "word":
            features += _numbers(column, values)
        elif coding.words == "one-hot":
            codes = _codes(column, values)
            features += [codes == number for number in range(1, len(column.words) + 1)]
        else:
            indices.append(_codes(column, values))
    arrays: list[Array] = []
    if features:
        arrays.append(np.stack(features, axis=1).astype(np.float32))
    if indices:
        arrays.insert(0 if coding.indices_first else 1, np.stack(indices, axis=1))
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _table(coding: Coding, frame: Any, columns: tuple[Column, ...]) -> Mapping[str, Array]:
    """The columns of a frame or file; of a file these columns as their kinds say."""
    rows: list[Any] = cast(list[Any], frame) if isinstance(frame, list) else [frame]
    names = [column.name for column in columns]
    if rows and all(isinstance(row, Mapping) for row in rows):
        _require_columns(coding, names, rows[0])
        needed = [columns_in(row, names) for row in rows]
        return columns_of(needed if isinstance(frame, list) else needed[0])
    if path := _path(frame):
        kinds = {column.name: column.kind for column in columns}
        delimiters = (coding.delimiter or "") + DELIMITERS
        table = read_columns(Path(path), kinds, "word", delimiters, coding.decimal)[0]
    else:
        table = columns_of(frame)
    _require_columns(coding, names, table)
    return table


def _require_columns(coding: Coding, names: Sequence[str], columns: Collection[Any]) -> None:
    """Requires columns of these names among the columns of a table."""
    absent = [name for name in names if name not in map(str, columns)]
    inputs = [column.name for column in coding.columns if column.name in absent]
    column_names = ", ".join(map(str, columns)) or "none"
    if inputs:
        raise DataError(
            "columns are missing",
            facts=(("missing", ", ".join(inputs)), ("found", column_names)),
            advice="Give a table with the columns with which the model was trained.",
        )
    if absent:
        raise DataError(
            "the column of targets is missing",
            facts=(("expected", absent[0]), ("found", column_names)),
            advice="Give a table with this column; coding.inputs(frame) needs no targets.",
        )


def as_floats(values: Array) -> Array:
    """Numbers as float64, dates in days since 1970; what is missing is NaN."""
    if values.dtype.kind == "M":
        days = (values - np.datetime64("1970-01-01", "us")) / _DAY
        return np.where(np.isnat(values), np.nan, days)
    return values.astype(np.float64)


def _numbers(column: Column, values: Array) -> list[Array]:
    """The features of a column of numbers or dates."""
    numbers = as_floats(values)
    filled = without_gaps(column.name, numbers, column.gap)
    scaled: Array = (filled - column.mean) / column.deviation
    require_float32(column.name, scaled, filled)
    return [scaled, np.isnan(numbers)] if column.indicator else [scaled]


def without_gaps(name: str, numbers: Array, gap: float | None) -> Array:
    """The numbers of a column, with a number in place of those that are missing."""
    absent: Array = np.isnan(numbers)
    if not absent.any():
        return numbers
    if gap is None:
        raise DataError(
            f"numbers are missing in the column {name!r}",
            facts=(("missing", f"{int(absent.sum()):,} of {len(numbers):,}"),),
            advice="Choose in training what replaces them: gaps='mean', 'median', 'indicator' (the "
            "mean, and a feature that is 1 where a number is missing), or a number; --gaps mean on "
            "the command line.",
        )
    return np.where(absent, gap, numbers)


def _codes(column: Column, values: Array) -> Array:
    """The numbers of words, from 1, int64; 0 for words that are not known."""
    numbers = {word: number for number, word in enumerate(column.words, 1)}
    # NA is a word only if it was one in the training data.
    gaps = {gap: numbers.get("", 0) for gap in GAPS} | numbers
    words = cast(list[Any], values.tolist())
    return np.array([gaps.get(word or "", 0) for word in words], np.int64)


def require_all(name: str, absent: Array) -> None:
    """Raises DataError if targets are absent in the column of that name."""
    if absent.any():
        raise DataError(
            f"targets are missing in the column {name!r}",
            facts=(("missing", f"{int(absent.sum()):,} of {len(absent):,}"),),
            advice="Leave out the rows that have none.",
        )


def targets_of(column: Column, values: Array) -> Array:
    """The targets: class numbers int64[n], or float32[n, 1]."""
    targets = column.read(values)
    if column.kind == "word":
        unknown = GAPS - set(column.words)
        gaps = [word is None or word in unknown for word in cast(list[Any], targets.tolist())]
        require_all(column.name, np.array(gaps))
        codes = _codes(column, targets) - 1
        if codes.min() < 0:
            example = int(codes.argmin())
            target = f"{targets[example]!r} in row {example}"
            raise DataError(
                f"a target is not one of the known words of {column.name!r}",
                facts=(("expected", ", ".join(column.words)), ("found", target)),
                advice="Make the coding of a table that has all classes.",
            )
        return codes
    require_all(column.name, missing(targets))
    numbers = as_floats(targets)
    require_float32(column.name, numbers, numbers)
    if column.kind == "class":
        return numbers.astype(np.int64)
    return numbers.astype(np.float32)[:, None]


def coding_of_inputs(coding: Coding, numbers: Sequence[int | None]) -> Coding | None:
    """The coding of some arrays of `Coding.inputs`, by their numbers; None if it lacks one."""
    indices = [c for c in coding.columns if c.kind == "word" and coding.words == "index"]
    floats = [column for column in coding.columns if column not in indices]
    pair = (indices, floats) if coding.indices_first else (floats, indices)
    arrays = dict(enumerate(filter(None, pair)))
    parts = [arrays[number] for number in dict.fromkeys(numbers) if number in arrays]
    if len(parts) < len(numbers):
        return None
    kept = tuple(column for column in coding.columns if any(column in part for part in parts))
    return replace(coding, columns=kept, indices_first=len(parts) > 1 and parts[0] is indices)
