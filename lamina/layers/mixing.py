"""Layers that mix the examples of a batch with each other while training: mixup and CutMix.

A layer passes the share to `scope.mix`; the loss is then share * loss(own target) + (1 - share) *
loss(partner's target). One layer of a network may mix the batch; a second is a `DefinitionError`.
"""

from __future__ import annotations

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, float32, int64
from lamina.checks.kinds import Positive
from lamina.graph import Tensor
from lamina.layers.augmentation import below, positions
from lamina.layers.checks import image_extents, require_float
from lamina.layers.layer import Layer
from lamina.layers.scope import Scope, partners

__all__ = ["CutMix", "Mixup"]


@frozen_dataclass(kw_only=True)
class Mixup(Layer):
    """Means of pairs of examples, and of their losses, while training; nothing in inference.

    Takes f32 or f64 [batch, ...]. The result is share * x + (1 - share) * partner; the partner is
    the example before it in the batch. The share is drawn once for each batch, from the
    Beta(alpha, alpha) distribution. The loss is share * loss(prediction, target) + (1 - share) *
    loss(prediction, target of the partner). Metrics take the example's own target. After Zhang,
    Cisse, Dauphin, Lopez-Paz: mixup: beyond empirical risk minimization (2018).

    Args:
        alpha: the parameter of the distribution: 1 makes all shares equally likely, less favours 0
            and 1.

    Example:
        >>> y = lm.Mixup(alpha=0.2)(lm.Input(3, 32, 32))
    """

    alpha: Positive = 1.0

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        require_float(self, x)
        if not scope.training:
            return x
        share = _beta(scope, self.alpha)
        scope.mix(share)
        weight = ops.cast(share, x.dtype)
        return weight * x + (1 - weight) * partners(x)


@frozen_dataclass(kw_only=True)
class CutMix(Layer):
    """Puts a rectangle of another image into each one while training; does nothing in inference.

    Takes any dtype [batch, channels, height, width]. The rectangle comes from the partner, the
    image before it in the batch, and is the same for the whole batch. Its share of the area is
    drawn from the Beta(alpha, alpha) distribution and its centre from the whole image, where it is
    clipped. The loss is share * loss(prediction, target) + (1 - share) * loss(prediction, target of
    the partner), with the share of the area that is left. Metrics take the example's own target.
    After Yun, Han, Oh, Chun, Choe, Yoo: CutMix (2019).

    Args:
        alpha: the parameter of the distribution: 1 makes all shares equally likely, less favours 0
            and 1.

    Example:
        >>> y = lm.CutMix()(lm.Input(3, 32, 32))
    """

    alpha: Positive = 1.0

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        extents = image_extents(self, x)
        if not scope.training:
            return x
        root = ops.sqrt(1 - _beta(scope, self.alpha))
        area: Tensor = ops.constant(1, int64)
        inside: Tensor = ops.constant(True)
        for axis, extent in zip((2, 3), extents, strict=True):
            half = ops.cast(root * extent, int64) // 2
            centre = below(scope, (), extent)
            start, end = ops.maximum(centre - half, 0), ops.minimum(centre + half, extent)
            at = positions(x, axis)
            inside = ops.logical_and(inside, ops.logical_and(at >= start, at < end))
            area = area * (end - start)
        scope.mix(1 - ops.cast(area, float32) / (extents[0] * extents[1]))
        return ops.where(inside, partners(x), x)


# The intervals of the table of a distribution.
_INTERVALS = 1024


def _beta(scope: Scope, alpha: float) -> Tensor:
    """A number of the Beta(alpha, alpha) distribution, f32[]: linear between its quantiles."""
    at = scope.uniform((), dtype=float32) * _INTERVALS
    table = ops.constant(beta_quantiles(alpha, _INTERVALS), float32)
    below_it = ops.cast(at, int64)
    low, high = ops.take(table, below_it), ops.take(table, below_it + 1)
    return low + (at - ops.floor(at)) * (high - low)


def beta_quantiles(alpha: float, intervals: int) -> Array:
    """Where the distribution function of Beta(alpha, alpha) is 0, 1 / intervals, ..., 1."""
    # The density is symmetric, so its integral over x from 0 to 1/2 suffices. Below alpha = 1 it is
    # infinite at 0, but bounded as a function of w = (2 x)^alpha, over which it is integrated by
    # the trapezoidal rule.
    power = min(alpha, 1.0)
    w = np.linspace(0.0, 1.0, 2**15 + 1)
    x = w ** (1 / power) / 2
    density = (2 - 2 * x) ** (alpha - 1) if alpha < 1 else (4 * x * (1 - x)) ** (alpha - 1)
    total = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    levels = np.linspace(0.0, 1.0, intervals // 2 + 1)
    lower = np.interp(levels, total / total[-1], w) ** (1 / power) / 2
    return np.concatenate([lower, 1 - lower[-2::-1]])
