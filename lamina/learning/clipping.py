"""Clipping: keeps gradients from becoming too large, before the optimizer sees them.

Each is a frozen record that takes all gradients and gives as many, in the same shapes and dtype.
"""

from __future__ import annotations

from functools import reduce
from operator import add

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.checks.kinds import Positive
from lamina.graph import Tensor
from lamina.graph.tensor import Tensors
from lamina.layers.checks import Sourced

# As in torch.nn.utils.clip_grad_norm_.
_EPSILON = 1e-6


@frozen_dataclass
class ClipValue(Sourced):
    """Brings every element into [-limit, limit].

    Args:
        limit: the largest absolute value, above 0.

    Example:
        >>> (clipped,) = lm.training.clipping.ClipValue(0.5)([lm.Input(3)])
    """

    limit: Positive

    def __call__(self, gradients: Tensors) -> tuple[Tensor, ...]:
        return tuple(ops.clip(gradient, -self.limit, self.limit) for gradient in gradients)


@frozen_dataclass
class ClipNorm(Sourced):
    """Scales each gradient down to a Euclidean norm of at most the limit.

    Args:
        limit: the largest norm of one gradient, above 0.

    Example:
        >>> (clipped,) = lm.training.clipping.ClipNorm(1.0)([lm.Input(3)])
    """

    limit: Positive

    def __call__(self, gradients: Tensors) -> tuple[Tensor, ...]:
        return tuple(g * _factor(_square_sum(g), self.limit) for g in gradients)


@frozen_dataclass
class ClipGlobalNorm(Sourced):
    """Scales all gradients by one factor, so that the norm of all elements is at most the limit.

    The direction of the update stays. From Pascanu, Mikolov, Bengio: On the difficulty of training
    recurrent neural networks (2013), section 3.2; `torch.nn.utils.clip_grad_norm_`.

    Args:
        limit: the largest norm of all gradients together, above 0.

    Example:
        >>> first, second = lm.training.clipping.ClipGlobalNorm(1.0)([lm.Input(3), lm.Input(2)])
    """

    limit: Positive

    def __call__(self, gradients: Tensors) -> tuple[Tensor, ...]:
        if not gradients:
            return ()
        factor = _factor(reduce(add, map(_square_sum, gradients)), self.limit)
        return tuple(gradient * factor for gradient in gradients)


def _square_sum(x: Tensor) -> Tensor:
    return ops.sum(x * x)


def _factor(square_sum: Tensor, limit: float) -> Tensor:
    """Limit / norm, but at most 1."""
    return ops.minimum(limit / (ops.sqrt(square_sum) + _EPSILON), 1.0)
