"""The order in which groups must run, while groups are joined.

The transitive relation is kept as a set of bits for each group. Each group is checked several times
for a join, and the bits make a check possible without a traversal of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from graphlib import CycleError, TopologicalSorter
from typing import final


@final
class Precedence:
    """The partial order of groups, by number, from the groups directly before each; no cycles."""

    def __init__(self, predecessors: Mapping[int, AbstractSet[int]]) -> None:
        self.predecessors: dict[int, set[int]] = {
            n: set(needed) for n, needed in predecessors.items()
        }
        self._successors: dict[int, set[int]] = {number: set() for number in predecessors}
        for number, needed in self.predecessors.items():
            for predecessor in needed:
                self._successors[predecessor].add(number)
        # A bit for each initial group. A joined group owns the bits of all its initial groups. It
        # comes before another group if that group's `_before` has any of these bits.
        self._bits = {number: 1 << position for position, number in enumerate(predecessors)}
        self._before: dict[int, int] = {}
        for number in TopologicalSorter(self.predecessors).static_order():
            bits = 0
            for predecessor in self.predecessors[number]:
                bits |= self._before[predecessor] | self._bits[predecessor]
            self._before[number] = bits

    def has_between(self, first: int, second: int) -> bool:
        """Whether a third group must run between two groups."""
        return any(
            self._before[predecessor] & self._bits[start]
            for start, end in ((first, second), (second, first))
            for predecessor in self.predecessors[end]
            if predecessor != start
        )

    def join(self, first: int, second: int) -> None:
        """Joins two groups under the first's number. No third group may have to run between."""
        predecessors, successors = self.predecessors, self._successors
        for predecessor in predecessors[second]:
            successors[predecessor].discard(second)
            successors[predecessor].add(first)
        for successor in successors[second]:
            predecessors[successor].discard(second)
            predecessors[successor].add(first)
        both = {first, second}
        predecessors[first] = (predecessors[first] | predecessors.pop(second)) - both
        successors[first] = (successors[first] | successors.pop(second)) - both
        self._bits[first] |= self._bits.pop(second)
        self._before[first] |= self._before.pop(second)
        self._before[first] &= ~self._bits[first]
        # The successors of either group now come after all predecessors of the other.
        pending = [first]
        while pending:
            number = pending.pop()
            bits, before = self._bits[number], self._before[number]
            for successor in successors[number]:
                old = self._before[successor]
                new = old | before if old & bits else old | before | bits
                if new != old:
                    self._before[successor] = new
                    pending.append(successor)


def cycle(predecessors: Mapping[int, AbstractSet[int]]) -> list[int]:
    """Groups that wait for each other; none if the groups have an order."""
    try:
        TopologicalSorter(predecessors).prepare()
    except CycleError as error:
        return error.args[1]
    return []
