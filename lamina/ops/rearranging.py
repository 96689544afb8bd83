"""Ops that rearrange a tensor or repeat it, composed of slices, joins, reshapes and broadcasts.

All are index arithmetic in the loads of the ops that read their results, except `repeat` with a
count for each element, which is a `take`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from lamina.base.shapes import DTypeLike, add_dims, as_whole, bool_, float32, scale_dim, static
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import ElementType, Number, Word, entries_of
from lamina.errors import ShapeError
from lamina.graph import Tensor, TensorLike, constant, described
from lamina.graph.attributes import whole
from lamina.ops import basic as ops
from lamina.ops.arguments import (
    as_tensor,
    axis_of,
    dtype_of,
    each_of,
    listed_axes,
    pairs_of,
    read,
    refused,
    tensors_of,
    whole_of,
)
from lamina.ops.slicing import padded, slice_axis, sliced
from lamina.ops.windows import advice_on_extents

__all__ = ["chunk", "diag_embed", "diagonal", "eye", "linspace", "meshgrid", "moveaxis", "repeat"]
__all__ += ["pad_with", "roll", "rot90", "swapaxes", "tile", "trace", "tril", "triu"]

# Order --------------------------------------------------------------------------------------------


@checked
def swapaxes(x: TensorLike, first: int, second: int) -> Tensor:
    """Two axes exchanged."""
    x = as_tensor(x)
    former, latter = axis_of(x, first), axis_of(x, second)
    order = list(range(x.rank))
    order[former], order[latter] = latter, former
    return ops.transpose(x, order)


@checked
def moveaxis(
    x: TensorLike, source: int | Sequence[int], destination: int | Sequence[int]
) -> Tensor:
    """Axes moved to other numbers; the others keep their order."""
    x = as_tensor(x)
    sources = [axis_of(x, axis) for axis in listed_axes(source, x)]
    targets = [axis_of(x, axis) for axis in listed_axes(destination, x)]
    if len(set(sources)) < len(sources) or len(set(targets)) != len(sources):
        raise ShapeError(
            "moveaxis: the axes do not fit",
            facts=(
                ("tensor", described(x)),
                ("source", str(source)),
                ("destination", str(destination)),
            ),
            advice="Name as many destinations as sources, each once.",
        )
    order = [axis for axis in range(x.rank) if axis not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return ops.transpose(x, order)


@checked
def roll(
    x: TensorLike, shifts: int | Sequence[int], axes: int | Sequence[int] | None = None
) -> Tensor:
    """Elements moved along axes; those beyond the end come back at the beginning.

    Args:
        x: any tensor.
        shifts: numbers of elements, negative towards the beginning; one for each of the axes.
        axes: one axis or several; None means the tensor as one row.
    """
    x = as_tensor(x)
    if axes is None:
        row = ops.reshape(x, -1)
        return ops.reshape(_rolled(row, whole_of("shifts", shifts, _LEAST), 0), x.shape)
    named = [axis_of(x, axis) for axis in listed_axes(axes, x)]
    for axis, shift in zip(named, each_of("shifts", shifts, len(named), whole()), strict=True):
        x = _rolled(x, shift, axis)
    return x


_LEAST = -(2**31)


def _rolled(x: Tensor, shift: int, axis: int) -> Tensor:
    dim = x.shape[axis]
    if isinstance(dim, int):
        shift = shift % dim if dim else 0
    if not shift:
        return x
    start = add_dims(dim, -shift) if shift > 0 else -shift
    return ops.concat([slice_axis(x, axis, start, dim), slice_axis(x, axis, 0, start)], axis)


@checked
def rot90(x: TensorLike, count: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Rotated by 90 degrees so many times, from the first of two axes towards the second."""
    x = as_tensor(x)
    quarters = whole_of("count", count, _LEAST) % 4
    first, second = _two_axes("rot90", x, axes)
    if quarters == 2:
        return ops.flip(x, (first, second))
    if quarters == 1:
        return swapaxes(ops.flip(x, second), first, second)
    return ops.flip(swapaxes(x, first, second), second) if quarters else x


