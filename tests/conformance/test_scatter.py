"""Scatters for parallel workers give the same bits as scatters in order, on the interpreter.

The target decides between the two, so both are run here on the interpreter, which runs any program.
`test_targets.py` does so with all samples of ops, and random graphs. Engines whose target sorts run
sorted scatters in all other conformance tests.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from harness import Leaves, Values, numbers_of, run, run_program, training_step

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, int32
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.graph import Graph, Tensor, evaluate
from lamina.ops.differentiate import gradients
from lamina.program.encoding import decode, encode
from lamina.program.parallel import parallel_axes
from lamina.program.program import Program
from lamina.program.steps import Loop, SegmentSum, Sort, Stage, Write

IN_ORDER = replace(DEFAULT_TARGET, scatter="in order")
SORTED = replace(DEFAULT_TARGET, scatter="sorted")


def same_bits(graph: Graph, feeds: Values, runs: int = 1, batch: int = 1) -> Program:
    """Compares both programs of a graph that scatters; returns the sorted one."""
    results: list[list[tuple[str, bytes]]] = []
    for is_sorted in (False, True):
        target = SORTED if is_sorted else IN_ORDER
        program = compile_graph(graph, batch=batch, name="test", target=target)
        kept = decode(encode(program))
        assert kept.steps == program.steps
        assert has_sort(kept) == is_sorted
        engine = InterpreterEngine(poison=True)
        outputs, after = run_program(kept, engine, feeds, runs)
        results.append([(n, a.tobytes()) for n, a in (*outputs.items(), *after.items())])
    assert results[0] == results[1]
    return program


def stages(program: Program) -> list[Stage]:
    return [stage for step in program.steps if isinstance(step, Loop) for stage in step.stages]


def scatters(program: Program) -> bool:
    """Whether there are additions in order."""
    return any(isinstance(stage, Write) and stage.sequential for stage in stages(program))


def has_sort(program: Program) -> bool:
    """Whether a program scatters by sorting; it does, or else in order."""
    is_sorted = any(isinstance(stage, Sort) for stage in stages(program))
    assert is_sorted == any(isinstance(stage, SegmentSum) for stage in stages(program))
    assert is_sorted != scatters(program)
    return is_sorted


def random_indices(count: int, extent: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, extent, count)


def numbers(*shape: int) -> Array:
    """Numbers of very different sizes, so that sums depend on their order."""
    generator = np.random.default_rng(1)
    return (generator.normal(0, 1, shape) * 10.0 ** generator.integers(-6, 7, shape)).astype("f4")


@pytest.mark.parametrize("indices", [np.int32, np.int64, np.uint8])
def test_sums_are_added_in_the_same_order(indices, leaves):
    values = leaves.add(numbers(3, 40, 5, 2))
    at = leaves.add(random_indices(200, 9).reshape(40, 5).astype(indices))
    graph = leaves.graph([ops.scatter_add(values, at, 9, 1)])
    program = same_bits(graph, leaves.feeds)
    order, total = program.steps
    assert str(order).count("\n") == 1
    assert program.buffers["scatter_add.order"].dtype == int32
    assert sorted(axis.extent for axis in parallel_axes(program, 1)) == [2, 3, 9]
    assert isinstance(total, Loop)
    # The contiguous axis comes last.
    assert total.axes[-1].extent == 2


def test_signed_zeros_infinities_and_nan_scatter_to_the_same_bits(leaves):
    values = leaves.add(np.array([-0.0, -0.0, np.nan, np.inf, -np.inf, -0.0, 1e38], "f4"))
    at = leaves.add(np.array([0, 0, 1, 2, 3, 4, 5]))
    same_bits(leaves.graph([ops.scatter_add(values, at, 7)]), leaves.feeds)


# Shapes of the values, and functions that scatter them. With one value for each row, simplifying
# replaces the scatter.
SCATTERS: dict[str, tuple[tuple[int, ...], Callable[[Tensor, Tensor], Tensor]]] = {
    "slices": ((7, 2), lambda x, at: ops.scatter_add(x, at[:, 0], 5)),
    "a slice": ((7, 1), lambda x, at: ops.scatter_add(x, at[:, 0], 5)),
    "several in a row": ((7, 3), lambda x, at: ops.scatter_along_axis(x, at, 5, 1)),
    "one in a row": ((7, 1), lambda x, at: ops.scatter_along_axis(x, at, 5, 1)),
    "one in a column": ((1, 7), lambda x, at: ops.scatter_along_axis(x, at, 5, 0)),
}


def with_zeros(kind: str, dtype: str) -> tuple[Graph, Values, Array]:
    """A graph that scatters zeros of both signs, its feeds, and the oracle's result."""
    shape, scattered = SCATTERS[kind]
    leaves = Leaves()
    values = leaves.add(np.resize([-0.0, 0.0, -0.0, -1.5, -0.0, 2.0, -0.0, 3.0], shape))
    indices = leaves.add(np.resize([0, 0, 1, 3, 3], shape))
    graph = leaves.graph([scattered(ops.cast(values, dtype), indices)])
    return graph, leaves.feeds, evaluate(graph, leaves.feeds)[0]["y0"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("kind", SCATTERS)
def test_negative_zeros_added_to_zeros_are_positive(kind, dtype, engine):
    graph, feeds, expected = with_zeros(kind, dtype)
    assert expected.any()
    assert not np.signbit(expected[expected == 0]).any()
    assert run(graph, engine, feeds)["y0"].tobytes() == expected.tobytes()


@pytest.mark.parametrize("target", [IN_ORDER, SORTED], ids=lambda target: target.scatter)
@pytest.mark.parametrize("kind", SCATTERS)
def test_sums_of_zeros_have_the_sign_of_the_oracle(kind, target):
    graph, feeds, expected = with_zeros(kind, "float32")
    outputs = run(graph, InterpreterEngine(poison=True, target=target), feeds)
    assert outputs["y0"].tobytes() == expected.tobytes()


def test_indices_are_sorted_once_for_all_values_that_share_them(leaves):
    values = leaves.add(numbers(30, 8))
    shared = ops.scatter_add(values, leaves.add(random_indices(30, 5)), 5)
    alone = ops.scatter_along_axis(values, leaves.add(random_indices(240, 5).reshape(30, 8)), 5, 0)
    program = same_bits(leaves.graph([shared, alone]), leaves.feeds)
    shapes = [buffer.shape for name, buffer in program.buffers.items() if ".order" in name]
    assert sorted(shapes) == [(8, 30), (30,)]


def test_updates_scatter_to_the_same_bits(leaves):
    table = leaves.add(numbers(6, 4), "parameter", "table")
    x = leaves.add(numbers(20, 4))
    at = leaves.add(random_indices(20, 6))
    loss = ops.sum(ops.take(table, at, 0) * x)
    (gradient,) = gradients(loss, [table])
    graph = Graph((x, at), (("loss", loss),), ((table, table - 0.1 * gradient),))
    same_bits(graph, leaves.feeds, runs=3)


def test_recurrences_scatter_to_the_same_bits(leaves):
    start, xs = leaves.add(numbers(7)), leaves.add(numbers(5, 12))
    at = leaves.add(random_indices(60, 7).reshape(5, 12))

    def step(states, elements, constants):
        values, indices = elements
        return [states[0] * 0.5 + ops.scatter_add(values, indices, 7)], []

    states, _ = ops.recurrence(step, [start], [xs, at], [])
    program = compile_graph(leaves.graph(states), batch=1, name="test", target=SORTED)
    (repeat,) = program.repeats
    inside = program.steps[repeat.first : repeat.last]
    assert any(isinstance(loop, Loop) and isinstance(loop.stages[0], Sort) for loop in inside)
    same_bits(leaves.graph(states), leaves.feeds)


def test_a_network_with_an_embedding_trains_to_the_same_bits():
    layers = (lm.Input(6, dtype="int64"), lm.Embedding(20, 5), lm.Flatten(), lm.Linear(3))
    net, loss = lm.Sequential(*layers), lm.CrossEntropy()
    made = training_step(net, loss, lm.Adam(1e-2))
    program = compile_graph(made.graph, batch=8, name="test", target=IN_ORDER)
    feeds: dict[str, Array] = {}
    for buffer in program.buffers.values():
        if buffer.kind in ("input", "parameter", "state"):
            drawn = random_indices(buffer.size, 3, len(feeds)).reshape(buffer.shape)
            feeds[buffer.name] = drawn.astype(buffer.dtype.numpy)
    same_bits(made.graph, feeds | numbers_of(made), runs=3, batch=8)
