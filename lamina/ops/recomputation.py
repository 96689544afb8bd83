"""Recomputation: tensors that a gradient computes again, so that they need not be kept for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from lamina.checks import checked
from lamina.checks.origin import labelled
from lamina.graph import Tensor, apply, rebuild, topological
from lamina.ops.conversion import ordered_op, recomputed

__all__ = ["computed_again"]


COMPUTED_AGAIN = ordered_op("computed_again")


@checked
def computed_again(y: Tensor, *sources: Tensor) -> Tensor:
    """y itself, but a gradient computes the tensors between the sources and y again.

    They need not be kept for the gradient, which takes less memory and more time. From Chen, Xu,
    Zhang, Guestrin: Training deep nets with sublinear memory cost (2016).
    """
    return apply(COMPUTED_AGAIN, y, *sources)


@final
class Recomputation:
    """The tensors that a gradient reads in place of tensors of the forward pass.

    It sees the tensors in the order in which they are differentiated, users before operands. So a
    tensor within several `computed_again` is at last computed from the sources of the innermost.
    """

    def __init__(self) -> None:
        self._again: dict[Tensor, Tensor] = {}

    def begin(self, node: Tensor, upstream: Tensor) -> None:
        """Computes tensors again after `upstream`, if a node is the result of `computed_again`."""
        if node.op is not COMPUTED_AGAIN:
            return
        y, *sources = node.operands
        between = _between(y, sources)
        if not between:
            return
        # The sources are kept, and differentiated as they are.
        rebuilt: dict[Tensor, Tensor] = {}
        for source in sources:
            with labelled(source.origin):
                rebuilt[source] = recomputed(self._of(source), upstream)
        for tensor in between:
            operands = tuple(rebuilt.get(x, self._of(x)) for x in tensor.operands)
            with labelled(tensor.origin):
                rebuilt[tensor] = rebuild(tensor, operands)
        self._again.update((tensor, rebuilt[tensor]) for tensor in between)

    def arriving(self, flows: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """The gradients of tensors as gradients of the tensors that are computed again."""
        return {self._of(tensor): flow for tensor, flow in flows.items()}

    def _of(self, tensor: Tensor) -> Tensor:
        return self._again.get(tensor, tensor)


def _between(y: Tensor, sources: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on paths from the sources to y, which is one of them, operands first."""
    ends = set(sources)
    between: dict[Tensor, None] = {}
    for node in topological([y], sources):
        if node not in ends and any(x in ends or x in between for x in node.operands):
            between[node] = None
    return list(between)
