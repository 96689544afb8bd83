"""Ops that take a part of a tensor, or put it into a larger one: slice, getitem, pad.

A slice with steps and a pad with gaps between the elements are each other's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from types import EllipsisType
from typing import Any, SupportsIndex, cast

import numpy as np

from lamina.calls import checked_as_given as checked
from lamina.errors import DTypeError, LaminaError, ShapeError
from lamina.graph import Attributes, Op, Sample, Tensor, apply, described, located, operator
from lamina.graph.attributes import Element, Many, whole
from lamina.graph.kinds import LARGEST, Extent
from lamina.ops.arguments import as_tensor, pairs_of, read, refused
from lamina.ops.lowering_rules import Coordinates, Movement, Pull, select_within
from lamina.ops.movement import flip, reshape
from lamina.program.index import Index
from lamina.program.scalar import Bound, Literal, Scalar
from lamina.shapes import Array, Dim, DType, Shape, Size, add_dims, as_whole, scale_dim, static

# slice --------------------------------------------------------------------------------------------


def _difference(left: Dim, right: Dim) -> Dim:
    return add_dims(left, scale_dim(right, -1))


def _is_negative(dim: Dim) -> bool:
    """Whether the dimension is below zero; one that depends on the batch is checked when bound."""
    return dim < 0 if isinstance(dim, int) else dim.coefficient < 0


def _slice_extent(start: Dim, stop: Dim, step: int) -> Dim | None:
    """The number of indices start, start + step, .. below stop; None if there is no such `Dim`."""
    length = _difference(stop, start)
    if _is_negative(length):
        return None
    if isinstance(length, int):
        return -(-length // step)
    if length.coefficient % step:
        return None
    return Size(length.coefficient // step, -(-length.offset // step))


def _infer_slice(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    (x,) = operands
    shape: list[Dim] = []
    ranges = zip(attributes["starts"], attributes["stops"], attributes["steps"], strict=True)
    for axis, (dim, (start, stop, step)) in enumerate(zip(x.shape, ranges, strict=True)):
        extent = _slice_extent(start, stop, step)
        if extent is None or _is_negative(start) or _is_negative(_difference(dim, stop)):
            raise ShapeError(
                f"slice: axis {axis} has no range {start}:{stop}:{step}",
                facts=(("tensor", described(x)), ("range", f"{start}:{stop}:{step}")),
                advice="A range must be within its axis. Along the batch, the step must divide "
                "every batch size.",
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
    attributes={
        "starts": Many(Extent(-LARGEST), of_each_axis=True),
        "stops": Many(Extent(-LARGEST), of_each_axis=True),
        "steps": Many(whole(1), of_each_axis=True),
    },
)


def _slice(x: Tensor, starts: Shape, stops: Shape, steps: tuple[int, ...]) -> Tensor:
    whole = starts == (0,) * x.rank and stops == x.shape and steps == (1,) * x.rank
    return x if whole else apply(SLICE, x, starts=starts, stops=stops, steps=steps)


def slice_axis(x: Tensor, axis: int, start: Dim, stop: Dim) -> Tensor:
    """The slice start:stop along one axis, whole along the others."""
    starts, stops = [0] * x.rank, list(x.shape)
    return _slice(
        x,
        (*starts[:axis], start, *starts[axis + 1 :]),
        (*stops[:axis], stop, *stops[axis + 1 :]),
        (1,) * x.rank,
    )


@operator
@checked
def getitem(x: Tensor, key: Any) -> Tensor:
    """Part of a tensor, as `x[key]` in NumPy: ints, slices with steps, `...` and None.

    Along an axis that depends on the batch, bounds are not clipped to the extent: `x[:5]` needs a
    batch of at least 5.

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
            start = _index_of(x, axis, entry)
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
    dots_at = entries.index(Ellipsis) if dots else len(entries)
    fill = (slice(None),) * (x.rank - named)
    whole: list[Any] = [*entries[:dots_at], *fill, *entries[dots_at + 1 :]]
    return [index(entry) if isinstance(entry, SupportsIndex) else entry for entry in whole]


def _out_of_range(x: Tensor, axis: int, found: str) -> LaminaError:
    return located(
        ShapeError(
            f"index {found} does not fit axis {axis}, which has extent {x.shape[axis]}",
            facts=(("tensor", described(x)), ("index", found)),
            advice="Indices count from 0, negative ones from the end. If the extent depends on the "
            "batch, the step must be 1, or the slice [::-1].",
        )
    )


