"""Graphs as text."""

from __future__ import annotations

from typing import Any, cast

from lamina.base.shapes import DType, shape_text
from lamina.graph.graph import Graph
from lamina.graph.leaves import CONSTANT, LEAF
from lamina.graph.tensor import Tensor


def show(graph: Graph) -> str:
    """A line for each tensor, `%3 = tanh(%2) : f32[batch, 4]  # 1:Tanh`, output and update."""
    names: dict[Tensor, str] = {}
    lines: list[str] = []
    for node in graph.nodes():
        if node.op is LEAF:
            names[node] = node.attributes["name"]
            text = f"{names[node]} = {node.attributes['role']}"
        else:
            names[node] = f"%{len(names)}"
            arguments = [names[operand] for operand in node.operands]
            if node.op is CONSTANT:
                arguments = [repr(node.attributes["value"])]
            else:
                arguments += [f"{k}={_text(v)}" for k, v in node.attributes.items()]
            text = f"{names[node]} = {node.op.name}({', '.join(arguments)})"
        path = f"  # {node.origin.path}" if node.origin.path else ""
        lines.append(f"{text} : {shape_text(node.shape, node.dtype)}{path}")
    lines += [f"return {name} = {names[tensor]}" for name, tensor in graph.outputs]
    lines += [f"update {names[target]} = {names[value]}" for target, value in graph.updates]
    return "\n".join(lines)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
        return f"({', '.join(_text(item) for item in items)})"
    return str(value) if isinstance(value, DType) else f"{value}"
