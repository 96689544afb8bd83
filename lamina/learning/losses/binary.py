"""Losses of two classes, or of several labels at once: binary cross-entropy, focal, Dice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, Shape
from lamina.checks.kinds import Either, Fraction, NotNegative, Row
from lamina.graph import Tensor
from lamina.learning.losses.loss import (
    WEIGHT,
    Elements,
    Loss,
    OfProbabilities,
    OfScores,
    Reduction,
    Scores,
    binary_cross_entropy,
    focused,
    product,
)
from lamina.learning.losses.scores import SCORES, doubt, is_softmax_of_one
from lamina.learning.target_checks import (
    Weights,
    check_labels,
    check_probabilities,
    class_count,
    hits,
    label_shape,
    matched,
    weight_tensor,
)

__all__ = ["BCE", "BCEWithLogits", "BinaryFocal", "Dice"]


@frozen_dataclass(kw_only=True)
class BCE(OfProbabilities):
    """-(t log p + (1 - t) log(1 - p)) for probabilities p and targets t between 0 and 1.

    Takes p f32 or f64 of any shape, as `Sigmoid` gives it, and targets of the same shape. The
    logarithms are not less than -100, as in PyTorch; where one would be, the gradient is 0.
    `BCEWithLogits` is more accurate.

    Args:
        class_weights: factors, at least 0, for the indices of the last axis. As in PyTorch, the
            mean is divided by the number of elements, not by the factors.
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.BCE()(lm.Sigmoid()(lm.Input(1)), lm.Input(1)).shape
        ()
    """

    class_weights: Weights | None = None
    reduction: Reduction = "mean"

    def doubt(self, prediction: Any) -> str:
        if is_softmax_of_one(prediction):
            return "the prediction is the softmax of a single number: 1. End in lm.Sigmoid()."
        advice = "Write lm.BCEWithLogits() for raw scores, or end in lm.Sigmoid()."
        return doubt(prediction, (SCORES, "logarithms of probabilities"), "probabilities", advice)

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        target = matched(prediction, target)
        each = (target - 1.0) * _log1m(prediction) - target * _log(prediction)
        return Elements(_scaled(each, self.class_weights, prediction))


@frozen_dataclass(kw_only=True)
class BCEWithLogits(OfScores, OfProbabilities):
    """Binary cross entropy of sigmoid(x), computed from the scores x without overflow.

    Takes raw scores, f32 or f64 of any shape, and targets between 0 and 1 of the same shape.

    Args:
        positive_weight: a factor for targets of 1, at least 0: one number, or one for each index of
            the last axis.
        class_weights: factors, at least 0, for the indices of the last axis. As in PyTorch, the
            mean is divided by the number of elements, not by the factors.
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.BCEWithLogits(positive_weight=3.0)(lm.Input(1), lm.Input(1)).shape
        ()
    """

    positive_weight: Annotated[float | Sequence[float], Either(WEIGHT, Row(WEIGHT))] | None = None
    class_weights: Weights | None = None
    reduction: Reduction = "mean"
    scores: ClassVar[Scores] = "sigmoid"

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        target = matched(prediction, target)
        weight = self.positive_weight
        if weight is not None and not isinstance(weight, int | float):
            weight = weight_tensor(weight, prediction, axis=-1)
        each = binary_cross_entropy(prediction, target, weight)
        return Elements(_scaled(each, self.class_weights, prediction))


@frozen_dataclass(kw_only=True)
class BinaryFocal(OfScores, OfProbabilities):
    """(1 - p)^focus times the binary cross-entropy, for the probability p of the right answer.

    From Lin et al.: Focal loss for dense object detection (2017): easy examples count little. Takes
    raw scores, f32 or f64 of any shape, and targets between 0 and 1 of the same shape.

    Args:
        focus: the exponent, "gamma", at least 0; with 0 the loss is `BCEWithLogits`.
        balance: the factor for targets of 1, "alpha", in [0, 1); targets of 0 have 1 - balance;
            None for none.
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.BinaryFocal(focus=1.5)(lm.Input(3), lm.Input(3)).shape
        ()
    """

    focus: NotNegative = 2.0
    balance: Fraction | None = 0.25
    reduction: Reduction = "mean"
    scores: ClassVar[Scores] = "sigmoid"

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        target = matched(prediction, target)
        each = binary_cross_entropy(prediction, target)
        if self.focus:
            wrong = ops.sigmoid(prediction) * (1.0 - target) + ops.sigmoid(-prediction) * target
            each = focused(each, wrong, self.focus)
        if self.balance is not None:
            each = each * (target * self.balance + (1.0 - target) * (1.0 - self.balance))
        return Elements(each)


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

        powers = prediction * prediction if self.squared else prediction
        both = total(powers) + total(target * target if self.squared else target)
        shared = 2.0 * total(prediction * target)
        empty = ops.equal(both + self.smoothing, 0.0)
        divisor = ops.where(empty, 1.0, both + self.smoothing)
        overlap = (shared + self.smoothing) / divisor
        return Elements(1.0 - ops.where(empty, 1.0, overlap))


def _scaled(each: Tensor, weights: Sequence[float] | None, prediction: Tensor) -> Tensor:
    factors = weight_tensor(weights, prediction, axis=-1)
    return each if factors is None else product(factors, each)


def _log(p: Tensor) -> Tensor:
    """log(p), but at least -100, with a finite gradient at 0."""
    never = p <= 0
    return ops.where(never, -100.0, ops.clip(ops.log(ops.where(never, 1.0, p)), low=-100.0))


def _log1m(p: Tensor) -> Tensor:
    """log(1 - p), but at least -100, with a finite gradient at 1."""
    always = p >= 1
    return ops.where(always, -100.0, ops.clip(ops.log1p(-ops.where(always, 0.0, p)), low=-100.0))
