"""Indices in data: refused before anything is computed if they are out of range.

A program clamps indices, so that it never accesses memory outside its buffers. But with clamped
indices it would train on other data without notice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.data.conversion import are_indices
from lamina.errors import DataError
from lamina.graph import LEAF, Graph, Tensor, bind_batch, evaluate, topological
from lamina.layers.scope import IndexLimit
from lamina.ops.conversion import CAST
from lamina.ops.lowering_rules import Movement


@frozen_dataclass
class IndexCheck:
    """The expected range of indices that are elements of an input, which is a leaf of a graph."""

    limit: IndexLimit
    source: Tensor
    number: int
    label: str

    def values(self, arrays: Sequence[Array]) -> Array:
        """The indices, from the arrays of the inputs, or of the targets."""
        array = arrays[self.number]
        if self.limit.indices is self.source or not len(array):
            return array
        graph = Graph((self.source,), (("indices", self.limit.indices),))
        feeds = {self.source.attributes["name"]: array}
        return evaluate(bind_batch(graph, len(array)), feeds)[0]["indices"]


def index_checks(
    limits: Sequence[IndexLimit], labels: Sequence[str], kind: str = "input"
) -> tuple[IndexCheck, ...]:
    """The limits of indices that are elements of an input, rather than computed.

    Slices, reshapes and casts of an input are its elements too.
    """
    checks: list[IndexCheck] = []
    for limit in limits:
        source, *applied = topological([limit.indices])
        is_input = source.op is LEAF and source.attributes["role"] == "input"
        elements = is_input and source.attributes["name"].startswith(kind)
        for node in applied:
            moved = isinstance(node.op.lowering, Movement) or node.op is CAST
            elements = elements and moved and len(node.operands) == 1
        if elements:
            number = int(source.attributes["name"].removeprefix(kind))
            checks.append(IndexCheck(limit, source, number, labels[number]))
    return tuple(checks)


def check_indices(checks: Sequence[IndexCheck], arrays: Sequence[Array]) -> None:
    """Raises DataError, naming the layer, for the first index that is out of range."""
    for check in checks:
        values, count = check.values(arrays), check.limit.count
        if are_indices(values, count):
            continue
        index = tuple(np.argwhere((values < 0) | (values >= count))[0])
        largest = int(values.max())
        numbering = "and give unknown values a number of their own."
        if largest >= count:
            numbering = f"or make it for {largest + 1}."
        index_text = f"{values[index]} at example {int(index[0])} of {check.label}"
        raise DataError(
            f"{check.limit.what} out of range",
            facts=(("expected", f"0..{count - 1}"), ("found", index_text)),
            where=str(check.limit.origin),
            advice=check.limit.advice
            or f"The layer was made for {count}: number them from 0, {numbering}",
        )
