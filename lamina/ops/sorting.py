"""Ops that order elements: argsort, sort, top_k, median.

NaN counts as larger than any number, and -0.0 equals 0.0. Equal elements keep their order, also in
descending order.
"""

from __future__ import annotations

import numpy as np

from lamina.calls import checked_as_given as checked
from lamina.errors import ShapeError
from lamina.graph import Attributes, Op, Sample, Tensor, TensorLike, apply, described, located
from lamina.graph.attributes import Axis
from lamina.graph.kinds import Flag
from lamina.ops.arguments import as_tensor, axis_of, flag_of, whole_of
from lamina.ops.comparison import equal, where
from lamina.ops.conversion import cast
from lamina.ops.indexing import take_along_axis
from lamina.ops.lowering_rules import Sorting
from lamina.ops.movement import squeeze
from lamina.ops.slicing import slice_axis
from lamina.program.scalar import Apply, Literal, Scalar
from lamina.shapes import Array, DType, Shape, float64, int32, int64

# order --------------------------------------------------------------------------------------------


def _infer_order(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    (x,) = operands
    axis: int = attributes["axis"]
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
    elif x.dtype in (int32, int64):
        key = x
    else:
        key = Apply("cast", (x,), int32)
    if node.attributes["descending"]:
        # All bits inverted, so that no key overflows.
        key = Apply("subtract", (Literal(-1, key.dtype), key), key.dtype)
    return key


def _order_sample(
    *shape: int, axis: int, descending: bool = False, dtypes: tuple[str, ...] = ()
) -> Sample:
    given = {"axis": axis, "descending": descending}
    return Sample((shape,), given, dtypes=dtypes, differentiable=False)


ORDER = Op(
    "order",
    _infer_order,
    None,
    _order_reference,
    Sorting(_key),
    (
        _order_sample(3, 5, axis=1),
        _order_sample(21, 2, axis=0, descending=True),
        _order_sample(2, 40, 3, axis=1, dtypes=("int32",)),  # few values: ties
        _order_sample(17, axis=0, descending=True, dtypes=("int64",)),
        _order_sample(2, 9, axis=1, descending=True, dtypes=("bool",)),
        _order_sample(11, axis=0, dtypes=("uint8",)),
        _order_sample(1, 1, axis=0),
        _order_sample(0, 3, axis=1),
        _order_sample(3, 0, axis=1),
        _order_sample(2, 300, axis=1),
    ),
    attributes={"axis": Axis(), "descending": Flag()},
)


def _order(x: Tensor, axis: int, descending: bool) -> Tensor:
    return apply(ORDER, x, axis=axis_of(x, axis), descending=flag_of("descending", descending))


# Functions ----------------------------------------------------------------------------------------


@checked
def argsort(x: TensorLike, axis: int = -1, descending: bool = False) -> Tensor:
    """The positions of the elements along an axis in rising (or falling) order, int64."""
    return cast(_order(as_tensor(x), axis, descending), int64)


@checked
def sort(x: TensorLike, axis: int = -1, descending: bool = False) -> Tensor:
    """The elements along an axis in rising (or falling) order; NaN counts as the largest.

    Equal elements keep their order, so that each gets its own gradient.
    """
    x = as_tensor(x)
    return take_along_axis(x, _order(x, axis, descending), axis)


@checked
def top_k(x: TensorLike, count: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The `count` largest (or smallest) elements along an axis, and their positions.

    Both are in falling order if `largest`, otherwise in rising order; of equal elements the first
    one comes first. Positions are int64.

    Raises:
        ShapeError: if the axis has fewer elements.
    """
    x = as_tensor(x)
    axis = axis_of(x, axis)
    count, extent = whole_of("count", count), x.shape[axis]
    if isinstance(extent, int) and count > extent:
        raise located(
            ShapeError(
                f"top_k: axis {axis} has fewer than {count} elements",
                facts=(("tensor", described(x)), ("count", str(count))),
                advice=f"Take at most {extent}.",
            )
        )
    order = slice_axis(_order(x, axis, flag_of("largest", largest)), axis, 0, count)
    return take_along_axis(x, order, axis), cast(order, int64)


@checked
def median(x: TensorLike, axis: int = -1, keepdims: bool = False) -> Tensor:
    """The middle element along an axis in order, the lower one of two; NaN if there is one.

    Raises:
        ShapeError: if the axis is empty, or its extent depends on the batch.
    """
    x = as_tensor(x)
    axis = axis_of(x, axis)
    extent = x.shape[axis]
    if not isinstance(extent, int) or not extent:
        raise located(
            ShapeError(
                f"median: axis {axis} needs a fixed extent of at least 1",
                facts=(("tensor", described(x)),),
                advice="Choose another axis.",
            )
        )
    ordered = sort(x, axis)
    middle = (extent - 1) // 2
    found = slice_axis(ordered, axis, middle, middle + 1)
    if x.dtype.is_float:
        last = slice_axis(ordered, axis, extent - 1, extent)
        found = where(equal(last, last), found, last)
    return found if flag_of("keepdims", keepdims) else squeeze(found, axis)
