"""Programs compiled for one batch size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar, final

from lamina.compiler.program_cache import compile_cached
from lamina.derive import BatchGraph
from lamina.engines.engine import Arena, Engine, Executable, Memory
from lamina.engines.room import Need, needs_of_program, require_room
from lamina.program.program import Program
from lamina.records import frozen_dataclass
from lamina.runtime.model_lock import ModelLock
from lamina.shapes import Array

# Programs for this many batch sizes are kept.
MOST_PROGRAMS = 16

Key = TypeVar("Key", bound=Hashable)


@frozen_dataclass
class CompiledProgram:
    """A step compiled for one batch size.

    Attributes:
        program: what runs.
        executable: the same, on the engine.
        lock: of the model; the caller of `run` holds it.
        order: for each input of the program, its number among the network's inputs and targets;
            None if the program takes them as they come.
    """

    program: Program
    executable: Executable
    lock: ModelLock
    order: tuple[int, ...] | None

    def run(self, arrays: Sequence[Array]) -> None:
        """Runs the step on arrays for the network's inputs and targets."""
        if self.lock.unread is not None:
            self.lock.settle()
        if self.order is not None:
            arrays = [arrays[number] for number in self.order]
        self.executable.run(arrays)

    def run_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> dict[str, Array]:
        """Runs the step for each row of examples of a placed data set; `Executable.run_many`."""
        self.lock.settle()
        return self.executable.run_many(resident, rows, recorded)


def compile_for_batch(
    graph: BatchGraph,
    batch: int,
    engine: Engine,
    shared: Mapping[str, Memory],
    lock: ModelLock,
    arena: Arena,
    name: str,
    *,
    timed: bool = False,
    program: Program | None = None,
) -> CompiledProgram:
    """Compiles a step for a batch size; whoever calls holds the model's lock.

    Args:
        graph: what is compiled.
        batch: how many examples a step takes.
        engine: where it runs.
        shared: the memories of its parameters and states.
        lock, arena: what it shares with the model's other steps.
        name: of the program.
        timed: whether the time of its parts is wanted.
        program: the program, if it is known; made for the engine's target.

    Raises:
        EngineError: if it needs more memory than there is.
    """
    lock.settle()
    target = engine.target
    program = program or compile_cached(graph.graph, batch=batch, name=name, target=target)
    require_room_for_program(batch, program, engine, arena)
    names = [tensor.attributes["name"] for tensor in graph.graph.inputs]
    order = tuple(names.index(buffer.name) for buffer in program.of_kind("input"))
    as_given = order == tuple(range(len(names)))
    executable = engine.compile(program, shared, arena, timed=timed)
    return CompiledProgram(program, executable, lock, None if as_given else order)


def require_room_for_program(
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
class RecentPrograms(Generic[Key]):
    """Steps for several batch sizes; those that were used longest ago are given up."""

    def __init__(self) -> None:
        # The one used last stands last.
        self._programs: dict[Key, CompiledProgram] = {}
        self._latest: Key | None = None

    def __reduce__(self) -> tuple[type[RecentPrograms[Key]], tuple[()]]:
        # Copies, and what comes from another machine, compile their own programs.
        return RecentPrograms, ()

    def __contains__(self, key: Key) -> bool:
        return key in self._programs

    def get(self, key: Key, make: Callable[[Key], CompiledProgram]) -> CompiledProgram:
        """The step of that name, made if it is not there."""
        if key == self._latest:
            return self._programs[key]
        compiled = self._programs.pop(key, None) or make(key)
        self._programs[key] = compiled
        self._latest = key
        if len(self._programs) > MOST_PROGRAMS:
            self._programs.pop(next(iter(self._programs))).executable.release()
        return compiled

    def release(self) -> None:
        """Gives all of them up."""
        self._latest = None
        while self._programs:
            self._programs.popitem()[1].executable.release()
