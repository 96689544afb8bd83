"""Uploads of the inputs of single runs: the host continues while they are copied."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import final

import numpy as np

from lamina.engines.gpu.driver import Buffer, Driver, Transfer
from lamina.engines.gpu.memory import HostBlock
from lamina.program.program import Buffer as Input
from lamina.shapes import Array

# The host fills a slot while the device copies from another one. The queue holds at most as many
# runs as there are slots. Small inputs have more slots: their runs are short, and waking a thread
# that waits may take longer than a run.
_LEAST_SLOTS, _MOST_SLOTS = 2, 16
_BYTES_OF_SLOTS = 1 << 20
_ALIGNMENT_BYTES = 64


@final
class Uploads:
    """Host memory from which the inputs of single runs are copied to the device.

    It is allocated at the first runs, because runs over data sets do not need it.

    Args:
        driver: of the device.
        inputs: of a program.
    """

    def __init__(self, driver: Driver, inputs: Sequence[Input]) -> None:
        self._driver = driver
        self._inputs = [(number, one) for number, one in enumerate(inputs) if one.bytes]
        ends = [*accumulate(_padded(one.bytes) for _, one in self._inputs)]
        self._starts, self._size = [0, *ends][:-1], ends[-1] if ends else 0
        fitting = _BYTES_OF_SLOTS // self._size if self._size else 0
        self._count = min(max(fitting, _LEAST_SLOTS), _MOST_SLOTS)
        self._slots: list[HostBlock] = []
        self._transfers: list[list[Transfer]] = [[] for _ in range(self._count)]
        self._next = 0

    def send(self, arrays: Sequence[Array], targets: Sequence[Buffer]) -> None:
        """Copies arrays, one for each input; they may be changed as soon as this returns.

        It waits only while all slots are in use.

        Args:
            arrays: of the dtypes and sizes of the inputs.
            targets: the inputs' buffers on the device.
        """
        if not self._inputs:
            return
        if len(self._slots) < self._count:
            self._slots.append(HostBlock(self._driver, self._size))
        slot, transfers = self._slots[self._next].array, self._transfers[self._next]
        while transfers:
            transfers.pop().wait()
        self._next = (self._next + 1) % self._count
        queue = self._driver.queue
        for start, (number, one) in zip(self._starts, self._inputs, strict=True):
            piece = slot[start : start + one.bytes]
            view = piece.view(one.dtype.numpy).reshape(one.shape)
            np.copyto(view, arrays[number].reshape(one.shape), casting="no")
            transfers.append(queue.send(targets[number], piece))

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


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
