"""Compositions of ops, lowered on an engine that computes point by point, against the references.

The conformance tests compare the lowering of each op.
"""

from collections.abc import Callable

import numpy as np
import pytest
from harness import run_program

from lamina import ops
from lamina.base.shapes import float32, int64
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.graph import OPS, Graph, Tensor, apply, evaluate, leaf
from lamina.program.program import Program

pytestmark = pytest.mark.each_case

X = np.arange(24, dtype=np.float32).reshape(4, 6) + 1
INDICES = np.array([[3, 0], [2, 2]])

COMPOSED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pad of a function": lambda x, i: ops.pad(ops.exp(x * 0.1), [(1, 2), (0, 3)]),
    "pad of a pad": lambda x, i: ops.pad(ops.pad(x, [(1, 0), (2, 1)]), [(0, 2), 1]),
    "pad of a filled pad": lambda x, i: ops.pad(ops.pad(x, [(1, 0), (2, 1)], 5.0), [(0, 2), 1]),
    "slice of a pad": lambda x, i: ops.pad(x, [2, 2], 7.0)[1:-1:2, ::3],
    "pad of a concat": lambda x, i: ops.pad(ops.concat([x, x * 2, x[:1]], 0), [1, 1]),
    "concat of pads": lambda x, i: ops.concat([ops.pad(x, [1, 0]), ops.exp(x)], 0),
    "concat of a reshape": lambda x, i: ops.concat([ops.reshape(x, (6, 4)), x[:, :4]], 0)[::-1],
    "pad of a reshape": lambda x, i: ops.pad(ops.reshape(ops.transpose(x), (3, 8)), [1, 1]),
    "reshape of a pad": lambda x, i: ops.reshape(ops.pad(x, [(1, 1), (0, 2)]), (-1, 3)),
    "pad of a take": lambda x, i: ops.pad(ops.take(x, i, 0), [1, 0, (2, 0)]),
    "take of a pad": lambda x, i: ops.take(ops.pad(x, [1, 1]), i, 1),
    "take by a range": lambda x, i: ops.take(x, ops.arange(3) + 1, 0),
    "pad of a one_hot": lambda x, i: ops.pad(ops.one_hot(i, 4), [1, 1, 1], 2.0),
    "pad of random numbers": lambda x, i: ops.pad(ops.uniform((3, 4), 1, 2, 3), [1, 1]),
    "flip of a broadcast": lambda x, i: ops.flip(ops.broadcast_to(x[:, :1], (2, 4, 3)), 1),
    "pad of a cast": lambda x, i: ops.pad(ops.cast(x, int64), [1, 1]),
    "pad with gaps of a slice": lambda x, i: gap(x[::2]),
}


def gap(x: Tensor) -> Tensor:
    return apply(OPS["pad"], x, low=(0, 1), high=(1, 0), interior=(1, 2), value=0.0)


FEEDS = {"x": X, "i": INDICES}


def graph_of(function: Callable[[Tensor, Tensor], Tensor]) -> Graph:
    x, i = leaf("x", "input", X.shape, float32), leaf("i", "input", INDICES.shape, int64)
    return Graph((x, i), (("y", function(x, i)),))


def compiled(graph: Graph) -> Program:
    return compile_graph(graph, batch=1, name="test", target=DEFAULT_TARGET)


@pytest.mark.parametrize("name", COMPOSED)
def test_composed_ops_equal_the_reference(name):
    graph = graph_of(COMPOSED[name])
    program = compiled(graph)
    found, _ = run_program(program, InterpreterEngine(poison=True), FEEDS)
    np.testing.assert_allclose(found["y"], evaluate(graph, FEEDS)[0]["y"], rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["pad of a pad", "pad of a reshape", "pad of a cast", "pad with gaps of a slice"]
)
def test_padding_with_zeros_is_a_view(name):
    assert "select" not in str(compiled(graph_of(COMPOSED[name])))


def test_a_take_by_a_range_is_a_view():
    program = compiled(graph_of(lambda x, i: ops.exp(ops.take(x, ops.arange(4), 0))))
    assert "x[6*i0 + i1]" in str(program)
