"""Functions that are composed of ops, on the engine under test: values and gradients.

The compiled program is compared with `graph.evaluate`, within the tolerances that `harness` states.
"""

from functools import partial

import numpy as np
import pytest
from harness import Leaves, check
from structure_cases import CASES, Case

from lamina import ops
from lamina.base.shapes import Array
from lamina.graph import Tensor
from lamina.ops.differentiate import gradients


def _with_gradients(case: Case, leaves: Leaves) -> list[Tensor]:
    operands = [leaves.add(array.astype(np.float32)) for array in case.arrays()]
    result = case.ours(*operands)
    return [result, *gradients(ops.sum(result * result), operands)]


@pytest.mark.parametrize("kind", CASES)
def test_functions_and_their_gradients(kind, check_cases):
    check_cases([(case.name, partial(_with_gradients, case)) for case in CASES[kind]])


SPECIAL = [-np.nan, np.nan, 1.0, -0.0, np.inf, 0.0, -np.inf, 1.0, -1e-40, np.nan, -3.0, 1e-40, 0.0]


def test_a_sort_of_special_numbers_is_stable(check_cases):
    limits = np.array([-(2**31), 2**31 - 1, 0, -1, 2**31 - 1, -(2**31), 7, 7, 0, -5], np.int32)

    def build(dtype, leaves):
        array: Array = np.array(SPECIAL, np.float64) if dtype.startswith("float") else limits
        x = leaves.add(np.tile(np.concatenate([array, array[::-1]]).astype(dtype), (3, 1)))
        return [ops.argsort(x, 1, descending) for descending in (False, True)]

    check_cases(("float32", "float16", "int32", "uint8", "bool", "float64"), build)


def test_padding_of_a_small_product_counts_as_zero(check_cases):
    def build(rows, leaves):
        x = leaves.add(np.arange(1, rows + 1, dtype=np.float32)[:, None])
        padded = [ops.pad(x, ((0, 0), widths)) for widths in ((0, 1), (1, 0), (2, 3))]
        weights = [np.arange(2.0 * y.shape[1]).reshape(-1, 2).astype(np.float32) for y in padded]
        return [ops.matmul(y, weight) for y, weight in zip(padded, weights, strict=True)]

    check_cases(range(1, 14), build, exact=True)


def test_a_sort_of_any_length(check_cases):
    def build(extent, leaves):
        generator = np.random.default_rng(extent)
        few = leaves.add(generator.integers(0, 9, (2, extent)))
        many = leaves.add(generator.normal(size=(extent, 3)).astype(np.float32))
        return [
            ops.argsort(few, 1, True),
            ops.sort(few, 1),
            ops.argsort(many, 0),
            ops.sort(many, 0),
        ]

    check_cases((2, 7, 8, 9, 17, 33, 100, 1025, 5000), build)


def test_of_equal_indices_the_last_value_is_put(engine, leaves):
    generator = np.random.default_rng(0)
    x = leaves.add(generator.normal(size=(5, 3)).astype(np.float32))
    values = leaves.add(generator.normal(size=(40, 2)).astype(np.float32))
    indices = leaves.add(generator.integers(-1, 7, (40, 2)))
    result = ops.scatter(x, indices, values, 0)
    derivatives = gradients(ops.sum(result * result), [x, values])
    check(leaves.graph([result, *derivatives]), engine, leaves.feeds)


def test_a_sort_and_a_solution_within_a_recurrence(engine, leaves):
    generator = np.random.default_rng(0)
    first = leaves.add(generator.normal(size=(2, 3, 3)).astype(np.float32))
    by_time = leaves.add(generator.normal(size=(4, 2, 3, 3)).astype(np.float32))

    def step(states, elements, constants):
        matrix = elements[0] + 4 * np.eye(3, dtype=np.float32)
        ordered = ops.sort(ops.solve(matrix, states[0]), 1)
        return [ordered], [ops.argsort(ordered, 2)]

    (states,), (orders,) = ops.recurrence(step, [first], [by_time])
    derivatives = gradients(ops.sum(states * states), [first, by_time])
    check(leaves.graph([states, orders, *derivatives]), engine, leaves.feeds)
