"""How a layer mixes the examples of a batch with each other, for the loss."""

from __future__ import annotations

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.graph import Tensor


@frozen_dataclass
class Mixture:
    """Each example contains a share of itself, and for the rest its partner.

    Attributes:
        share: one number for the batch, from 0 to 1.
        origin: the layer that mixes them, as text.
    """

    share: Tensor
    origin: str


def partners(x: Tensor) -> Tensor:
    """The example before each example along the batch; before the first one, the last."""
    return ops.roll(x, 1, 0)
