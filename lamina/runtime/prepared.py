"""Steps compiled for one batch size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, final

from lamina.compiler.planned import compile_cached
from lamina.engines.engine import Engine, Executable, Memory
from lamina.program.program import Program
from lamina.shapes import Array
from lamina.step import StepGraph

# Programs for this many batch sizes are kept.
MOST_PROGRAMS = 16

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Prepared:
    """A step compiled for one batch size.

    Attributes:
        program: what runs.
        executable: the same, on the engine.
        order: for each input of the program, its number among the network's inputs and targets;
            None if the program takes them as they come.
    """

    program: Program
    executable: Executable
    order: tuple[int, ...] | None

    def run(self, arrays: Sequence[Array]) -> None:
        """Runs the step on arrays for the network's inputs and targets."""
        if self.order is not None:
            arrays = [arrays[number] for number in self.order]
        self.executable.run(arrays)


def prepare(
    graph: StepGraph,
    batch: int,
    engine: Engine,
    shared: Mapping[str, Memory],
    name: str,
    *,
    timed: bool = False,
) -> Prepared:
    """Compiles a step for a batch size; timed, if the time of its parts is wanted."""
    program = compile_cached(graph.graph, batch=batch, name=name)
    names = [tensor.attributes["name"] for tensor in graph.graph.inputs]
    order = tuple(names.index(buffer.name) for buffer in program.of_kind("input"))
    as_given = order == tuple(range(len(names)))
    executable = engine.compile(program, shared, timed=timed)
    return Prepared(program, executable, None if as_given else order)


@final
class RecentSteps(Generic[Key]):
    """Steps for several batch sizes; those that were used longest ago are given up."""

    def __init__(self) -> None:
        # The one used last stands last.
        self._steps: dict[Key, Prepared] = {}

    def __reduce__(self) -> tuple[type[RecentSteps[Key]], tuple[()]]:
        # Copies, and what comes from another machine, compile their own programs.
        return RecentSteps, ()

    def get(self, key: Key, make: Callable[[], Prepared]) -> Prepared:
        """The step of that name, made if it is not there."""
        prepared = self._steps.pop(key, None) or make()
        self._steps[key] = prepared
        if len(self._steps) > MOST_PROGRAMS:
            self._steps.pop(next(iter(self._steps))).executable.release()
        return prepared
