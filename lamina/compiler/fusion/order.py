"""The order of groups: among those that may run, the one that adds the fewest live bytes."""

from __future__ import annotations

from heapq import heappop, heappush

from lamina.compiler.fusion.groups import Groups, bytes_of
from lamina.errors import InternalError
from lamina.graph import Tensor


def execution_order(groups: Groups) -> tuple[int, ...]:
    """The groups in a legal order that frees memory early.

    Raises:
        InternalError: if groups wait for each other.
    """
    growth = _Growth(groups)
    missing = {number: set(needed) for number, needed in groups.predecessors.items()}
    successors: dict[int, list[int]] = {number: [] for number in groups.members}
    for number, needed in groups.predecessors.items():
        for one in needed:
            successors[one].append(number)
    # When a group finishes, the growth of others can only fall. They are pushed again each time.
    heap: list[tuple[tuple[int, int], int]] = []
    ready: set[int] = set()

    def put(number: int) -> None:
        heappush(heap, (growth.of(number), number))

    for number, needed in missing.items():
        if not needed:
            ready.add(number)
            put(number)
    done: list[int] = []
    while heap:
        _, best = heappop(heap)
        if best not in ready:
            continue
        ready.remove(best)
        done.append(best)
        for last in growth.finish(best):
            if last in ready:
                put(last)
        for successor in successors[best]:
            missing[successor].remove(best)
            if not missing[successor]:
                ready.add(successor)
                put(successor)
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
        self._unread: dict[Tensor, set[int]] = {
            anchor: {groups.group_of[user] for user in groups.users[anchor]}
            - {groups.group_of[anchor]}
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

    def finish(self, number: int) -> list[int]:
        """Marks a group as run. Returns the groups that have become the last reader of a tensor."""
        last: list[int] = []
        for source in self._sources[number]:
            readers = self._unread.get(source, set[int]())
            readers.discard(number)
            if len(readers) == 1:
                last += readers
        return last
