"""Groups: sets of anchors that become one step each, the passes that join them, and their order.

A join repeats no operation and saves a launch, so it never costs more. The passes only differ in
the order in which they try joins. Of the groups that may run, the one that adds the fewest live
bytes comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from typing import final

from lamina.base.shapes import size_of, static
from lamina.compiler.buffers import is_number
from lamina.compiler.fusion.precedence import Precedence, cycle
from lamina.compiler.fusion.results import DistinctResults
from lamina.compiler.fusion.trials import Trials, UnnamedStep
from lamina.compiler.fusion.views import boundary
from lamina.compiler.lowering.pull import Location
from lamina.errors import InternalError
from lamina.graph import Tensor
from lamina.ops.lowering_rules import Contracting, Reduction, Repeating, loop_key
from lamina.program.target import Target

# The most anchors in one group.
MOST_MEMBERS = 64
# The number of following groups, over equally many points, with which each group is tried.
SIBLINGS_TRIED = 8


def bytes_of(node: Tensor) -> int:
    """The size of a tensor in bytes."""
    return size_of(static(node.shape)) * node.dtype.itemsize


@final
class Groups:
    """The groups, the tensors they read, and the order in which they must run.

    At first each anchor is a group, except that all results of one recurrence are one group. Some
    `operands` of products are stored, though products could compute them.

    Attributes:
        anchors: all anchors.
        results: the tensors that callers need.
        order: the number of each tensor, operands first.
        sources: the leaves and anchors that the expression of each anchor reads.
        users: the anchors that read each leaf and anchor.
        members: the anchors of each group, by its number, operands before users.
        group_of: the group of each anchor.
        large_sources: the sources of each group that have more than one element.
        predecessors: the groups that must come directly before each group.
    """

    def __init__(
        self,
        distinct: DistinctResults,
        anchors: Iterable[Tensor],
        target: Target,
        locations: Mapping[Tensor, Location],
        operands: frozenset[Tensor] = frozenset(),
    ) -> None:
        self.target = target
        self._operands = operands
        self.in_place = distinct.in_place
        self.anchors = dict.fromkeys(anchors)
        self.results = frozenset(distinct.graph.roots)
        self.order = {node: number for number, node in enumerate(distinct.graph.nodes())}
        self.sources = {anchor: boundary(anchor.operands, self.anchors) for anchor in self.anchors}
        self.users: dict[Tensor, set[Tensor]] = {anchor: set() for anchor in self.anchors}
        for anchor, sources in self.sources.items():
            for source in sources:
                self.users.setdefault(source, set()).add(anchor)
        # Numbers are omitted: they become literals in expressions.
        read = {
            anchor: dict.fromkeys(source for source in sources if not is_number(source))
            for anchor, sources in self.sources.items()
        }
        self._trials = Trials(read, self.in_place, locations)
        self.members: dict[int, tuple[Tensor, ...]] = {}
        self.group_of: dict[Tensor, int] = {}
        self.large_sources: dict[int, set[Tensor]] = {}
        recurrences: dict[object, int] = {}
        for number, (anchor, sources) in enumerate(self.sources.items()):
            if isinstance(anchor.op.lowering, Repeating):
                number = recurrences.setdefault(loop_key(anchor), number)
            self.group_of[anchor] = number
            self.members[number] = (*self.members.get(number, ()), anchor)
            large_sources = {source for source in sources if size_of(static(source.shape)) > 1}
            self.large_sources[number] = self.large_sources.get(number, set()) | large_sources
        before: dict[int, set[int]] = {number: set() for number in self.members}
        for anchor, number in self.group_of.items():
            earlier = {source for source in self.sources[anchor] if source in self.anchors}
            if anchor in self.in_place:
                # An anchor that overwrites a leaf comes after all readers of the leaf.
                earlier |= self.users.get(self.in_place[anchor], set()) - {anchor}
            before[number] |= {self.group_of[node] for node in earlier} - {number}
        self.predecessors: Mapping[int, AbstractSet[int]] = before

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
        predecessors = dict(self.predecessors)
        leaves: set[Tensor] = set()
        while waiting := cycle(predecessors):
            writers = sorted(written.keys() & set(waiting))
            smallest = min(writers, key=lambda number: bytes_of(written[number]))
            leaves.add(written[smallest])
            predecessors[smallest] = set()
        return leaves

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
        if len(members) > MOST_MEMBERS or self._omits_operand(members):
            return False
        if self.lowered(members) is None:
            return False
        for member in members:
            self.group_of[member] = first
        self.members[first] = members
        del self.members[second]
        self.large_sources[first] |= self.large_sources.pop(second)
        self._precedence.join(first, second)
        return True

    def _omits_operand(self, members: Sequence[Tensor]) -> bool:
        """Whether a product would read one of the stored operands before it is stored."""
        stored = self._operands.intersection(members)
        return bool(stored) and any(
            isinstance(m.op.lowering, Contracting) and not stored.isdisjoint(self.sources[m])
            for m in members
        )

    def lowered(self, members: Sequence[Tensor]) -> UnnamedStep | None:
        """The step that computes some anchors; None if no single step can."""
        return self._trials.lowered(members, self.stored(members))

    def stored(self, members: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The members that other groups or callers need."""
        inside = set(members)
        return tuple([m for m in members if m in self.results or not self.users[m] <= inside])


