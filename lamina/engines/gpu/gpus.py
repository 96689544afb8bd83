"""The family of kernels for GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from lamina.base.cache import Sources
from lamina.codegen.words import Words
from lamina.engines.gpu.decisions import decide, promising
from lamina.engines.gpu.launches import Launches, Traits
from lamina.engines.gpu.schedule import Schedule, StepSchedule
from lamina.engines.gpu.target import target_for
from lamina.program.program import Program

SOURCES = Sources("lamina.base", "lamina.program", "lamina.codegen", "lamina.engines.gpu")


@final
class GpuFamily:
    """Kernels whose work groups share tiles in local memory, rows and reductions.

    Args:
        traits: of the device.
        words: of its language.
        engine: the name of the engine.
    """

    def __init__(self, traits: Traits, words: Words, engine: str) -> None:
        self.traits, self._words = traits, words
        self.target = target_for(traits, engine)
        self.key = repr(("gpu", traits, words))
        self.sources = SOURCES

    def decide(
        self, program: Program, forced: Mapping[int, StepSchedule] | None = None
    ) -> Schedule:
        return decide(program, self.target, self.traits, forced)

    def candidates(self, program: Program) -> Sequence[StepSchedule]:
        (step,) = program.steps
        return promising(step, self.target, self.traits)

    def text_of_candidate(self, candidate: StepSchedule) -> str:
        return " ".join(str(candidate).split())

    def text_of_step(self, schedule: Schedule, step: int) -> str:
        return str(schedule.steps[step])

    def step_that_runs(self, schedule: Schedule, step: int) -> int:
        return step

    def write(self, program: Program, schedule: Schedule, *, separate: bool = False) -> Launches:
        # Imported only here: listing devices does not need it.
        from lamina.engines.gpu.kernels import write_kernels

        return write_kernels(program, schedule, self.traits, self._words)
