"""Transfers by a device while the host continues, and by several threads of the host.

Uploads are inputs of single runs, and examples that are streamed. On a device that copies while
kernels run, large inputs are uploaded early: a second queue copies them to upload buffers during
the run before, and the run begins with copies on the device.

Downloads are large results. A device writes fast to memory that it knows, but results are arrays of
the caller's; drivers would copy them by one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import final

import numpy as np

from lamina.base import copies
from lamina.base.shapes import Array
from lamina.engines.gpu.driver import Buffer, Driver, Event, Queue
from lamina.engines.gpu.memory import DeviceMemory, HostBlock, fill_from_buffer
from lamina.program.program import Buffer as Input

# The host fills a slot while the device copies from another one. The queue holds at most as many
# runs as there are slots. Small inputs have more slots: their runs are short, and waking a thread
# that waits may take longer than a run.
_LEAST_SLOTS, _MOST_SLOTS = 2, 16
_BYTES_OF_SLOTS = 1 << 20
_ALIGNMENT_BYTES = 64
# The pieces of a download that are on their way at the same time.
_SLOTS = 8


@final
class Uploads:
    """Host memory from which the inputs of single runs are copied to the device.

    It is allocated at the first runs, because runs over data sets do not need it.
    """

    def __init__(self, driver: Driver, inputs: Sequence[Input]) -> None:
        self._driver = driver
        self._inputs = [(number, input_) for number, input_ in enumerate(inputs) if input_.bytes]
        padded = (
            -(-input_.bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for _, input_ in self._inputs
        )
        *self._starts, self._size = accumulate(padded, initial=0)
        fitting = _BYTES_OF_SLOTS // self._size if self._size else 0
        self._count = min(max(fitting, _LEAST_SLOTS), _MOST_SLOTS)
        self._slots: list[HostBlock] = []
        self._transfers: list[list[Event]] = [[] for _ in range(self._count)]
        self._next = 0
        # When the upload buffers were copied to the inputs of the last run.
        self._copied: Event = None

    def send(self, arrays: Sequence[Array], targets: Sequence[Buffer]) -> None:
        """Copies arrays, one for each input; they may be changed as soon as this returns.

        It waits only while all slots are in use.
        """
        if self._inputs:
            self._send(self._driver.queue, arrays, targets)

    def send_early(
        self,
        arrays: Sequence[Array],
        early: Sequence[Buffer],
        targets: Sequence[Buffer],
        *,
        is_again: bool,
    ) -> None:
        """Like `send`, but copies by the second queue while the first one runs kernels.

        It copies to upload buffers that no kernel of the program uses, one for each input.
        `is_again` says that nothing else has used them since the last time.
        """
        queue, uploads = self._driver.queue, self._driver.upload_queue
        if self._copied is None or not is_again:
            self._copied = queue.mark()
            queue.flush()
        uploads.wait_for([self._copied])
        sent = self._send(uploads, arrays, early)
        uploads.flush()
        queue.wait_for(sent)
        for number, input_ in self._inputs:
            queue.copy(targets[number], 0, early[number], input_.bytes)
        self._copied = queue.mark()

    def _send(
        self, queue: Queue, arrays: Sequence[Array], targets: Sequence[Buffer]
    ) -> list[Event]:
        """Copies arrays to targets by a queue; returns the ends of the copies."""
        if len(self._slots) < self._count:
            self._slots.append(HostBlock(self._driver, self._size))
        slot, transfers = self._slots[self._next].array, self._transfers[self._next]
        while transfers:
            transfers.pop().wait()
        self._next = (self._next + 1) % self._count
        work: list[Callable[[], None]] = []
        sends: list[Callable[[], Event]] = []
        for start, (number, input_) in zip(self._starts, self._inputs, strict=True):
            copy = slot[start : start + input_.bytes].view(input_.dtype.numpy).reshape(input_.shape)
            source = arrays[number].reshape(input_.shape)
            if source.flags.c_contiguous:
                copy, source = copy.reshape(-1), source.reshape(-1)
            stride = copy[:1].nbytes
            for rows in copies.stretches(len(copy), stride):
                work.append(partial(np.copyto, copy[rows], source[rows], casting="no"))
                sends.append(partial(queue.send, targets[number], copy[rows], rows.start * stride))
        # The device copies the first pieces while the host still copies the others.
        copies.by_threads(work, self._size, lambda number: transfers.append(sends[number]()))
        return list(transfers)

    def release(self) -> None:
        """Waits for the copies, and releases the memory."""
        slots, self._slots = self._slots, []
        try:
            with self._driver.errors("copying inputs"):
                for transfers in self._transfers:
                    while transfers:
                        transfers.pop().wait()
        finally:
            for slot in slots:
                slot.release()


@final
class DeviceStaging:
    """Examples of a data set that does not fit: host arrays, and memories of a device.

    A second queue copies them while the device works.
    """

    def __init__(self, driver: Driver, sizes: Mapping[str, int]) -> None:
        self._driver = driver
        self._blocks: dict[str, HostBlock] = {}
        self.memories: dict[str, DeviceMemory] = {}
        try:
            for name, size in sizes.items():
                self.memories[name] = DeviceMemory(driver, (size,), np.dtype(np.uint8))
                if size:
                    self._blocks[name] = HostBlock(driver, size)
        except BaseException:
            self.release()
            raise

    @property
    def arrays(self) -> Mapping[str, Array]:
        """The bytes of the host arrays that are not empty."""
        return {name: block.array for name, block in self._blocks.items()}

    def send(self, sizes: Mapping[str, int]) -> None:
        """Begins to copy the first bytes of the arrays; later runs wait for that on the device.

        Runs that use the memories are done.
        """
        with self._driver.errors("copying examples"):
            queue = self._driver.upload_queue
            self._transfers = [
                queue.send(self.memories[name].buffer, block.array[: sizes[name]])
                for name, block in self._blocks.items()
                if sizes[name]
            ]
            queue.flush()
            self._driver.queue.wait_for(self._transfers)

    def release(self) -> None:
        """Waits for the copies, and releases the memory."""
        blocks, self._blocks, memories, self.memories = self._blocks, {}, self.memories, {}
        try:
            if blocks:
                with self._driver.errors("copying examples"):
                    self._driver.upload_queue.finish()
        finally:
            for memory in (*blocks.values(), *memories.values()):
                memory.release()


@final
class Downloads:
    """Host memory through which large results are copied; it is allocated for the first of them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._slots: HostBlock | None = None

    def fill(self, array: Array, buffer: Buffer) -> None:
        """Fills a contiguous array from the beginning of a buffer, after all commands so far."""
        if array.nbytes <= copies.PIECE_BYTES or not self._driver.traits.uploads_during_runs:
            fill_from_buffer(self._driver, buffer, array)
            return
        if self._slots is None:
            self._slots = HostBlock(self._driver, _SLOTS * copies.PIECE_BYTES)
        slots, target = self._slots.array, array.reshape(-1).view(np.uint8)
        with self._driver.errors("reading memory"):
            queue = self._driver.queue
            for first in range(0, len(target), len(slots)):
                some = target[first : first + len(slots)]
                work: list[partial[None]] = []
                for start in range(0, len(some), copies.PIECE_BYTES):
                    piece = some[start : start + copies.PIECE_BYTES]
                    slot = slots[start : start + len(piece)]
                    event = queue.fetch(slot, buffer, first + start)
                    work.append(partial(_finish, event, piece, slot))
                queue.flush()
                copies.by_threads(work, array.nbytes)

    def release(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.release()


def _finish(event: Event, target: Array, slot: Array) -> None:
    event.wait()
    np.copyto(target, slot)
