"""Losses of margins: hinge and its relatives, for signs, ranks, classes and several labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, Shape, int64
from lamina.checks.kinds import Number, Whole
from lamina.errors import DTypeError, ShapeError
from lamina.graph import Tensor, described
from lamina.learning.losses.loss import (
    Elements,
    OfClassNumbers,
    OfProbabilities,
    OfScores,
    OfSeveral,
    OfSigns,
    Reduced,
    Reduction,
    Scores,
    Target,
    binary_cross_entropy,
    product,
    weighted_by_class,
)
from lamina.learning.target_checks import (
    Weights,
    check_labels,
    class_count,
    hits,
    known_classes,
    matched,
    weight_tensor,
)

__all__ = ["CategoricalHinge", "Hinge", "HingeEmbedding", "MarginRanking", "MultiLabelMargin"]
__all__ += ["MultiLabelSoftMargin", "MultiMargin", "SoftMargin", "SquaredHinge"]

# A margin may be negative; PyTorch allows it too.
Margin = Annotated[float, Number()]


@frozen_dataclass
class Hinge(Reduced, OfSigns):
    """max(0, 1 - t x) for scores x and targets t of -1 or 1: the loss of a support vector machine.

    From Cortes, Vapnik: Support-vector networks (1995). Takes scores f32 or f64 of any shape and
    targets of the same shape. The gradient where t x = 1 is 0.

    Args:
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.Hinge()(lm.Input(1), lm.Input(1)).shape
        ()
    """

    scores: ClassVar[Scores] = "margins"

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        return Elements(ops.relu(1.0 - matched(prediction, target) * prediction))


@frozen_dataclass
class SquaredHinge(Reduced, OfSigns):
    """max(0, 1 - t x)^2 for scores x and targets t of -1 or 1.

    Takes scores f32 or f64 of any shape and targets of the same shape.

    Args:
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.SquaredHinge()(lm.Input(1), lm.Input(1)).shape
        ()
    """

    scores: ClassVar[Scores] = "margins"

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        missing = ops.relu(1.0 - matched(prediction, target) * prediction)
        return Elements(missing * missing)


@frozen_dataclass
class SoftMargin(Reduced, OfScores, OfSigns):
    """log(1 + exp(-t x)) for scores x and targets t of -1 or 1: the logistic loss.

    Takes scores f32 or f64 of any shape and targets of the same shape.

    Args:
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.SoftMargin()(lm.Input(1), lm.Input(1)).shape
        ()
    """

    scores: ClassVar[Scores] = "margins"

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        return Elements(ops.softplus(-(matched(prediction, target) * prediction)))


@frozen_dataclass(kw_only=True)
class HingeEmbedding(OfSigns):
    """x where the target is 1, max(0, margin - x) where it is -1: x is a distance of two things.

    Takes distances f32 or f64 of any shape and targets of the same shape: 1 for things that are
    alike, -1 for others.

    Args:
        margin: the distance from which things that differ have no loss.
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.HingeEmbedding()(lm.Input(1), lm.Input(1)).shape
        ()
    """

    margin: Margin = 1.0
    reduction: Reduction = "mean"

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        alike = matched(prediction, target) > 0
        other = ops.clip(self.margin - prediction, low=0.0)
        return Elements(ops.where(alike, prediction, other))


@frozen_dataclass(kw_only=True)
class MarginRanking(OfSeveral, OfSigns):
    """max(0, margin - t (x1 - x2)): with the target 1, x1 should be larger than x2; with -1, x2.

    The prediction is a tuple of two tensors of one shape, f32 or f64 of any shape; the target has
    that shape.

    Args:
        margin: the difference by which the right one should be larger.
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.MarginRanking(margin=0.5)((lm.Input(1), lm.Input(1)), lm.Input(1)).shape
        ()
    """

    margin: Margin = 0.0
    reduction: Reduction = "mean"

    def elements(self, prediction: Sequence[Tensor], target: Tensor) -> Elements:
        first, second = self._outputs(prediction)
        difference = first - matched(first, second)
        target = matched(first, target)
        return Elements(ops.clip(self.margin - target * difference, low=0.0))


@frozen_dataclass(kw_only=True)
class MultiMargin(OfClassNumbers):
    """The mean over all classes but the right one of max(0, margin - x[right] + x[class])^power.

    The sum is divided by the number of all classes, as in PyTorch. From Crammer, Singer: On the
    algorithmic implementation of multiclass kernel-based vector machines (2001). Takes scores, f32
    or f64 [batch, classes], and class numbers, integers [batch].

    Args:
        power: the exponent, 1 or 2.
        margin: the difference by which the score of the right class should be larger.
        class_weights: factors of the classes, at least 0; the mean is not divided by them.
        reduction: `"mean"` or `"sum"` over the examples, or `"none"` for the loss of each.

    Example:
        >>> lm.MultiMargin()(lm.Input(10), lm.Input(dtype="int64")).shape
        ()
    """

    power: Annotated[int, Whole(1, 2)] = 1
    margin: Margin = 1.0
    class_weights: Weights | None = None
    reduction: Reduction = "mean"
    scores: ClassVar[Scores] = "margins"

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        classes = class_count(prediction)
        weights = weight_tensor(self.class_weights, prediction, axis=1)
        hit = hits(prediction, target)
        right = ops.sum(ops.where(hit, prediction, 0.0), 1, keepdims=True)
        missing = ops.relu(self.margin - right + prediction)
        missing = missing if self.power == 1 else missing * missing
        each = ops.sum(ops.where(hit, 0.0, missing), 1, keepdims=True) / float(classes)
        each, _ = weighted_by_class(each, hit, weights)
        return Elements(known_classes(each, target, classes), axis=1)


@frozen_dataclass
class CategoricalHinge(Reduced, OfClassNumbers):
    """max(0, 1 - x[right] + the largest other score): Keras' loss of this name.

    As in Keras, the right class counts among the others with the score 0. Takes scores, f32 or f64
    [batch, classes], and class numbers, integers [batch].

    Args:
        reduction: `"mean"` or `"sum"` over the examples, or `"none"` for the loss of each.

    Example:
        >>> lm.CategoricalHinge()(lm.Input(10), lm.Input(dtype="int64")).shape
        ()
    """

    scores: ClassVar[Scores] = "margins"

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        hit = hits(prediction, target)
        right = ops.sum(ops.where(hit, prediction, 0.0), 1, keepdims=True)
        largest = ops.max(ops.where(hit, 0.0, prediction), 1, keepdims=True)
        each = ops.relu(1.0 - right + largest)
        return Elements(known_classes(each, target, class_count(prediction)), axis=1)


@frozen_dataclass
class MultiLabelMargin(Reduced):
    """The sum of max(0, 1 - x[label] + x[class]) over labels and other classes, / classes.

    Takes scores, f32 or f64 [batch, classes], and the numbers of the labels of each example,
    integers [batch, classes]: those before the first negative number count.

    Args:
        reduction: `"mean"` or `"sum"` over the examples, or `"none"` for the loss of each.

    Example:
        >>> lm.MultiLabelMargin()(lm.Input(10), lm.Input(10, dtype="int64")).shape
        ()
    """

    scores: ClassVar[Scores] = "margins"

    def target(self, prediction: Tensor) -> Target:
        return prediction.shape, int64

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        first: Array = np.arange(int(noise.shape[-1])) == 0
        return np.where(first, np.floor(np.abs(noise) * 1000) % prediction_shape[1], -1)

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        check_labels(self, np.maximum(array, 0), prediction_shape)

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        classes = class_count(prediction)
        if prediction.rank != 2 or target.shape != prediction.shape:
            raise ShapeError(
                "the labels do not fit the scores",
                facts=(
                    ("prediction", described(prediction)),
                    ("expected", "i64[batch, classes] for scores [batch, classes]"),
                    ("found", described(target)),
                ),
                advice="Fill the labels up with -1, to as many as there are classes.",
            )
        if target.dtype.kind != "int":
            raise DTypeError(
                "labels are numbers of classes, integers",
                facts=(("expected", "i64[batch, classes]"), ("found", described(target))),
                advice="Convert the targets: y.astype('int64').",
            )
        labels = ops.cast(target, "int64")
        ended = ops.cumsum(ops.cast(labels < 0, "int64"), 1) > 0
        hit = ops.equal(ops.expand_dims(labels, 2), ops.arange(classes))
        hit = ops.logical_and(hit, ops.expand_dims(ops.logical_not(ended), 2))
        scores = ops.expand_dims(prediction, 1)
        right = ops.sum(ops.where(hit, scores, 0.0), 2, keepdims=True)
        others = ops.logical_not(ops.any(hit, 1, keepdims=True))
        counts = ops.logical_and(others, ops.any(hit, 2, keepdims=True))
        missing = ops.where(counts, ops.relu(1.0 - right + scores), 0.0)
        return Elements(ops.sum(missing, (1, 2)) / float(classes))


@frozen_dataclass(kw_only=True)
class MultiLabelSoftMargin(OfScores, OfProbabilities):
    """The mean over the classes of the binary cross-entropy of scores, for several labels at once.

    Takes raw scores, f32 or f64 [batch, ..., classes], and targets between 0 and 1 of the same
    shape.

    Args:
        class_weights: factors of the classes, at least 0; the mean is not divided by them.
        reduction: `"mean"` or `"sum"` over the examples, or `"none"` for the loss of each.

    Example:
        >>> lm.MultiLabelSoftMargin()(lm.Input(10), lm.Input(10)).shape
        ()
    """

    class_weights: Weights | None = None
    reduction: Reduction = "mean"
    scores: ClassVar[Scores] = "sigmoid"

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        target = matched(prediction, target)
        each = binary_cross_entropy(prediction, target)
        weights = weight_tensor(self.class_weights, prediction, axis=-1)
        return Elements(ops.mean(each if weights is None else product(weights, each), -1))
