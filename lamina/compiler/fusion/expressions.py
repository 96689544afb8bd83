"""Expressions of tensors, down to stored tensors: what they read, what they compute, how deep."""

from __future__ import annotations

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of, static
from lamina.compiler.buffers import is_leaf
from lamina.compiler.fusion.anchors import Anchors
from lamina.graph import Tensor
from lamina.ops.conversion import CAST
from lamina.ops.indexing import TAKE, TAKE_ALONG_AXIS
from lamina.ops.lowering_rules import Movement, read_operands
from lamina.ops.movement import RESHAPE

# The levels that an op with deep index expressions adds to an expression. Such ops are gathers,
# whose index is loaded, and reshapes, whose coordinates depend on all axes. Without this bound,
# each op in a chain of reshapes and transposes would double the size of an index.
GATHER_DEPTH, RESHAPE_DEPTH = 20, 12

# An operand costs nothing to read if the tensors computed from it are larger by at least this
# factor: it stays in a cache.
_CACHED_RATIO = 64


@frozen_dataclass
class Expression:
    """The expression of a tensor, down to stored tensors.

    Attributes:
        sources: the stored tensors that it reads, constant numbers included.
        computed: the tensors that it computes, itself included.
    """

    sources: tuple[Tensor, ...]
    computed: tuple[Tensor, ...]

    def takes_no_memory(self, node: Tensor) -> bool:
        """Whether it is computed from almost nothing, or a leaf, moved and rounded to 16 bits.

        Generated tensors must not take memory. Rounding is part of reading the leaf.
        """
        if size_of(static(node.shape)) > 1 and not self.large_sources(node):
            return True
        computed = self.computed
        casts = [one for one in computed if one.op is CAST]
        moved = all(one in casts or isinstance(one.op.lowering, Movement) for one in computed)
        return moved and any(one.dtype.is_half for one in casts) and all(map(is_leaf, self.sources))

    def large_sources(self, node: Tensor) -> list[Tensor]:
        """The sources that do not stay in a cache while the tensor is computed."""
        cached_size = max(size_of(static(node.shape)) // _CACHED_RATIO, 1)
        return [one for one in self.sources if size_of(static(one.shape)) > cached_size]


def expression_of(node: Tensor, anchors: Anchors) -> Expression:
    """The expression of a tensor down to leaves and anchors."""
    sources: Anchors = {}
    computed: Anchors = {}
    pending = [node]
    while pending:
        one = pending.pop()
        if one is not node and (is_leaf(one) or one in anchors):
            sources[one] = None
        elif one not in computed:
            computed[one] = None
            pending.extend(read_operands(one))
    return Expression(tuple(sources), tuple(computed))


def own_depth(node: Tensor) -> int:
    """The number of levels that a tensor adds to the expressions of its operands."""
    if node.op in (TAKE, TAKE_ALONG_AXIS):
        return GATHER_DEPTH
    if node.op is RESHAPE:
        before, after = ([n for n in x.shape if n != 1] for x in (node.operands[0], node))
        return RESHAPE_DEPTH if before != after else 1
    return 1
