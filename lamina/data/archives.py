"""Files of arrays: `.npy`, `.npz` and HDF5. No code from them runs, and no pickle is read."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy_format

from lamina.base.disk import open_regular
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import PUBLIC_DTYPES, Array, shape_text, size_of
from lamina.data.dataset import NAME_PAIRS
from lamina.data.untrusted import RESTORE, read_at_most, reading, require_plausible
from lamina.errors import DataError, DTypeError, FileFormatError, imported_extra
from lamina.foreign import did_you_mean, nearest

# Inputs and targets.
Pair = tuple[Array, Array | None]


def read_npy(path: Path) -> Array:
    """The array in a `.npy` file."""
    with reading(path, "an npy file"), open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        return _read_npy_stream(file, size, path.name)


def read_npz(path: Path, targets: str | None) -> Pair:
    """Inputs and targets from a `.npz` archive."""
    with reading(path, "an npz archive"), open_regular(path) as file, ZipFile(file) as archive:
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        members = {info.filename.removesuffix(".npy"): info for info in infos}
        names = choose_names(members, targets)
        inputs, *outputs = [_read_npz_member(archive, members[name]) for name in names]
        return inputs, outputs[0] if outputs else None


def read_hdf5(path: Path, targets: str | None) -> Pair:
    """Inputs and targets from the arrays at the root of an HDF5 file."""
    with reading(path, "an HDF5 file"), open_hdf5(path) as file:
        size = path.stat().st_size
        inputs, *outputs = [
            _read_hdf5_array(array, size, name)
            for name, array in hdf5_arrays(file, targets).items()
        ]
        return inputs, outputs[0] if outputs else None


@contextmanager
def open_hdf5(path: Path) -> Generator[Any]:
    """An HDF5 file; raises MissingExtraError if h5py is not installed."""
    h5py = imported_extra("h5py", "data", f"reading {path.name}")
    # h5py opens the file itself, by name; open_regular only checks that it is a regular file.
    with open_regular(path), h5py.File(path, "r") as file:
        yield file


def hdf5_arrays(file: Any, targets: str | None) -> dict[str, Any]:
    """The inputs at the root of an HDF5 file, and the targets if there are any, by name; unread."""
    h5py: Any = importlib.import_module("h5py")
    links = {str(name): file.get(name, getlink=True) for name in file}
    hard = [name for name, link in links.items() if isinstance(link, h5py.HardLink)]
    arrays = {name: file[name] for name in hard if isinstance(file[name], h5py.Dataset)}
    names = [name for name in links if name in arrays or name not in hard]
    chosen = choose_names(names, targets)
    for name in chosen:
        if name not in arrays:
            other = f"a link to {links[name].path}"
        elif arrays[name].is_virtual:
            other = "a virtual array, of other arrays"
        else:
            files = ", ".join(str(file) for file, *_ in arrays[name].external or ())
            other = f"an array in {files}" if files else ""
        if other:
            raise DataError(
                f"the array {name!r} is not in the file itself",
                facts=(("expected", "an array of numbers"), ("found", other)),
                advice="It may be in any file of this machine, and is not followed. If you trust "
                "it: h5py.File(path), then lm.data.Dataset(file['x'][:], file['y'][:]).",
            )
    return {name: arrays[name] for name in chosen}


def choose_names(arrays: Collection[str], targets: str | None) -> tuple[str, ...]:
    """The names of inputs and targets; a lone array is inputs, unless its name is for targets."""
    if targets is not None:
        others = [name for name in arrays if name != targets]
        candidates = [name for name, _ in NAME_PAIRS if name in others] or others
        if targets in arrays and len(candidates) == 1:
            return candidates[0], targets
    else:
        for pair in NAME_PAIRS:
            if set(pair) <= set(arrays):
                return pair
        if len(arrays) == 1 and all(name not in arrays for _, name in NAME_PAIRS):
            return tuple(arrays)
    pairs = ", ".join(f"{inputs}/{outputs}" for inputs, outputs in NAME_PAIRS)
    expected = pairs if targets is None else f"{targets} and one array of inputs"
    near = "" if targets is None or targets in arrays else nearest(targets, arrays)
    raise DataError(
        "the names of the arrays do not tell inputs from targets",
        facts=(("expected", expected), ("found", ", ".join(sorted(arrays)) or "no arrays")),
        advice=did_you_mean(near)
        or "Name the targets, load(path, targets='name'), or save the arrays as x and y.",
    )


def _read_npz_member(archive: ZipFile, info: ZipInfo) -> Array:
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise FileFormatError(
            f"{info.filename} is compressed by a method that NumPy does not use",
            facts=(("expected", "stored or deflate"), ("found", f"method {info.compress_type}")),
            advice="Write the file with numpy.savez or numpy.savez_compressed.",
        )
    require_plausible(info.file_size, info.compress_size, info.filename)
    with archive.open(info) as stream:
        return _read_npy_stream(stream, info.file_size, info.filename)


@frozen_dataclass
class NpyLayout:
    """The header of an array in npy format; `offset` is the position of its first element."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    column_major: bool
    offset: int


