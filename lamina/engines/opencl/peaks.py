"""What a device can do at most, measured: the roof that steps are compared with."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyopencl as cl

from lamina.engines.engine import Peaks
from lamina.engines.opencl.build import build
from lamina.engines.opencl.devices import OpenDevice, driver_errors
from lamina.engines.opencl.memory import Block
from lamina.shapes import DType

# The best of so many runs counts: others may use the machine as well.
_RUNS = 5
_LEAST_SECONDS = 0.005
_CHAINS, _CALLS = 12, 256
_GROUP = 64
_ITEMS_OF_A_UNIT = 32 * _GROUP
# Larger than every cache.
_MOST_BYTES = 128 << 20

# Filled in: the type, the sums, their first values, their multiply-adds and their total.
_TEXT = """
kernel void multiply_add(global REAL* sums) {
    REAL x = sums[0], y = sums[1], STARTS;
    for (int call = 0; call < CALLS; call++) {
        CHAINS
    }
    sums[get_global_id(0)] = TOTAL;
}
kernel void copy(global REAL* target, global const REAL* source) {
    target[get_global_id(0)] = source[get_global_id(0)];
}
"""


def measured_peaks(device: OpenDevice, dtype: DType) -> Peaks:
    """Multiply-adds in registers by all units, and a copy of an array larger than every cache."""
    lanes = min(device.traits.lanes, 64 // dtype.itemsize)
    width = lanes * dtype.itemsize
    program = build(device, _text(dtype, lanes))
    items = device.handle.max_compute_units * _ITEMS_OF_A_UNIT
    copied = min(_MOST_BYTES, device.traits.largest_block_bytes, device.available_bytes() // 4)
    copies = copied // (width * _GROUP) * _GROUP
    with driver_errors(device, "measuring"):
        add = _runs_a_second(device, cl.Kernel(program, "multiply_add"), [items * width], items)
        sizes = [copies * width] * 2
        copy = _runs_a_second(device, cl.Kernel(program, "copy"), sizes, copies)
    return Peaks(2.0 * add * items * lanes * _CHAINS * _CALLS, copy * sum(sizes))


def _text(dtype: DType, lanes: int) -> str:
    sums = [f"s{number}" for number in range(_CHAINS)]
    words = {
        "REAL": {4: "float", 8: "double"}[dtype.itemsize] + (str(lanes) if lanes > 1 else ""),
        "STARTS": ", ".join(f"{one} = x + {n}" for n, one in enumerate(sums)),
        "CHAINS": " ".join(f"{one} = fma({one}, x, y);" for one in sums),
        "TOTAL": " + ".join(sums),
        "CALLS": str(_CALLS),
    }
    text = _TEXT
    for word, meaning in words.items():
        text = text.replace(word, meaning)
    return text


def _runs_a_second(
    device: OpenDevice, kernel: cl.Kernel, sizes: Sequence[int], items: int
) -> float:
    """How often a kernel over buffers of these sizes is run in a second, at best."""
    blocks = [Block(device, size) for size in sizes]
    kernel.set_args(*(block.buffer for block in blocks))

    def seconds(runs: int) -> float:
        started = time.perf_counter()
        for _ in range(runs):
            cl.enqueue_nd_range_kernel(device.queue, kernel, (items,), (_GROUP,))
        device.queue.finish()
        return time.perf_counter() - started

    runs = 1
    seconds(runs)
    while seconds(runs) < _LEAST_SECONDS:
        runs *= 2
    best = min(seconds(runs) for _ in range(_RUNS))
    for block in blocks:
        block.release()
    return runs / best
