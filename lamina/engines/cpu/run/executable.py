"""A program as machine code, bound to its buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, final

import numpy as np

from lamina.base.shapes import Array
from lamina.engines import machine_memory
from lamina.engines.cpu.compilation import compile_program
from lamina.engines.cpu.llvm import load
from lamina.engines.cpu.native.jobs import Layout, exported_name
from lamina.engines.cpu.processor import HostProcessor
from lamina.engines.cpu.run.thread_pool import Job, ticks_per_second
from lamina.engines.engine import Bound, Changes, Executable, Memory
from lamina.engines.host import HostArena, address_of, aligned, host_array, host_memory
from lamina.engines.room import Need, needs_of_program, require_room
from lamina.engines.simd.processor import whole_lines
from lamina.program.program import Program
from lamina.program.steps import writes_of

if TYPE_CHECKING:
    from lamina.engines.simd.decide.schedule import ProgramSchedule

# Larger inputs of a single run are read in place, smaller ones are copied: asking NumPy for the
# address of an array takes as long as copying this many bytes.
COPIED_BYTES = 4096
# Kinds of buffers in memory outside of a program, which exists longer than the program.
_OUTSIDE = ("parameter", "state")


@final
class CpuProgram(Executable):
    """A program as machine code, with its constants and its share of an arena.

    The arena holds the temporaries, the inputs, and all workspaces whose contents need not last
    from one run to the next.

    Args:
        program: the program to run.
        memories: the memories of its parameters and states.
        arena: the arena, shared with programs that never run at the same time.
        processor: the processor it is compiled for.
        schedule: the schedules of its steps; decided by default.
        timed: whether its steps are timed.
    """

    synchronous = True

    def __init__(
        self,
        program: Program,
        memories: Mapping[str, Memory],
        arena: HostArena,
        processor: HostProcessor,
        schedule: ProgramSchedule | None = None,
        *,
        timed: bool = False,
    ) -> None:
        layout, code = compile_program(program, processor, schedule, timed=timed)
        require_room(
            "this program needs",
            (*needs_of_program(program), Need("workspaces", layout.total_bytes)),
            machine_memory.available_bytes,
            reused=arena.bytes,
            where="cpu",
            advice="Take a smaller batch, or fewer threads: LAMINA_THREADS=1.",
        )
        entries = {"program": layout.program, "load": layout.load}
        entries = {name: entry for name, entry in entries.items() if entry.threads}
        self._library = load(code, tuple(map(exported_name, entries)))
        self._program = program
        self._layout = layout
        outside = [buffer for kind in _OUTSIDE for buffer in program.of_kind(kind)]
        self._arrays = {buffer.name: host_array(memories[buffer.name]) for buffer in outside}
        constants = program.constants.items()
        self._arrays |= {name: np.ascontiguousarray(value) for name, value in constants}
        self._steps = layout.steps
        self._iteration = np.zeros(1, np.int64)
        # Operands that `load` packs stay from run to run.
        self._packed = aligned(layout.shared_bytes if layout.load.threads else 0)
        self._table = np.zeros(len(layout.table), np.uint64)
        jobs: dict[str, Job] = {}
        for name, entry in entries.items():
            address = self._library.addresses[exported_name(name)]
            functions = list((ctypes.c_uint64 * entry.functions).from_address(address))
            is_timed = timed and name == "program"
            jobs[name] = Job(functions, entry, self._table, self._iteration, timed=is_timed)
        self._job, self._load = jobs["program"], jobs.get("load")
        self._watch(memories)
        self._arena = arena
        arena.enter(self, sum(map(whole_lines, _sizes_in_arena(program, layout))))

    def move_to(self, block: Array) -> None:
        program, layout = self._program, self._layout
        sizes = _sizes_in_arena(program, layout)
        # Each piece starts at a cache line.
        starts = accumulate(map(whole_lines, sizes), initial=0)
        pieces = [block[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        thread_memory, shared, temporaries = pieces[:3]
        for name, start in program.plan.positions().items():
            buffer = program.buffers[name]
            piece = temporaries[start : start + buffer.bytes]
            self._arrays[buffer.name] = piece.view(buffer.dtype.numpy).reshape(buffer.shape)
        for buffer, piece in zip(program.of_kind("input"), pieces[3:], strict=True):
            self._arrays[buffer.name] = piece.view(buffer.dtype.numpy).reshape(buffer.shape)
        self._outputs = {
            name: self._arrays[buffer].reshape(program.buffers[buffer].shape)
            for name, buffer in program.outputs
        }
        start = (self._packed if self._load else shared).ctypes.data
        addresses = [self._arrays[name].ctypes.data for name in program.buffers]
        addresses += [start + offset for offset in layout.shared_offsets]
        addresses += [thread_memory.ctypes.data, layout.thread_bytes, self._iteration.ctypes.data]
        self._table[:] = np.array(addresses, np.uint64)[list(layout.table)]
        # The inputs of a single run that are copied, and those that are read in place.
        self._inputs = program.of_kind("input")
        numbers = {name: number for number, name in enumerate(program.buffers)}
        self._staging = [self._arrays[buffer.name] for buffer in self._inputs]
        # Inputs that are also results must exist longer than the run.
        returned = {buffer for _, buffer in program.outputs}
        # The number of the input, and its staging array or its entries in the table.
        self._copied: list[tuple[int, Array]] = []
        self._read_in_place: list[tuple[int, list[int]]] = []
        for number, buffer in enumerate(self._inputs):
            if buffer.bytes <= COPIED_BYTES or buffer.name in returned:
                self._copied.append((number, self._staging[number]))
            else:
                position = numbers[buffer.name]
                entries = [entry for entry, index in enumerate(layout.table) if index == position]
                self._read_in_place.append((number, entries))

    def _watch(self, memories: Mapping[str, Memory]) -> None:
        """Notes when memories change: operands packed from them are then packed again."""
        program = self._program
        used = [host_memory(memories[b.name]) for kind in _OUTSIDE for b in program.of_kind(kind)]
        # The memories of a model share one counter; copied or unpickled ones may have another.
        self._changes = tuple({id(memory.changes): memory.changes for memory in used}.values())
        written = {name for step in program.steps for name in writes_of(step)}
        self._changes_memories = any(program.buffers[n].kind in _OUTSIDE for n in written)
        self._loaded = -1

    def run(self, inputs: Sequence[Array]) -> None:
        for number, staging in self._copied:
            staging[...] = inputs[number]
        for number, entries in self._read_in_place:
            self._table[entries] = address_of(inputs[number])
        self._job.set_single_run()
        self._run()

    def _run(self) -> None:
        if self._load is not None:
            count = sum(changes.count for changes in self._changes)
            if count != self._loaded:
                self._load.run()
                self._loaded = count
        if self._changes_memories:
            # Done before the run: after Ctrl-C during the run, no code after it is executed.
            for changes in self._changes:
                changes.count += 1
            if self._load is not None:
                # Packed operands do not depend on memories that the program itself changes.
                self._loaded += len(self._changes)
        self._job.run()
        if self._changes_memories:
            for changes in self._changes:
                changes.completed = changes.count

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
            array = self._outputs[name]
            kept[name] = np.empty((len(rows), *array.shape), array.dtype)
            outputs.append((array.ctypes.data, kept[name].ctypes.data, array.nbytes))
        if not len(rows):
            return kept
        for number, entries in self._read_in_place:
            self._table[entries] = self._staging[number].ctypes.data
        self._job.set_runs(rows, inputs, outputs)
        self._run()
        return kept

    def step_seconds(self) -> Array:
        ticks = np.zeros(len(self._program.steps), np.int64)
        np.add.at(ticks, list(self._steps), self._job.phase_ticks())
        return ticks / ticks_per_second()

    def output(self, name: str) -> Array:
        return self._outputs[name].copy()

    def read_into(self, name: str, target: Array) -> None:
        target[...] = self._outputs[name]

    def bound(self) -> Bound | None:
        if self._changes_memories or len(self._changes) > 1:
            return None
        changes = self._changes[0] if self._changes else Changes()
        for number, entries in self._read_in_place:
            self._table[entries] = self._staging[number].ctypes.data
        self._job.set_single_run()
        run = self._run if self._load is not None else self._job.bound()
        return Bound(tuple(self._staging), self._outputs, run, changes)

    def scalar(self, name: str) -> float:
        return self._outputs[name].item()

    def release(self) -> None:
        self._library.release()
        self._arena.leave(self)
        self._arrays, self._outputs, self._staging, self._copied = {}, {}, [], []
        self._packed = aligned(0)


def _sizes_in_arena(program: Program, layout: Layout) -> list[int]:
    """The sizes of the contents of the arena: workspaces, temporaries, and each input."""
    threads = layout.thread_bytes * layout.threads
    shared = 0 if layout.load.threads else layout.shared_bytes
    inputs = [buffer.bytes for buffer in program.of_kind("input")]
    return [threads, shared, program.plan.arena_bytes, *inputs]
