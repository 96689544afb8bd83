"""The steps that touch the same memory, found by address ranges instead of comparing all pairs.

One numbering covers all memory of a program: first the arena, then the memory of packed operands
and workspaces, then a number for each other buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import final

import numpy as np

from lamina.program.program import Program
from lamina.program.steps import writes_of

# The range of numbers of each buffer, the end excluded. Buffers that overlap in memory have
# overlapping ranges.
Extents = Mapping[str, tuple[int, int]]


def extents_of(program: Program, others: Extents | None = None) -> dict[str, tuple[int, int]]:
    """The extent of each buffer, and of `others` in separate memory.

    The extents of buffers that share memory overlap.
    """
    positions = program.plan.positions()
    sizes = {allocation.buffer: allocation.bytes for allocation in program.plan.allocations}
    extents = {name: (positions[name], positions[name] + size) for name, size in sizes.items()}
    free = program.plan.arena_bytes
    others = others or {}
    extents |= {name: (free + start, free + end) for name, (start, end) in others.items()}
    free += max((end for _, end in others.values()), default=0)
    rest = [name for name in program.buffers if name not in extents]
    extents |= {name: (free + number, free + number + 1) for number, name in enumerate(rest)}
    return extents


@final
class LastTouched:
    """The last step or kernel that touched each range of memory, while all are visited in order."""

    def __init__(self, extents: Extents) -> None:
        edges = sorted({edge for extent in extents.values() for edge in extent})
        numbers = {edge: number for number, edge in enumerate(edges)}
        self._slices = {
            name: slice(numbers[start], numbers[end]) for name, (start, end) in extents.items()
        }
        self._last = np.full(len(edges), -1, np.int64)

    def touch(self, names: Iterable[str], number: int) -> None:
        """Notes that the step with this number, the highest so far, touches buffers."""
        for name in names:
            self._last[self._slices[name]] = number

    def last(self, names: Iterable[str]) -> int:
        """The last step that touched memory of the buffers; -1 if there is none."""
        return max(
            (int(self._last[self._slices[name]].max(initial=-1)) for name in names), default=-1
        )


@final
class Writes:
    """The memory that each step of a program writes."""

    def __init__(self, program: Program) -> None:
        self._extents = extents_of(program)
        written = [
            (number, *self._extents[name])
            for number, step in enumerate(program.steps)
            for name in writes_of(step)
        ]
        table = np.array(written, np.int64).reshape(-1, 3)
        self._steps, self._starts, self._ends = np.ascontiguousarray(table.T)

    def any_between(self, names: Sequence[str], first: int, last: int) -> bool:
        """Whether a step from `first` up to but without `last` writes to the buffers."""
        steps = slice(*np.searchsorted(self._steps, (first, last)))
        starts, ends = self._starts[steps], self._ends[steps]
        return any(
            bool(((starts < end) & (start < ends)).any())
            for start, end in (self._extents[name] for name in names)
        )
