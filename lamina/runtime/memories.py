"""Memories of an engine by name: allocated, read and written together, restored, released."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import final

import numpy as np

from lamina.base.shapes import Array, converted, size_of, static
from lamina.base.shielded import shielded
from lamina.engines.engine import Engine, Memory, padded
from lamina.engines.room import Need, need_of
from lamina.graph import Tensor
from lamina.program.program import Buffer
from lamina.runtime.model_lock import ModelLock

# Copies of a snapshot take at most this fraction of the engine's available memory.
_FRACTION = 1 / 4


def read_all(memories: Mapping[str, Memory]) -> dict[str, Array]:
    """Consistent copies of several memories.

    It waits for the end of a `write_all`, which the calling signal handler may have interrupted in
    the same thread.
    """
    return shielded(lambda: {name: memory.read() for name, memory in memories.items()})


def write_all(new: Iterable[tuple[Memory, Array]]) -> None:
    """Writes several memories; signals cannot interrupt it between two of them."""
    ready = list(new)

    def write() -> None:
        for memory, array in ready:
            memory.write(array)

    shielded(write)


def release_all(memories: Mapping[str, Memory]) -> None:
    """Gives memories back to their engine."""
    for memory in memories.values():
        memory.release()


def allocate_states(
    engine: Engine,
    seed: int | Array,
    slots: Mapping[str, tuple[Tensor, float]] | None = None,
    members: int | None = None,
) -> dict[str, Memory]:
    """Memories of states that are not the model's: seed, counter of training steps, slots.

    Args:
        seed: the seed; of a population one for each member.
        slots: tensors and their first values, by name.
        members: the number of members of a population; None for a model.
    """
    integer = np.dtype("int64")
    first = {
        name: (static(tensor.shape), tensor.dtype.numpy, value)
        for name, (tensor, value) in (slots or {}).items()
    }
    first |= {"seed": ((), integer, seed), "step": ((), integer, 0)}
    states: dict[str, Memory] = {}
    for name, (shape, dtype, value) in first.items():
        states[name] = memory = engine.allocate(shape, dtype, members)
        memory.write(np.broadcast_to(converted(np.asarray(value), dtype), memory.shape))
    return states


def need_of_tensors(
    what: str, kind: str, tensors: Iterable[tuple[str, Tensor]], members: int | None = None
) -> Need:
    """The memory for tensors by name, which are buffers of a kind in programs.

    Args:
        members: the number of members of a population, each of which has these; None for a model.
    """
    buffers = [Buffer(name, kind, static(t.shape), t.dtype) for name, t in tensors]
    if members is None:
        return need_of(what, buffers)
    of_all = [replace(buffer, shape=(members, *buffer.shape)) for buffer in buffers]
    return need_of(what, of_all, members * sum(padded(buffer.bytes) for buffer in buffers))


@final
class Snapshot:
    """Copies of memories, in the engine's memory if they take little of it, else on the host.

    Args:
        members: the number of members of a population; None for a model.
    """

    def __init__(
        self,
        engine: Engine,
        memories: Mapping[str, Memory],
        lock: ModelLock,
        members: int | None = None,
    ) -> None:
        self._memories, self._lock = memories, lock
        self._is_complete = False
        self._copies: dict[str, Memory] = {}
        self._values: dict[str, Array] = {}
        needed = sum(size_of(memory.shape) * memory.dtype.itemsize for memory in memories.values())
        available = engine.available_bytes()
        if available is not None and needed > available * _FRACTION:
            return
        try:
            for name, memory in memories.items():
                shape = memory.shape if members is None else memory.shape[1:]
                self._copies[name] = engine.allocate(shape, memory.dtype, members)
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

    def restore(self, members: Array | None = None) -> None:
        """Writes the copies back, also of some members alone; no signal interrupts it.

        If `take` failed, nothing was changed since, and nothing is written.
        """
        if not self._is_complete:
            return
        with self._lock.mutex:
            if members is not None:
                before = read_all(self._copies) or self._values
                present = read_all({name: self._memories[name] for name in before})
                for name, values in present.items():
                    values[members] = before[name][members]
                write_all((self._memories[name], values) for name, values in present.items())
            elif self._copies:
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
