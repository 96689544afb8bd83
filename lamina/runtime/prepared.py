"""Steps compiled for one batch size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar, final

from lamina.compiler.program_cache import compile_cached
from lamina.engines.engine import Arena, Engine, Executable, Memory
from lamina.engines.room import Need, needs_of_program, require_room
from lamina.program.program import Program
from lamina.records import frozen_dataclass
from lamina.runtime.turns import Turns
from lamina.shapes import Array
from lamina.step import StepGraph

# Programs for this many batch sizes are kept.
MOST_PROGRAMS = 16

Key = TypeVar("Key", bound=Hashable)


@frozen_dataclass
class Prepared:
    """A step compiled for one batch size.

    Attributes:
        program: what runs.
        executable: the same, on the engine.
        turns: of the model; whoever runs the step holds its lock.
        order: for each input of the program, its number among the network's inputs and targets;
            None if the program takes them as they come.
    """

    program: Program
    executable: Executable
    turns: Turns
    order: tuple[int, ...] | None

    def run(self, arrays: Sequence[Array]) -> None:
        """Runs the step on arrays for the network's inputs and targets."""
        if self.turns.unread is not None:
            self.turns.settle()
        if self.order is not None:
            arrays = [arrays[number] for number in self.order]
        self.executable.run(arrays)

    def run_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> dict[str, Array]:
        """Runs the step for each row of examples of a placed data set; `Executable.run_many`."""
        self.turns.settle()
        return self.executable.run_many(resident, rows, recorded)


def prepare(
    graph: StepGraph,
    batch: int,
    engine: Engine,
    shared: Mapping[str, Memory],
    turns: Turns,
    arena: Arena,
    name: str,
    *,
    timed: bool = False,
    planned: Program | None = None,
) -> Prepared:
    """Compiles a step for a batch size; whoever calls holds the model's lock.

    Args:
        graph: what is compiled.
        batch: how many examples a step takes.
        engine: where it runs.
        shared: the memories of its parameters and states.
        turns, arena: what it shares with the model's other steps.
        name: of the program.
        timed: whether the time of its parts is wanted.
        planned: the program, if it is known; made for the engine's target.

    Raises:
        EngineError: if it needs more memory than there is.
    """
    turns.settle()
    target = engine.target
    program = planned or compile_cached(graph.graph, batch=batch, name=name, target=target)
    require_room_for_step(batch, program, engine, arena)
    names = [tensor.attributes["name"] for tensor in graph.graph.inputs]
    order = tuple(names.index(buffer.name) for buffer in program.of_kind("input"))
    as_given = order == tuple(range(len(names)))
    executable = engine.compile(program, shared, arena, timed=timed)
    return Prepared(program, executable, turns, None if as_given else order)


def require_room_for_step(
    batch: int, program: Program, engine: Engine, arena: Arena, state: Sequence[Need] = ()
) -> None:
    """Checks that there is memory for a step, before it is allocated, and compiled.

    Args:
        batch: how many examples a step takes.
        program: the step.
        engine: where it runs.
        arena: where it shall lie.
        state: what else is to be made for it.

    Raises:
        EngineError: if there is not enough.
    """
    needs = (*state, *needs_of_program(program))
    largest = max(needs, key=lambda need: need.bytes)
    require_room(
        f"a step of {batch:,} example{'s' if batch > 1 else ''} needs",
        needs,
        engine.available_bytes,
        reused=arena.bytes,
        most=engine.target.largest_block_bytes,
        where=engine.device.engine,
        advice="Take a smaller network, or an optimizer with less state."
        if largest in state
        else "Take a smaller batch; Network.max_batch_size says which one fits.",
    )


@final
class RecentSteps(Generic[Key]):
    """Steps for several batch sizes; those that were used longest ago are given up."""

    def __init__(self) -> None:
        # The one used last stands last.
        self._steps: dict[Key, Prepared] = {}
        self._latest: Key | None = None

    def __reduce__(self) -> tuple[type[RecentSteps[Key]], tuple[()]]:
        # Copies, and what comes from another machine, compile their own programs.
        return RecentSteps, ()

    def __contains__(self, key: Key) -> bool:
        return key in self._steps

    def get(self, key: Key, make: Callable[[Key], Prepared]) -> Prepared:
        """The step of that name, made if it is not there."""
        if key == self._latest:
            return self._steps[key]
        prepared = self._steps.pop(key, None) or make(key)
        self._steps[key] = prepared
        self._latest = key
        if len(self._steps) > MOST_PROGRAMS:
            self._steps.pop(next(iter(self._steps))).executable.release()
        return prepared

    def release(self) -> None:
        """Gives all of them up."""
        self._latest = None
        while self._steps:
            self._steps.popitem()[1].executable.release()
