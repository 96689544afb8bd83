"""How many bytes of a device are taken: drivers do not tell."""

from __future__ import annotations

from threading import Lock
from typing import final


@final
class Allocated:
    """A count of bytes that threads may change at the same time."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = Lock()

    def add(self, size: int) -> None:
        """Notes that so many bytes were taken, or given back if it is negative."""
        with self._lock:
            self.bytes += size
