"""Counting the changes of memories.

Operands that were packed from memories are packed again after a change. A reader that takes no lock
finds whether it has read during a change.
"""

from __future__ import annotations

from typing import final


@final
class Changes:
    """Counts the changes of any of several memories.

    Attributes:
        count: the changes that have begun.
        completed: equal to `count`, unless a change is going on or was interrupted by a signal.
    """

    __slots__ = ("completed", "count")

    def __init__(self) -> None:
        self.count = 0
        self.completed = 0

    def complete(self) -> None:
        """Notes that no change is going on."""
        self.completed = self.count
