"""`load`: recognises the format of a file and calls its reader."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from lamina.base.disk import open_regular
from lamina.base.shapes import Array
from lamina.checks import checked
from lamina.checks.kinds import AnyOf, FilePath, Flag, OrNone, Whole
from lamina.data.archives import Pair, read_hdf5, read_npy, read_npz
from lamina.data.coding import Words, dataset_of_pictures, targets_of
from lamina.data.columns import Decimal, Delimiter, Kinds
from lamina.data.csv_text import (
    DELIMITERS,
    TABLE_SUFFIXES,
    NotNumbers,
    column_number,
    read_columns,
    read_csv,
    reading_table,
)
from lamina.data.dataset import Dataset, Floats
from lamina.data.idx import GZIP_MAGIC, as_images, as_labels, is_mnist_folder, read_idx
from lamina.data.learned_coding import Gaps, coded, target_column
from lamina.data.on_disk import MAPPED_BYTES, mapped_hdf5, mapped_npy
from lamina.data.untrusted import PathLike, reading
from lamina.errors import DataError, FileFormatError

_HDF5 = b"\x89HDF\r\n\x1a\n"
_SIGNATURES = (
    (b"\x93NUMPY", "npy"),
    (b"PK\x03\x04", "npz"),
    (b"PK\x05\x06", "npz"),  # an archive without members
    (_HDF5, "hdf5"),
    (GZIP_MAGIC, "idx"),
)
_IDX = b"\0\0"
_KINDS = {"npy": (".npy",), "npz": (".npz",), "hdf5": (".h5", ".hdf5"), "idx": (".idx", ".gz")}
_KINDS["csv"] = TABLE_SUFFIXES
SUFFIXES = {suffix: kind for kind, suffixes in _KINDS.items() for suffix in suffixes}
_LONGEST_SIGNATURE = 8
# The defaults of options of tables that are not None.
_USUAL = {"words": "one-hot", "gaps": "error", "standardise": False}
_TARGETS = "the name of a column or an array, the path of a file"
_FORMATS = ".npz, .npy, .h5, IDX (also .gz), .csv, or a folder of pictures"


@checked
def load(
    path: PathLike,
    targets: Annotated[PathLike | int, AnyOf((FilePath(_TARGETS), Whole()))] | None = None,
    *,
    dtype: Floats | None = None,
    on_disk: Annotated[bool | None, OrNone(Flag())] = None,
    words: Words = "one-hot",
    gaps: Gaps = "error",
    standardise: bool = False,
    kinds: Kinds = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
) -> Dataset:
    """Reads a data set; the format is recognised by the contents, or else by the file's suffix.

    | file | inputs | targets |
    | --- | --- | --- |
    | `.npz`, `.h5` | the array x, inputs or images | y, targets or labels; or the name given |
    | `.npy` | the array | another such file, if given |
    | IDX, also `.gz` | uint8 images get a channel axis | the labels' file, if given; int64 |
    | `.csv` | the other columns, float32 | the last column, or the name or number given |
    | `.csv` with words, dates or gaps | the other columns, coded as by `from_frame` | the same |
    | folder | its pictures, uint8 | the number of their subfolder, int64, of `coding.classes` |

    Args:
        path: the file or folder.
        targets: the choice of the targets, as in the table.
        dtype: a float type; arrays of floats are converted to it.
        on_disk: whether arrays stay in the file, as memory maps; by default if it is larger than
            256 MiB. `.npy` files and the arrays of HDF5 files that are neither compressed nor
            chunked can be mapped; the others are read, or with `on_disk=True` refused.
            `lm.data.in_chunks` reads these in chunks.
        words, gaps, standardise, kinds: the coding of a table, as in `from_frame`. `{"rent":
            "number"}` makes a regression of whole numbers.
        delimiter: the character between the cells of a row of a table; by default the comma,
            semicolon, tab or bar that divides all rows alike.
        decimal: the decimal mark of a table, `"."` or `","`; by default found in all its numbers.

    Raises:
        DataError: if the file is missing, or its contents are not a data set.
        DTypeError: if it holds numbers of a type that Lamina does not support.
        FileFormatError: if it is damaged or of an unknown format.
        MissingExtraError: if h5py or Pillow is needed and not installed.
    """
    source = Path(path)
    options: dict[str, Any] = {"words": words, "gaps": gaps, "standardise": standardise}
    options |= {"kinds": kinds or None, "delimiter": delimiter, "decimal": decimal}
    asked = {name: value for name, value in options.items() if value != _USUAL.get(name)}
    with reading(source, "a data set"):
        if not on_disk and not source.is_dir() and _kind(source) == "csv":
            return _read_table(source, targets, dtype, asked)
        if asked:
            name, value = next(iter(asked.items()))
            usual = f"{name}={_USUAL.get(name)!r}"
            raise DataError(
                f"{name} is for tables, and this is no table",
                facts=(("expected", usual), ("found", f"{name}={value!r}")),
                advice="Only the columns of a .csv file are coded.",
            )
        if source.is_dir():
            if is_mnist_folder(source):
                raise DataError(
                    "the folder holds two data sets, for training and for testing",
                    facts=(("expected", "one data set"), ("found", "the files of MNIST")),
                    advice="Use train, test = lamina.data.mnist(folder), or load one of its files.",
                )
            if targets is not None:
                raise _useless_targets("a folder of pictures", targets)
            return dataset_of_pictures(source)
        inputs, outputs = _mapped(source, targets, on_disk) or _read_file(source, targets)
        return Dataset(inputs, outputs, dtype=dtype)


def _read_table(
    path: Path, targets: PathLike | int | None, dtype: Floats | None, options: Mapping[str, Any]
) -> Dataset:
    """A table of numbers, or of columns that are coded."""
    name = os.fspath(targets) if isinstance(targets, os.PathLike) else targets
    with reading_table(path):
        if not options:
            try:
                inputs, target, values = read_csv(path, name)
                outputs = targets_of(target_column(target, values, None), values)
                return Dataset(inputs, outputs, dtype=dtype)
            except NotNumbers:
                pass
        delimiters, decimal = options.get("delimiter", DELIMITERS), options.get("decimal")
        kinds = options.get("kinds", {})
        columns, delimiter, decimal = read_columns(path, kinds, None, delimiters, decimal)
        names = list(columns)
        how: dict[str, Any] = {**options, "delimiter": delimiter, "decimal": decimal}
        dataset = coded(columns, names[column_number(name, names)], **how)
        return Dataset(dataset.inputs, dataset.targets, dtype=dtype, coding=dataset.coding)


def _mapped(path: Path, targets: PathLike | int | None, on_disk: bool | None) -> Pair | None:
    """The arrays of a file as memory maps; None if they are to be read."""
    is_mapped = path.stat().st_size > MAPPED_BYTES if on_disk is None else on_disk
    if not is_mapped:
        return None
    kind, arrays = _kind(path), None
    if kind == "npy" and not isinstance(targets, int):
        inputs = mapped_npy(path)
        outputs = None if targets is None else _read_targets(Path(targets))
        arrays = None if inputs is None else (inputs, outputs)
    elif kind == "hdf5" and not isinstance(targets, int):
        arrays = mapped_hdf5(path, None if targets is None else os.fspath(targets))
    if arrays is None and on_disk:
        layout = f"{kind}, or another order of bytes or axes"
        raise DataError(
            "the arrays of this file cannot be mapped into memory",
            facts=(("expected", ".npy, or HDF5 without compression and chunks"), ("found", layout)),
            advice="Read it in chunks: lm.data.Stream(lm.data.in_chunks(path)), or leave out "
            "on_disk=True.",
        )
    return arrays


def _read_file(path: Path, targets: PathLike | int | None) -> Pair:
    kind = _kind(path)
    name = os.fspath(targets) if isinstance(targets, os.PathLike) else targets
    if isinstance(name, int):
        raise _useless_targets("this kind of file", name)
    if kind == "npz":
        return read_npz(path, name)
    if kind == "hdf5":
        return read_hdf5(path, name)
    inputs = _read_array(path, kind)
    return inputs, None if name is None else _read_targets(Path(name))


def _read_targets(path: Path) -> Array:
    with reading(path, "an IDX or npy file"):
        kind = _kind(path)
        array = _read_array(path, kind)
    return as_labels(array) if kind == "idx" else array


def _read_array(path: Path, kind: str) -> Array:
    if kind == "npy":
        return read_npy(path)
    if kind == "idx":
        return as_images(read_idx(path))
    raise FileFormatError(
        "the targets are in a file of another kind",
        facts=(("expected", "an IDX or npy file"), ("found", kind)),
        advice="Keep inputs and targets in one file, or in two separate files.",
    )


def _kind(path: Path) -> str:
    with open_regular(path) as file:
        beginning = file.read(_LONGEST_SIGNATURE)
        for signature, kind in _SIGNATURES:
            if beginning.startswith(signature):
                return kind
        if _is_after_user_block(file):
            return "hdf5"
    if beginning.startswith(_IDX):
        return "idx"
    by_name = SUFFIXES.get(path.suffix.lower())
    if by_name is not None and beginning:
        return by_name
    evidence = f"{path.suffix or 'no'} ending, first bytes {beginning.hex(' ') or 'none'}"
    raise FileFormatError(
        "the file is empty" if not beginning else "the kind of file is not known",
        facts=(("expected", _FORMATS), ("found", evidence)),
        advice="Read the data by other means, and wrap the arrays: lamina.data.Dataset(x, y).",
    )


def _is_after_user_block(file: BinaryIO) -> bool:
    """Whether HDF5 begins after a block of the user's: at byte 512, 1,024, 2,048 and so on."""
    position, size = 512, file.seek(0, 2)
    while position < size:
        file.seek(position)
        if file.read(len(_HDF5)) == _HDF5:
            return True
        position *= 2
    return False


def _useless_targets(what: str, targets: object) -> DataError:
    return DataError(
        f"targets cannot be chosen by {targets!r} in {what}",
        facts=(("expected", "targets=None, or as in the documentation of load"),),
        advice="Leave the argument targets out, or give a name.",
    )
