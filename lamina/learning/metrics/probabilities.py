"""Metrics of probabilities: calibration and perplexity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.checks.kinds import Count
from lamina.graph import Tensor
from lamina.learning.losses.scores import SCORES, doubt
from lamina.learning.metrics.metric import (
    PROBABILITIES,
    OfClasses,
    OfTargets,
    Sums,
    doubt_by_threshold,
    element_weights,
    full_weights,
    not_probabilities,
    ratio,
    same_shape,
    summed,
)
from lamina.learning.weighting import weighted

__all__ = ["CalibrationError", "Perplexity"]


@frozen_dataclass(kw_only=True)
class CalibrationError(OfTargets):
    """How far confidence is from accuracy: the mean difference of the two, over bins of confidence.

    From Guo et al.: On calibration of modern neural networks (2017), "ECE". The confidence is the
    highest probability of a class, and the accuracy the share of examples for which that class is
    the right one. Takes probabilities f32 or f64 [batch, classes, ...] and class numbers, integers
    [batch, ...]; or probabilities of one thing, of any shape, and targets of 0 and 1 in that shape,
    whose share is the accuracy.

    Args:
        bins: the number of bins, of equal width between 0 and 1.
        norm: `"mean"` over the examples, `"square"` for the root of the mean of the squares, or
            `"max"` for the bin that is farthest.
        logits: whether predictions are raw scores; their softmax or sigmoid is taken.
        ignore_index: the class number of targets that do not count, or None.

    Example:
        >>> lm.CalibrationError(bins=10).name
        'calibration_error'
    """

    bins: Count = 15
    norm: Literal["mean", "square", "max"] = "mean"
    logits: bool = False
    smaller_is_better: ClassVar[bool | None] = True

    def statistics(self, prediction: Tensor, target: Tensor, weights: Tensor | None = None) -> Sums:
        if target.shape == prediction.shape:
            confidence = ops.sigmoid(prediction) if self.logits else prediction
            correct = same_shape(prediction, target)
            kept = self._kept(target)
        else:
            classes, kept = self._labels(prediction, target)
            probabilities = ops.softmax(prediction, 1) if self.logits else prediction
            confidence = ops.max(probabilities, 1)
            correct = ops.cast(ops.equal(ops.argmax(prediction, 1), classes), prediction.dtype)
        numbers = ops.cast(ops.floor(confidence * float(self.bins)), "int64")
        numbers = ops.clip(numbers, 0, self.bins - 1)
        weights = full_weights(confidence, element_weights(confidence, weights, kept))
        member = ops.one_hot(ops.reshape(numbers, (-1,)), self.bins, prediction.dtype)
        weights = ops.reshape(weights, (-1, 1))

        def total(values: Tensor) -> Tensor:
            return ops.sum(member * weighted(ops.reshape(values, (-1, 1)), weights), 0)

        count = ops.sum(member * weights, 0)
        return {"confidence": total(confidence), "correct": total(correct), "count": count}

    def doubt(self, prediction: Any, target: Any, loss: object) -> str:
        """Of raw scores and logarithms without `logits`, and of probabilities with it."""
        if self.logits:
            return not_probabilities(prediction, "logits=True")
        if target.shape == prediction.shape:
            return doubt_by_threshold(prediction, loss, logits=False, writing="logits=True")
        # The softmax of logarithms of probabilities is these probabilities.
        wrong, advice = (SCORES, "logarithms of probabilities"), "Write logits=True for these."
        return doubt(prediction, wrong, PROBABILITIES, advice, "metric")

    def result(self, sums: Mapping[str, Array]) -> float:
        """From 0 to 1."""
        confidence, correct, count = (
            np.asarray(sums[name], np.float64) for name in ("confidence", "correct", "count")
        )
        filled = count > 0
        if not filled.any():
            return float("nan")
        gaps = np.abs(confidence[filled] - correct[filled]) / count[filled]
        shares = count[filled] / count.sum()
        if self.norm == "max":
            return float(gaps.max())
        mean = gaps @ shares if self.norm == "mean" else np.sqrt(gaps**2 @ shares)
        return float(mean)


@frozen_dataclass
class Perplexity(OfClasses):
    """exp of the mean cross-entropy: among how many equally probable classes the model chooses.

    Takes raw scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...]. It
    is NaN if one is out of range.

    Args:
        ignore_index: the class number of targets that do not count, or None.

    Example:
        >>> lm.Perplexity(ignore_index=-1).name
        'perplexity'
    """

    smaller_is_better: ClassVar[bool | None] = True
    of_one_number: ClassVar[str] = "the metric lm.BCEWithLogits()"
    of_labels: ClassVar[str] = "the metric lm.BCEWithLogits()"

    def statistics(self, prediction: Tensor, target: Tensor, weights: Tensor | None = None) -> Sums:
        classes, kept = self._labels(prediction, target)
        numbers = self._class_numbers(prediction)
        hit = ops.equal(ops.expand_dims(classes, 1), numbers)
        each = -ops.sum(ops.where(hit, ops.log_softmax(prediction, 1), 0.0), 1)
        each = ops.where(ops.any(hit, 1), each, float("nan"))
        return summed(each, element_weights(each, weights, kept))

    def doubt(self, prediction: Any, target: Any, loss: object) -> str:
        """Of probabilities; the softmax of their logarithms is right."""
        advice = "Leave the layer before it out, or end in lm.LogSoftmax()."
        return doubt(prediction, (PROBABILITIES,), SCORES, advice, "metric")

    def result(self, sums: Mapping[str, Array]) -> float:
        """1 or more; NaN without targets that count."""
        with np.errstate(over="ignore"):
            return float(np.exp(ratio(sums["sum"], sums["count"])))
