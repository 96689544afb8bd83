"""Recomputation: tensors that a gradient computes again, so that they need not be kept for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from lamina.base.shapes import Array, DType, Shape
from lamina.checks import checked
from lamina.graph import Attributes, Op, Sample, Tensor, apply, labelled, rebuild, topological
from lamina.ops.conversion import recomputed
from lamina.ops.lowering_rules import Movement

__all__ = ["computed_again"]


def _infer_first(operands: tuple[Tensor, ...], _: Attributes) -> tuple[Shape, DType]:
    return operands[0].shape, operands[0].dtype


def _first(y: Array, *_: Array) -> Array:
    return y


COMPUTED_AGAIN = Op(
    "computed_again",
    _infer_first,
    lambda result, upstream: (upstream, *(None for _ in result.operands[1:])),
    _first,
    Movement(lambda node, coordinates, pull: pull(0, coordinates), ordered=True),
    (
        Sample(((3, 5), (2,))),
        Sample(((2, 3), (2, 3)), dtypes=("float", "bool")),
        Sample(((4,), (1, 3), ()), dtypes=("int64", "float", "float"), differentiable=False),
    ),
    operands=(1, None),
)


@checked
def computed_again(y: Tensor, *sources: Tensor) -> Tensor:
    """y itself, but a gradient computes the tensors between the sources and y again.

    They need not be kept for the gradient, which takes less memory and more time. From Chen, Xu,
    Zhang, Guestrin: Training deep nets with sublinear memory cost (2016).
    """
    return apply(COMPUTED_AGAIN, y, *sources)


@final
class Recomputation:
    """The tensors that a gradient reads in place of those of the forward pass.

    It sees the tensors in the order in which they are differentiated, users before operands. So a
    tensor within several `computed_again` is at last computed from the sources of the innermost.
    """

    def __init__(self) -> None:
        self._again: dict[Tensor, Tensor] = {}

    def begin(self, node: Tensor, upstream: Tensor) -> None:
        """Computes tensors again, if the node is the result of `computed_again`.

        Args:
            node: which is differentiated next.
            upstream: its gradient; no tensor is computed again before it is known.
        """
        if node.op is not COMPUTED_AGAIN:
            return
        y, *sources = node.operands
        between = _between(y, sources)
        if not between:
            return
        # The sources are kept, and differentiated as they are.
        known: dict[Tensor, Tensor] = {}
        for source in sources:
            with labelled(source.origin):
                known[source] = recomputed(self._of(source), upstream)
        for tensor in between:
            operands = tuple(known.get(x, self._of(x)) for x in tensor.operands)
            with labelled(tensor.origin):
                known[tensor] = rebuild(tensor, operands)
        self._again.update((tensor, known[tensor]) for tensor in between)

    def arriving(self, flows: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """The gradients of tensors as those of the tensors that are computed again."""
        return {self._of(tensor): flow for tensor, flow in flows.items()}

    def _of(self, tensor: Tensor) -> Tensor:
        return self._again.get(tensor, tensor)


def _between(y: Tensor, sources: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on paths from the sources to y, which is one of them, operands first."""
    ends = set(sources)
    found: dict[Tensor, None] = {}
    for node in topological([y], sources):
        if node not in ends and any(x in ends or x in found for x in node.operands):
            found[node] = None
    return list(found)
