"""Memories of an engine by name: allocated, read and written together, released."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from lamina.base.shapes import Array, converted, static
from lamina.base.shielded import shielded
from lamina.engines.engine import Engine, Memory
from lamina.engines.room import Need, need_of
from lamina.graph import Tensor
from lamina.program.program import Buffer


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
    engine: Engine, seed: int, slots: Mapping[str, tuple[Tensor, float]] | None = None
) -> dict[str, Memory]:
    """Memories of states that are not the model's: seed, counter of training steps, slots."""
    integer = np.dtype("int64")
    first = {
        name: (static(tensor.shape), tensor.dtype.numpy, value)
        for name, (tensor, value) in (slots or {}).items()
    }
    first |= {"seed": ((), integer, seed), "step": ((), integer, 0)}
    states: dict[str, Memory] = {}
    for name, (shape, dtype, value) in first.items():
        states[name] = engine.allocate(shape, dtype)
        states[name].write(np.broadcast_to(converted(np.asarray(value), dtype), shape))
    return states


def need_of_tensors(what: str, kind: str, tensors: Iterable[tuple[str, Tensor]]) -> Need:
    """The memory for tensors by name, which are buffers of a kind in programs."""
    return need_of(what, [Buffer(name, kind, static(t.shape), t.dtype) for name, t in tensors])
