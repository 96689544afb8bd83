"""Rounding on engines: each primitive rounds to nearest; only `multiply_add` may round once."""

import numpy as np
import pytest
from harness import run

from lamina import ops
from lamina.base.shapes import Array


def numbers(dtype: str, seed: int, count: int = 1000) -> Array:
    """Positive numbers of many sizes."""
    generator = np.random.default_rng(seed)
    return (generator.uniform(1, 2, count) * 2.0 ** generator.integers(-30, 30, count)).astype(
        dtype
    )


DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


@DTYPES
def test_products_are_rounded_before_they_are_added(dtype, engine, leaves):
    x, y = numbers(dtype, 0), numbers(dtype, 1)
    a, b, c = (leaves.add(array) for array in (x, y, x * y))
    # With one rounding, the rounding error of the product would remain.
    graph = leaves.graph([a * b - c, ops.neg(c) + b * a])
    for difference in run(graph, engine, leaves.feeds).values():
        np.testing.assert_array_equal(difference, 0)


@DTYPES
def test_basic_operations_give_the_nearest_number(dtype, engine, leaves):
    x, y = numbers(dtype, 2), numbers(dtype, 3)
    a, b = leaves.add(x), leaves.add(y)
    expected = ((a + b, x + y), (a - b, x - y), (a * b, x * y), (a / b, x / y))
    expected = (*expected, (ops.sqrt(a), np.sqrt(x)), (ops.reciprocal(a), np.ones((), dtype) / x))
    outputs = run(leaves.graph([tensor for tensor, _ in expected]), engine, leaves.feeds)
    for (tensor, result), value in zip(expected, outputs.values(), strict=True):
        np.testing.assert_array_equal(value, result, tensor.op.name)


@DTYPES
def test_multiply_add_rounds_once_or_twice(dtype, engine, leaves):
    # Whole numbers of half the bits: their products are exact as Python ints.
    generator = np.random.default_rng(4)
    half = 12 if dtype == "float32" else 26
    x, y = (generator.integers(2**half, 2 ** (half + 1), 1000) for _ in range(2))
    exact = x.astype(object) * y
    rounded = (x * y).astype(dtype)
    a, b = leaves.add(x.astype(dtype)), leaves.add(y.astype(dtype))
    graph = leaves.graph([ops.multiply_add(a, b, leaves.add(-rounded))])
    errors = run(graph, engine, leaves.feeds)["y0"]
    lost = np.array([float(p - int(r)) for p, r in zip(exact, rounded, strict=True)], dtype)
    assert lost.any()
    assert np.array_equal(errors, lost) or not errors.any()
