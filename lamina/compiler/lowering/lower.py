"""Lowering: a group of tensors becomes one step of the program.

A group computes some *anchors* (reductions, contractions and all tensors that must be stored) in
one loop nest. All other tensors are folded into the expressions that use them: a tensor's scalar at
some coordinates is pulled from its operands, down to loads. A group is legal if and only if it can
be lowered. So fusion proposes groups, and this folder accepts or refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.base.shapes import static
from lamina.compiler.lowering.contractions import load_of_view, lower_contraction
from lamina.compiler.lowering.loops import lower_loop
from lamina.compiler.lowering.pull import (
    Location,
    NotOneStep,
    Puller,
    axis_indices,
    iterating,
    numbered_axes,
)
from lamina.errors import InternalError
from lamina.graph import Tensor
from lamina.ops.lowering_rules import Contracting, Repeating, Scanning, Scattering, Sorting
from lamina.program.index import Axis, Index, axes_of, axis_index, flatten
from lamina.program.scalar import Literal
from lamina.program.steps import Contraction, Loop, Scan, Sort, Step, Store, Write, stores_of


def lower_group(
    members: Sequence[Tensor], stored: Mapping[Tensor, str], locations: Mapping[Tensor, Location]
) -> Step:
    """The step without a name that computes a group.

    Args:
        members: the group's anchors, operands before users.
        stored: the members that must be stored, and their buffers.
        locations: the locations of anchors of other groups, leaves and array constants.

    Raises:
        NotOneStep: if one loop nest cannot compute all members.
    """
    if any(isinstance(m.op.lowering, Repeating) for m in members):
        raise NotOneStep
    special = [m for m in members if isinstance(m.op.lowering, Scanning | Scattering | Sorting)]
    if special:
        if len(members) > 1:
            raise NotOneStep
        lowered = _lower_special(special[0], Puller(locations), stored[special[0]])
    else:
        contractions = [m for m in members if isinstance(m.op.lowering, Contracting)]
        if contractions:
            lowered = lower_contraction(members, contractions, stored, locations)
        else:
            lowered = lower_loop(members, stored, locations)
    _check_own_reads(lowered)
    return lowered


def _check_own_reads(step: Step) -> None:
    """Refuses loads from a buffer that the step adds to, or stores at another index."""
    store_indices: dict[str, set[Index]] = {}
    for store in stores_of(step):
        if not store.accumulate:
            store_indices.setdefault(store.buffer, set()).add(store.index)
    added = {store.buffer for store in stores_of(step) if store.accumulate}
    for load in step.loads:
        if load.buffer in added:
            raise NotOneStep
        if load.buffer in store_indices and (
            load.bounds or {load.index} != store_indices[load.buffer]
        ):
            raise NotOneStep
    if isinstance(step, Contraction):
        from_views = {load_of_view(view).buffer for view in (step.left, step.right)}
        if from_views & store_indices.keys():
            raise NotOneStep


def _lower_special(node: Tensor, puller: Puller, buffer: str) -> Loop:
    """The loop of a scan, a sort or a scatter."""
    lowering = node.op.lowering
    if isinstance(lowering, Scattering):
        return _lower_scatter(node, lowering, puller, buffer)
    if not isinstance(lowering, Scanning | Sorting):
        raise InternalError(f"{node.op.name} has no lowering rule")
    shape = static(node.shape)
    along: int = node.attributes["axis"]
    axes = numbered_axes("i", shape)
    coordinates = tuple(
        axis_index(axis) * -1 + (axis.extent - 1)
        if number == along and node.attributes.get("reverse", False)
        else axis_index(axis)
        for number, axis in enumerate(axes)
    )
    value = puller.pull(node.operands[0], coordinates)
    target = buffer, flatten(coordinates, shape)
    if isinstance(lowering, Scanning):
        stage = Scan(axes[along], lowering.combine, value, *target, node.dtype)
    else:
        stage = Sort(axes[along], lowering.key(node, value), *target, node.dtype)
    others = (axis for number, axis in enumerate(axes) if number != along)
    return Loop("", iterating(others), (stage,))


def _lower_scatter(node: Tensor, lowering: Scattering, puller: Puller, buffer: str) -> Loop:
    """Zeros first, then additions in order, parallel along axes that keep their coordinates."""
    shape = static(node.shape)
    values = node.operands[0]
    axes = numbered_axes("k", static(values.shape))
    coordinates = lowering.destination(
        node, axis_indices(axes), lambda n, at: puller.pull(node.operands[n], at)
    )
    parallel: dict[int, Axis] = {}
    for number, coordinate in enumerate(coordinates):
        for axis in iterating(axes):
            alone = all(axis not in axes_of(c) for n, c in enumerate(coordinates) if n != number)
            if coordinate == axis_index(axis) and axis.extent == shape[number] and alone:
                parallel[number] = axis
    cleared = tuple(
        parallel.get(number, Axis(f"i{number}", extent)) for number, extent in enumerate(shape)
    )
    outer = tuple(parallel.values())
    zero = Store(buffer, flatten(axis_indices(cleared), shape), Literal(0, node.dtype))
    value = puller.pull(values, axis_indices(axes))
    addition = Store(buffer, flatten(coordinates, shape), value, accumulate=True)
    inner, added = ([a for a in iterating(x) if a not in outer] for x in (cleared, axes))
    writes = Write(tuple(inner), (zero,)), Write(tuple(added), (addition,), sequential=True)
    return Loop("", outer, writes)
