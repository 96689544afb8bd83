"""The arrays of a data set: one, a tuple, or a dict by name; also sparse matrices."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from lamina.base.shapes import PUBLIC_DTYPES, Array, DType, as_dtype, is_masked_array, shape_text
from lamina.data.conversion import Listed, is_buffer, is_named, is_sparse, listed, rounded_to
from lamina.errors import DataError, DTypeError

# The advice for the path of a file in place of its data.
OF_A_PATH = (
    "Load it: lm.data.load(path, 'NAME'), with the name of the column of targets; for further "
    "tables model.coding.dataset(path)."
)
# What a data set has as inputs, targets or weights.
Arrays = Array | tuple[Array, ...] | Mapping[str, Array]


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
            else OF_A_PATH
            if isinstance(value, str | os.PathLike)
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
            advice=_dtype_advice(name, array),
        )
    if not array.dtype.isnative:
        raise DTypeError(
            f"the {name} have another byte order than this machine",
            facts=(("expected", array.dtype.newbyteorder("=").str), ("found", array.dtype.str)),
            advice="Convert first: array.astype(array.dtype.newbyteorder('=')).",
        )


def _dtype_advice(name: str, array: Array) -> str:
    dtype = array.dtype
    if dtype.kind == "f":
        return "Convert first: array.astype('float32')."
    if dtype.kind == "c":
        return "Complex numbers are two arrays: array.real and array.imag."
    if dtype.kind in "iu":
        return "Convert first: array.astype('int32') or array.astype('int64')."
    words = dtype.kind == "O" and any(isinstance(value, str) for value in array.flat)
    if words or dtype.kind in "US":
        number = "Number the classes: numpy.unique(array, return_inverse=True)[1]"
        way = number if name.startswith("targets") else "Convert first: array.astype('float32')"
        return f"{way}; or code a table with words: lm.data.from_frame(frame, target='NAME')."
    if dtype.kind == "O":
        return "Often the rows have uneven lengths; build the array with a numeric dtype."
    return "Convert it to numbers first."


def example_text(array: Array) -> str:
    """Dtype and shape of an example."""
    if isinstance(array, Listed):
        return f"float{shape_text(array.shape[1:])}"
    text = shape_text(array.shape[1:], as_dtype(array.dtype))
    return f"{text} sparse" if is_sparse(array) else text


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
