"""Ops that stand for a graph of other ops are replaced by that graph."""

from __future__ import annotations

from lamina.graph import Graph, Tensor, rebuild, rewrite
from lamina.ops.lowering import Decomposition


def expand(graph: Graph) -> Graph:
    """The graph without decomposable ops; what they decompose into is expanded in turn."""
    done: dict[Tensor, Tensor] = {}

    def replace(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        node = rebuild(node, operands)
        lowering = node.op.lowering
        return expanded(lowering.build(node)) if isinstance(lowering, Decomposition) else node

    def expanded(node: Tensor) -> Tensor:
        # Operands of the original node are expanded already and recognised by identity.
        if node not in done:
            operands = tuple(expanded(operand) for operand in node.operands)
            done[node] = node
            done[node] = replace(node, operands)
        return done[node]

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        for operand in operands:
            done.setdefault(operand, operand)
        return replace(node, operands)

    return rewrite(graph, rule)
