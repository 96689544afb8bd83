"""Losses of regions: the overlap of predicted and wanted pixels."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, Shape
from lamina.checks.kinds import NotNegative
from lamina.graph import Tensor
from lamina.learning.losses.loss import Elements, Loss, Reduction
from lamina.learning.losses.scores import SCORES, doubt
from lamina.learning.target_checks import (
    check_labels,
    check_probabilities,
    class_count,
    hits,
    label_shape,
    matched,
)

__all__ = ["Dice"]


@frozen_dataclass(kw_only=True)
class Dice(Loss):
    """1 - (2 sum(p t) + smoothing) / (sum(p) + sum(t) + smoothing), for each example and class.

    From Milletari, Navab, Ahmadi: V-Net (2016), who divide by sums of squares (`squared`). Takes
    probabilities, f32 or f64 [batch, classes, ...], as `Softmax(axis=1)` or `Sigmoid` gives them,
    and targets between 0 and 1 of the same shape, or class numbers, integers [batch, ...]. The sums
    are over all axes but the first two.

    Args:
        smoothing: a summand of at least 0 on both sides of the fraction, which is 1 if both are 0.
        squared: whether the divisor is sum(p^2) + sum(t^2).
        reduction: `"mean"` or `"sum"` over examples and classes, or `"none"`, [batch, classes].

    Example:
        >>> lm.Dice()(lm.Sigmoid()(lm.Input(2, 8, 8)), lm.Input(2, 8, 8)).shape
        ()
    """

    smoothing: NotNegative = 1e-5
    squared: bool = False
    reduction: Reduction = "mean"

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        if array.ndim < len(prediction_shape):
            check_labels(self, array, prediction_shape)
        else:
            check_probabilities(self, array)

    def doubt(self, prediction: Any) -> str:
        advice = "End in lm.Sigmoid(), or in lm.Softmax(axis=1) for class numbers."
        return doubt(prediction, (SCORES, "logarithms of probabilities"), "probabilities", advice)

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        class_count(prediction, 1)
        if target.shape == label_shape(prediction):
            target = ops.cast(hits(prediction, target), prediction.dtype)
        else:
            target = matched(prediction, target)
        axes = tuple(range(2, prediction.rank))

        def total(x: Tensor) -> Tensor:
            return ops.sum(x, axes) if axes else x

        own = prediction * prediction if self.squared else prediction
        both = total(own) + total(target * target if self.squared else target)
        shared = 2.0 * total(prediction * target)
        empty = ops.equal(both + self.smoothing, 0.0)
        divisor = ops.where(empty, 1.0, both + self.smoothing)
        overlap = (shared + self.smoothing) / divisor
        return Elements(1.0 - ops.where(empty, 1.0, overlap))
