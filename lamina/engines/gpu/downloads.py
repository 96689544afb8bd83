"""Downloads of large results, by the device and several threads of the host.

A device writes fast to memory that it knows, but results are arrays of the caller's; drivers would
copy them by one thread.
"""

from __future__ import annotations

from functools import partial
from typing import final

import numpy as np

from lamina.base import copies
from lamina.base.shapes import Array
from lamina.engines.gpu.driver import Buffer, Driver, Event
from lamina.engines.gpu.memory import HostBlock, fill_from_buffer

# The pieces that are on their way at the same time.
_SLOTS = 8


@final
class Downloads:
    """Host memory through which large results are copied; it is allocated for the first of them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._slots: HostBlock | None = None

    def fill(self, array: Array, buffer: Buffer) -> None:
        """Fills a contiguous array from the beginning of a buffer, after all commands so far."""
        if array.nbytes <= copies.PIECE_BYTES or not self._driver.traits.uploads_during_runs:
            fill_from_buffer(self._driver, buffer, array)
            return
        if self._slots is None:
            self._slots = HostBlock(self._driver, _SLOTS * copies.PIECE_BYTES)
        slots, target = self._slots.array, array.reshape(-1).view(np.uint8)
        with self._driver.errors("reading memory"):
            queue = self._driver.queue
            for first in range(0, len(target), len(slots)):
                some = target[first : first + len(slots)]
                work: list[partial[None]] = []
                for start in range(0, len(some), copies.PIECE_BYTES):
                    own = some[start : start + copies.PIECE_BYTES]
                    slot = slots[start : start + len(own)]
                    event = queue.fetch(slot, buffer, first + start)
                    work.append(partial(_finish, event, own, slot))
                queue.flush()
                copies.by_threads(work, array.nbytes)

    def release(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.release()


def _finish(event: Event, target: Array, slot: Array) -> None:
    event.wait()
    np.copyto(target, slot)
