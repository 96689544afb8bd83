"""The protocol of engines, and their discovery.

An engine is four nouns: a device that describes itself, memory on it, a compiler from programs to
executables, and the executable. Engines know programs and nothing of graphs, ops or layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lamina.errors import EngineError
from lamina.program.program import Program
from lamina.program.target import Target
from lamina.records import frozen_dataclass
from lamina.shapes import Array, DType


@frozen_dataclass
class Device:
    """What an engine runs on.

    Attributes:
        engine: the name by which it is asked for, `"interpreter"`, `"opencl:1"`.
        description: the processor, for people.
        memory_bytes: how much memory programs can use there; None if unknown.
        problem: why it cannot be used, or "".
    """

    engine: str
    description: str
    memory_bytes: int | None
    problem: str = ""


@frozen_dataclass
class Peaks:
    """The most a device was seen to do.

    Attributes:
        operations: floating-point operations a second, a multiplication and an addition each.
        bytes: bytes a second between memory that no cache holds and the processor.
    """

    operations: float
    bytes: float


class Memory(Protocol):
    """Bytes on a device, as one contiguous array."""

    def write(self, array: Array) -> None:
        """Copies an array of the memory's own dtype and size in, in row-major order."""
        ...

    def read(self) -> Array:
        """A copy of the contents, in the shape given at allocation; waits for the device."""
        ...

    def release(self) -> None:
        """Gives the bytes back; the memory must not be used afterwards."""
        ...


class Arena(Protocol):
    """Memory that executables share which never run at the same time.

    It is as large as the largest of them needs: compiling a program may enlarge it, releasing one
    may make it smaller. Either of these, and every run, ends the results of all earlier runs.

    Attributes:
        bytes: how large it is.
    """

    @property
    def bytes(self) -> int: ...


class Executable(Protocol):
    """A program compiled for a device, with its constants, and its place in an arena.

    It is bound to the memories of its parameters and states. Running allocates nothing. One thread
    at a time may call it, and those that share its arena.

    Attributes:
        synchronous: whether the results are there when `run` returns.
    """

    synchronous: bool

    def run(self, inputs: Sequence[Array]) -> None:
        """Runs the program once.

        Args:
            inputs: for every buffer of kind input, in the program's order, an array of its dtype
                and size in row-major order. It is not kept.
        """
        ...

    def run_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> dict[str, Array]:
        """Runs the program once for each row of `rows`, without Python in between.

        Args:
            resident: for every buffer of kind input, a data set on the device: examples along the
                first axis.
            rows: int64 (runs, batch): the examples of each run.
            recorded: the outputs whose values are kept.

        Returns:
            For each recorded output an array (runs, *its shape).
        """
        ...

    def output(self, name: str) -> Array:
        """A copy of an output of the last run in the arena, which was this one's; waits for it."""
        ...

    def scalar(self, name: str) -> float:
        """The same of an output of one element, as quickly as can be."""
        ...

    def step_seconds(self) -> Array:
        """The seconds that each step took since this was last asked, float64 (steps,).

        Only of programs that were compiled to be timed.
        """
        ...

    def release(self) -> None:
        """Leaves the arena; the executable must not be used afterwards."""
        ...


class Engine(Protocol):
    """A device that compiles and runs programs."""

    @property
    def device(self) -> Device: ...

    @property
    def target(self) -> Target:
        """What the compiler needs to know: it makes programs for this target."""
        ...

    def available_bytes(self) -> int | None:
        """How much memory can be had now; None if that is not known."""
        ...

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Memory:
        """Memory for an array, filled with zeros.

        Raises:
            EngineError: if there is not enough.
        """
        ...

    def arena(self) -> Arena:
        """An arena that is still empty."""
        ...

    def compile(
        self,
        program: Program,
        memories: Mapping[str, Memory],
        arena: Arena | None = None,
        *,
        timed: bool = False,
        schedule: Any = None,
    ) -> Executable:
        """Machine code for the program.

        Args:
            program: what to compile.
            memories: for every buffer of kind parameter and state, where it lies.
            arena: what the program shares with others that never run at the same time; without
                it, it has one of its own.
            timed: whether the time of every step is taken, which itself takes some.
            schedule: one of this engine's `schedules` of the program; by default it decides.

        Raises:
            EngineError: if there is not enough memory for what it takes, workspaces included.
        """
        ...

    def schedules(self, program: Program) -> Iterable[Any]:
        """Other ways in which the engine can run the program, all of them right; for tests.

        There are none if it has but one way.
        """
        ...

    @property
    def languages(self) -> tuple[str, ...]:
        """In which languages `listing` shows a step, the nearest to the machine last."""
        ...

    def listing(self, program: Program, step: int | None, language: str) -> str:
        """What this engine makes of a step, or of all steps, in one of its `languages`."""
        ...

    def workspace_bytes(self, program: Program) -> int | None:
        """What a compiled program takes beside its buffers; None if that is not known."""
        ...

    def peaks(self, dtype: DType) -> Peaks | None:
        """What the device can do at most with numbers of that type, measured now.

        None where that says nothing about the engine.
        """
        ...


# How people see what there is, from Python and from a shell.
LISTING = "lamina.devices(), or `lamina devices` on the command line, lists"


def unknown_engine(name: str, known: Sequence[str]) -> EngineError:
    """The error for a name that no engine answers to."""
    return EngineError(
        f"there is no engine {name!r}",
        facts=(("expected", " or ".join(known)), ("found", repr(name))),
        advice=f"{LISTING} what this machine offers.",
    )
