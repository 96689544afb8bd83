"""The protocol of engines, and their discovery.

An engine is four nouns: a device that describes itself, memory on it, a compiler from programs to
executables, and the executable. Engines know programs and nothing of graphs, ops or layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lamina.errors import EngineError
from lamina.program.program import Program
from lamina.shapes import Array


@dataclass(frozen=True)
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


class Executable(Protocol):
    """A program compiled for a device, with its arena and constants. Running allocates nothing."""

    def run(self, memories: Mapping[str, Memory]) -> None:
        """Runs the program once.

        Args:
            memories: for every buffer of kind input, parameter and state, its memory.
        """
        ...

    def run_many(
        self,
        memories: Mapping[str, Memory],
        resident: Mapping[str, Memory],
        rows: Array,
        recorded: Sequence[str],
    ) -> dict[str, Array]:
        """Runs the program once for each row of `rows`, without Python in between.

        Args:
            memories: as for `run`.
            resident: for inputs that take their examples from a data set on the device, that
                data set: examples along the first axis.
            rows: int64 (runs, batch): the examples of each run.
            recorded: the outputs whose values are kept.

        Returns:
            For each recorded output an array (runs, *its shape).
        """
        ...

    def output(self, name: str) -> Array:
        """A copy of an output of the last run; waits for the device."""
        ...

    def release(self) -> None:
        """Gives the arena back; the executable must not be used afterwards."""
        ...


class Engine(Protocol):
    """A device that compiles and runs programs."""

    @property
    def device(self) -> Device: ...

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Memory:
        """Memory for an array, filled with zeros."""
        ...

    def compile(self, program: Program) -> Executable: ...


def unknown_engine(name: str, known: Sequence[str]) -> EngineError:
    """The error for a name that no engine answers to."""
    return EngineError(
        f"there is no engine {name!r}",
        facts=(("expected", " or ".join(known)), ("found", repr(name))),
        advice="lamina.devices() lists what this machine offers.",
    )
