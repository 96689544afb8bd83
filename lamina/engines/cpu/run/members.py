"""A program for the members of a population: threads share the members, not their work.

A thread does all runs of a member, or of as many members as a vector has lanes, before those of the
next ones. Members never wait for each other. If there are more threads than members, the threads
share the work of one member after the other instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, final

import numpy as np

from lamina.base.shapes import Array, float32, size_of
from lamina.engines import machine_memory
from lamina.engines.cpu.compilation import compile_program
from lamina.engines.cpu.native import members as native_members
from lamina.engines.cpu.native.jobs import Entry, Kernel, Phase
from lamina.engines.cpu.processor import HostProcessor
from lamina.engines.cpu.run.binding import Binding, NativeCode
from lamina.engines.cpu.run.executable import OUTSIDE, Watch
from lamina.engines.cpu.run.thread_pool import Job, native, ticks_per_second
from lamina.engines.cpu.target import CPU
from lamina.engines.engine import Executable, Grouping, Members, Memory
from lamina.engines.host import HostArena, host_array
from lamina.engines.room import Need, require_room
from lamina.engines.simd.decide.program import expected_cycles
from lamina.engines.simd.processor import whole_lines
from lamina.program.program import Program
from lamina.program.steps import writes_of

if TYPE_CHECKING:
    from lamina.engines.simd.decide.schedule import ProgramSchedule


@final
class CpuMembers(Executable):
    """A program of one member, run for all members of a population.

    Args:
        program: the program of one member.
        memories: the memories of its parameters and states, with a first axis of members.
        arena: the arena, shared with programs that never run at the same time.
        processor: the processor it is compiled for.
        members: the members.
        schedule: the schedules of the steps; decided by default.
        timed: whether its steps are timed.
    """

    synchronous = True

    def __init__(
        self,
        program: Program,
        memories: Mapping[str, Memory],
        arena: HostArena,
        processor: HostProcessor,
        members: Members,
        schedule: ProgramSchedule | None = None,
        *,
        timed: bool = False,
    ) -> None:
        grouping = grouping_of(program, members, processor)
        self._members, self._lanes = members, grouping.size
        self._inputs = program.of_kind("input")
        self._outputs = {name: program.buffers[buffer] for name, buffer in program.outputs}
        self._program = program = grouping.program
        self._threads = grouping.at_once
        self._in_turn = self._threads == 1 < processor.threads
        inner = processor if self._in_turn else replace(processor, threads=1)
        layout, text = compile_program(program, inner, schedule, timed=timed)
        self._code = NativeCode(layout, text)
        self._memories = {
            buffer.name: host_array(memories[buffer.name])
            for kind in OUTSIDE
            for buffer in program.of_kind(kind)
        }
        # The copies of a group's memories, in lanes.
        self._copies = [program.buffers[name] for name in self._memories if grouping.copied]
        written = {name for step in program.steps for name in writes_of(step)}
        self._written = written & self._memories.keys()
        self._bindings = [
            Binding(program, self._code, {}, keeps_packed=False, timed=timed)
            for _ in range(self._threads)
        ]
        each = self._bindings[0].bytes + grouping.copied_bytes
        workspaces = Need("workspaces", self._threads * layout.total_bytes)
        require_room(
            "this program needs",
            (*grouping.needs(), workspaces),
            machine_memory.available_bytes,
            reused=arena.bytes,
            where="cpu",
            advice="Take a smaller batch, or fewer threads: LAMINA_THREADS=1.",
        )
        self._each = each
        self._places = np.zeros((self._threads, native_members.PLACE_WORDS), np.int64)
        self._watch = Watch(program, memories)
        self._last: dict[str, Array] = {}
        self._active = np.zeros(0, np.int64)
        self._arena = arena
        arena.enter(self, self._threads * each)
        self.activate(np.arange(members.count))

    def move_to(self, block: Array) -> None:
        self._outside: list[Array] = []
        for number, binding in enumerate(self._bindings):
            rest = block[number * self._each : (number + 1) * self._each]
            copies: dict[str, Array] = {}
            for buffer in self._copies:
                copies[buffer.name] = rest[: buffer.bytes].view(buffer.dtype.numpy)
                rest = rest[whole_lines(buffer.bytes) :]
            # Without copies, the addresses of the first member's memories stand in the table.
            binding.arrays |= copies or {n: array[:1] for n, array in self._memories.items()}
            binding.move_to(rest)
            entries = [
                (array.ctypes.data, array.strides[0], place, *self._copied(name))
                for name, array in self._memories.items()
                for place in self._directed(binding, name)
            ]
            words = np.array(entries, np.int64).reshape(-1, native_members.OUTSIDE_WORDS)
            self._outside.append(words)
            # The entries of the table with addresses of the first member's memories, these
            # addresses, and the bytes to those of the next member.
            directed = [
                (entry, array.ctypes.data, array.strides[0])
                for name, array in self._memories.items()
                for entry in binding.entries(name)
            ]
            self._placed = np.array(directed, np.uint64).reshape(-1, 3).T
            load = 0 if binding.load is None else binding.load.address
            self._places[number] = load, binding.job.address, words.ctypes.data, len(words)

    def _directed(self, binding: Binding, name: str) -> list[int]:
        """The address of a buffer's copy, or those of its entries in the table."""
        if self._lanes > 1:
            return [binding.arrays[name].ctypes.data]
        table = binding.table
        return [table.ctypes.data + table.itemsize * entry for entry in binding.entries(name)]

    def _copied(self, name: str) -> tuple[int, int, bool]:
        """The bytes of a member's memory and of an element, and whether the program writes it."""
        buffer = self._program.buffers[name]
        return buffer.bytes // self._lanes, buffer.dtype.itemsize, name in self._written

    def activate(self, members: Array) -> None:
        if np.array_equal(members, self._active):
            return
        self._active = members
        missing = -len(members) % self._lanes
        # Lanes that are left over compute the last member again.
        self._numbers = np.concatenate([members, members[-1:].repeat(missing)]).astype(np.int64)
        groups = len(self._numbers) // self._lanes
        self._section = np.array([self._places.ctypes.data, self._numbers.ctypes.data], np.uint64)
        threads = min(self._threads, groups)
        kernel = Kernel(0, 0, groups, 1, threads, 0)
        entry = Entry(self._threads, 1, (kernel,), (Phase(0, 1, groups > 1),))
        functions, iteration = [native().run_members], np.zeros(1, np.int64)
        self._job = Job(functions, entry, self._section, iteration, tries_alone=False)

    def run(self, inputs: Sequence[Array]) -> None:
        batch = self._inputs[0].shape[0] if self._inputs else 0
        rows = np.arange(batch, dtype=np.int64)[None]
        if self._members.own_inputs:
            rows = np.broadcast_to(rows, (self._members.count, *rows.shape))
        outputs = self._run(inputs, rows, list(self._outputs))
        self._last = {name: array[:, 0] for name, array in outputs.items()}

    def run_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> dict[str, Array]:
        data = [host_array(resident[buffer.name]) for buffer in self._inputs]
        rows = np.asarray(rows, np.int64)
        if rows.strides[-2:] != (rows.itemsize * rows.shape[-1], rows.itemsize):
            rows = np.ascontiguousarray(rows)
        return self._run(data, rows, recorded)

    def _run(self, data: Sequence[Array], rows: Array, recorded: Sequence[str]) -> dict[str, Array]:
        count, runs = self._members.count, rows.shape[-2]
        kept = {
            name: np.zeros(
                (count, runs, *self._outputs[name].shape), self._outputs[name].dtype.numpy
            )
            for name in recorded
        }
        if not runs:
            return kept
        if self._watch.changes_memories:
            self._watch.begin()
        if self._in_turn:
            self._run_in_turn(data, rows, kept)
        else:
            for binding in self._bindings:
                given = self._entries(binding, data, kept)
                binding.job.set_runs(rows, *given, self._lanes)
            self._job.run()
        if self._watch.changes_memories:
            self._watch.end()
        return kept

    def _entries(
        self, binding: Binding, data: Sequence[Array], kept: Mapping[str, Array]
    ) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """The entries of a job for its inputs and its recorded outputs."""
        inputs: list[tuple[int, ...]] = []
        for buffer, source, staging in zip(self._inputs, data, binding.staging, strict=True):
            example = buffer.bytes // buffer.shape[0]
            of_member = source.strides[0] if source.ndim > len(buffer.shape) else 0
            width, places = buffer.dtype.itemsize, self._lanes if self._members.own_inputs else 1
            addresses = source.ctypes.data, staging.ctypes.data
            inputs.append((*addresses, example, of_member, width, places))
        outputs: list[tuple[int, ...]] = []
        for name, target in kept.items():
            array, buffer = binding.output(name), self._outputs[name]
            # Outputs that do not depend on parameters are equal for all members.
            places = array.size // max(size_of(buffer.shape), 1)
            addresses = array.ctypes.data, target.ctypes.data
            width = buffer.dtype.itemsize
            outputs.append((*addresses, buffer.bytes, target[0].nbytes, width, places))
        return inputs, outputs

    def _run_in_turn(self, data: Sequence[Array], rows: Array, kept: Mapping[str, Array]) -> None:
        """Runs the program as that of a model, on the memories of one member after the other."""
        (binding,) = self._bindings
        for member in self._active.tolist():
            own = [
                source[member] if source.ndim > len(buffer.shape) else source
                for buffer, source in zip(self._inputs, data, strict=True)
            ]
            results = {name: array[member : member + 1] for name, array in kept.items()}
            given = self._entries(binding, own, results)
            binding.job.set_runs(rows[member] if rows.ndim > 2 else rows, *given)
            places, first, between = self._placed
            binding.table[places.astype(np.int64)] = first + np.uint64(member) * between
            if binding.load is not None:
                binding.load.run()
            binding.job.run()

    def output(self, name: str) -> Array:
        return self._last[name]

    def step_seconds(self) -> Array:
        ticks = np.zeros(len(self._program.steps), np.int64)
        for binding in self._bindings:
            np.add.at(ticks, list(self._code.layout.steps), binding.job.phase_ticks())
        return ticks / ticks_per_second()

    def release(self) -> None:
        self._code.library.release()
        self._arena.leave(self)
        for binding in self._bindings:
            binding.release()
        self._last, self._memories = {}, {}


