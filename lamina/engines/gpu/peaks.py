"""Measured peaks of a device: the roofline with which steps are compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from lamina.base.shapes import DType, float32
from lamina.codegen.c import Function, Module
from lamina.codegen.values import FLOAT, I32, Type, Value
from lamina.engines.engine import Peaks
from lamina.engines.gpu.driver import Driver, Kernel
from lamina.engines.gpu.kernels import module_for
from lamina.engines.gpu.memory import Block
from lamina.engines.gpu.schedule import WARP
from lamina.engines.gpu.work_item import items_below
from lamina.program.tf32 import KEPT_BITS

# The fastest of several runs counts, because other processes may use the machine too.
_RUNS = 5
_LEAST_SECONDS = 0.005
_CHAINS, _CALLS = 12, 256
# Sums of matrices that a warp computes at the same time; each takes four registers.
_MATRICES = 8
# A whole number of warps.
_GROUP = 64
_ITEMS_PER_COMPUTE_UNIT = 2048
# Larger than every cache.
_MOST_BYTES = 128 << 20


def measured_peaks(driver: Driver, dtype: DType, *, tf32: bool = False) -> Peaks:
    """Multiply-adds in registers on all compute units; a copy of an array larger than caches.

    If the device has instructions that multiply matrices of the dtype, or of TF32, these are
    measured.
    """
    kind = "tf32" if tf32 else dtype.name
    has_matrices = kind in dict(driver.traits.matrices)
    # Floats of 16 bits are multiplied and added up in float32.
    dtype = float32 if dtype.is_half else dtype
    lanes = min(driver.traits.lanes, 64 // dtype.itemsize)
    type = Type({4: "float", 8: "double"}[dtype.itemsize], lanes if lanes > 1 else 0)
    width = lanes * dtype.itemsize
    items = driver.traits.compute_units * _ITEMS_PER_COMPUTE_UNIT
    most = min(_MOST_BYTES, driver.traits.largest_block_bytes, driver.available_bytes() // 4)
    copies = most // width
    module = module_for(driver.traits, driver.words)
    if has_matrices:
        items = -(-items // _GROUP) * _GROUP
        _write_matrix_multiply_add(module, kind, items)
    else:
        _write_multiply_add(module, type, items)
    write_copy(module, type, copies)
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
        group = _GROUP if has_matrices else int(driver.traits.is_processor)
        add = runs_a_second("multiply_add", [items * width], items, group)
        copy = runs_a_second("copy", [copies * width] * 2, copies)
    products = items * lanes * _CHAINS
    if has_matrices:
        # A warp multiplies 16x8 sums over 32 bytes of K.
        products = items // WARP * _MATRICES * 16 * 8 * (8 if kind == "tf32" else 16)
    return Peaks(2.0 * add * products * _CALLS, 2.0 * copy * copies * width)


def _write_multiply_add(module: Module, type: Type, items: int) -> None:
    with _items(module, "multiply_add", ["sums"], type, items) as (code, at):
        # Compilers would compute what is the same for all work items only once.
        x = code.load(at(0), type)
        y = x + x
        loop = code.begin_loop(0, _CALLS, carried=[x + n for n in range(_CHAINS)])
        first, *others = code.end_loop(loop, [code.multiply_add(a, x, y) for a in loop.carried])
        target = at(0)
        code.store(sum(others, first), target)


def _write_matrix_multiply_add(module: Module, kind: str, items: int) -> None:
    """Writes the kernel; all items have work, because a warp multiplies together."""
    multiply, type = f"multiply_{kind}", FLOAT.wide(4)
    with _items(module, "multiply_add", ["sums"], type, items) as (code, at):
        operand = code.load(at(0), I32.wide(4))
        if kind == "tf32":
            # Sums of an earlier run have more bits than TF32.
            operand = operand & code.splat(code.constant(KEPT_BITS, I32), 4)
        low, high = code.extract(operand, 0), code.extract(operand, 1)
        x = code.load(at(0), type)
        loop = code.begin_loop(0, _CALLS, carried=[x + n for n in range(_MATRICES)])
        first, *others = code.end_loop(
            loop, [code.call(multiply, type, operand, low, high, total) for total in loop.carried]
        )
        target = at(0)
        code.store(sum(others, first), target)


def write_copy(module: Module, type: Type, items: int) -> None:
    """Writes the kernel `copy(target, source)`."""
    with _items(module, "copy", ["target", "source"], type, items) as (code, at):
        code.store(code.load(at(1), type), at(0))


@contextmanager
def _items(
    module: Module, name: str, buffers: Sequence[str], type: Type, items: int
) -> Generator[tuple[Function, Callable[[int], Value]]]:
    """A kernel of some items; yields it, and the address of the item's value in each buffer."""
    code = module.kernel(name, [(buffer, type.element) for buffer in buffers], [])
    with items_below(code, items) as (item, _):
        offset = item * max(type.lanes, 1)
        yield code, lambda number: code.offset(code.parameters[number], offset, type.element)


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
