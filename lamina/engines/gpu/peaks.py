"""Measured peaks of a device: the roofline with which steps are compared."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lamina.codegen.c import Module
from lamina.codegen.values import I64, Type, Value, constant
from lamina.engines.engine import Peaks
from lamina.engines.gpu.driver import Driver, Kernel
from lamina.engines.gpu.kernels import module_for
from lamina.engines.gpu.memory import Block
from lamina.engines.gpu.work_item import items_below
from lamina.shapes import DType, float32

# The fastest of several runs counts, because other processes may use the machine too.
_RUNS = 5
_LEAST_SECONDS = 0.005
_CHAINS, _CALLS = 12, 256
_ITEMS_PER_COMPUTE_UNIT = 2048
# Larger than every cache.
_MOST_BYTES = 128 << 20


def measured_peaks(driver: Driver, dtype: DType) -> Peaks:
    """Multiply-adds in registers on all compute units; a copy of an array larger than caches."""
    # Floats of 16 bits are multiplied and added up in float32.
    dtype = float32 if dtype.is_half else dtype
    lanes = min(driver.traits.lanes, 64 // dtype.itemsize)
    type = Type({4: "float", 8: "double"}[dtype.itemsize], lanes if lanes > 1 else 0)
    width = lanes * dtype.itemsize
    items = driver.traits.compute_units * _ITEMS_PER_COMPUTE_UNIT
    most = min(_MOST_BYTES, driver.traits.largest_block_bytes, driver.available_bytes() // 4)
    copies = most // width
    module = module_for(driver.traits, driver.words)
    _write_multiply_add(module, type, items)
    _write_copy(module, type, copies)
    built = driver.build(module.text())

    def runs_a_second(name: str, sizes: Sequence[int], items: int, group: int = 0) -> float:
        blocks = [Block(driver, size) for size in sizes]
        buffers = [block.buffer for block in blocks]
        kernel = driver.kernel(built, name, buffers, items, numbered=False, group=group)
        best = _runs_a_second(driver, kernel)
        for block in blocks:
            block.release()
        return best

    with driver.errors("measuring"):
        # Groups of one item are not vectorized again on processors, as in the kernels of programs.
        group = int(driver.traits.is_processor)
        add = runs_a_second("multiply_add", [items * width], items, group)
        copy = runs_a_second("copy", [copies * width] * 2, copies)
    return Peaks(2.0 * add * items * lanes * _CHAINS * _CALLS, 2.0 * copy * copies * width)


def _write_multiply_add(module: Module, type: Type, items: int) -> None:
    code = module.kernel("multiply_add", [("sums", type.element)], [])
    (sums,) = code.parameters
    with items_below(code, items) as (item, _):
        lanes = max(type.lanes, 1)
        own = code.multiply(item, constant(lanes, I64))
        # Compilers would compute what is the same for all work items only once.
        x = code.load(code.offset(sums, own, type.element), type)
        y = code.add(x, x)
        first = [code.add(x, constant(n, type)) for n in range(_CHAINS)]
        loop = code.begin_loop(0, _CALLS, carried=first)
        found = code.end_loop(loop, [code.multiply_add(one, x, y) for one in loop.carried])
        total = found[0]
        for one in found[1:]:
            total = code.add(total, one)
        code.store(total, code.offset(sums, own, type.element))
    code.finish()


def _write_copy(module: Module, type: Type, items: int) -> None:
    code = module.kernel("copy", [("target", type.element), ("source", type.element)], [])
    with items_below(code, items) as (item, _):
        own = code.multiply(item, constant(max(type.lanes, 1), I64))

        def at(buffer: Value) -> Value:
            return code.offset(buffer, own, type.element)

        target, source = code.parameters
        code.store(code.load(at(source), type), at(target))
    code.finish()


def _runs_a_second(driver: Driver, kernel: Kernel) -> float:
    """The most runs of a kernel in a second."""
    queue = driver.queue

    def seconds(runs: int) -> float:
        started = time.perf_counter()
        for _ in range(runs):
            queue.launch(kernel)
        queue.finish()
        return time.perf_counter() - started

    runs = 1
    seconds(runs)
    while seconds(runs) < _LEAST_SECONDS:
        runs *= 2
    return runs / min(seconds(runs) for _ in range(_RUNS))
