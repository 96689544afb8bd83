"""Tolerances of conformance tests: wrong results fail; sums in any order pass."""

from collections.abc import Callable

import numpy as np
import pytest
from harness import compare
from tolerances import expected_of

from lamina import ops
from lamina.base.shapes import Array
from lamina.graph import Graph, Tensor
from lamina.ops.differentiate import gradients


def _softmax_gradient(x: Tensor) -> Tensor:
    return gradients(ops.sum(ops.softmax(x, 1) * ops.sin(x)), [x])[0]


def _convolution(x: Tensor) -> Tensor:
    image = ops.reshape(x, (2, 3, 9, 10))
    return ops.conv(image, ops.reshape(x[0, :27], (1, 3, 3, 3)), [1, 1], [(1, 1), (1, 1)], [1, 1])


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "elementwise": lambda x: x * 0.5 - 0.25 * x,
    "function": lambda x: ops.tanh(x * 0.5),
    "sum": lambda x: ops.sum(x, 1),
    "product": lambda x: x @ ops.transpose(x),
    "variance": lambda x: ops.variance(x, 1),
    "deviation": lambda x: x - ops.mean(x, 0, keepdims=True),
    "softmax gradient": _softmax_gradient,
    "convolution": _convolution,
    "running sum": lambda x: ops.cumsum(x, 1),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e6])
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_results_do_not_pass_however_small_they_are(kind, size, dtype, leaves):
    values = np.random.default_rng(0).uniform(-1, 1, (6, 90)) * size
    graph = leaves.graph([KINDS[kind](leaves.add(values.astype(dtype)))])
    expected, allowed = expected_of(graph, leaves.feeds).outputs["y0"]
    assert np.max(allowed) < (1e-3 if dtype == "float32" else 1e-11) * np.max(np.abs(expected))
    compare("right", expected, expected, allowed)
    largest = np.unravel_index(np.argmax(np.abs(expected)), expected.shape)
    one_off = expected.copy()
    one_off[largest] *= 1.01
    nan = expected.copy()
    nan[largest] = np.nan
    for wrong in (np.zeros_like(expected), -expected, np.roll(expected, 1), one_off, nan):
        with pytest.raises(AssertionError, match="elements are wrong"):
            compare("wrong", wrong, expected, allowed)


def test_exactly_rounded_ops_have_no_tolerance(leaves):
    x = leaves.add(np.random.default_rng(0).uniform(-1, 1, (5, 7)).astype("float32"))
    exact = {
        "products": x * 3 + x,
        "roots": ops.sqrt(ops.abs(x)) / (x * x + 1),
        "movements": ops.max(x, 1) - ops.transpose(x)[::-1],
        "a sum of one": ops.sum(x[:, :1], 1),
        "zeros": ops.exp(x * 0) * 0,
        "equal sums": ops.sum(x, 1) - ops.sum(x, 1),
    }
    outputs = expected_of(leaves.graph([*exact.values()]), leaves.feeds).outputs
    for name, (_, allowed) in zip(exact, outputs.values(), strict=True):
        assert not allowed.any(), name


def _one_by_one(terms: Array) -> Array:
    return np.add.accumulate(terms, 0)[-1]


def _by_lanes(terms: Array) -> Array:
    return _one_by_one(_one_by_one(terms.reshape(-1, 16, terms.shape[1])))


@pytest.mark.parametrize("order", [_one_by_one, _by_lanes], ids=["one by one", "by lanes"])
@pytest.mark.parametrize("high", [1.0, -1.0], ids=["one sign", "both signs"])
@pytest.mark.parametrize("terms", [16, 160, 1600])
def test_sums_in_any_order_pass(terms, high, order, leaves):
    values = np.random.default_rng(terms).uniform(-1, high, (terms, 500)).astype("float32")
    total = ops.sum(leaves.add(np.abs(values) if high < 0 else values), 0)
    # The subtraction enlarges the relative error of the sum, as most of it cancels.
    middle = leaves.add(np.asarray(leaves.feeds["x0"].sum(0) * np.float32(0.99)))
    graph = leaves.graph([total, total - middle, ops.exp((total - middle) * 0.125)])
    expected = expected_of(graph, leaves.feeds).outputs
    found = order(leaves.feeds["x0"])
    off = found - leaves.feeds["x1"]
    for name, value in (("y0", found), ("y1", off), ("y2", np.exp(off * np.float32(0.125)))):
        compare(name, value, *expected[name])


def test_errors_of_updates_add_up_over_runs(leaves):
    x = leaves.add(np.random.default_rng(0).uniform(-1, 1, (3, 9)).astype("float32"), "parameter")
    graph = Graph((), (("y0", ops.sum(x)),), ((x, x + ops.tanh(x)),))
    once, twice = (expected_of(graph, leaves.feeds, runs).leaves["x0"][1] for runs in (1, 2))
    assert once.all()
    assert np.mean(twice) > 1.5 * np.mean(once)
