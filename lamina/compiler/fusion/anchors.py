"""Anchors: the tensors that a loop nest has to produce.

Every other tensor is folded into the expressions of its users. An anchor is written to memory only
if another step needs it. `ANCHOR_PASSES` lists the passes in the order in which they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from lamina.base.records import cached_property, frozen_dataclass
from lamina.base.shapes import size_of, static
from lamina.compiler.buffers import is_leaf
from lamina.compiler.fusion.costs import Operations, is_worth_narrowing
from lamina.compiler.fusion.results import DistinctResults
from lamina.compiler.fusion.views import Views, as_stored, viewed_operands
from lamina.graph import Tensor, reached_ends, users_of
from lamina.ops.arithmetic import ADD
from lamina.ops.conversion import CAST
from lamina.ops.lowering_rules import (
    Contracting,
    Elementwise,
    Movement,
    Reduction,
    Repeating,
    Scanning,
    Scattering,
    Sorting,
)
from lamina.ops.movement import RESHAPE, TRANSPOSE
from lamina.program.target import Target

# A set in the order of insertion.
Anchors = dict[Tensor, None]


@frozen_dataclass
class PassContext:
    """The fixed inputs of the passes."""

    distinct: DistinctResults
    target: Target
    views: Views
    stored: frozenset[Tensor] = frozenset()

    @cached_property
    def nodes(self) -> tuple[Tensor, ...]:
        """All tensors, operands first."""
        return self.distinct.graph.nodes()

    @cached_property
    def users(self) -> Mapping[Tensor, Sequence[Tensor]]:
        """The tensors that have each tensor as an operand."""
        return users_of(self.nodes)

    @cached_property
    def must_store(self) -> frozenset[Tensor]:
        """The tensors stored at any cost.

        They are results, new values that are copied into a leaf, and operands that are stored
        rounded.
        """
        return self.stored.union(self.distinct.copied, self.distinct.graph.roots)


Pass = Callable[[PassContext, Anchors], Anchors]

# These run in another step than the computation of their operands.
_SEPARATE = Contracting | Scanning | Scattering | Sorting | Repeating


def required(context: PassContext, anchors: Anchors) -> Anchors:
    """Results, and ops that are not expressions: reductions, contractions, scans and the like.

    A sort reads each element many times, so its operand is stored too.
    """
    loops = Reduction | Contracting | Scanning | Scattering | Sorting | Repeating
    anchors = dict(anchors)
    for node in context.nodes:
        if isinstance(node.op.lowering, loops) or (
            node in context.must_store and not is_leaf(node)
        ):
            anchors[node] = None
        if isinstance(node.op.lowering, Sorting):
            anchors |= {x: None for x in node.operands if not _is_cast_leaf(x)}
    return anchors


def casts_to_half(context: PassContext, anchors: Anchors) -> Anchors:
    """Casts of computed tensors to 16 bits: the graph states what is stored in 16 bits.

    Casts of leaves are part of the views that read them.
    """
    anchors = dict(anchors)
    for node in context.nodes:
        computed = node.op is CAST and not _is_cast_leaf(node)
        if computed and node.dtype.is_half and not node.operands[0].dtype.is_half:
            anchors[node] = None
    return anchors


def _is_cast_leaf(node: Tensor) -> bool:
    while node.op is CAST:
        (node,) = node.operands
    return is_leaf(node)


def running_sums(context: PassContext, anchors: Anchors) -> Anchors:
    """Sums of contractions to which further contractions are added.

    Storing the running sum moves as many bytes as storing each contraction, and keeps one tensor
    alive at a time instead of all.
    """
    terms: dict[Tensor, int] = {}
    for node in context.nodes:
        terms[node] = 0
        if isinstance(node.op.lowering, Contracting):
            terms[node] = 1
        elif isinstance(node.op.lowering, Movement) and len(node.operands) == 1:
            terms[node] = terms[node.operands[0]]
        elif node.op is ADD and all(terms[x] for x in node.operands):
            terms[node] = sum(terms[x] for x in node.operands)
    sums = [node for node in context.nodes if node.op is ADD and terms[node]]
    users = context.users
    return anchors | {x: None for x in sums if any(terms[y] > terms[x] for y in users[x])}


def narrowed(context: PassContext, anchors: Anchors) -> Anchors:
    """Casts of anchors to fewer bytes, if storing them costs less than casting again."""
    operations = Operations()
    casts: Anchors = {}
    for node in context.nodes:
        if node.op is CAST and context.users[node]:
            (source,) = node.operands
            if source not in anchors or node.dtype.itemsize >= source.dtype.itemsize:
                continue
            narrow = _readers(context.users[node], anchors, context.users)
            others = [user for user in context.users[source] if user is not node]
            # Other readers may be computed in the anchor's own step. Then they load nothing.
            wide = {
                reader
                for reader in _readers(others, anchors, context.users)
                if isinstance(reader.op.lowering, _SEPARATE)
            }
            if is_worth_narrowing(
                elements=size_of(static(node.shape)),
                wide=source.dtype.itemsize,
                narrow=node.dtype.itemsize,
                packed=not node.dtype.is_half,
                steps=len(narrow),
                also_wide=len(narrow & wide),
                is_stored=bool(wide) or source in context.must_store,
                operations=operations.of(node),
            ):
                casts[node] = None
    return anchors | casts


def _readers(
    users: Iterable[Tensor], anchors: Anchors, all_users: Mapping[Tensor, Sequence[Tensor]]
) -> set[Tensor]:
    """The anchors computed from a tensor with these direct users."""
    return reached_ends(users, anchors.__contains__, all_users.__getitem__)


def readable_below(context: PassContext, anchors: Anchors) -> Anchors:
    """Tensors below operands of contractions, if storing them makes the operand a view.

    There is no alternative to compare, and later passes can rely on the stored tensors.
    """
    views = context.views
    anchors = dict(anchors)
    for node in context.nodes:
        for operand in viewed_operands(node):
            below = views.missing(operand, anchors)
            if below is not None:
                anchors[below] = None
                if not views.is_readable(operand, anchors):
                    del anchors[below]
    return anchors


def reordered(context: PassContext, anchors: Anchors) -> Anchors:
    """Replaces anchors that are only used transposed by the transposed tensors.

    The bytes are the same, and users read adjacent elements.
    """
    moved = dict(anchors)
    for node in context.nodes:
        if node in moved and node not in context.must_store:
            last = _last_order(node, moved, context.users)
            if last is not node:
                del moved[node]
                moved[last] = None
    return moved


def _last_order(node: Tensor, anchors: Anchors, users: Mapping[Tensor, Sequence[Tensor]]) -> Tensor:
    """The last transpose in the chain of single users; the tensor itself if there is none."""
    last = above = node
    while isinstance(above.op.lowering, Elementwise | Movement) and len(users[above]) == 1:
        (above,) = users[above]
        if above in anchors or above.op not in (TRANSPOSE, RESHAPE):
            break
        if above.op is TRANSPOSE:
            last = above
    return last


def readable(context: PassContext, anchors: Anchors) -> Anchors:
    """Tensors that prevent an operand of a contraction from being a view."""
    views = context.views
    anchors = dict(anchors)
    for node in context.nodes:
        for operand in viewed_operands(node):
            missing = views.missing(operand, anchors)
            if missing is not None:
                anchors[missing] = None
            for stored in (as_stored(operand), operand):
                if not views.is_readable(operand, anchors) and not is_leaf(stored):
                    anchors[stored] = None
    return anchors
