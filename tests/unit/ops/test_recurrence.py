"""Recurrences: the size of their programs, kept tensors and gradients.

Each loop of the table is compared with its unrolled form, and so are its gradients, of all results
at once."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import pytest
from harness import run_program
from recurrence_cases import (
    LENGTH,
    Leaves,
    Step,
    Tensors,
    gradients_of,
    graph_of,
    lstm,
    with_arrays,
)
from targets import TARGETS

from lamina import ops
from lamina.base.shapes import Array
from lamina.compiler.pipeline import compile_graph
from lamina.compiler.unroll import unroll
from lamina.engines import DEFAULT_TARGET
from lamina.engines.engine import Engine
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.graph import Graph, Tensor, evaluate

# The table ----------------------------------------------------------------------------------------


# Leaves -> tensors made of the results of recurrences.
Loop = Callable[[Leaves], Tensors]


def of_step(operands: Callable[[Leaves], Sequence[Tensors]]) -> Callable[[Any], Loop]:
    """Loops over a step, from its first states, sequences and constants; gives all results."""

    def make(step: Any) -> Loop:
        @wraps(step)
        def loop(x: Leaves) -> Tensors:
            states, further = ops.recurrence(step, *operands(x))
            return [*states, *further]

        return loop

    return make


@of_step(
    lambda x: (
        [ops.full((2, 2, 5, 4), 0.0, x.dtype)] * 2,
        [x.add(3, 2, 3, 5, 4)],
        [x.add(8, 5, 3, 3), x.add(8, 1, 1)],
    )
)
def convolutional(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
    given = ops.concat([elements[0], states[0]], 1)
    total = ops.conv(given, constants[0], (1, 1), ((1, 1), (1, 1)), (1, 1)) + constants[1]
    let_in, keep, new, let_out = ops.split(total, 4, 1)
    cell = ops.sigmoid(keep) * states[1] + ops.sigmoid(let_in) * ops.tanh(new)
    return [ops.sigmoid(let_out) * ops.tanh(cell), cell], []


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


@of_step(lambda x: ([x.add(3), x.add(3), x.add(3)], [x.add(LENGTH, 3)]))
def exchanging(states: Tensors, elements: Tensors, _: Tensors) -> Step:
    """States that exchange their values, and one that becomes an element."""
    return [states[1], states[2], elements[0]], [states[0], states[0], elements[0]]


@of_step(lambda x: ([x.add(3), x.add(3)], [x.add(4, 3)], [x.add(3)]))
def replaced(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
    """States that become a constant, and a number."""
    number = ops.full((3,), 2.0, states[0].dtype)
    return [constants[0], number], [states[0] * states[1] * elements[0]]


INDICES = np.array([[0, 2, 1, 1], [3, 3, 0, 2], [1, 2, 3, 0]])


@of_step(lambda x: ([x.add(2, 4)], [x.add(3, 2, 4), x.of(INDICES)], [x.add(5, 4)]))
def attending(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
    """Reductions, gathers and scatters inside an iteration."""
    (memory,) = constants
    weights = ops.softmax(states[0] @ ops.transpose(memory), -1)
    read = weights @ memory
    spread = ops.scatter_add(read, elements[1], 4, 1)
    return [ops.tanh(spread + elements[0])], [ops.cumsum(weights, 1), ops.max(read, 1)]


@of_step(lambda x: ([x.add()], [x.add(LENGTH)], [x.add()]))
def of_numbers(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
    return [states[0] * constants[0] + elements[0]], []


@of_step(lambda x: ([x.add(4)], [ops.arange(LENGTH)], [x.of(np.asarray(3))]))
def random(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
    """Random numbers that are new in each iteration."""
    kept = ops.uniform((4,), constants[0], elements[0], 0, states[0].dtype) < 0.5
    return [ops.where(kept, states[0] * 1.5, states[0] - 1)], []


SINGLE, DOUBLE = np.array([0.5, -0.25], "float32"), np.array([0.5, 0.75])


@of_step(lambda x: ([x.of(SINGLE), x.of(DOUBLE)], [x.of(np.ones((3, 2)) * 0.7)]))
def of_two_dtypes(states: Tensors, elements: Tensors, _: Tensors) -> Step:
    double = ops.sin(states[1]) * elements[0]
    return [states[0] + ops.cast(double, "float32"), double], []


@of_step(lambda x: ([x.add(2, 3)], [x.add(3, 2, 3)], [x.add(3, 3), x.add(3, 3)]))
def in_a_step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
    """A recurrence inside an iteration of another, with weights of its own."""
    rows = ops.stack([elements[0], elements[0] * 2], 0)
    inner, _ = ops.recurrence(tanh_step, [states[0]], [rows], constants[:1])
    return [inner[0][-1] @ constants[1]], [ops.sum(inner[0], 0)]


@of_step(lambda x: ([x.add(2, 3)], [x.add(LENGTH, 2, 3)], [x.add(3, 3), x.add(3, 3)]))
def on_changed_constants(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
    """Weights that an iteration changes before it uses them."""
    weight, mask = constants
    return [ops.tanh(states[0] @ (weight * mask) + elements[0] @ (weight @ mask))], []


@of_step(lambda x: ([x.add(3), x.add(3)], [x.add(4, 3)]))
def twins(states: Tensors, elements: Tensors, _: Tensors) -> Step:
    """States and results that are the same tensor."""
    new = ops.tanh(states[0] + states[1] * elements[0])
    return [new, new], [new, ops.tanh(states[0] + states[1] * elements[0])]


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
    outputs: list[Tensor] = []
    for step, reverse in ((products, False), (functions, True), (products, True)):
        outputs += ops.recurrence(step, [], [sequence], [weight], reverse=reverse)[1]
    return outputs


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


def run(graph: Graph, leaves: Leaves, engine: Engine) -> dict[str, Array]:
    program = compile_graph(graph, batch=1, name="test", target=engine.target)
    return dict(run_program(program, engine, leaves.feeds)[0])


def compare(outputs: dict[str, Array], expected: dict[str, Array]) -> None:
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        assert (outputs[name].shape, outputs[name].dtype) == (value.shape, value.dtype), name
        tolerance = 1e-6 if value.dtype == np.float32 else 1e-12
        scale = max(1.0, float(np.abs(value).max(initial=0)))
        np.testing.assert_allclose(outputs[name], value, 0, tolerance * scale, err_msg=name)


def graphs_of(loop: Loop) -> tuple[Leaves, Graph, Graph, Graph]:
    """The values, the gradients, and both in one graph."""
    leaves = Leaves()
    graph = graph_of(loop(leaves), leaves)
    slopes = gradients_of(graph, leaves)
    return leaves, graph, slopes, Graph(graph.inputs, (*graph.outputs, *slopes.outputs))


@EACH_LOOP
def test_a_loop_and_its_gradient_equal_those_of_its_unrolled_iterations(loop, engine):
    leaves, graph, slopes, both = graphs_of(loop)
    unrolled = unroll(graph)
    expected = evaluate(unrolled, leaves.feeds)[0]
    expected |= evaluate(gradients_of(unrolled, leaves), leaves.feeds)[0]
    for checked in (graph, slopes, both):
        references = {name: expected[name] for name, _ in checked.outputs}
        compare(evaluate(checked, leaves.feeds)[0], references)
        compare(run(checked, leaves, engine), references)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@EACH_LOOP
def test_loop_and_gradient_are_the_same_on_every_target(loop, target):
    leaves, _, _, both = graphs_of(loop)
    expected, _ = evaluate(both, leaves.feeds)
    compare(run(both, leaves, InterpreterEngine(poison=True, target=target)), expected)


@pytest.mark.parametrize("target", [DEFAULT_TARGET, *TARGETS], ids=lambda target: target.name)
@pytest.mark.parametrize("loop", [lstm, attending, one_after_the_other, on_changed_constants])
def test_second_derivatives_equal_those_of_the_unrolled_iterations(loop, target):
    leaves, graph, first, _ = graphs_of(loop)
    second = gradients_of(first, leaves)
    expected, _ = evaluate(gradients_of(gradients_of(unroll(graph), leaves), leaves), leaves.feeds)
    every = Graph(graph.inputs, (*graph.outputs, *first.outputs, *renamed(second.outputs)))
    engine = InterpreterEngine(poison=True, target=target)
    outputs = run(every, leaves, engine)
    compare({name: outputs[f"d{name}"] for name in expected}, expected)


@pytest.mark.parametrize("reverse", [False, True])
def test_truncated_derivatives_are_those_of_iterations_with_stopped_gradients(reverse):
    def step(state, x, weight):
        return ops.tanh(state @ weight + x) * state

    def one_by_one(initial, sequence, weight):
        states, times = [initial], range(LENGTH)
        for iteration, time in enumerate(reversed(times) if reverse else times):
            begins = iteration and iteration % 2 == 0
            before = ops.stop_gradient(states[-1]) if begins else states[-1]
            states.append(step(before, sequence[time], weight))
        return ops.stack(states[1:][::-1] if reverse else states[1:])

    leaves = Leaves()
    operands = leaves.add(2, 3), leaves.add(LENGTH, 2, 3), leaves.add(3, 3)
    loop, _ = ops.recurrence(
        lambda s, x, w: ([step(s[0], x[0], w[0])], []),
        *([x] for x in operands),
        reverse=reverse,
        truncate=2,
    )
    looped, unrolled = (
        gradients_of(gradients_of(graph_of([y], leaves), leaves), leaves)
        for y in (loop[0], one_by_one(*operands))
    )
    compare(run(looped, leaves, InterpreterEngine()), evaluate(unrolled, leaves.feeds)[0])


def renamed(outputs: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    return [(f"d{name}", tensor) for name, tensor in outputs]


def test_a_parameter_may_become_the_last_state(engine):
    leaves = Leaves()
    start = leaves.add(3, role="state")
    (states,), _ = ops.recurrence(
        lambda s, e, _: ([ops.tanh(s[0] + e[0])], []), [start], [leaves.add(4, 3)]
    )
    inputs = tuple(leaves.tensors[1:])
    graph = Graph(inputs, (("y", states),), ((start, states[-1]),))
    expected, updated = evaluate(graph, leaves.feeds)
    program = compile_graph(graph, batch=1, name="test", target=engine.target)
    outputs, memories = run_program(program, engine, leaves.feeds)
    np.testing.assert_allclose(outputs["y"], expected["y"], rtol=1e-12)
    np.testing.assert_allclose(memories["x0"], updated["x0"], rtol=1e-12)
