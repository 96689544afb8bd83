"""The schedule: among the groups that may run, the one that adds the fewest bytes."""

from __future__ import annotations

from heapq import heappop, heappush

from lamina.compiler.fusion.groups import Groups, bytes_of
from lamina.errors import InternalError
from lamina.graph import Tensor


def execution_order(groups: Groups) -> tuple[int, ...]:
    """The groups in an order that frees memory early, among those that are allowed."""
    growth = _Growth(groups)
    missing = {number: set(needed) for number, needed in groups.needs.items()}
    followers: dict[int, list[int]] = {number: [] for number in groups.members}
    for number, needed in groups.needs.items():
        for one in needed:
            followers[one].append(number)
    # Costs only fall while others finish; a group is put in again each time that its does.
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
        for follower in followers[best]:
            missing[follower].remove(best)
            if not missing[follower]:
                ready.add(follower)
                put(follower)
    if len(done) < len(groups.members):
        raise InternalError("the steps of a program wait for each other in a circle")
    return tuple(done)


class _Growth:
    """How many bytes each group adds to those that are alive."""

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
        # The groups that have yet to read what others store.
        self._unread: dict[Tensor, set[int]] = {
            anchor: {groups.group_of[user] for user in groups.users[anchor]}
            - {groups.group_of[anchor]}
            for anchor in groups.anchors
        }

    def of(self, number: int) -> tuple[int, int]:
        """Bytes that a group adds less those it sets free; then the order of writing."""
        groups = self._groups
        freed = sum(
            bytes_of(source)
            for source in self._sources[number] - set(groups.members[number]) - groups.results
            if source in groups.anchors and self._unread[source] <= {number}
        )
        return self._added[number] - freed, self._first[number]

    def finish(self, number: int) -> list[int]:
        """Notes that a group has run; the groups that are now the last to read something."""
        last: list[int] = []
        for source in self._sources[number]:
            readers = self._unread.get(source, set[int]())
            readers.discard(number)
            if len(readers) == 1:
                last += readers
        return last
