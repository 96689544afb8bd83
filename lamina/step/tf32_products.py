"""Products of float32 in TF32: how users ask for it, and the pass over the graph.

Devices with tensor cores for TF32 multiply numbers of 11 bits of precision exactly, and add up the
products in float32. `with_tf32_products` rounds the operands of all products, forwards and
backwards. A contraction reads a rounded operand through its view, so no rounded tensor is stored.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, final

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import float32
from lamina.checks.kinds import Kind, Misfit, Operands
from lamina.graph import Graph, Tensor, rebuild, rewrite
from lamina.ops.convolution_layouts import Axes
from lamina.ops.lowering_rules import Repeating
from lamina.step.rounding import PRODUCTS

# The precisions of products of float32.
FLOAT32, TF32 = "float32", "tf32"


@final
@frozen_dataclass
class ProductPrecision(Kind):
    """The precision of products of float32: `"float32"` or `"tf32"`."""

    def read(self, value: Any, operands: Operands = ()) -> str:
        if isinstance(value, str) and value in (FLOAT32, TF32):
            return value
        words = f"{FLOAT32!r} or {TF32!r}"
        raise Misfit(words, words, advice=_advice(value))


def _advice(value: object) -> str:
    """How to write a precision of products that is written otherwise elsewhere."""
    from lamina.foreign import spelling  # only errors need it

    text = str(getattr(value, "__name__", value)).rpartition(".")[2]
    ours = spelling(["precision="], re.sub("[-_]", "", text).lower())
    return ours if ours.endswith(".") or not ours else f"Write {{name}}={ours!r}."


Products = Annotated[str, ProductPrecision()]


def with_tf32_products(graph: Graph) -> Graph:
    """The graph in which the operands of products of float32 are rounded to TF32.

    They are rounded where they are multiplied; other ops get them in float32. Depthwise
    convolutions are not rounded: no device multiplies these with tensor cores.
    """
    return _Products().rounded(graph)


@final
class _Products:
    """Rounds the operands of products, also in the iterations of recurrences."""

    def __init__(self) -> None:
        # Graphs of iterations and the rounded ones, by their identity. All results of a recurrence
        # share one.
        self._graphs: dict[int, tuple[Graph, Graph]] = {}

    def rounded(self, graph: Graph) -> Graph:
        """The graph with rounded operands."""
        return rewrite(graph, self._rule)

    def _rule(self, node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        if isinstance(node.op.lowering, Repeating):
            body: Graph = node.attributes["body"]
            if id(body) not in self._graphs:
                self._graphs[id(body)] = body, self.rounded(body)
            return rebuild(node, operands, body=self._graphs[id(body)][1])
        if node.op.name not in PRODUCTS or node.dtype != float32 or _is_depthwise(node):
            return rebuild(node, operands)
        if node.op.name in ("attention", "attention_gradient"):
            # Its products are inside.
            return rebuild(node, operands, tf32=True)
        return rebuild(node, tuple(map(ops.round_to_tf32, operands)))


def _is_depthwise(node: Tensor) -> bool:
    if node.op.name in ("conv", "conv_transpose"):
        return Axes(node.operands[1].shape, node.attributes).is_depthwise
    if node.op.name == "conv_weight_gradient":
        return Axes(node.shape, node.attributes).is_depthwise
    return False
