"""Arrays given by the caller: checked and converted before anything is computed."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.base.shapes import (
    PUBLIC_DTYPES,
    Array,
    DType,
    as_dtype,
    float32,
)
from lamina.data.arrays import Listed, rounded, to_array
from lamina.errors import DataError, DTypeError
from lamina.graph import warn

# Class, shape and dtype of an array.
ArrayType = tuple[type, tuple[int, ...], np.dtype[Any]]
# Up to this number of elements a loop in Python takes less time than a call of NumPy.
FEW_ELEMENTS = 32


def convert(value: Any, wanted: DType, name: str, *, narrow: bool = True) -> Array:
    """Data for an input, target or parameter of dtype `wanted`, as a contiguous array.

    Lists, and tensors of PyTorch, are converted to the wanted dtype; so are floats of up to 32 bits
    for a float of 16 bits. float64, which is the default of NumPy and pandas, is converted with a
    warning. Other arrays keep their dtype: integers are accepted for floats (the device casts
    them), and float32 for float64. Other conversions that lose precision or meaning are refused.

    Args:
        value: the data.
        wanted: the dtype.
        name: of the array, for errors and warnings.
        narrow: whether float64 may become a narrower float.

    Raises:
        DTypeError: for a dtype that is refused, with the conversion to write.
        DataError: for nested lists of uneven lengths, and numbers beyond the range of the dtype,
            also of integers that keep their own.
        DefinitionError: for Lamina's own tensors.
    """
    plain = type(value) is np.ndarray  # the usual case
    array: Array = value if plain else to_array(value, f"{name} cannot be converted to an array")
    if not plain and (isinstance(value, Listed) or not isinstance(value, np.ndarray | np.generic)):
        kind = array.dtype.kind
        if kind in "fiub" and (wanted.is_half or (kind == "f" and wanted.is_float)):
            array = rounded(array, wanted, name)
        elif kind in "fiub" and (wanted.is_float or kind != "f"):
            array = array.astype(wanted.numpy)
    try:
        arriving = as_dtype(array.dtype)
    except DTypeError as error:
        raise error.at(name) from None
    if arriving.name not in PUBLIC_DTYPES:
        raise DTypeError(
            f"{name} has a dtype that data cannot have",
            facts=(("expected", ", ".join(PUBLIC_DTYPES)), ("found", arriving.name)),
            advice="Convert it first: array.astype('int64').",
        )
    if wanted.is_half and arriving.is_float and arriving.rank <= float32.rank:
        array, arriving = rounded(array, wanted, name), wanted
    narrowing = arriving.is_float and wanted.is_float and arriving.rank > wanted.rank
    if narrowing and narrow:
        array = rounded(array, wanted, name)
        warn(
            f"{name} is converted from {arriving.name} to {wanted.name}. Convert it once, "
            f"array.astype('float32') or lm.data.Dataset(x, y, dtype='float32'), or make the model "
            "with dtype='float64'."
        )
    elif narrowing or (arriving.is_float and not wanted.is_float):
        fitting = "float32" if narrowing else wanted.name
        advice = f"Convert it: array.astype('{fitting}')"
        advice += ", or make the model with dtype='float64'." if narrowing else "."
        raise DTypeError(
            f"{name} has the wrong dtype",
            facts=(("expected", wanted.name), ("found", arriving.name)),
            advice=advice,
        )
    elif is_ranged(arriving, wanted):
        _require_range(array, wanted, name)
    native = array.dtype.newbyteorder("=")
    return np.ascontiguousarray(array, native).reshape(array.shape)


def is_ranged(arriving: DType, wanted: DType) -> bool:
    """Whether the range of integers has to be checked, because another integer type is wanted."""
    return arriving.kind == "int" and wanted.kind == "int" and arriving != wanted


def _require_range(array: Array, wanted: DType, name: str) -> None:
    """Raises DataError for integers that the dtype cannot hold."""
    held, own = np.iinfo(wanted.numpy), np.iinfo(array.dtype)
    if not array.size or (held.min <= own.min and own.max <= held.max):
        return
    least, most = int(array.min()), int(array.max())
    if least < held.min or most > held.max:
        raise DataError(
            f"{name} has numbers that {wanted.name} cannot hold",
            facts=(
                ("expected", f"{held.min} to {held.max}"),
                ("found", str(least if least < held.min else most)),
            ),
            where=name,
            advice="Scale them, or give the input another dtype: lm.Input(..., dtype='int64').",
        )


def type_of(array: Array) -> ArrayType:
    """Class, shape and dtype of an array."""
    return type(array), array.shape, array.dtype


def is_exact(array: Any, expected: ArrayType | None) -> bool:
    """Whether an array is of this type, contiguous and writable: it needs no further check.

    A forward pass of a small network takes less time than a full check.
    """
    try:
        found = array.__class__, array.shape, array.dtype
        return found == expected and array.flags.carray
    except AttributeError:
        return False


def are_indices(array: Array, count: int) -> bool:
    """Whether all integers of an array lie in 0..count - 1."""
    if array.size == 0:
        return True
    # Read as unsigned, a negative number is larger than any index.
    unsigned = array.view(f"u{array.itemsize}") if array.dtype.kind == "i" else array
    return _largest(unsigned) < count


def _largest(array: Array) -> int:
    if array.size == 1:
        return array.item()
    if array.size <= FEW_ELEMENTS:
        return max(array.ravel().tolist())
    return int(np.maximum.reduce(array, axis=None))
