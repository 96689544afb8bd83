"""The protocol of families: kernels that suit one kind of device, with their schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from lamina.cache import Sources
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

    def decide(self, program: Program) -> Any:
        """The schedule of a program: a frozen record that can be printed."""
        ...

    def text_of_step(self, schedule: Any, step: int) -> str:
        """The decisions on one step."""
        ...

    def legal_schedules(self, program: Program) -> Iterator[Any]:
        """Other correct schedules of a program; for tests."""
        ...

    def write(self, program: Program, schedule: Any) -> Launches:
        """The kernels of a program that is run as the schedule says."""
        ...
