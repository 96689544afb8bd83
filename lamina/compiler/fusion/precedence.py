"""Which groups must run before which, while groups are joined.

The transitive relation is kept, a set of bits for each group: whether two groups can be joined is
asked several times for each, and answered without walking through the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import final


@final
class Precedence:
    """The order of groups, which are called by numbers.

    Args:
        needs: the groups that must come directly before each group; there is no cycle.
    """

    def __init__(self, needs: Mapping[int, AbstractSet[int]]) -> None:
        self.needs: dict[int, set[int]] = {number: set(needed) for number, needed in needs.items()}
        self._followers: dict[int, set[int]] = {number: set() for number in needs}
        for number, needed in self.needs.items():
            for one in needed:
                self._followers[one].add(number)
        # A bit for each of the groups at the beginning. A group has those of all that were joined
        # to it; any of them among the bits before another group says that it comes before that.
        self._own = {number: 1 << position for position, number in enumerate(needs)}
        self._before: dict[int, int] = {}
        for number in self._in_order():
            bits = 0
            for one in self.needs[number]:
                bits |= self._before[one] | self._own[one]
            self._before[number] = bits

    def _in_order(self) -> list[int]:
        """The groups, those that others need first."""
        missing = {number: len(needed) for number, needed in self.needs.items()}
        order = [number for number, count in missing.items() if not count]
        for number in order:
            for follower in self._followers[number]:
                missing[follower] -= 1
                if not missing[follower]:
                    order.append(follower)
        return order

    def has_between(self, first: int, second: int) -> bool:
        """Whether a third group must come after one of two groups and before the other."""
        return self._leads(first, second) or self._leads(second, first)

    def _leads(self, start: int, end: int) -> bool:
        """Whether `end` needs `start` by way of another group."""
        own = self._own[start]
        return any(self._before[one] & own for one in self.needs[end] if one != start)

    def join(self, first: int, second: int) -> None:
        """Makes one group of two, under the first's number; no third may have to be between."""
        needs, followers = self.needs, self._followers
        for one in needs[second]:
            followers[one].discard(second)
            followers[one].add(first)
        for one in followers[second]:
            needs[one].discard(second)
            needs[one].add(first)
        both = {first, second}
        needs[first] = (needs[first] | needs.pop(second)) - both
        followers[first] = (followers[first] | followers.pop(second)) - both
        self._own[first] |= self._own.pop(second)
        self._before[first] |= self._before.pop(second)
        self._before[first] &= ~self._own[first]
        # What follows one of them now comes after all that the other one needs.
        pending = [first]
        while pending:
            number = pending.pop()
            own, before = self._own[number], self._before[number]
            for one in followers[number]:
                known = self._before[one]
                more = known | before if known & own else known | before | own
                if more != known:
                    self._before[one] = more
                    pending.append(one)


def cycles(needs: Mapping[int, AbstractSet[int]]) -> list[list[int]]:
    """The groups that wait for each other, those of one cycle (or several that meet) together.

    Tarjan's strongly connected components, without recursion; a group that only needs itself is
    none.
    """
    found: list[list[int]] = []
    index: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_ones: dict[int, None] = {}
    for root in needs:
        if root in index:
            continue
        index[root] = lowest[root] = len(index)
        open_ones[root] = None
        pending = [(root, iter(needs[root]))]
        while pending:
            number, rest = pending[-1]
            for one in rest:
                if one not in index:
                    index[one] = lowest[one] = len(index)
                    open_ones[one] = None
                    pending.append((one, iter(needs[one])))
                    break
                if one in open_ones:
                    lowest[number] = min(lowest[number], index[one])
            else:
                pending.pop()
                if pending:
                    user = pending[-1][0]
                    lowest[user] = min(lowest[user], lowest[number])
                if lowest[number] == index[number]:
                    component: list[int] = []
                    while not component or component[-1] != number:
                        component.append(open_ones.popitem()[0])
                    if len(component) > 1:
                        found.append(component)
    return found
