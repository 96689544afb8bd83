"""What the conformance tests share: running a graph on an engine, and comparing with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.compiler.pipeline import compile_graph
from lamina.engines.engine import Engine
from lamina.graph import Graph, Sample, Tensor, evaluate, leaf, show
from lamina.program.encoding import decode, encode
from lamina.program.program import Program
from lamina.shapes import Array, DType, as_dtype


@dataclass(frozen=True)
class Tolerance:
    """How far an engine may be from the oracle.

    A difference may be `relative` times the expected element plus `absolute` times the largest
    expected element of the array, but at least 1.
    """

    relative: float
    absolute: float


# The oracle computes in the dtype under test, one op after the other; an engine may sum in another
# order and has its own functions, right to 4 units in the last place (2**-24 of the value in
# float32, 2**-53 in float64).
#
# One op: samples sum at most some 100 numbers of like size, so 100 roundings (6e-6 in float32) is
# the worst case, with errors of one sign, and functions add 4 (2.4e-7). What cancels is small
# beside the largest element, which the absolute part covers.
OF_ONE_OP = {"float32": Tolerance(1e-5, 2e-6), "float64": Tolerance(2e-14, 4e-15)}
# Whole graphs: some 20 ops in a row, gradients through all of them, and functions such as 1 / x
# that enlarge what came before: a thousand times more.
OF_A_GRAPH = {"float32": Tolerance(1e-2, 2e-3), "float64": Tolerance(2e-11, 4e-12)}
EXACT = Tolerance(0.0, 0.0)

Values = Mapping[str, Array]


def run_program(
    program: Program, engine: Engine, feeds: Values, runs: int = 1, schedule: Any = None
) -> tuple[Values, Values]:
    """Runs a program: its last outputs, and what its parameters and states hold afterwards."""
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
        np.testing.assert_array_equal(array, feeds[buffer.name], "an input was changed")
    return outputs, {name: memory.read() for name, memory in memories.items()}


def check(
    graph: Graph,
    engine: Engine,
    feeds: Values,
    tolerances: Mapping[str, Tolerance],
    runs: int = 1,
    schedules: Callable[[Program], Iterable[Any]] = lambda _: (),
) -> Program:
    """Compiles and runs a graph, compares all results with the oracle, and gives the program.

    Integers and bools must be equal. On failure the message shows the graph.

    Args:
        graph: what is run.
        engine: on which engine.
        feeds: the values of its leaves.
        tolerances: how far results may be from the oracle's.
        runs: how often it is run.
        schedules: in which ways of the engine's beside the one that it chooses.
    """
    current = dict(feeds)
    expected: Values = {}
    for _ in range(runs):
        expected, updated = evaluate(graph, current)
        current |= updated
    try:
        program = compile_graph(graph, batch=1, name="test", target=engine.target)
        kept = decode(encode(program))
        assert kept.steps == program.steps, "it is another program after it was kept on disk"
        for schedule in (None, *schedules(kept)):
            said = f"\n{schedule}" if schedule is not None else ""
            outputs, after = run_program(kept, engine, feeds, runs, schedule)
            assert outputs.keys() == expected.keys()
            for name, value in expected.items():
                compare(f"output {name}{said}", outputs[name], value, tolerances)
            for name, value in after.items():
                compare(f"leaf {name}{said}", value, current[name], tolerances)
    except Exception as error:
        error.add_note(f"The graph:\n{show(graph)}")
        raise
    return program


def compare(what: str, found: Array, expected: Array, tolerances: Mapping[str, Tolerance]) -> None:
    """Compares an array with the oracle's, NaN with NaN."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), what
    tolerance = tolerances.get(expected.dtype.name, EXACT)
    finite = np.abs(expected[np.isfinite(expected)]) if tolerance is not EXACT else expected
    scale = max(1.0, float(finite.max())) if finite.size and tolerance is not EXACT else 1.0
    np.testing.assert_allclose(
        found, expected, tolerance.relative, tolerance.absolute * scale, err_msg=what
    )


def values_of(sample: Sample, dtype: DType, seed: int = 0) -> list[Array]:
    """Operand arrays for a sample: floats and integers from low to high, bools even."""
    generator = np.random.default_rng(seed)
    arrays: list[Array] = []
    for number, shape in enumerate(sample.shapes):
        name = sample.dtypes[number] if sample.dtypes else "float"
        wanted = dtype if name == "float" else as_dtype(name)
        if wanted.kind == "bool":
            array = generator.random(shape) < 0.5
        else:
            array = generator.uniform(sample.low, sample.high, shape)
        arrays.append(np.asarray(array, wanted.numpy))
    return arrays


class Leaves:
    """Makes input leaves and remembers what they are fed."""

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
