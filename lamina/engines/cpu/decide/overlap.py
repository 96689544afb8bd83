"""Which steps touch the same memory: found by place, not by comparing each step with all others.

All that a program uses lies side by side in one numbering: the arena, what is placed beside it,
and each other buffer for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import final

import numpy as np

from lamina.program.program import Program
from lamina.program.steps import writes_of

# From where to where, in the numbering of a program.
Extents = Mapping[str, tuple[int, int]]


def extents_of(program: Program, beside: Extents | None = None) -> dict[str, tuple[int, int]]:
    """Where each buffer lies; those that share memory meet.

    Args:
        program: whose buffers they are.
        beside: what lies in another memory, from where to where in that.
    """
    positions = program.plan.positions()
    found = {
        place.buffer: (positions[place.buffer], positions[place.buffer] + place.bytes)
        for place in program.plan.allocations
    }
    free = program.plan.arena_bytes
    beside = beside or {}
    found |= {name: (free + start, free + end) for name, (start, end) in beside.items()}
    free += max((end for _, end in beside.values()), default=0)
    others = [name for name in program.buffers if name not in found]
    found |= {name: (free + number, free + number + 1) for number, name in enumerate(others)}
    return found


@final
class LastTouched:
    """When each place was touched last, for whoever goes through steps or parts in order.

    Args:
        extents: where buffers lie.
    """

    def __init__(self, extents: Extents) -> None:
        edges = sorted({edge for extent in extents.values() for edge in extent})
        numbers = {edge: number for number, edge in enumerate(edges)}
        self._slices = {
            name: slice(numbers[start], numbers[end]) for name, (start, end) in extents.items()
        }
        self._last = np.full(len(edges), -1, np.int64)

    def touch(self, names: Iterable[str], number: int) -> None:
        """Remembers that buffers are touched by a step of this number, the highest so far."""
        for name in names:
            self._last[self._slices[name]] = number

    def last(self, names: Iterable[str]) -> int:
        """The last step that touched the memory of one of the buffers; -1 if there is none."""
        return max(
            (int(self._last[self._slices[name]].max(initial=-1)) for name in names), default=-1
        )


@final
class Writes:
    """What the steps of a program write, to ask for those between two of them."""

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
        """Whether memory of the buffers is written by a step from the first to before the last."""
        steps = slice(*np.searchsorted(self._steps, (first, last)))
        starts, ends = self._starts[steps], self._ends[steps]
        return any(
            bool(((starts < end) & (start < ends)).any())
            for start, end in (self._extents[name] for name in names)
        )
