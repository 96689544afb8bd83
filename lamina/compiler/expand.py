"""Replaces ops that decompose into a graph of other ops by that graph."""

from __future__ import annotations

from typing import final

from lamina.graph import Graph, Tensor, rebuild, rewrite
from lamina.ops.lowering_rules import Decomposition


def expand(graph: Graph) -> Graph:
    """The graph without decomposable ops, applied recursively to the replacements."""
    return rewrite(graph, _Expansion().rule)


@final
class _Expansion:
    """Expands tensors.

    It is a class, because nested functions that call each other form reference cycles.
    """

    def __init__(self) -> None:
        self._expanded_tensors: dict[Tensor, Tensor] = {}

    def rule(self, node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        for operand in operands:
            self._expanded_tensors.setdefault(operand, operand)
        return self._replaced(node, operands)

    def _replaced(self, node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        node = rebuild(node, operands)
        lowering = node.op.lowering
        if isinstance(lowering, Decomposition):
            return self._expanded(lowering.build(node))
        return node

    def _expanded(self, node: Tensor) -> Tensor:
        done = self._expanded_tensors
        # The original node's operands are expanded already. They are recognised by identity.
        if node not in done:
            operands = tuple(self._expanded(operand) for operand in node.operands)
            done[node] = node
            done[node] = self._replaced(node, operands)
        return done[node]
