"""Loops: reductions, and what is stored, over the same points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.compiler.lowering.pull import (
    Location,
    NotOneStep,
    Puller,
    Row,
    buffer_and_index,
    coordinates_in_order,
    iterating,
    numbered_axes,
)
from lamina.graph import Tensor
from lamina.ops.lowering import Coordinates, Reduction
from lamina.program.index import Axis, Index, axis_index
from lamina.program.scalar import Literal, Local, Scalar
from lamina.program.steps import Loop, Reduce, Stage, Store, Write
from lamina.records import frozen_dataclass
from lamina.shapes import size_of, static

# What is joined is stored part by part if at least so many elements of a part lie side by side.
SHORTEST_RUN = 16


@frozen_dataclass
class Space:
    """The iteration space of a group.

    Attributes:
        outer: the parallel axes.
        inner: the axes that its reductions combine; empty if there are none.
        full: the anchors that are computed at every inner point. Reductions and anchors as small
            as they are computed once for each outer point.
    """

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    full: frozenset[Tensor]


def lower_loop(
    members: Sequence[Tensor],
    stored: Mapping[Tensor, str | Row],
    locations: Mapping[Tensor, Location],
    name: str,
) -> Loop:
    """A loop in which each point computes an element of every part of what is joined, if it can.

    Otherwise each point of the whole has to choose among the parts.
    """
    joined = frozenset(m for m in members if m in stored and _has_equal_parts(m))
    if joined:
        try:
            return _lowered_loop(members, stored, locations, name, joined)
        except NotOneStep:
            pass
    return _lowered_loop(members, stored, locations, name)


def _has_equal_parts(node: Tensor) -> bool:
    """Whether the tensor is made of tensors of one shape, end to end, in long enough runs."""
    if node.op.name != "concat" or len({part.shape for part in node.operands}) > 1:
        return False
    return size_of(static(node.operands[0].shape)[node.attributes["axis"] :]) >= SHORTEST_RUN


def _lowered_loop(
    members: Sequence[Tensor],
    stored: Mapping[Tensor, str | Row],
    locations: Mapping[Tensor, Location],
    name: str,
    joined: frozenset[Tensor] = frozenset(),
) -> Loop:
    """A loop that computes all members.

    Args:
        members, stored, locations, name: as for `lower_group`.
        joined: members that are stored part by part.
    """
    space = _loop_space([m.operands[0] if m in joined else m for m in members])
    puller = Puller(locations)
    used = {operand for member in members for operand in _inlined_operands(member, locations)}
    stages: list[Stage] = []
    for member in members:
        if member in joined:
            continue
        label = f"r{len(puller.locals)}"
        lowering = member.op.lowering
        if isinstance(lowering, Reduction):
            puller.computed_at[member] = coordinates_in_order(member, space.outer)
            (operand,) = member.operands
            inner = iterating(space.inner)
            if not inner and lowering.combine in ("argmax", "argmin"):
                value: Scalar = Literal(0, member.dtype)
            else:
                value = puller.pull(operand, _reduced_places(member, space))
            stages.append(Reduce(label, lowering.combine, inner, value, member.dtype))
        elif member in space.full:
            puller.choose_coordinates(member, (*space.outer, *space.inner))
            continue
        else:
            puller.choose_coordinates(member, space.outer)
            if not space.inner or member not in used:
                continue
            # Computed once for each outer point, not again at every inner point.
            value = puller.expression(member, puller.computed_at[member])
            stages.append(Reduce(label, "sum", (), value, member.dtype))
        puller.locals[member] = Local(label, member.dtype)
    writes = {True: list[Store](), False: list[Store]()}
    for member in members:
        if member in joined:
            part = member.operands[0]
            axes = (*space.outer, *space.inner) if part in space.full else space.outer
            writes[part in space.full] += _parts_stored(member, stored[member], axes, puller)
        elif member in stored:
            place = puller.computed_at[member]
            value = puller.pull(member, place)
            store = Store(*buffer_and_index(stored[member], place, static(member.shape)), value)
            writes[member in space.full].append(store)
    if writes[True]:
        stages.append(Write(iterating(space.inner), tuple(writes[True])))
    if writes[False]:
        stages.append(Write((), tuple(writes[False])))
    return Loop(name, iterating(space.outer), tuple(stages))


def _parts_stored(
    member: Tensor, location: str | Row, axes: Sequence[Axis], puller: Puller
) -> list[Store]:
    """One element of each part of a joined tensor."""
    axis: int = member.attributes["axis"]
    place = coordinates_in_order(member.operands[0], axes)
    (extent,) = static(member.operands[0].shape[axis : axis + 1])
    stores: list[Store] = []
    for number, part in enumerate(member.operands):
        moved = (*place[:axis], place[axis] + number * extent, *place[axis + 1 :])
        value = puller.pull(part, place)
        stores.append(Store(*buffer_and_index(location, moved, static(member.shape)), value))
    return stores


def _inlined_operands(member: Tensor, locations: Mapping[Tensor, Location]) -> set[Tensor]:
    """Every tensor that computing the member here looks at, down to stored ones."""
    found: set[Tensor] = set()
    pending = list(member.operands)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if node not in locations:
                pending.extend(node.operands)
    return found


def _loop_space(members: Sequence[Tensor]) -> Space:
    reductions = [m for m in members if isinstance(m.op.lowering, Reduction)]
    if not reductions:
        largest = max(members, key=lambda m: m.rank)
        outer = numbered_axes("i", static(largest.shape))
        return _space(members, outer, ())
    source = reductions[0].operands[0]
    shape, reduced = static(source.shape), set[int](reductions[0].attributes["axes"])
    outer = numbered_axes("i", (shape[axis] for axis in range(len(shape)) if axis not in reduced))
    inner = numbered_axes("k", (shape[axis] for axis in range(len(shape)) if axis in reduced))
    pattern = _pattern(reductions[0])
    if any(_pattern(other) != pattern for other in reductions):
        raise NotOneStep
    return _space(members, outer, inner)


def _pattern(reduction: Tensor) -> tuple[tuple[int, bool], ...]:
    """The extents of a reduction's operand, axes of extent 1 aside, and which are combined."""
    shape = static(reduction.operands[0].shape)
    axes: tuple[int, ...] = reduction.attributes["axes"]
    return tuple((extent, axis in axes) for axis, extent in enumerate(shape) if extent != 1)


