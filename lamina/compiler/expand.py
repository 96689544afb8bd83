"""Replaces ops by graphs of other ops: those that decompose, and those that compute in float32."""

from __future__ import annotations

from typing import final

from lamina import ops
from lamina.graph import Graph, Tensor, rebuild, rewrite
from lamina.ops.conversion import applied_in_float32, computes_in_float32
from lamina.ops.lowering_rules import Decomposition


def widen(graph: Graph) -> Graph:
    """The graph in which each op has its operands cast to float32, and rounds its result once.

    Programs store, load, move and convert floats of 16 bits; they compute in float32.
    """

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        node = rebuild(node, operands)
        return ops.cast(applied_in_float32(node), node.dtype) if computes_in_float32(node) else node

    return rewrite(graph, rule)


def expand(graph: Graph, *, chains: bool = False) -> Graph:
    """The graph without decomposable ops, applied recursively to the replacements.

    `chains`: whether the target has chains.
    """
    return rewrite(graph, _Expansion(chains).rule)


@final
class _Expansion:
    """Expands tensors; a class, as nested functions that call each other form reference cycles."""

    def __init__(self, chains: bool) -> None:
        self._chains = chains
        self._done: dict[Tensor, Tensor] = {}

    def rule(self, node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        for operand in operands:
            self._done.setdefault(operand, operand)
        node = rebuild(node, operands)
        lowering = node.op.lowering
        if not isinstance(lowering, Decomposition):
            return node
        build = (self._chains and lowering.chained) or lowering.build
        return self._expanded(build(node))

    def _expanded(self, node: Tensor) -> Tensor:
        # The original node's operands are expanded already. They are recognised by identity.
        if node not in self._done:
            operands = tuple(self._expanded(operand) for operand in node.operands)
            self._done[node] = node
            self._done[node] = self.rule(node, operands)
        return self._done[node]
