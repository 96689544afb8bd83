"""Measured peaks of this processor: the roofline with which steps are compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import accumulate

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType, bfloat16, float32
from lamina.codegen.llvm import Module
from lamina.codegen.values import POINTER
from lamina.engines.cpu.compilation import compiled
from lamina.engines.cpu.llvm import load
from lamina.engines.cpu.native.jobs import KERNEL_PARAMETERS, Entry, Kernel, Phase
from lamina.engines.cpu.processor import HostProcessor
from lamina.engines.cpu.run.executable import CpuProgram
from lamina.engines.cpu.run.thread_pool import Job
from lamina.engines.engine import Peaks
from lamina.engines.host import HostArena, HostMemory
from lamina.engines.simd.decide.tiles import AMX_M, AMX_N, AMX_STEPS, VECTORS, largest_tile_m
from lamina.engines.simd.emit.amx import AmxTile, begin_tiles, emit_amx_tile, end_tiles
from lamina.engines.simd.emit.tiles import Tile, emit_tile
from lamina.program.index import Axis, axis_index
from lamina.program.program import Buffer, Plan, Program
from lamina.program.scalar import Apply, Literal, Load
from lamina.program.steps import Loop, Store, Write

# The fastest of several runs counts, because other processes may use the machine too.
_RUNS = 7
_CALLS = 4000
# The steps along K of the multiply-adds: numbers, or pairs of bfloat16. Both operands stay in the
# L1 cache.
_K = 128
_LEAST_BYTES = 96 << 20


@frozen_dataclass
class _MicroKernel:
    """A micro-kernel `(left, right, sums, *more)`: `sizes` are the elements of the first three.

    A pair of bfloat16 is one element. The operations are multiplications and additions of a call.
    """

    name: str
    more: tuple[int, ...]
    sizes: tuple[int, int, int]
    operations: int


def measured_peaks(processor: HostProcessor, dtype: DType) -> Peaks:
    """Multiply-adds in registers by all threads, and sums of arrays larger than every cache.

    With bfloat16, tile registers or pairs are multiplied if the processor has instructions for
    them; otherwise float32 is.
    """
    wide = float32 if dtype.is_half else dtype
    return Peaks(_operations(processor, dtype), _bytes(processor, wide))


def _operations(processor: HostProcessor, dtype: DType) -> float:
    name = "double" if dtype.itemsize == 8 else "float"
    module = Module(fused=processor.fused)
    code = module.function("program", KERNEL_PARAMETERS, internal=False)
    table, _, thread, _ = code.parameters
    tiled = dtype == bfloat16 and processor.bfloat16_tiles
    micro_kernel = _of_tiles(module) if tiled else _of_vectors(module, processor, dtype)
    # Left operand, right operand and sums of a thread, one after the other.
    *starts, size = accumulate(micro_kernel.sizes, initial=0)
    base = code.load(table, POINTER)
    operands = code.offset(base, thread * size, name)
    left, right, sums = (code.offset(operands, start, name) for start in starts)
    if tiled:
        begin_tiles(code, AMX_M)
    with code.loop(0, _CALLS):
        code.call_void(micro_kernel.name, left, right, sums, *micro_kernel.more)
    if tiled:
        end_tiles(code)
    library = load(compiled(module.text(), processor))
    memory = HostMemory((processor.threads, size), (float32 if dtype.is_half else dtype).numpy)
    memory.array[:] = 1.0 / _K
    addresses = np.array([memory.array.ctypes.data], np.uint64)
    threads = processor.threads
    kernel, phase = Kernel(0, 0, threads, 1, threads, 0), Phase(0, 1, threads > 1)
    entry = Entry(threads, 1, (kernel,), (phase,))
    job = Job([library.addresses["program"]], entry, addresses, np.zeros(1, np.int64))
    seconds = _best(job.run)
    library.release()
    return float(_CALLS) * micro_kernel.operations * threads / seconds


def _of_vectors(module: Module, processor: HostProcessor, dtype: DType) -> _MicroKernel:
    """Multiply-adds of vectors."""
    paired = dtype == bfloat16 and processor.bfloat16_pairs
    lanes = processor.vector_bytes // max(dtype.itemsize, 4)
    name = "double" if dtype.itemsize == 8 else "float"
    tile_m, tile_n = largest_tile_m(processor, VECTORS), VECTORS * lanes
    left, sums = tuple(range(tile_m)), tuple(row * tile_n for row in range(tile_m))
    loops = ((_K, tile_m),)
    tile = Tile(*(left, sums, VECTORS, lanes, lanes, name, loops, tile_n), paired=paired)
    sizes = _K * tile_m, _K * tile_n, tile_m * tile_n
    operations = (4 if paired else 2) * _K * sizes[-1]
    return _MicroKernel(emit_tile(module, tile), (), sizes, operations)


def _of_tiles(module: Module) -> _MicroKernel:
    """Products of bfloat16 in the tile registers of AMX."""
    tile = AmxTile(AMX_M, AMX_N // 16, 2 * _K, fresh=False)
    sizes = AMX_M * _K, _K * AMX_N, AMX_M * AMX_N
    steps = _K // AMX_STEPS
    return _MicroKernel(emit_amx_tile(module, tile), (steps,), sizes, 4 * _K * AMX_M * AMX_N)


def _bytes(processor: HostProcessor, dtype: DType) -> float:
    """The triad of McCalpin's STREAM: a = b + 3 c."""
    size = max(4 * processor.level3_bytes, _LEAST_BYTES) // 3 // dtype.itemsize
    axis = Axis("i", size)
    names = ("a", "b", "c")
    buffers = {name: Buffer(name, "parameter", (size,), dtype) for name in names}
    b, c = (Load(name, axis_index(axis), dtype) for name in ("b", "c"))
    scaled = Apply("multiply", (c, Literal(3.0, dtype)), dtype)
    store = Store("a", axis_index(axis), Apply("add", (b, scaled), dtype))
    loop = Loop("triad", (axis,), (Write((), (store,)),))
    program = Program("peak", buffers, (loop,), (), {}, Plan((), 0, ()))
    memories = {name: HostMemory((size,), dtype.numpy) for name in names}
    executable = CpuProgram(program, memories, HostArena(), processor)
    seconds = _best(lambda: executable.run(()))
    executable.release()
    return sum(buffer.bytes for buffer in buffers.values()) / seconds


def _best(call: Callable[[], None]) -> float:
    """The seconds of the fastest of several calls."""
    seconds: list[float] = []
    for _ in range(_RUNS):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
