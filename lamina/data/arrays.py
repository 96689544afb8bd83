"""Conversion of data to arrays: lists, tensors of PyTorch, and all else that NumPy converts.

`to_array` makes an array of anything. `convert` also checks it, before anything is computed.
"""

from __future__ import annotations

import array as buffers
from collections.abc import Callable, Collection, Mapping, Sequence
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
    shape_text,
)
from lamina.checks.origin import source_line, warn
from lamina.errors import DataError, DefinitionError, DTypeError, LaminaError
from lamina.graph import Tensor

# What a data set has as inputs, targets or weights.
Arrays = Array | tuple[Array, ...] | Mapping[str, Array]
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
            advice = "Several inputs make a tuple: (a, b). All examples of one have the same shape."
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
    """Numbers as another float type, rounded to the nearest.

    Raises:
        DataError: if a finite number becomes infinite.
    """
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


def dense(array: Any) -> Array:
    """An array, also of a sparse matrix."""
    return array.toarray() if is_sparse(array) else array


def bytes_of(array: Any) -> int:
    """The bytes of an array, or of a sparse matrix by rows."""
    stored = (array.data, array.indices, array.indptr) if is_sparse(array) else (array,)
    return sum(part.nbytes for part in stored)


def sparse_in_dtype(name: str, matrix: Any, dtype: DType) -> Any:
    """A sparse matrix by rows; if it has floats, in this dtype."""
    if matrix.dtype.kind != "f":
        return matrix
    if dtype.is_half:
        raise DTypeError(
            f"the sparse matrix {name} cannot have floats of 16 bits",
            facts=(("expected", "dtype='float32' or 'float64'"), ("found", dtype.name)),
            advice="Leave dtype out: rows are converted when they become dense.",
        )
    numbers = rounded_to(matrix.data, dtype, f"the sparse matrix {name}")
    return type(matrix)((numbers, matrix.indices, matrix.indptr), shape=matrix.shape)


def _of_python(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_of_python, cast(Sequence[object], value)))
    return isinstance(value, float | int) and not isinstance(value, np.generic)


# The arrays of a data set: one, a tuple, or a dict by name ----------------------------------------


def as_tuple(arrays: Arrays | None) -> tuple[Array, ...]:
    """The arrays in the order in which they are given; none for None."""
    if arrays is None:
        return ()
    if isinstance(arrays, Mapping):
        return tuple(arrays.values())
    return arrays if isinstance(arrays, tuple) else (arrays,)


def map_arrays(arrays: Any, function: Callable[[str, Any], Any]) -> Any:
    """A function of an array, or of each in a tuple or dict, and of its index, `"['age']"`."""
    if isinstance(arrays, Mapping):
        named = cast(Mapping[str, Any], arrays)
        return {name: function(f"[{name!r}]", array) for name, array in named.items()}
    if isinstance(arrays, tuple):
        items = cast(tuple[Any, ...], arrays)
        return tuple([function(f"[{number}]", array) for number, array in enumerate(items)])
    return function("", arrays)


def named_arrays(role: str, arrays: Arrays) -> list[tuple[str, Array]]:
    """Each array with its name in errors: `"inputs"`, `"inputs[0]"`, `"inputs['age']"`."""
    if isinstance(arrays, tuple | Mapping) and not arrays:
        raise DataError(
            f"the {'tuple' if isinstance(arrays, tuple) else 'dict'} of {role} is empty",
            facts=(("expected", "one array or more"), ("found", str(arrays))),
            advice=f"Give one array for each of the {role} of the network.",
        )
    for name in arrays if isinstance(arrays, Mapping) else ():
        if not isinstance(cast(object, name), str):
            raise DataError(
                f"the names of the {role} are words",
                facts=(("expected", "{'age': array}"), ("found", f"the key {name!r}")),
                advice="Keys are the names of inputs and outputs; arrays in order make a tuple.",
            )
    named: list[tuple[str, Array]] = []
    map_arrays(arrays, lambda index, array: named.append((f"{role}{index}", array)))
    return named


def read_arrays(role: str, value: Any, dtype: DType | None) -> Any:
    """Inputs, targets or weights as arrays that a data set takes; floats in a dtype, if any."""
    if isinstance(value, tuple) or is_named(value):
        value = map_arrays(value, lambda index, item: _as_array(f"{role}{index}", item))
    else:
        value = _as_array(role, value)
    for name, array in named_arrays(role, value):
        _check_array(name, array)
    return value if dtype is None else _in_dtype(role, value, dtype)


def _as_array(name: str, value: Any) -> Any:
    is_array = isinstance(cast(object, value), np.ndarray)
    if is_array and not is_masked_array(value):
        return value
    if is_sparse(value):
        return value.tocsr()
    if isinstance(value, list) or is_buffer(value):
        return listed(value, f"the {name} cannot be converted to an array")
    return value