# Members lie in lanes if that is expected to take at most so many times the cycles of a member
# alone: loops over lanes are faster than expected. Of 28 networks, those below the limit took 0.42
# to 1.24 times as long in lanes.
_WORTH_LANES = 1.3


def _lanes_of(processor: HostProcessor) -> int:
    return processor.vector_bytes // float32.itemsize


def grouping_of(program: Program, members: Members, processor: HostProcessor) -> Grouping:
    """The program of as many members as a vector has lanes, or of one, and the threads for it."""
    wide, lanes = _in_lanes(program, members, processor), _lanes_of(processor)
    threads, groups = processor.threads, -(-members.count // lanes)
    if wide is not None:
        return Grouping(wide, lanes, min(threads, groups), copied=True)
    # Threads that share members must not wait for more than half of the time.
    in_turn = members.count <= threads * -(-members.count // threads) // 2
    return Grouping(program, 1, 1 if in_turn else min(threads, members.count))


def _in_lanes(program: Program, members: Members, processor: HostProcessor) -> Program | None:
    """The program of as many members as a vector has lanes; None if one by one is expected better.

    They have to be enough for all threads, and fit together in a core's cache.
    """
    lanes = _lanes_of(processor)
    if not members.may_use_lanes or members.count < lanes * processor.threads:
        return None
    kinds = (*OUTSIDE, "input")
    taken = sum(buffer.bytes for kind in kinds for buffer in program.of_kind(kind))
    if lanes * (taken + program.plan.arena_bytes) > processor.level2_bytes // 2:
        return None
    alone = replace(processor, threads=1)
    wide = members.program(program, lanes, CPU, lanes=True)
    most = lanes * _WORTH_LANES * expected_cycles(program, alone)
    return wide if expected_cycles(wide, alone) <= most else None
