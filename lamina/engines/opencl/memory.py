"""Memory of a device: arrays, and the arena that programs share."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Protocol, final

import numpy as np
import pyopencl as cl

from lamina.engines.engine import Arena, Memory
from lamina.engines.opencl.devices import OpenDevice, driver_errors, open_device
from lamina.errors import EngineError, InternalError
from lamina.reports import bytes_text
from lamina.shapes import Array, size_of
from lamina.shielded import shielded


@final
class Block:
    """Bytes of a device that begin as zeros, counted until they are given back.

    Args:
        device: whose.
        size: how many, at least 1.

    Raises:
        EngineError: if there are not so many, or not in one piece.
    """

    def __init__(self, device: OpenDevice, size: int) -> None:
        limit, available = device.traits.largest_block_bytes, device.available_bytes()
        if size > limit:
            raise _no_room(device, size, f"one allocation takes at most {bytes_text(limit)}")
        if size > available:
            raise _no_room(device, size, f"{bytes_text(available)} are available")
        device.count(size)
        self._counted = weakref.finalize(self, device.count, -size)
        try:
            with driver_errors(
                device,
                "allocating memory",
                ("needed", bytes_text(size)),
                ("taken before", bytes_text(device.allocated_bytes - size)),
            ):
                self.buffer = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, size)
                # Drivers allocate when a buffer is first used: here a lack of memory can be told.
                cl.enqueue_fill_buffer(device.queue, self.buffer, np.zeros(1, "uint8"), 0, size)
                device.queue.finish()
        except BaseException:
            self._counted()
            raise

    def release(self) -> None:
        """Gives the bytes back, as soon as nothing on the device uses them."""
        if self._counted.alive:
            self._counted()
            self.buffer.release()


def _no_room(device: OpenDevice, needed: int, found: str) -> EngineError:
    return EngineError(
        "there is not enough memory on the OpenCL device",
        facts=(
            ("needed", bytes_text(needed)),
            ("found", found),
            ("device", device.record.description),
        ),
        where=device.record.engine,
        advice="Take a smaller batch or a smaller network, or release what is not used.",
    )


@final
class DeviceMemory:
    """An array on a device."""

    def __init__(self, device: OpenDevice, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.device = device
        self._shape, self._dtype = shape, dtype
        # OpenCL has no buffers without bytes.
        size = size_of(shape) * dtype.itemsize
        self._block = Block(device, size) if size else None

    @property
    def buffer(self) -> cl.Buffer | None:
        """Where the array lies; None if it has no elements."""
        return None if self._block is None else self._block.buffer

    def write(self, array: Array) -> None:
        # Other bytes would be written as they are.
        array = array.astype(self._dtype, casting="no", copy=False).reshape(self._shape)
        write_buffer(self.device, self.buffer, array)

    def read(self) -> Array:
        return read_buffer(self.device, self.buffer, self._shape, self._dtype)

    def release(self) -> None:
        if self._block is not None:
            self._block.release()
            self._block = None


def write_buffer(device: OpenDevice, buffer: cl.Buffer | None, array: Array) -> None:
    """Copies an array to a buffer behind all commands so far, and waits for that."""
    if buffer is not None:
        with driver_errors(device, "writing memory"):
            cl.enqueue_copy(device.queue, buffer, np.ascontiguousarray(array), is_blocking=True)


def read_buffer(
    device: OpenDevice, buffer: cl.Buffer | None, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """A copy of the array at the beginning of a buffer, when all commands so far are done."""
    array = np.empty(shape, dtype)
    if buffer is not None:
        with driver_errors(device, "reading memory"):
            cl.enqueue_copy(device.queue, array, buffer, is_blocking=True)
    return array


def device_memory(memory: Memory, device: OpenDevice) -> DeviceMemory:
    """The memory, which is of this device."""
    if not isinstance(memory, DeviceMemory) or memory.device is not device:
        raise InternalError(f"an engine was given memory of another one: {memory}")
    return memory


class Tenant(Protocol):
    """An executable in an arena."""

    def let_go(self) -> None:
        """From now on uses nothing of the arena."""
        ...

    def move_to(self, blocks: Sequence[cl.Buffer]) -> None:
        """From now on uses the first bytes of these blocks, whatever they hold."""
        ...


@final
class DeviceArena:
    """Blocks of memory for executables that never run at the same time.

    Each block is as large as the largest need of them. Before blocks are exchanged for larger or
    smaller ones they are given back, so that both need not fit at once.

    Args:
        name: of the device, as for `open_device`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.device = open_device(name)
        self._blocks: list[Block] = []
        self._sizes: tuple[int, ...] = ()
        # Executables that nobody holds any more count no longer.
        self._needs: weakref.WeakKeyDictionary[Tenant, tuple[int, ...]] = (
            weakref.WeakKeyDictionary()
        )

    def __reduce__(self) -> tuple[type[DeviceArena], tuple[str]]:
        # The executables of a copy are compiled anew.
        return DeviceArena, (self._name,)

    @property
    def bytes(self) -> int:
        return sum(self._sizes)

    def enter(self, tenant: Tenant, sizes: tuple[int, ...]) -> None:
        """Gives an executable blocks of so many bytes."""
        # Whole: who was not moved would use memory that is gone.
        shielded(lambda: self._enter(tenant, sizes))

    def _enter(self, tenant: Tenant, sizes: tuple[int, ...]) -> None:
        self._needs[tenant] = sizes
        try:
            if not self._resize():
                tenant.move_to([block.buffer for block in self._blocks])
        except BaseException:
            # The others go on where they were.
            del self._needs[tenant]
            tenant.let_go()
            self._resize()
            raise

    def leave(self, tenant: Tenant) -> None:
        """Takes the blocks of an executable back, which must not use them any more."""

        def leave() -> None:
            self._needs.pop(tenant, None)
            tenant.let_go()
            self._resize()

        shielded(leave)

    def _resize(self) -> bool:
        """Makes the blocks just large enough; whether all executables were moved."""
        rows = zip_longest(*self._needs.values(), fillvalue=0)
        needed = tuple(max(row) for row in rows)
        if needed == self._sizes:
            return False
        tenants = list(self._needs)
        for tenant in tenants:
            tenant.let_go()
        for block in self._blocks:
            block.release()
        self._blocks, self._sizes = [], ()
        self._blocks = [Block(self.device, size) for size in needed]
        self._sizes = needed
        for tenant in tenants:
            tenant.move_to([block.buffer for block in self._blocks])
        return True


def device_arena(arena: Arena | None, name: str) -> DeviceArena:
    """The arena, which is of the device of that name; a new one for None."""
    if arena is None:
        return DeviceArena(name)
    if not isinstance(arena, DeviceArena) or arena.device is not open_device(name):
        raise InternalError(f"an engine was given an arena of another one: {arena}")
    return arena
