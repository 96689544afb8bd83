"""Results: each gets a tensor of its own, and new values of leaves are written in place.

All who read the old value of a leaf come before its update. Where that cannot be, the update goes
through a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from lamina.compiler.buffers import is_leaf
from lamina.graph import Graph, Tensor, apply
from lamina.ops.lowering import Repeating
from lamina.ops.movement import RESHAPE
from lamina.records import frozen_dataclass

Users = Mapping[Tensor, Sequence[Tensor]]


@frozen_dataclass
class DistinctResults:
    """A graph in which every result is a tensor of its own.

    Attributes:
        graph: with identities added where a result needs a buffer of its own.
        in_place: the tensors that overwrite a leaf's buffer, and that leaf.
        copied: new values that must be stored elsewhere, as a copy of them is written in place.
    """

    graph: Graph
    in_place: Mapping[Tensor, Tensor]
    copied: frozenset[Tensor]


def with_distinct_results(
    graph: Graph, blocked: AbstractSet[Tensor] = frozenset()
) -> DistinctResults:
    """Gives every result that is a leaf, or that two leaves take, a tensor of its own.

    An update whose old value is still read by something that needs the new one gets one as well.

    Args:
        graph: a simplified graph.
        blocked: the leaves whose new value must be computed elsewhere first, and then copied.
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


def users_of(nodes: Sequence[Tensor]) -> dict[Tensor, list[Tensor]]:
    """The tensors that are directly made of each tensor."""
    users: dict[Tensor, list[Tensor]] = {node: [] for node in nodes}
    for node in nodes:
        for operand in dict.fromkeys(node.operands):
            users[operand].append(node)
    return users


def _identity(tensor: Tensor) -> Tensor:
    return apply(RESHAPE, tensor, shape=tensor.shape)


def _read_after(target: Tensor, value: Tensor, users: Users) -> bool:
    """Whether something that needs the new value of a leaf may read the old one as well."""
    downstream = _reachable(users[value], users)
    if not downstream:
        return False
    from_old = _reachable((user for user in users[target] if user is not value), users, stop=value)
    return bool(downstream & from_old)


def _reachable(start: Iterable[Tensor], users: Users, stop: Tensor | None = None) -> set[Tensor]:
    """The tensors, and all that need them, not going beyond `stop`."""
    found: set[Tensor] = set()
    pending = list(start)
    while pending:
        node = pending.pop()
        if node not in found and node is not stop:
            found.add(node)
            pending.extend(users[node])
    return found
