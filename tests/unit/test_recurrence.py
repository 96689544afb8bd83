"""Recurrences: the size of their programs, what they keep, their gradients, and errors.

Each loop of the table is compared with its unrolled form, and so are its gradients, of all results
at once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from targets import TARGETS

import lamina as lm
from lamina import ops
from lamina.compiler.pipeline import compile_graph
from lamina.compiler.unroll import unroll
from lamina.engines import DEFAULT_TARGET
from lamina.engines.cpu.decide.program import decide
from lamina.engines.cpu.emit.native_program import write_program
from lamina.engines.cpu.processor import host
from lamina.engines.engine import Engine
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import Graph, Tensor, apply, constant, evaluate, leaf, topological
from lamina.ops.differentiate import gradients
from lamina.program.index import axes_of
from lamina.program.program import Program
from lamina.program.scalar import Apply, Within, postorder
from lamina.program.steps import Contraction, loads_of, scalars_of, stores_of
from lamina.program.target import EXPENSIVE, Target
from lamina.shapes import Array, DType, as_dtype, float64, static

Tensors = Sequence[Tensor]
Step = tuple[Tensors, Tensors]


class Leaves:
    """Makes leaves with values from a fixed seed."""

    def __init__(self, dtype: DType = float64) -> None:
        self.dtype = dtype
        self.tensors: list[Tensor] = []
        self.feeds: dict[str, Array] = {}
        self.generator = np.random.default_rng(0)

    def add(self, *shape: int, role: str = "input") -> Tensor:
        values = self.generator.normal(0.2, 0.7, shape)
        return self.of(np.asarray(values, self.dtype.numpy), role)

    def of(self, array: Array, role: str = "input") -> Tensor:
        name = f"x{len(self.tensors)}"
        self.tensors.append(leaf(name, role, array.shape, as_dtype(array.dtype)))
        self.feeds[name] = array
        return self.tensors[-1]


# The table ----------------------------------------------------------------------------------------

# Leaves -> tensors made of the results of recurrences.
Loop = Callable[[Leaves], Tensors]
LENGTH = 5


def lstm(
    x: Leaves, length: int = LENGTH, features: int = 4, batch: int = 3, **options: Any
) -> Tensors:
    """Both states after each iteration, and a further result."""

    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        weight, bias = constants
        total = elements[0] + states[0] @ weight + bias
        let_in, keep, new, let_out = ops.split(total, 4, -1)
        cell = ops.sigmoid(keep) * states[1] + ops.sigmoid(let_in) * ops.tanh(new)
        return [ops.sigmoid(let_out) * ops.tanh(cell), cell], [ops.sum(total, 1)]

    states = [x.add(batch, features), x.add(batch, features)]
    gates = 4 * features
    constants = [x.add(features, gates, role="parameter"), x.add(gates, role="parameter")]
    sequences = [x.add(length, batch, gates)]
    found, further = ops.recurrence(step, states, sequences, constants, **options)
    return [*found, *further]


def convolutional(x: Leaves) -> Tensors:
    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        given = ops.concat([elements[0], states[0]], 1)
        total = ops.conv(given, constants[0], (1, 1), ((1, 1), (1, 1)), (1, 1)) + constants[1]
        let_in, keep, new, let_out = ops.split(total, 4, 1)
        cell = ops.sigmoid(keep) * states[1] + ops.sigmoid(let_in) * ops.tanh(new)
        return [ops.sigmoid(let_out) * ops.tanh(cell), cell], []

    first = ops.full((2, 2, 5, 4), 0.0, x.dtype)
    constants = [x.add(8, 5, 3, 3), x.add(8, 1, 1)]
    states, _ = ops.recurrence(step, [first, first], [x.add(3, 2, 3, 5, 4)], constants)
    return states


def tanh_step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
    return [ops.tanh(states[0] @ constants[0] + elements[0])], []


def one_after_the_other(x: Leaves) -> Tensors:
    weights = [x.add(3, 3), x.add(3, 3)]
    (states,), _ = ops.recurrence(tanh_step, [x.add(2, 3)], [x.add(LENGTH, 2, 3)], weights[:1])
    (back,), _ = ops.recurrence(tanh_step, [states[-1]], [states], weights[1:], reverse=True)
    return [states, back]


def computed_operands(x: Leaves) -> Tensors:
    """Initial states, sequences and constants that are no leaves."""
    weight, by_batch, row = x.add(3, 3), x.add(2, LENGTH, 3), x.add(3)
    (states,), _ = ops.recurrence(
        tanh_step,
        [ops.broadcast_to(row * 2, (2, 3))],
        [ops.flip(ops.transpose(ops.sin(by_batch), (1, 0, 2)), 0)],
        [ops.transpose(ops.tanh(weight)) - ops.mean(by_batch)],
    )
    return [states]


def unused(x: Leaves) -> Tensors:
    """A state, an element and a constant without readers, and a state that does not change."""

    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        return [states[0] * elements[0] + states[2], states[1] + 1.0, states[2]], []

    initial, sequences = [x.add(3), x.add(2), x.add(3)], [x.add(4, 3), x.add(4, 2)]
    states, _ = ops.recurrence(step, initial, sequences, [x.add(7)])
    return [states[0]]


def counting(x: Leaves) -> Tensors:
    """States and results that are integers or truths, among floats."""

    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        count, total, odd = states
        picked = ops.take(constants[0], count, 0) * elements[0]
        new = ops.where(odd, total + picked, total * 0.5)
        return [count + elements[1], new, ops.logical_not(odd)], [count * 2, ops.exp(new)]

    initial = [x.of(np.array([0, 1])), x.add(2), x.of(np.array([True, False]))]
    sequences = [x.add(4, 2), x.of(np.array([[0, 1]] * 4))]
    (count, total, odd), further = ops.recurrence(step, initial, sequences, [x.add(6)])
    return [total, *further, count, ops.cast(odd, "int64")]


def exchanging(x: Leaves) -> Tensors:
    """States that exchange their values, and one that becomes an element."""

    def step(states: Tensors, elements: Tensors, _: Tensors) -> Step:
        return [states[1], states[2], elements[0]], [states[0], states[0], elements[0]]

    initial = [x.add(3), x.add(3), x.add(3)]
    states, further = ops.recurrence(step, initial, [x.add(LENGTH, 3)])
    return [*states, *further]


def replaced(x: Leaves) -> Tensors:
    """States that become a constant, and a number."""

    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        one = ops.full((3,), 2.0, x.dtype)
        return [constants[0], one], [states[0] * states[1] * elements[0]]

    states, further = ops.recurrence(step, [x.add(3), x.add(3)], [x.add(4, 3)], [x.add(3)])
    return [*states, *further]


def attending(x: Leaves) -> Tensors:
    """Reductions, gathers and scatters inside an iteration."""

    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        (memory,) = constants
        weights = ops.softmax(states[0] @ ops.transpose(memory), -1)
        read = weights @ memory
        spread = ops.scatter_add(read, elements[1], 4, 1)
        return [ops.tanh(spread + elements[0])], [ops.cumsum(weights, 1), ops.max(read, 1)]

    indices = x.of(np.array([[0, 2, 1, 1], [3, 3, 0, 2], [1, 2, 3, 0]]))
    sequences = [x.add(3, 2, 4), indices]
    states, further = ops.recurrence(step, [x.add(2, 4)], sequences, [x.add(5, 4)])
    return [*states, *further]


def of_numbers(x: Leaves) -> Tensors:
    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        return [states[0] * constants[0] + elements[0]], []

    states, _ = ops.recurrence(step, [x.add()], [x.add(LENGTH)], [x.add()])
    return states


def random(x: Leaves) -> Tensors:
    """Random numbers that are new in each iteration."""
    seed = x.of(np.asarray(3))

    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        kept = ops.uniform((4,), constants[0], elements[0], 0, x.dtype) < 0.5
        return [ops.where(kept, states[0] * 1.5, states[0] - 1)], []

    states, _ = ops.recurrence(step, [x.add(4)], [ops.arange(LENGTH)], [seed])
    return states


def of_two_dtypes(x: Leaves) -> Tensors:
    def step(states: Tensors, elements: Tensors, _: Tensors) -> Step:
        double = ops.sin(states[1]) * elements[0]
        return [states[0] + ops.cast(double, "float32"), double], []

    first = x.of(np.array([0.5, -0.25], "float32"))
    second = x.of(np.array([0.5, 0.75]))
    states, _ = ops.recurrence(step, [first, second], [x.of(np.ones((3, 2)) * 0.7)])
    return states


def in_a_step(x: Leaves) -> Tensors:
    """A recurrence inside an iteration of another, with weights of its own."""

    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        rows = ops.stack([elements[0], elements[0] * 2], 0)
        inner, _ = ops.recurrence(tanh_step, [states[0]], [rows], constants[:1])
        return [inner[0][-1] @ constants[1]], [ops.sum(inner[0], 0)]

    weights = [x.add(3, 3), x.add(3, 3)]
    states, further = ops.recurrence(step, [x.add(2, 3)], [x.add(3, 2, 3)], weights)
    return [*states, *further]


def on_changed_constants(x: Leaves) -> Tensors:
    """Weights that an iteration changes before it uses them."""

    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        weight, mask = constants
        return [ops.tanh(states[0] @ (weight * mask) + elements[0] @ (weight @ mask))], []

    states, _ = ops.recurrence(
        step, [x.add(2, 3)], [x.add(LENGTH, 2, 3)], [x.add(3, 3), x.add(3, 3)]
    )
    return states


def twins(x: Leaves) -> Tensors:
    """States and results that are the same tensor."""

    def step(states: Tensors, elements: Tensors, _: Tensors) -> Step:
        new = ops.tanh(states[0] + states[1] * elements[0])
        return [new, new], [new, ops.tanh(states[0] + states[1] * elements[0])]

    states, further = ops.recurrence(step, [x.add(3), x.add(3)], [x.add(4, 3)])
    return [*states, *further]


def stored_sequence(x: Leaves) -> Tensors:
    """Each iteration has a weight of its own, of a parameter, and large enough to be packed."""

    def step(states: Tensors, elements: Tensors, _: Tensors) -> Step:
        return [ops.tanh(states[0] @ elements[0] + elements[1])], []

    weights = x.add(3, 32, 32, role="parameter") * 0.1
    sequence = [x.add(3, 32, 32, role="parameter"), x.add(3, 16, 32)]
    (states,), _ = ops.recurrence(step, [x.add(16, 32)], sequence)
    (others,), _ = ops.recurrence(step, [states[-1]], [weights, sequence[1]], reverse=True)
    return [states, others]


def of_two_lengths(x: Leaves) -> Tensors:
    """Loops of different lengths on the same constants."""

    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        return [states[0] * elements[0]], [ops.exp(constants[0])]

    first, constants = [x.add(3)], [x.add(3)]
    loops = [ops.recurrence(step, first, [x.add(length, 3)], constants) for length in (2, 4)]
    return [tensor for states, further in loops for tensor in (*states, *further)]


def without_states(x: Leaves) -> Tensors:
    """Loops that have all, some and none of their results in common."""

    def products(_: Tensors, elements: Tensors, constants: Tensors) -> Step:
        return [], [elements[0] @ constants[0]]

    def functions(_: Tensors, elements: Tensors, constants: Tensors) -> Step:
        product = elements[0] @ constants[0]
        return [], [product, ops.tanh(product + 1)]

    sequence, weight = x.add(LENGTH, 2, 3), x.add(3, 3)
    found: list[Tensor] = []
    for step, reverse in ((products, False), (functions, True), (products, True)):
        found += ops.recurrence(step, [], [sequence], [weight], reverse=reverse)[1]
    return found


MASK = np.linspace(0.25, 1.0, 6).reshape(2, 3)
MIXING = np.linspace(-0.5, 0.5, 9).reshape(3, 3)


def with_arrays(x: Leaves) -> Tensors:
    """Arrays inside an iteration: a factor, an operand of a product, a result, and a new state."""

    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        mixed = states[0] @ MIXING + elements[0] * MASK
        return [ops.tanh(mixed @ constants[0]), constant(MASK)], [constant(MASK), states[1] * 2]

    initial = [x.add(2, 3), x.add(2, 3)]
    states, further = ops.recurrence(step, initial, [x.add(LENGTH, 2, 3)], [x.add(3, 3)])
    return [*states, *further, further[0] * MASK]


LOOPS: dict[str, Loop] = {
    "lstm": lstm,
    "reverse": lambda x: lstm(x, reverse=True),
    "of length 0": lambda x: lstm(x, 0),
    "of length 1": lambda x: lstm(x, 1),
    "of length 1, reverse": lambda x: lstm(x, 1, reverse=True),
    **{
        function.__name__.replace("_", " "): function
        for function in (
            *(convolutional, one_after_the_other, computed_operands, unused, counting),
            *(exchanging, replaced, attending, of_numbers, random, of_two_dtypes, in_a_step),
            *(on_changed_constants, twins, stored_sequence, of_two_lengths, without_states),
            *(with_arrays,),
        )
    },
}
EACH_LOOP = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)


def graph_of(outputs: Tensors, leaves: Leaves) -> Graph:
    inputs = tuple(x for x in leaves.tensors if x.attributes["role"] == "input")
    return Graph(inputs, tuple((f"y{n}", tensor) for n, tensor in enumerate(outputs)))


def gradients_of(graph: Graph, leaves: Leaves) -> Graph:
    """The gradients of a weighted sum of all results."""
    total = ops.sum(ops.full((1,), 0.0, float64))
    generator = np.random.default_rng(1)
    for _, tensor in graph.outputs:
        if tensor.dtype.is_float:
            weights = generator.uniform(0.5, 1.5, static(tensor.shape))
            total = total + ops.sum(ops.cast(tensor, "float64") * weights)
    floats = [x for x in leaves.tensors if x.dtype.is_float]
    slopes = gradients(total, floats)
    return Graph(graph.inputs, tuple((f"d{n}", x) for n, x in enumerate(slopes)))


def run(graph: Graph, leaves: Leaves, engine: Engine) -> dict[str, Array]:
    program = compile_graph(graph, batch=1, name="test", target=engine.target)
    memories = {}
    for buffer in program.of_kind("parameter"):
        memories[buffer.name] = engine.allocate(buffer.shape, buffer.dtype.numpy)
        memories[buffer.name].write(leaves.feeds[buffer.name])
    executable = engine.compile(program, memories)
    executable.run([leaves.feeds[buffer.name] for buffer in program.of_kind("input")])
    found = {name: executable.output(name) for name, _ in program.outputs}
    executable.release()
    return found


def compare(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype), name
        tolerance = 1e-6 if value.dtype == np.float32 else 1e-12
        scale = max(1.0, float(np.abs(value).max(initial=0)))
        np.testing.assert_allclose(found[name], value, 0, tolerance * scale, err_msg=name)


@EACH_LOOP
def test_a_loop_is_its_steps_one_after_the_other(loop: Loop, engine: Engine) -> None:
    leaves = Leaves()
    graph = graph_of(loop(leaves), leaves)
    expected, _ = evaluate(unroll(graph), leaves.feeds)
    compare(evaluate(graph, leaves.feeds)[0], expected)
    compare(run(graph, leaves, engine), expected)


@EACH_LOOP
def test_the_gradient_of_a_loop_is_that_of_its_steps(loop: Loop, engine: Engine) -> None:
    leaves = Leaves()
    graph = graph_of(loop(leaves), leaves)
    expected, _ = evaluate(gradients_of(unroll(graph), leaves), leaves.feeds)
    slopes = gradients_of(graph, leaves)
    compare(evaluate(slopes, leaves.feeds)[0], expected)
    compare(run(slopes, leaves, engine), expected)


@EACH_LOOP
def test_loop_and_gradient_as_one_program(loop: Loop, engine: Engine) -> None:
    leaves = Leaves()
    graph = graph_of(loop(leaves), leaves)
    both = Graph(graph.inputs, (*graph.outputs, *gradients_of(graph, leaves).outputs))
    expected, _ = evaluate(both, leaves.feeds)
    compare(run(both, leaves, engine), expected)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@EACH_LOOP
def test_loop_and_gradient_are_the_same_on_every_target(loop: Loop, target: Target) -> None:
    leaves = Leaves()
    graph = graph_of(loop(leaves), leaves)
    both = Graph(graph.inputs, (*graph.outputs, *gradients_of(graph, leaves).outputs))
    expected, _ = evaluate(both, leaves.feeds)
    compare(run(both, leaves, InterpreterEngine(poison=True, target=target)), expected)


@pytest.mark.parametrize("target", [DEFAULT_TARGET, *TARGETS], ids=lambda target: target.name)
@pytest.mark.parametrize("loop", [lstm, attending, one_after_the_other, on_changed_constants])
def test_second_derivatives_are_those_of_the_steps(loop: Loop, target: Target) -> None:
    leaves = Leaves()
    graph = graph_of(loop(leaves), leaves)
    first = gradients_of(graph, leaves)
    second = gradients_of(first, leaves)
    expected, _ = evaluate(gradients_of(gradients_of(unroll(graph), leaves), leaves), leaves.feeds)
    every = Graph(graph.inputs, (*graph.outputs, *first.outputs, *renamed(second.outputs)))
    engine = InterpreterEngine(poison=True, target=target)
    found = run(every, leaves, engine)
    compare({name: found[f"d{name}"] for name in expected}, expected)


def renamed(outputs: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    return [(f"d{name}", tensor) for name, tensor in outputs]


def test_an_initial_state_that_is_a_parameter_is_trained() -> None:
    @dataclass(frozen=True)
    class Learned(lm.Layer):
        def forward(self, scope: lm.Scope, x: Tensor) -> Tensor:
            start = scope.parameter("start", (3,), lm.init.Constant(1.0))
            first = ops.broadcast_to(start, (x.shape[0], 3))
            by_time = ops.transpose(x, (1, 0, 2))
            (states,), _ = ops.recurrence(lambda s, e, _: ([s[0] + e[0]], []), [first], [by_time])
            return states[-1]

    model = lm.Model(lm.Sequential(lm.Input(4, 3), Learned()))
    x = np.ones((2, 4, 3), "float32")
    model.fit(
        (x, np.zeros((2, 3), "float32")),
        loss=lm.MSE(),
        optimizer=lm.SGD(0.3),
        epochs=60,
        batch_size=2,
    )
    np.testing.assert_allclose(model.parameters()["1.start"], [-4, -4, -4], atol=1e-2)


def test_a_parameter_may_become_the_last_state(engine: Engine) -> None:
    leaves = Leaves()
    start = leaves.add(3, role="state")
    (states,), _ = ops.recurrence(
        lambda s, e, _: ([ops.tanh(s[0] + e[0])], []), [start], [leaves.add(4, 3)]
    )
    inputs = tuple(leaves.tensors[1:])
    graph = Graph(inputs, (("y", states),), ((start, states[-1]),))
    expected, updated = evaluate(graph, leaves.feeds)
    program = compile_graph(graph, batch=1, name="test", target=engine.target)
    memory = engine.allocate((3,), np.dtype("float64"))
    memory.write(leaves.feeds["x0"])
    executable = engine.compile(program, {"x0": memory})
    executable.run([leaves.feeds["x1"]])
    np.testing.assert_allclose(executable.output("y"), expected["y"], rtol=1e-12)
    np.testing.assert_allclose(memory.read(), updated["x0"], rtol=1e-12)


# The program --------------------------------------------------------------------------------------


def training_program(
    length: int, features: int = 24, batch: int = 8, kind: Any = lm.LSTM
) -> Program:
    net = lm.Sequential(lm.Input(length, 7), kind(features, returns="last"), lm.Linear(3))
    return net.plan(batch, lm.CrossEntropy(), lm.Adam(1e-3)).program


def test_long_sequences_make_no_larger_programs() -> None:
    short, long = training_program(10), training_program(1000)
    assert [step.name for step in short.steps] == [step.name for step in long.steps]
    assert [repeat.axis.extent for repeat in long.repeats] == [1000, 1000]
    texts = [write_program(one, replace(host(), threads=2)).text for one in (short, long)]
    assert len(texts[1].splitlines()) < 1.2 * len(texts[0].splitlines())


def test_memory_grows_only_with_the_tensors_that_each_iteration_leaves_for_later() -> None:
    batch, features = 8, 24
    bytes_of = {n: training_program(n).plan.arena_bytes for n in (10, 110, 210)}
    each = (bytes_of[110] - bytes_of[10]) / 100
    assert bytes_of[210] - bytes_of[110] == bytes_of[110] - bytes_of[10]
    # The products of the gates with the input and with the state, or their gradients; h and c; and
    # the gradients of h and c.
    assert each <= 4 * batch * (2 * 4 * features + 4 * features + 4 * features)
    assert each >= 4 * batch * (4 * features + 2 * features)


def test_temporaries_of_one_iteration_share_memory_with_those_of_all_others() -> None:
    program = training_program(1000, kind=lm.GRU)
    lasting = {
        name for repeat in program.repeats for name in indexed_by_iteration(program, repeat.first)
    }
    own = [
        one
        for one in program.plan.allocations
        if one.buffer not in lasting and program.repeated(one.first)
    ]
    assert own
    for one in own:
        repeat = program.repeated(one.first)
        assert repeat is not None
        assert one.last < repeat.last
        assert program.buffers[one.buffer].bytes <= 4 * 8 * 3 * 24


def test_within_an_iteration_temporaries_share_memory() -> None:
    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        x = states[0]
        for weight in constants:
            x = ops.tanh(x @ weight + elements[0])
        return [x], []

    x = Leaves()
    weights = [x.add(8, 8) for _ in range(6)]
    (states,), _ = ops.recurrence(step, [x.add(4, 8)], [x.add(20, 4, 8)], weights)
    program = compile_graph(graph_of([states[-1]], x), batch=1, name="test", target=DEFAULT_TARGET)
    (repeat,) = program.repeats
    between = [a for a in program.plan.allocations if repeat.first <= a.first < a.last]
    between = [a for a in between if a.bytes == 4 * 8 * 8 and a.last < repeat.last]
    assert len(between) == 5
    assert len({one.offset for one in between}) == 2


def indexed_by_iteration(program: Program, first: int) -> set[str]:
    """The buffers that a repeat loads or stores at an index that depends on the iteration."""
    repeat = program.repeated(first)
    assert repeat is not None
    return {
        access.buffer
        for step in program.steps[repeat.first : repeat.last]
        for access in (*loads_of(step), *stores_of(step))
        if repeat.axis in axes_of(access.index)
    }


def test_all_results_and_all_their_gradients_are_one_loop_each() -> None:
    leaves = Leaves()
    graph = graph_of(lstm(leaves), leaves)
    both = Graph(graph.inputs, (*graph.outputs, *gradients_of(graph, leaves).outputs))
    program = compile_graph(both, batch=1, name="test", target=DEFAULT_TARGET)
    assert len(program.repeats) == 2


@pytest.mark.parametrize("kind", [lm.LSTM, lm.GRU])
def test_an_iteration_is_a_product_and_one_loop_forwards_and_backwards(kind: Any) -> None:
    program = training_program(10, kind=kind)
    for repeat in program.repeats:
        steps = program.steps[repeat.first : repeat.last]
        assert sorted(type(step).__name__ for step in steps) == ["Contraction", "Loop"]
    # The gradients of all gates are adjacent in one buffer, each computed once.
    (loop,) = [
        step
        for step in program.steps[program.repeats[1].first : program.repeats[1].last]
        if not isinstance(step, Contraction)
    ]
    assert [axis.extent for axis in loop.axes] == [8, 24]
    assert not any(isinstance(part, Within) for part in postorder(*scalars_of(loop)))


@pytest.mark.parametrize(("kind", "functions"), [(lm.LSTM, 5), (lm.GRU, 3), (lm.RNN, 1)])
def test_the_functions_of_gates_are_computed_once(kind: Any, functions: int) -> None:
    program = training_program(10, kind=kind)
    forward, backward = (program.steps[repeat.first : repeat.last] for repeat in program.repeats)

    def expensive_functions(steps: Sequence[Any]) -> int:
        scalars = postorder(*(scalar for step in steps for scalar in scalars_of(step)))
        return sum(isinstance(x, Apply) and x.primitive in EXPENSIVE for x in scalars)

    assert (expensive_functions(forward), expensive_functions(backward)) == (functions, 0)


def larger(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
    """A function with more elements than a state or an element of a sequence."""
    both = ops.expand_dims(states[0], 1) * ops.expand_dims(elements[0], 2)
    return [ops.sum(ops.exp(both), 1) + states[0] @ constants[0]], []


def of_constants(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
    """A function that is the same in every iteration."""
    return [ops.add(states[0] @ ops.exp(constants[0]), elements[0])], []


BATCH, FEATURES = 4, 32


@pytest.mark.parametrize(
    ("step", "numbers"),
    [
        # States, products and their gradients; the function has 32 times as many as a state.
        (larger, 6 * BATCH * FEATURES),
        # The gradient of the weight, of each iteration; the function has as many.
        (of_constants, 6 * BATCH * FEATURES + FEATURES * FEATURES),
    ],
)
def test_large_tensors_and_those_equal_in_every_iteration_are_not_kept(
    step: Any, numbers: int
) -> None:
    def arena_bytes(length: int) -> int:
        x = Leaves()
        weight = x.add(FEATURES, FEATURES, role="parameter")
        elements = x.add(length, BATCH, FEATURES)
        (states,), _ = ops.recurrence(step, [x.add(BATCH, FEATURES)], [elements], [weight])
        slopes = gradients(ops.sum(states[-1]), [weight])
        return compile_graph(
            graph_of(slopes, x), batch=1, name="test", target=DEFAULT_TARGET
        ).plan.arena_bytes

    assert arena_bytes(120) - arena_bytes(20) <= 100 * 8 * numbers


def test_unused_results_change_nothing() -> None:
    """Files of earlier versions have loops with results that only a gradient might have read."""
    leaves = Leaves()
    plain = lstm(leaves)[0]

    def kept(node: Tensor) -> Tensor:
        body: Graph = node.attributes["body"]
        products = [x for x in topological(body.roots) if x.op.name == "matmul"]
        outputs = (*body.outputs, *((f"kept{n}", x) for n, x in enumerate(products)))
        attributes = {**node.attributes, "body": Graph(body.inputs, outputs)}
        return apply(node.op, *node.operands, **attributes)

    def program(states: Tensor) -> str:
        slopes = gradients(ops.sum(states), leaves.tensors)
        graph = graph_of([states, *slopes], leaves)
        return str(compile_graph(graph, batch=1, name="test", target=DEFAULT_TARGET))

    # A slice of the stack, which begins with the initial state.
    (stack,) = plain.operands
    assert program(kept(stack)) == program(stack)


def test_equal_arrays_inside_and_outside_of_loops_are_one_buffer() -> None:
    leaves = Leaves()
    graph = graph_of(with_arrays(leaves), leaves)
    both = Graph(graph.inputs, (*graph.outputs, *gradients_of(graph, leaves).outputs))
    program = compile_graph(both, batch=1, name="test", target=DEFAULT_TARGET)
    found = [value.tobytes() for value in program.constants.values()]
    assert len(set(found)) == len(found)
    assert {MASK.tobytes(), MIXING.tobytes()} <= set(found)
    assert {buffer.name for buffer in program.of_kind("constant")} == program.constants.keys()


def test_weights_are_packed_before_the_loop() -> None:
    program = training_program(20, features=64, batch=32)
    prepackings = decide(program, replace(host(), threads=2)).prepackings
    assert len(program.repeats) == 2
    for repeat in program.repeats:
        (packed,) = (one for one in prepackings if one.before == repeat.first)
        assert packed.iteration is None
    assert all(one.iteration is None for one in prepackings)


SCRIPT = """
import os
os.environ["LAMINA_THREADS"] = "{threads}"
import numpy as np, lamina as lm
net = lm.Sequential(lm.Input(9, 20), lm.LSTM(72, 2, True), lm.GRU(40, returns="last"), lm.Linear(3))
model = lm.Model(net, seed=0)
x = np.random.default_rng(0).normal(size=(48, 9, 20)).astype("float32")
how = {{"loss": lm.CrossEntropy(), "optimizer": lm.Adam(1e-2), "epochs": 3, "batch_size": 24}}
model.fit((x, np.arange(48) % 3), **how)
print([value.tobytes().hex()[-64:] for value in model.parameters().values()])
"""


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    found = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT.format(threads=threads)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in (1, 2)
    ]
    assert found[0] == found[1] != ""


# Errors -------------------------------------------------------------------------------------------


def error_of(step: Any, *operands: Any, **options: Any) -> str:
    with pytest.raises((DefinitionError, ShapeError)) as error:
        ops.recurrence(step, *operands, **options)
    return str(error.value)


def summing(states: Tensors, elements: Tensors, _: Tensors) -> Step:
    return [states[0] + elements[0]], []


def test_a_recurrence_needs_a_sequence_and_a_positive_truncation() -> None:
    x = Leaves()
    text = error_of(summing, [x.add(3)], [])
    assert "a recurrence needs a sequence" in text
    assert "ops.arange(n) will do" in text
    assert "truncate must be a whole number of at least 1" in error_of(
        summing, [x.add(3)], [x.add(4, 3)], truncate=0
    )


def test_sequences_of_different_lengths_are_refused() -> None:
    x = Leaves()
    text = error_of(summing, [x.add(3)], [x.add(4, 3), x.add(5, 3)])
    assert "recurrence: the sequences differ in length" in text
    assert "sequence 0  f64[4, 3]" in text
    assert "sequence 1  f64[5, 3]" in text
    assert "the sequences differ" in error_of(summing, [x.add(3)], [x.add()])


def test_a_state_that_changes_its_shape_or_dtype_is_refused() -> None:
    x = Leaves()
    text = error_of(summing, [x.add(3)], [x.add(4, 2, 3)])
    assert "recurrence: state 0 changes its shape or dtype" in text
    assert "before  f64[3]" in text
    assert "after   f64[2, 3]" in text
    first, sequence = [x.add(3)], [x.add(4, 3)]
    text = error_of(lambda s, e, _: ([ops.cast(s[0], "float32")], []), first, sequence)
    assert "after   f32[3]" in text


def test_a_step_gives_as_many_states_as_it_takes() -> None:
    x = Leaves()
    text = error_of(lambda s, e, _: ([s[0], e[0]], []), [x.add(3)], [x.add(4, 3)])
    assert "an iteration returns another number of states than it takes" in text
    assert "taken     1" in text
    assert "returned  2" in text


def test_a_step_that_uses_other_tensors_is_refused() -> None:
    x = Leaves()
    weight = x.add(3)
    text = error_of(lambda s, e, _: ([s[0] * weight + e[0]], []), [x.add(3)], [x.add(4, 3)])
    assert "`step` uses a tensor that it was not passed" in text
    assert "Pass it as one of the constants." in text


def test_a_step_that_applies_a_layer_is_refused() -> None:
    layer = lm.Linear(3)
    x = lm.Input(4, 3)
    by_time = ops.transpose(x, (1, 0, 2))
    text = error_of(
        lambda s, e, _: ([layer(s[0]) + e[0]], []), [ops.zeros_like(by_time[0])], [by_time]
    )
    assert "`step` applies a layer" in text
    assert "found  Linear" in text
    assert "pass the parameters as constants" in text


def test_the_length_of_a_sequence_does_not_depend_on_the_batch() -> None:
    text = error_of(summing, [ops.full((4,), 0.0)], [lm.Input(4)])
    assert "the first axis of a sequence is the time, and here it is the batch" in text
    assert "ops.transpose(x, (1, 0, 2)) brings another axis to the front" in text
