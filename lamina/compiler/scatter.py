"""Scatters for parallel workers: each element of the result gathers what is added to it.

A scatter is lowered to zeros and additions in order, which one worker makes. Where a target asks
for it, two steps take its place, both of them parallel and without atomic additions: the places
are sorted, equal ones staying in order; then each element of the result adds up the values of its
own places. That is the same order of additions, and so gives the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lamina.program.index import (
    Axis,
    Index,
    axes_of,
    axis_index,
    flatten,
    gathered_index,
    unflatten,
)
from lamina.program.program import Buffer, Repeat
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Load, Local, Position, Scalar, indices
from lamina.program.steps import (
    Loop,
    SegmentSum,
    Sort,
    Step,
    Store,
    Write,
    position_dtype,
)
from lamina.records import frozen_dataclass
from lamina.shapes import int64, size_of


@frozen_dataclass
class Lowered:
    """What the compiler makes before it plans the arena.

    Attributes:
        buffers: by name.
        steps: in order.
        repeats: which of them are repeated.
    """

    buffers: Mapping[str, Buffer]
    steps: tuple[Step, ...]
    repeats: tuple[Repeat, ...]


def sort_scatters(lowered: Lowered) -> Lowered:
    """The same with every scatter in order as two parallel steps."""
    buffers = dict(lowered.buffers)
    steps: list[Step] = []
    # Where each of the old steps begins among the new ones.
    starts: list[int] = []
    for step in lowered.steps:
        starts.append(len(steps))
        parts = _sorted_scatter(step, buffers) if isinstance(step, Loop) else ()
        steps += parts or (step,)
    starts.append(len(steps))
    repeats = [Repeat(one.axis, starts[one.first], starts[one.last]) for one in lowered.repeats]
    return Lowered(buffers, tuple(map(_numbered, range(len(steps)), steps)), tuple(repeats))


def _numbered(number: int, step: Step) -> Step:
    """The step under its own number, which its name begins with."""
    name = f"{number}.{step.name.split('.', 1)[1]}"
    return step if name == step.name else replace(step, name=name)


def _sorted_scatter(loop: Loop, buffers: dict[str, Buffer]) -> tuple[Step, ...]:
    """The two steps for a scatter, with a new buffer for the order; none for another loop."""
    match loop.stages:
        case (Write(_, (Store() as zero,)), Write(axes, (Store() as addition,), True)):
            pass
        case _:
            return ()
    key, place = _apart(addition.index, zero.index)
    slot = Axis("slot", size_of([axis.extent for axis in axes]))
    position = _by_slot(axes, axis_index(slot))
    sorting = Rewrite(position).index(key)
    used = {axis for index in (sorting, *indices(Position(sorting))) for axis in axes_of(index)}
    outer = tuple(axis for axis in loop.axes if axis in used)
    name = _unused(f"{loop.name.split('.', 1)[1]}.order", buffers)
    dtype = position_dtype(slot)
    order = Buffer(name, "temporary", (*(axis.extent for axis in outer), slot.extent), dtype)
    buffers[name] = order
    slots = flatten(tuple(map(axis_index, (*outer, slot))), order.shape)
    sort = Sort(slot, Position(sorting), name, slots, dtype)
    gathering = Rewrite(_by_slot(axes, _read(Load(name, slots, dtype), slot.extent)))
    total = SegmentSum(
        "sum",
        slot,
        Position(gathering.index(key)),
        place,
        gathering.scalar(addition.value),
        addition.value.dtype,
    )
    stored = replace(zero, value=Local(total.local, total.dtype))
    # Elements that lie side by side come last.
    strides = dict(zero.index.terms)
    points = sorted((*loop.axes, *_inner(loop)), key=lambda axis: -strides.get(axis, 0))
    return (
        Loop(f"{loop.name}.order", outer, (sort,)),
        Loop(loop.name, tuple(points), (total, Write((), (stored,)))),
    )


def _inner(loop: Loop) -> tuple[Axis, ...]:
    """The axes of the elements that are cleared, inside those of the loop."""
    clearing = loop.stages[0]
    assert isinstance(clearing, Write)
    return clearing.axes


def _apart(one: Index, other: Index) -> tuple[Index, Index]:
    """Two places without what both have in common."""
    common = Index(other.constant, tuple(term for term in one.terms if term in other.terms))
    return one - common, other - common


def _by_slot(axes: Sequence[Axis], slot: Index) -> dict[Axis, Index]:
    """The axes of the values, in order, in terms of one number for all of them."""
    places = unflatten(slot, [axis.extent for axis in axes])
    return dict(zip(axes, places, strict=True))


def _read(position: Load, extent: int) -> Index:
    value: Scalar = position if position.dtype == int64 else Apply("cast", (position,), int64)
    return gathered_index(value, extent)


def _unused(wanted: str, buffers: Mapping[str, Buffer]) -> str:
    name, number = wanted, 1
    while name in buffers:
        number += 1
        name = f"{wanted}#{number}"
    return name
