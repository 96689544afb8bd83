"""Fusion: tensors that one step reads at several coordinates."""

from __future__ import annotations

import pytest
from program_cases import count, program_of

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32
from lamina.graph import leaf
from lamina.program.program import Program
from lamina.program.scalar import postorder
from lamina.program.steps import scalars_of


def test_an_expensive_tensor_that_a_step_reads_at_two_coordinates_is_stored() -> None:
    x = leaf("x", "input", (40, 60), float32)
    expensive, cheap = ops.exp(x), ops.relu(x)
    for tensor, stored in ((expensive, 1), (cheap, 0)):
        program = program_of(tensor - ops.flip(tensor, 1))
        assert len(program.steps) == 1 + stored
    assert count(program_of(expensive - ops.flip(expensive, 1)), "exp") == 1


def test_a_tensor_that_a_step_reads_twice_at_the_same_coordinates_is_not_stored() -> None:
    x = leaf("x", "input", (40, 60), float32)
    y = ops.exp(x)
    again = ops.flip(ops.reshape(ops.flip(y, 0), (60, 40)), (0, 1))
    program = program_of(ops.flip(y, 1) + ops.reshape(again, (40, 60)))
    assert len(program.steps) == 1
    assert count(program, "exp") == 1


def test_a_tensor_of_which_a_step_reads_few_elements_is_not_stored() -> None:
    x = leaf("x", "input", (40, 60), float32)
    y = ops.exp(x)
    assert len(program_of(y[:, :2] - y[:, 2:4]).steps) == 1
    assert len(program_of(y[:, :59] - y[:, 1:]).steps) == 2


def test_the_first_tensor_of_a_chain_saves_storing_those_below_it() -> None:
    x = leaf("x", "input", (40, 60), float32)
    y = ops.sin(ops.exp(x) + 1)
    program = program_of(y - ops.flip(y, 1))
    assert len(program.steps) == 2
    sizes = [buffer.size for buffer in program.of_kind("temporary")]
    assert sizes == [40 * 60, 40 * 60]


def test_coordinates_after_many_reshapes_are_still_compared() -> None:
    x = leaf("x", "input", (40, 60), float32)
    y = z = ops.exp(x)
    for _ in range(9):
        z = ops.reshape(ops.transpose(ops.reshape(z, (24, 100))), (40, 60))
    program = program_of(z + ops.flip(z, 0) + y)
    assert count(program, "exp") == 1


def augmented(*layers: lm.Layer) -> Program:
    network = lm.Sequential(lm.Input(3, 16, 16), *layers, lm.Flatten(), lm.Linear(5))
    return network.plan(8, lm.CrossEntropy(), lm.SGD(0.1)).program


def test_each_layer_of_a_chain_of_samplings_is_computed_once() -> None:
    rotations = [lm.RandomRotation(degrees) for degrees in (5, 10, 15)]
    sizes = [
        sum(len(list(postorder(*scalars_of(step)))) for step in augmented(*chain).steps)
        for chain in (rotations[:1], rotations[:2], rotations)
    ]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]


def test_a_chain_draws_no_more_numbers_than_its_layers_alone() -> None:
    layers = lm.RandomShift(2), lm.RandomRotation(15), lm.Mixup()
    for primitive in ("random_bits", "cos", "floor"):
        alone = sum(count(augmented(layer), primitive) for layer in layers)
        assert count(augmented(*layers), primitive) == alone


def test_expressions_of_joins_in_a_chain_stay_small() -> None:
    """Each `roll` reads its operand at two coordinates: 8 of them are one step, not all."""
    y = leaf("x", "input", (40, 60), float32)
    for _ in range(30):
        y = ops.roll(y, 1, 1)
    program = program_of(ops.matmul(y, leaf("w", "input", (60, 4), float32)))
    assert count(program, "select") == 30
    assert max(len([*postorder(*scalars_of(step))]) for step in program.steps) < 40


@pytest.mark.sampled
def test_indices_of_reshapes_in_a_chain_stay_small() -> None:
    """Each reshape after a transpose may double them: a product reads no view of such a chain."""
    y = leaf("x", "input", (5, 12), float32)
    for _ in range(16):
        y = ops.reshape(ops.transpose(ops.reshape(y, (-1, 3, 4)), (0, 2, 1)), (-1, 12))
    program = program_of(ops.matmul(y, leaf("w", "input", (12, 4), float32)))
    assert len(program.steps) < 8
