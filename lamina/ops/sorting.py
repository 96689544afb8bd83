"""Ops that order elements: argsort, sort, top_k, median.

NaN counts as larger than any number, and -0.0 equals 0.0. Equal elements keep their order, also in
descending order.
"""

from __future__ import annotations

import numpy as np

from lamina.base.shapes import Array, bfloat16, float64, int32, int64
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import Flag, Whole
from lamina.errors import DTypeError, ShapeError
from lamina.graph import Sample, Tensor, TensorLike, apply, described
from lamina.graph.attributes import Axis
from lamina.ops import basic as ops
from lamina.ops.arguments import as_tensor, axis_of, flag_of, whole_of
from lamina.ops.lowering_rules import Elementwise, Sorting
from lamina.ops.records import Typed, make_op
from lamina.ops.slicing import slice_axis
from lamina.program.definitions import sort_key
from lamina.program.scalar import Apply, Literal, Scalar

__all__ = ["argsort", "median", "sort", "top_k"]


def _infer_order(x: Tensor, axis: int, descending: bool) -> Typed:
    extent = x.shape[axis]
    return x.shape, int64 if isinstance(extent, int) and extent > 2**31 else int32


def _order_reference(x: Array, axis: int, descending: bool) -> Array:
    numbers = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    if not descending:
        return np.argsort(numbers, axis, kind="stable").astype(np.int32)
    # From the back in rising order, so that equal elements keep their order.
    backwards = np.argsort(np.flip(numbers, axis), axis, kind="stable")
    return (x.shape[axis] - 1 - np.flip(backwards, axis)).astype(np.int32)


def _key(node: Tensor, x: Scalar) -> Scalar:
    if x.dtype.is_float:
        key = Apply("sort_key", (x,), int64 if x.dtype == float64 else int32)
    else:
        key = x if x.dtype in (int32, int64) else Apply("cast", (x,), int32)
    if node.attributes["descending"]:
        # All bits inverted, so that no key overflows.
        key = Apply("subtract", (Literal(-1, key.dtype), key), key.dtype)
    return key


def _sample(*shape: int, dtypes: tuple[str, ...] = (), **attributes: int) -> Sample:
    return Sample((shape,), attributes, dtypes=dtypes, differentiable=False)


ORDER = make_op(
    "order",
    _infer_order,
    None,
    _order_reference,
    Sorting(_key),
    (
        _sample(3, 5, axis=1, descending=False),
        _sample(21, 2, axis=0, descending=True),
        _sample(2, 40, 3, axis=1, descending=False, dtypes=("int32",)),  # few values: ties
        _sample(17, axis=0, descending=True, dtypes=("int64",)),
        _sample(2, 9, axis=1, descending=True, dtypes=("bool",)),
        _sample(11, axis=0, descending=False, dtypes=("uint8",)),
        _sample(1, 1, axis=0, descending=False),
        _sample(0, 3, axis=1, descending=False),
        _sample(3, 0, axis=1, descending=False),
        _sample(2, 300, axis=1, descending=False),
    ),
    attributes={"axis": Axis(), "descending": Flag()},
)


def _order(x: Tensor, axis: int, descending: bool) -> Tensor:
    return apply(ORDER, x, axis=axis_of(x, axis), descending=flag_of("descending", descending))


def _infer_rank_key(x: Tensor, descending: bool) -> Typed:
    if x.dtype in (float64, int64):
        facts = (("expected", "at most 32 bits"), ("found", x.dtype.name))
        raise DTypeError("rank_key: there are no keys of 32 bits for this dtype", facts=facts)
    return x.shape, int32


def _rank_key_reference(x: Array, descending: bool) -> Array:
    if x.dtype.kind == "f" or x.dtype == bfloat16.numpy:
        key = sort_key(x.astype(np.float32))
    else:
        key = x.astype(np.int32)
    return -1 - key if descending else key


# Keys of 32 bits, in the order of the elements.
RANK_KEY = make_op(
    "rank_key",
    _infer_rank_key,
    None,
    _rank_key_reference,
    Elementwise(lambda node, operands: _key(node, operands[0])),
    (
        _sample(3, 5, descending=True, dtypes=("float32",)),
        _sample(7, descending=False, dtypes=("int32",)),
        _sample(2, 9, descending=True, dtypes=("bool",)),
        _sample(11, descending=False, dtypes=("uint8",)),
    ),
    attributes={"descending": Flag()},
)

# Up to this many elements are selected one after the other; more are sorted. On a processor
# selecting 8 of 1000 elements took a fifth of the time of sorting them, 2 of 16 as long.
_MOST_SELECTED = 8
_LOW_BITS = 32