def join_producers(groups: Groups) -> None:
    """Joins each anchor's group with its sources' groups, the latest source first.

    A join saves the bytes that one group writes for the other.
    """
    for anchor in groups.anchors:
        producers = [source for source in groups.sources[anchor] if source in groups.anchors]
        for producer in sorted(producers, key=groups.order.__getitem__, reverse=True):
            groups.join(groups.group_of[producer], groups.group_of[anchor])


def join_siblings(groups: Groups) -> None:
    """Joins groups over equally many points that read a tensor in common.

    A join saves the bytes of the second read.
    """
    sources = groups.large_sources
    _join_over_same_points(groups, lambda a, b: not sources[a].isdisjoint(sources[b]))


def join_small(groups: Groups) -> None:
    """Joins groups over equally many points that share no tensor, if one of them is small.

    A join saves a launch, and keeps the bytes that the smaller group writes alive for longer. The
    launch must cost more than these bytes.
    """

    def write_less(first: int, second: int) -> bool:
        written = (sum(map(bytes_of, groups.stored(groups.members[n]))) for n in (first, second))
        return min(written) <= groups.target.launch_bytes

    _join_over_same_points(groups, write_less)


def _join_over_same_points(groups: Groups, is_worth_joining: Callable[[int, int], bool]) -> None:
    """Tries joins of groups over equally many points, where a predicate of both numbers holds."""
    by_points: dict[int, list[int]] = {}
    for number, members in groups.members.items():
        if not any(isinstance(m.op.lowering, Contracting | Repeating) for m in members):
            by_points.setdefault(_points(members), []).append(number)
    for numbers in by_points.values():
        for position, first in enumerate(numbers):
            for second in numbers[position + 1 : position + 1 + SIBLINGS_TRIED]:
                exist = first in groups.members and second in groups.members
                if exist and is_worth_joining(first, second):
                    groups.join(first, second)


def _points(members: Sequence[Tensor]) -> int:
    """The number of points of a group's step."""
    return max(
        size_of(static(m.operands[0].shape if isinstance(m.op.lowering, Reduction) else m.shape))
        for m in members
    )


def execution_order(groups: Groups) -> tuple[int, ...]:
    """The groups in a legal order that frees memory early."""
    growth = _Growth(groups)
    missing = {number: set(needed) for number, needed in groups.predecessors.items()}
    successors: dict[int, list[int]] = {number: [] for number in groups.members}
    for number, needed in groups.predecessors.items():
        for predecessor in needed:
            successors[predecessor].append(number)
    ready = {number for number, needed in missing.items() if not needed}
    heap = [(growth.of(number), number) for number in ready]
    heapify(heap)
    done: list[int] = []
    while heap:
        _, best = heappop(heap)
        if best not in ready:
            continue
        ready.remove(best)
        done.append(best)
        # When a group finishes, the growth of others can only fall. They are pushed again.
        pushed = growth.finish(best) & ready
        for successor in successors[best]:
            missing[successor].remove(best)
            if not missing[successor]:
                ready.add(successor)
                pushed.add(successor)
        for number in pushed:
            heappush(heap, (growth.of(number), number))
    if len(done) < len(groups.members):
        raise InternalError("the steps of a program wait for each other in a cycle")
    return tuple(done)


class _Growth:
    """The bytes by which each group increases the live set."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        members = groups.members
        self._first = {n: min(groups.order[m] for m in members[n]) for n in members}
        self._added = {
            n: sum(bytes_of(m) for m in groups.stored(members[n]) if m not in groups.in_place)
            for n in members
        }
        self._sources = {
            n: {source for m in members[n] for source in groups.sources[m]} for n in members
        }
        # For each anchor, the other groups that have not yet read it.
        number_of = groups.group_of
        self._unread = {
            anchor: {number_of[user] for user in groups.users[anchor]} - {number_of[anchor]}
            for anchor in groups.anchors
        }

    def of(self, number: int) -> tuple[int, int]:
        """The bytes a group adds minus the bytes it frees; then the order of the graph."""
        groups = self._groups
        freed = sum(
            bytes_of(source)
            for source in self._sources[number] - set(groups.members[number]) - groups.results
            if source in groups.anchors and self._unread[source] <= {number}
        )
        return self._added[number] - freed, self._first[number]

    def finish(self, number: int) -> set[int]:
        """Marks a group as run. Returns the groups that have become the last reader of a tensor."""
        last: set[int] = set()
        for source in self._sources[number]:
            readers = self._unread.get(source, set[int]())
            readers.discard(number)
            if len(readers) == 1:
                last |= readers
        return last
