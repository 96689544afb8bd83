"""The family of kernels for processors: those of the cpu engine, in OpenCL C.

All launches have one kernel, which calls one of the functions. A launch has a work item for each
share of its work. Each work item is a work group, which the driver gives to a thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import final

from lamina.cache import Sources
from lamina.codegen.builder import Builder
from lamina.codegen.c import Function, Module
from lamina.codegen.pieces import PieceFunction, PieceModule
from lamina.codegen.values import I32, I64, Value, constant
from lamina.codegen.words import Words
from lamina.engines.gpu.gather import write_gather
from lamina.engines.gpu.kernels import module_for
from lamina.engines.gpu.launches import Launch, Launches, RepeatedLaunches, Traits, Workspace
from lamina.engines.simd.decide.alternatives import legal_schedules
from lamina.engines.simd.decide.candidates import candidates
from lamina.engines.simd.decide.program import decide
from lamina.engines.simd.decide.schedule import FusedSum, Schedule, StepSchedule
from lamina.engines.simd.decide.work import Slices
from lamina.engines.simd.emit.kernels import KernelCall, WrittenProgram, write_kernels
from lamina.engines.simd.processor import Processor
from lamina.engines.simd.target import processor_target
from lamina.program.program import Program

# A launch takes about as long as moving so many bytes.
_LAUNCH_BYTES = 2.0**16
# OpenCL does not report caches of single cores.
_LEVEL1_BYTES, _LEVEL2_BYTES, _LEVEL3_BYTES = 32 << 10, 1 << 20, 16 << 20
# Vector registers, by their size in bytes.
_REGISTERS = {64: 32}
# The work items of a launch for each thread: threads that are interrupted do fewer of them.
_ITEMS_PER_THREAD = 4
# Compiling one of Winograd's kernels takes about a second for a window of 5 x 5 elements.
_WINOGRAD_SAVING = 3e5
# The name of the memory that work items have for themselves.
_OWN = "own"
# The name of the kernel.
_KERNEL = "run"


SOURCES = Sources(
    *("lamina", "lamina.program", "lamina.codegen", "lamina.engines.gpu", "lamina.engines.opencl"),
    *("lamina.engines.simd", "lamina.engines.simd.decide", "lamina.engines.simd.emit"),
)


@final
class ProcessorFamily:
    """Kernels of vectors and register tiles.

    Args:
        traits: of the device.
        words: of its language.
        engine: the name of the engine.
    """

    def __init__(self, traits: Traits, words: Words, engine: str) -> None:
        self._traits, self._words = traits, words
        vector_bytes = max(4 * traits.lanes, 16)
        self._processor = Processor(
            vector_bytes=vector_bytes,
            registers=_REGISTERS.get(vector_bytes, 16),
            fused=traits.fused,
            level1_bytes=_LEVEL1_BYTES,
            level2_bytes=_LEVEL2_BYTES,
            level3_bytes=_LEVEL3_BYTES,
            threads=traits.compute_units,
            # The drivers' compilers take long for large kernels.
            registers_at_once=1,
            winograd_saving=_WINOGRAD_SAVING,
        )
        self.key = repr(("processor", traits, words))
        self.sources = SOURCES
        self.target = processor_target(
            engine,
            launch_bytes=_LAUNCH_BYTES,
            alignment_bytes=traits.alignment_bytes,
            largest_block_bytes=traits.largest_block_bytes,
        )

    def decide(
        self, program: Program, forced: Mapping[int, StepSchedule] | None = None
    ) -> Schedule:
        decided = decide(program, self._processor)
        if not forced:
            return decided
        # A fused loop reads its operand from a cache, so it stays fused.
        steps = {
            number: one
            for number, one in forced.items()
            if not isinstance(decided.steps[number], FusedSum)
        }
        return decide(program, self._processor, steps)

    def candidates(self, program: Program) -> Sequence[StepSchedule]:
        (step,) = program.steps
        (decided,) = decide(program, self._processor).steps
        # The only step is fused with no other.
        assert not isinstance(decided, FusedSum)
        return candidates(step, decided, self._processor)

    def text_of_candidate(self, candidate: StepSchedule) -> str:
        return " ".join(str(candidate).split())

    def text_of_step(self, schedule: Schedule, step: int) -> str:
        return schedule.text(step)

    def step_that_runs(self, schedule: Schedule, step: int) -> int:
        one = schedule.steps[step]
        return one.carrier if isinstance(one, FusedSum) else step

    def legal_schedules(self, program: Program) -> Iterator[Schedule]:
        return legal_schedules(program, self._processor)

    def write(self, program: Program, schedule: Schedule) -> Launches:
        module = PieceModule(module_for(self._traits, self._words))
        written = write_kernels(
            program,
            self._processor,
            module,
            _AddressesOfKernel(),
            schedule,
            alignment=self._traits.alignment_bytes,
            block_bytes=self._traits.block_bytes,
            keeps_apart=True,
            whole_vectors=True,
        )
        return _Launching(program, written, self._traits).launches()


@final
class _AddressesOfKernel:
    """Tables of addresses that a kernel makes of its arguments."""

    def buffer(self, code: Builder, table: Value, number: int) -> Value:
        return _inner(code).address_in(table, number + 1)

    def own(self, code: Builder, table: Value, thread: Value) -> Value:
        return _inner(code).address_in(table, 0)

    def iteration(self, code: Builder, table: Value) -> Value:
        return _inner(code).iteration_in(table)


def _inner(code: Builder) -> Function:
    assert isinstance(code, PieceFunction)
    return code.inner


@final
class _Launching:
    """Makes launches of the calls of kernels."""

    def __init__(
        self, program: Program, written: WrittenProgram[PieceModule], traits: Traits
    ) -> None:
        self._program = program
        self._written = written
        self._traits = traits
        self._module: Module = written.module.inner
        # The numbers by which the kernel finds a function and its share of the work.
        self._choices: dict[tuple[str, Slices], int] = {}
        self._own_bytes = written.workspaces.thread_bytes
        sections = {call.section for call in (*written.load, *written.calls)}
        most = max((len(written.sections[section]) for section in sections), default=0)
        self._arguments = max(most + bool(self._own_bytes), 1)
        # The most work items of a launch. Their own memory is one allocation.
        self._most = traits.compute_units * _ITEMS_PER_THREAD
        if self._own_bytes:
            self._most = max(min(self._most, traits.block_bytes // self._own_bytes), 1)

    def launches(self) -> Launches:
        written = self._written
        repeated = {number for loop in written.loops for number in range(loop.first, loop.last)}
        load = [self._launch(call, 0) for call in written.load]
        used = [number for number, call in enumerate(written.calls) if call.slices.work.items]
        launches = [
            self._launch(written.calls[number], written.steps[number], numbered=number in repeated)
            for number in used
        ]
        repeats: list[RepeatedLaunches] = []
        for loop in written.loops:
            first, last = (bisect_left(used, one) for one in (loop.first, loop.last))
            if first < last:
                repeats.append(RepeatedLaunches(first, last, loop.iterations))
        inputs = [one for one in self._program.of_kind("input") if one.shape and one.bytes]
        gathers = tuple(write_gather(self._module, buffer) for buffer in inputs)
        self._write_kernel()
        return Launches(
            self._module.text(),
            tuple(launches),
            tuple(repeats),
            gathers,
            self._workspaces(),
            written.kept,
            tuple(load),
        )

    def _workspaces(self) -> dict[str, Workspace]:
        """The memory of work items in the first block, the shared workspaces in further ones."""
        extents, block_bytes = self._written.workspaces.extents, self._traits.block_bytes
        found: dict[str, Workspace] = {}
        if self._own_bytes:
            calls = (*self._written.load, *self._written.calls)
            items = max(1, *(self._items(call.slices) for call in calls))
            found[_OWN] = Workspace(0, items * self._own_bytes)
        before = len(found)
        for name, (start, end) in extents.items():
            if end > start:
                block, offset = divmod(start, block_bytes)
                found[name] = Workspace(offset, end - start, before + block)
        return found

    def _launch(self, call: KernelCall, step: int, *, numbered: bool = False) -> Launch:
        choice = self._choices.setdefault((call.function, call.slices), len(self._choices))
        own = (_OWN,) if self._own_bytes else ()
        buffers = (*own, *self._written.sections[call.section])
        return Launch(
            _KERNEL,
            (*buffers, *("",) * (self._arguments - len(buffers))),
            self._items(call.slices),
            step,
            group=1,
            numbers=(choice,) if numbered else (choice, 0),
            function=call.function,
        )

    def _items(self, slices: Slices) -> int:
        """The number of work items that share a kernel's work."""
        return min(-(-slices.work.items // slices.at_once), self._most)

    def _write_kernel(self) -> None:
        """Writes the kernel of all launches, which calls the function of its choice.

        Drivers take long for each kernel. PoCL, for example, reads the whole program for each, and
        compiles a function once for each kernel that calls it.
        """
        buffers = [(_OWN, "i8")] if self._own_bytes else []
        buffers += [(f"b{number}", "i8") for number in range(self._arguments - len(buffers))]
        code = self._module.kernel(_KERNEL, buffers, [("choice", I32), ("iteration", I32)])
        *given, choice, iteration = code.parameters
        item = code.item()
        if self._own_bytes:
            skipped = code.multiply(item, constant(self._own_bytes, I64))
            given[0] = code.offset(given[0], skipped, "i8")
        else:
            # The first address of a table is that of the work item's own memory.
            given.insert(0, given[0])
        table = code.make_addresses(given, code.convert("zext", iteration, "i64"))
        for (function, slices), number in self._choices.items():
            with code.when(code.compare("eq", choice, constant(number, I32))):
                work, count = slices.work.items, self._items(slices)
                first = code.multiply(item, constant(work, I64))
                first = code.binary("udiv", first, constant(count, I64))
                last = code.multiply(code.add(item, constant(1, I64)), constant(work, I64))
                last = code.binary("udiv", last, constant(count, I64))
                code.call_void(function, table, constant(0, I64), first, last)
        code.finish()
