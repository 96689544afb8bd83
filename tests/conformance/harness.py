"""Runs graphs on an engine and compares the results with the oracle, for conformance tests.

`check_cases` compiles many small graphs as one program, which takes a fraction of the time that a
program for each would take. The tolerances are the same as for each graph alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest
from tolerances import Expected, expected_of

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, DType, as_dtype, float32
from lamina.compiler.pipeline import compile_graph
from lamina.engines.engine import Engine
from lamina.errors import EngineError
from lamina.graph import Graph, Sample, Tensor, leaf, show
from lamina.learning.protocols import TrainingOptions
from lamina.program.encoding import decode, encode
from lamina.program.program import Program
from lamina.step.derive import BatchGraph, BatchSpecs, default_targets, training_graph
from lamina.step.precision import Rounding

T = TypeVar("T")
Values = Mapping[str, Array]

# Every op with each of its samples.
CASES = [
    pytest.param(op, sample, id=f"{op.name}-{number}")
    for op in ops.ALL
    for number, sample in enumerate(op.samples)
]
DIFFERENTIABLE = [case for case in CASES if case.values[1].differentiable]


def training_step(
    network: lm.Network,
    loss: Any,
    optimizer: Any,
    *,
    dtype: DType = float32,
    rounding: Rounding | None = None,
    **options: Any,
) -> BatchGraph:
    """The training step of a network."""
    targets = default_targets(network, loss, dtype)
    specs = BatchSpecs(network, dtype, rounding, targets=targets)
    return training_graph(specs, TrainingOptions(loss, optimizer, **options))


def tens(seeds: range) -> list[Any]:
    """The first of each ten seeds, as parameters of tests; all but the first ten are sampled."""
    marks = pytest.mark.sampled
    return [pytest.param(first, marks=marks if first else ()) for first in seeds[::10]]


def run_program(
    program: Program, engine: Engine, feeds: Values, runs: int = 1, schedule: Any = None
) -> tuple[Values, Values]:
    """Runs a program; returns the last outputs, and the parameters and states after the runs."""
    memories = {
        buffer.name: engine.allocate(buffer.shape, buffer.dtype.numpy)
        for kind in ("parameter", "state")
        for buffer in program.of_kind(kind)
    }
    for name, memory in memories.items():
        memory.write(feeds[name])
    inputs = [feeds[buffer.name].copy() for buffer in program.of_kind("input")]
    executable = engine.compile(program, memories, schedule=schedule)
    try:
        for _ in range(runs):
            executable.run(inputs)
        outputs = {name: executable.output(name) for name, _ in program.outputs}
    finally:
        executable.release()
    for buffer, array in zip(program.of_kind("input"), inputs, strict=True):
        assert array.tobytes() == feeds[buffer.name].tobytes(), f"{buffer.name} was changed"
    return outputs, {name: memory.read() for name, memory in memories.items()}


def run(graph: Graph, engine: Engine, feeds: Values) -> Values:
    """The outputs of a graph, which are not compared with anything."""
    program = compile_graph(graph, batch=1, name="test", target=engine.target)
    return run_program(program, engine, feeds)[0]


Schedules = Callable[[Program], Iterable[Any]]


def check(
    graph: Graph,
    engine: Engine,
    feeds: Values,
    runs: int = 1,
    *,
    exact: bool = False,
    schedules: Schedules = lambda _: (),
    expected: Expected | None = None,
) -> Program:
    """Compiles and runs a graph, compares all results with the oracle, and returns the program.

    The tolerance is derived from the graph (`tolerances.py`), unless results are `expected`; it is
    zero if numbers are so `exact` that no sum of them is rounded. On failure the message shows the
    graph. It is run with the schedules that the engine chooses, and with each of `schedules`.
    """
    expected = expected or expected_of(graph, feeds, runs, exact=exact)
    try:
        program = compile_graph(graph, batch=1, name="test", target=engine.target)
        kept = decode(encode(program))
        assert kept.steps == program.steps, "encoding and decoding changed the program"
        for schedule in (None, *schedules(kept)):
            suffix = f"\n{schedule}" if schedule is not None else ""
            outputs, after = run_program(kept, engine, feeds, runs, schedule)
            assert outputs.keys() == expected.outputs.keys()
            for name, value in expected.outputs.items():
                compare(f"output {name}{suffix}", outputs[name], *value)
            for name, value in after.items():
                compare(f"leaf {name}{suffix}", value, *expected.leaves[name])
    except Exception as error:
        error.add_note(f"The graph:\n{show(graph)}")
        raise
    return program


# (leaves) -> tensors: adds the leaves of a case, and returns its results.
Build = Callable[["Leaves"], Sequence[Tensor]]

# Refusals of devices that lack what a program needs.
LACKS = (
    "this device cannot compute with float64",
    "this device ends the loops of a work item too early",
)


def check_cases(
    cases: Iterable[tuple[str, Build]],
    engine: Engine,
    *,
    exact: bool = False,
    schedules: Schedules = lambda _: (),
    only: str = "",
) -> None:
    """Checks the graphs of all cases in one program; an error names the case that fails.

    Cases that the device cannot run are left out, unless it can run none.

    Args:
        cases: the name and the graph of each.
        engine: runs them.
        exact: whether no sum is rounded.
        schedules: with which the program is run, too.
        only: the name of the only case that is checked, "" for all.
    """
    chosen = [case for case in cases if only in ("", case[0])]
    if not chosen:
        pytest.skip(f"no case {only}")

    def check_together(cases: list[tuple[str, Build]]) -> None:
        leaves, graphs = Leaves(), list[Graph]()
        for name, build in cases:
            first = len(leaves.tensors)
            results = build(leaves)
            named = tuple((f"{name}/{number}", tensor) for number, tensor in enumerate(results))
            graphs.append(Graph(tuple(leaves.tensors[first:]), named))
        expected = Expected({}, {})
        for graph in graphs:
            feeds = {x.attributes["name"]: leaves.feeds[x.attributes["name"]] for x in graph.inputs}
            expected |= expected_of(graph, feeds, exact=exact)
        outputs = tuple(output for graph in graphs for output in graph.outputs)
        graph = Graph(tuple(leaves.tensors), outputs)
        check(graph, engine, leaves.feeds, schedules=schedules, expected=expected)

    refused = _check_halves(chosen, check_together)
    if len(refused) == len(chosen):
        raise refused[0]


def _check_halves(
    cases: list[tuple[str, Build]], check_together: Callable[[list[tuple[str, Build]]], None]
) -> list[EngineError]:
    """Checks cases together; if that fails, each half of them, down to one case.

    Returns:
        The refusals of cases that the device cannot run.
    """
    try:
        check_together(cases)
        return []
    except Exception as error:
        problem = error
    is_refusal = isinstance(problem, EngineError) and problem.problem in LACKS
    if len(cases) == 1:
        if is_refusal:
            return [problem]
        problem.add_note(f"This case fails alone, too: --case {cases[0][0]}")
        raise problem
    middle = len(cases) // 2
    refused = _check_halves(cases[:middle], check_together)
    refused += _check_halves(cases[middle:], check_together)
    if not is_refusal:
        names = ", ".join(name for name, _ in cases)
        problem.add_note(f"Each half of these cases passes alone, together they fail: {names}")
        raise problem
    return refused


def compare(name: str, actual: Array, expected: Array, allowed: Array | float = 0.0) -> None:
    """Compares an array with the oracle's: NaN with NaN, other elements within a tolerance."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), name
    with np.errstate(all="ignore"):
        distance = np.abs(actual.astype("float64") - expected.astype("float64"))
        excess = np.asarray(distance / allowed)
        same = (actual == expected) | ((actual != actual) & (expected != expected))
    wrong = ~(same | (distance <= allowed))
    if wrong.any():
        worst = np.unravel_index(np.argmax(np.where(wrong, np.nan_to_num(excess), -1)), wrong.shape)
        index = tuple(int(number) for number in worst)
        most = np.broadcast_to(allowed, wrong.shape)[worst]
        raise AssertionError(
            f"{name}: {np.count_nonzero(wrong)} of {wrong.size} elements are wrong; at {index} is "
            f"{actual[worst]!r} instead of {expected[worst]!r}, and {most:.3g} is allowed"
        )


