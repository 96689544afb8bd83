"""Runs a graph on an engine and compares the results with the oracle, for conformance tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tolerances import expected_of

from lamina import ops
from lamina.base.shapes import Array, DType, as_dtype
from lamina.compiler.pipeline import compile_graph
from lamina.engines.engine import Engine
from lamina.graph import Graph, Sample, Tensor, leaf, show
from lamina.program.encoding import decode, encode
from lamina.program.program import Program
from lamina.step.derive import BatchGraph

Values = Mapping[str, Array]

# Every op with each of its samples.
CASES = [
    pytest.param(op, sample, id=f"{op.name}-{number}")
    for op in ops.ALL
    for number, sample in enumerate(op.samples)
]
DIFFERENTIABLE = [case for case in CASES if case.values[1].differentiable]


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


def check(
    graph: Graph,
    engine: Engine,
    feeds: Values,
    runs: int = 1,
    *,
    exact: bool = False,
    schedules: Callable[[Program], Iterable[Any]] = lambda _: (),
) -> Program:
    """Compiles and runs a graph, compares all results with the oracle, and returns the program.

    The tolerance is derived from the graph (`tolerances.py`); it is zero if numbers are so `exact`
    that no sum of them is rounded. On failure the message shows the graph. It is run with the
    schedules that the engine chooses, and with each of `schedules`.
    """
    expected = expected_of(graph, feeds, runs, exact=exact)
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


def compare(name: str, found: Array, expected: Array, allowed: Array | float = 0.0) -> None:
    """Compares an array with the oracle's: NaN with NaN, other elements within a tolerance."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), name
    with np.errstate(all="ignore"):
        distance = np.abs(found.astype("float64") - expected.astype("float64"))
        excess = np.asarray(distance / allowed)
        same = (found == expected) | ((found != found) & (expected != expected))
    wrong = ~(same | (distance <= allowed))
    if wrong.any():
        worst = np.unravel_index(np.argmax(np.where(wrong, np.nan_to_num(excess), -1)), wrong.shape)
        index = tuple(int(number) for number in worst)
        most = np.broadcast_to(allowed, wrong.shape)[worst]
        raise AssertionError(
            f"{name}: {np.count_nonzero(wrong)} of {wrong.size} elements are wrong; at {index} is "
            f"{found[worst]!r} instead of {expected[worst]!r}, and {most:.3g} is allowed"
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
        if sample.diagonal and not number:
            array = array + sample.diagonal * np.eye(shape[-1])
        arrays.append(np.asarray(array, wanted.numpy))
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


def numbers_of(made: BatchGraph) -> dict[str, Array]:
    """The hyper-parameters of a training step, as feeds."""
    assert made.hyperparameters is not None
    leaves = made.hyperparameters.leaves
    return {name: np.asarray(value, node.dtype.numpy) for name, (node, value) in leaves.items()}
