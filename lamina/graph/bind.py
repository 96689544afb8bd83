"""Fixing the batch: every open dimension becomes a number."""

from __future__ import annotations

from typing import Any, cast

from lamina.base.shapes import Size, bind_dim
from lamina.graph.apply import rebuild, rewrite
from lamina.graph.graph import Graph
from lamina.graph.tensor import Tensor


def bind_batch(graph: Graph, batch: int) -> Graph:
    """The graph for one batch size: shapes and attributes hold plain ints only."""
    return _Binding(batch).graph(graph)


class _Binding:
    """Binds graphs; a graph that several nodes share as an attribute is bound once."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._known: dict[int, Graph] = {}

    def graph(self, graph: Graph) -> Graph:
        if id(graph) not in self._known:
            self._known[id(graph)] = rewrite(graph, self._node)
        return self._known[id(graph)]

    def _node(self, node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        changed = {
            name: bound
            for name, value in node.attributes.items()
            if (bound := self._bound(value)) is not value
        }
        return rebuild(node, operands, **changed)

    def _bound(self, value: Any) -> Any:
        if isinstance(value, Size):
            return bind_dim(value, self._batch)
        if isinstance(value, Graph):
            return self.graph(value)
        if isinstance(value, tuple):
            items = cast(tuple[Any, ...], value)
            bound = tuple(self._bound(item) for item in items)
            return bound if any(a is not b for a, b in zip(bound, items, strict=True)) else items
        return value
