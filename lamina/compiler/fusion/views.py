"""Views: which operands can be read directly from stored tensors, tried once per signature."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import final

from lamina.compiler.buffers import is_leaf, is_number
from lamina.compiler.fusion.trials import SubgraphSignatures
from lamina.compiler.lowering.contractions import is_view
from lamina.compiler.lowering.pull import Location
from lamina.compiler.simplify import is_widened
from lamina.graph import Tensor, reached_ends
from lamina.ops.conversion import ROUND_TO_TF32
from lamina.ops.lowering_rules import Contracting, Movement, Repeating


def viewed_operands(node: Tensor) -> tuple[Tensor, ...]:
    """The operands that a contraction or a recurrence reads through views; none of other tensors.

    The initial states of a recurrence are not read through views.
    """
    if isinstance(node.op.lowering, Contracting):
        return node.operands
    if isinstance(node.op.lowering, Repeating):
        return node.operands[node.attributes["states"] :]
    return ()


def is_read_converted(node: Tensor) -> bool:
    """Whether the tensor is not stored: its operand is, and is converted when it is read.

    So floats of 16 bits are cast to wider ones, and float32 are rounded to TF32.
    """
    return is_widened(node) or node.op is ROUND_TO_TF32


def as_stored(node: Tensor) -> Tensor:
    """The tensor that is stored, if another one may be converted when it is read."""
    while is_read_converted(node):
        is_end = node.attributes.get("stored", False)
        (node,) = node.operands
        if is_end:
            break
    return node


def boundary(nodes: Iterable[Tensor], anchors: Container[Tensor]) -> set[Tensor]:
    """The leaves and anchors at which the expressions of some tensors end."""
    return reached_ends(nodes, lambda one: is_leaf(one) or one in anchors, lambda one: one.operands)


@final
class Views:
    """Decides whether tensors can be read through views, and keeps the answers."""

    def __init__(self, locations: Mapping[Tensor, Location]) -> None:
        self._locations = locations
        self._signatures = SubgraphSignatures(locations)
        self._tried: dict[int, bool] = {}

    def is_readable(self, operand: Tensor, anchors: Container[Tensor]) -> bool:
        """Whether a contraction can read its operand from the anchors and leaves."""
        if is_leaf(operand) or operand in anchors:
            return True
        ends = boundary([operand], anchors)
        return self._is_view(operand, [node for node in ends if not is_number(node)])

    def missing(self, operand: Tensor, anchors: Container[Tensor]) -> Tensor | None:
        """The tensor that must be stored to make an operand a view; None if it is one already."""
        below = as_stored(operand)
        while not self.is_readable(below, anchors):
            # If a movement is a view of its operand, the operand may be stored instead.
            if not isinstance(below.op.lowering, Movement) or len(below.operands) != 1:
                return below
            (source,) = below.operands
            if is_number(source) or not self._is_view(below, [source]):
                return below
            below = source
        return None

    def _is_view(self, operand: Tensor, stored: Iterable[Tensor]) -> bool:
        locations: dict[Tensor, Location] = {node: self._locations.get(node, "") for node in stored}
        signature, _ = self._signatures.of(operand, locations)
        if signature not in self._tried:
            self._tried[signature] = is_view(operand, locations)
        return self._tried[signature]
