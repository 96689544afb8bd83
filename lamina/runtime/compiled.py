"""Compiled programs: the graph of one batch, planned and compiled for one batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Generic, TypeVar, final

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.checks.origin import warn
from lamina.compiler.program_cache import compile_cached
from lamina.engines import room
from lamina.engines.engine import Arena, Engine, Executable, Members, Memory
from lamina.engines.room import Need, needs_of_program, require_room
from lamina.errors import EngineError
from lamina.inspect.bill import Count, largest_batch_of
from lamina.program.program import Program
from lamina.runtime.model_lock import ModelLock
from lamina.runtime.streaming import Streamed
from lamina.step.derive import BatchGraph
from lamina.step.planning import members_of

# The number of compiled programs that are kept, one for each batch size.
MOST_PROGRAMS = 16
# A training that compiles more programs than these warns of it.
FEW_PROGRAMS = 5

Key = TypeVar("Key", bound=Hashable)
_Value = TypeVar("_Value")


@frozen_dataclass
class Placement:
    """An engine, and what programs share on it: the lock of their memories, and an arena.

    Attributes:
        members: the number of members of a population; None for a model.
        may_use_lanes: whether several members may be computed in the lanes of a vector.
    """

    engine: Engine
    lock: ModelLock
    arena: Arena
    members: int | None = None
    may_use_lanes: bool = True

    def of_members(self, *, own_inputs: bool) -> Members | None:
        """The members for whom programs are compiled, with inputs of their own or common ones."""
        if self.members is None:
            return None
        lanes = self.may_use_lanes
        return members_of(self.members, own_inputs=own_inputs, may_use_lanes=lanes)


@frozen_dataclass
class CompiledProgram:
    """A program for one batch size, loaded on an engine.

    Attributes:
        order: the number of each input of the program among the network's inputs and targets;
            None if both have the same order.
    """

    program: Program
    executable: Executable
    lock: ModelLock
    order: tuple[int, ...] | None

    def run(self, arrays: Sequence[Array]) -> None:
        """Runs the program on arrays for the network's inputs and targets."""
        if self.lock.unread is not None:
            self.lock.settle()
        if self.order is not None:
            arrays = self.ordered(arrays)
        self.executable.run(arrays)

    def ordered(self, values: Sequence[_Value]) -> Sequence[_Value]:
        """The values, one for each input of the network, that belong to inputs of the program."""
        return values if self.order is None else [values[number] for number in self.order]

    def run_many(
        self, resident: Mapping[str, Memory] | Streamed, rows: Array, recorded: Sequence[str]
    ) -> dict[str, Array]:
        """Runs the program on one batch after the other of a data set.

        It has the arguments and result of `Executable.run_many`; a streamed data set knows which
        batches come next.
        """
        self.lock.settle()
        if isinstance(resident, Streamed):
            return resident.run(self.executable, rows, recorded)
        return self.executable.run_many(resident, rows, recorded)


def run_turns(
    turns: Sequence[tuple[CompiledProgram, Array]],
    resident: Mapping[str, Memory] | Streamed,
    recorded: Sequence[str],
) -> list[dict[str, Array]]:
    """Runs programs of one graph in turns, each on one batch after the other of a data set."""
    first = turns[0][0]
    if len(turns) == 1 or isinstance(resident, Streamed):
        return [compiled.run_many(resident, rows, recorded) for compiled, rows in turns]
    first.lock.settle()
    given = [(compiled.executable, rows) for compiled, rows in turns]
    return first.executable.run_turns(given, resident, recorded)


def compile_for_batch(
    graph: BatchGraph,
    batch: int,
    placement: Placement,
    shared: Mapping[str, Memory],
    name: str,
    *,
    timed: bool = False,
    program: Program | None = None,
    own_inputs: bool = False,
) -> CompiledProgram:
    """Compiles the graph of one batch for a batch size. The caller holds the model's lock."""
    placement.lock.settle()
    members = placement.of_members(own_inputs=own_inputs)
    if program is None:
        program = program_for_batch(graph, batch, placement, name, members=members)
    else:
        _require_room(batch, placement.engine.needs(program, members), placement)
    names = [tensor.attributes["name"] for tensor in graph.graph.inputs]
    order = tuple(names.index(buffer.name) for buffer in program.of_kind("input"))
    same_order = order == tuple(range(len(names)))
    executable = placement.engine.compile(
        program, shared, placement.arena, timed=timed, members=members
    )
    return CompiledProgram(program, executable, placement.lock, None if same_order else order)


