"""Conversion of data to arrays: lists, tensors of PyTorch, and all else that NumPy converts.

`to_array` makes an array of anything. `convert` also checks it, before anything is computed.
`is_frame`, `is_row` and others recognise data that is no array; `are_indices` checks ranges.
"""

from __future__ import annotations

import array as buffers
from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any, cast, final

import numpy as np

from lamina.base.shapes import (
    PUBLIC_DTYPES,
    Array,
    DType,
    as_dtype,
    converted,
    float32,
    is_masked_array,
)
from lamina.checks.origin import source_line, warn
from lamina.errors import DataError, DefinitionError, DTypeError, LaminaError
from lamina.graph import Tensor

ArrayType = tuple[type, tuple[int, ...], np.dtype[Any]]
# Up to this number of elements a loop in Python takes less time than a call of NumPy.
FEW_ELEMENTS = 32


@final
class Listed(np.ndarray[Any, np.dtype[Any]]):
    """An array made from Python's numbers, or a selection from one.

    Python's numbers have no dtype of their own: they are exact here, in float64, and are converted
    to the dtype of the model.
    """


def listed(value: Any, problem: str) -> Array:
    """As `to_array`, but lists of Python's floats become `Listed`."""
    array = to_array(value, problem)
    return array.view(Listed) if array.dtype == np.float64 and _of_python(value) else array


def to_array(value: Any, problem: str) -> Array:
    """Data as an array, or this problem; a tensor that requires a gradient gives its values."""
    if isinstance(value, Tensor):
        raise DefinitionError(
            "data is an array, but this is a symbolic tensor, which holds no data",
            facts=(("expected", "an array"), ("found", repr(value))),
            where=source_line(),
            advice="Arrays go here, and tensors to the network: model.network(x).",
        )
    if is_sparse(value):
        raise DataError(
            problem,
            facts=(("expected", "an array"), ("found", f"a sparse {type(value).__name__}")),
            advice="Make a dense array: matrix.toarray(). lm.data.Dataset, fit, evaluate and "
            "predict take sparse inputs as they are.",
        )
    if is_masked(value):
        raise DataError(
            problem,
            facts=(("expected", "an array whose elements all count"), ("found", "a masked array")),
            advice="Give masked elements a value: array.filled(0), or leave out their examples. In "
            "a column of lm.data.from_frame they are gaps.",
        )
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        value = value.detach().float()  # NumPy has no such type; all its numbers are exact
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        array = np.asarray(value)
        return _of_frame(value, array) if is_frame(value) else array
    except LaminaError:
        raise
    except Exception as error:  # another library may raise any exception
        if getattr(value, "requires_grad", False):
            return to_array(value.detach(), problem)
        if hasattr(value, "is_conj") and (value.is_conj() or value.is_neg()):  # computed when read
            return to_array(value.resolve_conj().resolve_neg(), problem)
        advice = "Check that all examples have the same shape."
        if type(value).__module__.startswith("polars"):
            advice = "Cast it first: series.cast(polars.Float64)."
        elif hasattr(value, "detach"):
            advice = _of_pytorch(value)
        elif hasattr(value, "__dlpack__"):
            advice = "Copy it to the computer's memory first."
        elif isinstance(value, list) and all(hasattr(item, "shape") for item in cast(Any, value)):
            role = "targets" if "targets" in problem else "inputs"
            advice = f"Several {role} make a tuple: (a, b). Examples of one have the same shape."
        facts = (("expected", "rows of equal length"), ("found", str(error)))
        raise DataError(problem, facts=facts, advice=advice) from None


def _of_pytorch(tensor: Any) -> str:
    """The advice for a tensor that has no array."""
    if str(getattr(tensor, "device", "")) == "meta":
        return "A tensor on the device 'meta' has no values: load them first."
    if getattr(tensor, "is_nested", False):
        return "Pad its rows: torch.nested.to_padded_tensor(tensor, 0.0)."
    if str(getattr(tensor, "layout", "")).startswith("torch.sparse"):
        return "Make a dense tensor: tensor.to_dense()."
    return "Give it as an array: tensor.float().cpu().numpy()."


