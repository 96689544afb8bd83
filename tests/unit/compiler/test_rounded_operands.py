"""Operands of products that are stored rounded: which, where, and that results stay the same."""

from dataclasses import replace

import numpy as np
import pytest
from error_texts import problem_of
from training_cases import same

import lamina as lm
from lamina import ops
from lamina.base.shapes import bfloat16, float32
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.engines.gpu.gather import rounding_steps
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.graph import Graph, leaf
from lamina.program.encoding import decode, encode
from lamina.program.steps import Contraction, reads_of, writes_of
from lamina.step.rounding import with_rounded_products, with_tf32_products

# Rounding an operand always costs more than storing it.
STORING = replace(DEFAULT_TARGET, operand_tile=1, launch_bytes=0.0)
TF32, BFLOAT16 = {"precision": "tf32"}, {"dtype": "mixed-bfloat16"}


def dense():
    return lm.Sequential(
        lm.Input(9), lm.Linear(8), lm.Tanh(), lm.Linear(6), lm.ReLU(), lm.Linear(5)
    )


def shared():
    """A weight that is read as it is and transposed, and one that rows are taken of."""
    x = lm.Input(7, dtype="int64")
    embedding = lm.Embedding(11, 6)
    hidden = lm.MultiHeadAttention(2, causal=True)(embedding(x))
    return lm.Network(x, lm.Linear(5)(lm.Flatten()(lm.LayerNorm()(hidden))))


def images():
    return lm.Sequential(
        *(lm.Input(3, 6, 6), lm.Conv2d(4, 3, padding=1), lm.BatchNorm(), lm.ReLU()),
        *(lm.Conv2d(4, 1), lm.GELU(), lm.Flatten(), lm.Linear(5)),
    )


def sequences():
    return lm.Sequential(lm.Input(4, 6), lm.LSTM(6, returns="last"), lm.Linear(5))


def inputs_of(network, count):
    generator = np.random.default_rng(3)
    (tensor,) = network.inputs
    shape = (count, *tensor.shape[1:])
    if tensor.dtype.is_float:
        return generator.normal(size=shape).astype("float32")
    return generator.integers(0, 11, shape)


def trained(network, **precision):
    """The parameters after some training steps, with a predict between them."""
    model = lm.Model(network, "interpreter", **precision)
    x, y = inputs_of(network, 8), np.arange(8) % 5
    training = model.training(loss=lm.CrossEntropy(), optimizer=lm.Adam(0.01), batch_size=8)
    losses = [training.step(x, y) for _ in range(2)]
    predicted = model.predict(x[:3])
    losses += [training.step(x, y) for _ in range(2)]
    return {**model.parameters(), "losses": np.array(losses), "predicted": predicted}


@pytest.fixture
def interpreter(monkeypatch):
    """The options of the interpreter, which multiplies TF32 and exposes faults of programs."""
    monkeypatch.setattr(
        InterpreterEngine, "device", replace(InterpreterEngine().device, has_tf32=True)
    )
    options = InterpreterEngine.__init__.__kwdefaults__
    monkeypatch.setitem(options, "poison", True)
    monkeypatch.setitem(options, "target", DEFAULT_TARGET)
    return options


@pytest.mark.parametrize("network", [dense, shared, images, sequences])
@pytest.mark.parametrize("precision", [TF32, BFLOAT16, {"dtype": "mixed-float16"}])
def test_trainings_are_equal_bit_by_bit(interpreter, network, precision):
    expected = trained(network(), **precision)
    interpreter["target"] = STORING
    assert same(trained(network(), **precision), expected)


SIZE = 64
ROUNDINGS = {
    "bfloat16": lambda graph: with_rounded_products(graph, bfloat16),
    "TF32": with_tf32_products,
}


def operand(name, role, *shape):
    return leaf(name, role, shape or (SIZE, SIZE), float32)


def program_of(rounding, outputs, updates=(), **costs):
    named = tuple((f"y{number}", tensor) for number, tensor in enumerate(outputs))
    graph = ROUNDINGS[rounding](Graph((), named, tuple(updates)))
    return compile_graph(graph, batch=1, name="test", target=replace(STORING, **costs))


