"""Steps compiled for one batch size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar, final

from lamina.bill import MemoryBill
from lamina.compiler.planned import compile_cached
from lamina.engines.engine import Device, Engine, Executable, Memory
from lamina.errors import EngineError
from lamina.program.program import Program
from lamina.records import frozen_dataclass
from lamina.reports import bytes_text
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
    """Compiles a step for a batch size; timed, if the time of its parts is wanted.

    Raises:
        EngineError: if it needs more memory than the device has.
    """
    program = compile_cached(graph.graph, batch=batch, name=name)
    _require_room(MemoryBill(batch, program), engine.device)
    names = [tensor.attributes["name"] for tensor in graph.graph.inputs]
    order = tuple(names.index(buffer.name) for buffer in program.of_kind("input"))
    as_given = order == tuple(range(len(names)))
    executable = engine.compile(program, shared, timed=timed)
    return Prepared(program, executable, None if as_given else order)


def _require_room(bill: MemoryBill, device: Device) -> None:
    if device.memory_bytes is not None and bill.peak_bytes > device.memory_bytes:
        raise EngineError(
            "this step needs more memory than there is",
            facts=(
                ("expected", f"at most {bytes_text(device.memory_bytes)}"),
                ("found", f"{bytes_text(bill.peak_bytes)} for {bill.batch_size:,} examples"),
            ),
            where=device.engine,
            advice="Take a smaller batch; Network.max_batch_size says which one fits.",
        )


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