def _selected(x: Tensor, count: int, axis: int, descending: bool) -> Tensor:
    """The positions of the first elements in order, each by a pass over the axis.

    A pair of key and position is an integer of 64 bits. Each pass finds the least pair above the
    pair of the pass before. All pairs differ, so equal elements keep their order.
    """
    extent = x.shape[axis]
    key = ops.cast(apply(RANK_KEY, x, descending=descending), int64)
    along = [extent if n == axis else 1 for n in range(x.rank)]
    position = ops.reshape(ops.arange(extent), along)
    pairs = key * 2**_LOW_BITS + position
    least = [ops.min(pairs, axis, keepdims=True)]
    while len(least) < count:
        later = ops.where(ops.greater(pairs, least[-1]), pairs, 2**63 - 1)
        least.append(ops.min(later, axis, keepdims=True))
    return ops.cast(ops.bitwise_and(ops.concat(least, axis), 2**_LOW_BITS - 1), int32)


def _build_first(x: Tensor, axis: int, count: int, descending: bool) -> Tensor:
    # A batch may be smaller than the count.
    _require_elements(x, count, axis)
    # Keys of 64 bits leave no bits for the position.
    _, dtype = _infer_order(x, axis, descending)
    if 0 < count <= _MOST_SELECTED and x.dtype not in (float64, int64) and dtype == int32:
        return _selected(x, count, axis, descending)
    return slice_axis(_order(x, axis, descending), axis, 0, count)


def _require_elements(x: Tensor, count: int, axis: int) -> None:
    """Raises ShapeError if the axis is known to have fewer elements."""
    extent = x.shape[axis]
    if isinstance(extent, int) and count > extent:
        raise ShapeError(
            f"top_k: axis {axis} has fewer than {count} elements",
            facts=(("tensor", described(x)), ("count", str(count))),
            advice=f"Take at most {extent}.",
        )


def _infer_first(x: Tensor, axis: int, count: int, descending: bool) -> Typed:
    shape, dtype = _infer_order(x, axis, descending)
    return (*shape[:axis], count, *shape[axis + 1 :]), dtype


# The positions of the first elements in order.
FIRST = make_op(
    "first_in_order",
    _infer_first,
    None,
    lambda x, axis, count, descending: np.take(
        _order_reference(x, axis, descending), range(count), axis
    ),
    _build_first,
    (
        _sample(3, 5, axis=1, descending=True, count=2),
        _sample(21, 2, axis=0, count=8, descending=False),
        _sample(2, 40, 3, axis=1, descending=True, count=3, dtypes=("int32",)),  # few values: ties
        _sample(17, axis=0, descending=True, count=4, dtypes=("int64",)),
        _sample(2, 9, axis=1, descending=True, count=1, dtypes=("bool",)),
        _sample(11, axis=0, descending=True, count=9, dtypes=("uint8",)),
        _sample(3, 4, axis=0, descending=True, count=0),
    ),
    attributes={"axis": Axis(), "count": Whole(0), "descending": Flag()},
)


@checked
def argsort(x: TensorLike, axis: int = -1, descending: bool = False) -> Tensor:
    """The positions of the elements along an axis in rising (or falling) order, int64."""
    return ops.cast(_order(as_tensor(x), axis, descending), int64)


@checked
def sort(x: TensorLike, axis: int = -1, descending: bool = False) -> Tensor:
    """The elements along an axis in rising (or falling) order; NaN counts as the largest.

    Equal elements keep their order, so that each gets its own gradient.
    """
    x = as_tensor(x)
    return ops.take_along_axis(x, _order(x, axis, descending), axis)


@checked
def top_k(x: TensorLike, count: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The `count` largest (or smallest) elements along an axis, and their positions.

    Both are in falling order if `largest`, otherwise in rising order; of equal elements the first
    one comes first. Positions are int64.
    """
    x = as_tensor(x)
    axis = axis_of(x, axis)
    count = whole_of("count", count)
    _require_elements(x, count, axis)
    order = apply(FIRST, x, axis=axis, count=count, descending=flag_of("largest", largest))
    return ops.take_along_axis(x, order, axis), ops.cast(order, int64)


@checked
def median(x: TensorLike, axis: int = -1, keepdims: bool = False) -> Tensor:
    """The middle element along an axis in order, the lower one of two; NaN if there is one."""
    x = as_tensor(x)
    axis = axis_of(x, axis)
    extent = x.shape[axis]
    if not isinstance(extent, int) or not extent:
        raise ShapeError(
            f"median: axis {axis} needs a fixed extent of at least 1",
            facts=(("tensor", described(x)),),
            advice="Choose another axis.",
        )
    ordered = sort(x, axis)
    middle = (extent - 1) // 2
    element = slice_axis(ordered, axis, middle, middle + 1)
    if x.dtype.is_float:
        last = slice_axis(ordered, axis, extent - 1, extent)
        element = ops.where(ops.equal(last, last), element, last)
    return element if flag_of("keepdims", keepdims) else ops.squeeze(element, axis)
