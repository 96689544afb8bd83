"""Fixing the batch: every open dimension becomes a number."""

from __future__ import annotations

from typing import Any, cast

from lamina.graph.tensor import Graph, Tensor, rebuild, rewrite
from lamina.shapes import Size, bind_dim


def bind_batch(graph: Graph, batch: int) -> Graph:
    """The graph for one batch size: shapes and attributes hold plain ints only."""

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        changed = {
            name: bound
            for name, value in node.attributes.items()
            if (bound := _bound(value, batch)) is not value
        }
        return rebuild(node, operands, **changed)

    return rewrite(graph, rule)


def _is_bound(graph: Graph) -> bool:
    return all(isinstance(dim, int) for node in graph.nodes() for dim in node.shape)


def _bound(value: Any, batch: int) -> Any:
    if isinstance(value, Size):
        return bind_dim(value, batch)
    if isinstance(value, Graph):
        return value if _is_bound(value) else bind_batch(value, batch)
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
        bound = tuple(_bound(item, batch) for item in items)
        return bound if any(a is not b for a, b in zip(bound, items, strict=True)) else items
    return value
