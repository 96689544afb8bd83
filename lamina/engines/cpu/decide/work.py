"""What the workers of a program share."""

from __future__ import annotations

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


def counted(number: int, noun: str) -> str:
    """A number of things, for people."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
