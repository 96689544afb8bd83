"""Ops that move elements and compute nothing: reshape, transpose, slice, pad, concat, flip.

None of them costs anything by itself: each becomes index arithmetic on the loads of whoever uses
its result.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import index
from types import EllipsisType
from typing import Any, SupportsIndex, cast

import numpy as np

from lamina.errors import DTypeError, LaminaError, ShapeError
from lamina.graph import Attributes, Op, Sample, Tensor, apply, described, located
from lamina.ops.arguments import as_tensor, axes_of, axis_of
from lamina.ops.lowering import (
    Coordinates,
    Decomposition,
    Movement,
    Pull,
    guarded,
    select_within,
)
from lamina.program.index import Index, constant_index, flatten, unflatten
from lamina.program.scalar import Bound, Literal, Scalar
from lamina.shapes import (
    Array,
    Dim,
    DType,
    Shape,
    Size,
    add_dims,
    divide_counts,
    element_count,
    normalise_axis,
    scale_dim,
    shape_text,
    static,
)

Inferred = tuple[Shape, DType]

# reshape ------------------------------------------------------------------------------------------


def _infer_reshape(operands: tuple[Tensor, ...], attributes: Attributes) -> Inferred:
    (x,) = operands
    shape: Shape = attributes["shape"]
    if element_count(x.shape) != element_count(shape):
        raise ShapeError(
            "reshape: the shapes hold different numbers of elements",
            facts=(("tensor", described(x)), ("new shape", shape_text(shape))),
            advice="Their products must be equal; -1 stands for one dimension that follows.",
        )
    return shape, x.dtype


def _reshape_reference(x: Array, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


def _reshape_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    offset = flatten(coordinates, static(node.shape))
    return pull(0, unflatten(offset, static(node.operands[0].shape)))


RESHAPE = Op(
    "reshape",
    _infer_reshape,
    lambda result, upstream: (reshape(upstream, result.operands[0].shape),),
    _reshape_reference,
    Movement(_reshape_scalar),
    (
        Sample(((2, 6),), {"shape": (3, 4)}),
        Sample(((2, 3, 5),), {"shape": (5, 1, 6)}),
        Sample(((1,),), {"shape": ()}),
        Sample(((0, 3),), {"shape": (3, 0, 2)}),
    ),
)


def reshape(x: Tensor, shape: int | Sequence[Dim]) -> Tensor:
    """The same elements, in the same order, with another shape.

    Args:
        x: any tensor.
        shape: the new dimensions; one may be -1 and follows from the others.

    Raises:
        ShapeError: if the numbers of elements differ.
    """
    x = as_tensor(x)
    wanted: Shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if -1 in wanted:
        wanted = _with_open_dimension(x, wanted)
    return x if wanted == x.shape else apply(RESHAPE, x, shape=wanted)


def _with_open_dimension(x: Tensor, wanted: Shape) -> Shape:
    place = wanted.index(-1)
    others = (*wanted[:place], *wanted[place + 1 :])
    missing = None
    if -1 not in others:
        missing = divide_counts(element_count(x.shape), element_count(others))
    if missing is None:
        raise located(
            ShapeError(
                "reshape: the dimension -1 cannot be found",
                facts=(("tensor", described(x)), ("new shape", shape_text(wanted))),
                advice="Write -1 once, and let the others divide the number of elements.",
            )
        )
    return (*wanted[:place], missing, *wanted[place + 1 :])


def expand_dims(x: Tensor, axes: int | Sequence[int]) -> Tensor:
    """New axes of extent 1; `axes` are their places in the result."""
    x = as_tensor(x)
    listed = [axes] if isinstance(axes, int) else list(axes)
    rank = x.rank + len(listed)
    places = {axis % rank for axis in listed if -rank <= axis < rank}
    if len(places) != len(listed):
        raise located(
            ShapeError(
                "expand_dims: the new axes do not fit",
                facts=(("tensor", described(x)), ("axes", str(axes))),
                advice=f"Name each once, from {-rank} to {rank - 1}.",
            )
        )
    old = iter(x.shape)
    return reshape(x, [1 if axis in places else next(old) for axis in range(rank)])


def squeeze(x: Tensor, axes: int | Sequence[int] | None = None) -> Tensor:
    """Without axes of extent 1: the ones named, or all there are.

    Raises:
        ShapeError: if a named axis has another extent.
    """
    x = as_tensor(x)
    named = axes_of(x, axes)
    wrong = [axis for axis in named if x.shape[axis] != 1]
    if axes is not None and wrong:
        raise located(
            ShapeError(
                f"squeeze: axis {wrong[0]} does not have extent 1",
                facts=(("tensor", described(x)), ("axes", str(axes))),
                advice="Only axes of extent 1 can be dropped; use reshape or a reduction.",
            )
        )
    dropped = set(named) - set(wrong)
    return reshape(x, [dim for axis, dim in enumerate(x.shape) if axis not in dropped])


# transpose ----------------------------------------------------------------------------------------


def _infer_transpose(operands: tuple[Tensor, ...], attributes: Attributes) -> Inferred:
    (x,) = operands
    axes: tuple[int, ...] = attributes["axes"]
    if sorted(axes) != list(range(x.rank)):
        raise ShapeError(
            "transpose: the axes are no permutation",
            facts=(("tensor", described(x)), ("axes", str(axes))),
            advice=f"Name each axis from 0 to {x.rank - 1} once.",
        )
    return tuple(x.shape[axis] for axis in axes), x.dtype


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes.index(axis) for axis in range(len(axes)))


def _transpose_reference(x: Array, axes: tuple[int, ...]) -> Array:
    return x.transpose(axes)


def _transpose_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    return pull(0, tuple(coordinates[place] for place in _inverse(node.attributes["axes"])))


TRANSPOSE = Op(
    "transpose",
    _infer_transpose,
    lambda result, upstream: (transpose(upstream, _inverse(result.attributes["axes"])),),
    _transpose_reference,
    Movement(_transpose_scalar),
    (
        Sample(((2, 3),), {"axes": (1, 0)}),
        Sample(((2, 1, 3, 5),), {"axes": (2, 0, 3, 1)}),
        Sample(((0, 3),), {"axes": (1, 0)}),
    ),
)


def transpose(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in another order: axis i of the result is axis `axes[i]` of x; None reverses them.

    Raises:
        ShapeError: if the axes are no permutation.
    """
    x = as_tensor(x)
    order = (
        tuple(reversed(range(x.rank))) if axes is None else tuple(axis_of(x, axis) for axis in axes)
    )
    return x if order == tuple(range(x.rank)) else apply(TRANSPOSE, x, axes=order)


