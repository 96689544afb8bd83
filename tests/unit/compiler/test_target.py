"""Targets: effects on programs, the targets of engines, and keys of cached programs."""

from dataclasses import fields, replace

import numpy as np
import pytest
from error_texts import refused
from program_cases import program_of
from recurrence_cases import Leaves
from recurrence_cases import lstm as lstm_of
from targets import RECOMPUTING, use_costs_of

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET, discovery
from lamina.engines.cpu.target import CPU
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import EngineError
from lamina.graph import leaf
from lamina.ops.differentiate import gradients
from lamina.program.primitive_costs import EXPENSIVE, cost_of_primitive
from lamina.program.scalar import PRIMITIVES, Apply, postorder
from lamina.program.steps import Contraction, scalars_of
from lamina.program.target import Target
from lamina.step.derive import BatchSpecs, inference_graph


def inputs(*shapes):
    return [leaf(f"x{number}", "input", shape, float32) for number, shape in enumerate(shapes)]


def of(outputs):
    return program_of(outputs, target=CPU)


def contractions(program):
    return sum(isinstance(step, Contraction) for step in program.steps)


def test_a_key_depends_on_every_field_of_a_target():
    others = {"name": "other", "scatter": "sorted"}
    others |= {"largest_block_bytes": 1 << 20, "operand_tile": 128}
    keys = {CPU.key}
    for field in fields(Target):
        value = getattr(CPU, field.name)
        changed = others.get(field.name, not value if isinstance(value, bool) else value)
        if changed == value:
            changed = value + 1
        keys.add(replace(CPU, **{field.name: changed}).key)
    assert len(keys) == 1 + len(fields(Target))


def test_costs_are_given_for_primitives_only():
    assert PRIMITIVES.keys() >= EXPENSIVE
    assert cost_of_primitive("tanh") > 1 > cost_of_primitive("add")


def test_attention_is_divided_into_blocks(monkeypatch):
    leaves = inputs(*[(1, 2, 8, 4)] * 3)
    y = ops.attention(*leaves)
    slopes = gradients(y * y, leaves)

    def blocks(outputs, each, most=8):
        monkeypatch.setattr("lamina.ops.attention_blocks.BLOCK_QUERIES", each)
        monkeypatch.setattr("lamina.ops.attention_blocks.MOST_BLOCKS", most)
        return contractions(of(outputs))

    undivided, halves, most = blocks([y], 8), blocks([y], 4), blocks([y], 1, most=4)
    assert (undivided, halves, most) == (2, 4, 8)
    assert blocks(slopes, 4) - blocks([y], 4) == 2 * (blocks(slopes, 8) - blocks([y], 8))


def test_a_given_number_of_blocks_is_used():
    leaves = inputs(*[(1, 2, 8, 4)] * 3)
    assert contractions(of([ops.attention(*leaves, blocks=2)])) == 4


def lstm(length):
    """The gradient of a weight."""
    x = Leaves(float32)
    (states, *_), weight = lstm_of(x, length, 8, 4), x.tensors[2]
    return gradients(ops.sum(states[-1]), [weight])


def functions_backwards(program):
    """How many functions the gradient's loop applies."""
    repeat = program.repeats[1]
    steps = program.steps[repeat.first : repeat.last]
    scalars = postorder(*(scalar for step in steps for scalar in scalars_of(step)))
    return sum(isinstance(x, Apply) and x.primitive in ("tanh", "sigmoid") for x in scalars)


def test_recurrences_keep_tensors_that_are_expensive(monkeypatch):
    def kept():
        short, long = (of(lstm(length)) for length in (10, 110))
        return functions_backwards(long), (long.plan.arena_bytes - short.plan.arena_bytes) // 100

    # A state has 4 * 8 numbers of 4 bytes.
    state = 4 * 8 * 4
    all_kept = kept()
    monkeypatch.setattr("lamina.program.primitive_costs.EXPENSIVE_COST", 0.25)
    without_functions = kept()
    assert all_kept[0] == 0
    assert without_functions[0] >= 5
    assert without_functions[1] <= all_kept[1] - state


def test_expensive_functions_of_several_users_are_stored_and_cheap_ones_computed_again(monkeypatch):
    # So many that storing them takes longer than launching a step.
    (x,) = inputs((1 << 12,))
    y = ops.tanh(x)
    outputs = [ops.cumsum(y, 0), ops.cumsum(ops.flip(y), 0)]

    def temporaries():
        return len(of(outputs).of_kind("temporary"))

    stored = temporaries()
    use_costs_of(RECOMPUTING, monkeypatch)
    assert stored == temporaries() + 1


