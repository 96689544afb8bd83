"""Recurrences as programs: one loop, few steps, and refused calls."""

from dataclasses import replace

import numpy as np
import pytest
from error_texts import error_text
from program_cases import compiled, program_of
from recurrence_cases import MASK, MIXING, Leaves, gradients_of, graph_of, lstm, with_arrays

import lamina as lm
from lamina import ops
from lamina.base.shapes import float64
from lamina.engines.cpu.native_program import write_program
from lamina.engines.cpu.processor import host
from lamina.engines.simd.decide.program import decide
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import Graph, apply, leaf, topological
from lamina.ops.differentiate import gradients
from lamina.program.primitive_costs import EXPENSIVE
from lamina.program.scalar import Apply, Within, postorder
from lamina.program.steps import Contraction, scalars_of


def training_program(length, features=24, batch=8, kind=lm.LSTM):
    net = lm.Sequential(lm.Input(length, 7), kind(features, returns="last"), lm.Linear(3))
    return net.plan(batch, lm.CrossEntropy(), lm.Adam(1e-3)).program


def test_long_sequences_make_no_larger_programs():
    short, long = training_program(10), training_program(1000)
    assert [step.name for step in short.steps] == [step.name for step in long.steps]
    assert [repeat.axis.extent for repeat in long.repeats] == [1000, 1000]
    texts = [write_program(program, replace(host(), threads=2)).text for program in (short, long)]
    # Sums over 1000 iterations are made in blocks, which takes a further kernel.
    assert len(texts[1].splitlines()) < 1.5 * len(texts[0].splitlines())


def test_within_an_iteration_temporaries_share_memory():
    def step(states, elements, constants):
        x = states[0]
        for weight in constants:
            x = ops.tanh(x @ weight + elements[0])
        return [x], []

    x = Leaves()
    weights = [x.add(8, 8) for _ in range(6)]
    (states,), _ = ops.recurrence(step, [x.add(4, 8)], [x.add(20, 4, 8)], weights)
    program = program_of(states[-1])
    (repeat,) = program.repeats
    between = [a for a in program.plan.allocations if repeat.first <= a.first < a.last]
    between = [a for a in between if a.bytes == 4 * 8 * 8 and a.last < repeat.last]
    assert len(between) == 5
    assert len({allocation.offset for allocation in between}) == 2


def with_gradients(build):
    """The program of all results and of all their gradients."""
    leaves = Leaves()
    graph = graph_of(build(leaves), leaves)
    both = (*graph.outputs, *gradients_of(graph, leaves).outputs)
    return compiled(Graph(graph.inputs, both))


def test_all_results_and_all_their_gradients_are_one_loop_each():
    assert len(with_gradients(lstm).repeats) == 2


@pytest.mark.parametrize("kind", [lm.LSTM, lm.GRU])
def test_an_iteration_is_a_product_and_one_loop_forwards_and_backwards(kind):
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
def test_the_functions_of_gates_are_computed_once(kind, functions):
    program = training_program(10, kind=kind)
    forward, backward = (program.steps[repeat.first : repeat.last] for repeat in program.repeats)

    def expensive_functions(steps):
        scalars = postorder(*(scalar for step in steps for scalar in scalars_of(step)))
        return sum(isinstance(x, Apply) and x.primitive in EXPENSIVE for x in scalars)

    assert (expensive_functions(forward), expensive_functions(backward)) == (functions, 0)


def larger(states, elements, constants):
    """A function with more elements than a state or an element of a sequence."""
    both = ops.expand_dims(states[0], 1) * ops.expand_dims(elements[0], 2)
    return [ops.sum(ops.exp(both), 1) + states[0] @ constants[0]], []


def of_constants(states, elements, constants):
    """A function that is the same in every iteration."""
    return [ops.add(states[0] @ ops.exp(constants[0]), elements[0])], []


BATCH, FEATURES = 4, 32


@pytest.mark.cases(
    ("step", "numbers"),
    # States, products and their gradients; the function has 32 times as many as a state.
    (larger, 6 * BATCH * FEATURES),
    # The gradient of the weight, of each iteration; the function has as many.
    (of_constants, 6 * BATCH * FEATURES + FEATURES * FEATURES),
)
def test_large_tensors_and_those_equal_in_every_iteration_are_not_kept(step, numbers):
    def arena_bytes(length):
        x = Leaves()
        weight = x.add(FEATURES, FEATURES, role="parameter")
        elements = x.add(length, BATCH, FEATURES)
        (states,), _ = ops.recurrence(step, [x.add(BATCH, FEATURES)], [elements], [weight])
        slopes = gradients(ops.sum(states[-1]), [weight])
        return program_of(slopes).plan.arena_bytes

    assert arena_bytes(120) - arena_bytes(20) <= 100 * 8 * numbers


