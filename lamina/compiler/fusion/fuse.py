"""Fusion: which tensors are stored, and which are computed together in one step.

First the *anchors* are chosen: tensors that a loop nest must produce. Every other tensor is folded
into the expressions of its users. Then anchors are joined into groups wherever one loop nest can
compute them together and no cycle arises. Last, the groups are ordered. `costs.py` defines the
cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lamina.base.records import frozen_dataclass
from lamina.compiler.fusion.anchors import (
    Anchors,
    Pass,
    PassContext,
    casts_to_half,
    narrowed,
    readable,
    readable_below,
    reordered,
    required,
    running_sums,
)
from lamina.compiler.fusion.coordinates import read_at_several_coordinates
from lamina.compiler.fusion.groups import (
    Groups,
    execution_order,
    join_producers,
    join_siblings,
    join_small,
)
from lamina.compiler.fusion.results import DistinctResults, with_distinct_results
from lamina.compiler.fusion.sharing import stored_or_computed_again
from lamina.compiler.fusion.trials import UnnamedStep
from lamina.compiler.fusion.views import Views
from lamina.compiler.lowering.pull import Location
from lamina.errors import InternalError
from lamina.graph import Graph, Tensor
from lamina.ops.lowering_rules import Repeating
from lamina.program.target import Target

# The passes that choose anchors, in the order in which they run. Tensors that must be stored come
# first, because the cost of storing others depends on them. `readable` comes last: it handles the
# operands that no other pass has made views.
ANCHOR_PASSES: tuple[Pass, ...] = (
    required,
    casts_to_half,
    running_sums,
    narrowed,
    read_at_several_coordinates,
    readable_below,
    stored_or_computed_again,
    reordered,
    readable,
)

# The passes that join anchors, in the order in which they run: the largest savings come first.
JOIN_PASSES: tuple[Callable[[Groups], None], ...] = (join_producers, join_siblings, join_small)


@frozen_dataclass
class Group:
    """Anchors that one step computes, or one recurrence.

    Attributes:
        members: the anchors, operands before users.
        stored: the members that other groups or callers need.
        step: the step that computes the members; None for a recurrence.
    """

    members: tuple[Tensor, ...]
    stored: frozenset[Tensor]
    step: UnnamedStep | None


@frozen_dataclass
class Fused:
    """A graph divided into groups.

    Attributes:
        graph: the graph, with an identity op for each result that needs a separate buffer.
        groups: the groups, in the order in which they run.
        in_place: the leaf whose buffer an anchor overwrites, for each such anchor.
    """

    graph: Graph
    groups: tuple[Group, ...]
    in_place: Mapping[Tensor, Tensor]


def fuse(
    graph: Graph,
    target: Target,
    *,
    locations: Mapping[Tensor, Location] | None = None,
    stored: frozenset[Tensor] = frozenset(),
) -> Fused:
    """Divides a simplified graph into groups and orders them.

    Tensors of `stored` are stored at any cost; leaves with `locations` have no buffer.
    """
    distinct, groups = _separate(graph, target, locations or {}, stored)
    groups.begin_joining()
    for join in JOIN_PASSES:
        join(groups)
    ordered: list[Group] = []
    for number in execution_order(groups):
        members = groups.members[number]
        step = groups.lowered(members)
        if step is None and not isinstance(members[0].op.lowering, Repeating):
            raise InternalError(f"no step computes {members[-1].op.name} by itself")
        ordered.append(Group(members, frozenset(groups.stored(members)), step))
    return Fused(distinct.graph, tuple(ordered), distinct.in_place)


def _separate(
    graph: Graph, target: Target, locations: Mapping[Tensor, Location], stored: frozenset[Tensor]
) -> tuple[DistinctResults, Groups]:
    """Each anchor in a separate group, with no leaf overwritten before its last reader."""
    blocked: set[Tensor] = set()
    while True:
        distinct = with_distinct_results(graph, blocked)
        context = PassContext(distinct, target, Views(locations), stored)
        anchors: Anchors = {}
        for choose in ANCHOR_PASSES:
            anchors = choose(context, anchors)
        ordered = [node for node in context.nodes if node in anchors]
        groups = Groups(distinct, ordered, target, locations, stored)
        more = groups.blocked()
        if not more:
            return distinct, groups
        blocked |= more
