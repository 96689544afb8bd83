"""Functions of ops against PyTorch, in float64: values, gradients and second derivatives."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from structure_cases import CASES

from lamina import ops
from lamina.base.shapes import Array, as_dtype
from lamina.graph import Graph, Tensor, evaluate, leaf
from lamina.ops.differentiate import gradients


def computed(leaves: Sequence[Tensor], arrays: Sequence[Array], outputs: list[Tensor]) -> Any:
    graph = Graph(tuple(leaves), tuple((str(n), y) for n, y in enumerate(outputs)))
    feeds = {x.attributes["name"]: array for x, array in zip(leaves, arrays, strict=True)}
    with np.errstate(all="ignore"):
        found = evaluate(graph, feeds)[0]
    return [found[str(n)] for n in range(len(outputs))]


def agree(ours: Sequence[Array], theirs: Sequence[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        # None: no dependence.
        expected = np.zeros_like(one) if other is None else other.detach().numpy()
        np.testing.assert_allclose(one, expected, 1e-9, 1e-9)


@pytest.mark.parametrize(
    "case",
    [case for kind in CASES.values() for case in kind if case.theirs is not None],
    ids=lambda case: case.name,
)
def test_a_function_and_its_derivatives_are_those_of_pytorch(case, torch):
    assert case.theirs is not None
    arrays = case.arrays()
    leaves = [
        leaf(f"x{n}", "input", array.shape, as_dtype("float64")) for n, array in enumerate(arrays)
    ]
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    ours, theirs = case.ours(*leaves), case.theirs(torch, *tensors)
    # A sine makes second derivatives of linear functions differ from zero.
    first = list(gradients(ops.sum(ops.sin(ours)), leaves))
    options: dict[str, Any] = {"create_graph": True, "allow_unused": True}
    expected = torch.autograd.grad(theirs.sin().sum(), tensors, **options)
    agree(computed(leaves, arrays, [ours, *first]), [theirs, *expected])
    used = [g for g in expected if g is not None and g.requires_grad]
    if not case.second or not used:
        return
    second = gradients(sum(ops.sum(ops.sin(g)) for g in first), leaves)
    total = sum(g.sin().sum() for g in used)
    agree(computed(leaves, arrays, list(second)), torch.autograd.grad(total, tensors, **options))


@pytest.mark.parametrize("descending", [False, True])
def test_the_order_of_nan_and_of_equal_elements_is_that_of_pytorch(descending, torch):
    array = np.array([1, np.nan, 0, -0.0, np.inf, -np.inf, 1, 0, np.nan, -2.0])
    x = leaf("x0", "input", array.shape, as_dtype("float64"))
    results = [ops.sort(x, 0, descending), ops.argsort(x, 0, descending), ops.median(x, 0)]
    tensor = torch.tensor(array)
    expected = [*torch.sort(tensor, stable=True, descending=descending), torch.median(tensor)]
    for result, reference in zip(computed([x], [array], results), expected, strict=True):
        np.testing.assert_array_equal(result, reference.numpy())
