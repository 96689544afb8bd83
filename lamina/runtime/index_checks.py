"""Indices in data: refused before anything is computed where they are out of range.

A program brings such indices into range, so that it reaches nothing outside its buffers; that would
train a network on other data than was meant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.errors import DataError
from lamina.graph import LEAF, Graph, Tensor, bind_batch, evaluate, topological
from lamina.layers.scope import IndexLimit
from lamina.ops.conversion import CAST
from lamina.ops.lowering_rules import Movement
from lamina.records import frozen_dataclass
from lamina.runtime.arrays import are_indices
from lamina.shapes import Array


@frozen_dataclass
class IndexCheck:
    """A limit of indices that are the elements of an input, or some of them.

    Attributes:
        limit: what is expected.
        source: the input, as it stands in the graph.
        number: of the input among the network's.
    """

    limit: IndexLimit
    source: Tensor
    number: int

    def values(self, arrays: Sequence[Array]) -> Array:
        """The indices in arrays that are given to the network."""
        array = arrays[self.number]
        if self.limit.indices is self.source or not len(array):
            return array
        graph = Graph((self.source,), (("indices", self.limit.indices),))
        feeds = {self.source.attributes["name"]: array}
        return evaluate(bind_batch(graph, len(array)), feeds)[0]["indices"]


def index_checks(limits: Sequence[IndexLimit]) -> tuple[IndexCheck, ...]:
    """The limits of indices that come straight from the inputs, rather than being computed.

    Slices, reshapes and casts of an input still are its elements.
    """
    found: list[IndexCheck] = []
    for limit in limits:
        source, *way = topological([limit.indices])
        straight = source.op is LEAF and source.attributes["role"] == "input"
        for node in way:
            moved = isinstance(node.op.lowering, Movement) or node.op is CAST
            straight = straight and moved and len(node.operands) == 1
        if straight:
            number = int(source.attributes["name"].removeprefix("input"))
            found.append(IndexCheck(limit, source, number))
    return tuple(found)


def check_indices(checks: Sequence[IndexCheck], arrays: Sequence[Array]) -> None:
    """Raises DataError, naming the layer, for the first index that is out of range."""
    for check in checks:
        values, count = check.values(arrays), check.limit.count
        if are_indices(values, count):
            continue
        place = tuple(np.argwhere((values < 0) | (values >= count))[0])
        largest = int(values.max())
        numbering = (
            f"or make it for {largest + 1}."
            if largest >= count
            else "and give what has no number one of its own."
        )
        raise DataError(
            f"{check.limit.what} out of range",
            facts=(
                ("expected", f"0..{count - 1}"),
                ("found", f"{values[place]} at example {int(place[0])} of input {check.number}"),
            ),
            where=str(check.limit.origin),
            advice=check.limit.advice
            or f"The layer was made for {count}: number them from 0, {numbering}",
        )
