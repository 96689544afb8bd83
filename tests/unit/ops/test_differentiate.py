"""Derivatives of graphs: values, seeds, derivatives of derivatives, and ops without derivatives."""

import numpy as np
import pytest
from error_texts import error_text, refused

from lamina import gradients, ops
from lamina.base.shapes import BATCH, float32, float64, int64
from lamina.errors import GradientError, ShapeError
from lamina.graph import Graph, Op, Tensor, apply, bind_batch, constant, evaluate, leaf, topological
from lamina.ops.lowering_rules import LoweringRule

VALUES = np.random.default_rng(0).uniform(-2, 2, (4, 3))


def data(name: str = "x", *shape: int) -> Tensor:
    return leaf(name, "input", (BATCH, *(shape or (3,))), float64)


def value_of(tensor: Tensor, **feeds: np.ndarray) -> np.ndarray:
    leaves = tuple(node for node in topological([tensor]) if node.op.name == "leaf")
    graph = bind_batch(Graph(leaves, (("y", tensor),)), 4)
    return evaluate(graph, feeds)[0]["y"]


def test_the_elements_of_the_output_are_summed():
    x = data()
    (slope,) = gradients(ops.sin(x), [x])
    np.testing.assert_allclose(value_of(slope, x=VALUES), np.cos(VALUES), rtol=1e-12)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_derivatives_can_be_differentiated(order):
    x = data()
    y = ops.sin(x)
    for _ in range(order):
        (y,) = gradients(y, [x])
    expected = np.sin(VALUES + order * np.pi / 2)
    np.testing.assert_allclose(value_of(y, x=VALUES), expected, rtol=1e-9, atol=1e-12)


def test_gradients_along_all_paths_are_added():
    x = data()
    (slope,) = gradients(x * x + ops.exp(x) * x + x, [x])
    expected = 2 * VALUES + np.exp(VALUES) * (VALUES + 1) + 1
    np.testing.assert_allclose(value_of(slope, x=VALUES), expected, rtol=1e-12)


def test_gradients_of_intermediate_tensors_can_be_requested():
    x = data()
    middle = ops.exp(x)
    (slope,) = gradients(middle * middle, [middle])
    np.testing.assert_allclose(value_of(slope, x=VALUES), 2 * np.exp(VALUES), rtol=1e-12)


def test_the_output_itself_has_the_derivative_1():
    x = data()
    y = ops.exp(x)
    (slope,) = gradients(y, [y])
    np.testing.assert_array_equal(value_of(slope * ops.ones_like(x), x=VALUES), np.ones((4, 3)))


def test_a_tensor_requested_twice_has_two_gradients():
    x = data()
    one, other = gradients(x * x, [x, x])
    assert one is other


def test_an_independent_tensor_has_a_zero_gradient():
    x, other = data(), leaf("other", "parameter", (2, 5), float32)
    (slope,) = gradients(ops.exp(x), [other])
    assert (slope.shape, slope.dtype) == ((2, 5), float32)
    np.testing.assert_array_equal(
        evaluate(Graph((), (("y", slope),)), {})[0]["y"], np.zeros((2, 5))
    )


def test_nothing_flows_through_stop_gradient():
    x = data()
    (slope,) = gradients(ops.stop_gradient(ops.exp(x)) * x, [x])
    np.testing.assert_allclose(value_of(slope, x=VALUES), np.exp(VALUES), rtol=1e-12)


def test_nothing_flows_through_integers():
    x = data()
    (slope,) = gradients(ops.cast(ops.cast(x, "int64"), "float64") * x, [x])
    np.testing.assert_array_equal(value_of(slope, x=VALUES), np.trunc(VALUES))


def test_a_seed_weights_the_elements_of_the_output():
    x, seed = data(), data("seed")
    (slope,) = gradients(ops.sin(x), [x], seed)
    found = value_of(slope, x=VALUES, seed=VALUES + 5)
    np.testing.assert_allclose(found, np.cos(VALUES) * (VALUES + 5), rtol=1e-12)


def test_a_seed_of_another_shape_is_refused():
    x = data()
    assert error_text(ShapeError, lambda: gradients(ops.sin(x), [x], constant(np.ones(3)))) == (
        "the seed of a gradient must have the shape and dtype of the output\n"
        "  output  f64[batch, 3]\n"
        "  seed    f64[3]\n"
        "  Leave the seed out for a gradient of the sum of the output."
    )


def test_integers_have_no_derivative():
    x, k = data(), leaf("k", "input", (BATCH,), int64)
    error = refused(GradientError, lambda: gradients(ops.argmax(x, 1), [x]))
    assert error.problem == "only floating-point tensors have derivatives"
    assert error.facts[1] == ("found", "Tensor(i64[batch], argmax)")
    assert error.advice == "Cast integers first: ops.cast(x, 'float32')."
    error = refused(GradientError, lambda: gradients(x, [k]))
    assert error.facts[1] == ("found", "Tensor(i64[batch], leaf)")


def infer_same(operands: tuple[Tensor, ...], _: object) -> tuple:
    return operands[0].shape, operands[0].dtype


ROUGH = Op("rough", infer_same, None, lambda x: np.floor(x), LoweringRule())


def test_an_op_without_a_derivative_on_the_path_is_named_with_its_line():
    x = data()
    y = apply(ROUGH, ops.exp(x))
    error = refused(GradientError, lambda: gradients(y * 2.0, [x]))
    assert error.problem == "rough has no derivative, but the output depends on it"
    assert error.where == y.origin.source
    assert error.where.startswith("test_differentiate.py:")
    assert error.advice == ("Stop the gradient with ops.stop_gradient, or use a smooth op.")


def test_an_op_without_a_derivative_off_the_path_does_no_harm():
    x, other = data(), data("other")
    (slope,) = gradients(apply(ROUGH, other) * x, [x])
    found = value_of(slope, x=VALUES, other=VALUES)
    np.testing.assert_array_equal(found, np.floor(VALUES))


def test_gradients_carry_the_origin_of_the_forward_op():
    x = data()
    y = ops.exp(x)
    (slope,) = gradients(ops.sum(y), [x])
    assert slope.origin == y.origin


def test_gradients_of_slices_that_cover_a_tensor_are_concatenated():
    x = data("x", 6)
    a, b, c = ops.split(x, [1, 3, 2], 1)
    (slope,) = gradients(ops.sum(c * c) + ops.sum(ops.exp(a)) + ops.sum(ops.sin(b)), [x])
    assert slope.op.name == "concat"
    values = np.random.default_rng(0).normal(size=(4, 6))
    expected = np.concatenate(
        [np.exp(values[:, :1]), np.cos(values[:, 1:4]), 2 * values[:, 4:]], axis=1
    )
    np.testing.assert_allclose(value_of(slope, x=values), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "bounds", [[(0, 3), (4, 6)], [(0, 4), (3, 6)], [(0, 3)], [(0, 3), (3, 6), (0, 6), (0, 3)]]
)
def test_gradients_of_slices_with_gaps_or_overlaps_are_added(bounds):
    x = data("x", 6)
    total = ops.sum(x * 0.5)
    expected = np.full((4, 6), 0.5)
    for number, (start, stop) in enumerate(bounds):
        total = total + ops.sum(x[:, start:stop] * (number + 1.0))
        expected[:, start:stop] += number + 1.0
    (slope,) = gradients(total, [x])
    np.testing.assert_allclose(value_of(slope, x=np.zeros((4, 6))), expected, rtol=1e-12)
