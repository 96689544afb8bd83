"""Lowering: a group of tensors becomes one step of the program.

A group computes some *anchors* (reductions, contractions and all tensors that must be stored) in
one loop nest. All other tensors are folded into the expressions that use them: a tensor's scalar at
some coordinates is pulled from its operands, down to loads. A group is legal if and only if it can
be lowered. So fusion proposes groups, and this folder accepts or refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.compiler.lowering.contractions import load_of_view, lower_contraction
from lamina.compiler.lowering.loops import lower_loop
from lamina.compiler.lowering.pull import IterationRow, Location, NotOneStep, Puller
from lamina.compiler.lowering.special import lower_special
from lamina.graph import Tensor
from lamina.ops.lowering_rules import Contracting, Repeating, Scanning, Scattering, Sorting
from lamina.program.index import Index
from lamina.program.steps import Contraction, Step, loads_of, stores_of


def lower_group(
    members: Sequence[Tensor],
    stored: Mapping[Tensor, str | IterationRow],
    locations: Mapping[Tensor, Location],
    name: str,
) -> Step:
    """The step that computes a group.

    Args:
        members: the group's anchors, operands before users.
        stored: the members that must be stored, and their locations.
        locations: of anchors of other groups, leaves and array constants.
        name: the step's name.

    Raises:
        NotOneStep: if one loop nest cannot compute all members.
    """
    if any(isinstance(m.op.lowering, Repeating) for m in members):
        raise NotOneStep
    special = [m for m in members if isinstance(m.op.lowering, Scanning | Scattering | Sorting)]
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
    """Refuses a step that loads from a buffer that it stores, except at the stored index.

    A step must not load from a buffer to which it adds (`accumulate`).
    """
    store_indices: dict[str, set[Index]] = {}
    for store in stores_of(step):
        if not store.accumulate:
            store_indices.setdefault(store.buffer, set()).add(store.index)
    added = {store.buffer for store in stores_of(step) if store.accumulate}
    for load in loads_of(step):
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
