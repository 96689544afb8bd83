"""Loops: reductions and stores over the same points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of, static
from lamina.compiler.lowering.pull import (
    Location,
    NotOneStep,
    Puller,
    coordinates_in_order,
    iterating,
    numbered_axes,
)
from lamina.graph import Tensor, reached_all
from lamina.ops.joining import CONCAT
from lamina.ops.lowering_rules import Coordinates, Reduction
from lamina.program.index import Axis, Index, axis_index, flatten
from lamina.program.scalar import Literal, Local, Scalar
from lamina.program.steps import Loop, Reduce, Stage, Store, Write

# A concat is stored operand by operand if each operand has at least so many adjacent elements.
SHORTEST_RUN = 16


@frozen_dataclass
class Space:
    """The iteration space of a group.

    Attributes:
        outer: the parallel axes.
        inner: the axes that its reductions combine; empty without reductions.
        full: the anchors that are computed at every inner point. All others, reductions and anchors
            of their size, are computed once for each outer point.
    """

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    full: frozenset[Tensor]


def lower_loop(
    members: Sequence[Tensor], stored: Mapping[Tensor, str], locations: Mapping[Tensor, Location]
) -> Loop:
    """A loop that computes all members; arguments as for `lower_group`.

    If possible, each point computes one element of every operand of a concat. Otherwise there is a
    point for each element of the concat, which selects among the operands.
    """
    concats = frozenset(m for m in members if m in stored and _concatenates_equal_shapes(m))
    if concats:
        try:
            return _lowered_loop(members, stored, locations, concats)
        except NotOneStep:
            pass
    return _lowered_loop(members, stored, locations)


def _concatenates_equal_shapes(node: Tensor) -> bool:
    """Whether the tensor is a concat of operands of one shape, each with long enough runs."""
    if node.op is not CONCAT or len({operand.shape for operand in node.operands}) > 1:
        return False
    return size_of(static(node.operands[0].shape)[node.attributes["axis"] :]) >= SHORTEST_RUN


def _lowered_loop(
    members: Sequence[Tensor],
    stored: Mapping[Tensor, str],
    locations: Mapping[Tensor, Location],
    concats: frozenset[Tensor] = frozenset(),
) -> Loop:
    """A loop that computes all members; the concats are stored operand by operand."""
    space = _loop_space([m.operands[0] if m in concats else m for m in members])
    puller = Puller(locations)
    # Every tensor that is computed or read for the members, down to stored tensors.
    used = reached_all(
        (operand for member in members for operand in member.operands),
        lambda node: () if node in locations else node.operands,
    )
    stages: list[Stage] = []
    for member in members:
        if member in concats:
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
                value = puller.pull(operand, _reduced_coordinates(member, space))
            stages.append(Reduce(label, lowering.combine, inner, value, member.dtype))
        elif member in space.full:
            puller.choose_coordinates(member, (*space.outer, *space.inner))
            continue
        else:
            puller.choose_coordinates(member, space.outer)
            if not space.inner or member not in used:
                continue
            # Computed once for each outer point, not at every inner point.
            value = puller.expression(member, puller.computed_at[member])
            stages.append(Reduce(label, "sum", (), value, member.dtype))
        puller.locals[member] = Local(label, member.dtype)
    writes = {True: list[Store](), False: list[Store]()}
    for member in members:
        if member in concats:
            first = member.operands[0]
            axes = (*space.outer, *space.inner) if first in space.full else space.outer
            writes[first in space.full] += _concat_stores(member, stored[member], axes, puller)
        elif member in stored:
            at = puller.computed_at[member]
            value = puller.pull(member, at)
            store = Store(stored[member], flatten(at, static(member.shape)), value)
            writes[member in space.full].append(store)
    if writes[True]:
        stages.append(Write(iterating(space.inner), tuple(writes[True])))
    if writes[False]:
        stages.append(Write((), tuple(writes[False])))
    return Loop("", iterating(space.outer), tuple(stages))


def _concat_stores(
    member: Tensor, buffer: str, axes: Sequence[Axis], puller: Puller
) -> list[Store]:
    """The stores of one element of each operand of a concat."""
    axis: int = member.attributes["axis"]
    at = coordinates_in_order(member.operands[0], axes)
    (extent,) = static(member.operands[0].shape[axis : axis + 1])
    stores: list[Store] = []
    for number, operand in enumerate(member.operands):
        moved = (*at[:axis], at[axis] + number * extent, *at[axis + 1 :])
        value = puller.pull(operand, at)
        stores.append(Store(buffer, flatten(moved, static(member.shape)), value))
    return stores


def _loop_space(members: Sequence[Tensor]) -> Space:
    """The iteration space of the members; without reductions, of the member of highest rank.

    Refuses a member of another size than the outer axes or all axes.
    """
    reductions = [m for m in members if isinstance(m.op.lowering, Reduction)]
    if reductions:
        shape = static(reductions[0].operands[0].shape)
        reduced = set[int](reductions[0].attributes["axes"])
        outer = numbered_axes("i", (n for axis, n in enumerate(shape) if axis not in reduced))
        inner = numbered_axes("k", (n for axis, n in enumerate(shape) if axis in reduced))
    else:
        largest = max(members, key=lambda m: m.rank)
        outer, inner = numbered_axes("i", static(largest.shape)), ()
    patterns = [_pattern(reduction) for reduction in reductions]
    if any(pattern != patterns[0] for pattern in patterns):
        raise NotOneStep
    outer_size = size_of([axis.extent for axis in outer])
    full_size = outer_size * size_of([axis.extent for axis in inner])
    flags = [[combined for _, combined in pattern] for pattern in patterns]
    full: set[Tensor] = set()
    for member in members:
        size = size_of(static(member.shape))
        if isinstance(member.op.lowering, Reduction) or size == outer_size:
            continue
        # Each reduction must combine the last axes.
        if size != full_size or not all(combined == sorted(combined) for combined in flags):
            raise NotOneStep
        full.add(member)
    return Space(outer, inner, frozenset(full))


def _pattern(reduction: Tensor) -> tuple[tuple[int, bool], ...]:
    """(extent, whether it is combined) for each axis of a reduction's operand, except extents 1."""
    shape = static(reduction.operands[0].shape)
    axes: tuple[int, ...] = reduction.attributes["axes"]
    return tuple((extent, axis in axes) for axis, extent in enumerate(shape) if extent != 1)


def _reduced_coordinates(reduction: Tensor, space: Space) -> Coordinates:
    """The coordinates at which a reduction reads its operand: outer and inner axes in its order."""
    shape = static(reduction.operands[0].shape)
    axes: tuple[int, ...] = reduction.attributes["axes"]
    outer, inner = iter(iterating(space.outer)), iter(iterating(space.inner))
    return tuple(
        Index() if extent == 1 else axis_index(next(inner if axis in axes else outer))
        for axis, extent in enumerate(shape)
    )