def _two_axes(name: str, x: Tensor, axes: Sequence[int]) -> tuple[int, int]:
    named = [axis_of(x, axis) for axis in listed_axes(axes, x)]
    if len(named) != 2 or named[0] == named[1]:
        raise ShapeError(
            f"{name}: two different axes are needed",
            facts=(("tensor", described(x)), ("axes", str(axes))),
            advice="For example axes=(0, 1).",
        )
    return named[0], named[1]


# Repetition ---------------------------------------------------------------------------------------


@checked
def tile(x: TensorLike, counts: int | Sequence[int]) -> Tensor:
    """The tensor repeated as a whole along each axis, as `numpy.tile`.

    Args:
        x: any tensor.
        counts: the number of copies along each of the last axes; more numbers than axes add axes.
    """
    x = as_tensor(x)
    entries = entries_of(counts)
    listed = [counts] if entries is None else list(entries)
    times = [whole_of("counts", entry) for entry in listed]
    times = [1] * (x.rank - len(times)) + times
    shape = (1,) * (len(times) - x.rank) + x.shape
    apart = [entry for dim in shape for entry in (1, dim)]
    repeated = [entry for count, dim in zip(times, shape, strict=True) for entry in (count, dim)]
    joined = [scale_dim(dim, count) for count, dim in zip(times, shape, strict=True)]
    return ops.reshape(ops.broadcast_to(ops.reshape(x, apart), repeated), joined)


@checked
def repeat(x: TensorLike, counts: int | Sequence[int], axis: int | None = None) -> Tensor:
    """Each element repeated along an axis, as `numpy.repeat`.

    Args:
        x: any tensor.
        counts: the number of copies of each element, or one number for each.
        axis: None means the tensor as one row.
    """
    x = as_tensor(x)
    if axis is None:
        x, axis = ops.reshape(x, -1), 0
    axis = axis_of(x, axis)
    count = as_whole(counts)
    if count is not None:
        count = whole_of("counts", counts)
        shape = (*x.shape[: axis + 1], count, *x.shape[axis + 1 :])
        joined = (*x.shape[:axis], scale_dim(x.shape[axis], count), *x.shape[axis + 1 :])
        return ops.reshape(ops.broadcast_to(ops.expand_dims(x, axis + 1), shape), joined)
    listed = entries_of(counts)
    if listed is None:
        raise refused("counts", "a whole number, or one for each element", counts)
    numbers = [whole_of("counts", entry) for entry in listed]
    if len(numbers) != x.shape[axis]:
        raise ShapeError(
            f"repeat: there must be a count for each element along axis {axis}",
            facts=(("tensor", described(x)), ("counts", f"{len(numbers)} numbers")),
        )
    return ops.take(x, np.repeat(np.arange(len(numbers)), numbers), axis)


@checked
def meshgrid(
    tensors: Sequence[TensorLike], indexing: Literal["ij", "xy"] = "ij"
) -> tuple[Tensor, ...]:
    """For vectors x, y, ..: their elements at each point of the grid x * y * ..

    Args:
        tensors: vectors, with one axis each.
        indexing: `"ij"`: axis i of the results is the axis of vector i; `"xy"`: the first two axes
            are exchanged.
    """
    vectors = tensors_of("tensors", tensors)
    order = read("indexing", Word(("ij", "xy")), indexing)
    for x in vectors:
        if x.rank != 1:
            raise ShapeError(
                "meshgrid: each tensor needs one axis",
                facts=(("found", described(x)),),
                advice="Use ops.reshape(x, -1).",
            )
    shape = [dim for x in vectors for dim in x.shape]
    grids: list[Tensor] = []
    for number, x in enumerate(vectors):
        alone = [dim if other == number else 1 for other, dim in enumerate(shape)]
        grids.append(ops.broadcast_to(ops.reshape(x, alone), shape))
    swapped = order == "xy" and len(vectors) > 1
    return tuple(swapaxes(x, 0, 1) if swapped else x for x in grids)


