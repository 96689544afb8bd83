"""Ops that stand for a graph of other ops are replaced by that graph."""

from __future__ import annotations

from typing import final

from lamina.graph import Graph, Tensor, rebuild, rewrite
from lamina.ops.lowering_rules import Decomposition
from lamina.program.target import Target


def expand(graph: Graph, target: Target) -> Graph:
    """The graph without decomposable ops; what they decompose into is expanded in turn.

    Where an op can be computed in several ways, it becomes the one that suits the target.
    """
    return rewrite(graph, _Expansion(target).rule)


@final
class _Expansion:
    """Expands tensors; functions that call each other would only be freed by the collector."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._done: dict[Tensor, Tensor] = {}

    def rule(self, node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        for operand in operands:
            self._done.setdefault(operand, operand)
        return self._replaced(node, operands)

    def _replaced(self, node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        node = rebuild(node, operands)
        lowering = node.op.lowering
        if isinstance(lowering, Decomposition):
            return self._expanded(lowering.build(node, self._target))
        return node

    def _expanded(self, node: Tensor) -> Tensor:
        done = self._done
        # Operands of the original node are expanded already and recognised by identity.
        if node not in done:
            operands = tuple(self._expanded(operand) for operand in node.operands)
            done[node] = node
            done[node] = self._replaced(node, operands)
        return done[node]
