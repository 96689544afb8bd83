"""Elements at indices along one axis: gather, and scatter, which puts them there; bincount.

As in PyTorch, the indices may have fewer elements than the tensor along any axis.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from lamina.base.shapes import Array, Shape, int32, int64
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import Word
from lamina.errors import ShapeError
from lamina.graph import CONSTANT, Tensor, TensorLike, apply, constant, described
from lamina.graph.attributes import whole
from lamina.ops import basic as ops
from lamina.ops.arguments import as_tensor, axis_of, read
from lamina.ops.conversion import operands_of
from lamina.ops.indexing import check_indices, check_indices_on_axis
from lamina.ops.reduce import summable
from lamina.ops.slicing import difference, is_negative, padded, slice_axis
from lamina.ops.sorting import ORDER

__all__ = ["bincount", "gather", "masked_fill", "scatter"]

Combine = Literal["set", "add"]


def _check_indices_fit(name: str, x: Tensor, indices: Tensor, axis: int) -> None:
    fits = x.rank == indices.rank and all(
        number == axis or not is_negative(difference(dim, index_dim))
        for number, (dim, index_dim) in enumerate(zip(x.shape, indices.shape, strict=True))
    )
    if not fits:
        raise ShapeError(
            f"{name}: the indices do not fit the tensor",
            facts=(("tensor", described(x)), ("indices", described(indices))),
            advice=f"Both need the same number of axes, and along axes other than {axis} the "
            "indices may not be longer.",
        )


def _first(x: Tensor, shape: Shape, but: int | None = None) -> Tensor:
    """The first elements of a tensor along each axis, except one."""
    for axis, extent in enumerate(shape):
        if axis != but and x.shape[axis] != extent:
            x = slice_axis(x, axis, 0, extent)
    return x


@checked
def gather(x: TensorLike, indices: TensorLike, axis: int) -> Tensor:
    """Elements of x: along one axis their coordinates are the indices, along others their own.

    Like `take_along_axis`, but along the other axes x may be longer than the indices; its further
    elements are not used.
    """
    x, indices = as_tensor(x), as_tensor(indices)
    axis = axis_of(x, axis)
    _check_indices_fit("gather", x, indices, axis)
    return ops.take_along_axis(_first(x, indices.shape, axis), indices, axis)


@checked
def scatter(
    x: TensorLike, indices: TensorLike, values: TensorLike, axis: int, combine: Combine = "set"
) -> Tensor:
    """x, with values put (or added) at the indices along one axis.

    Along the other axes a value keeps its coordinate. Where several values are put at one index,
    the last one counts, and only it gets a gradient.

    Args:
        x: any tensor.
        indices: integers, of as many axes as x. Along axes other than `axis` they may be shorter.
        values: a number, or a tensor that has a value for each index, at the same coordinates.
        axis: the axis of x that is indexed.
        combine: `"set"` to replace elements of x, `"add"` to add to them.
    """
    indices = as_tensor(indices)
    x, values = operands_of(x, values)
    axis = axis_of(x, axis)
    chosen = read("combine", Word(("set", "add")), combine)
    _check_indices_fit("scatter", x, indices, axis)
    size = x.shape[axis]
    check_indices_on_axis("scatter", indices, size)
    values = _values_of(values, indices)
    if chosen == "add":
        added = ops.scatter_along_axis(values, indices, size, axis)
        return x + _grown(added, x.shape)
    if indices.shape[axis] == 0:
        return x
    last = _last_writer(x, indices, axis)
    chosen_values = ops.take_along_axis(values, ops.maximum(last - 1, 0), axis)
    written = ops.greater(_grown(last, x.shape), 0)
    return ops.where(written, _grown(chosen_values, x.shape), x)


def _values_of(values: Tensor, indices: Tensor) -> Tensor:
    """A value for each index."""
    if not values.rank:
        return ops.broadcast_to(values, indices.shape)
    fits = values.rank == indices.rank and not any(
        is_negative(difference(dim, index_dim))
        for dim, index_dim in zip(values.shape, indices.shape, strict=True)
    )
    if not fits:
        raise ShapeError(
            "scatter: there is not a value for each index",
            facts=(("values", described(values)), ("indices", described(indices))),
            advice="Give values in the shape of the indices, or one number.",
        )
    return _first(values, indices.shape)


def _grown(x: Tensor, shape: Shape) -> Tensor:
    """The tensor with zeros after it, up to a shape."""
    missing = tuple(difference(dim, own) for dim, own in zip(shape, x.shape, strict=True))
    none = (0,) * x.rank
    return padded(x, none, missing, none, 0)


def _last_writer(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """For each element of x the number of its last value along the axis, from 1; 0 for none.

    After a stable sort, the last index among equal ones is followed by another index.
    """
    size = x.shape[axis]
    if indices.op is CONSTANT and isinstance(size, int):
        array: Array = indices.attributes["value"].array
        writers = np.zeros((*array.shape[:axis], size, *array.shape[axis + 1 :]), np.int32)
        moved = np.moveaxis(writers, axis, 0)
        coordinates = np.indices(moved.shape[1:])
        for number, row in enumerate(np.moveaxis(array, axis, 0)):
            moved[(row, *coordinates)] = number + 1
        return constant(writers)
    last = ops.element_count(x, axis, int64) - 1
    # Narrow keys are sorted faster.
    inside = ops.cast(ops.maximum(ops.minimum(ops.cast(indices, int64), last), 0), int32)
    order = apply(ORDER, inside, axis=axis, descending=False)
    ordered = ops.take_along_axis(inside, order, axis)
    following = slice_axis(ordered, axis, 1, ordered.shape[axis])
    end = (*ordered.shape[:axis], 1, *ordered.shape[axis + 1 :])
    following = ops.concat([following, ops.broadcast_to(constant(-1, int32), end)], axis)
    number = ops.where(ops.not_equal(ordered, following), order + 1, 0)
    return ops.scatter_along_axis(number, ordered, size, axis)


@checked
def masked_fill(x: TensorLike, mask: TensorLike, value: TensorLike) -> Tensor:
    """The value where the mask holds, x elsewhere; no gradient flows to x where the mask holds."""
    return ops.where(mask, value, x)


@checked
def bincount(x: TensorLike, size: int, weights: TensorLike = 1) -> Tensor:
    """How often each number from 0 to size - 1 occurs in x, [size]; other numbers do not count.

    Args:
        x: integers of any shape; all axes are counted together, the batch too.
        size: the number of results.
        weights: what each number counts; their shape broadcasts to the shape of x. Results are
            int64, or floats if weights are.
    """
    x, extent = as_tensor(x), read("size", whole(1), size)
    check_indices("bincount", x)
    x = ops.cast(x, int64)
    counted = ops.logical_and(x >= 0, x < extent)
    values = ops.where(counted, ops.broadcast_to(summable(weights), x.shape), 0)
    indices = ops.where(counted, x, 0)
    return ops.scatter_add(ops.reshape(values, (-1,)), ops.reshape(indices, (-1,)), extent)