@checked
def chunk(x: TensorLike, count: int, axis: int = 0) -> tuple[Tensor, ...]:
    """A tensor split along an axis into at most `count` parts; only the last one may be smaller."""
    x = as_tensor(x)
    axis, count = axis_of(x, axis), whole_of("count", count, 1)
    dim = x.shape[axis]
    if not isinstance(dim, int):
        return ops.split(x, count, axis)
    size = max(-(-dim // count), 1)
    return ops.split(x, [min(size, dim - start) for start in range(0, dim, size)] or [0], axis)


# Matrices -----------------------------------------------------------------------------------------


def _triangle(
    x: TensorLike, offset: int, keeps: Callable[[TensorLike, TensorLike], Tensor]
) -> Tensor:
    """The elements whose column has a relation to the column of the diagonal; zero elsewhere."""
    x = as_tensor(x)
    if x.rank < 2:
        raise ShapeError(
            "a matrix needs two axes",
            facts=(("found", described(x)),),
            advice="Axes before the last two are batch axes.",
        )
    diagonal = ops.expand_dims(ops.arange(x.shape[-2]), 1) + whole_of("offset", offset, _LEAST)
    return ops.where(keeps(ops.arange(x.shape[-1]), diagonal), x, ops.cast(0, x.dtype))


@checked
def tril(x: TensorLike, offset: int = 0) -> Tensor:
    """The lower triangles of the matrices in the last two axes; zero elsewhere.

    Args:
        x: a tensor with at least two axes.
        offset: the offset of the last diagonal that is kept; positive ones are above the main
            diagonal.
    """
    return _triangle(x, offset, ops.less_equal)


@checked
def triu(x: TensorLike, offset: int = 0) -> Tensor:
    """The upper triangles of the matrices in the last two axes; zero elsewhere.

    Args:
        x: a tensor with at least two axes.
        offset: the offset of the first diagonal that is kept; positive ones are above the main
            diagonal.
    """
    return _triangle(x, offset, ops.greater_equal)


@checked
def diagonal(x: TensorLike, offset: int = 0, axes: Sequence[int] = (-2, -1)) -> Tensor:
    """The diagonals of the matrices along two axes, as the last axis of the result.

    Args:
        x: a tensor with at least two axes.
        offset: the offset of the diagonal; positive ones are above the main diagonal.
        axes: the axes of the rows and of the columns.
    """
    x = as_tensor(x)
    offset = whole_of("offset", offset, _LEAST)
    first, second = _two_axes("diagonal", x, axes)
    others = [axis for axis in range(x.rank) if axis not in (first, second)]
    rows, columns = x.shape[first], x.shape[second]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise ShapeError(
            "diagonal: an axis depends on the batch",
            facts=(("tensor", described(x)), ("axes", str(axes))),
            advice="Choose two axes of fixed extent.",
        )
    start = offset if offset >= 0 else -offset * columns
    count = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    kept = tuple(x.shape[axis] for axis in others)
    flat = ops.reshape(ops.transpose(x, [*others, first, second]), (*kept, rows * columns))
    if not count:
        return slice_axis(flat, -1 % flat.rank, 0, 0)
    stop = start + (count - 1) * (columns + 1) + 1
    none, ones = (0,) * len(kept), (1,) * len(kept)
    return sliced(flat, (*none, start), (*kept, stop), (*ones, columns + 1))


@checked
def diag_embed(x: TensorLike, offset: int = 0) -> Tensor:
    """Square matrices that have the last axis of x as a diagonal, and are zero elsewhere.

    Args:
        x: a tensor with at least one axis; the last one has a fixed extent.
        offset: the offset of the diagonal; positive ones are above the main diagonal.
    """
    x = as_tensor(x)
    offset = whole_of("offset", offset, _LEAST)
    count = x.shape[axis_of(x, -1)]
    if not isinstance(count, int):
        raise ShapeError(
            "diag_embed: the last axis depends on the batch",
            facts=(("tensor", described(x)),),
            advice="Choose an axis of fixed extent.",
        )
    size = count + max(offset, -offset)
    start = offset if offset >= 0 else -offset * size
    used = count + (count - 1) * size if count else 0
    none = (0,) * (x.rank - 1)
    interior = (*(0 for _ in none), size)
    after = size * size - start - used
    flat = padded(x, (*none, start), (*none, after), interior, 0.0)
    return ops.reshape(flat, (*x.shape[:-1], size, size))


@checked
def trace(x: TensorLike, offset: int = 0, axes: Sequence[int] = (-2, -1)) -> Tensor:
    """The sum of the diagonal of the matrices along two axes; see `diagonal`."""
    return ops.sum(diagonal(x, offset, axes), -1)


@checked
def eye(rows: int, columns: int | None = None, dtype: DTypeLike = float32) -> Tensor:
    """The identity matrix: 1 on the diagonal, 0 elsewhere."""
    height = whole_of("rows", rows)
    width = height if columns is None else whole_of("columns", columns)
    ones = ops.equal(ops.expand_dims(ops.arange(height), 1), ops.arange(width))
    element_type = dtype_of(dtype)
    return ones if element_type == bool_ else ops.cast(ones, element_type)


@checked
def linspace(start: float, stop: float, count: int, dtype: DTypeLike = float32) -> Tensor:
    """`count` numbers in equal steps from `start` to `stop`, both included."""
    first, last = (read(n, Number(), v) for n, v in (("start", start), ("stop", stop)))
    wanted = dtype_of(dtype, ElementType(("float",)))
    return constant(np.linspace(first, last, whole_of("count", count)), wanted)


# Padding with elements of the tensor itself -------------------------------------------------------

PadMode = Literal["constant", "reflect", "replicate", "circular"]


@checked
def pad_with(
    x: TensorLike,
    widths: int | Sequence[int | tuple[int, int]],
    mode: PadMode = "constant",
    value: float = 0.0,
) -> Tensor:
    """Elements added before and after the tensor's, by one of four rules.

    Args:
        x: any tensor.
        widths: the numbers of elements before and after each axis, or one number for both; one
            number alone is for all axes.
        mode: `"constant"`: `value`; `"reflect"`: the elements mirrored at the first and the last
            one, which are not repeated; `"replicate"`: the first and the last one;
            `"circular"`: the elements at the other end.
        value: the value of the new elements in mode `"constant"`.
    """
    x = as_tensor(x)
    if read("mode", Word(get_args(PadMode)), mode) == "constant":
        return ops.pad(x, widths, value)
    pairs = pairs_of("widths", widths, x.rank)
    for axis, (before, after) in enumerate(pairs):
        if before or after:
            x = _pad_axis(x, axis, before, after, mode)
    return x


def _pad_axis(x: Tensor, axis: int, before: int, after: int, mode: PadMode) -> Tensor:
    (extent,) = static((x.shape[axis],))
    most = extent - 1 if mode == "reflect" else extent
    if mode != "replicate" and max(before, after) > most:
        raise ShapeError(
            f"axis {axis} has too few elements for this padding",
            facts=(
                ("tensor", described(x)),
                ("expected", f"at most {most} on each side for mode {mode!r}"),
                ("found", f"{before} before, {after} after"),
            ),
            advice=advice_on_extents(x, "Pad less, or in another mode."),
        )

    def part(start: int, stop: int) -> Tensor:
        return slice_axis(x, axis, start, stop)

    def repeated(index: int, times: int) -> Tensor:
        shape = (*x.shape[:axis], times, *x.shape[axis + 1 :])
        return ops.broadcast_to(part(index, index + 1), shape)

    if mode == "reflect":
        first = ops.flip(part(1, before + 1), axis)
        last = ops.flip(part(extent - after - 1, extent - 1), axis)
    elif mode == "replicate":
        first, last = repeated(0, before), repeated(extent - 1, after)
    else:
        first, last = part(extent - before, extent), part(0, after)
    parts = ((first, before), (x, extent), (last, after))
    return ops.concat([tensor for tensor, width in parts if width], axis)
