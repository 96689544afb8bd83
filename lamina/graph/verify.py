"""The type check of a graph, run after every pass of the compiler."""

from __future__ import annotations

from lamina.base.shapes import shape_text
from lamina.errors import InternalError
from lamina.graph.graph import Graph
from lamina.graph.leaves import LEAF


def verify(graph: Graph, before: Graph | None = None) -> None:
    """Checks that every tensor has the shape and dtype that its op's shape rule gives.

    Args:
        graph: the graph to check.
        before: a graph that was checked; its tensors are not checked again.

    Raises:
        InternalError: names the tensor, its shape and dtype, and the rule's shape and dtype.
    """
    checked = frozenset(before.nodes() if before is not None else ())
    names: set[str] = set()
    for node in graph.nodes():
        if node not in checked:
            shape, dtype = node.op.infer(node.operands, node.attributes)
            if dtype != node.dtype or shape != node.shape:
                raise InternalError(
                    f"{node.op.name} has {shape_text(node.shape, node.dtype)}, "
                    f"its shape rule gives {shape_text(shape, dtype)}",
                    where=str(node.origin),
                )
        if node.op is LEAF:
            name = node.attributes["name"]
            if name in names:
                raise InternalError(f"two leaves are named {name}")
            names.add(name)
    for target, value in graph.updates:
        if (target.shape, target.dtype) != (value.shape, value.dtype):
            raise InternalError(
                f"{target.attributes['name']} {shape_text(target.shape, target.dtype)} is updated "
                f"with {shape_text(value.shape, value.dtype)}"
            )
