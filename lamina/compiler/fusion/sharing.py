"""Sharing: what is needed several times is stored, or computed again each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import final

from lamina.compiler.buffers import is_leaf
from lamina.compiler.fusion.anchors import Anchors, PassContext
from lamina.compiler.fusion.costs import Operations, Sharing
from lamina.compiler.fusion.groups import bytes_of
from lamina.compiler.lowering.pull import DEEPEST_EXPRESSION
from lamina.graph import Tensor
from lamina.ops.lowering import Elementwise, Movement
from lamina.ops.movement import RESHAPE
from lamina.records import frozen_dataclass
from lamina.shapes import size_of, static

# What makes index expressions deep counts as so many levels of an expression: a place that is read
# from data, and a reshape, each of whose places is made of all axes. Without a bound, a chain of
# reshapes and transposes would double an index with each of them.
GATHER_DEPTH, RESHAPE_DEPTH = 20, 12

# Movements whose result may be larger though they read no element twice.
_READ_ONCE = ("concat", "pad", "shear")


def stored_or_computed_again(context: PassContext, anchors: Anchors) -> Anchors:
    """What several steps need, or one step several times: stored if that costs less.

    Decided operands first, so that it is known what each tensor is made of. What would make an
    expression too deep is stored whatever it costs.
    """
    found = dict(anchors)
    demand = _Demand(context, anchors)
    operations = Operations(context.target)
    depth: dict[Tensor, int] = {}
    for node in context.nodes:
        depth[node] = 0
        if is_leaf(node) or node in found:
            continue
        below = max((depth[operand] for operand in node.operands), default=0)
        depth[node] = _own_depth(node) + below
        too_deep = depth[node] > DEEPEST_EXPRESSION // 2
        if too_deep or _is_worth_storing(node, demand, found, operations):
            found[node] = None
            depth[node] = 0
    return found


def _is_worth_storing(
    node: Tensor, demand: _Demand, anchors: Anchors, operations: Operations
) -> bool:
    size, target = size_of(static(node.shape)), operations.target
    steps, times = demand.of(node)
    if times <= 1 or not size:
        return False
    made = _expression(node, anchors)
    tiny = max(size // target.cached_ratio, 1)
    read = [one.dtype.itemsize for one in made.sources if size_of(static(one.shape)) > tiny]
    if size > 1 and not read:
        # Generated: promised to take no memory.
        return False
    sharing = Sharing(
        elements=size,
        itemsize=node.dtype.itemsize,
        steps=steps,
        times=times,
        others=sum(read) - max(read, default=0),
        operations=sum(operations.of(one) for one in made.inside),
        begins=all(is_leaf(one) for one in made.sources),
    )
    return sharing.stored(target) < sharing.again()


@final
class _Demand:
    """How often tensors are needed, if all that is no anchor yet is computed again.

    Args:
        context: the graph.
        anchors: what is stored or produced in any case.
    """

    def __init__(self, context: PassContext, anchors: Anchors) -> None:
        self._users = context.users
        self._of_several = _of_several(context, anchors)

    def of(self, node: Tensor) -> tuple[int, float]:
        """How many steps need a tensor (two stand for more), and how often each element.

        With a single user, the steps are counted there, if less would be stored there.
        """
        users = self._users[node]
        several = node in self._of_several and (
            len(users) > 1 or bytes_of(users[0]) > bytes_of(node)
        )
        steps = 2 if several else 1
        return steps, steps - 1 + max([1.0, *(_ratio(node, user) for user in users)])


def _ratio(node: Tensor, user: Tensor) -> float:
    """How often a user needs each element of a tensor, as it broadcasts it."""
    lowering = user.op.lowering
    if user.op.name in _READ_ONCE or not isinstance(lowering, Elementwise | Movement):
        return 1
    return size_of(static(user.shape)) / max(size_of(static(node.shape)), 1)


def _of_several(context: PassContext, anchors: Anchors) -> set[Tensor]:
    """The tensors that several anchors are made of, and that are not only needed in parts."""
    users = context.users
    consumers: dict[Tensor, set[Tensor]] = {}
    for node in reversed(context.nodes):
        if node not in anchors and not is_leaf(node):
            found = set[Tensor]().union(
                *({u} if u in anchors else consumers[u] for u in users[node])
            )
            # One, or several: more are not asked for, and might be as many as there are anchors.
            consumers[node] = set(islice(found, 2))
    cut = _cut(context.nodes, users)
    return {node for node, found in consumers.items() if len(found) > 1 and node not in cut}


def _cut(nodes: Sequence[Tensor], users: Mapping[Tensor, Sequence[Tensor]]) -> set[Tensor]:
    """The tensors that are only used in parts: each element is computed once without being stored.

    Those that such a tensor is made of, element by element, are among them.
    """
    found: set[Tensor] = set()
    for node in reversed(nodes):
        sizes = [size_of(static(user.shape)) for user in users[node]]
        size = size_of(static(node.shape))
        sliced = all(user.op.name == "slice" for user in users[node]) and sum(sizes) <= size
        passed_on = sizes == [size] and isinstance(users[node][0].op.lowering, Elementwise)
        if sizes and (sliced or (passed_on and users[node][0] in found)):
            found.add(node)
    return found


@frozen_dataclass
class _Expression:
    """What computing a tensor takes that is not stored.

    Attributes:
        sources: the stored tensors that it reads, numbers included.
        inside: all that it computes, itself included.
    """

    sources: tuple[Tensor, ...]
    inside: tuple[Tensor, ...]


def _expression(node: Tensor, anchors: Anchors) -> _Expression:
    sources: Anchors = {}
    inside: Anchors = {}
    pending = [node]
    while pending:
        one = pending.pop()
        if one is not node and (is_leaf(one) or one in anchors):
            sources[one] = None
        elif one not in inside:
            inside[one] = None
            pending.extend(_read(one))
    return _Expression(tuple(sources), tuple(inside))


def _read(node: Tensor) -> tuple[Tensor, ...]:
    """The operands that computing a tensor reads."""
    lowering = node.op.lowering
    ordered = isinstance(lowering, Movement) and lowering.ordered
    return node.operands[:1] if ordered else node.operands


def _own_depth(node: Tensor) -> int:
    """How many levels of an expression a tensor adds to those of its operands."""
    if node.op.name in ("take", "take_along_axis"):
        return GATHER_DEPTH
    if node.op is RESHAPE:
        before, after = ([n for n in x.shape if n != 1] for x in (node.operands[0], node))
        return RESHAPE_DEPTH if before != after else 1
    return 1
