"""Ops that order, index, rearrange, factorise: along an open batch as NumPy, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, as_dtype
from lamina.errors import DefinitionError, DTypeError, LaminaError, ShapeError
from lamina.graph import CONSTANT, Graph, leaf

pytestmark = pytest.mark.each_case

BATCH = 5
ALONG_THE_BATCH: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    "sort": (lambda x: ops.sort(x, 0), lambda x: np.sort(x, 0)),
    "argsort": (lambda x: ops.argsort(x, 0), lambda x: np.argsort(x, 0, kind="stable")),
    "top_k": (lambda x: ops.top_k(x, 2, 0)[0], lambda x: -np.sort(-x, 0)[:2]),
    "roll": (lambda x: ops.roll(x, 2, 0), lambda x: np.roll(x, 2, 0)),
    "roll backwards": (lambda x: ops.roll(x, -2, 0), lambda x: np.roll(x, -2, 0)),
    "roll as a row": (lambda x: ops.roll(x, 2), lambda x: np.roll(x, 2)),
    "rot90": (lambda x: ops.rot90(x), np.rot90),
    "tile": (lambda x: ops.tile(x, (2, 1, 2)), lambda x: np.tile(x, (2, 1, 2))),
    "repeat": (lambda x: ops.repeat(x, 2, 0), lambda x: np.repeat(x, 2, 0)),
    "tril": (lambda x: ops.tril(ops.moveaxis(x, 0, 2)), lambda x: np.tril(np.moveaxis(x, 0, 2))),
    "an array": (lambda x: x[[0, 2, 2]], lambda x: x[[0, 2, 2]]),
    "two arrays": (lambda x: x[[0, 2], [1, -1]], lambda x: x[[0, 2], [1, -1]]),
    "a row for each": (
        lambda x: x[ops.arange(x.shape[0]), :, ops.cast(x[:, 0, 0] > 0, "int32")],
        lambda x: x[np.arange(len(x)), :, (x[:, 0, 0] > 0).astype(int)],
    ),
    "scatter": (
        lambda x: ops.scatter(x, np.array([[[3, 1]], [[1, 1]]]), 9.0, 0),
        lambda x: np.where(
            (np.arange(BATCH)[:, None, None] == [3, 1, -1, -1]) & (np.arange(3)[:, None] == 0)
            | ((np.arange(BATCH)[:, None, None] == 1) & (np.indices((3, 4)) == 0).all(0)),
            9,
            x,
        ),
    ),
    "pad that crops": (
        lambda x: ops.pad(x, [(1, -2), 0, 0]),
        lambda x: np.concatenate([0 * x[:1], x[:-2]]),
    ),
    "einsum": (lambda x: ops.einsum("b...,b...", x, x), lambda x: np.einsum("b...,b...", x, x)),
    "det": (lambda x: ops.det(x[:, :, :3]), lambda x: np.linalg.det(x[:, :, :3])),
    "solve": (lambda x: ops.solve(np.eye(3, dtype="f4") * 2, x), lambda x: x / 2),
    "diagonal": (lambda x: ops.diagonal(x, 1), lambda x: np.diagonal(x, 1, -2, -1)),
    "norm": (lambda x: ops.norm(x, 2, (0, 1)), lambda x: np.sqrt((x * x).sum((0, 1)))),
}


@pytest.mark.parametrize("name", ALONG_THE_BATCH)
def test_a_function_of_an_open_batch_equals_numpy(name: str) -> None:
    ours, theirs = ALONG_THE_BATCH[name]
    x = lm.Input(3, 4)
    value = np.random.default_rng(0).normal(size=(BATCH, 3, 4)).astype(np.float32)
    (found,) = lm.compile([x], [ours(x)])(value)
    expected = theirs(value)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


def test_constants_are_as_in_numpy() -> None:
    for ours, theirs in (
        (ops.eye(2, 3), np.eye(2, 3)),
        (ops.eye(3, dtype="bool"), np.eye(3, dtype=bool)),
        (ops.linspace(0.5, 2.0, 4), np.linspace(0.5, 2.0, 4)),
    ):
        (found,) = lm.compile([], [ours])()
        np.testing.assert_array_equal(found, theirs)


def test_an_einsum_of_several_tensors_takes_the_cheapest_order() -> None:
    shapes = [(100, 2), (2, 100), (100, 3)]
    x = [leaf(f"x{n}", "input", shape, as_dtype("float32")) for n, shape in enumerate(shapes)]
    (first, _) = [
        node.attributes["spec"]
        for node in Graph(tuple(x), (("y", ops.einsum("ij,jk,kl->il", *x)),)).nodes()
        if node.op.name == "einsum"
    ]
    assert first == "jk,kl->jl"


def test_a_scatter_at_known_indices_sorts_nothing() -> None:
    x = lm.Input(3)
    graph = Graph((x,), (("y", ops.scatter(x, [[0, 0]], [[1.0, 2.0]], 1)),))
    assert all(node.op.name != "order" for node in graph.nodes())
    assert any(node.op is CONSTANT for node in graph.nodes())


def x(*shape: int, dtype: str = "float32") -> Any:
    return leaf("x", "input", shape, as_dtype(dtype))


REFUSED: list[tuple[Callable[[], Any], type[LaminaError], str]] = [
    (lambda: ops.top_k(x(2, 3), 4), ShapeError, "top_k: axis 1 has fewer than 4 elements"),
    (lambda: ops.median(lm.Input(3), 0), ShapeError, "median: axis 0 needs a fixed extent"),
    (lambda: ops.gather(x(2, 3), x(3, 1, dtype="int64"), 1), ShapeError, "gather: the indices do"),
    (lambda: ops.gather(x(2, 3), [[3], [0]], 1), ShapeError, "index 3 is out of range"),
    (lambda: ops.scatter(x(2, 3), [[3]], 1.0, 1), ShapeError, "index 3 is out of range"),
    (lambda: ops.scatter(x(2, 3), [[1]], x(2), 1), ShapeError, "there is not a value for each"),
    (lambda: ops.scatter(x(3), [1], 1.0, 0, "max"), DefinitionError, "one of 'set', 'add'"),
    (lambda: ops.scatter(x(3), [0.5], 1.0, 0), DTypeError, "indices must be integers"),
    (lambda: ops.roll(x(2, 3), (1, 2, 3), (0, 1)), DefinitionError, "one for each of 2"),
    (lambda: ops.rot90(x(2, 3), 1, (0, 0)), ShapeError, "rot90: two different axes are needed"),
    (lambda: ops.moveaxis(x(2, 3), (0, 1), 0), ShapeError, "moveaxis: the axes do not fit"),
    (lambda: ops.repeat(x(2, 3), [1], 1), ShapeError, "a count for each element along axis 1"),
    (lambda: ops.meshgrid([x(2, 3)]), ShapeError, "meshgrid: each tensor needs one axis"),
    (lambda: ops.tril(x(3)), ShapeError, "a matrix needs two axes"),
    (lambda: ops.diagonal(lm.Input(3), 0, (0, 1)), ShapeError, "an axis depends on the batch"),
    (lambda: ops.diag_embed(ops.transpose(lm.Input(3))), ShapeError, "diag_embed: the last axis"),
    (lambda: ops.cdist(x(2, 3), x(2, 4)), ShapeError, "cdist: the vectors do not fit together"),
    (lambda: ops.cross(x(2, 4), x(2, 4)), ShapeError, "cross: axis 1 does not have extent 3"),
    (lambda: ops.cholesky(x(2, 3)), ShapeError, "cholesky: the last two axes must be a square"),
    (lambda: ops.inverse(x(2, 3)), ShapeError, "inverse: the last two axes must be a square"),
    (lambda: ops.det(x(3)), ShapeError, "det: the last two axes must be a square matrix"),
    (lambda: ops.solve(x(2, 2), x(3, 1)), ShapeError, "solve: the matrix and the right side do"),
    (lambda: ops.solve(x(2), x(2)), ShapeError, "a matrix needs two axes"),
    (lambda: ops.solve_triangular(x(2, 3), x(2, 1)), ShapeError, "must be a square matrix"),
    (lambda: ops.einsum("ij,jk", x(2, 3)), ShapeError, "2 operands are named and 1 given"),
    (lambda: ops.einsum("ij->k", x(2, 3)), ShapeError, "the result has a letter that no"),
    (lambda: ops.einsum("ijk", x(2, 3)), ShapeError, "the number of letters of an operand"),
    (
        lambda: ops.einsum("ii", x(2, 3)),
        ShapeError,
        "two axes that must be equal differ, 2 against",
    ),
    (lambda: ops.unfold(x(2, 3), ops.Window(2)), ShapeError, "a window for each axis after"),
    (lambda: ops.fold(x(1, 5, 2), ops.Window(2), 3), ShapeError, "expected  [batch, channels * 2"),
    (lambda: ops.grid_sample(x(1, 2, 3, 3), x(1, 2, 2)), ShapeError, "images and the grid do not"),
    (
        lambda: ops.grid_sample(x(1, 2, 3), x(1, 4, 1), "bicubic"),
        ShapeError,
        "takes no other number of axes",
    ),
    (lambda: ops.affine_grid(x(2, 2, 2), 3), ShapeError, "must be [batch, axes, axes + 1]"),
    (lambda: ops.top_k(x(3), k=2), DefinitionError, "Here it is called count."),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_errors_state_what_does_not_fit(number: int) -> None:
    call, kind, text = REFUSED[number]
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)
    assert "test_ops_structure.py" in str(caught.value)
