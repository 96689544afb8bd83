"""Rounding on engines: each primitive rounds to nearest; only `multiply_add` may round once."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Leaves, run_program

from lamina import ops
from lamina.base.shapes import Array
from lamina.compiler.pipeline import compile_graph
from lamina.engines.engine import Engine
from lamina.graph import Tensor


def numbers(dtype: str, seed: int, count: int = 1000) -> Array:
    """Positive numbers of many sizes."""
    generator = np.random.default_rng(seed)
    return (generator.uniform(1, 2, count) * 2.0 ** generator.integers(-30, 30, count)).astype(
        dtype
    )


def result(engine: Engine, leaves: Leaves, tensor: Tensor) -> Array:
    program = compile_graph(leaves.graph([tensor]), batch=1, name="test", target=engine.target)
    return run_program(program, engine, leaves.feeds)[0]["y0"]


DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


@DTYPES
def test_products_are_rounded_before_they_are_added(dtype: str, engine: Engine) -> None:
    x, y = numbers(dtype, 0), numbers(dtype, 1)
    leaves = Leaves()
    a, b, c = (leaves.add(array) for array in (x, y, x * y))
    # With one rounding, the rounding error of the product would remain.
    np.testing.assert_array_equal(result(engine, leaves, a * b - c), 0)
    np.testing.assert_array_equal(result(engine, leaves, ops.neg(c) + b * a), 0)


@DTYPES
def test_basic_operations_give_the_nearest_number(dtype: str, engine: Engine) -> None:
    x, y = numbers(dtype, 2), numbers(dtype, 3)
    leaves = Leaves()
    a, b = leaves.add(x), leaves.add(y)
    one = np.ones((), dtype)
    expected = ((a + b, x + y), (a - b, x - y), (a * b, x * y), (a / b, x / y))
    for tensor, wanted in (*expected, (ops.sqrt(a), np.sqrt(x)), (ops.reciprocal(a), one / x)):
        np.testing.assert_array_equal(result(engine, leaves, tensor), wanted, tensor.op.name)


@DTYPES
def test_multiply_add_rounds_once_or_twice(dtype: str, engine: Engine) -> None:
    # Whole numbers of half the bits: their products are exact as Python ints.
    generator = np.random.default_rng(4)
    half = 12 if dtype == "float32" else 26
    x, y = (generator.integers(2**half, 2 ** (half + 1), 1000) for _ in range(2))
    exact = x.astype(object) * y
    rounded = (x * y).astype(dtype)
    leaves = Leaves()
    a, b = leaves.add(x.astype(dtype)), leaves.add(y.astype(dtype))
    found = result(engine, leaves, ops.multiply_add(a, b, leaves.add(-rounded)))
    lost = np.array([float(p - int(r)) for p, r in zip(exact, rounded, strict=True)], dtype)
    assert lost.any()
    assert np.array_equal(found, lost) or not found.any()
