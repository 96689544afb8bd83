"""Ops that take a part of a tensor, or put it into a larger one: slice, pad.

A slice with steps and a pad with gaps between the elements are each other's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.base.shapes import Array, Dim, Shape, Size, add_dims, scale_dim, static
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import LARGEST, Extent
from lamina.errors import ShapeError
from lamina.graph import Sample, Tensor, apply, described
from lamina.graph.attributes import Element, Many, whole
from lamina.ops.arguments import as_tensor, pairs_of, read
from lamina.ops.lowering_rules import Coordinates, Movement, Pull, select_within
from lamina.ops.records import Gradients, Typed, make_op
from lamina.program.index import Index
from lamina.program.scalar import Bound, Literal, Scalar

__all__ = ["pad"]


def difference(left: Dim, right: Dim) -> Dim:
    """Left - right."""
    return add_dims(left, scale_dim(right, -1))


def is_negative(dim: Dim) -> bool:
    """Whether the dimension is below zero; one that depends on the batch is checked when bound."""
    return dim < 0 if isinstance(dim, int) else dim.coefficient < 0


def _slice_extent(start: Dim, stop: Dim, step: int) -> Dim | None:
    """The number of indices start, start + step, .. below stop; None if there is no such `Dim`."""
    length = difference(stop, start)
    if is_negative(length):
        return None
    if isinstance(length, int):
        return -(-length // step)
    if length.coefficient % step:
        return None
    return Size(length.coefficient // step, -(-length.offset // step))


def _infer_slice(x: Tensor, starts: Shape, stops: Shape, steps: tuple[int, ...]) -> Typed:
    shape: list[Dim] = []
    ranges = zip(starts, stops, steps, strict=True)
    for axis, (dim, (start, stop, step)) in enumerate(zip(x.shape, ranges, strict=True)):
        extent = _slice_extent(start, stop, step)
        if extent is None or is_negative(start) or is_negative(difference(dim, stop)):
            raise ShapeError(
                f"slice: axis {axis} has no range {start}:{stop}:{step}",
                facts=(("tensor", described(x)), ("range", f"{start}:{stop}:{step}")),
                advice="A range must be within its axis. Along the batch, the step must divide "
                "every batch size.",
            )
        shape.append(extent)
    return tuple(shape), x.dtype


def _slice_gradient(
    x: Tensor, result: Tensor, upstream: Tensor, starts: Shape, steps: tuple[int, ...], **_: object
) -> Gradients:
    high: list[Dim] = []
    for dim, extent, start, step in zip(x.shape, result.shape, starts, steps, strict=True):
        end = add_dims(start, _spaced(extent, step - 1))
        high.append(difference(dim, end))
    interior = tuple(step - 1 for step in steps)
    return (padded(upstream, starts, tuple(high), interior, 0.0),)


def _slice_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    starts, steps = node.attributes["starts"], node.attributes["steps"]
    rows = zip(coordinates, starts, steps, strict=True)
    return pull(0, tuple(c * step + start for c, start, step in rows))


SLICE = make_op(
    "slice",
    _infer_slice,
    _slice_gradient,
    lambda x, starts, stops, steps: x[tuple(map(slice, starts, stops, steps))],
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


def sliced(x: Tensor, starts: Shape, stops: Shape, steps: tuple[int, ...]) -> Tensor:
    """The slice start:stop:step along each axis; x itself if it is the whole."""
    whole = starts == (0,) * x.rank and stops == x.shape and steps == (1,) * x.rank
    return x if whole else apply(SLICE, x, starts=starts, stops=stops, steps=steps)


def slice_axis(x: Tensor, axis: int, start: Dim, stop: Dim) -> Tensor:
    """The slice start:stop along one axis, whole along the others."""
    starts: list[Dim] = [0] * x.rank
    stops = list(x.shape)
    starts[axis], stops[axis] = start, stop
    return sliced(x, tuple(starts), tuple(stops), (1,) * x.rank)


def _spaced(extent: Dim, interior: int) -> Dim:
    """The extent after `interior` elements are inserted between every two neighbours."""
    return add_dims(scale_dim(extent, interior + 1), -interior) if extent != 0 else 0


def _infer_pad(x: Tensor, low: Shape, high: Shape, interior: tuple[int, ...], **_: object) -> Typed:
    return tuple(
        add_dims(add_dims(before, after), _spaced(dim, gap))
        for dim, before, after, gap in zip(x.shape, low, high, interior, strict=True)
    ), x.dtype


def _pad_gradient(
    x: Tensor, _: Tensor, upstream: Tensor, low: Shape, interior: tuple[int, ...], **__: object
) -> Gradients:
    rows = zip(low, x.shape, interior, strict=True)
    stops = tuple(add_dims(before, _spaced(dim, gap)) for before, dim, gap in rows)
    return (sliced(upstream, low, stops, tuple(gap + 1 for gap in interior)),)


def _pad_reference(
    x: Array, low: tuple[int, ...], high: tuple[int, ...], interior: tuple[int, ...], value: float
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


PAD = make_op(
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


def padded(x: Tensor, low: Shape, high: Shape, interior: tuple[int, ...], value: float) -> Tensor:
    """x with `low` elements before, `high` after, and `interior` between neighbours."""
    if not any((*low, *high, *interior)):
        return x
    return apply(PAD, x, low=low, high=high, interior=interior, value=value)


@checked
def pad(x: Tensor, widths: int | Sequence[int | tuple[int, int]], value: float = 0.0) -> Tensor:
    """Elements added before and after the tensor's; a negative number removes elements.

    Args:
        x: any tensor.
        widths: the numbers of elements before and after each axis, or one number for both; one
            number alone is for all axes.
        value: the value of the new elements.
    """
    x = as_tensor(x)
    pairs = pairs_of("widths", widths, x.rank, least=-LARGEST)
    value = read("value", Element(), value, x)
    if any(width < 0 for pair in pairs for width in pair):
        starts = tuple(max(-before, 0) for before, _ in pairs)
        rows = zip(x.shape, pairs, strict=True)
        stops = tuple(add_dims(dim, min(after, 0)) for dim, (_, after) in rows)
        x = sliced(x, starts, stops, (1,) * x.rank)
        pairs = tuple((max(before, 0), max(after, 0)) for before, after in pairs)
    low, high = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    return padded(x, low, high, (0,) * len(low), value)