def values_of(sample: Sample, dtype: DType, seed: int = 0) -> list[Array]:
    """Operand arrays for a sample: floats and integers from low to high, bools even."""
    generator = np.random.default_rng(seed)
    arrays: list[Array] = []
    for number, shape in enumerate(sample.shapes):
        name = sample.dtypes[number] if sample.dtypes else "float"
        operand_dtype = dtype if name == "float" else as_dtype(name)
        if operand_dtype.kind == "bool":
            array = generator.random(shape) < 0.5
        else:
            array = generator.uniform(sample.low, sample.high, shape)
        if sample.diagonal and not number:
            array = array + sample.diagonal * np.eye(shape[-1])
        arrays.append(np.asarray(array, operand_dtype.numpy))
    return arrays


class Leaves:
    """Makes input leaves and keeps the values that they are fed."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.feeds: dict[str, Array] = {}

    def add(self, array: Array, role: str = "input", name: str = "") -> Tensor:
        array = np.array(array, order="C")
        name = name or f"x{len(self.tensors)}"
        tensor = leaf(name, role, array.shape, as_dtype(array.dtype))
        self.tensors.append(tensor)
        self.feeds[name] = array
        return tensor

    def graph(self, outputs: Sequence[Tensor]) -> Graph:
        named = tuple((f"y{number}", tensor) for number, tensor in enumerate(outputs))
        return Graph(tuple(self.tensors), named)


class Drawn:
    """A graph that is drawn at random.

    Attributes:
        generator: source of all random numbers.
        leaves: leaves of the graph.
    """

    def __init__(self, seed: int, leaves: Leaves | None = None) -> None:
        self.generator = np.random.default_rng(seed)
        self.leaves = leaves or Leaves()

    def chance(self, probability: float) -> bool:
        return bool(self.generator.random() < probability)

    def number(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return int(self.generator.integers(low, high + 1))

    def choose(self, items: Sequence[T]) -> T:
        return items[int(self.generator.integers(len(items)))]


def numbers_of(made: BatchGraph) -> dict[str, Array]:
    """The hyper-parameters of a training step, as feeds."""
    assert made.hyperparameters is not None
    leaves = made.hyperparameters.leaves
    return {name: np.asarray(value, node.dtype.numpy) for name, (node, value) in leaves.items()}
