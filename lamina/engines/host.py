"""Memory of the host, for the engines that run on it."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import numpy as np

from lamina.base.shapes import Array, size_of
from lamina.base.shielded import shielded
from lamina.engines import machine_memory
from lamina.engines.engine import (
    ALIGNMENT_BYTES,
    Arena,
    Changes,
    Engine,
    Grouping,
    Members,
    Memory,
    padded,
)
from lamina.engines.room import Need
from lamina.errors import EngineError, InternalError
from lamina.program.program import Program
from lamina.reports import bytes_text


@final
class HostMemory:
    """An array that starts at a cache line, unless it is the caller's.

    Args:
        shape, dtype: the shape and dtype of the array; with members, of the array of each.
        changes: the counter of writes to this memory and to others.
        members: the length of a first axis, along which each array starts at a cache line.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        changes: Changes | None = None,
        members: int | None = None,
    ) -> None:
        count, size = 1 if members is None else members, size_of(shape) * dtype.itemsize
        each = size if members is None else padded(size)
        rows = aligned(count * each).reshape(count, each)[:, :size].view(dtype)
        self.array = rows.reshape(shape if members is None else (count, *shape))
        self.changes = changes or Changes()

    @classmethod
    def of(cls, array: Array, changes: Changes | None = None) -> HostMemory:
        """An array of the caller's as memory that programs only read, without a copy."""
        memory = cls.__new__(cls)
        memory.array, memory.changes = array, changes or Changes()
        return memory

    def member(self, number: int) -> HostMemory:
        return HostMemory.of(self.array[number : number + 1].reshape(self.shape[1:]), self.changes)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def write(self, array: Array) -> None:
        # Counted before the write, which may be interrupted after a part of it.
        self.changes.count += 1
        np.copyto(self.array, array.reshape(self.array.shape), casting="no")
        self.changes.complete()

    def read(self) -> Array:
        return self.array.copy()

    def copy_from(self, source: Memory) -> None:
        self.write(host_array(source))

    def release(self) -> None:
        self.array = np.zeros(0, self.array.dtype)


class HostEngine(Engine):
    """The part of an engine that is equal for all engines in host memory.

    Attributes:
        changes: the counter of writes to the memories of the engine.
    """

    changes: Changes | None = None

    def available_bytes(self) -> int | None:
        return machine_memory.available_bytes()

    def allocate(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], members: int | None = None
    ) -> HostMemory:
        return HostMemory(shape, dtype, self.changes, members)

    def shared(self, array: Array) -> HostMemory:
        return HostMemory.of(array)

    def finite_check(self, memories: Sequence[Memory]) -> Callable[[], bool]:
        return lambda: all(np.isfinite(host_array(memory)).all() for memory in memories)

    def arena(self) -> HostArena:
        return HostArena()

    def needs(self, program: Program, members: Members | None = None) -> tuple[Need, ...]:
        # Workspaces are counted when a program is compiled: machine code takes long to write.
        return (Grouping(program) if members is None else self.grouping(program, members)).needs()


class Tenant(Protocol):
    """An executable in an arena."""

    def move_to(self, block: Array) -> None:
        """Uses the first bytes of this block from now on; their contents are undefined."""
        ...


@final
class HostArena:
    """A block of memory for executables that never run at the same time.

    None of them may run while one enters or leaves: the block may then be replaced by a larger or
    smaller one, and all executables moved to it.
    """

    def __init__(self) -> None:
        self._block = aligned(0)
        # Weak references: executables that were collected no longer count.
        self._needs: weakref.WeakKeyDictionary[Tenant, int] = weakref.WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[HostArena], tuple[()]]:
        # The executables of a copy are compiled again.
        return HostArena, ()

    @property
    def bytes(self) -> int:
        return self._block.size

    def enter(self, tenant: Tenant, size: int) -> None:
        """Gives an executable `size` bytes."""
        # Shielded: an executable that was not moved would use memory that was released.
        shielded(lambda: self._enter(tenant, size))

    def _enter(self, tenant: Tenant, size: int) -> None:
        self._needs[tenant] = size
        try:
            moved = self._resize()
        except BaseException:
            del self._needs[tenant]
            raise
        if not moved:
            tenant.move_to(self._block)

    def leave(self, tenant: Tenant) -> None:
        """Takes back the bytes of an executable, which must not use them any more."""

        def leave() -> None:
            self._needs.pop(tenant, None)
            self._resize()

        shielded(leave)

    def _resize(self) -> bool:
        """Makes the block just large enough; returns whether all executables were moved."""
        needed = max(self._needs.values(), default=0)
        if needed == self._block.size:
            return False
        self._block = aligned(needed)
        for tenant in list(self._needs):
            tenant.move_to(self._block)
        return True


def host_arena(arena: Arena | None) -> HostArena:
    """Checks that an arena is in host memory; makes a new one for None."""
    if arena is None:
        return HostArena()
    if not isinstance(arena, HostArena):
        raise InternalError(f"an engine was given an arena of another one: {arena}")
    return arena


def aligned(size: int) -> Array:
    """`size` bytes of zeros that start at a cache line; EngineError if the system refuses them."""
    try:
        block = np.zeros(size + ALIGNMENT_BYTES, np.uint8)
    except (MemoryError, OverflowError, ValueError) as error:
        raise EngineError(
            "the system refuses more memory",
            facts=(("needed", bytes_text(size)),),
            advice="Free memory, raise the limit of the process, or make the network smaller.",
        ) from error
    start = -block.ctypes.data % ALIGNMENT_BYTES
    return block[start : start + size]


def address_of(array: Array) -> int:
    """The address of a contiguous array, by the fastest method."""
    # NumPy does not share arrays of bfloat16, whose kind is "V", as buffers.
    if array.size and array.flags.writeable and array.dtype.kind != "V":
        buffer: Any = array
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    return array.ctypes.data


def host_array(memory: Memory) -> Array:
    """The array of a memory that is in host memory."""
    return host_memory(memory).array


def host_memory(memory: Memory) -> HostMemory:
    """Checks that a memory is in host memory."""
    if not isinstance(memory, HostMemory):
        raise InternalError(f"an engine was given memory of another one: {memory}")
    return memory
