"""Sharing: whether a tensor that is needed several times is stored or computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import final

from lamina.base.shapes import size_of, static
from lamina.compiler.buffers import is_leaf
from lamina.compiler.fusion.anchors import Anchors, PassContext
from lamina.compiler.fusion.costs import Operations, expression_of, is_worth_sharing, own_depth
from lamina.compiler.fusion.groups import bytes_of
from lamina.compiler.lowering.pull import DEEPEST_EXPRESSION
from lamina.compiler.simplify import is_widened
from lamina.graph import Tensor
from lamina.ops.conversion import ROUND_TO_TF32
from lamina.ops.joining import CONCAT
from lamina.ops.lowering_rules import Elementwise, Movement
from lamina.ops.slicing import PAD, SLICE
from lamina.ops.windows import SHEAR
from lamina.program.target import Target

# Movements that read no element twice, though their results may be larger than their operands.
_READ_ONCE = (CONCAT, PAD, SHEAR)


def stored_or_computed_again(context: PassContext, anchors: Anchors) -> Anchors:
    """Tensors that several steps need, or one step several times, if storing them costs less.

    Operands are decided first, so the sources of each tensor are known. A tensor whose expression
    would be too deep is stored at any cost.
    """
    demand = _Demand(context, anchors)
    anchors = dict(anchors)
    operations = Operations()
    depth: dict[Tensor, int] = {}
    for node in context.nodes:
        depth[node] = 0
        if is_leaf(node) or node in anchors or is_widened(node):
            continue
        below = max((depth[operand] for operand in node.operands), default=0)
        depth[node] = own_depth(node) + below
        too_deep = depth[node] > DEEPEST_EXPRESSION // 2
        is_worth = node.op is not ROUND_TO_TF32 and _is_worth_storing(
            node, demand, anchors, operations, context.target
        )
        if too_deep or is_worth:
            anchors[node] = None
            depth[node] = 0
    return anchors


def _is_worth_storing(
    node: Tensor, demand: _Demand, anchors: Anchors, operations: Operations, target: Target
) -> bool:
    size = size_of(static(node.shape))
    steps, times = demand.of(node)
    expression = expression_of(node, anchors) if times > 1 and size else None
    if expression is None or expression.takes_no_memory(node):
        return False
    read = [source.dtype.itemsize for source in expression.large_sources(node)]
    return is_worth_sharing(
        target,
        elements=size,
        dtype=node.dtype,
        steps=steps,
        times=times,
        other_bytes=sum(read) - max(read, default=0),
        operations=sum(operations.of(tensor) for tensor in expression.computed),
        reads_only_leaves=all(is_leaf(source) for source in expression.sources),
    )


@final
class _Demand:
    """How often tensors are needed, if all tensors that are not anchors yet are computed again."""

    def __init__(self, context: PassContext, anchors: Anchors) -> None:
        self._users = users = context.users
        consumers: dict[Tensor, set[Tensor]] = {}
        for node in reversed(context.nodes):
            if node not in anchors and not is_leaf(node):
                readers = [{user} if user in anchors else consumers[user] for user in users[node]]
                # At most two are kept, because only the existence of several matters.
                consumers[node] = set(islice(set[Tensor]().union(*readers), 2))
        # The tensors from which several anchors are computed, without those that are only sliced.
        self._needed_by_several = {node for node, readers in consumers.items() if len(readers) > 1}
        self._needed_by_several -= _only_sliced(context.nodes, users)

    def of(self, node: Tensor) -> tuple[int, float]:
        """The number of steps that need a tensor, at most 2, and how often they need each element.

        If a tensor has a single user that has no more bytes, the number is 1, because the user may
        be stored instead.
        """
        users = self._users[node]
        several = node in self._needed_by_several and (
            len(users) > 1 or bytes_of(users[0]) > bytes_of(node)
        )
        steps = 2 if several else 1
        # A user that broadcasts a tensor needs each of its elements several times.
        several_times = (
            size_of(static(user.shape)) / max(size_of(static(node.shape)), 1)
            for user in users
            if user.op not in _READ_ONCE and isinstance(user.op.lowering, Elementwise | Movement)
        )
        return steps, steps - 1 + max([1.0, *several_times])


def _only_sliced(nodes: Sequence[Tensor], users: Mapping[Tensor, Sequence[Tensor]]) -> set[Tensor]:
    """The tensors, or those with one elementwise user, that are sliced into no more elements only.

    Without storing them, no more elements are computed than with storing.
    """
    tensors: set[Tensor] = set()
    for node in reversed(nodes):
        sizes = [size_of(static(user.shape)) for user in users[node]]
        size = size_of(static(node.shape))
        sliced = all(user.op is SLICE for user in users[node]) and sum(sizes) <= size
        only_elementwise = sizes == [size] and isinstance(users[node][0].op.lowering, Elementwise)
        if sizes and (sliced or (only_elementwise and users[node][0] in tensors)):
            tensors.add(node)
    return tensors