# slice --------------------------------------------------------------------------------------------


def _difference(left: Dim, right: Dim) -> Dim:
    return add_dims(left, scale_dim(right, -1))


def _is_negative(dim: Dim) -> bool:
    """Whether the dimension is below zero; one that depends on the batch is checked when bound."""
    return dim < 0 if isinstance(dim, int) else dim.coefficient < 0


def _slice_extent(start: Dim, stop: Dim, step: int) -> Dim | None:
    """The number of places start, start + step, .. before stop; None if it cannot be said."""
    length = _difference(stop, start)
    if _is_negative(length):
        return None
    if isinstance(length, int):
        return -(-length // step)
    if length.coefficient % step:
        return None
    return Size(length.coefficient // step, -(-length.offset // step))


def _infer_slice(operands: tuple[Tensor, ...], attributes: Attributes) -> Inferred:
    (x,) = operands
    shape: list[Dim] = []
    ranges = zip(attributes["starts"], attributes["stops"], attributes["steps"], strict=True)
    for axis, (dim, (start, stop, step)) in enumerate(zip(x.shape, ranges, strict=True)):
        extent = _slice_extent(start, stop, step)
        if extent is None or _is_negative(start) or _is_negative(_difference(dim, stop)):
            raise ShapeError(
                f"slice: axis {axis} has no range {start}:{stop}:{step}",
                facts=(("tensor", described(x)), ("range", f"{start}:{stop}:{step}")),
                advice="A range must lie within its axis; with a step, a batch must divide by it.",
            )
        shape.append(extent)
    return tuple(shape), x.dtype


def _slice_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    (x,) = result.operands
    starts: Shape = result.attributes["starts"]
    steps: tuple[int, ...] = result.attributes["steps"]
    high: list[Dim] = []
    for dim, extent, start, step in zip(x.shape, result.shape, starts, steps, strict=True):
        end = add_dims(start, _spaced(extent, step - 1))
        high.append(_difference(dim, end))
    interior = tuple(step - 1 for step in steps)
    return (_pad(upstream, starts, tuple(high), interior, 0.0),)


def _slice_reference(
    x: Array, starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]
) -> Array:
    return x[tuple(map(slice, starts, stops, steps))]


def _slice_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    starts, steps = node.attributes["starts"], node.attributes["steps"]
    rows = zip(coordinates, starts, steps, strict=True)
    return pull(0, tuple(c * step + start for c, start, step in rows))


SLICE = Op(
    "slice",
    _infer_slice,
    _slice_gradient,
    _slice_reference,
    Movement(_slice_scalar),
    (
        Sample(((5, 7),), {"starts": (1, 0), "stops": (4, 7), "steps": (1, 3)}),
        Sample(((6,),), {"starts": (1,), "stops": (6,), "steps": (2,)}),
        Sample(((3, 4),), {"starts": (1, 2), "stops": (1, 4), "steps": (1, 1)}),
        Sample(((1, 9),), {"starts": (0, 2), "stops": (1, 8), "steps": (1, 5)}),
    ),
)


def _slice(x: Tensor, starts: Shape, stops: Shape, steps: tuple[int, ...]) -> Tensor:
    whole = starts == (0,) * x.rank and stops == x.shape and steps == (1,) * x.rank
    return x if whole else apply(SLICE, x, starts=starts, stops=stops, steps=steps)


def _slice_axis(x: Tensor, axis: int, start: Dim, stop: Dim) -> Tensor:
    starts, stops = [0] * x.rank, list(x.shape)
    return _slice(
        x,
        (*starts[:axis], start, *starts[axis + 1 :]),
        (*stops[:axis], stop, *stops[axis + 1 :]),
        (1,) * x.rank,
    )


def getitem(x: Tensor, key: Any) -> Tensor:
    """Part of a tensor, as `x[key]` in NumPy: ints, slices with steps, `...` and None.

    Along an axis that depends on the batch, bounds are not cut to the extent: `x[:5]` needs a batch
    of at least 5.

    Raises:
        ShapeError: if there are too many indices, or one is out of range.
        DTypeError: for index arrays; those are for `take`.
    """
    x = as_tensor(x)
    entries = _whole_key(x, key)
    starts: list[Dim] = []
    stops: list[Dim] = []
    steps: list[int] = []
    flipped: list[int] = []
    shape: list[Dim | None] = []  # None: the next dimension of the sliced tensor
    keep: list[bool] = []
    for entry in entries:
        axis = len(starts)
        if entry is None:
            shape.append(1)
            continue
        if isinstance(entry, slice):
            start, stop, step = _range_of(x, axis, entry)
            if step < 0:
                flipped.append(axis)
            shape.append(None)
        else:
            start = _place_of(x, axis, entry)
            stop, step = add_dims(start, 1), 1
        keep.append(isinstance(entry, slice))
        starts.append(start)
        stops.append(stop)
        steps.append(abs(step))
    part = flip(_slice(x, tuple(starts), tuple(stops), tuple(steps)), flipped)
    kept = iter([dim for dim, kept in zip(part.shape, keep, strict=True) if kept])
    return reshape(part, [next(kept) if dim is None else dim for dim in shape])


def _whole_key(x: Tensor, key: Any) -> list[slice | int | Size | None]:
    """The key with `...` replaced, and one entry for each axis."""
    entries: tuple[Any, ...] = cast("tuple[Any, ...]", key) if isinstance(key, tuple) else (key,)
    kinds = (int, np.integer, slice, EllipsisType, Size, type(None))
    for entry in entries:
        if not isinstance(entry, kinds) or isinstance(entry, bool):
            raise located(
                DTypeError(
                    "a tensor can be indexed with ints, slices, ... and None only",
                    facts=(("tensor", described(x)), ("found", type(entry).__name__)),
                    advice="Use ops.take(x, indices, axis) for an array of indices, and "
                    "ops.where(condition, a, b) for a mask.",
                )
            )
    named = sum(entry is not None and entry is not Ellipsis for entry in entries)
    dots = sum(entry is Ellipsis for entry in entries)
    if named > x.rank or dots > 1:
        raise located(
            ShapeError(
                "too many indices",
                facts=(("tensor", described(x)), ("found", f"{named} indices, {dots} times ...")),
                advice=f"The tensor has {x.rank} axes; write ... at most once.",
            )
        )
    place = entries.index(Ellipsis) if dots else len(entries)
    fill = (slice(None),) * (x.rank - named)
    whole: list[Any] = [*entries[:place], *fill, *entries[place + 1 :]]
    return [index(entry) if isinstance(entry, SupportsIndex) else entry for entry in whole]


def _out_of_range(x: Tensor, axis: int, found: str) -> LaminaError:
    return located(
        ShapeError(
            f"index {found} does not fit axis {axis}, which has extent {x.shape[axis]}",
            facts=(("tensor", described(x)), ("index", found)),
            advice="Indices count from 0; negative ones from the end. Steps other than 1 need an "
            "extent that does not depend on the batch, or [::-1].",
        )
    )


def _place_of(x: Tensor, axis: int, entry: int | Size) -> Dim:
    dim = x.shape[axis]
    place = add_dims(dim, entry) if isinstance(entry, int) and entry < 0 else entry
    if _is_negative(place) or _is_negative(_difference(dim, add_dims(place, 1))):
        raise _out_of_range(x, axis, str(entry))
    return place


def _range_of(x: Tensor, axis: int, entry: slice[Any, Any, Any]) -> tuple[Dim, Dim, int]:
    """(start, stop, step) with start <= stop; a negative step says that the range is reversed."""
    dim = x.shape[axis]
    step = 1 if entry.step is None else int(entry.step)
    if step == 0:
        raise _out_of_range(x, axis, _slice_text(entry))
    limits = (entry.start, entry.stop)
    if isinstance(dim, int) and not any(isinstance(limit, Size) for limit in limits):
        places = range(*entry.indices(dim))
        if not places:
            return 0, 0, step
        return min(places[0], places[-1]), max(places[0], places[-1]) + 1, step
    if step < 0 and (step != -1 or limits != (None, None)):
        raise _out_of_range(x, axis, _slice_text(entry))
    start, stop = (
        default if limit is None else add_dims(dim, limit) if _counts_back(limit) else limit
        for limit, default in zip(limits, (0, dim), strict=True)
    )
    return start, stop, step


def _counts_back(limit: Any) -> bool:
    return isinstance(limit, int) and limit < 0


def _slice_text(entry: slice[Any, Any, Any]) -> str:
    ends = ("" if end is None else str(end) for end in (entry.start, entry.stop, entry.step))
    return ":".join(ends)


# pad ----------------------------------------------------------------------------------------------


def _spaced(extent: Dim, interior: int) -> Dim:
    """The extent with that many elements put between every two neighbours."""
    return add_dims(scale_dim(extent, interior + 1), -interior) if extent != 0 else 0


def _infer_pad(operands: tuple[Tensor, ...], attributes: Attributes) -> Inferred:
    (x,) = operands
    low, high = attributes["low"], attributes["high"]
    interior: tuple[int, ...] = attributes["interior"]
    if len(low) != x.rank or any(map(_is_negative, (*low, *high, *interior))):
        raise ShapeError(
            "pad: the widths do not fit",
            facts=(("tensor", described(x)), ("low", str(low)), ("high", str(high))),
            advice="Give two widths of at least 0 for each axis; use x[..] to cut elements off.",
        )
    return tuple(
        add_dims(add_dims(before, after), _spaced(dim, gap))
        for dim, before, after, gap in zip(x.shape, low, high, interior, strict=True)
    ), x.dtype


def _pad_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    low: Shape = result.attributes["low"]
    interior: tuple[int, ...] = result.attributes["interior"]
    rows = zip(low, result.operands[0].shape, interior, strict=True)
    stops = tuple(add_dims(before, _spaced(dim, gap)) for before, dim, gap in rows)
    return (_slice(upstream, low, stops, tuple(gap + 1 for gap in interior)),)


def _pad_reference(
    x: Array,
    low: tuple[int, ...],
    high: tuple[int, ...],
    interior: tuple[int, ...],
    value: float,
) -> Array:
    rows = list(zip(x.shape, low, high, interior, strict=True))
    inner = [(n + max(n - 1, 0) * gap) for n, _, _, gap in rows]
    shape = [n + before + after for n, (_, before, after, _) in zip(inner, rows, strict=True)]
    padded = np.full(shape, value, x.dtype)
    places = [
        slice(before, before + n, gap + 1)
        for n, (_, before, _, gap) in zip(inner, rows, strict=True)
    ]
    padded[tuple(places)] = x
    return padded


def _pad_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    bounds: list[Bound] = []
    places: list[Index] = []
    shape = static(node.operands[0].shape)
    rows = zip(coordinates, shape, node.attributes["low"], node.attributes["interior"], strict=True)
    for coordinate, extent, before, gap in rows:
        place = coordinate - before
        bounds.append(Bound(place, 0, extent + max(extent - 1, 0) * gap))
        if gap:
            bounds.append(Bound(place % (gap + 1), 0, 1))
        places.append(place // (gap + 1))
    fill = Literal(node.attributes["value"], node.dtype)
    if 0 in shape:
        return fill
    return select_within(tuple(bounds), pull(0, tuple(places)), fill)


PAD = Op(
    "pad",
    _infer_pad,
    _pad_gradient,
    _pad_reference,
    Movement(_pad_scalar),
    (
        Sample(((2, 3),), {"low": (1, 0), "high": (0, 2), "interior": (0, 0), "value": 0.0}),
        Sample(
            ((3, 1, 4),),
            {"low": (0, 2, 1), "high": (1, 0, 3), "interior": (2, 1, 1), "value": -1.5},
        ),
        Sample(((0, 2),), {"low": (1, 0), "high": (2, 1), "interior": (1, 0), "value": 0.0}),
    ),
)


def _pad(x: Tensor, low: Shape, high: Shape, interior: tuple[int, ...], value: float) -> Tensor:
    if not any((*low, *high, *interior)):
        return x
    number = value if x.dtype.is_float else (bool if x.dtype.kind == "bool" else int)(value)
    return apply(PAD, x, low=low, high=high, interior=interior, value=number)


def pad(x: Tensor, widths: Sequence[int | tuple[int, int]], value: float = 0.0) -> Tensor:
    """Elements put before and after those that are there.

    Args:
        x: any tensor.
        widths: for each axis (how many before, how many after), or one number for both.
        value: of the new elements.

    Raises:
        ShapeError: if the widths are negative or not one pair for each axis.
    """
    x = as_tensor(x)
    pairs = [(width, width) if isinstance(width, int) else width for width in widths]
    low, high = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    return _pad(x, low, high, (0,) * len(low), value)


# concat and split ---------------------------------------------------------------------------------


def _offsets(extents: Sequence[Dim]) -> list[Dim]:
    """Where each part starts, and where the last one ends."""
    offsets: list[Dim] = [0]
    for extent in extents:
        offsets.append(add_dims(offsets[-1], extent))
    return offsets


def _infer_concat(operands: tuple[Tensor, ...], attributes: Attributes) -> Inferred:
    axis: int = attributes["axis"]
    first = operands[0]
    for number, x in enumerate(operands):
        facts = (("tensor 0", described(first)), (f"tensor {number}", described(x)))
        if x.dtype != first.dtype:
            raise DTypeError(
                "concat: the tensors differ in dtype",
                facts=facts,
                advice="Bring them to one dtype with ops.cast.",
            )
        if _without(x.shape, axis) != _without(first.shape, axis):
            raise ShapeError(
                f"concat: the tensors differ in another axis than {axis}",
                facts=facts,
                advice=f"All dimensions but that of axis {axis} must be equal.",
            )
    total = _offsets([x.shape[axis] for x in operands])[-1]
    return (*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], -1, *shape[axis + 1 :])


def _concat_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    axis: int = result.attributes["axis"]
    extents = [x.shape[axis] for x in result.operands]
    return tuple(split(upstream, extents, axis))


def _concat_reference(*parts: Array, axis: int) -> Array:
    return np.concatenate(parts, axis)


def _concat_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    axis: int = node.attributes["axis"]
    extents = static(tuple(x.shape[axis] for x in node.operands))
    offsets = static(tuple(_offsets(extents)))
    result: Scalar | None = None
    for number, extent in reversed(list(enumerate(extents))):
        if extent:
            place = coordinates[axis] - offsets[number]
            within = (Bound(place, 0, extent),)
            inside = pull(number, (*coordinates[:axis], place, *coordinates[axis + 1 :]))
            # What is in no other part is in the last one, so that needs no condition.
            if result is None:
                result = guarded(inside, within)
            else:
                result = select_within(within, inside, result)
    return Literal(0, node.dtype) if result is None else result


CONCAT = Op(
    "concat",
    _infer_concat,
    _concat_gradient,
    _concat_reference,
    Movement(_concat_scalar),
    (
        Sample(((2, 3), (2, 1), (2, 4)), {"axis": 1}),
        Sample(((1, 3), (0, 3), (2, 3)), {"axis": 0}),
        Sample(((3,),), {"axis": 0}),
    ),
)


def concat(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors joined one after the other along an axis.

    Raises:
        ShapeError: if there are none, or they differ in another axis.
        DTypeError: if they differ in dtype.
    """
    listed = [as_tensor(x) for x in tensors]
    if not listed:
        raise located(ShapeError("concat: there are no tensors", advice="Give at least one."))
    place = axis_of(listed[0], axis)
    if any(x.rank != listed[0].rank for x in listed):
        facts = [(f"tensor {number}", described(x)) for number, x in enumerate(listed)]
        raise located(
            ShapeError(
                "concat: the tensors differ in their number of axes",
                facts=tuple(facts),
                advice="Add axes with ops.expand_dims, or use ops.stack for a new axis.",
            )
        )
    return listed[0] if len(listed) == 1 else apply(CONCAT, *listed, axis=place)


def _infer_stack(operands: tuple[Tensor, ...], attributes: Attributes) -> Inferred:
    axis: int = attributes["axis"]
    first = operands[0]
    for number, x in enumerate(operands):
        if (x.shape, x.dtype) != (first.shape, first.dtype):
            error = ShapeError if x.shape != first.shape else DTypeError
            raise error(
                "stack: the tensors differ",
                facts=(("tensor 0", described(first)), (f"tensor {number}", described(x))),
                advice="All must have one shape and one dtype.",
            )
    return (*first.shape[:axis], len(operands), *first.shape[axis:]), first.dtype


def _stack_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    return unstack(upstream, result.attributes["axis"])


def _stack_reference(*parts: Array, axis: int) -> Array:
    return np.stack(parts, axis)


def _stack_build(node: Tensor) -> Tensor:
    axis: int = node.attributes["axis"]
    return concat([expand_dims(x, axis) for x in node.operands], axis)


STACK = Op(
    "stack",
    _infer_stack,
    _stack_gradient,
    _stack_reference,
    Decomposition(_stack_build),
    (
        Sample(((2, 3), (2, 3)), {"axis": 0}),
        Sample(((2, 3), (2, 3), (2, 3)), {"axis": 2}),
        Sample(((1,),), {"axis": 1}),
    ),
)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis.

    Raises:
        ShapeError, DTypeError: if there are none, or they differ.
    """
    listed = [as_tensor(x) for x in tensors]
    if not listed:
        raise located(ShapeError("stack: there are no tensors", advice="Give at least one."))
    return apply(STACK, *listed, axis=normalise_axis(axis, listed[0].rank + 1))


def split(x: Tensor, sizes: int | Sequence[Dim], axis: int) -> tuple[Tensor, ...]:
    """A tensor cut along an axis.

    Args:
        x: any tensor.
        sizes: the extents of the parts, or how many equal parts.
        axis: the axis that is cut.

    Raises:
        ShapeError: if the sizes do not add up to the extent of the axis.
    """
    x = as_tensor(x)
    axis = axis_of(x, axis)
    dim = x.shape[axis]
    if isinstance(sizes, int):
        part = divide_counts(element_count((dim,)), (sizes,)) if sizes > 0 else None
        extents: list[Dim] = [] if part is None else [part] * sizes
    else:
        extents = list(sizes)
    offsets = _offsets(extents)
    if offsets[-1] != dim or not extents:
        raise located(
            ShapeError(
                f"split: axis {axis} of extent {dim} cannot be cut like this",
                facts=(("tensor", described(x)), ("sizes", str(sizes))),
                advice="The sizes must add up to the extent; a number of parts must divide it.",
            )
        )
    return tuple(_slice_axis(x, axis, start, stop) for start, stop in itertools.pairwise(offsets))


def unstack(x: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
    """The tensors that lie along an axis, without that axis.

    Raises:
        ShapeError: if the extent of the axis depends on the batch.
    """
    x = as_tensor(x)
    axis = axis_of(x, axis)
    dim = x.shape[axis]
    if not isinstance(dim, int):
        raise located(
            ShapeError(
                f"unstack: the extent of axis {axis} depends on the batch",
                facts=(("tensor", described(x)),),
                advice="Choose an axis of fixed extent, or treat the batch as a whole.",
            )
        )
    return tuple(squeeze(_slice_axis(x, axis, i, i + 1), axis) for i in range(dim))


# flip ---------------------------------------------------------------------------------------------


def _infer_same(operands: tuple[Tensor, ...], _: Attributes) -> Inferred:
    return operands[0].shape, operands[0].dtype


def _flip_reference(x: Array, axes: tuple[int, ...]) -> Array:
    return np.flip(x, axes)


def _flip_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    axes = node.attributes["axes"]
    extents = static(node.shape)
    return pull(
        0,
        tuple(
            constant_index(extents[axis] - 1) - place if axis in axes else place
            for axis, place in enumerate(coordinates)
        ),
    )


FLIP = Op(
    "flip",
    _infer_same,
    lambda result, upstream: (flip(upstream, result.attributes["axes"]),),
    _flip_reference,
    Movement(_flip_scalar),
    (Sample(((3, 4),), {"axes": (1,)}), Sample(((2, 1, 5),), {"axes": (0, 1, 2)})),
)


def flip(x: Tensor, axes: int | Sequence[int] | None = None) -> Tensor:
    """The elements in reverse order along the axes; None means all axes."""
    x = as_tensor(x)
    named = axes_of(x, axes)
    return apply(FLIP, x, axes=named) if named else x


OPS = (RESHAPE, TRANSPOSE, SLICE, PAD, CONCAT, STACK, FLIP)
