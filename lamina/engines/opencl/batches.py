"""Batches gathered on the device from a data set that lies there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import final

import numpy as np
import pyopencl as cl

from lamina.engines.opencl.build import build
from lamina.engines.opencl.devices import OpenDevice
from lamina.engines.opencl.memory import DeviceMemory
from lamina.shapes import Array

_GROUP = 64
# Examples are copied in words of so many bytes, the largest that they consist of.
_WORDS = {8: "ulong", 4: "uint", 2: "ushort", 1: "uchar"}
_KERNEL = """
kernel void gather_WORD(global const WORD* examples, global WORD* batch, global const long* rows,
                        long words, long first) {
    size_t word = get_global_id(0), example = get_global_id(1);
    if (word < words)
        batch[example * words + word] = examples[rows[first + example] * words + word];
}
"""
_TEXT = "".join(_KERNEL.replace("WORD", word) for word in _WORDS.values())


@cache
def _program(device: OpenDevice) -> cl.Program:
    return build(device, _TEXT)


@final
class Batches:
    """Copies the examples of one run after the other from data sets to a program's inputs.

    Args:
        device: where all of them lie.
        rows: int64 (runs, batch): the examples of each run.
        inputs: a data set, an input, and the bytes of the input; None where there are none.
    """

    def __init__(
        self,
        device: OpenDevice,
        rows: Array,
        inputs: Sequence[tuple[cl.Buffer | None, cl.Buffer | None, int]],
    ) -> None:
        self._rows = DeviceMemory(device, rows.shape, rows.dtype)
        self._rows.write(rows)
        self._batch = rows.shape[1]
        self._commands: list[tuple[cl.Kernel, tuple[int, int]]] = []
        for examples, batch, size in inputs:
            if examples is None or batch is None or not rows.size:
                continue
            each = size // self._batch
            width = next(width for width in _WORDS if each % width == 0)
            kernel = cl.Kernel(_program(device), f"gather_{_WORDS[width]}")
            words = each // width
            for number, value in enumerate((examples, batch, self._rows.buffer, np.int64(words))):
                kernel.set_arg(number, value)
            self._commands.append((kernel, (-(-words // _GROUP) * _GROUP, self._batch)))

    def enqueue(self, queue: cl.CommandQueue, run: int) -> None:
        """Fills the inputs with the examples of a run."""
        for kernel, size in self._commands:
            kernel.set_arg(4, np.int64(run * self._batch))
            cl.enqueue_nd_range_kernel(queue, kernel, size, (_GROUP, 1))

    def release(self) -> None:
        self._rows.release()
