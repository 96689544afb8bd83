"""The family of kernels for processors: the kernels of the cpu engine, in OpenCL C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from lamina.base.cache import Sources
from lamina.codegen.builder import Builder
from lamina.codegen.c import Function
from lamina.codegen.pieces import PieceFunction, PieceModule
from lamina.codegen.values import Value
from lamina.codegen.words import Words
from lamina.engines.gpu.family import Family
from lamina.engines.gpu.kernels import module_for
from lamina.engines.gpu.launches import Launches, Traits
from lamina.engines.opencl.processor_launches import launches_of
from lamina.engines.simd.decide.candidates import candidates
from lamina.engines.simd.decide.program import decide
from lamina.engines.simd.decide.schedule import FusedSum, ProgramSchedule, StepSchedule
from lamina.engines.simd.emit.kernels import write_kernels
from lamina.engines.simd.processor import Processor
from lamina.program.program import Program
from lamina.program.target import Target

# A launch takes about as long as moving so many bytes.
_LAUNCH_BYTES = 2.0**16
# OpenCL does not report caches of single cores.
_LEVEL1_BYTES, _LEVEL2_BYTES, _LEVEL3_BYTES = 32 << 10, 1 << 20, 16 << 20
# Vector registers, by their size in bytes.
_REGISTERS = {64: 32}
# Compiling one of Winograd's kernels takes about a second for a window of 5 x 5 elements.
_WINOGRAD_SAVING = 3e5

SOURCES = Sources(
    *("lamina.base", "lamina.program", "lamina.codegen", "lamina.engines.gpu"),
    *("lamina.engines.opencl", "lamina.engines.simd"),
    *("lamina.engines.simd.decide", "lamina.engines.simd.emit"),
)


@final
class ProcessorFamily(Family):
    """Kernels of vectors and register tiles."""

    def __init__(self, traits: Traits, words: Words, engine: str) -> None:
        self._traits, self._words = traits, words
        vector_bytes = max(4 * traits.lanes, 16)
        self.processor = Processor(
            vector_bytes=vector_bytes,
            registers=_REGISTERS.get(vector_bytes, 16),
            fused=traits.fused,
            bfloat16_pairs=False,
            bfloat16_tiles=False,
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
        self.target = Target(
            engine,
            launch_bytes=_LAUNCH_BYTES,
            narrow_positions=False,
            scatter="in order",
            alignment_bytes=traits.alignment_bytes,
            largest_block_bytes=traits.largest_block_bytes,
        )

    def decide(
        self, program: Program, forced: Mapping[int, StepSchedule] | None = None
    ) -> ProgramSchedule:
        decided = decide(program, self.processor)
        if not forced:
            return decided
        # A fused loop reads its operand from a cache, so it stays fused.
        steps = {
            number: schedule
            for number, schedule in forced.items()
            if not isinstance(decided.steps[number], FusedSum)
        }
        return decide(program, self.processor, steps)

    def candidates(self, program: Program) -> Sequence[StepSchedule]:
        (step,) = program.steps
        (decided,) = decide(program, self.processor).steps
        # The only step is fused with no other.
        assert not isinstance(decided, FusedSum)
        return candidates(step, decided, self.processor)

    def text_of_step(self, schedule: ProgramSchedule, step: int) -> str:
        return schedule.text(step)

    def step_that_runs(self, schedule: ProgramSchedule, step: int) -> int:
        decided = schedule.steps[step]
        return decided.carrier if isinstance(decided, FusedSum) else step

    def write(
        self, program: Program, schedule: ProgramSchedule, *, separate: bool = False
    ) -> Launches:
        module = PieceModule(module_for(self._traits, self._words))
        written = write_kernels(
            program,
            self.processor,
            module,
            _AddressesOfKernel(),
            schedule,
            alignment=self._traits.alignment_bytes,
            block_bytes=self._traits.block_bytes,
            keeps_apart=True,
            whole_vectors=True,
        )
        return launches_of(program, written, self._traits, separate=separate)


@final
class _AddressesOfKernel:
    """Tables of addresses that a kernel makes of its arguments."""

    def buffer(self, code: Builder, table: Value, number: int) -> Value:
        return _inner(code).address_in(table, number + 1)

    def thread_memory(self, code: Builder, table: Value, thread: Value) -> Value:
        return _inner(code).address_in(table, 0)

    def iteration(self, code: Builder, table: Value) -> Value:
        return _inner(code).iteration_in(table)


def _inner(code: Builder) -> Function:
    assert isinstance(code, PieceFunction)
    return code.inner
