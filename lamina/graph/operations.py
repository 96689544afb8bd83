"""Operations on graphs: the batch is bound, types are checked, values computed, text printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from lamina.base.shapes import Array, DType, Size, as_dtype, bind_dim, converted, shape_text
from lamina.errors import InternalError
from lamina.graph.apply import rebuild, rewrite
from lamina.graph.graph import Graph
from lamina.graph.leaves import CONSTANT, LEAF
from lamina.graph.tensor import Tensor


def bind_batch(graph: Graph, batch: int) -> Graph:
    """The graph for one batch size: shapes and attributes hold plain ints only."""
    return _Binding(batch).graph(graph)


class _Binding:
    """Binds graphs; a graph that several nodes share as an attribute is bound once."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._bound_graphs: dict[int, Graph] = {}

    def graph(self, graph: Graph) -> Graph:
        if id(graph) not in self._bound_graphs:
            self._bound_graphs[id(graph)] = rewrite(graph, self._node)
        return self._bound_graphs[id(graph)]

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


def verify(graph: Graph, before: Graph | None = None) -> None:
    """Checks that every tensor has the shape and dtype that its op's shape rule gives.

    It runs after every pass of the compiler. Tensors of the graph `before` are not checked again.

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


def evaluate(graph: Graph, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """The NumPy oracle: computes a bound graph op by op, by the references of the ops.

    `feeds` has the value of every leaf, by its name. Returns the outputs by name, and the new
    values of updated leaves by name.
    """
    values: dict[Tensor, Array] = {}
    with np.errstate(all="ignore"):
        for node in graph.nodes():
            if node.op is LEAF:
                value = np.asarray(feeds[node.attributes["name"]])
            else:
                operands = [values[operand] for operand in node.operands]
                if not node.op.lowering.takes_halves:
                    # References compute with floats of 16 bits in 32.
                    operands = [
                        x.astype(np.float32) if as_dtype(x.dtype).is_half else x for x in operands
                    ]
                value = node.op.reference(*operands, **node.attributes)
            values[node] = converted(np.asarray(value), node.dtype.numpy)
    outputs = {name: values[tensor] for name, tensor in graph.outputs}
    updates = {target.attributes["name"]: values[value] for target, value in graph.updates}
    return outputs, updates


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
