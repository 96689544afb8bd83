"""Ops on tensors without elements, on the engine under test: results and gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lamina import ops
from lamina.graph import Graph, Tensor, evaluate
from lamina.ops.differentiate import gradients

# The function, the shapes of its operands, and the result.
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], Any]] = {
    "sum": (lambda x: ops.sum(x, 0), [(0, 3)], np.zeros(3)),
    "mean": (lambda x: ops.mean(x, 0), [(0, 3)], np.full(3, np.nan)),
    "prod": (lambda x: ops.prod(x), [(0, 3)], np.ones(())),
    "any": (lambda x: ops.cast(ops.any(x, 0), "float32"), [(0, 3)], np.zeros(3)),
    "all": (lambda x: ops.cast(ops.all(x, 0, True), "float32"), [(0, 3)], np.ones((1, 3))),
    "logsumexp": (lambda x: ops.logsumexp(x, 0), [(0, 3)], np.full(3, -np.inf)),
    "max along another axis": (lambda x: ops.max(x, 1), [(0, 3)], np.zeros(0)),
    "softmax": (lambda x: ops.softmax(x, 0), [(0, 3)], np.zeros((0, 3))),
    "log_softmax": (lambda x: ops.log_softmax(x, 0), [(0, 3)], np.zeros((0, 3))),
    "norm": (lambda x: ops.norm(x, 2, 0), [(0, 3)], np.zeros(3)),
    "sort": (lambda x: ops.sort(x, 0), [(0, 3)], np.zeros((0, 3))),
    "top_k": (lambda x: ops.top_k(x, 0)[0], [(2, 3)], np.zeros((2, 0))),
    "concat": (lambda x, y: ops.concat([x, y], 0), [(0, 3), (2, 3)], np.ones((2, 3))),
    "split": (lambda x: ops.split(x, 2, 0)[1], [(0, 3)], np.zeros((0, 3))),
    "roll": (lambda x: ops.roll(x, 1, 0), [(0, 3)], np.zeros((0, 3))),
    "tile": (lambda x: ops.tile(x, (2, 0)), [(2, 3)], np.zeros((4, 0))),
    "pad": (lambda x: ops.pad(x, [1, 0], 2.0), [(0, 3)], np.full((2, 3), 2.0)),
    "pad that crops all": (lambda x: ops.pad(x, [(-1, -1), 0]), [(2, 3)], np.zeros((0, 3))),
    "getitem": (lambda x: x[:, []], [(2, 3)], np.zeros((2, 0))),
    "gather": (lambda x: ops.gather(x, np.zeros((2, 0), int), 1), [(2, 3)], np.zeros((2, 0))),
    "scatter": (
        lambda x, v: ops.scatter(x, np.zeros((2, 0), int), v, 1),
        [(2, 3), (2, 0)],
        np.ones((2, 3)),
    ),
    "matmul": (ops.matmul, [(2, 0), (0, 3)], np.zeros((2, 3))),
    "einsum": (
        lambda *x: ops.einsum("ab,bc,cd->ad", *x),
        [(2, 0), (0, 3), (3, 2)],
        np.zeros((2, 2)),
    ),
    "diagonal": (ops.diagonal, [(2, 0)], np.zeros(0)),
    "cholesky": (ops.cholesky, [(0, 0)], np.zeros((0, 0))),
    "solve": (ops.solve, [(0, 0), (0, 2)], np.zeros((0, 2))),
    "solve for no columns": (ops.solve, [(2, 2), (2, 0)], np.zeros((2, 0))),
    "solve_triangular": (ops.solve_triangular, [(0, 0), (0, 1)], np.zeros((0, 1))),
    "det": (ops.det, [(0, 0)], np.ones(())),
    "det of no matrices": (ops.det, [(0, 2, 2)], np.zeros(0)),
    "unfold": (lambda x: ops.unfold(x, ops.Window(2)), [(0, 2, 3)], np.zeros((0, 4, 2))),
    "grid_sample": (ops.grid_sample, [(1, 2, 3, 3), (1, 0, 2, 2)], np.zeros((1, 2, 0, 2))),
}


def test_without_elements(check_cases):
    def build(name, leaves):
        function, shapes, expected = CASES[name]
        first = len(leaves.tensors)
        operands = [leaves.add(np.ones(shape, np.float32)) for shape in shapes]
        result: Tensor = function(*operands)
        assert result.shape == expected.shape
        graph = Graph(tuple(leaves.tensors[first:]), (("result", result),))
        outputs, _ = evaluate(graph, leaves.feeds)
        np.testing.assert_array_equal(outputs["result"], expected.astype("float32"))
        if name in ("any", "all"):
            return [result]
        return [result, *gradients(ops.sum(result), operands)]

    with np.errstate(all="ignore"):
        check_cases(CASES, build)
