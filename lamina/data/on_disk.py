"""Arrays that stay in their file: memory maps, and files that are read in chunks.

A memory map is an array whose bytes the system reads when they are used, and may drop again. Files
that cannot be mapped, because they are compressed or have another order of bytes, and files that
are larger than the computer's memory, are read in chunks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, final

import numpy as np

from lamina.base.disk import open_regular
from lamina.base.shapes import Array, size_of
from lamina.checks import checked
from lamina.checks.kinds import FilePath, OrNone, Whole
from lamina.data.archives import NpyLayout, Pair, hdf5_arrays, npy_layout, open_hdf5
from lamina.data.untrusted import RESTORE, PathLike, reading
from lamina.errors import DataError, FileFormatError
from lamina.program.philox import CHUNK_STREAM, permutations

# Larger files are mapped, unless `load` is told otherwise.
MAPPED_BYTES = 256 << 20
# About the bytes of a chunk of examples: so large that a disk reads at its full speed.
_CHUNK_BYTES = 1 << 20


def mapped_npy(path: Path) -> Array | None:
    """The array in a `.npy` file as a memory map; None if it cannot be mapped."""
    with reading(path, "an npy file"), open_regular(path) as file:
        layout = npy_layout(file, path.name)
        if layout.column_major or not layout.dtype.isnative or 0 in layout.shape:
            return None
        return _mapped(file, layout, path)


def mapped_hdf5(path: Path, targets: str | None) -> Pair | None:
    """Inputs and targets of an HDF5 file as memory maps; None if one cannot be mapped."""
    with reading(path, "an HDF5 file"), open_regular(path) as file, open_hdf5(path) as opened:
        arrays: list[Array] = []
        for array in hdf5_arrays(opened, targets).values():
            offset = array.id.get_offset()
            if array.chunks is not None or offset is None or not array.dtype.isnative:
                return None
            if array.dtype.kind not in "biuf" or array.shape == () or 0 in array.shape:
                return None
            layout = NpyLayout(array.shape, array.dtype, False, offset)
            arrays.append(_mapped(file, layout, path))
        return arrays[0], (arrays[1] if len(arrays) > 1 else None)


def _mapped(file: BinaryIO, layout: NpyLayout, path: Path) -> Array:
    needed = layout.offset + size_of(layout.shape) * layout.dtype.itemsize
    size = path.stat().st_size
    if needed > size:
        facts = (("declared", f"{needed:,} bytes"), ("found", f"{size:,} bytes"))
        raise FileFormatError(f"{path.name} does not match its header", facts=facts, advice=RESTORE)
    return np.memmap(file, layout.dtype, "r", layout.offset, layout.shape)


@final
class ChunkedFile:
    """A source for `Stream`, made by `in_chunks`: a file's chunks, in a new order in each epoch."""

    def __init__(self, path: Path, targets: Path | str | None, examples: int | None) -> None:
        self._path, self._targets = path, targets
        with self._opened() as (inputs, outputs):
            self._count = len(inputs)
            if outputs is not None and len(outputs) != self._count:
                raise DataError(
                    "the inputs and the targets differ in the number of examples",
                    facts=(("inputs", f"{self._count:,}"), ("targets", f"{len(outputs):,}")),
                )
            each = max(1, size_of(inputs.shape[1:]) * inputs.dtype.itemsize)
            stored = inputs.chunks[0] if inputs.chunks else 1
            self._examples = examples or max(1, _CHUNK_BYTES // (each * stored)) * stored

    def __call__(self, epoch: int, skip: int, seed: int | None) -> Iterator[Pair]:
        """The chunks of an epoch; without a seed in the order of the file."""
        count = -(-self._count // self._examples)
        order = np.arange(count)
        if seed is not None:
            (order,) = permutations(count, seed, range(epoch, epoch + 1), CHUNK_STREAM)
        with self._opened() as (inputs, outputs):
            for number in order[skip:]:
                start = int(number) * self._examples
                rows = slice(start, min(start + self._examples, self._count))
                with reading(self._path, "a data set"):
                    batch = inputs[rows], None if outputs is None else outputs[rows]
                yield batch

    def __len__(self) -> int:
        """The number of examples."""
        return self._count

    @contextmanager
    def _opened(self) -> Generator[tuple[Any, Any]]:
        """Inputs and targets, which are read when they are sliced."""
        if self._path.suffix.lower() == ".npy":
            inputs = _ReadRows(self._path)
            yield inputs, None if self._targets is None else _ReadRows(Path(self._targets))
            return
        name = None if self._targets is None else str(self._targets)
        with open_hdf5(self._path) as file:
            inputs, *outputs = map(_Native, hdf5_arrays(file, name).values())
            yield inputs, outputs[0] if outputs else None


@checked
def in_chunks(
    path: PathLike,
    targets: Annotated[PathLike | None, OrNone(FilePath())] = None,
    *,
    examples: Annotated[int | None, OrNone(Whole(1))] = None,
) -> ChunkedFile:
    """A source for `Stream` that reads a large `.npy` or HDF5 file chunk by chunk.

    Each epoch of a fit reads the chunks in another order; the examples of a chunk are neighbours
    in the file. `Stream(in_chunks("train.h5"), window=20_000)` shuffles them further. No more of
    the file is in memory than the stream's buffer.

    Args:
        path: the file.
        targets: the name of the targets in an HDF5 file, or another `.npy` file.
        examples: the examples in a chunk; by default about 1 MiB, in whole chunks of the HDF5 file.

    Raises:
        DataError: if the file is missing, or inputs and targets differ in number.
        DTypeError: if it holds numbers of a type that Lamina does not support.
        FileFormatError: if it is damaged, or of another format.
        MissingExtraError: if h5py is needed and not installed.
    """
    source = Path(path)
    with reading(source, "an npy or HDF5 file"):
        return ChunkedFile(source, None if targets is None else Path(targets), examples)


class _Native:
    """An array of HDF5, in this machine's byte order."""

    def __init__(self, array: Any) -> None:
        self._array, self.chunks = array, array.chunks
        self.shape: tuple[int, ...] = array.shape
        self.dtype: np.dtype[Any] = array.dtype

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, rows: slice) -> Array:
        return np.asarray(self._array[rows], self.dtype.newbyteorder("="))


class _ReadRows:
    """The rows of a `.npy` file, read without a memory map, whose pages would stay resident."""

    chunks = None

    def __init__(self, path: Path) -> None:
        self._path = path
        with reading(path, "an npy file"), open_regular(path) as file:
            layout = npy_layout(file, path.name)
            if layout.column_major or layout.shape == ():
                raise DataError(
                    f"the examples of {path.name} are not one after the other",
                    facts=(("expected", "an array in row-major order"),),
                    advice="Save it again: numpy.save(path, numpy.ascontiguousarray(array)).",
                )
            _mapped(file, layout, path)
        self._layout, self.shape, self.dtype = layout, layout.shape, layout.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        each = size_of(self.shape[1:])
        start, count = rows.start * each, (rows.stop - rows.start) * each
        offset = self._layout.offset + start * self.dtype.itemsize
        with open_regular(self._path) as file:
            read = np.fromfile(file, self.dtype, count, offset=offset)
        return read.astype(self.dtype.newbyteorder("="), copy=False).reshape(-1, *self.shape[1:])
