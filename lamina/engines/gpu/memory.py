"""Memory of a device: counted allocations, and arrays in them."""

from __future__ import annotations

import weakref
from typing import Any, final

import numpy as np

from lamina.base.shapes import Array, size_of
from lamina.engines.engine import Changes, Memory
from lamina.engines.gpu.driver import Buffer, Driver
from lamina.engines.room import NOT_ASKED_BYTES
from lamina.errors import EngineError, InternalError
from lamina.reports import bytes_text


@final
class Block:
    """An allocation on a device, filled with zeros and counted until it is released.

    Raises:
        EngineError: if the device lacks the memory, or does not allow one such allocation.
    """

    def __init__(self, driver: Driver, size: int) -> None:
        limit = driver.traits.largest_block_bytes
        if size > limit:
            raise _no_room(driver, size, f"one allocation takes at most {bytes_text(limit)}")
        # Asking the system takes longer than a small allocation.
        available = driver.available_bytes() if size > NOT_ASKED_BYTES else size
        if size > available:
            raise _no_room(driver, size, f"{bytes_text(available)} are available")
        self._driver = driver
        taken = driver.allocated.bytes
        driver.allocated.add(size)
        self._counted = weakref.finalize(self, driver.allocated.add, -size)
        try:
            with driver.errors(
                "allocating memory",
                ("needed", bytes_text(size)),
                ("taken before", bytes_text(taken)),
            ):
                self.buffer = driver.allocate(size)
        except BaseException:
            self._counted()
            raise

    def release(self) -> None:
        """Releases the bytes, as soon as no command on the device uses them."""
        if self._counted.alive:
            self._counted()
            with self._driver.errors("releasing memory"):
                self._driver.release(self.buffer)


@final
class HostBlock:
    """Memory of the computer from which a device copies fast, counted until it is released.

    Raises:
        EngineError: if the system refuses it.
    """

    def __init__(self, driver: Driver, size: int) -> None:
        with driver.errors("allocating memory", ("needed", bytes_text(size))):
            self.array = driver.host_array(size)
        driver.allocated.add(size)
        self._counted = weakref.finalize(self, driver.allocated.add, -size)

    def release(self) -> None:
        """Releases the bytes; copies from them are done."""
        self._counted()
        self.array = np.zeros(0, np.uint8)


@final
class SharedBlock:
    """An array of the host that a device reads where it is. It takes no memory of the device.

    It is not changed until the block is released.
    """

    def __init__(self, driver: Driver, array: Array, buffer: Buffer) -> None:
        self._driver, self._array, self.buffer = driver, array, buffer

    def release(self) -> None:
        """Waits for the device, and releases the array."""
        try:
            with self._driver.errors("releasing memory"):
                self._driver.queue.finish()
                self._driver.release(self.buffer)
        finally:
            self._array = np.zeros(0, np.uint8)


@final
class Part:
    """A part of another block, which it keeps."""

    def __init__(self, driver: Driver, block: Block | SharedBlock | Part, offset: int) -> None:
        self._block = block
        with driver.errors("using a part of memory"):
            self.buffer = driver.part(block.buffer, offset)

    def release(self) -> None:
        """The other memory is released by its owner."""


def _no_room(driver: Driver, needed: int, limit: str) -> EngineError:
    return EngineError(
        "there is not enough memory on the device",
        facts=(
            ("needed", bytes_text(needed)),
            ("found", limit),
            ("device", driver.record.description),
        ),
        where=driver.record.engine,
        advice="Take a smaller batch or a smaller network, or release what is not used.",
    )


@final
class DeviceMemory:
    """An array on a device.

    `changes` counts the writes to this memory and to others. A `shared` array of the host, or a
    part of another block, may be in its stead; nothing writes to an array of the host. With
    `members`, so many arrays of this shape, each at an aligned address.
    """

    def __init__(
        self,
        driver: Driver,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        changes: Changes | None = None,
        shared: SharedBlock | Part | None = None,
        members: int | None = None,
    ) -> None:
        self.driver = driver
        self.changes = changes or Changes()
        self.shape, self.dtype = shape if members is None else (members, *shape), dtype
        # The bytes from one member to the next; those of the array without members.
        self._each = size_of(shape) * dtype.itemsize
        if members is not None:
            alignment = driver.traits.alignment_bytes
            self._each = -(-self._each // alignment) * alignment
        self.bytes = self._each * (1 if members is None else members)
        # Drivers have no buffers without bytes.
        self._block = shared or (Block(driver, self.bytes) if self.bytes else None)

    @property
    def buffer(self) -> Buffer:
        """The buffer of the array; None if it has no elements."""
        return None if self._block is None else self._block.buffer

    @property
    def _has_gaps(self) -> bool:
        return self.bytes != size_of(self.shape) * self.dtype.itemsize

    def member(self, number: int) -> DeviceMemory:
        block = self._block
        part = None if block is None else Part(self.driver, block, number * self._each)
        return DeviceMemory(self.driver, self.shape[1:], self.dtype, self.changes, part)

    def write(self, array: Array) -> None:
        # Counted before the write, which may fail after a part of it.
        self.changes.count += 1
        array = array.astype(self.dtype, casting="no", copy=False).reshape(self.shape)
        if self._has_gaps:
            members, array = len(array), np.ascontiguousarray(array)
            rows = array.reshape(members, -1).view(np.uint8)
            array = np.zeros((members, self._each), np.uint8)
            array[:, : rows.shape[1]] = rows
        write_buffer(self.driver, self.buffer, array)

    def read(self) -> Array:
        if not self._has_gaps:
            return read_buffer(self.driver, self.buffer, self.shape, self.dtype)
        members, *shape = self.shape
        block = read_buffer(self.driver, self.buffer, (members, self._each), np.dtype(np.uint8))
        rows = block[:, : size_of(tuple(shape)) * self.dtype.itemsize]
        return np.ascontiguousarray(rows).view(self.dtype).reshape(self.shape)

    def copy_from(self, source: Memory) -> None:
        self.changes.count += 1
        if self.bytes:
            with self.driver.errors("copying memory"):
                other = device_memory(source, self.driver).buffer
                self.driver.queue.copy(self.buffer, 0, other, self.bytes)

    def release(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.release()


def write_buffer(driver: Driver, buffer: Buffer, array: Array) -> None:
    """Copies an array to a buffer after all commands so far, and waits for that."""
    if buffer is not None:
        with driver.errors("writing memory"):
            driver.queue.write(buffer, np.ascontiguousarray(array))


def read_buffer(
    driver: Driver, buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """A copy of the array at the beginning of a buffer, after all commands so far."""
    array = np.empty(shape, dtype)
    fill_from_buffer(driver, buffer, array)
    return array


def fill_from_buffer(driver: Driver, buffer: Buffer, array: Array) -> None:
    """Fills a contiguous array from the beginning of a buffer, after all commands so far."""
    if buffer is not None:
        with driver.errors("reading memory"):
            driver.queue.read(array, buffer)


def device_memory(memory: Memory, driver: Driver) -> DeviceMemory:
    """Checks that a memory belongs to this device."""
    if not isinstance(memory, DeviceMemory) or memory.driver is not driver:
        raise InternalError(f"an engine was given memory of another one: {memory}")
    return memory
