"""Engines beyond single results: memory, repeated runs, runs over a data set."""

from typing import Any

import numpy as np
import pytest
from harness import run, training_step

import lamina as lm
from lamina import ops
from lamina.base.shapes import PUBLIC_DTYPES, Array, as_dtype, float32, int64
from lamina.compiler.pipeline import compile_graph
from lamina.engines.engine import Engine, Memory
from lamina.graph import Graph, constant, leaf
from lamina.program.program import Program


def compiled(graph: Graph, engine: Engine, batch: int = 1) -> Program:
    return compile_graph(graph, batch=batch, name="test", target=engine.target)


@pytest.mark.parametrize("dtype", PUBLIC_DTYPES)
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 2), (1,)])
def test_memory_starts_with_zeros_and_keeps_written_values(shape, dtype, engine):
    memory = engine.allocate(shape, np.dtype(dtype))
    np.testing.assert_array_equal(memory.read(), np.zeros(shape, dtype), strict=True)
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    memory.write(values)
    np.testing.assert_array_equal(memory.read(), values, strict=True)
    # It is read as a copy.
    memory.read()[...] = 0
    np.testing.assert_array_equal(memory.read(), values, strict=True)


def test_outputs_are_copies_that_later_runs_do_not_change(engine):
    x = leaf("x", "input", (2,), float32)
    executable = engine.compile(compiled(Graph((x,), (("y", x * 2),)), engine), {})
    executable.run([np.ones(2, "float32")])
    first = executable.output("y")
    executable.run([np.full(2, 5, "float32")])
    np.testing.assert_array_equal(first, [2, 2])
    np.testing.assert_array_equal(executable.output("y"), [10, 10])


@pytest.mark.parametrize("dtype", PUBLIC_DTYPES)
def test_results_of_every_dtype(dtype, engine):
    x = leaf("x", "input", (3, 4), as_dtype(dtype))
    outputs = (("y", ops.flip(x, 1)), ("plain", x), ("fixed", constant(np.arange(5).astype(dtype))))
    values = np.arange(12).reshape(3, 4).astype(dtype)
    results = run(Graph((x,), outputs), engine, {"x": values})
    for name, expected in (("y", values[:, ::-1]), ("plain", values), ("fixed", np.arange(5))):
        np.testing.assert_array_equal(results[name], expected.astype(dtype), strict=True)


def test_one_engine_runs_several_programs_over_shared_memory(engine):
    p = leaf("p", "parameter", (3,), float32)
    memory = engine.allocate((3,), np.dtype("float32"))
    memory.write(np.ones(3, "float32"))
    doubling, adding = (
        engine.compile(compiled(graph, engine), {"p": memory})
        for graph in (Graph((), (), ((p, p * 2),)), Graph((), (("total", ops.sum(p)),)))
    )
    for expected in (6, 12, 24):
        doubling.run([])
        adding.run([])
        assert adding.output("total") == expected


def _training(engine: Engine) -> Program:
    layers = (lm.Input(6), lm.Linear(9), lm.ReLU(), lm.Dropout(0.25), lm.Linear(3))
    made = training_step(lm.Sequential(*layers), lm.CrossEntropy(), lm.Adam(0.01))
    return compiled(made.graph, engine, 4)


def _memories(program: Program, engine: Engine) -> dict[str, Memory]:
    generator = np.random.default_rng(0)
    memories: dict[str, Memory] = {}
    for kind in ("parameter", "state"):
        for buffer in program.of_kind(kind):
            memories[buffer.name] = engine.allocate(buffer.shape, buffer.dtype.numpy)
            if kind == "parameter":
                drawn = generator.uniform(-0.5, 0.5, buffer.shape)
                memories[buffer.name].write(drawn.astype(buffer.dtype.numpy))
            elif "optimizer/" in buffer.name:
                number = -0.25 if buffer.name.startswith("log") else 0.25
                memories[buffer.name].write(np.full(buffer.shape, number, buffer.dtype.numpy))
    return memories


DATA = {
    "input0": np.random.default_rng(1).uniform(-1, 1, (20, 6)).astype("float32"),
    "target0": np.random.default_rng(2).integers(0, 3, 20),
}


def _resident(engine: Engine, data: dict[str, Array]) -> dict[str, Memory]:
    """Data in the memory of the engine."""
    memories = {name: engine.allocate(array.shape, array.dtype) for name, array in data.items()}
    for name, values in data.items():
        memories[name].write(values)
    return memories


