"""Losses of one class among several: cross-entropy, from scores and from log-probabilities."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, Shape
from lamina.checks.kinds import NotNegative, Number
from lamina.graph import Tensor
from lamina.learning.losses.loss import (
    Elements,
    OfClassNumbers,
    OfScores,
    Reduction,
    Scores,
    elements_that_count,
    focused,
    product,
    weighted_by_class,
)
from lamina.learning.losses.scores import SCORES, doubt
from lamina.learning.target_checks import (
    Weights,
    check_distributions,
    class_count,
    hits,
    known_classes,
    label_shape,
    matched,
    weight_tensor,
)

__all__ = ["NLL", "CrossEntropy", "Focal"]


@frozen_dataclass(kw_only=True)
class CrossEntropy(OfScores, OfClassNumbers):
    """-log of the probability that softmax gives to the correct class.

    Takes raw scores ("logits"), f32 or f64 [batch, classes, ...], not probabilities: softmax is
    part of the loss. Targets are class numbers, integers [batch, ...] without the axis of classes,
    or probabilities in the shape of the prediction.

    Args:
        label_smoothing: the share of the probability, from 0 to 1, that is spread evenly over all
            classes: Szegedy et al.: Rethinking the Inception architecture (2016), section 7.
        class_weights: a number of at least 0 for each class. With class numbers the mean is divided
            by the weights of the targets, as in PyTorch.
        ignore_index: the class number of targets that do not count, or None. They pass the check of
            class numbers; the mean is divided by what is left, and is NaN if nothing is.
        reduction: `"mean"` or `"sum"` over the examples, or `"none"` for the loss of each.

    Example:
        >>> lm.CrossEntropy()(lm.Input(10), lm.Input(dtype="int64")).shape
        ()
    """

    label_smoothing: Annotated[float, Number("[0, 1]")] = 0.0
    class_weights: Weights | None = None
    ignore_index: int | None = None
    reduction: Reduction = "mean"
    scores: ClassVar[Scores] = "softmax"

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        if array.dtype.kind in "iu":
            super().check_target(array, prediction_shape)
        elif array.dtype.kind == "f" and array.ndim == len(prediction_shape):
            check_distributions(self, array)

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        classes = class_count(prediction)
        weights = weight_tensor(self.class_weights, prediction, axis=1)
        # The logarithm of softmax is shifted - normaliser. The two are kept apart: the gradient of
        # the normaliser alone is softmax, without another sum over the classes.
        largest = ops.max(prediction, 1, keepdims=True)
        shifted = prediction - ops.stop_gradient(largest)
        normaliser = ops.log(ops.sum(ops.exp(shifted), 1, keepdims=True))
        smoothing = self.label_smoothing
        if target.dtype.is_float and target.shape != label_shape(prediction):
            shares = matched(prediction, target)
            if smoothing:
                shares = shares * (1 - smoothing) + smoothing / classes
            if weights is not None:
                shares = shares * weights
            return Elements(ops.sum(product(shares, normaliser - shifted), 1))
        hit = hits(prediction, target)
        each = normaliser - ops.sum(ops.where(hit, shifted, 0.0), 1, keepdims=True)
        each = known_classes(each, target, classes, self.ignore_index)
        each, of_target = weighted_by_class(each, hit, weights)
        if smoothing:
            every = normaliser - shifted
            every = every if weights is None else product(weights, every)
            spread = ops.sum(every, 1, keepdims=True)
            each = each * (1 - smoothing) + spread * (smoothing / classes)
        return elements_that_count(each, of_target, target, self.ignore_index)


@frozen_dataclass(kw_only=True)
class NLL(OfClassNumbers):
    """-log of the probability of the correct class, from log-probabilities.

    Takes log-probabilities, f32 or f64 [batch, classes, ...], as `LogSoftmax` gives them, and
    class numbers, integers [batch, ...]. `CrossEntropy` does both at once.

    Args:
        class_weights: a number of at least 0 for each class; the mean is divided by the weights of
            the targets, as in PyTorch.
        ignore_index: the class number of targets that do not count, or None. They pass the check of
            class numbers; the mean is divided by what is left, and is NaN if nothing is.
        reduction: `"mean"` or `"sum"` over the examples, or `"none"` for the loss of each.

    Example:
        >>> lm.NLL()(lm.LogSoftmax()(lm.Input(10)), lm.Input(dtype="int64")).shape
        ()
    """

    class_weights: Weights | None = None
    ignore_index: int | None = None
    reduction: Reduction = "mean"

    def doubt(self, prediction: Any) -> str:
        advice = "Write lm.CrossEntropy() for raw scores, or end in lm.LogSoftmax()."
        wanted = "logarithms of probabilities"
        return doubt(prediction, (SCORES, "probabilities"), wanted, advice)

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        classes = class_count(prediction)
        weights = weight_tensor(self.class_weights, prediction, axis=1)
        hit = hits(prediction, target)
        each = -ops.sum(ops.where(hit, prediction, 0.0), 1, keepdims=True)
        each = known_classes(each, target, classes, self.ignore_index)
        each, of_target = weighted_by_class(each, hit, weights)
        return elements_that_count(each, of_target, target, self.ignore_index)


@frozen_dataclass(kw_only=True)
class Focal(OfScores, OfClassNumbers):
    """-(1 - p)^focus log(p), for the probability p that softmax gives to the correct class.

    From Lin et al.: Focal loss for dense object detection (2017): easy examples count little. Takes
    raw scores, f32 or f64 [batch, classes, ...], and class numbers, integers [batch, ...].

    Args:
        focus: the exponent, "gamma", at least 0; with 0 the loss is `CrossEntropy`.
        class_weights: a number of at least 0 for each class, "alpha"; the mean is divided by the
            number of targets, not by their weights.
        ignore_index: the class number of targets that do not count, or None.
        reduction: `"mean"` or `"sum"` over the examples, or `"none"` for the loss of each.

    Example:
        >>> lm.Focal()(lm.Input(10), lm.Input(dtype="int64")).shape
        ()
    """

    focus: NotNegative = 2.0
    class_weights: Weights | None = None
    ignore_index: int | None = None
    reduction: Reduction = "mean"
    scores: ClassVar[Scores] = "softmax"

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        classes = class_count(prediction)
        weights = weight_tensor(self.class_weights, prediction, axis=1)
        hit = hits(prediction, target)
        logarithms = ops.log_softmax(prediction, 1)
        each = -ops.sum(ops.where(hit, logarithms, 0.0), 1, keepdims=True)
        if self.focus:
            each = focused(each, -ops.expm1(-each), self.focus)
        each = known_classes(each, target, classes, self.ignore_index)
        each, _ = weighted_by_class(each, hit, weights)
        return elements_that_count(each, None, target, self.ignore_index)