def operands_of(program):
    """The buffers that products read, in order."""
    return [
        name
        for step in program.steps
        if isinstance(step, Contraction)
        for name in sorted(reads_of(replace(step, stores=())))
    ]


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_parameter_has_a_copy_that_is_made_first_and_updated_with_it(rounding):
    x, weight = operand("x", "input"), operand("weight", "parameter")
    product = ops.matmul(x, weight)
    back = ops.matmul(product, ops.transpose(weight, (1, 0)))
    gradient = ops.matmul(ops.transpose(x, (1, 0)), back)
    program = program_of(rounding, [product], [(weight, weight - gradient)])
    copy = f"weight rounded to {rounding}"
    assert program.prepared == 1
    prepared, *others = program.steps
    assert (reads_of(prepared), writes_of(prepared)) == ({"weight"}, {copy})
    assert operands_of(program).count(copy) == 2
    (updating,) = [step for step in others if copy in writes_of(step)]
    assert "weight" in writes_of(updating)
    # It outlives the run.
    (kept,) = [allocation for allocation in program.plan.allocations if allocation.buffer == copy]
    assert (kept.first, kept.last) == (0, len(program.steps))
    assert decode(encode(program)) == program


def test_a_computed_tensor_is_stored_in_float32_only_if_something_reads_that():
    x, weights = operand("x", "input"), [operand(f"w{n}", "parameter") for n in range(2)]
    hidden = ops.tanh(ops.matmul(x, weights[0]))
    products = [ops.matmul(hidden, weights[1])]

    def stored(outputs):
        program = program_of("TF32", outputs)
        results = {buffer for _, buffer in program.outputs}
        return len({one.name for one in program.of_kind("temporary")} - results)

    # Both copies, the input and the hidden tensor.
    assert stored(products) == 4
    assert stored([*products, hidden]) == 4
    assert stored([*products, ops.sum(hidden, 1)]) == 5


X, WEIGHTS = operand("x", "input"), [operand(f"w{number}", "parameter") for number in range(3)]
PRODUCT = ops.matmul(X, WEIGHTS[0])
IMAGE, KERNEL = operand("x", "input", 4, 8, 9, 9), operand("w", "parameter", 8, 8, 3, 3)
# Results, costs, and the number of steps, those included that prepare copies, and of these.
STORED = {
    "a parameter without an update": ([PRODUCT], {}, 3, 1),
    "an input of three products": ([ops.matmul(X, weight) for weight in WEIGHTS], {}, 7, 3),
    "no windows": ([ops.conv(IMAGE, KERNEL, 1, 1, 1)], {}, 1, 0),
    "nothing if conversions are free": ([PRODUCT], {"operand_tile": None}, 1, 0),
    "nothing if launches are expensive": ([PRODUCT], {"launch_bytes": 1e6}, 1, 0),
}


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.cases("results, costs, steps, prepared", STORED)
def test_an_operand_is_stored_if_that_costs_less(results, costs, steps, prepared, rounding):
    program = program_of(rounding, results, **costs)
    assert (len(program.steps), program.prepared) == (steps, prepared)
    assert (program.prepared > 0) == {"x", "w0"}.isdisjoint(operands_of(program))
    empty = operand("x", "input", SIZE, 0), operand("w", "parameter", 0, SIZE)
    assert program_of(rounding, [ops.matmul(*empty)]).prepared == 0


def test_only_inputs_that_are_only_rounded_are_rounded_while_they_are_gathered():
    x, y, weight = operand("x", "input"), operand("y", "input"), operand("weight", "parameter")
    outputs = [ops.matmul(x, weight), ops.matmul(y, weight), ops.sum(y, 0)]
    program = program_of("bfloat16", outputs)
    ((name, number),) = rounding_steps(program).items()
    assert (name, reads_of(program.steps[number])) == ("x", {"x"})
    # Before that step, no other buffer may have the memory.
    (rounded,) = writes_of(program.steps[number])
    by_buffer = {allocation.buffer: allocation for allocation in program.plan.allocations}
    memory = by_buffer[rounded]
    earlier = replace(memory, buffer="earlier", first=0, last=number - 1, offset=memory.offset + 8)
    plan = replace(program.plan, allocations=(earlier, *program.plan.allocations))
    assert rounding_steps(replace(program, plan=plan)) == {}
    later = replace(earlier, first=number + 1, last=number + 1)
    plan = replace(program.plan, allocations=(later, *program.plan.allocations))
    assert rounding_steps(replace(program, plan=plan)) == {"x": number}


def test_faults_of_prepared_copies_are_found():
    program = program_of("TF32", [PRODUCT])
    shorter = tuple(
        replace(allocation, last=allocation.last - 1) if allocation.first == 0 else allocation
        for allocation in program.plan.allocations
    )
    for broken, said in (
        (replace(program, prepared=2), "prepares"),
        (replace(program, prepared=3), "prepares"),
        (replace(program, plan=replace(program.plan, allocations=shorter)), "does not outlive it"),
    ):
        assert said in problem_of(broken)