def _of_frame(frame: Any, array: Array) -> Array:
    """The numbers of a data frame, whose array is of objects if its columns have several dtypes."""
    if array.ndim == 2 and array.dtype.kind in "biuf":
        return array
    if array.ndim == 2 and all(isinstance(value, Real | np.bool_) for value in array.flat):
        return array.astype(np.float64)
    kind = type(frame).__name__
    raise DataError(
        "the columns of a data frame are not coded",
        facts=(("expected", "arrays, or a data frame of numbers without gaps"), ("found", kind)),
        advice="Code them: lm.data.from_frame(frame, target='NAME'); for further frames "
        "model.coding.dataset(frame), or model.coding.inputs(frame) without targets.",
    )


def rounded_to(array: Array, dtype: DType, name: str) -> Array:
    """Numbers rounded to another float type; DataError if a finite number becomes infinite."""
    if array.dtype == dtype.numpy:
        return array
    with np.errstate(over="ignore"):
        result = converted(array, dtype.numpy)
    lost = np.isinf(result)
    if lost.any():
        lost &= np.isfinite(array)
    if lost.any():
        largest = np.abs(np.asarray(array[lost], np.float64)).max()
        raise DataError(
            f"{name} has numbers that {dtype.name} cannot hold",
            facts=(("expected", f"at most {_LARGEST[dtype.name]}"), ("found", f"{largest:,g}")),
            advice="Scale them, or make the model with another dtype.",
        )
    return result


def rounded_parameters(values: Mapping[str, Array], dtype: DType) -> dict[str, Array]:
    """Parameters and states as another float type; counters stay integers."""
    return {
        name: x if x.dtype.kind in "iub" else rounded_to(x, dtype, f"parameter {name!r}")
        for name, x in values.items()
    }


# The largest numbers of float types, for people.
_LARGEST = {"float16": "65,504", "bfloat16": "3.39e+38", "float32": "3.4e+38"}


def is_buffer(value: object) -> bool:
    """Whether NumPy reads a value as an array: tensors, buffers, but no lists or numbers."""
    named = any(hasattr(value, name) for name in ("__array__", "__dlpack__", "__array_interface__"))
    return named or isinstance(value, memoryview | bytearray | buffers.array)


def is_frame(value: object) -> bool:
    """Whether a value is a data frame, or columns by name."""
    return is_named(value) or has_columns(value)


def has_columns(value: object) -> bool:
    """Whether a value is a data frame; its class is asked, because a lazy frame would compute."""
    return hasattr(type(value), "columns")


def is_named(value: object) -> bool:
    """Whether a value is a dict, or something like it, but no matrix: one of SciPy's is a dict."""
    return isinstance(value, Mapping) and not is_sparse(cast(object, value))


def is_row(value: Any) -> bool:
    """Whether a value is a row of a table: single values by the names of the columns."""
    return is_named(value) and all(map(_is_single, cast(Mapping[Any, Any], value).values()))


def is_rows(value: Any, names: Collection[str] | None = None) -> bool:
    """Whether a value is a list of rows of a table, at least in columns of these names."""
    rows = cast(list[Any], value) if isinstance(value, list) else []
    cut = rows if names is None else [columns_in(row, names) for row in rows if is_named(row)]
    return bool(rows) and len(cut) == len(rows) and all(map(is_row, cut))


def columns_in(row: Mapping[Any, Any], names: Collection[str]) -> dict[Any, Any]:
    """These columns of a row or table; others are ignored."""
    return {name: value for name, value in row.items() if str(name) in names}


def _is_single(value: object) -> bool:
    is_number = getattr(value, "ndim", None) == 0
    return is_number or isinstance(value, str | bytes) or not hasattr(value, "__len__")


def is_masked(value: object) -> bool:
    """Whether an array, or one in a list, has elements that NumPy's mask hides."""
    if isinstance(value, list | tuple):
        return any(map(is_masked, cast(Sequence[object], value)))
    return is_masked_array(value) and bool(np.ma.is_masked(value))


def is_sparse(value: object) -> bool:
    """Whether a value is a sparse matrix or array of SciPy."""
    return hasattr(value, "tocsr") and hasattr(value, "toarray")


def is_bare_row(value: Any) -> bool:
    """Whether a value is a row of a table without names of columns, or a row of a frame."""
    if isinstance(value, list):
        items = cast(list[Any], value)
        return bool(items) and all(map(_is_single, items))
    return hasattr(value, "iloc") and getattr(value, "ndim", 0) == 1


