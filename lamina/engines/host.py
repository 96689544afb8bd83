"""Memory of the computer itself, for the engines that run on it."""

from __future__ import annotations

import ctypes
import os
from typing import Any, cast, final

import numpy as np

from lamina.engines.engine import Memory
from lamina.errors import InternalError
from lamina.shapes import Array, size_of

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
        np.copyto(self.array, array.reshape(self.array.shape), casting="no")
        self.changes.count += 1

    def read(self) -> Array:
        return self.array.copy()

    def release(self) -> None:
        self.array = np.zeros(0, self.array.dtype)


def aligned(size: int) -> Array:
    """`size` bytes of zeros that start at a cache line."""
    block = np.zeros(size + ALIGNMENT_BYTES, np.uint8)
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


def physical_memory_bytes() -> int | None:
    """How much memory the computer has; None where the system does not say."""
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else None
