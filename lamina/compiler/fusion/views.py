"""Views: which operands can be read where something is stored; tried once for each signature."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import final

from lamina.compiler.buffers import is_leaf
from lamina.compiler.fusion.signature import Signatures
from lamina.compiler.lowering.contractions import is_view
from lamina.compiler.lowering.pull import Location
from lamina.graph import Tensor
from lamina.ops.lowering import Contracting, Movement, Repeating
from lamina.shapes import size_of, static


def viewed_operands(node: Tensor) -> tuple[Tensor, ...]:
    """The operands that are read through views: those of contractions and of recurrences."""
    if isinstance(node.op.lowering, Contracting):
        return node.operands
    if isinstance(node.op.lowering, Repeating):
        return node.operands[node.attributes["states"] :]
    return ()


def is_number(node: Tensor) -> bool:
    """Whether the tensor is a constant that is written into expressions as a literal."""
    return is_leaf(node) and node.op.name == "constant" and size_of(static(node.shape)) == 1


def boundary(nodes: Iterable[Tensor], anchors: Container[Tensor]) -> set[Tensor]:
    """The leaves and anchors that the expressions of some tensors end at."""
    return reached_ends(nodes, lambda one: is_leaf(one) or one in anchors, lambda one: one.operands)


def reached_ends(
    nodes: Iterable[Tensor],
    is_end: Callable[[Tensor], bool],
    onward: Callable[[Tensor], Iterable[Tensor]],
) -> set[Tensor]:
    """Where the ways from some tensors end; the tensors themselves may be ends."""
    found: set[Tensor] = set()
    seen: set[Tensor] = set()
    pending = list(nodes)
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        if is_end(one):
            found.add(one)
        else:
            pending.extend(onward(one))
    return found


@final
class Views:
    """Answers what can be read through a view, and remembers it.

    Args:
        given: leaves that have no buffer of their own, and what stands at their coordinates.
    """

    def __init__(self, given: Mapping[Tensor, Location]) -> None:
        self._given = given
        self._signatures = Signatures(given)
        self._tried: dict[int, bool] = {}

    def is_readable(self, operand: Tensor, anchors: Container[Tensor]) -> bool:
        """Whether a contraction can read its operand from what is stored."""
        if is_leaf(operand) or operand in anchors:
            return True
        ends = boundary([operand], anchors)
        return self._is_view(operand, [node for node in ends if not is_number(node)])

    def missing(self, operand: Tensor, anchors: Container[Tensor]) -> Tensor | None:
        """What must be stored for an operand to be read; None if it can be read already."""
        below = operand
        while not self.is_readable(below, anchors):
            # Look below a movement: perhaps what it moves is what must be stored.
            if not isinstance(below.op.lowering, Movement) or len(below.operands) != 1:
                return below
            (source,) = below.operands
            if is_number(source) or not self._is_view(below, [source]):
                return below
            below = source
        return None

    def _is_view(self, operand: Tensor, stored: Iterable[Tensor]) -> bool:
        locations: dict[Tensor, Location] = {one: self._given.get(one, "") for one in stored}
        signature, _ = self._signatures.of(operand, locations)
        if signature not in self._tried:
            self._tried[signature] = is_view(operand, locations)
        return self._tried[signature]
