"""The CPU engine: programs as native code for this processor, run by all its cores together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, final

import numpy as np

from lamina.engines.cpu.machine_code import Library, compiled
from lamina.engines.cpu.native_program import write_program
from lamina.engines.cpu.processor import Processor, host
from lamina.engines.cpu.team import Job, remember_lock, run
from lamina.engines.engine import Device, Memory
from lamina.engines.host import HostMemory, aligned, host_array, physical_memory_bytes
from lamina.program.program import Program
from lamina.shapes import Array

# Larger inputs of a single run are read where the caller has them, smaller ones are copied: to ask
# where an array lies takes as long as to copy so much.
COPIED_BYTES = 4096


@final
class CpuEngine:
    """Compiles programs for the processor it runs on."""

    def __init__(self) -> None:
        self.processor = host()

    def __reduce__(self) -> tuple[type[CpuEngine], tuple[()]]:
        # Where it is unpickled there may be another processor.
        return CpuEngine, ()

    @property
    def device(self) -> Device:
        processor = self.processor
        text = f"{processor.description}, {processor.threads} threads, {processor.vectors}"
        return Device("cpu", text, physical_memory_bytes())

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostMemory:
        return HostMemory(shape, dtype)

    def compile(self, program: Program, memories: Mapping[str, Memory]) -> CpuProgram:
        return CpuProgram(program, memories, self.processor)

    def compile_counted(self, program: Program, memories: Mapping[str, Memory]) -> CpuProgram:
        """The same with a counter of ticks for every step, which costs some time of its own."""
        return CpuProgram(program, memories, self.processor, counted=True)


@final
class CpuProgram:
    """A program as machine code, with its arena, constants and inputs."""

    def __init__(
        self,
        program: Program,
        memories: Mapping[str, Memory],
        processor: Processor,
        *,
        counted: bool = False,
    ) -> None:
        native = write_program(program, processor, counted=counted)
        self._steps = native.steps
        self._counters = np.zeros(len(native.steps), np.int64)
        self._library = Library(compiled(native.text, processor))
        self._program = program
        self.make_lock()
        remember_lock(self)
        self._arena = aligned(program.plan.arena_bytes)
        self._shared = aligned(native.shared_bytes)
        self._own = aligned(native.thread_bytes * native.threads)
        self._arrays: dict[str, Array] = {}
        for name, value in program.constants.items():
            self._arrays[name] = np.ascontiguousarray(value)
        for place in program.plan.allocations:
            buffer = program.buffers[place.buffer]
            part = self._arena[place.offset : place.offset + buffer.bytes]
            self._arrays[buffer.name] = part.view(buffer.dtype.numpy).reshape(buffer.shape)
        for kind in ("parameter", "state"):
            for buffer in program.of_kind(kind):
                self._arrays[buffer.name] = host_array(memories[buffer.name])
        self._inputs = program.of_kind("input")
        for buffer in self._inputs:
            staging = HostMemory(buffer.shape, buffer.dtype.numpy)
            self._arrays[buffer.name] = staging.array
        places = [self._arrays[name] for name in native.table] + [self._shared, self._own]
        addresses = [array.ctypes.data for array in places]
        counters = self._counters.ctypes.data
        self._table = np.array([*addresses, native.thread_bytes, counters], np.uint64)
        self._slots = [native.table[buffer.name] for buffer in self._inputs]
        self._staging = [self._arrays[buffer.name] for buffer in self._inputs]
        # Inputs that are results, too, must outlast the run.
        self._returned = {native.table[buffer] for _, buffer in program.outputs}
        self._borrowing = False
        self._job = Job(self._library.address("program"), self._table, native.threads)

    def make_lock(self) -> None:
        self._lock = Lock()

    def run(self, inputs: Sequence[Array]) -> None:
        with self._lock:
            for place, staging, array in zip(self._slots, self._staging, inputs, strict=True):
                if staging.nbytes <= COPIED_BYTES or place in self._returned:
                    np.copyto(staging, array, "no")
                else:
                    self._table[place] = array.ctypes.data
                    self._borrowing = True
            self._job.once()
            run(self._job)

    def run_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> dict[str, Array]:
        rows = np.ascontiguousarray(rows, np.int64)
        inputs: list[tuple[int, int, int]] = []
        for buffer, staging in zip(self._inputs, self._staging, strict=True):
            source = host_array(resident[buffer.name])
            inputs.append((source.ctypes.data, staging.ctypes.data, staging[:1].nbytes))
        kept: dict[str, Array] = {}
        outputs: list[tuple[int, int, int]] = []
        for name in recorded:
            array = self._output(name)
            kept[name] = np.empty((len(rows), *array.shape), array.dtype)
            outputs.append((array.ctypes.data, kept[name].ctypes.data, array.nbytes))
        with self._lock:
            if self._borrowing:
                self._table[self._slots] = [staging.ctypes.data for staging in self._staging]
                self._borrowing = False
            self._job.many(rows, inputs, outputs)
            run(self._job)
        return kept

    def ticks(self) -> Array:
        """The ticks that each step of the program took since this was last asked, int64."""
        with self._lock:
            total = np.zeros(len(self._program.steps), np.int64)
            np.add.at(total, list(self._steps), self._counters)
            self._counters[:] = 0
            return total

    def output(self, name: str) -> Array:
        with self._lock:
            return self._output(name).copy()

    def _output(self, name: str) -> Array:
        buffer = self._program.buffers[dict(self._program.outputs)[name]]
        return self._arrays[buffer.name].reshape(buffer.shape)

    def release(self) -> None:
        self._library.release()
        self._arrays, self._staging = {}, []
        self._arena = self._shared = self._own = aligned(0)
