"""The type check of a graph, run after every pass of the compiler."""

from __future__ import annotations

from lamina.errors import InternalError
from lamina.graph.tensor import Graph
from lamina.shapes import shape_text


def verify(graph: Graph) -> None:
    """Checks that every tensor has the shape and dtype that its op's shape rule gives.

    Raises:
        InternalError: naming the tensor, what it has and what the rule says.
    """
    names: set[str] = set()
    for node in graph.nodes():
        shape, dtype = node.op.infer(node.operands, node.attributes)
        if (shape, dtype) != (node.shape, node.dtype):
            raise InternalError(
                f"{node.op.name} has {shape_text(node.shape, node.dtype)}, "
                f"its shape rule gives {shape_text(shape, dtype)}",
                where=str(node.origin),
            )
        if node.op.name == "leaf":
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