def npy_layout(stream: BinaryIO | Any, name: str) -> NpyLayout:
    """The header of an array in npy format."""
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        shape, column_major, dtype = npy_format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, column_major, dtype = npy_format.read_array_header_2_0(stream)
    else:
        raise FileFormatError(
            f"{name} has an unknown version of the npy format",
            facts=(("expected", "1.0 or 2.0"), ("found", f"{version[0]}.{version[1]}")),
            advice="Write the array with numpy.save or numpy.savez.",
        )
    _require_dtype(dtype, name)
    return NpyLayout(shape, dtype, column_major, stream.tell())


def _read_npy_stream(stream: BinaryIO | Any, available: int, name: str) -> Array:
    """Reads an array in npy format from a stream of `available` bytes."""
    layout = npy_layout(stream, name)
    shape, dtype = layout.shape, layout.dtype
    payload = size_of(shape) * dtype.itemsize
    content = bytearray()
    if 0 <= payload <= available:
        content = read_at_most(stream.read, payload + 1)
    if len(content) != payload:
        declared = f"{dtype.name}{shape_text(shape)}, {payload:,} bytes"
        facts = (("declared", declared), ("found", f"{available:,} bytes with the header"))
        raise FileFormatError(f"{name} does not match its header", facts=facts, advice=RESTORE)
    array = np.frombuffer(content, dtype)
    array = array.reshape(shape, order="F" if layout.column_major else "C")
    return np.ascontiguousarray(array, dtype.newbyteorder("=")).reshape(shape)


def _read_hdf5_array(array: Any, size_on_disk: int, name: str) -> Array:
    dtype: np.dtype[Any] = array.dtype
    shape: tuple[int, ...] = array.shape
    _require_dtype(dtype, name)
    if shape == () or 0 in shape:
        return np.zeros(shape, dtype)  # refused with a clear error by Dataset
    require_plausible(size_of(shape) * dtype.itemsize, size_on_disk, name)
    return np.asarray(array[()], dtype.newbyteorder("="))


# NumPy writes arrays of bfloat16 as raw elements of two bytes.
_RAW_BYTES = np.dtype("V2")
_BFLOAT16 = "NumPy's files do not keep bfloat16: save array.astype('float32') instead."


def _require_dtype(dtype: np.dtype[Any], name: str) -> None:
    """Refuses dtypes other than plain numbers, pickled objects included, before reading."""
    if dtype.hasobject or dtype.kind not in "biuf":
        raise DTypeError(
            f"{name} does not hold plain numbers",
            facts=(("expected", ", ".join(PUBLIC_DTYPES)), ("found", str(dtype))),
            advice=_BFLOAT16
            if dtype == _RAW_BYTES
            else "Convert the array to numbers and save it again; pickled objects are not read.",
        )
