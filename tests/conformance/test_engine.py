"""Engines beyond single results: memory, repeated runs, runs over a data set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import run_program

import lamina as lm
from lamina import ops
from lamina.base.shapes import PUBLIC_DTYPES, Array, as_dtype, float32, int64
from lamina.compiler.pipeline import compile_graph
from lamina.engines.engine import Engine, Memory
from lamina.graph import Graph, constant, leaf
from lamina.learning.protocols import TrainingOptions
from lamina.program.program import Program
from lamina.step.derive import BatchSpecs, default_targets, training_graph


@pytest.mark.parametrize("dtype", PUBLIC_DTYPES)
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 2), (1,)])
def test_memory_starts_with_zeros_and_keeps_written_values(
    shape: tuple[int, ...], dtype: str, engine: Engine
) -> None:
    memory = engine.allocate(shape, np.dtype(dtype))
    np.testing.assert_array_equal(memory.read(), np.zeros(shape, dtype), strict=True)
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    memory.write(values)
    np.testing.assert_array_equal(memory.read(), values, strict=True)


def test_memory_is_read_as_a_copy(engine: Engine) -> None:
    memory = engine.allocate((2,), np.dtype("float32"))
    memory.read()[:] = 1
    np.testing.assert_array_equal(memory.read(), [0, 0])


def test_outputs_are_copies_that_later_runs_do_not_change(engine: Engine) -> None:
    x = leaf("x", "input", (2,), float32)
    program = compile_graph(
        Graph((x,), (("y", x * 2),)), batch=1, name="test", target=engine.target
    )
    executable = engine.compile(program, {})
    executable.run([np.ones(2, "float32")])
    first = executable.output("y")
    executable.run([np.full(2, 5, "float32")])
    np.testing.assert_array_equal(first, [2, 2])
    np.testing.assert_array_equal(executable.output("y"), [10, 10])


@pytest.mark.parametrize("dtype", PUBLIC_DTYPES)
def test_results_of_every_dtype(dtype: str, engine: Engine) -> None:
    x = leaf("x", "input", (3, 4), as_dtype(dtype))
    flipped = ops.flip(x, 1)
    outputs = (("y", flipped), ("plain", x), ("fixed", constant(np.arange(5).astype(dtype))))
    program = compile_graph(Graph((x,), outputs), batch=1, name="test", target=engine.target)
    values = np.arange(12).reshape(3, 4).astype(dtype)
    found, _ = run_program(program, engine, {"x": values})
    np.testing.assert_array_equal(found["y"], values[:, ::-1], strict=True)
    np.testing.assert_array_equal(found["plain"], values, strict=True)
    np.testing.assert_array_equal(found["fixed"], np.arange(5).astype(dtype), strict=True)


def test_one_engine_runs_several_programs_over_shared_memory(engine: Engine) -> None:
    p = leaf("p", "parameter", (3,), float32)
    double = compile_graph(
        Graph((), (), ((p, p * 2),)), batch=1, name="double", target=engine.target
    )
    total = compile_graph(
        Graph((), (("total", ops.sum(p)),)), batch=1, name="total", target=engine.target
    )
    memory = engine.allocate((3,), np.dtype("float32"))
    memory.write(np.ones(3, "float32"))
    doubling = engine.compile(double, {"p": memory})
    adding = engine.compile(total, {"p": memory})
    for expected in (6, 12, 24):
        doubling.run([])
        adding.run([])
        assert adding.output("total") == expected


# A training over a data set -----------------------------------------------------------------------


def _training(engine: Engine) -> Program:
    layers = (lm.Input(6), lm.Linear(9), lm.ReLU(), lm.Dropout(0.25), lm.Linear(3))
    network, loss = lm.Sequential(*layers), lm.CrossEntropy()
    targets = default_targets(network, loss, float32)
    options = TrainingOptions(loss, lm.Adam(0.01))
    graph = training_graph(BatchSpecs(network, float32, targets=targets), options).graph
    return compile_graph(graph, batch=4, name="training", target=engine.target)


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


def _data() -> dict[str, Array]:
    generator = np.random.default_rng(1)
    inputs = generator.uniform(-1, 1, (20, 6)).astype("float32")
    return {"input0": inputs, "target0": generator.integers(0, 3, 20)}


def _after(memories: dict[str, Memory]) -> dict[str, bytes]:
    return {name: memory.read().tobytes() for name, memory in memories.items()}


def _batch(program: Program, examples: Array) -> list[Array]:
    data = _data()
    return [data[buffer.name][examples] for buffer in program.of_kind("input")]


def test_many_runs_over_a_data_set_equal_single_runs(engine: Engine) -> None:
    program, data = _training(engine), _data()
    rows = np.random.default_rng(2).integers(0, 20, (15, 4))
    single = _memories(program, engine)
    executable = engine.compile(program, single)
    losses: list[Array] = []
    for examples in rows:
        executable.run(_batch(program, examples))
        losses.append(executable.output("loss"))

    many = _memories(program, engine)
    resident = {}
    for name, values in data.items():
        resident[name] = engine.allocate(values.shape, values.dtype)
        resident[name].write(values)
    found = engine.compile(program, many).run_many(resident, rows, ["loss"])
    assert found["loss"].shape == (15,)
    assert found["loss"].tobytes() == np.array(losses).tobytes()
    assert _after(many) == _after(single)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_recorded_outputs_have_any_dtype_and_shape(dtype: str, engine: Engine) -> None:
    """The examples of a run are rows of the data set; five runs of two examples."""
    x = leaf("x", "input", (2, 3), as_dtype(dtype))
    outputs = (("flipped", ops.flip(x, 1)), ("first", x[0, 0]))
    program = compile_graph(Graph((x,), outputs), batch=1, name="test", target=engine.target)
    generator = np.random.default_rng(5)
    values = generator.integers(0, 2, (7, 3)).astype(dtype)
    rows = generator.integers(0, 7, (5, 2))
    resident = {"x": engine.allocate(values.shape, values.dtype)}
    resident["x"].write(values)
    found = engine.compile(program, {}).run_many(resident, rows, ["flipped", "first"])
    np.testing.assert_array_equal(found["flipped"], values[rows][..., ::-1], strict=True)
    np.testing.assert_array_equal(found["first"], values[rows][:, 0, 0], strict=True)


def test_runs_that_were_begun_equal_runs_that_are_waited_for(engine: Engine) -> None:
    program, data = _training(engine), _data()
    rows = np.random.default_rng(2).integers(0, 20, (6, 4))
    resident = {}
    for name, values in data.items():
        resident[name] = engine.allocate(values.shape, values.dtype)
        resident[name].write(values)
    waited, begun = _memories(program, engine), _memories(program, engine)
    wanted = engine.compile(program, waited).run_many(resident, rows, ["loss"])["loss"]
    executable = engine.compile(program, begun)
    first = executable.begin_many(resident, rows[:4], ["loss"])()["loss"]
    last = executable.begin_many(resident, rows[4:], ["loss"])()["loss"]
    assert np.concatenate([first, last]).tobytes() == wanted.tobytes()
    assert _after(begun) == _after(waited)


def test_a_scalar_is_kept_after_further_runs(engine: Engine) -> None:
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


def test_memories_are_copied_and_checked(engine: Engine) -> None:
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


def test_zero_runs_over_a_data_set_change_nothing(engine: Engine) -> None:
    program = _training(engine)
    memories = _memories(program, engine)
    before = _after(memories)
    resident = {}
    for name, values in _data().items():
        resident[name] = engine.allocate(values.shape, values.dtype)
    rows = np.zeros((0, 4), "int64")
    found = engine.compile(program, memories).run_many(resident, rows, ["loss"])
    assert found["loss"].shape == (0,)
    assert _after(memories) == before


def test_the_same_run_gives_the_same_bits(engine: Engine) -> None:
    program = _training(engine)
    rows = np.arange(20).reshape(5, 4)
    bits: list[dict[str, bytes]] = []
    for _ in range(2):
        memories = _memories(program, engine)
        executable = engine.compile(program, memories)
        for examples in rows:
            executable.run(_batch(program, examples))
        bits.append(_after(memories))
    assert bits[0] == bits[1]


def test_additions_into_one_element_are_made_in_order(engine: Engine) -> None:
    # In float32 the sum of these depends on the order.
    values = np.tile(np.array([1e8, 1.0, -1e8, 0.5], "float32"), 25)
    x, at = leaf("x", "input", (100,), float32), leaf("i", "input", (100,), int64)
    result = ops.scatter_add(x, at, 2)
    program = compile_graph(
        Graph((x, at), (("y", result),)), batch=1, name="test", target=engine.target
    )
    indices = np.arange(100) // 50
    found, _ = run_program(program, engine, {"x": values, "i": indices})
    expected = np.zeros(2, "float32")
    for index, value in zip(indices, values, strict=True):
        expected[index] += value
    np.testing.assert_array_equal(found["y"], expected)
