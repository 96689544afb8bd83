"""A program for the members of a population: threads share the members, not their work.

A thread does all runs of a member, or of as many members as a vector has lanes, before those of the
next ones. Members never wait for each other. If there are more threads than members, the threads
share the work of one member after the other instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast, final

import numpy as np

from lamina.base.shapes import Array, float32, size_of
from lamina.engines import machine_memory
from lamina.engines.cpu.native import members as native_members
from lamina.engines.cpu.native.jobs import Entry, Kernel, Phase
from lamina.engines.cpu.processor import HostProcessor
from lamina.engines.cpu.run.binding import Binding, native_code
from lamina.engines.cpu.run.executable import OUTSIDE, Watch, divided_turns, joined_turns
from lamina.engines.cpu.run.thread_pool import Job, Words, native, run_turns, ticks_per_second
from lamina.engines.cpu.target import CPU
from lamina.engines.engine import Executable, Grouping, Members, Memory, Turn
from lamina.engines.host import HostArena, address_of, host_array
from lamina.engines.room import Need, require_room
from lamina.engines.simd.decide.program import expected_cycles
from lamina.engines.simd.processor import whole_lines
from lamina.program.program import Buffer, Program
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

    synchronous, has_members = True, True

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
        self._code = native_code(program, inner, schedule, timed=timed)
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
        workspaces = Need("workspaces", self._threads * self._code.layout.total_bytes)
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
        self._entries: list[_Entries] = []
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
            self._placed = np.array(directed, np.int64).reshape(-1, 3).T
            self._directed_to: int | None = None
            load = 0 if binding.load is None else binding.load.address
            self._places[number] = load, binding.job.address, words.ctypes.data, len(words)
            lanes = self._lanes if self._members.own_inputs else 1
            self._entries.append(_Entries(binding, self._inputs, self._outputs, lanes))

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

    def run_turns(
        self, turns: Sequence[Turn], resident: Mapping[str, Memory], recorded: Sequence[str]
    ) -> list[dict[str, Array]]:
        programs = cast(Sequence[tuple[CpuMembers, Array]], turns)
        # Operands that a program packs before its runs lie where other programs have temporaries.
        packs = any(program._bindings[0].load is not None for program, _ in programs)
        if not self._in_turn or packs:
            return super().run_turns(turns, resident, recorded)
        rows = joined_turns(programs)
        kept = {program: program._kept(own.shape[-2], recorded) for program, own in rows.items()}
        data = [host_array(resident[buffer.name]) for buffer in self._inputs]
        jobs = [(program._bindings[0].job, own.shape[-2]) for program, own in programs]

        def run() -> None:
            for member in self._active.tolist():
                for program, own in rows.items():
                    program._set_member(member, data, own, kept[program])
                run_turns(jobs)

        self._watch.run(run)
        return divided_turns(programs, kept, axis=1)

    def _kept(self, runs: int, recorded: Sequence[str]) -> dict[str, Array]:
        """Arrays for the results of so many runs."""
        count = self._members.count
        outputs = ((name, self._outputs[name]) for name in recorded)
        return {n: np.zeros((count, runs, *b.shape), b.dtype.numpy) for n, b in outputs}

    def _run(self, data: Sequence[Array], rows: Array, recorded: Sequence[str]) -> dict[str, Array]:
        kept = self._kept(rows.shape[-2], recorded)
        if not rows.shape[-2]:
            return kept

        def run() -> None:
            if not self._in_turn:
                for binding, given in zip(self._bindings, self._entries, strict=True):
                    binding.job.set_runs(rows, *given.filled(data, kept), self._lanes)
                self._job.run()
                return
            for member in self._active.tolist():
                self._set_member(member, data, rows, kept)
                self._bindings[0].job.run()

        self._watch.run(run)
        return kept

    def _set_member(
        self, member: int, data: Sequence[Array], rows: Array, kept: Mapping[str, Array]
    ) -> None:
        """Directs the program to the memories of one member, as that of a model; sets its runs."""
        (binding,), (entries,) = self._bindings, self._entries
        own_rows = rows[member] if rows.ndim > 2 else rows
        binding.job.set_runs(own_rows, *entries.filled(data, kept, member))
        if member != self._directed_to:
            places, first, between = self._placed
            binding.table[places] = first + member * between
            self._directed_to = member
        if binding.load is not None:
            binding.load.run()

    def output(self, name: str) -> Array:
        return self._last[name]

    def step_seconds(self) -> Array:
        ticks = np.zeros(len(self._program.steps), np.int64)
        for binding in self._bindings:
            np.add.at(ticks, list(self._code.layout.steps), binding.job.phase_ticks())
        return ticks / ticks_per_second()

    def release(self) -> None:
        self._arena.leave(self)
        for binding in self._bindings:
            binding.release()
        self._last, self._memories = {}, {}


@final
class _Entries:
    """The entries of a job for its inputs and its recorded outputs.

    Args:
        lanes: the members between which the elements of one member lie in the inputs.
    """

    def __init__(
        self, binding: Binding, inputs: Sequence[Buffer], outputs: Mapping[str, Buffer], lanes: int
    ) -> None:
        # The words of entries that stay the same.
        self._inputs = [
            (b, staging.ctypes.data, b.bytes // b.shape[0], b.dtype.itemsize, lanes)
            for b, staging in zip(inputs, binding.staging, strict=True)
        ]
        arrays = {name: binding.output(name) for name in outputs}
        # Outputs that do not depend on parameters are equal for all members.
        places = {n: array.size // max(size_of(outputs[n].shape), 1) for n, array in arrays.items()}
        self._outputs = {
            name: (array.ctypes.data, outputs[name].bytes, array.itemsize, places[name])
            for name, array in arrays.items()
        }

    def filled(
        self, data: Sequence[Array], kept: Mapping[str, Array], first: int = 0
    ) -> tuple[list[Words], list[Words]]:
        """The entries for data sets, and for the arrays (members, runs, ...) of results.

        Args:
            first: the member with whose data and results they begin.
        """
        inputs: list[Words] = []
        for (buffer, staging, size, width, lanes), source in zip(self._inputs, data, strict=True):
            of_member = source.strides[0] if source.ndim > len(buffer.shape) else 0
            address = source.ctypes.data + first * of_member
            inputs.append((address, staging, size, of_member, width, lanes))
        outputs: list[Words] = []
        for name, target in kept.items():
            address, size, width, places = self._outputs[name]
            own = address_of(target) + first * target.strides[0]
            outputs.append((address, own, size, target.strides[0], width, places))
        return inputs, outputs


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