def _in_dtype(role: str, arrays: Any, dtype: DType) -> Any:
    """The arrays; arrays of floats in this dtype."""

    def one(index: str, array: Array | None) -> Array | None:
        if is_sparse(array):
            return sparse_in_dtype(f"{role}{index}", array, dtype)
        kept = array is None or not as_dtype(array.dtype).is_float
        return array if kept else rounded_to(np.asarray(array), dtype, f"the array {role}{index}")

    return map_arrays(arrays, one)


def _check_array(name: str, value: object) -> None:
    """Raises DataError or DTypeError for what a data set does not take."""
    if is_sparse(value):
        _check_sparse(name, cast(Array, value))
        return
    if not isinstance(value, np.ndarray):
        raise DataError(
            f"the {name} are not an array",
            facts=(("expected", "a NumPy array"), ("found", type_text(value))),
            advice="Collect it first: frame.collect()."
            if hasattr(value, "collect")
            else "Convert first: numpy.asarray(value, dtype='float32').",
        )
    array = cast(Array, value)
    if array.ndim == 0:
        raise DataError(
            f"the {name} have no axis of examples",
            facts=(("expected", "one axis or more"), ("found", full_text(array))),
            advice="The first axis counts the examples; reshape the array to (1, ...).",
        )
    _check_dtype(name, array)
    if array.size == 0:
        raise DataError(
            f"the {name} hold no data",
            facts=(("expected", "no axis of length 0"), ("found", full_text(array))),
            advice="Check how the array was selected or loaded.",
        )


def _check_sparse(name: str, matrix: Array) -> None:
    fact = ("found", f"a sparse matrix, {full_text(matrix)}")
    if not name.startswith("inputs"):
        raise DataError(
            f"the {name} are a sparse matrix",
            facts=(("expected", "a NumPy array"), fact),
            advice="Only inputs may be sparse. Make an array: matrix.toarray().",
        )
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise DataError(
            f"the {name} are sparse, and have no examples with features",
            facts=(("expected", "two axes, examples and features, not of length 0"), fact),
            advice="The first axis counts the examples: matrix.reshape((1, -1)) makes it.",
        )
    _check_dtype(name, matrix)


def _check_dtype(name: str, array: Array) -> None:
    if array.dtype.name not in PUBLIC_DTYPES:
        raise DTypeError(
            f"the {name} have an unknown dtype",
            facts=(("expected", ", ".join(PUBLIC_DTYPES)), ("found", full_text(array))),
            advice=_dtype_advice(array),
        )
    if not array.dtype.isnative:
        raise DTypeError(
            f"the {name} have another byte order than this machine",
            facts=(("expected", array.dtype.newbyteorder("=").str), ("found", array.dtype.str)),
            advice="Convert first: array.astype(array.dtype.newbyteorder('=')).",
        )


def _dtype_advice(array: Array) -> str:
    dtype = array.dtype
    if dtype.kind == "f":
        return "Convert first: array.astype('float32')."
    if dtype.kind == "c":
        return "Complex numbers are two arrays: array.real and array.imag."
    if dtype.kind in "iu":
        return "Convert first: array.astype('int32') or array.astype('int64')."
    words = dtype.kind == "O" and any(isinstance(value, str) for value in array.flat)
    if words or dtype.kind in "US":
        return (
            "Number the classes: numpy.unique(array, return_inverse=True)[1]; or code a table with "
            "words: lm.data.from_frame(frame, target='NAME')."
        )
    if dtype.kind == "O":
        return "Often the rows have uneven lengths; build the array with a numeric dtype."
    return "Convert it to numbers first."


def example_text(array: Array) -> str:
    """Dtype and shape of an example."""
    if isinstance(array, Listed):
        return f"float{shape_text(array.shape[1:])}"
    return shape_text(array.shape[1:], as_dtype(array.dtype)) + " sparse" * is_sparse(array)


def full_text(array: Array) -> str:
    """Dtype and shape of an array."""
    return f"{array.dtype.name}{shape_text(array.shape)}"


def type_text(value: object) -> str:
    """The class of a value; for a tuple, the classes of its items."""
    if isinstance(value, tuple):
        items = ", ".join(type(item).__name__ for item in cast(tuple[object, ...], value))
        return f"a tuple of ({items})"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"


# Data for a program -------------------------------------------------------------------------------


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
    if array.size == 1:
        return unsigned.item() < count
    if array.size <= FEW_ELEMENTS:
        return max(unsigned.ravel().tolist()) < count
    return int(np.maximum.reduce(unsigned, axis=None)) < count
