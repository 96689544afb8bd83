"""IDX files, the format of MNIST and its relatives, plain or compressed with gzip.

Two zero bytes, one byte for the element type, one for the number of axes, the axes as big-endian
32-bit numbers, then the elements, big-endian, last axis fastest (http://yann.lecun.com/exdb/mnist).
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lamina.base.disk import open_regular
from lamina.base.shapes import Array, shape_text, size_of
from lamina.checks import checked
from lamina.data.dataset import Dataset
from lamina.data.untrusted import RESTORE, PathLike, read_at_most, reading, require_plausible
from lamina.errors import DataError, FileFormatError

GZIP_MAGIC = b"\x1f\x8b"
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_LARGEST_RANK = 32


@checked
def read_idx(path: PathLike) -> Array:
    """The array in an IDX file; gzip is recognised by the contents, not by the name.

    Returns:
        An array of the declared shape and type, in this machine's byte order.

    Raises:
        DataError: if there is no such file, or it may not be read.
        FileFormatError: if it is not IDX, truncated, too long or damaged.
    """
    file_path = Path(path)
    with reading(file_path, "an IDX file"), open_regular(file_path) as file:
        size_on_disk = file.seek(0, 2)
        file.seek(0)
        compressed = file.read(2) == GZIP_MAGIC
        file.seek(0)
        if not compressed:
            return _read_stream(file, size_on_disk, compressed=False)
        with gzip.GzipFile(fileobj=file) as stream:
            return _read_stream(stream, size_on_disk, compressed=True)


@checked
def mnist(folder: PathLike) -> tuple[Dataset, Dataset]:
    """The training and the test set from the four files of MNIST, Fashion-MNIST and the like.

    The files are `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, and the same with `t10k`,
    each with or without `.gz`.

    Returns:
        Two data sets with uint8 images of shape (1, height, width) and int64 labels.

    Raises:
        DataError: if the folder or one of the files is missing, or images and labels differ in
            number.
        FileFormatError: if a file is damaged.
    """
    root = Path(folder)
    return _images_and_labels(root, "train"), _images_and_labels(root, "t10k")


def digits() -> Dataset:
    """1,797 handwritten digits shipped with the package: a first training needs no download.

    They are uint8 images of shape (1, 8, 8) with values from 0 to 16, and int64 labels: the test
    part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI Machine
    Learning Repository, 1998, https://doi.org/10.24432/C50P49), licence CC BY 4.0; see the file
    NOTICE in this folder. `tools/make_digits.py` made the two IDX files.

    >>> digits()
    1797 examples: x u8[1, 8, 8], y i64[]
    """
    folder = Path(__file__).parent
    images, labels = (folder / f"digits-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1"))
    return Dataset(as_images(read_idx(images)), as_labels(read_idx(labels)))


def is_mnist_folder(folder: Path) -> bool:
    """Whether a folder holds the files that `mnist` reads."""
    return _find(folder, "train-images-idx3-ubyte") is not None


def as_images(array: Array) -> Array:
    """Adds a channel axis to grey images (uint8, three axes); other arrays stay unchanged."""
    return array[:, None] if array.dtype == np.uint8 and array.ndim == 3 else array


def as_labels(array: Array) -> Array:
    """Converts class numbers stored as bytes to int64; other arrays stay unchanged."""
    return array.astype(np.int64) if array.dtype == np.uint8 and array.ndim == 1 else array


def _images_and_labels(folder: Path, prefix: str) -> Dataset:
    arrays: list[Array] = []
    for stem in (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"):
        path = _find(folder, stem)
        if path is None:
            names = ["no such folder"]
            if folder.is_dir():
                names = sorted(entry.name for entry in folder.iterdir())
            listing = ", ".join([*names[:8], "..."] if len(names) > 8 else names)
            raise DataError(
                f"the file {stem}.gz is missing",
                facts=(
                    ("expected", f"{stem}.gz or {stem}"),
                    ("found", listing or "an empty folder"),
                ),
                advice="Put all four files of the data set into this folder.",
                where=str(folder),
            )
        arrays.append(read_idx(path))
    with reading(folder, "a folder of IDX files"):
        return Dataset(as_images(arrays[0]), as_labels(arrays[1]))


def _find(folder: Path, stem: str) -> Path | None:
    paths = (folder / f"{stem}.gz", folder / stem)
    return next((path for path in paths if path.is_file()), None)


def _read_stream(stream: BinaryIO | gzip.GzipFile, size_on_disk: int, *, compressed: bool) -> Array:
    dtype, shape, header_bytes = _read_header(stream)
    payload = size_of(shape) * dtype.itemsize
    declared = header_bytes + payload
    facts = (
        ("declared", f"{shape_text(shape)} of {dtype.name}, {declared:,} bytes with the header"),
        ("size on disk", f"{size_on_disk:,} bytes{', compressed' if compressed else ''}"),
    )

    def fault(is_short: bool, *more: tuple[str, str]) -> FileFormatError:
        problem = "is truncated" if is_short else "goes on after its last element"
        return FileFormatError(f"the file {problem}", facts=(*facts, *more), advice=RESTORE)

    if not compressed and declared != size_on_disk:
        raise fault(size_on_disk < declared)
    require_plausible(declared, size_on_disk, "the IDX file")
    # One byte more than declared: it must not exist, and reading up to the end makes gzip verify
    # its checksum.
    try:
        content = read_at_most(stream.read, payload + 1)
    except EOFError:
        raise fault(True) from None
    if len(content) != payload:
        is_short = len(content) < payload
        size = f"{header_bytes + len(content):,} bytes{'' if is_short else ' or more'}"
        raise fault(is_short, ("found", size))
    array = np.frombuffer(content, dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _read_header(stream: BinaryIO | gzip.GzipFile) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """The element type, the shape, and the size of the header in bytes."""
    magic = bytes(read_at_most(stream.read, 4))
    codes = ", ".join(f"{code:02x}" for code in _TYPES)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES:
        expected = f"00 00, an element type ({codes}), the number of axes"
        raise FileFormatError(
            "the file does not begin like an IDX file",
            facts=(("expected", expected), ("found", magic.hex(" ") or "an empty file")),
            advice="Check that this is the right file; if it is, fetch it again.",
        )
    rank = magic[3]
    if not 1 <= rank <= _LARGEST_RANK:
        facts = (("expected", f"1 to {_LARGEST_RANK}"), ("found", str(rank)))
        raise FileFormatError("the number of axes is impossible", facts=facts, advice=RESTORE)
    encoded = read_at_most(stream.read, 4 * rank)
    if len(encoded) < 4 * rank:
        size = f"{4 + len(encoded)} bytes"
        facts = (("expected", f"{4 + 4 * rank} bytes of header"), ("found", size))
        raise FileFormatError("the file ends within its header", facts=facts, advice=RESTORE)
    shape: tuple[int, ...] = struct.unpack(f">{rank}I", encoded)
    if 0 in shape:
        facts = (("expected", "axes of 1 or more"), ("found", shape_text(shape)))
        problem = "the header declares an array without elements"
        raise FileFormatError(problem, facts=facts, advice=RESTORE)
    return np.dtype(_TYPES[magic[2]]), shape, 4 + 4 * rank
