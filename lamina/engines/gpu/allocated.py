"""The count of bytes that were allocated on a device: drivers do not report it."""

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
        """Adds allocated bytes; a negative size is released."""
        with self._lock:
            self.bytes += size