def _index_of(x: Tensor, axis: int, entry: int | Size) -> Dim:
    dim = x.shape[axis]
    found = add_dims(dim, entry) if isinstance(entry, int) and entry < 0 else entry
    if _is_negative(found) or _is_negative(_difference(dim, add_dims(found, 1))):
        raise _out_of_range(x, axis, str(entry))
    return found


def _range_of(x: Tensor, axis: int, entry: slice[Any, Any, Any]) -> tuple[Dim, Dim, int]:
    """(start, stop, step) with start <= stop; the range is reversed if the step is negative."""
    dim = x.shape[axis]
    limits = _limit(x, entry.start), _limit(x, entry.stop)
    step = 1 if entry.step is None else as_whole(entry.step)
    if not step:
        raise _out_of_range(x, axis, _slice_text(entry))
    if isinstance(dim, int) and not any(isinstance(limit, Size) for limit in limits):
        chosen = range(*slice(*limits, step).indices(dim))
        if not chosen:
            return 0, 0, step
        return min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1]) + 1, step
    if step < 0 and (step != -1 or limits != (None, None)):
        raise _out_of_range(x, axis, _slice_text(entry))
    start, stop = (
        default if limit is None else add_dims(dim, limit) if _counts_back(limit) else limit
        for limit, default in zip(limits, (0, dim), strict=True)
    )
    return start, stop, step


def _limit(x: Tensor, limit: object) -> Any:
    """An end of a range: a whole number, a size, or None."""
    whole = as_whole(limit)
    if whole is None and not (limit is None or isinstance(limit, Size)):
        raise refused("an end of a slice", "a whole number, or nothing", limit)
    return limit if whole is None else whole


def _counts_back(limit: Any) -> bool:
    return isinstance(limit, int) and limit < 0


def _slice_text(entry: slice[Any, Any, Any]) -> str:
    ends = ("" if end is None else str(end) for end in (entry.start, entry.stop, entry.step))
    return ":".join(ends)


# pad ----------------------------------------------------------------------------------------------


def _spaced(extent: Dim, interior: int) -> Dim:
    """The extent after `interior` elements are inserted between every two neighbours."""
    return add_dims(scale_dim(extent, interior + 1), -interior) if extent != 0 else 0


def _infer_pad(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    (x,) = operands
    low, high = attributes["low"], attributes["high"]
    interior: tuple[int, ...] = attributes["interior"]
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
    spaced = [(n + max(n - 1, 0) * gap) for n, _, _, gap in rows]
    shape = [n + before + after for n, (_, before, after, _) in zip(spaced, rows, strict=True)]
    padded = np.full(shape, value, x.dtype)
    slices = [
        slice(before, before + n, gap + 1)
        for n, (_, before, _, gap) in zip(spaced, rows, strict=True)
    ]
    padded[tuple(slices)] = x
    return padded


def _pad_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    bounds: list[Bound] = []
    pulled: list[Index] = []
    shape = static(node.operands[0].shape)
    rows = zip(coordinates, shape, node.attributes["low"], node.attributes["interior"], strict=True)
    for coordinate, extent, before, gap in rows:
        shifted = coordinate - before
        bounds.append(Bound(shifted, 0, extent + max(extent - 1, 0) * gap))
        if gap:
            bounds.append(Bound(shifted % (gap + 1), 0, 1))
        pulled.append(shifted // (gap + 1))
    fill = Literal(node.attributes["value"], node.dtype)
    if 0 in shape:
        return fill
    return select_within(tuple(bounds), pull(0, tuple(pulled)), fill)


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
    attributes={
        "low": Many(Extent(), of_each_axis=True),
        "high": Many(Extent(), of_each_axis=True),
        "interior": Many(whole(0), of_each_axis=True),
        "value": Element(),
    },
)


def _pad(x: Tensor, low: Shape, high: Shape, interior: tuple[int, ...], value: float) -> Tensor:
    if not any((*low, *high, *interior)):
        return x
    return apply(PAD, x, low=low, high=high, interior=interior, value=value)


@checked
def pad(x: Tensor, widths: int | Sequence[int | tuple[int, int]], value: float = 0.0) -> Tensor:
    """Elements added before and after the tensor's.

    Args:
        x: any tensor.
        widths: for each axis the number of elements before and after, or one number for both; one
            number alone is for all axes.
        value: of the new elements.

    Raises:
        DefinitionError: if the widths are negative or not one pair for each axis, or x cannot
            hold the value.
    """
    x = as_tensor(x)
    pairs = pairs_of("widths", widths, x.rank)
    value = read("value", Element(), value, x)
    low, high = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    return _pad(x, low, high, (0,) * len(low), value)
