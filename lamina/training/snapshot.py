"""The state of a training at the start of an epoch, from which it can be restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from lamina.base.shapes import Array, size_of
from lamina.base.shielded import shielded
from lamina.engines.engine import Engine, Memory
from lamina.runtime.memories import read_all, release_all, write_all
from lamina.runtime.model_lock import ModelLock

# Copies take at most this fraction of the engine's available memory.
_FRACTION = 1 / 4


@final
class Snapshot:
    """Copies of memories, in the engine's memory if they take little of it, else on the host."""

    def __init__(self, engine: Engine, memories: Mapping[str, Memory], lock: ModelLock) -> None:
        self._memories, self._lock = memories, lock
        self._is_complete = False
        self._copies: dict[str, Memory] = {}
        self._values: dict[str, Array] = {}
        needed = sum(size_of(one.shape) * one.dtype.itemsize for one in memories.values())
        available = engine.available_bytes()
        if available is not None and needed > available * _FRACTION:
            return
        try:
            for name, memory in memories.items():
                self._copies[name] = engine.allocate(memory.shape, memory.dtype)
        except BaseException:
            self.close()
            raise

    def take(self) -> None:
        """Replaces the copies by the present values."""
        self._is_complete = False
        with self._lock.mutex:
            if self._copies:
                _copy(self._memories, self._copies)
            else:
                self._values = read_all(self._memories)
        self._is_complete = True

    def restore(self) -> None:
        """Writes the copies back; no signal interrupts it.

        If `take` failed, nothing was changed since, and nothing is written.
        """
        if not self._is_complete:
            return
        with self._lock.mutex:
            if self._copies:
                shielded(lambda: _copy(self._copies, self._memories))
            else:
                write_all((self._memories[name], value) for name, value in self._values.items())

    def close(self) -> None:
        """Releases the memory of the copies."""
        copies, self._copies, self._values = self._copies, {}, {}
        release_all(copies)


def _copy(sources: Mapping[str, Memory], targets: Mapping[str, Memory]) -> None:
    for name, source in sources.items():
        targets[name].copy_from(source)
