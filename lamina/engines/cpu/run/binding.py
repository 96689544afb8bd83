"""A native program bound to its buffers: their addresses, and the jobs that read them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, final

import numpy as np

from lamina.base.remembered import remembered
from lamina.base.shapes import Array
from lamina.engines.cpu.compilation import compile_program
from lamina.engines.cpu.llvm import Library, load
from lamina.engines.cpu.native.jobs import Entry, Layout, exported_name
from lamina.engines.cpu.processor import HostProcessor
from lamina.engines.cpu.run.thread_pool import Job
from lamina.engines.host import aligned
from lamina.engines.simd.processor import whole_lines
from lamina.program.program import Program

if TYPE_CHECKING:
    from lamina.engines.simd.decide.schedule import ProgramSchedule


@final
class NativeCode:
    """The loaded machine code of a program, and what it needs.

    Attributes:
        layout: its kernels, phases and workspaces.
        entries: those of its two jobs that have kernels.
    """

    def __init__(self, layout: Layout, code: bytes) -> None:
        self.layout = layout
        entries = {"program": layout.program, "load": layout.load}
        self.entries: dict[str, Entry] = {n: e for n, e in entries.items() if e.threads}
        self.library: Library = load(code, tuple(map(exported_name, self.entries)))

    def functions(self, name: str) -> list[int]:
        """The addresses of the functions of a job's kernels."""
        address = self.library.addresses[exported_name(name)]
        return list((ctypes.c_uint64 * self.entries[name].functions).from_address(address))


@remembered()
def native_code(
    program: Program,
    processor: HostProcessor,
    schedule: ProgramSchedule | None = None,
    *,
    timed: bool = False,
) -> NativeCode:
    """The loaded code of a program, which all its executables share."""
    return NativeCode(*compile_program(program, processor, schedule, timed=timed))


@final
class Binding:
    """A program's jobs, bound to arrays and to a block of memory.

    Args:
        program: the program.
        code: its machine code.
        outside: the arrays of its parameters and states.
        keeps_packed: whether operands that `load` packs stay from run to run.
        timed: whether the steps of the program are timed.

    Attributes:
        arrays: the array of each buffer, by name.
        staging: the arrays of the inputs, in order.
        job, load: the jobs; `load` is None if the program packs nothing before its runs.
    """

    def __init__(
        self,
        program: Program,
        code: NativeCode,
        outside: Mapping[str, Array],
        *,
        keeps_packed: bool,
        timed: bool = False,
    ) -> None:
        self._program, self._layout = program, code.layout
        layout = code.layout
        self.arrays = dict(outside)
        constants = program.constants.items()
        self.arrays |= {name: np.ascontiguousarray(value) for name, value in constants}
        self._iteration = np.zeros(1, np.int64)
        keeps_packed = keeps_packed and layout.load.threads > 0
        self._packed = aligned(layout.shared_bytes) if keeps_packed else None
        self.table = np.zeros(len(layout.table), np.uint64)
        jobs: dict[str, Job] = {}
        for name, entry in code.entries.items():
            is_timed = timed and name == "program"
            functions = code.functions(name)
            jobs[name] = Job(functions, entry, self.table, self._iteration, timed=is_timed)
        self.job, self.load = jobs["program"], jobs.get("load")

    @property
    def bytes(self) -> int:
        """The size of the block: workspaces, temporaries, and each input at a cache line."""
        return sum(map(whole_lines, self._sizes()))

    def _sizes(self) -> list[int]:
        layout, program = self._layout, self._program
        threads = layout.thread_bytes * layout.threads
        shared = layout.shared_bytes if self._packed is None else 0
        inputs = [buffer.bytes for buffer in program.of_kind("input")]
        return [threads, shared, program.plan.arena_bytes, *inputs]

    def move_to(self, block: Array) -> None:
        """Uses the first bytes of a block from now on."""
        program, layout, sizes = self._program, self._layout, self._sizes()
        # Each piece starts at a cache line.
        starts = accumulate(map(whole_lines, sizes), initial=0)
        pieces = [block[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        thread_memory, shared, temporaries = pieces[:3]
        placed = [
            (program.buffers[name], temporaries[start:])
            for name, start in program.plan.positions().items()
        ]
        inputs = program.of_kind("input")
        for buffer, piece in [*placed, *zip(inputs, pieces[3:], strict=True)]:
            array = piece[: buffer.bytes].view(buffer.dtype.numpy)
            self.arrays[buffer.name] = array.reshape(buffer.shape)
        self.staging = [self.arrays[buffer.name] for buffer in inputs]
        start = (shared if self._packed is None else self._packed).ctypes.data
        addresses = [self.arrays[name].ctypes.data for name in program.buffers]
        addresses += [start + offset for offset in layout.shared_offsets]
        addresses += [thread_memory.ctypes.data, layout.thread_bytes, self._iteration.ctypes.data]
        self.table[:] = np.array(addresses, np.uint64)[list(layout.table)]

    def entries(self, name: str) -> list[int]:
        """The entries of the table with the address of a buffer."""
        position = list(self._program.buffers).index(name)
        return [entry for entry, index in enumerate(self._layout.table) if index == position]

    def output(self, name: str) -> Array:
        """The array of a result."""
        buffer = self._program.buffers[dict(self._program.outputs)[name]]
        return self.arrays[buffer.name].reshape(buffer.shape)

    def release(self) -> None:
        self.arrays, self.staging, self._packed = {}, [], None
