"""Lowering: a group of tensors becomes one step of the program.

A group computes some *anchors* (reductions, contractions and whatever must be stored) in one loop
nest. All other tensors are folded into the expressions that use them: a tensor's scalar at given
coordinates is pulled from its operands, down to locations. A group is legal exactly if it lowers,
so fusion tries and this folder decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.compiler.lowering.contractions import load_of_view, lower_contraction
from lamina.compiler.lowering.loops import lower_loop
from lamina.compiler.lowering.pull import Location, NotOneStep, Puller, Row
from lamina.compiler.lowering.special import lower_special
from lamina.graph import Tensor
from lamina.ops.lowering import Contracting, Repeating, Scanning, Scattering
from lamina.program.index import Index
from lamina.program.steps import Contraction, Step, loads_of, stores_of


def lower_group(
    members: Sequence[Tensor],
    stored: Mapping[Tensor, str | Row],
    locations: Mapping[Tensor, Location],
    name: str,
) -> Step:
    """The step that computes a group.

    Args:
        members: the group's anchors, operands before users.
        stored: the members that must be stored, and the locations that take them.
        locations: where anchors of other groups, leaves and array constants lie.
        name: of the step.

    Raises:
        NotOneStep: where one loop nest cannot compute all members.
    """
    if any(isinstance(m.op.lowering, Repeating) for m in members):
        raise NotOneStep
    special = [m for m in members if isinstance(m.op.lowering, Scanning | Scattering)]
    if special:
        if len(members) > 1:
            raise NotOneStep
        lowered = lower_special(special[0], Puller(locations), stored[special[0]], name)
    else:
        contractions = [m for m in members if isinstance(m.op.lowering, Contracting)]
        if contractions:
            lowered = lower_contraction(members, contractions, stored, locations, name)
        else:
            lowered = lower_loop(members, stored, locations, name)
    _check_own_reads(lowered)
    return lowered


def _check_own_reads(step: Step) -> None:
    """A step may read what it overwrites only at the very place that it writes.

    What it adds to it must not read at all.
    """
    places: dict[str, set[Index]] = {}
    for store in stores_of(step):
        if not store.accumulate:
            places.setdefault(store.buffer, set()).add(store.index)
    added = {store.buffer for store in stores_of(step) if store.accumulate}
    for load in loads_of(step):
        if load.buffer in added:
            raise NotOneStep
        if load.buffer in places and (load.bounds or {load.index} != places[load.buffer]):
            raise NotOneStep
    if isinstance(step, Contraction):
        from_views = {load_of_view(view).buffer for view in (step.left, step.right)}
        if from_views & places.keys():
            raise NotOneStep
