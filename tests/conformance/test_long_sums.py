"""Long sums of equal numbers, whose rounding errors all have one sign.

Added to one running total, hundreds of thousands of terms lose three or four digits.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from alternatives import schedules_of
from harness import run, run_program

from lamina import ops
from lamina.compiler.pipeline import compile_graph
from lamina.graph import Tensor
from lamina.ops.differentiate import gradients

VALUE = 0.1
TOTAL = np.float64(np.float32(VALUE))
# The relative error: of sums, and of products of matrices, which have longer blocks.
SUM, PRODUCT = 5e-6, 3e-5

# The shape of an array of equal numbers, the sum, its value in exact arithmetic, and the error.
LONG_SUMS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor], float, float]] = {
    "all": ((2000, 1000), ops.mean, TOTAL, SUM),
    "few rows": ((3, 500_000), lambda x: ops.sum(x, 1), 500_000 * TOTAL, SUM),
    "rows": ((70, 40_000), lambda x: ops.sum(x, 1), 40_000 * TOTAL, SUM),
    "columns": ((70_000, 40), lambda x: ops.sum(x, 0), 70_000 * TOTAL, SUM),
    "channels": ((150, 8, 36, 36), lambda x: ops.mean(x, (0, 2, 3)), TOTAL, SUM),
    "squares": ((100_000, 3), lambda x: ops.mean(x * x, 0), TOTAL**2, SUM),
    "running, last axis": ((3, 300_000), lambda x: ops.cumsum(x, 1)[:, -1], 3e5 * TOTAL, SUM),
    "running, first axis": ((70_000, 5), lambda x: ops.cumsum(x, 0)[-1], 70_000 * TOTAL, SUM),
    "dot product": ((2_000_000,), lambda x: ops.matmul(x, x), 2e6 * TOTAL**2, SUM),
    "dot products": ((4, 200_000), lambda x: ops.matmul(x, x.T), 2e5 * TOTAL**2, SUM),
    "product": ((150_000, 8), lambda x: ops.matmul(x.T, x), 150_000 * TOTAL**2, PRODUCT),
}


def gradient_of_weights(x: Tensor, upstream: Tensor) -> Tensor:
    """Of a convolution of images with windows of 3x3, or of one element."""
    window = x.shape[-1] - upstream.shape[-1] + 1
    weights = ops.full((upstream.shape[1], x.shape[1], window, window), 0.0)
    y = ops.conv(x, weights, 1, 0, 1)
    return gradients(ops.sum(y * upstream), [weights])[0]


# Sums of products: the shapes of two arrays of equal numbers, and how many products are summed.
# The numbers are such that the errors of a running total have one sign for a long time.
FACTOR = 0.7
LONG_PRODUCTS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Any, Any, int]] = {
    "product": (lambda a, b: ops.matmul(a.T, b), (20_000, 8), (20_000, 4), 20_000),
    "channels": (lambda x, w: ops.conv(x, w, 1, 0, 1), (1, 2500, 4, 4), (3, 2500, 3, 3), 22_500),
    "windows": (gradient_of_weights, (50, 2, 22, 22), (50, 3, 20, 20), 20_000),
    "points": (gradient_of_weights, (50, 4, 20, 20), (50, 3, 20, 20), 20_000),
}

# One in so many of an engine's schedules is tried: these have all kinds of kernels.
ONE_IN = 4


@pytest.mark.sampled
@pytest.mark.parametrize("name", LONG_PRODUCTS)
def test_long_products_keep_their_digits_with_other_schedules(name, engine, leaves):
    build, left, right, terms = LONG_PRODUCTS[name]
    operands = [leaves.add(np.full(shape, FACTOR, "float32")) for shape in (left, right)]
    graph = leaves.graph([build(*operands)])
    program = compile_graph(graph, batch=1, name="test", target=engine.target)
    for schedule in (None, *islice(schedules_of(engine, program), 0, None, ONE_IN)):
        outputs, _ = run_program(program, engine, leaves.feeds, schedule=schedule)
        exact = terms * np.float64(np.float32(FACTOR)) ** 2
        np.testing.assert_allclose(outputs["y0"], exact, PRODUCT, err_msg=str(schedule))


@pytest.mark.parametrize("name", LONG_SUMS)
def test_long_sums_keep_their_digits(name, engine, leaves):
    shape, build, exact, error = LONG_SUMS[name]
    graph = leaves.graph([build(leaves.add(np.full(shape, VALUE, "float32")))])
    outputs = run(graph, engine, leaves.feeds)
    np.testing.assert_allclose(outputs["y0"], exact, rtol=error)