def _space(members: Sequence[Tensor], outer: tuple[Axis, ...], inner: tuple[Axis, ...]) -> Space:
    outer_size = size_of([axis.extent for axis in outer])
    full_size = outer_size * size_of([axis.extent for axis in inner])
    reductions = [m for m in members if isinstance(m.op.lowering, Reduction)]
    full: set[Tensor] = set()
    for member in members:
        size = size_of(static(member.shape))
        if isinstance(member.op.lowering, Reduction) or size == outer_size:
            continue
        if size != full_size or not all(_combines_last_axes(r) for r in reductions):
            raise NotOneStep
        full.add(member)
    return Space(outer, inner, frozenset(full))


def _combines_last_axes(reduction: Tensor) -> bool:
    flags = [combined for _, combined in _pattern(reduction)]
    return flags == sorted(flags)


def _reduced_places(reduction: Tensor, space: Space) -> Coordinates:
    """Where a reduction reads its operand: outer axes and inner axes in the operand's order."""
    shape = static(reduction.operands[0].shape)
    axes: tuple[int, ...] = reduction.attributes["axes"]
    outer, inner = iter(iterating(space.outer)), iter(iterating(space.inner))
    return tuple(
        Index() if extent == 1 else axis_index(next(inner if axis in axes else outer))
        for axis, extent in enumerate(shape)
    )
