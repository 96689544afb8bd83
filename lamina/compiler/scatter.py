"""Scatters for parallel workers: each element of the result gathers its summands.

A scatter is lowered to zeros and additions in order, computed by one worker. For targets with
`scatter="sorted"`, two parallel steps without atomic additions replace it. The first sorts the
target indices of the values and keeps equal ones in order. In the second, each element of the
result adds up the values with its index. The order of additions is the same, so the results have
the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina.base.shapes import int64, size_of
from lamina.program.index import (
    Axis,
    Index,
    axes_of,
    axis_index,
    flatten,
    gathered_index,
    unflatten,
)
from lamina.program.program import Buffer, Repeat, replaced_steps
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Load, Local, Position, Scalar, indices
from lamina.program.steps import Loop, SegmentSum, Sort, Step, Store, Write, position_dtype


def sort_scatters(
    buffers: dict[str, Buffer], steps: Sequence[Step], repeats: Sequence[Repeat]
) -> tuple[list[Step], list[Repeat]]:
    """The steps with two parallel ones for each sequential scatter; adds buffers for the order."""
    return replaced_steps((_sorted_scatter(step, buffers) for step in steps), repeats)


def _sorted_scatter(loop: Step, buffers: dict[str, Buffer]) -> tuple[Step, ...]:
    """The two steps for a scatter, and a new buffer for the order; another step as it is."""
    match loop:
        case Loop(
            stages=(Write(cleared, (Store() as zero,)), Write(axes, (Store() as addition,), True))
        ):
            pass
        case _:
            return (loop,)
    # Both indices without their common terms, relative to the constant of the zeros.
    both = tuple(term for term in addition.index.terms if term in zero.index.terms)
    common = Index(zero.index.constant, both)
    key, position = addition.index - common, zero.index - common
    # It iterates the values in their order in the key, and in sorted order elsewhere.
    rank = Axis("rank", size_of([axis.extent for axis in axes]))
    index_of_axis = _axes_of_value(axes, axis_index(rank))
    sorting = Rewrite(index_of_axis).index(key)
    used = {axis for index in (sorting, *indices(Position(sorting))) for axis in axes_of(index)}
    outer = tuple(axis for axis in loop.axes if axis in used)
    name, number = f"{loop.name}.order", 1
    while name in buffers:
        number += 1
        name = f"{loop.name}.order#{number}"
    dtype = position_dtype(rank)
    order = Buffer(name, "temporary", (*(axis.extent for axis in outer), rank.extent), dtype)
    buffers[name] = order
    element = flatten(tuple(map(axis_index, (*outer, rank))), order.shape)
    sort = Sort(rank, Position(sorting), name, element, dtype)
    read: Scalar = Load(name, element, dtype)
    value = read if dtype == int64 else Apply("cast", (read,), int64)
    gathering = Rewrite(_axes_of_value(axes, gathered_index(value, rank.extent)))
    ranked, value = Position(gathering.index(key)), gathering.scalar(addition.value)
    total = SegmentSum("sum", rank, ranked, position, value, addition.value.dtype)
    stored = replace(zero, value=Local(total.local, total.dtype))
    # The axis of adjacent elements comes last.
    strides = dict(zero.index.terms)
    points = sorted((*loop.axes, *cleared), key=lambda axis: -strides.get(axis, 0))
    return (
        Loop(f"{loop.name}.order", outer, (sort,)),
        Loop(loop.name, tuple(points), (total, Write((), (stored,)))),
    )


def _axes_of_value(axes: Sequence[Axis], value: Index) -> dict[Axis, Index]:
    """The index of each axis of the values, in terms of the flat index of a value."""
    indices_of_axes = unflatten(value, [axis.extent for axis in axes])
    return dict(zip(axes, indices_of_axes, strict=True))
