"""Memory of an executable for results that later runs must not overwrite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from lamina.base.shapes import Array, size_of
from lamina.engines.gpu.driver import Buffer, Driver
from lamina.engines.gpu.memory import DeviceMemory, read_buffer, write_buffer

# The scalars that are kept in one allocation.
_SCALARS = 256


@final
class Recording:
    """The examples and the recorded outputs of runs over a data set.

    Memory is kept for the next runs, and replaced if they need more: allocating it waits for the
    device.

    Args:
        driver: of the device.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._memories: dict[str, DeviceMemory] = {}

    def write(self, name: str, array: Array) -> Buffer:
        """A buffer that begins with an array; None if the array has no elements."""
        buffer = self.buffer(name, array.nbytes)
        write_buffer(self._driver, buffer, array.shape, array.dtype, array)
        return buffer

    def buffer(self, name: str, size: int) -> Buffer:
        """The buffer of a name, with at least so many bytes; None for none."""
        if not size:
            return None
        found = self._memories.get(name)
        if found is None or found.bytes < size:
            if found is not None:
                del self._memories[name]
                found.release()
            found = DeviceMemory(self._driver, (size,), np.dtype(np.uint8))
            self._memories[name] = found
        return found.buffer

    def read(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A copy of the array at the beginning of a buffer."""
        buffer = self.buffer(name, size_of(shape) * dtype.itemsize)
        return read_buffer(self._driver, buffer, shape, dtype)

    def release(self) -> None:
        """Releases the memory."""
        while self._memories:
            self._memories.popitem()[1].release()


@final
class KeptScalars:
    """Copies of scalars, made on the device without waiting for it.

    Args:
        driver: of the device.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._used = _SCALARS
        self._memory: DeviceMemory

    def keep(self, buffer: Buffer, dtype: np.dtype[Any]) -> Callable[[], float]:
        """A function that waits for the device and returns the value that a buffer has now.

        The function keeps the memory of its copy.
        """
        if self._used == _SCALARS:
            self._memory = DeviceMemory(self._driver, (_SCALARS,), np.dtype(np.float64))
            self._used = 0
        memory, offset = self._memory, self._used * np.dtype(np.float64).itemsize
        self._driver.queue.copy(memory.buffer, offset, buffer, dtype.itemsize)
        self._used += 1
        return lambda: memory.read().view(np.uint8)[offset:].view(dtype)[0].item()
