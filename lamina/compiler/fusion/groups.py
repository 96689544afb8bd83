"""Groups: anchors that one step computes together, while they are joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import final

from lamina.compiler.fusion.precedence import Precedence, cycles
from lamina.compiler.fusion.results import DistinctResults
from lamina.compiler.fusion.trials import Trials, UnnamedStep
from lamina.compiler.fusion.views import boundary, is_number
from lamina.compiler.lowering.pull import Location
from lamina.graph import Tensor
from lamina.ops.lowering import Repeating, loop_of
from lamina.program.target import Target
from lamina.shapes import size_of, static

# Steps that compute more anchors than this are not joined further.
MOST_MEMBERS = 64


def bytes_of(node: Tensor) -> int:
    """How many bytes a tensor takes."""
    return size_of(static(node.shape)) * node.dtype.itemsize


@final
class Groups:
    """The groups, what they read, and what must come before what.

    At first each anchor is a group by itself; the results of one recurrence are one group.

    Args:
        distinct: the graph.
        anchors: in the order of the graph.
        target: what is dear and what is cheap there.
        given: leaves that have no buffer of their own, and what stands at their coordinates.

    Attributes:
        anchors: all of them.
        results: what callers need.
        order: the number of each tensor, operands first.
        sources: for each anchor, the leaves and anchors that its expression ends at.
        users: for each of those, the anchors that read it.
        members: the anchors of each group, operands before users. Groups are called by numbers.
        group_of: the group of each anchor.
        larger: what each group reads that is more than one number.
        needs: the groups that must come directly before each group.
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
        # What is read from memory: not the numbers that are written into expressions.
        read = {
            anchor: dict.fromkeys(one for one in sources if not is_number(one))
            for anchor, sources in self.sources.items()
        }
        self._trials = Trials(read, self.in_place, given)
        self.members: dict[int, tuple[Tensor, ...]] = {}
        self.group_of: dict[Tensor, int] = {}
        self.larger: dict[int, set[Tensor]] = {}
        self._begin()
        self.needs: Mapping[int, AbstractSet[int]] = self._direct_needs()

    def _begin(self) -> None:
        """Each anchor is a group; several results of a recurrence are one loop from the start."""
        recurrences: dict[object, int] = {}
        for number, anchor in enumerate(self.anchors):
            if isinstance(anchor.op.lowering, Repeating):
                number = recurrences.setdefault(loop_of(anchor), number)
            self.group_of[anchor] = number
            self.members[number] = (*self.members.get(number, ()), anchor)
            larger = {one for one in self.sources[anchor] if size_of(static(one.shape)) > 1}
            self.larger[number] = self.larger.get(number, set()) | larger

    def _direct_needs(self) -> dict[int, set[int]]:
        needs: dict[int, set[int]] = {number: set() for number in self.members}
        for anchor in self.anchors:
            number = self.group_of[anchor]
            needs[number] |= {self.group_of[one] for one in self._required(anchor)} - {number}
        return needs

    def _required(self, anchor: Tensor) -> set[Tensor]:
        """The anchors that must be computed before this one, or with it."""
        required = {source for source in self.sources[anchor] if source in self.anchors}
        if anchor in self.in_place:
            required |= self.users.get(self.in_place[anchor], set()) - {anchor}
        return required

    def blocked(self) -> set[Tensor]:
        """Leaves that cannot be overwritten directly; none if all can.

        Either the new value reads the old one at other places, as in `p <- flip(p)`, or several
        leaves wait for each other, as in `p <- q, q <- p`; of those, it is the smallest one.
        """
        elsewhere = {
            target for anchor, target in self.in_place.items() if self.lowered((anchor,)) is None
        }
        if elsewhere:
            return elsewhere
        written = {self.group_of[anchor]: target for anchor, target in self.in_place.items()}
        return {
            min((written[number] for number in sorted(cycle) if number in written), key=bytes_of)
            for cycle in cycles(self.needs)
        }

    def begin_joining(self) -> None:
        """From here on groups can be joined; no leaf may be blocked."""
        self._precedence = Precedence(self.needs)
        self.needs = self._precedence.needs

    def join(self, first: int, second: int) -> bool:
        """Joins two groups if that is one legal step; the group takes the first's number."""
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
        self.larger[first] |= self.larger.pop(second)
        self._precedence.join(first, second)
        return True

    def lowered(self, members: Sequence[Tensor]) -> UnnamedStep | None:
        """One step that computes some anchors; None if there is none."""
        return self._trials.lowered(members, self.stored(members))

    def stored(self, members: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The members that other groups, or callers, need."""
        inside = set(members)
        return tuple([m for m in members if m in self.results or not self.users[m] <= inside])
