"""Penalties on parameters that are added to the loss."""

from __future__ import annotations

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.checks.kinds import NotNegative
from lamina.graph import Tensor
from lamina.layers.checks import Sourced

__all__ = ["L1", "L2"]


@frozen_dataclass
class L1(Sourced):
    """strength sum |w|: drives parameters to exactly zero.

    Takes f32 or f64 of any shape and gives a tensor without axes.

    Args:
        strength: the factor of the sum.

    Example:
        >>> layer = lm.Linear(10, weight_regularizer=lm.L1(1e-5))
    """

    strength: NotNegative

    def __call__(self, parameter: Tensor) -> Tensor:
        return ops.sum(ops.abs(parameter)) * self.strength


@frozen_dataclass
class L2(Sourced):
    """strength / 2 sum w^2: pulls parameters towards zero.

    Its gradient is strength w, so that with plain gradient descent it does what PyTorch's
    `weight_decay` does. Takes f32 or f64 of any shape and gives a tensor without axes.

    Args:
        strength: the factor of w in the gradient.

    Example:
        >>> layer = lm.Linear(10, weight_regularizer=lm.L2(1e-4))
    """

    strength: NotNegative

    def __call__(self, parameter: Tensor) -> Tensor:
        return ops.sum(parameter * parameter) * (self.strength / 2)
