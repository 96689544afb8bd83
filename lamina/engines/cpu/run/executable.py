"""A program as machine code, bound to its buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast, final

import numpy as np

from lamina.base.shapes import Array
from lamina.engines import machine_memory
from lamina.engines.cpu.processor import HostProcessor
from lamina.engines.cpu.run.binding import Binding, native_code
from lamina.engines.cpu.run.thread_pool import Words, run_turns, ticks_per_second
from lamina.engines.engine import Bound, Changes, Executable, Memory, Turn
from lamina.engines.host import HostArena, address_of, host_array, host_memory
from lamina.engines.room import Need, needs_of_program, require_room
from lamina.program.program import Program
from lamina.program.steps import writes_of

if TYPE_CHECKING:
    from lamina.engines.simd.decide.schedule import ProgramSchedule

# Larger inputs of a single run are read in place, smaller ones are copied: asking NumPy for the
# address of an array takes as long as copying this many bytes.
COPIED_BYTES = 4096
# Kinds of buffers in memory outside of a program, which exists longer than the program.
OUTSIDE = ("parameter", "state")


Runner = TypeVar("Runner", bound=Executable)


def joined_turns(turns: Sequence[tuple[Runner, Array]]) -> dict[Runner, Array]:
    """The runs of each program in some turns, along the axis before the last."""
    rows: dict[Runner, list[Array]] = {}
    for program, own in turns:
        rows.setdefault(program, []).append(own)
    return {program: np.concatenate(each, axis=-2) for program, each in rows.items()}


def divided_turns(
    turns: Sequence[tuple[Runner, Array]], kept: Mapping[Runner, Mapping[str, Array]], axis: int = 0
) -> list[dict[str, Array]]:
    """The results of each turn, from those of all runs of each program along an axis."""
    ended, results = dict.fromkeys(kept, 0), list[dict[str, Array]]()
    for program, rows in turns:
        runs = slice(ended[program], ended[program] + rows.shape[-2])
        ended[program] = runs.stop
        places = (*(slice(None),) * axis, runs)
        results.append({name: values[places] for name, values in kept[program].items()})
    return results


@final
class Watch:
    """Notes when memories change: operands packed from them are then packed again.

    Attributes:
        changes: the counters of the parameters and states that a program uses.
        changes_memories: whether the program itself changes some.
    """

    def __init__(self, program: Program, memories: Mapping[str, Memory]) -> None:
        used = [host_memory(memories[b.name]) for kind in OUTSIDE for b in program.of_kind(kind)]
        # The memories of a model share one counter; copied or unpickled ones may have another.
        self.changes = tuple({id(memory.changes): memory.changes for memory in used}.values())
        written = {name for step in program.steps for name in writes_of(step)}
        self.changes_memories = any(program.buffers[n].kind in OUTSIDE for n in written)

    @property
    def count(self) -> int:
        return sum(changes.count for changes in self.changes)

    def run(self, jobs: Callable[[], object], programs: Iterable[CpuProgram] = ()) -> None:
        """Runs jobs, perhaps of programs whose operands are packed."""
        if not self.changes_memories:
            jobs()
            return
        # Done before the run: after Ctrl-C during the run, no code after it is executed.
        for changes in self.changes:
            changes.count += 1
        for program in programs:
            # Packed operands do not depend on memories that the program itself changes.
            program.packed_at += len(self.changes)
        jobs()
        for changes in self.changes:
            changes.complete()


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
        self._code = native_code(program, processor, schedule, timed=timed)
        require_room(
            "this program needs",
            (*needs_of_program(program), Need("workspaces", self._code.layout.total_bytes)),
            machine_memory.available_bytes,
            reused=arena.bytes,
            where="cpu",
            advice="Take a smaller batch, or fewer threads: LAMINA_THREADS=1.",
        )
        self._program = program
        outside = [buffer for kind in OUTSIDE for buffer in program.of_kind(kind)]
        arrays = {buffer.name: host_array(memories[buffer.name]) for buffer in outside}
        self._binding = Binding(program, self._code, arrays, keeps_packed=True, timed=timed)
        self._job, self._load = self._binding.job, self._binding.load
        self._watch = Watch(program, memories)
        # The changes with which operands were packed last.
        self.packed_at = -1
        self._arena = arena
        arena.enter(self, self._binding.bytes)

    def move_to(self, block: Array) -> None:
        self._binding.move_to(block)
        self._outputs = {name: self._binding.output(name) for name, _ in self._program.outputs}
        # The inputs of a single run that are copied, and those that are read in place.
        self._inputs = self._program.of_kind("input")
        self._staging, self._table = self._binding.staging, self._binding.table
        # Addresses and bytes: of an example of each input, of each result.
        staged = ((array, array.shape[:1]) for array in self._staging)
        self._gathered = [(a.ctypes.data, a.nbytes // max((1, *batch))) for a, batch in staged]
        results = self._outputs.items()
        self._recorded = {name: (array.ctypes.data, array.nbytes) for name, array in results}
        # Inputs that are also results must exist longer than the run.
        returned = {buffer for _, buffer in self._program.outputs}
        # The number of the input, and its staging array or its entries in the table.
        self._copied: list[tuple[int, Array]] = []
        self._read_in_place: list[tuple[int, list[int]]] = []
        for number, buffer in enumerate(self._inputs):
            if buffer.bytes <= COPIED_BYTES or buffer.name in returned:
                self._copied.append((number, self._staging[number]))
            else:
                self._read_in_place.append((number, self._binding.entries(buffer.name)))

    def run(self, inputs: Sequence[Array]) -> None:
        for number, staging in self._copied:
            staging[...] = inputs[number]
        for number, entries in self._read_in_place:
            self._table[entries] = address_of(inputs[number])
        self._job.set_single_run()
        self._run()

    def _run(self) -> None:
        if self._load is not None:
            self._pack()
        self._watch.run(self._job.run, (self,))

    def _pack(self) -> None:
        """Packs operands if memories have changed."""
        count = self._watch.count
        if self._load is not None and count != self.packed_at:
            self._load.run()
            self.packed_at = count

    def run_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> dict[str, Array]:
        kept = self._set_runs(resident, rows, recorded)
        if len(rows):
            self._run()
        return kept

    def run_turns(
        self, turns: Sequence[Turn], resident: Mapping[str, Memory], recorded: Sequence[str]
    ) -> list[dict[str, Array]]:
        programs = cast(Sequence[tuple[CpuProgram, Array]], turns)
        kept = {
            program: program._set_runs(resident, rows, recorded)
            for program, rows in joined_turns(programs).items()
        }
        for program in kept:
            program._pack()
        jobs = [(program._job, len(rows)) for program, rows in programs]
        self._watch.run(partial(run_turns, jobs), kept)
        return divided_turns(programs, kept)

    def _set_runs(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> dict[str, Array]:
        """Sets the runs of the job: the arrays that get their results."""
        rows = np.ascontiguousarray(rows, np.int64)
        inputs: list[Words] = []
        for buffer, staging in zip(self._inputs, self._gathered, strict=True):
            source = host_array(resident[buffer.name]).ctypes.data
            inputs.append((source, *staging, 0, 0, 1))
        arrays = ((name, self._outputs[name]) for name in recorded)
        kept = {n: np.empty((len(rows), *array.shape), array.dtype) for n, array in arrays}
        outputs: list[Words] = []
        for name, array in kept.items():
            address, size = self._recorded[name]
            outputs.append((address, address_of(array), size, 0, 0, 1))
        for number, entries in self._read_in_place:
            self._table[entries] = self._staging[number].ctypes.data
        self._job.set_runs(rows, inputs, outputs)
        return kept

    def step_seconds(self) -> Array:
        ticks = np.zeros(len(self._program.steps), np.int64)
        np.add.at(ticks, list(self._code.layout.steps), self._job.phase_ticks())
        return ticks / ticks_per_second()

    def output(self, name: str) -> Array:
        return self._outputs[name].copy()

    def read_into(self, name: str, target: Array) -> None:
        target[...] = self._outputs[name]

    def bound(self) -> Bound | None:
        every = self._watch.changes
        if self._watch.changes_memories or len(every) > 1:
            return None
        changes = every[0] if every else Changes()
        for number, entries in self._read_in_place:
            self._table[entries] = self._staging[number].ctypes.data
        self._job.set_single_run()
        run = self._run if self._load is not None else self._job.bound()
        return Bound(tuple(self._staging), self._outputs, run, changes)

    def scalar(self, name: str) -> float:
        return self._outputs[name].item()

    def release(self) -> None:
        self._arena.leave(self)
        self._binding.release()
        self._outputs, self._staging, self._copied = {}, [], []
