"""The NumPy oracle: a graph computed op by op, by the references of the ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lamina.base.shapes import Array, as_dtype, converted
from lamina.graph.graph import Graph
from lamina.graph.leaves import LEAF
from lamina.graph.tensor import Tensor


def evaluate(graph: Graph, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Computes a bound graph.

    Args:
        graph: a graph without open dimensions.
        feeds: the value of every leaf, by its name.

    Returns:
        The outputs by name, and the new values of updated leaves by name.
    """
    values: dict[Tensor, Array] = {}
    with np.errstate(all="ignore"):
        for node in graph.nodes():
            if node.op is LEAF:
                value = np.asarray(feeds[node.attributes["name"]])
            else:
                value = _computed(node, [values[operand] for operand in node.operands])
            values[node] = converted(np.asarray(value), node.dtype.numpy)
    outputs = {name: values[tensor] for name, tensor in graph.outputs}
    updates = {target.attributes["name"]: values[value] for target, value in graph.updates}
    return outputs, updates


def _computed(node: Tensor, operands: Sequence[Array]) -> Array:
    """The value of a node by its op's reference, which computes with floats of 16 bits in 32."""
    attributes = node.attributes
    if not node.op.lowering.takes_halves:
        operands = [x.astype(np.float32) if as_dtype(x.dtype).is_half else x for x in operands]
    return node.op.reference(*operands, **attributes)