@pytest.fixture
def recomputing(monkeypatch):
    return interpreter_for(RECOMPUTING, monkeypatch)


def interpreter_for(target, monkeypatch):
    """An interpreter for a target, which is opened by the name "interpreter" from now on."""
    engine = InterpreterEngine(target=target)
    kind = discovery._Kind(lambda name: engine, lambda: [engine.device])
    monkeypatch.setitem(discovery._KINDS, "interpreter", kind)
    return engine


def network():
    """Its plans depend on the alignment of temporaries."""
    layers = (lm.Input(4, 6, 6), lm.Conv2d(4, 3), lm.ReLU(), lm.Conv2d(3, 2), lm.ReLU())
    return lm.Sequential(*layers, lm.Flatten(), lm.Linear(5), lm.Tanh(), lm.Linear(3))


def decided(program):
    return str(program), program.plan


TRAINING = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1)}


def test_plans_are_made_for_the_engine_that_is_named(recomputing):
    net = network()
    for how in ({}, TRAINING):
        default = net.plan(2, **how).program
        assert str(net.plan(2, **how, engine="cpu").program) == str(default)
        other = net.plan(2, **how, engine="interpreter").program
        assert decided(other) != decided(default)
    peak = net.plan(8, **TRAINING, engine="interpreter").peak_bytes
    assert net.max_batch_size(peak, **TRAINING, engine="interpreter") == 8


@pytest.mark.cases(
    ("layers", "batch"),
    ((lm.Input(4), lm.Linear(32), lm.ReLU(), lm.Linear(2)), 512),  # 128 bytes are hidden
    ((lm.Input(64), lm.Linear(2)), 256),  # 256 bytes are read,
    ids=("temporaries", "inputs"),
)
@pytest.mark.parametrize("memory", ["10 MiB", "64 GiB"])
def test_the_largest_batch_is_one_whose_every_tensor_can_be_allocated(
    layers, batch, memory, monkeypatch
):
    limited = replace(DEFAULT_TARGET, name="limited", largest_block_bytes=64 << 10)
    interpreter_for(limited, monkeypatch)
    net = lm.Sequential(*layers)
    how = {"engine": "interpreter"}
    assert 1 < net.max_batch_size("20 KiB", **how) < batch
    assert net.max_batch_size(memory, **how) == batch
    net.plan(batch, **how)
    error = refused(EngineError, lambda: net.plan(batch + 1, **how))
    assert "is larger than the largest block of memory on this device" in error.problem
    assert dict(error.facts)["limit"] == "65,536 bytes in one block"


@pytest.mark.parametrize("engine", ["cpu", "interpreter"])
def test_models_and_trainings_compile_for_the_target_of_their_engine(engine, recomputing):
    net = network()
    target = RECOMPUTING if engine == "interpreter" else DEFAULT_TARGET

    def expected(batch):
        graph = inference_graph(BatchSpecs(net, float32)).graph
        return compile_graph(graph, batch=batch, name="test", target=target).plan

    model = lm.Model(net, engine=engine)
    assert model.explain(2).program.plan == expected(2)
    planned = net.plan(2, **TRAINING, engine=engine).program
    assert model.explain(2, **TRAINING).program.plan == planned.plan
    with model.training(**TRAINING, batch_size=2) as training:
        assert training.bill.program.plan == planned.plan
        data = np.ones((2, 4, 6, 6), "float32"), np.array([0, 1])
        training.step(*data)
        assert training.profile(*data, 0.01).explanation.program.plan == planned.plan
    profile = model.profile(2, seconds=0.01)
    assert profile.explanation.program.plan == expected(2)


def test_functions_of_arrays_are_compiled_for_their_engine(recomputing):
    x = lm.Input(3, 5)
    square = x @ ops.transpose(x, (0, 2, 1))
    y = square @ square @ square
    array = np.random.default_rng(0).normal(size=(2, 3, 5)).astype("float32")
    functions = [lm.compile(x, y, engine=engine) for engine in ("cpu", "interpreter")]
    by_cpu, by_interpreter = (function(array)[0] for function in functions)
    np.testing.assert_allclose(by_cpu, by_interpreter, rtol=1e-5, atol=1e-5)
    plans = [function._programs.get(2, function._compile).program.plan for function in functions]
    assert plans[0] != plans[1]
