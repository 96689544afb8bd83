"""Gather and scatter: take, scatter_add and their variants along an axis; one_hot.

Indices are integers from 0; they do not count from the end. A constant index out of range is
refused when the op is made, one in data when the data arrives. A computed index is clamped to the
axis. `one_hot` returns zeros for an index out of range.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.base.shapes import (
    Array,
    Dim,
    DType,
    DTypeLike,
    Shape,
    float32,
    int32,
    int64,
    shape_text,
    static,
)
from lamina.checks.kinds import ElementType, Extent
from lamina.errors import DTypeError, ShapeError
from lamina.graph import CONSTANT, OPS, Sample, Tensor, TensorLike, described
from lamina.graph.attributes import Axis
from lamina.ops.arguments import as_tensor, axis_of, dtype_of, read
from lamina.ops.broadcast import require_numbers
from lamina.ops.factories import applied
from lamina.ops.lowering_rules import Coordinates, Movement, Pull, Scattering, gathered
from lamina.ops.records import Given, Gradients, Typed, as_op
from lamina.program.scalar import Apply, Position, Scalar

__all__ = ["one_hot", "scatter_add", "scatter_along_axis", "take", "take_along_axis"]


def check_indices(name: str, indices: Tensor) -> None:
    """Raises DTypeError for indices that are not integers."""
    if indices.dtype.kind != "int":
        raise DTypeError(
            f"{name}: indices must be integers",
            facts=(("expected", "i64 or another integer"), ("found", described(indices))),
            advice="Convert with ops.cast(x, 'int64').",
        )


def check_indices_on_axis(name: str, indices: Tensor, extent: Dim) -> None:
    """Checks indices of an axis; their values only if they are constants.

    Other indices are clamped to the axis, so that no data makes a program read or write outside its
    buffers.
    """
    check_indices(name, indices)
    if extent == 0 and 0 not in indices.shape:
        facts = (("indices", described(indices)),)
        raise ShapeError(f"{name}: an axis of extent 0 cannot be indexed", facts=facts)
    if indices.op is not CONSTANT:
        return
    array: Array = indices.attributes["value"].array
    outside = array < 0
    if isinstance(extent, int):
        outside = outside | (array >= extent)
    if outside.any():
        expected = f"indices from 0, below the extent {extent} of the axis"
        raise ShapeError(
            f"{name}: index {array[outside][0]} is out of range",
            facts=(("expected", expected), ("found", str(array[outside][0]))),
            advice="Indices do not count from the end: the last one is the extent less one.",
        )


def _taken_indices(node: Tensor) -> tuple[Tensor, Dim]:
    x, indices = node.operands
    axis: int = node.attributes["axis"]
    return indices, x.shape[axis]


def _scattered_indices(node: Tensor) -> tuple[Tensor, Dim]:
    return node.operands[1], node.attributes["size"]


def _index_sample(
    values: tuple[int, ...], indices: tuple[int, ...], dtype: str = "int64", **attributes: int
) -> Sample:
    extent = attributes["size"] if "size" in attributes else values[attributes["axis"]]
    return Sample((values, indices), attributes, 0, extent - 1, ("float", dtype))


def _infer_take(x: Tensor, indices: Tensor, axis: int) -> Typed:
    check_indices_on_axis("take", indices, x.shape[axis])
    return (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype


def _inside(indices: Array, extent: int) -> Array:
    """The indices, clamped to the axis."""
    return np.clip(indices, 0, max(extent - 1, 0))


def _indexed(
    node: Tensor, coordinates: Coordinates, pull: Pull, shape: Shape, *, along: bool = False
) -> Coordinates:
    """The coordinates of an element in a tensor whose axis is indexed.

    The index replaces the coordinates of the indices; if they are `along` an axis, its coordinate.
    """
    axis: int = node.attributes["axis"]
    end = axis + (1 if along else node.operands[1].rank)
    (extent,) = static((shape[axis],))
    index = gathered(pull(1, coordinates if along else coordinates[axis:end]), extent)
    return (*coordinates[:axis], index, *coordinates[end:])


def _take_gradient(x: Tensor, indices: Tensor, _: Tensor, upstream: Tensor, axis: int) -> Gradients:
    return scatter_add(upstream, indices, x.shape[axis], axis), None


@as_op(
    _infer_take,
    _take_gradient,
    lambda x, indices, axis: np.take(x, _inside(indices, x.shape[axis]), axis),
    Movement(lambda node, at, pull: pull(0, _indexed(node, at, pull, node.operands[0].shape))),
    (
        _index_sample((5, 3), (2, 4), axis=0),
        _index_sample((2, 6, 3), (7,), "int32", axis=1),
        _index_sample((4, 5), (), "uint8", axis=1),
        _index_sample((100, 2), (4,), "int8", axis=0),
        _index_sample((2, 6, 3), (7,), "int16", axis=1),
        _index_sample((3, 2), (2, 1), "uint16", axis=0),
        _index_sample((3, 2), (0,), axis=0),
        Sample(((4, 3), (9,)), {"axis": 0}, -3, 7, ("float", "int64")),
    ),
    operands=2,
    indices=_taken_indices,
    attributes={"axis": Axis()},
)
def take(x: TensorLike, indices: TensorLike, axis: int = 0) -> Given:
    """The slices of x along an axis at the indices; the axes of the indices replace that axis.

    Args:
        x: any tensor.
        indices: integers of any shape, from 0 to the extent of the axis - 1; negative ones do not
            count from the end. Constants and data out of range are refused; computed indices out of
            range are clamped to the axis.
        axis: the axis of x that is indexed.
    """
    x = as_tensor(x)
    return x, as_tensor(indices), axis_of(x, axis)


def _infer_scatter_add(values: Tensor, indices: Tensor, size: Dim, axis: int) -> Typed:
    check_indices_on_axis("scatter_add", indices, size)
    require_numbers(values)
    end = axis + indices.rank
    if values.shape[axis:end] != indices.shape:
        raise ShapeError(
            "scatter_add: values and indices do not fit together",
            facts=(
                ("values", described(values)),
                ("indices", described(indices)),
                ("expected", f"values with {shape_text(indices.shape)} from axis {axis} on"),
            ),
            advice="There must be one value, or one slice of values, for each index.",
        )
    return (*values.shape[:axis], size, *values.shape[end:]), values.dtype


def _scatter_add_reference(values: Array, indices: Array, size: int, axis: int) -> Array:
    end = axis + indices.ndim
    result = np.zeros((*values.shape[:axis], size, *values.shape[end:]), values.dtype)
    index: Any = (*(slice(None),) * axis, _inside(indices, size))
    np.add.at(result, index, values)
    return result


@as_op(
    _infer_scatter_add,
    lambda values, indices, y, g, size, axis: (take(g, indices, axis), None),
    _scatter_add_reference,
    Scattering(lambda node, at, pull: _indexed(node, at, pull, node.shape)),
    (
        _index_sample((6, 3), (6,), size=4, axis=0),
        _index_sample((2, 3, 4, 5), (3, 4), "int32", size=5, axis=1),
        _index_sample((4,), (), "uint8", size=3, axis=0),
        _index_sample((2, 0), (0,), size=3, axis=1),
    ),
    operands=2,
    indices=_scattered_indices,
    attributes={"size": Extent(), "axis": Axis(between=True)},
)
def scatter_add(values: TensorLike, indices: TensorLike, size: Dim, axis: int = 0) -> Given:
    """Zeros, to which slices of values are added at the indices.

    The transpose of `take`: the axes of the indices are the axes of values from `axis` on, and
    become one axis of extent `size`. Values are added in their order, to 0.0, so that -0.0 gives
    0.0.
    """
    values, indices = as_tensor(values), as_tensor(indices)
    extent: Dim = read("size", Extent(), size)
    return values, indices, extent, axis_of(values, axis, max(values.rank - indices.rank + 1, 0))


def _infer_take_along_axis(x: Tensor, indices: Tensor, axis: int) -> Typed:
    check_indices_on_axis("take_along_axis", indices, x.shape[axis])
    fits = x.rank == indices.rank and all(
        left == right
        for number, (left, right) in enumerate(zip(x.shape, indices.shape, strict=True))
        if number != axis
    )
    if not fits:
        raise ShapeError(
            f"take_along_axis: the shapes differ in an axis other than {axis}",
            facts=(("tensor", described(x)), ("indices", described(indices))),
            advice=f"All extents except on axis {axis} must be equal; use ops.broadcast_to.",
        )
    return indices.shape, x.dtype


def _take_along_axis_gradient(
    x: Tensor, indices: Tensor, _: Tensor, upstream: Tensor, axis: int
) -> Gradients:
    return scatter_along_axis(upstream, indices, x.shape[axis], axis), None


@as_op(
    _infer_take_along_axis,
    _take_along_axis_gradient,
    lambda x, indices, axis: np.take_along_axis(
        x, _inside(indices.astype(np.int64), x.shape[axis]), axis
    ),
    Movement(
        lambda node, at, pull: pull(0, _indexed(node, at, pull, node.operands[0].shape, along=True))
    ),
    (
        _index_sample((3, 5), (3, 1), axis=1),
        _index_sample((4, 2, 3), (6, 2, 3), "int32", axis=0),
        _index_sample((7,), (0,), "uint8", axis=0),
        Sample(((3, 4), (3, 6)), {"axis": 1}, -3, 7, ("float", "int32")),
    ),
    operands=2,
    indices=_taken_indices,
    attributes={"axis": Axis()},
)
def take_along_axis(x: TensorLike, indices: TensorLike, axis: int) -> Given:
    """Elements of x at the indices along one axis, at the same coordinates along the others.

    Indices are as in `take`.
    """
    x = as_tensor(x)
    return x, as_tensor(indices), axis_of(x, axis)


def _infer_scatter_along_axis(values: Tensor, indices: Tensor, size: Dim, axis: int) -> Typed:
    check_indices_on_axis("scatter_along_axis", indices, size)
    require_numbers(values)
    if values.shape != indices.shape:
        raise ShapeError(
            "scatter_along_axis: values and indices differ in shape",
            facts=(("values", described(values)), ("indices", described(indices))),
            advice="There must be one index for each value.",
        )
    return (*values.shape[:axis], size, *values.shape[axis + 1 :]), values.dtype


def _scatter_along_axis_reference(values: Array, indices: Array, size: int, axis: int) -> Array:
    result = np.zeros((*values.shape[:axis], size, *values.shape[axis + 1 :]), values.dtype)
    coordinates = np.indices(values.shape)
    inside = _inside(indices, size)
    index: Any = tuple(
        inside if number == axis else coordinates[number] for number in range(values.ndim)
    )
    np.add.at(result, index, values)
    return result


@as_op(
    _infer_scatter_along_axis,
    lambda values, indices, y, g, size, axis: (take_along_axis(g, indices, axis), None),
    _scatter_along_axis_reference,
    Scattering(lambda node, at, pull: _indexed(node, at, pull, node.shape, along=True)),
    (
        _index_sample((3, 5), (3, 5), size=4, axis=1),
        _index_sample((6, 1, 2), (6, 1, 2), "int32", size=3, axis=0),
        _index_sample((0, 2), (0, 2), "uint8", size=3, axis=0),
        Sample(((6, 1), (6, 1)), {"size": 4, "axis": 1}, -3, 7, ("float", "int64")),
        Sample(((2, 5), (2, 5)), {"size": 3, "axis": 1}, -3, 7, ("float", "uint8")),
    ),
    operands=2,
    indices=_scattered_indices,
    attributes={"size": Extent(), "axis": Axis()},
)
def scatter_along_axis(values: TensorLike, indices: TensorLike, size: Dim, axis: int) -> Given:
    """Zeros, to which each value is added: along one axis at its index.

    The transpose of `take_along_axis`; the axis has extent `size` in the result. Values are added
    as in `scatter_add`.
    """
    values = as_tensor(values)
    extent = read("size", Extent(), size)
    return values, as_tensor(indices), extent, axis_of(values, axis)


SCATTER_ALONG_AXIS = OPS["scatter_along_axis"]
TAKE, TAKE_ALONG_AXIS = OPS["take"], OPS["take_along_axis"]


def _infer_one_hot(indices: Tensor, depth: Dim, dtype: DType) -> Typed:
    check_indices("one_hot", indices)
    return (*indices.shape, depth), dtype


def _one_hot_reference(indices: Array, depth: int, dtype: DType) -> Array:
    return (indices[..., None] == np.arange(depth)).astype(dtype.numpy)


def _one_hot_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    index = pull(0, coordinates[:-1])
    wide = index if index.dtype == int64 else Apply("cast", (index,), int64)
    return Apply("cast", (applied("equal", Position(coordinates[-1]), wide),), node.dtype)


@as_op(
    _infer_one_hot,
    None,
    _one_hot_reference,
    Movement(_one_hot_scalar),
    (
        Sample(((3,),), {"depth": 5, "dtype": float32}, 0, 4, ("int64",), False),
        Sample(((2, 3),), {"depth": 1, "dtype": int32}, 0, 0, ("uint8",), False),
        Sample(((),), {"depth": 4, "dtype": float32}, 0, 3, ("int32",), False),
    ),
    attributes={"depth": Extent(), "dtype": ElementType()},
)
def one_hot(indices: TensorLike, depth: int, dtype: DTypeLike = float32) -> Given:
    """1 at each index along a new last axis, 0 elsewhere."""
    return as_tensor(indices), depth, dtype_of(dtype)
