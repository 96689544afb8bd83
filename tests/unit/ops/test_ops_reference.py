"""Every op's reference, shape rule and gradient, from the samples in its record."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from harness import DIFFERENTIABLE, values_of
from samples_of_ops import for_each_op

from lamina import ops
from lamina.base.shapes import Array, as_dtype, float64
from lamina.graph import Graph, Tensor, apply, constant, evaluate, leaf, verify
from lamina.ops.differentiate import gradients

pytestmark = pytest.mark.each_case

# Second derivatives exist at every point but few, and are checked where they are not all zero.
SMOOTH = [
    case
    for case in DIFFERENTIABLE
    if case.values[0].name not in ("abs", "relu", "clip", "maximum", "minimum", "max", "min")
]


def leaves_of(arrays: list[Array]) -> list[Tensor]:
    return [
        leaf(f"x{number}", "input", array.shape, as_dtype(array.dtype))
        for number, array in enumerate(arrays)
    ]


def value_of(tensor: Tensor, leaves: list[Tensor], arrays: list[Array]) -> Array:
    graph = Graph(tuple(leaves), (("y", tensor),))
    verify(graph)
    return evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)})[0]["y"]


def check_gradient(tensor: Tensor, leaves: list[Tensor], arrays: list[Array]) -> None:
    """Compares with central differences in a random direction for each operand."""
    generator = np.random.default_rng(1)
    weights = leaf("weights", "input", tensor.shape, tensor.dtype)
    weight_values = generator.uniform(0.5, 1.5, value_of(tensor, leaves, arrays).shape)
    floats = [i for i, x in enumerate(leaves) if x.dtype.is_float]
    derivatives = gradients(tensor, [leaves[i] for i in floats], weights)
    slopes = {f"g{i}": gradient for i, gradient in zip(floats, derivatives, strict=True)}
    graph = Graph((*leaves, weights), (("y", tensor), *slopes.items()))
    verify(graph)
    feeds = {f"x{i}": array for i, array in enumerate(arrays)} | {"weights": weight_values}
    values, _ = evaluate(graph, feeds)
    for i, gradient in zip(floats, derivatives, strict=True):
        assert (gradient.shape, gradient.dtype) == (leaves[i].shape, leaves[i].dtype)
        direction = generator.uniform(-1, 1, arrays[i].shape)
        step = 1e-6
        moved = [
            np.sum(
                value_of(tensor, leaves, [*arrays[:i], arrays[i] + s * direction, *arrays[i + 1 :]])
                * weight_values
            )
            for s in (step, -step)
        ]
        change = values[f"g{i}"] * direction
        scale = max(1.0, float(np.abs(change).sum()))
        expected = (moved[0] - moved[1]) / (2 * step)
        assert change.sum() == pytest.approx(expected, abs=2e-7 * scale, rel=1e-5)


@for_each_op(DIFFERENTIABLE)
def test_gradient_agrees_with_finite_differences(op, sample):
    arrays = values_of(sample, float64)
    leaves = leaves_of(arrays)
    check_gradient(apply(op, *leaves, **sample.attributes), leaves, arrays)


@for_each_op(DIFFERENTIABLE)
def test_gradients_of_constants_are_those_of_inputs(op, sample):
    arrays = values_of(sample, float64)
    leaves = leaves_of(arrays)
    constants = [
        constant(array) if x.dtype.is_float else x for x, array in zip(leaves, arrays, strict=True)
    ]
    results: list[list[Array]] = []
    for operands in (leaves, constants):
        floats = [x for x in operands if x.dtype.is_float]
        flows = gradients(apply(op, *operands, **sample.attributes), floats)
        results.append([value_of(flow, leaves, arrays) for flow in flows])
    for from_inputs, from_constants in zip(*results, strict=True):
        np.testing.assert_array_equal(from_inputs, from_constants)


@for_each_op(SMOOTH, sampled=("attention_gradient",))
def test_gradient_of_the_gradient_agrees_with_finite_differences(op, sample):
    arrays = values_of(sample, float64)
    leaves = leaves_of(arrays)
    result = apply(op, *leaves, **sample.attributes)
    floats = [x for x in leaves if x.dtype.is_float]
    # A square makes second derivatives of linear ops differ from zero.
    for first in gradients(result * result, floats):
        check_gradient(first, leaves, arrays)


def test_every_op_has_samples():
    assert all(len(op.samples) >= 2 for op in ops.ALL)


def test_names_are_unique():
    assert len({op.name for op in ops.ALL}) == len(ops.ALL)


PAGE = Path(__file__).parents[3] / "docs" / "ops.md"


def test_the_page_of_ops_lists_every_function_with_its_arguments():
    rows = re.findall(r"^\| `(\w+)\((.*?)\)` \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    shown = {name: re.findall(r"(\w+)(?:=[^,]+)?(?:, |$)", arguments) for name, arguments in rows}
    functions = {
        name: list(inspect.signature(value).parameters)
        for name, value in ((name, getattr(ops, name)) for name in dir(ops))
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert shown == functions
