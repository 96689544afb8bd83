"""Families: kernels that suit one kind of device, with their schedules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from lamina.base.cache import Sources
from lamina.engines.gpu.launches import Launches
from lamina.program.program import Program
from lamina.program.target import Target


class Family(ABC):
    """Decides how programs are run on a device, and writes their kernels.

    Attributes:
        target: for which programs are compiled.
        key: all properties on which the kernels depend, as text.
        sources: the modules that decide and write them.
    """

    target: Target
    key: str
    sources: Sources

    @abstractmethod
    def decide(self, program: Program, forced: Mapping[int, Any] | None = None) -> Any:
        """The schedule of a program: a frozen record that can be printed.

        Some steps, by their numbers, have forced candidates for their schedules.
        """

    @abstractmethod
    def candidates(self, program: Program) -> Sequence[Any]:
        """Schedules for the step of a program of one step; the first is the one it decides on.

        They are few, and each may be the fastest one. All compute the same, up to rounding.
        """

    def expected_seconds(self, program: Program, candidates: Sequence[Any]) -> list[float | None]:
        """The times of candidates by the cost model; None for those that it does not know."""
        return [None for _ in candidates]

    @abstractmethod
    def write(self, program: Program, schedule: Any, *, separate: bool = False) -> Launches:
        """The kernels of a program that is run as the schedule says.

        If `separate`, no launch runs kernels of several steps.
        """

    def text_of_candidate(self, candidate: Any) -> str:
        """The decisions of a candidate, in one line."""
        return " ".join(str(candidate).split())

    def text_of_step(self, schedule: Any, step: int) -> str:
        """The decisions on one step."""
        return str(schedule.steps[step])

    def step_that_runs(self, schedule: Any, step: int) -> int:
        """The number of the step whose kernels run a step: itself, unless it is fused into it."""
        return step
