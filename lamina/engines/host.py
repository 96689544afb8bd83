"""Memory of the computer itself, for the engines that run on it."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Protocol, cast, final

import numpy as np

from lamina.engines.engine import Arena, Memory
from lamina.errors import EngineError, InternalError
from lamina.reports import bytes_text
from lamina.shapes import Array, size_of
from lamina.shielded import shielded

ALIGNMENT_BYTES = 64


@final
class Changes:
    """Counts how often one of some memories was changed."""

    def __init__(self) -> None:
        self.count = 0


@final
class HostMemory:
    """An array that starts at a cache line.

    Args:
        shape, dtype: of the array.
        changes: counts what is written, here and in other memories.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], changes: Changes | None = None
    ) -> None:
        self.array = aligned(size_of(shape) * dtype.itemsize).view(dtype).reshape(shape)
        self.changes = changes or Changes()

    def write(self, array: Array) -> None:
        # Before: whoever is interrupted here has changed something, as far as others know.
        self.changes.count += 1
        np.copyto(self.array, array.reshape(self.array.shape), casting="no")

    def read(self) -> Array:
        return self.array.copy()

    def release(self) -> None:
        self.array = np.zeros(0, self.array.dtype)


class Tenant(Protocol):
    """An executable in an arena."""

    def move_to(self, block: Array) -> None:
        """From now on uses the first bytes of this block, which hold nothing yet."""
        ...


@final
class HostArena:
    """A block of memory for executables that never run at the same time.

    Whoever lets one enter or leave holds back the others: they are moved when the block is
    exchanged for a larger or smaller one.
    """

    def __init__(self) -> None:
        self._block = aligned(0)
        # Executables that nobody holds any more count no longer.
        self._needs: weakref.WeakKeyDictionary[Tenant, int] = weakref.WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[HostArena], tuple[()]]:
        # The executables of a copy are compiled anew.
        return HostArena, ()

    @property
    def bytes(self) -> int:
        return self._block.size

    def enter(self, tenant: Tenant, size: int) -> None:
        """Gives an executable so many bytes."""
        # Whole: who was not moved would use memory that is gone.
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
        """Takes the bytes of an executable back, which must not use them any more."""

        def leave() -> None:
            self._needs.pop(tenant, None)
            self._resize()

        shielded(leave)

    def _resize(self) -> bool:
        """Makes the block just large enough; whether all executables were moved."""
        needed = max(self._needs.values(), default=0)
        if needed == self._block.size:
            return False
        self._block = aligned(needed)
        for tenant in list(self._needs):
            tenant.move_to(self._block)
        return True


def host_arena(arena: Arena | None) -> HostArena:
    """The arena, which is of an engine that runs on the computer itself; a new one for None."""
    if arena is None:
        return HostArena()
    if not isinstance(arena, HostArena):
        raise InternalError(f"an engine was given an arena of another one: {arena}")
    return arena


def aligned(size: int) -> Array:
    """`size` bytes of zeros that start at a cache line.

    Raises:
        EngineError: if the system does not give them.
    """
    try:
        block = np.zeros(size + ALIGNMENT_BYTES, np.uint8)
    except (MemoryError, OverflowError, ValueError) as error:
        raise EngineError(
            "the system gives no more memory",
            facts=(("needed", bytes_text(size)),),
            advice="Free some, raise the limit of the process, or make the network smaller.",
        ) from error
    start = -block.ctypes.data % ALIGNMENT_BYTES
    return block[start : start + size]


def address_of(array: Array) -> int:
    """Where a contiguous array begins; as quickly as that can be asked."""
    if array.flags.writeable:
        return ctypes.addressof(ctypes.c_char.from_buffer(cast(Any, array)))
    return array.ctypes.data


def host_array(memory: Memory) -> Array:
    """The array behind a memory of an engine that runs on the computer itself."""
    return host_memory(memory).array


def host_memory(memory: Memory) -> HostMemory:
    """The memory, which is of an engine that runs on the computer itself."""
    if not isinstance(memory, HostMemory):
        raise InternalError(f"an engine was given memory of another one: {memory}")
    return memory
