"""What the workers of a program share, and how they do."""

from __future__ import annotations

from lamina.engines.cpu.slices import slices
from lamina.records import frozen_dataclass


@frozen_dataclass
class Work:
    """What workers share of a kernel.

    Attributes:
        items: how many work items there are.
        cycles: what all of them cost together, roughly.
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
        count: into how many slices these are cut, each of which a worker begins with.
        at_once: how many of a slice are a chunk, which a worker claims at once.
    """

    work: Work
    count: int
    at_once: int

    def __str__(self) -> str:
        return f"{counted(self.count, 'slice')}, {counted(self.at_once, 'work item')} at once"


def sliced(work: Work, workers: int) -> Slices:
    """How so many workers share a kernel."""
    return Slices(work, *slices(work.items, work.cycles, workers))


def counted(number: int, noun: str) -> str:
    """A number of things, for people."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