def program_for_batch(
    graph: BatchGraph,
    batch: int,
    placement: Placement,
    name: str,
    state: Sequence[Need] = (),
    divisible: str = "",
    members: Members | None = None,
) -> Program:
    """The program for a batch size, after a check that there is memory for it.

    Args:
        divisible: the batch that may have fewer examples if it does not fit: the `"batch"` of a
            training step, which may be divided, or its `"micro-batch"`; "" for another batch.
    """
    engine = placement.engine

    @cache
    def compiled(size: int) -> Program:
        return compile_cached(graph.graph, batch=size, name=name, target=engine.target)

    def needs_of(size: int, count: Count) -> Sequence[Need]:
        return (*state, *count(compiled(size)))

    @contextmanager
    def advised() -> Generator[None]:
        try:
            yield
        except EngineError as error:
            available = engine.available_bytes()
            limit = math.inf if available is None else available + placement.arena.bytes
            limit = max(limit, room.NOT_ASKED_BYTES)
            most = engine.target.largest_block_bytes
            fits = 0
            if batch > 1:
                fits = largest_batch_of(needs_of, engine.needs, limit, most, batch)
            error.advice = _advice_on_batch(fits, divisible)
            raise error.at(engine.device.engine) from None

    with advised():
        program = compiled(batch)
        planned = needs_of_program(program)
        _require_room(batch, (*state, *planned), placement)
    # An error of the engine itself does not depend on the batch.
    needs = engine.needs(program, members)
    if needs != planned:
        with advised():
            _require_room(batch, (*state, *needs), placement)
    return program


def _advice_on_batch(fits: int, divisible: str) -> str:
    if not fits:
        return "Not even one example fits: take a smaller network, or an optimizer with less state."
    examples = f"{fits:,} example{'s' if fits > 1 else ''}"
    if divisible == "micro-batch":
        return f"Take micro-batches of at most {examples}."
    divided = f", or divide the batch: micro_batch={fits}" if divisible else ""
    return f"Take a batch of at most {examples}{divided}."


def _require_room(batch: int, needs: Sequence[Need], placement: Placement) -> None:
    """Checks that there is memory for a program, before it is compiled and memory is allocated."""
    require_room(
        f"a batch of {batch:,} example{'s' if batch > 1 else ''} needs",
        needs,
        placement.engine.available_bytes,
        reused=placement.arena.bytes,
        most=placement.engine.target.largest_block_bytes,
        where=placement.engine.device.engine,
        advice="Take a smaller batch.",
    )


@final
class RecentPrograms(Generic[Key]):
    """An LRU cache of compiled programs, one for each batch size; evicted ones are released."""

    def __init__(self, advice: str = "") -> None:
        # In the order of use, the latest last.
        self._programs: dict[Key, CompiledProgram] = {}
        self._latest: Key | None = None
        self._made = 0
        self._advice = advice

    def __reduce__(self) -> tuple[type[RecentPrograms[Key]], tuple[str]]:
        # A copy compiles its own programs, also if it is unpickled on another machine.
        return RecentPrograms, (self._advice,)

    def get(self, key: Key, make: Callable[[Key], CompiledProgram]) -> CompiledProgram:
        """The program for a key, made by `make` if it is not in the cache."""
        if key == self._latest:
            return self._programs[key]
        compiled = self._programs.pop(key, None)
        if compiled is None:
            compiled = make(key)
            self._made += 1
            if self._advice and self._made == FEW_PROGRAMS + 1:
                warn(
                    f"each new batch size compiles a program, which takes time, and {self._made} "
                    f"were compiled here. {self._advice}"
                )
        self._programs[key] = compiled
        self._latest = key
        if len(self._programs) > MOST_PROGRAMS:
            self._programs.pop(next(iter(self._programs))).executable.release()
        return compiled

    def release(self) -> None:
        self._latest = None
        while self._programs:
            self._programs.popitem()[1].executable.release()
