"""The NumPy oracle: a graph computed op by op, by the references of the ops."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lamina.graph.graph import Graph
from lamina.graph.leaves import LEAF
from lamina.graph.tensor import Tensor
from lamina.shapes import Array


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
                operands = (values[operand] for operand in node.operands)
                value = node.op.reference(*operands, **node.attributes)
            values[node] = np.asarray(value, dtype=node.dtype.numpy)
    outputs = {name: values[tensor] for name, tensor in graph.outputs}
    updates = {target.attributes["name"]: values[value] for target, value in graph.updates}
    return outputs, updates
