"""Makes ops compute with floats of 16 bits in float32."""

from __future__ import annotations

from lamina import ops
from lamina.graph import CONSTANT, LEAF, Graph, Tensor, apply, rebuild, rewrite
from lamina.ops.conversion import CAST
from lamina.shapes import float32


def widen(graph: Graph) -> Graph:
    """The graph in which each op has its operands cast to float32, and rounds its result once.

    Programs store, load, move and convert floats of 16 bits; they compute in float32.
    """
    return rewrite(graph, _widened)


def _widened(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
    node = rebuild(node, operands)
    takes_halves = node.op in (LEAF, CONSTANT, CAST) or node.op.lowering.takes_halves
    if takes_halves or not any(x.dtype.is_half for x in (node, *operands)):
        return node
    wide = [ops.cast(x, float32) if x.dtype.is_half else x for x in operands]
    attributes = dict(node.attributes)
    if node.dtype.is_half and "dtype" in attributes:
        attributes["dtype"] = float32
    return ops.cast(apply(node.op, *wide, **attributes), node.dtype)
