"""The work of a kernel, and how workers share it."""

from __future__ import annotations

from lamina.base.records import frozen_dataclass
from lamina.engines.simd.decide.slices import slices


@frozen_dataclass
class Work:
    """The work of a kernel.

    Attributes:
        items: the number of work items.
        cycles: a rough estimate for all work items together.
    """

    items: int
    cycles: float

    def __str__(self) -> str:
        return f"{counted(self.items, 'work item')}, {self.cycles:,.0f} cycles"


@frozen_dataclass
class Slices:
    """How workers share a kernel.

    Attributes:
        work: its work items.
        count: the number of slices; each worker begins with a different slice.
        at_once: the work items of a chunk, which a worker claims at once.
    """

    work: Work
    count: int
    at_once: int

    def __str__(self) -> str:
        return f"{counted(self.count, 'slice')}, {counted(self.at_once, 'work item')} at once"


def sliced(work: Work, workers: int) -> Slices:
    """How `workers` workers share a kernel."""
    return Slices(work, *slices(work.items, work.cycles, workers))


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the plural if the number is not 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
