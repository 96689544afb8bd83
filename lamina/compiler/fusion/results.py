"""Distinct results: each result is a separate tensor, and leaves are updated in place.

All readers of a leaf's old value run before its update. If that is impossible, the new value is
first stored elsewhere and then copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from lamina.base.records import frozen_dataclass
from lamina.compiler.buffers import is_leaf
from lamina.graph import Graph, Tensor, apply, reached_all, users_of
from lamina.ops.lowering_rules import Repeating
from lamina.ops.movement import RESHAPE

Users = Mapping[Tensor, Sequence[Tensor]]


@frozen_dataclass
class DistinctResults:
    """A graph in which every result is a separate tensor.

    Attributes:
        graph: the graph, with an identity op for each result that needs a separate buffer.
        in_place: the leaf whose buffer a tensor overwrites, for each such tensor.
        copied: the new values that are stored elsewhere first; their copies are written in place.
    """

    graph: Graph
    in_place: Mapping[Tensor, Tensor]
    copied: frozenset[Tensor]


def with_distinct_results(
    graph: Graph, blocked: AbstractSet[Tensor] = frozenset()
) -> DistinctResults:
    """The graph with a separate tensor for every result.

    An identity op is added to an output that is a leaf. It is also added to the new value of a leaf
    if that value is a leaf itself, the result of a recurrence, or also another leaf's new value; or
    if a tensor that depends on it may read the old value. The new values of `blocked` leaves are
    stored elsewhere first.
    """
    outputs = tuple((n, _identity(t) if is_leaf(t) else t) for n, t in graph.outputs)
    in_place: dict[Tensor, Tensor] = {}
    copied: set[Tensor] = set()
    updates: list[tuple[Tensor, Tensor]] = []
    users = users_of(graph.nodes())
    for target, value in graph.updates:
        elsewhere = is_leaf(value) or isinstance(value.op.lowering, Repeating)
        if elsewhere or value in in_place or _read_after(target, value, users):
            value = _identity(value)
        if target in blocked:
            copied.add(value)
            value = _identity(value)
        in_place[value] = target
        updates.append((target, value))
    return DistinctResults(
        Graph(graph.inputs, outputs, tuple(updates)), in_place, frozenset(copied)
    )


def _identity(tensor: Tensor) -> Tensor:
    return apply(RESHAPE, tensor, shape=tensor.shape)


def _read_after(target: Tensor, value: Tensor, users: Users) -> bool:
    """Whether a tensor that depends on a leaf's new value may read the old one as well."""
    downstream = reached_all(users[value], users.__getitem__)
    return bool(downstream) and not downstream.isdisjoint(
        reached_all([target], lambda node: (x for x in users[node] if x is not value))
    )
