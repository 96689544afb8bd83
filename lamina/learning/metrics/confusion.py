"""Metrics from a confusion matrix: how often each class was predicted as each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.graph import Tensor
from lamina.learning.metrics.metric import ByThreshold, OfClasses, Sums, element_weights, unknown
from lamina.learning.target_checks import counted_classes
from lamina.learning.weighting import aligned, weighted

__all__ = ["CohenKappa", "ConfusionMatrix", "MatthewsCorrelation", "MeanIoU"]


class _Counting(OfClasses):
    def _confusion(self, prediction: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        """The weights of examples by actual class (row) and predicted class (column)."""
        classes = counted_classes(prediction, self.of_one_number)
        labels, kept = self._labels(prediction, target)
        actual = ops.one_hot(labels, classes, prediction.dtype)
        predicted = ops.one_hot(ops.argmax(prediction, 1), classes, prediction.dtype)
        nans = unknown(prediction, target, labels.rank)
        weights = element_weights(nans, weights, kept)
        if weights is not None:
            weights = aligned(weights, labels)
            actual, nans = actual * ops.expand_dims(weights, labels.rank), weighted(nans, weights)
        predicted = predicted + ops.expand_dims(nans, labels.rank)
        actual, predicted = (ops.reshape(rows, (-1, classes)) for rows in (actual, predicted))
        return ops.matmul(ops.transpose(actual), predicted)


@frozen_dataclass
class ConfusionMatrix(_Counting):
    """How often class i (row) was predicted as class j (column).

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...], or
    probabilities in the shape of the scores. Counts are exact up to 2^24 examples in a batch.
    If the examples have weights, these are added up instead. NaN among the scores gives NaN.

    Args:
        ignore_index: the class number of targets that do not count, or None.

    Example:
        >>> lm.ConfusionMatrix().name
        'confusion_matrix'
    """

    smaller_is_better: ClassVar[bool | None] = None  # a matrix
    of_one_number: ClassVar[str] = "two outputs, with lm.CrossEntropy()"

    def statistics(self, prediction: Tensor, target: Tensor, weights: Tensor | None = None) -> Sums:
        matrix = self._confusion(prediction, target, weights)
        return {"counts" if weights is None else "weights": matrix}

    def result(self, sums: Mapping[str, Array]) -> Array:
        """int64 [classes, classes]; float64 if the examples have weights, or a score is NaN."""
        if "weights" in sums or np.isnan(sums["counts"]).any():
            return np.asarray(next(iter(sums.values())), np.float64)
        return np.rint(sums["counts"]).astype(np.int64)


@frozen_dataclass
class _OfConfusion(ByThreshold, _Counting):
    """The base of metrics from a confusion matrix.

    Predictions in the shape of the targets, with one number for each example, are of two
    classes, by a threshold.
    """

    def statistics(self, prediction: Tensor, target: Tensor, weights: Tensor | None = None) -> Sums:
        if self._is_by_threshold(prediction, target):
            columns = [ops.reshape(tensor, (-1,)) for tensor in (prediction, target)]
            positive = ops.cast(columns[0] > self._threshold, prediction.dtype)
            positive = positive + unknown(columns[0], columns[1], 1)
            ignored = self.ignore_index
            prediction = ops.stack([1.0 - positive, positive], 1)
            target = ops.cast(columns[1] > 0.5, "int64")
            if ignored is not None:
                target = ops.where(ops.equal(columns[1], ignored), ignored, target)
        return {"counts": self._confusion(prediction, target, weights)}

    def _is_by_threshold(self, prediction: Any, target: Any) -> bool:
        return target.shape == prediction.shape and prediction.shape[1:] in ((), (1,))

    def result(self, sums: Mapping[str, Array]) -> float:
        """From the whole matrix."""
        return float(self._of_matrix(np.asarray(sums["counts"], np.float64)))

    @abstractmethod
    def _of_matrix(self, counts: Array) -> float:
        """The metric, from a matrix of floats: actual classes are rows, predicted ones columns."""


@frozen_dataclass
class MeanIoU(_OfConfusion):
    """Intersection over union, hits / (predicted + actual - hits): the mean over the classes.

    Also called the Jaccard index: Jaccard: The distribution of the flora in the alpine zone (1912).
    Classes that occur neither among targets nor among predictions do not count.

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...]; or one
    number for each example, [batch] or [batch, 1], and targets of 0 and 1 in that shape.

    Args:
        logits: whether, for one number, the threshold is 0, for raw scores, or 0.5.
        ignore_index: the class number of targets that do not count, or None.

    Example:
        >>> lm.MeanIoU().name
        'mean_iou'
    """

    @property
    def name(self) -> str:
        return "mean_iou"

    def _of_matrix(self, counts: Array) -> float:
        hits = np.diag(counts)
        union = counts.sum(0) + counts.sum(1) - hits
        occurs = union != 0
        return float((hits[occurs] / union[occurs]).mean()) if occurs.any() else float("nan")


@frozen_dataclass
class MatthewsCorrelation(_OfConfusion):
    """The correlation of predicted and actual classes, from -1 to 1; 0 for a constant prediction.

    From Matthews: Comparison of the predicted and observed secondary structure of T4 phage lysozyme
    (1975); for several classes Gorodkin: Comparing two K-category assignments (2004).

    Takes the tensors and the arguments of `MeanIoU`.

    Example:
        >>> lm.MatthewsCorrelation().name
        'matthews_correlation'
    """

    def _of_matrix(self, counts: Array) -> float:
        actual, predicted, total = counts.sum(1), counts.sum(0), counts.sum()
        shared = np.trace(counts) * total - actual @ predicted
        spread = (total**2 - predicted @ predicted) * (total**2 - actual @ actual)
        if not total:
            return float("nan")
        return 0.0 if spread <= 0 else float(shared / np.sqrt(spread))


@frozen_dataclass
class CohenKappa(_OfConfusion):
    """The agreement of predicted and actual classes beyond chance: 1 is perfect, 0 is by chance.

    From Cohen: A coefficient of agreement for nominal scales (1960). It is NaN if both are always
    the same class.

    Takes the tensors and the arguments of `MeanIoU`.

    Example:
        >>> lm.CohenKappa().name
        'cohen_kappa'
    """

    def _of_matrix(self, counts: Array) -> float:
        total = counts.sum()
        if not total:
            return float("nan")
        by_chance = counts.sum(1) @ counts.sum(0) / total**2
        return float((np.trace(counts) / total - by_chance) / (1 - by_chance or np.nan))