def test_unused_results_do_not_change_the_program():
    """Files of earlier versions have loops with results that only a gradient might have read."""
    leaves = Leaves()
    plain = lstm(leaves)[0]

    def kept(node):
        body = node.attributes["body"]
        products = [x for x in topological(body.roots) if x.op.name == "matmul"]
        outputs = (*body.outputs, *((f"kept{n}", x) for n, x in enumerate(products)))
        attributes = {**node.attributes, "body": Graph(body.inputs, outputs)}
        return apply(node.op, *node.operands, **attributes)

    def program(states):
        slopes = gradients(ops.sum(states), leaves.tensors)
        return str(program_of([states, *slopes]))

    # A slice of the stack, which begins with the initial state.
    (stack,) = plain.operands
    assert program(kept(stack)) == program(stack)


def test_equal_arrays_inside_and_outside_of_loops_are_one_buffer():
    program = with_gradients(with_arrays)
    found = [value.tobytes() for value in program.constants.values()]
    assert len(set(found)) == len(found)
    assert {MASK.tobytes(), MIXING.tobytes()} <= set(found)
    assert {buffer.name for buffer in program.of_kind("constant")} == program.constants.keys()


def test_weights_are_packed_before_the_loop():
    program = training_program(20, features=64, batch=32)
    prepackings = decide(program, replace(host(), threads=2)).prepackings
    assert len(program.repeats) == 2
    for repeat in program.repeats:
        (packed,) = (prepacking for prepacking in prepackings if prepacking.before == repeat.first)
        assert packed.iteration is None
    assert all(prepacking.iteration is None for prepacking in prepackings)


@pytest.mark.sampled
def test_the_number_of_threads_does_not_change_a_bit(monkeypatch):
    layers = lm.LSTM(72, layers=2, bidirectional=True), lm.GRU(40, returns="last"), lm.Linear(3)
    x = np.random.default_rng(0).normal(size=(48, 9, 20)).astype("float32")
    rows = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("LAMINA_THREADS", threads)
        model = lm.Model(lm.Sequential(lm.Input(9, 20), *layers))
        with model.training(lm.MSE(), lm.SGD(0.1), len(x)) as training:
            training.step(x, np.ones((48, 3), "float32"))
        rows.append([value.tobytes() for value in model.parameters().values()])
    assert rows[0] == rows[1] == rows[2]


S, E, LONGER = (
    leaf(name, "input", shape, float64)
    for name, shape in zip("sel", ((3,), (4, 3), (5, 3)), strict=True)
)
BY_TIME = ops.transpose(lm.Input(4, 3), (1, 0, 2))


def summing(states, elements, _):
    return [states[0] + elements[0]], []


BATCHED = ops.zeros_like(BY_TIME[0])
# The step, the states, the sequences, and parts of the text.
REFUSED = [
    (summing, S, [], ["a recurrence needs a sequence", "for example ops.arange(n)"]),
    (
        *(summing, S, [E, LONGER]),
        ["the sequences differ in length", "sequence 0  f64[4, 3]", "sequence 1  f64[5, 3]"],
    ),
    (summing, S, [E, S[0]], ["recurrence: the sequences differ"]),
    (
        *(summing, S, [ops.stack([E, E], 1)]),
        ["recurrence: state 0 changes its shape or dtype", "before  f64[3]", "after   f64[2, 3]"],
    ),
    (lambda s, e, _: ([ops.cast(s[0], "float32")], []), S, [E], ["after   f32[3]"]),
    (
        *(lambda s, e, _: ([s[0], e[0]], []), S, [E]),
        ["an iteration must return as many states as it takes", "taken     1", "returned  2"],
    ),
    (
        *(lambda s, e, _: ([s[0] * S + e[0]], []), S, [E]),
        ["`step` uses a tensor that was not passed to it", "Pass it as one of the constants."],
    ),
    (
        *(lambda s, e, _: ([lm.Linear(3)(s[0]) + e[0]], []), BATCHED, [BY_TIME]),
        ["`step` applies a layer", "found  Linear", "pass the parameters as constants"],
    ),
    (
        *(summing, ops.full((4,), 0.0), [lm.Input(4)]),
        ["the first axis of a sequence must be the time, but it is the batch"],
    ),
    (
        *(summing, ops.full((4,), 0.0), [lm.Input(4)]),
        ["ops.transpose(x, (1, 0, 2)) brings another axis to the front"],
    ),
]


@pytest.mark.parametrize(("step", "state", "sequences", "said"), REFUSED)
def test_wrong_iterations_are_refused(step, state, sequences, said):
    text = error_text(
        (DefinitionError, ShapeError), lambda: ops.recurrence(step, [state], sequences, [])
    )
    for part in said:
        assert part in text


def test_a_truncation_is_at_least_one_iteration():
    with pytest.raises(DefinitionError, match="truncate must be a whole number of at least 1"):
        ops.recurrence(summing, [S], [E], [], truncate=0)
