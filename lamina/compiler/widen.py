"""Makes ops compute with floats of 16 bits in float32."""

from __future__ import annotations

from lamina import ops
from lamina.graph import Graph, Tensor, rebuild, rewrite
from lamina.ops.conversion import applied_in_float32, computes_in_float32


def widen(graph: Graph) -> Graph:
    """The graph in which each op has its operands cast to float32, and rounds its result once.

    Programs store, load, move and convert floats of 16 bits; they compute in float32.
    """

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        node = rebuild(node, operands)
        return ops.cast(applied_in_float32(node), node.dtype) if computes_in_float32(node) else node

    return rewrite(graph, rule)
