"""Recurrences as programs: one loop, few steps, and refused calls."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from program_cases import compiled
from recurrence_cases import (
    MASK,
    MIXING,
    Leaves,
    Step,
    Tensors,
    gradients_of,
    graph_of,
    lstm,
    with_arrays,
)

import lamina as lm
from lamina import ops
from lamina.engines.cpu.native_program import write_program
from lamina.engines.cpu.processor import host
from lamina.engines.simd.decide.program import decide
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import Graph, Tensor, apply, topological
from lamina.ops.differentiate import gradients
from lamina.program.index import axes_of
from lamina.program.program import Program
from lamina.program.scalar import Apply, Within, postorder
from lamina.program.steps import Contraction, loads_of, scalars_of, stores_of
from lamina.program.target import EXPENSIVE

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
    # Sums over 1000 iterations are made in blocks, which takes a further kernel.
    assert len(texts[1].splitlines()) < 1.5 * len(texts[0].splitlines())


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
    program = compiled(graph_of([states[-1]], x))
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
    program = compiled(both)
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
        return compiled(graph_of(slopes, x)).plan.arena_bytes

    assert arena_bytes(120) - arena_bytes(20) <= 100 * 8 * numbers


def test_unused_results_do_not_change_the_program() -> None:
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
        return str(compiled(graph))

    # A slice of the stack, which begins with the initial state.
    (stack,) = plain.operands
    assert program(kept(stack)) == program(stack)


def test_equal_arrays_inside_and_outside_of_loops_are_one_buffer() -> None:
    leaves = Leaves()
    graph = graph_of(with_arrays(leaves), leaves)
    both = Graph(graph.inputs, (*graph.outputs, *gradients_of(graph, leaves).outputs))
    program = compiled(both)
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
layers = lm.LSTM(72, layers=2, bidirectional=True), lm.GRU(40, returns="last"), lm.Linear(3)
net = lm.Sequential(lm.Input(9, 20), *layers)
model = lm.Model(net, seed=0)
x = np.random.default_rng(0).normal(size=(48, 9, 20)).astype("float32")
how = {{"loss": lm.CrossEntropy(), "optimizer": lm.Adam(1e-2), "epochs": 3, "batch_size": 24}}
model.fit((x, np.arange(48) % 3), **how)
print([value.tobytes().hex()[-64:] for value in model.parameters().values()])
"""


@pytest.mark.sampled
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
    assert "for example ops.arange(n)" in text
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


def test_an_iteration_with_another_number_of_states_is_refused() -> None:
    x = Leaves()
    text = error_of(lambda s, e, _: ([s[0], e[0]], []), [x.add(3)], [x.add(4, 3)])
    assert "an iteration must return as many states as it takes" in text
    assert "taken     1" in text
    assert "returned  2" in text


def test_an_iteration_that_uses_other_tensors_is_refused() -> None:
    x = Leaves()
    weight = x.add(3)
    text = error_of(lambda s, e, _: ([s[0] * weight + e[0]], []), [x.add(3)], [x.add(4, 3)])
    assert "`step` uses a tensor that was not passed to it" in text
    assert "Pass it as one of the constants." in text


def test_an_iteration_that_applies_a_layer_is_refused() -> None:
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
    assert "the first axis of a sequence must be the time, but it is the batch" in text
    assert "ops.transpose(x, (1, 0, 2)) brings another axis to the front" in text
