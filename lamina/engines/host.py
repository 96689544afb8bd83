"""Memory of the computer itself, for the engines that run on it."""

from __future__ import annotations

import os
from typing import Any, final

import numpy as np

from lamina.engines.engine import Memory
from lamina.errors import InternalError
from lamina.shapes import Array, size_of

ALIGNMENT_BYTES = 64


@final
class HostMemory:
    """An array that starts at a cache line."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.array = aligned(size_of(shape) * dtype.itemsize).view(dtype).reshape(shape)

    def write(self, array: Array) -> None:
        np.copyto(self.array, array.reshape(self.array.shape), casting="no")

    def read(self) -> Array:
        return self.array.copy()

    def release(self) -> None:
        self.array = np.zeros(0, self.array.dtype)


def aligned(size: int) -> Array:
    """`size` bytes of zeros that start at a cache line."""
    block = np.zeros(size + ALIGNMENT_BYTES, np.uint8)
    start = -block.ctypes.data % ALIGNMENT_BYTES
    return block[start : start + size]


def host_array(memory: Memory) -> Array:
    """The array behind a memory of an engine that runs on the computer itself."""
    if not isinstance(memory, HostMemory):
        raise InternalError(f"an engine was given memory of another one: {memory}")
    return memory.array


def physical_memory_bytes() -> int | None:
    """How much memory the computer has; None where the system does not say."""
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else None