def _after(memories: dict[str, Memory]) -> dict[str, bytes]:
    return {name: memory.read().tobytes() for name, memory in memories.items()}


def _batch(program: Program, examples: Array) -> list[Array]:
    return [DATA[buffer.name][examples] for buffer in program.of_kind("input")]


def test_many_runs_over_a_data_set_equal_single_runs(engine):
    program = _training(engine)
    rows = np.random.default_rng(2).integers(0, 20, (15, 4))
    single, many, begun = (_memories(program, engine) for _ in range(3))
    executable = engine.compile(program, single)
    losses: list[Array] = []
    for examples in rows:
        executable.run(_batch(program, examples))
        losses.append(executable.output("loss"))
    resident = _resident(engine, DATA)
    recorded = engine.compile(program, many).run_many(resident, rows, ["loss"])["loss"]
    assert recorded.shape == (15,)
    assert recorded.tobytes() == np.array(losses).tobytes()
    assert _after(many) == _after(single)
    # Runs that were begun equal runs that are waited for.
    executable = engine.compile(program, begun)
    parts = [executable.begin_many(resident, part, ["loss"])() for part in np.split(rows, [9])]
    assert np.concatenate([part["loss"] for part in parts]).tobytes() == recorded.tobytes()
    assert _after(begun) == _after(many)
    # No runs change nothing.
    assert executable.run_many(resident, rows[:0], ["loss"])["loss"].shape == (0,)
    assert _after(begun) == _after(many)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_recorded_outputs_have_any_dtype_and_shape(dtype, engine):
    """The examples of a run are rows of the data set; five runs of two examples."""
    x = leaf("x", "input", (2, 3), as_dtype(dtype))
    outputs = (("flipped", ops.flip(x, 1)), ("first", x[0, 0]))
    generator = np.random.default_rng(5)
    values = generator.integers(0, 2, (7, 3)).astype(dtype)
    rows = generator.integers(0, 7, (5, 2))
    executable = engine.compile(compiled(Graph((x,), outputs), engine), {})
    resident = _resident(engine, {"x": values})
    recorded = executable.run_many(resident, rows, ["flipped", "first"])
    np.testing.assert_array_equal(recorded["flipped"], values[rows][..., ::-1], strict=True)
    np.testing.assert_array_equal(recorded["first"], values[rows][:, 0, 0], strict=True)
    # Outputs that are not recorded change nothing.
    alone = executable.run_many(resident, rows, ["first"])
    np.testing.assert_array_equal(alone["first"], recorded["first"], strict=True)


def test_a_scalar_is_kept_after_further_runs(engine):
    program = _training(engine)
    executable = engine.compile(program, _memories(program, engine))
    rows = np.arange(12).reshape(3, 4)
    losses: list[float] = []
    kept: list[Any] = []
    for examples in rows:
        executable.run(_batch(program, examples))
        kept.append(executable.kept_scalar("loss"))
        losses.append(executable.scalar("loss"))
    assert [read() for read in kept] == losses
    assert len(set(losses)) == 3


def test_memories_are_copied_and_checked(engine):
    source, target = (engine.allocate((3, 4), np.dtype("float32")) for _ in range(2))
    values = np.arange(12, dtype="float32").reshape(3, 4)
    source.write(values)
    target.copy_from(source)
    source.write(values + 1)
    np.testing.assert_array_equal(target.read(), values)
    assert (target.shape, target.dtype) == ((3, 4), values.dtype)
    are_finite = engine.finite_check([source, target])
    assert are_finite()
    values[2, 1] = np.nan
    target.write(values)
    assert not are_finite()


def test_the_same_run_gives_the_same_bits(engine):
    program = _training(engine)
    first, second = (_memories(program, engine) for _ in range(2))
    for memories in (first, second):
        executable = engine.compile(program, memories)
        for examples in np.arange(20).reshape(5, 4):
            executable.run(_batch(program, examples))
    assert _after(first) == _after(second)


def test_additions_into_one_element_are_made_in_order(engine):
    # In float32 the sum of these depends on the order.
    values = np.tile(np.array([1e8, 1.0, -1e8, 0.5], "float32"), 25)
    x, at = leaf("x", "input", (100,), float32), leaf("i", "input", (100,), int64)
    result = ops.scatter_add(x, at, 2)
    indices = np.arange(100) // 50
    outputs = run(Graph((x, at), (("y", result),)), engine, {"x": values, "i": indices})
    expected = np.zeros(2, "float32")
    for index, value in zip(indices, values, strict=True):
        expected[index] += value
    np.testing.assert_array_equal(outputs["y"], expected)