def _of_python(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_of_python, cast(Sequence[object], value)))
    return isinstance(value, float | int) and not isinstance(value, np.generic)


def convert(value: Any, target: DType, name: str, *, narrow: bool = True) -> Array:
    """Data for an input, target or parameter of dtype `target`, as a contiguous array.

    Lists, and tensors of PyTorch, are converted to the wanted dtype; so are floats of up to 32 bits
    for a float of 16 bits. float64, which is the default of NumPy and pandas, is converted with a
    warning. Other arrays keep their dtype: integers are accepted for floats (the device casts
    them), and float32 for float64. Other conversions that lose precision or meaning are refused.
    """
    plain = type(value) is np.ndarray  # the usual case
    array: Array = value if plain else to_array(value, f"{name} cannot be converted to an array")
    if not plain and (isinstance(value, Listed) or not isinstance(value, np.ndarray | np.generic)):
        kind = array.dtype.kind
        if kind in "fiub" and (target.is_half or (kind == "f" and target.is_float)):
            array = rounded_to(array, target, name)
        elif kind in "fiub" and (target.is_float or kind != "f"):
            array = array.astype(target.numpy)
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
    if target.is_half and arriving.is_float and arriving.rank <= float32.rank:
        array, arriving = rounded_to(array, target, name), target
    narrowing = arriving.is_float and target.is_float and arriving.rank > target.rank
    if narrowing and narrow:
        array = rounded_to(array, target, name)
        warn(
            f"{name} is converted from {arriving.name} to {target.name}. Convert it once, "
            f"array.astype('float32') or lm.data.Dataset(x, y, dtype='float32'), or make the model "
            "with dtype='float64'."
        )
    elif narrowing or (arriving.is_float and not target.is_float):
        fitting = "float32" if narrowing else target.name
        advice = f"Convert it: array.astype('{fitting}')"
        advice += ", or make the model with dtype='float64'." if narrowing else "."
        facts = (("expected", target.name), ("found", arriving.name))
        raise DTypeError(f"{name} has the wrong dtype", facts=facts, advice=advice)
    elif is_ranged(arriving, target):
        _require_range(array, target, name)
    native = array.dtype.newbyteorder("=")
    return np.ascontiguousarray(array, native).reshape(array.shape)


def is_ranged(arriving: DType, target: DType) -> bool:
    """Whether the range of integers has to be checked, because another integer type is wanted."""
    return arriving.kind == "int" and target.kind == "int" and arriving != target


def _require_range(array: Array, target: DType, name: str) -> None:
    """Raises DataError for integers that the dtype cannot hold."""
    limits, present = np.iinfo(target.numpy), np.iinfo(array.dtype)
    if not array.size or (limits.min <= present.min and present.max <= limits.max):
        return
    least, most = int(array.min()), int(array.max())
    if least < limits.min or most > limits.max:
        extreme = str(least if least < limits.min else most)
        raise DataError(
            f"{name} has numbers that {target.name} cannot hold",
            facts=(("expected", f"{limits.min} to {limits.max}"), ("found", extreme)),
            where=name,
            advice="Scale them, or give the input another dtype: lm.Input(..., dtype='int64').",
        )


def type_of(array: Array) -> ArrayType:
    """Class, shape and dtype of an array."""
    return type(array), array.shape, array.dtype


def is_exact(array: Any, expected: ArrayType | None) -> bool:
    """Whether an array is of this type, contiguous and writable: it needs no further check."""
    # A forward pass of a small network takes less time than a full check.
    try:
        actual = array.__class__, array.shape, array.dtype
        return actual == expected and array.flags.carray
    except AttributeError:
        return False


def are_indices(array: Array, count: int) -> bool:
    """Whether all integers of an array lie in 0..count - 1."""
    if array.size == 0:
        return True
    # Read as unsigned, a negative number is larger than any index.
    unsigned = array.view(f"u{array.itemsize}") if array.dtype.kind == "i" else array
    if array.size == 1:
        return unsigned.item() < count
    if array.size <= FEW_ELEMENTS:
        return max(unsigned.ravel().tolist()) < count
    return int(np.maximum.reduce(unsigned, axis=None)) < count
