"""Graphs of tensors: functions of their leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any, cast

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType, Shape
from lamina.checks.origin import Origin
from lamina.graph.tensor import Attributes, Op, Tensor


@frozen_dataclass
class Graph:
    """A function of its leaves: named results, and new values for parameters and state.

    Attributes:
        inputs: the leaves with role `"input"`, in the order of the caller's arguments; some may
            be unused.
        outputs: (name, tensor) pairs.
        updates: (leaf, new value) pairs: after a run the leaf holds the new value. All new values
            are functions of the old ones.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[tuple[str, Tensor], ...]
    updates: tuple[tuple[Tensor, Tensor], ...] = ()
    _nodes: tuple[Tensor, ...] = field(init=False, default=(), compare=False, repr=False)

    def __reduce__(self) -> tuple[Callable[..., Graph], tuple[Any, ...]]:
        # Flat rows, because pickle would recurse into nested tensors as deep as the graph.
        nodes = sorted(self.nodes(), key=lambda node: node.number)
        numbers = {node: number for number, node in enumerate(nodes)}
        rows = [
            (n.op, [numbers[x] for x in n.operands], n.attributes, n.shape, n.dtype, n.origin)
            for n in nodes
        ]
        inputs = [numbers[tensor] for tensor in self.inputs]
        outputs = [(name, numbers[tensor]) for name, tensor in self.outputs]
        updates = [(numbers[leaf], numbers[tensor]) for leaf, tensor in self.updates]
        return _graph_of_rows, (rows, inputs, outputs, updates)

    @property
    def roots(self) -> tuple[Tensor, ...]:
        """All tensors that the graph must compute: outputs and new values."""
        return tuple(t for _, t in self.outputs) + tuple(t for _, t in self.updates)

    def nodes(self) -> tuple[Tensor, ...]:
        """Every tensor that a root depends on, operands first; inputs and updated leaves too."""
        if not self._nodes:
            # Kept, because each pass calls this several times.
            leaves = (leaf for leaf, _ in self.updates)
            nodes = topological((*self.inputs, *leaves, *self.roots))
            object.__setattr__(self, "_nodes", nodes)
        return self._nodes


def _graph_of_rows(
    rows: Sequence[tuple[Op, Sequence[int], Attributes, Shape, DType, Origin]],
    inputs: Sequence[int],
    outputs: Sequence[tuple[str, int]],
    updates: Sequence[tuple[int, int]],
) -> Graph:
    """The graph from the rows of `__reduce__`."""
    made: list[Tensor] = []
    for op, operands, attributes, shape, dtype, origin in rows:
        made.append(Tensor(op, tuple(made[n] for n in operands), attributes, shape, dtype, origin))
    return Graph(
        tuple(made[number] for number in inputs),
        tuple((name, made[number]) for name, number in outputs),
        tuple((made[leaf], made[number]) for leaf, number in updates),
    )


def topological(roots: Sequence[Tensor], boundary: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
    """All tensors that the roots depend on, each after its operands.

    The search ends at the tensors of the `boundary`: their operands are omitted.
    """
    order: list[Tensor] = []
    seen: set[Tensor] = set()
    ends = set(boundary)
    for root in roots:
        # None marks that the tensor below it on the stack follows its operands.
        stack: list[Tensor | None] = [root]
        while stack:
            node = stack.pop()
            if node is None:
                order.append(cast(Tensor, stack.pop()))
            elif node not in seen:
                seen.add(node)
                if node.operands and node not in ends:
                    stack += (node, None, *node.operands[::-1])
                else:
                    order.append(node)
    return tuple(order)


def users_of(nodes: Sequence[Tensor]) -> dict[Tensor, list[Tensor]]:
    """The tensors that have each tensor as an operand."""
    users: dict[Tensor, list[Tensor]] = {node: [] for node in nodes}
    for node in nodes:
        for operand in dict.fromkeys(node.operands):
            users[operand].append(node)
    return users


def reached_ends(
    nodes: Iterable[Tensor],
    is_end: Callable[[Tensor], bool],
    onward: Callable[[Tensor], Iterable[Tensor]],
) -> set[Tensor]:
    """The first ends on all paths from some tensors, which may be ends themselves.

    `onward` gives the next tensors after one that is not an end.
    """
    seen = reached_all(nodes, lambda node: () if is_end(node) else onward(node))
    return {node for node in seen if is_end(node)}


def reached_all(
    nodes: Iterable[Tensor], onward: Callable[[Tensor], Iterable[Tensor]]
) -> set[Tensor]:
    """These tensors, and all on the paths that begin at them; `onward` gives the next ones."""
    seen: set[Tensor] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending.extend(onward(node))
    return seen
