"""Groups: sets of anchors that become one step each, while they are joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import final

from lamina.base.shapes import size_of, static
from lamina.compiler.fusion.precedence import Precedence, cycles
from lamina.compiler.fusion.results import DistinctResults
from lamina.compiler.fusion.trials import Trials, UnnamedStep
from lamina.compiler.fusion.views import boundary, is_number
from lamina.compiler.lowering.pull import Location
from lamina.graph import Tensor
from lamina.ops.lowering_rules import Repeating, loop_key
from lamina.program.target import Target

# The most anchors in one group.
MOST_MEMBERS = 64


def bytes_of(node: Tensor) -> int:
    """The size of a tensor in bytes."""
    return size_of(static(node.shape)) * node.dtype.itemsize


@final
class Groups:
    """The groups, the tensors they read, and the order in which they must run.

    At first each anchor is a group, except that all results of one recurrence are one group.

    Args:
        distinct: the graph.
        anchors: in the order of the graph.
        target: the costs of the device.
        given: the locations of leaves without a buffer.

    Attributes:
        anchors: all anchors.
        results: the tensors that callers need.
        order: the number of each tensor, operands first.
        sources: for each anchor, the leaves and anchors that its expression reads.
        users: for each leaf and anchor, the anchors that read it.
        members: for each group, by number, its anchors, operands before users.
        group_of: the group of each anchor.
        large_sources: for each group, its sources of more than one element.
        predecessors: for each group, the groups that must come directly before it.
    """

    def __init__(
        self,
        distinct: DistinctResults,
        anchors: Iterable[Tensor],
        target: Target,
        given: Mapping[Tensor, Location],
    ) -> None:
        self.target = target
        self.in_place = distinct.in_place
        self.anchors = dict.fromkeys(anchors)
        self.results = frozenset(distinct.graph.roots)
        self.order = {node: number for number, node in enumerate(distinct.graph.nodes())}
        self.sources = {one: boundary(one.operands, self.anchors) for one in self.anchors}
        self.users: dict[Tensor, set[Tensor]] = {anchor: set() for anchor in self.anchors}
        for anchor, sources in self.sources.items():
            for source in sources:
                self.users.setdefault(source, set()).add(anchor)
        # Numbers are omitted: they become literals in expressions.
        read = {
            anchor: dict.fromkeys(one for one in sources if not is_number(one))
            for anchor, sources in self.sources.items()
        }
        self._trials = Trials(read, self.in_place, given)
        self.members: dict[int, tuple[Tensor, ...]] = {}
        self.group_of: dict[Tensor, int] = {}
        self.large_sources: dict[int, set[Tensor]] = {}
        self._begin()
        self.predecessors: Mapping[int, AbstractSet[int]] = self._direct_predecessors()

    def _begin(self) -> None:
        """Makes the initial groups."""
        recurrences: dict[object, int] = {}
        for number, anchor in enumerate(self.anchors):
            if isinstance(anchor.op.lowering, Repeating):
                number = recurrences.setdefault(loop_key(anchor), number)
            self.group_of[anchor] = number
            self.members[number] = (*self.members.get(number, ()), anchor)
            large_sources = {one for one in self.sources[anchor] if size_of(static(one.shape)) > 1}
            self.large_sources[number] = self.large_sources.get(number, set()) | large_sources

    def _direct_predecessors(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {number: set() for number in self.members}
        for anchor in self.anchors:
            number = self.group_of[anchor]
            found[number] |= {self.group_of[one] for one in self._prerequisites(anchor)} - {number}
        return found

    def _prerequisites(self, anchor: Tensor) -> set[Tensor]:
        """The anchors that must be computed before this one or in the same group.

        An anchor that overwrites a leaf comes after all readers of the leaf.
        """
        prerequisites = {source for source in self.sources[anchor] if source in self.anchors}
        if anchor in self.in_place:
            prerequisites |= self.users.get(self.in_place[anchor], set()) - {anchor}
        return prerequisites

    def blocked(self) -> set[Tensor]:
        """Leaves that cannot be overwritten in place.

        Either the new value reads the old one at other indices, as in `p <- flip(p)`; or several
        leaves wait for each other, as in `p <- q, q <- p`, and the smallest of them is returned.
        """
        elsewhere = {
            target for anchor, target in self.in_place.items() if self.lowered((anchor,)) is None
        }
        if elsewhere:
            return elsewhere
        written = {self.group_of[anchor]: target for anchor, target in self.in_place.items()}
        return {
            min((written[number] for number in sorted(cycle) if number in written), key=bytes_of)
            for cycle in cycles(self.predecessors)
        }

    def begin_joining(self) -> None:
        """Must be called before `join`, and only if no leaf is blocked."""
        self._precedence = Precedence(self.predecessors)
        self.predecessors = self._precedence.predecessors

    def join(self, first: int, second: int) -> bool:
        """Joins two groups under the first's number if the joined group is legal."""
        if first == second or self._precedence.has_between(first, second):
            return False
        both = (*self.members[first], *self.members[second])
        members = tuple(sorted(both, key=self.order.__getitem__))
        if len(members) > MOST_MEMBERS or self.lowered(members) is None:
            return False
        for member in members:
            self.group_of[member] = first
        self.members[first] = members
        del self.members[second]
        self.large_sources[first] |= self.large_sources.pop(second)
        self._precedence.join(first, second)
        return True

    def lowered(self, members: Sequence[Tensor]) -> UnnamedStep | None:
        """The step that computes some anchors; None if no single step can."""
        return self._trials.lowered(members, self.stored(members))

    def stored(self, members: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The members that other groups or callers need."""
        inside = set(members)
        return tuple([m for m in members if m in self.results or not self.users[m] <= inside])
