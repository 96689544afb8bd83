"""The family of kernels for GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.base.cache import Sources
from lamina.codegen.words import Words
from lamina.engines.gpu.contraction_schedules import costs_of_schedules
from lamina.engines.gpu.decisions import decide, position_bits, promising
from lamina.engines.gpu.family import Family
from lamina.engines.gpu.kernels import write_kernels
from lamina.engines.gpu.launches import Launches, Traits
from lamina.engines.gpu.schedule import ProgramSchedule, StepSchedule, WrittenSchedule
from lamina.program.program import Program
from lamina.program.steps import Contraction
from lamina.program.target import Target

SOURCES = Sources("lamina.base", "lamina.program", "lamina.codegen", "lamina.engines.gpu")


class GpuFamily(Family):
    """Kernels whose work groups share tiles in local memory, rows and reductions."""

    def __init__(self, traits: Traits, words: Words, engine: str) -> None:
        self.traits, self._words = traits, words
        self.target = target_for(traits, engine)
        self.key = repr(("gpu", traits, words))
        self.sources = SOURCES

    def decide(
        self, program: Program, forced: Mapping[int, StepSchedule] | None = None
    ) -> ProgramSchedule:
        return decide(program, self.target, self.traits, forced)

    def candidates(self, program: Program) -> Sequence[StepSchedule]:
        (step,) = program.steps
        return promising(step, self.target, self.traits)

    def expected_seconds(
        self, program: Program, candidates: Sequence[StepSchedule]
    ) -> list[float | None]:
        (step,), clock = program.steps, self.traits.rates.clock
        if not isinstance(step, Contraction) or not clock:
            return super().expected_seconds(program, candidates)
        clocks = costs_of_schedules(step, position_bits(step, self.target), self.traits)
        expected = (
            clocks.get(schedule) if isinstance(schedule, WrittenSchedule) else None
            for schedule in candidates
        )
        return [None if cost is None else cost / clock for cost in expected]

    def write(
        self, program: Program, schedule: ProgramSchedule, *, separate: bool = False
    ) -> Launches:
        return write_kernels(program, schedule, self.traits, self._words, separate=separate)


def target_for(traits: Traits, engine: str) -> Target:
    """The target of programs for a device of an engine."""
    return Target(
        engine,
        # About ten microseconds on a device that moves ten gigabytes a second or more. With the
        # bytes that an H100 moves meanwhile, many operands of products would not be stored rounded,
        # which saves more than the bytes that the compiler counts.
        launch_bytes=2.0**17,
        narrow_positions=True,
        scatter="sorted",
        chains=not traits.is_processor,
        # Temporaries are parts of the arena's blocks.
        alignment_bytes=traits.alignment_bytes,
        largest_block_bytes=traits.largest_block_bytes,
        # That of most tiles of instructions on matrices. Other products are limited by
        # multiplications.
        operand_tile=128 if traits.matrices else None,
    )
