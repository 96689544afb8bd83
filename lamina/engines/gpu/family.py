"""The protocol of families: kernels that suit one kind of device, with their schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lamina.base.cache import Sources
from lamina.engines.gpu.launches import Launches
from lamina.program.program import Program
from lamina.program.target import Target


class Family(Protocol):
    """Decides how programs are run on a device, and writes their kernels.

    Attributes:
        target: for which programs are compiled.
        key: all properties on which the kernels depend, as text.
        sources: the modules that decide and write them.
    """

    target: Target
    key: str
    sources: Sources

    def decide(self, program: Program, forced: Mapping[int, Any] | None = None) -> Any:
        """The schedule of a program: a frozen record that can be printed.

        Args:
            program: the program.
            forced: candidates for the schedules of some steps, by the steps' numbers.
        """
        ...

    def candidates(self, program: Program) -> Sequence[Any]:
        """Schedules for the step of a program of one step; the first is the one it decides on.

        They are few, and each may be the fastest one. All compute the same, up to rounding.
        """
        ...

    def text_of_candidate(self, candidate: Any) -> str:
        """The decisions of a candidate, in one line."""
        ...

    def text_of_step(self, schedule: Any, step: int) -> str:
        """The decisions on one step."""
        ...

    def step_that_runs(self, schedule: Any, step: int) -> int:
        """The number of the step whose kernels run a step: itself, unless it is fused into it."""
        ...

    def write(self, program: Program, schedule: Any, *, separate: bool = False) -> Launches:
        """The kernels of a program that is run as the schedule says.

        Args:
            program: the program.
            schedule: how its steps are run.
            separate: whether no launch runs kernels of several steps.
        """
        ...
