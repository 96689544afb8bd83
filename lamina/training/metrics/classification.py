"""Metrics of classes: accuracy, precision and recall, and what follows from a confusion matrix."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, Literal

import numpy as np

from lamina import ops
from lamina.graph import Tensor
from lamina.graph.kinds import Count
from lamina.layers.checks import origin_text
from lamina.objective.weighting import aligned
from lamina.records import frozen_dataclass
from lamina.shapes import Array
from lamina.training.metrics.metric import (
    Metric,
    class_count,
    class_numbers,
    counted,
    doubt_by_threshold,
    element_weights,
    kept_labels,
    labels,
    ratio,
    same_shape,
    share,
)

Average = Literal["macro", "micro", "binary"]


@frozen_dataclass
class Accuracy(Metric):
    """The share of examples whose correct class has the highest score.

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...], or
    probabilities in the shape of the scores. Among equal scores the first counts.

    Args:
        ignore_index: the class number of targets that do not count, or None.

    Raises:
        DefinitionError: if `ignore_index` is not a whole number.

    Example:
        >>> import lamina as lm
        >>> lm.Accuracy().name
        'accuracy'
    """

    _: KW_ONLY
    ignore_index: int | None = None

    @property
    def name(self) -> str:
        """`"accuracy"`."""
        return "accuracy"

    def statistics(
        self, prediction: Tensor, target: Tensor, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`correct` and `count`; ShapeError and DTypeError as for all metrics."""
        wanted = labels(self, prediction, target)
        correct = ops.equal(ops.argmax(prediction, 1), wanted)
        return counted(correct, prediction, weights, kept_labels(wanted, self.ignore_index))

    def result(self, sums: Mapping[str, Array]) -> float:
        """From 0 to 1."""
        return ratio(sums["correct"], sums["count"])


@frozen_dataclass
class BinaryAccuracy(Metric):
    """The share of elements on the right side of a threshold.

    Takes predictions f32 or f64 of any shape and targets of 0 and 1 in the same shape.

    Args:
        threshold: predictions above it mean 1; 0.5 for probabilities, 0 for raw scores.

    Raises:
        DefinitionError: if the threshold is not a finite number.

    Example:
        >>> import lamina as lm
        >>> lm.BinaryAccuracy(threshold=0.0).name
        'binary_accuracy'
    """

    _: KW_ONLY
    threshold: float = 0.5

    @property
    def name(self) -> str:
        """`"binary_accuracy"`."""
        return "binary_accuracy"

    def statistics(
        self, prediction: Tensor, target: Tensor, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`correct` and `count`; ShapeError and DTypeError as for all metrics."""
        wanted = same_shape(self, prediction, target) > 0.5
        return counted(ops.equal(prediction > self.threshold, wanted), prediction, weights)

    def doubt(self, prediction: Any, target: Any, loss: object) -> str:
        """Of raw scores with the threshold 0.5, also if only the loss says that they are such.

        And of probabilities with a threshold of 0 or less.
        """
        del target
        if 0 < self.threshold != 0.5:
            return ""
        is_for_scores = self.threshold <= 0
        writing = f"threshold={self.threshold if is_for_scores else 0.0}"
        return doubt_by_threshold(prediction, loss, logits=is_for_scores, writing=writing)

    def result(self, sums: Mapping[str, Array]) -> float:
        """From 0 to 1."""
        return ratio(sums["correct"], sums["count"])


@frozen_dataclass
class TopK(Metric):
    """The share of examples whose correct class is among the k highest scores.

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...], or
    probabilities in the shape of the scores. Among equal scores the first classes count.

    Args:
        k: the number of classes that count.
        ignore_index: the class number of targets that do not count, or None.

    Raises:
        DefinitionError: if k is not a whole number above zero.

    Example:
        >>> import lamina as lm
        >>> lm.TopK(5).name
        'top_5'
    """

    k: Count = 5
    _: KW_ONLY
    ignore_index: int | None = None

    @property
    def name(self) -> str:
        """`"top_5"` for k = 5."""
        return f"top_{self.k}"

    def statistics(
        self, prediction: Tensor, target: Tensor, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`correct` and `count`; ShapeError and DTypeError as for all metrics."""
        classes = labels(self, prediction, target)
        wanted = ops.expand_dims(classes, 1)
        numbers = class_numbers(self, prediction)
        own = ops.equal(wanted, numbers)
        score = ops.sum(ops.where(own, prediction, 0.0), 1, keepdims=True)
        # Instead of sorting: the classes ranked before the correct one are counted.
        tie = ops.logical_and(ops.equal(prediction, score), numbers < wanted)
        before = ops.sum(ops.logical_or(prediction > score, tie), 1, keepdims=True)
        # No score is greater than NaN. NaN != NaN excludes a correct class with that score.
        correct = ops.squeeze(ops.logical_and(before < self.k, ops.equal(score, score)), 1)
        return counted(correct, prediction, weights, kept_labels(classes, self.ignore_index))

    def result(self, sums: Mapping[str, Array]) -> float:
        """From 0 to 1."""
        return ratio(sums["correct"], sums["count"])


@frozen_dataclass
class _ByClass(Metric):
    """The base of metrics from true positives, predictions and targets, counted for each class.

    The average `"macro"` is the mean over the classes that occur among targets or predictions;
    `"micro"` counts all classes together; `"binary"` counts one class, with targets of 0 and 1.
    """

    _: KW_ONLY
    average: Average = "macro"
    logits: bool = False
    ignore_index: int | None = None

    def statistics(
        self, prediction: Tensor, target: Tensor, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`hits`, `predicted` and `actual`: of each class, or one number with `"binary"`.

        Raises ShapeError and DTypeError as for all metrics.
        """
        if self.average == "binary":
            wanted = same_shape(self, prediction, target) > 0.5
            found = prediction > (0.0 if self.logits else 0.5)
            axes = tuple(range(prediction.rank))
            own = None if weights is None else aligned(weights, prediction, origin_text(self))
        else:
            numbers = class_numbers(self, prediction)
            classes = labels(self, prediction, target)
            wanted = ops.equal(ops.expand_dims(classes, 1), numbers)
            found = ops.equal(ops.expand_dims(ops.argmax(prediction, 1), 1), numbers)
            axes = (0, *range(2, prediction.rank))
            kept = kept_labels(classes, self.ignore_index)
            own = element_weights(ops.cast(classes, prediction.dtype), weights, kept)
            own = None if own is None else _over_classes(own, prediction)
        masks = {"hits": ops.logical_and(found, wanted), "predicted": found, "actual": wanted}
        sums: dict[str, Tensor] = {}
        for name, mask in masks.items():
            one = ops.cast(mask, prediction.dtype)
            sums[name] = ops.sum(one if own is None else one * own, axes)
        return sums

    def doubt(self, prediction: Any, target: Any, loss: object) -> str:
        """With `"binary"`: of raw scores without `logits`, and of probabilities with it."""
        del target
        if self.average != "binary":
            return ""
        return doubt_by_threshold(prediction, loss, logits=self.logits, writing="logits=True")

    def result(self, sums: Mapping[str, Array]) -> float:
        """From 0 to 1; 0 where the divisor is 0."""
        hits, predicted, actual = (
            np.asarray(sums[name], np.float64) for name in ("hits", "predicted", "actual")
        )
        if self.average != "macro":
            return float(self._score(hits.sum(), predicted.sum(), actual.sum()))
        occurs = predicted + actual > 0
        scores = self._score(hits[occurs], predicted[occurs], actual[occurs])
        return float(scores.mean()) if scores.size else 0.0

    @abstractmethod
    def _score(self, hits: Array, predicted: Array, actual: Array) -> Array:
        """The score of each class."""


@frozen_dataclass
class Precision(_ByClass):
    """The share of the examples predicted to be of a class that are of that class.

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...], or
    probabilities in the shape of the scores; with `"binary"` predictions of any shape, and targets
    of 0 and 1 in that shape.

    Args:
        average: `"macro"` for the mean over the classes that occur, `"micro"` for all classes
            together, `"binary"` for one class, above the threshold.
        logits: with `"binary"`, whether the threshold is 0, for raw scores, or 0.5.
        ignore_index: the class number of targets that do not count, or None.

    Raises:
        DefinitionError: for another average.

    Example:
        >>> import lamina as lm
        >>> lm.Precision(average="binary", logits=True).name
        'precision'
    """

    @property
    def name(self) -> str:
        """`"precision"`."""
        return "precision"

    def _score(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return share(hits, predicted)


@frozen_dataclass
class Recall(_ByClass):
    """The share of the examples of a class that are predicted to be of that class.

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...], or
    probabilities in the shape of the scores; with `"binary"` predictions of any shape, and targets
    of 0 and 1 in that shape.

    Args:
        average: `"macro"` for the mean over the classes that occur, `"micro"` for all classes
            together, `"binary"` for one class, above the threshold.
        logits: with `"binary"`, whether the threshold is 0, for raw scores, or 0.5.
        ignore_index: the class number of targets that do not count, or None.

    Raises:
        DefinitionError: for another average.

    Example:
        >>> import lamina as lm
        >>> lm.Recall(average="micro").name
        'recall'
    """

    @property
    def name(self) -> str:
        """`"recall"`."""
        return "recall"

    def _score(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return share(hits, actual)


@frozen_dataclass
class F1(_ByClass):
    """The harmonic mean of precision and recall: 2 hits / (predicted + actual).

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...], or
    probabilities in the shape of the scores; with `"binary"` predictions of any shape, and targets
    of 0 and 1 in that shape.

    Args:
        average: `"macro"` for the mean over the classes that occur, `"micro"` for all classes
            together, `"binary"` for one class, above the threshold.
        logits: with `"binary"`, whether the threshold is 0, for raw scores, or 0.5.
        ignore_index: the class number of targets that do not count, or None.

    Raises:
        DefinitionError: for another average.

    Example:
        >>> import lamina as lm
        >>> lm.F1().name
        'f1'
    """

    @property
    def name(self) -> str:
        """`"f1"`."""
        return "f1"

    def _score(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return share(2 * hits, predicted + actual)


def _over_classes(weights: Tensor, prediction: Tensor) -> Tensor:
    """Weights [batch, ...] of class numbers, in a shape that broadcasts over [batch, classes, ...].

    Weights [batch] count for all elements of an example.
    """
    shape = [weights.shape[0], 1, *weights.shape[1:]]
    return ops.reshape(weights, (*shape, *(1,) * (prediction.rank - len(shape))))


# Confusion ----------------------------------------------------------------------------------------


def confusion(
    metric: Metric,
    prediction: Tensor,
    target: Tensor,
    weights: Tensor | None,
    ignored: int | None = None,
) -> Tensor:
    """The weights of examples by actual class (row) and predicted class (column)."""
    classes = class_count(metric, prediction)
    wanted = labels(metric, prediction, target)
    actual = ops.one_hot(wanted, classes, prediction.dtype)
    found = ops.one_hot(ops.argmax(prediction, 1), classes, prediction.dtype)
    own = element_weights(ops.cast(wanted, prediction.dtype), weights, kept_labels(wanted, ignored))
    if own is not None:
        actual = actual * ops.expand_dims(aligned(own, wanted, origin_text(metric)), wanted.rank)
    actual, found = (ops.reshape(one, (-1, classes)) for one in (actual, found))
    return ops.matmul(ops.transpose(actual), found)


@frozen_dataclass
class ConfusionMatrix(Metric):
    """How often class i (row) was predicted as class j (column).

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...], or
    probabilities in the shape of the scores. Counts are exact up to 2^24 examples in a batch.
    If the examples have weights, these are added up instead.

    Args:
        ignore_index: the class number of targets that do not count, or None.

    Raises:
        DefinitionError: if `ignore_index` is not a whole number.

    Example:
        >>> import lamina as lm
        >>> lm.ConfusionMatrix().name
        'confusion_matrix'
    """

    _: KW_ONLY
    ignore_index: int | None = None

    @property
    def name(self) -> str:
        """`"confusion_matrix"`."""
        return "confusion_matrix"

    def statistics(
        self, prediction: Tensor, target: Tensor, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`counts` [classes, classes], of examples with weights `weights`; errors as for all."""
        matrix = confusion(self, prediction, target, weights, self.ignore_index)
        return {"counts" if weights is None else "weights": matrix}

    def result(self, sums: Mapping[str, Array]) -> Array:
        """int64 [classes, classes]; float64 if the examples have weights."""
        if "weights" in sums:
            return np.asarray(sums["weights"], np.float64)
        return np.rint(sums["counts"]).astype(np.int64)


class _OfConfusion(Metric):
    """The base of metrics from a confusion matrix.

    Predictions in the shape of the targets, with one number for each example, are those of two
    classes, by a threshold.
    """

    logits: bool
    ignore_index: int | None

    def statistics(
        self, prediction: Tensor, target: Tensor, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`counts` [classes, classes]; ShapeError and DTypeError as for all metrics."""
        if _is_single(prediction, target):
            columns = [ops.reshape(one, (-1,)) for one in (prediction, target)]
            positive = ops.cast(columns[0] > (0.0 if self.logits else 0.5), prediction.dtype)
            prediction = ops.stack([1.0 - positive, positive], 1)
            target = ops.cast(columns[1] > 0.5, "int64")
        return {"counts": confusion(self, prediction, target, weights, self.ignore_index)}

    def doubt(self, prediction: Any, target: Any, loss: object) -> str:
        """Of one number for each example: of raw scores without `logits`, of probabilities with."""
        if not _is_single(prediction, target):
            return ""
        return doubt_by_threshold(prediction, loss, logits=self.logits, writing="logits=True")

    def result(self, sums: Mapping[str, Array]) -> float:
        """From the whole matrix."""
        return float(self._of_matrix(np.asarray(sums["counts"], np.float64)))

    @abstractmethod
    def _of_matrix(self, counts: Array) -> float:
        """The metric, from a matrix of floats: actual classes are rows, predicted ones columns."""


def _is_single(prediction: Tensor, target: Tensor) -> bool:
    """Whether there is one number for each example: 0 or 1, by a threshold."""
    return target.shape == prediction.shape and prediction.shape[1:] in ((), (1,))


@frozen_dataclass
class MeanIoU(_OfConfusion):
    """Intersection over union, hits / (predicted + actual - hits): the mean over the classes.

    Also called the Jaccard index: Jaccard: The distribution of the flora in the alpine zone (1912).
    Classes that occur neither among targets nor among predictions do not count.

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...]; or one
    number for each example, [batch] or [batch, 1], and targets of 0 and 1 in that shape.

    Args:
        logits: for one number, whether the threshold is 0, for raw scores, or 0.5.
        ignore_index: the class number of targets that do not count, or None.

    Raises:
        DefinitionError: if `ignore_index` is not a whole number.

    Example:
        >>> import lamina as lm
        >>> lm.MeanIoU().name
        'mean_iou'
    """

    _: KW_ONLY
    logits: bool = False
    ignore_index: int | None = None

    @property
    def name(self) -> str:
        """`"mean_iou"`."""
        return "mean_iou"

    def _of_matrix(self, counts: Array) -> float:
        hits = np.diag(counts)
        union = counts.sum(0) + counts.sum(1) - hits
        occurs = union > 0
        return float((hits[occurs] / union[occurs]).mean()) if occurs.any() else 0.0


@frozen_dataclass
class MatthewsCorrelation(_OfConfusion):
    """The correlation of predicted and actual classes, from -1 to 1; 0 for a constant prediction.

    From Matthews: Comparison of the predicted and observed secondary structure of T4 phage lysozyme
    (1975); for several classes Gorodkin: Comparing two K-category assignments (2004).

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...]; or one
    number for each example, [batch] or [batch, 1], and targets of 0 and 1 in that shape.

    Args:
        logits: for one number, whether the threshold is 0, for raw scores, or 0.5.
        ignore_index: the class number of targets that do not count, or None.

    Raises:
        DefinitionError: if `ignore_index` is not a whole number.

    Example:
        >>> import lamina as lm
        >>> lm.MatthewsCorrelation().name
        'matthews_correlation'
    """

    _: KW_ONLY
    logits: bool = False
    ignore_index: int | None = None

    @property
    def name(self) -> str:
        """`"matthews_correlation"`."""
        return "matthews_correlation"

    def _of_matrix(self, counts: Array) -> float:
        actual, predicted, total = counts.sum(1), counts.sum(0), counts.sum()
        shared = np.trace(counts) * total - actual @ predicted
        spread = (total**2 - predicted @ predicted) * (total**2 - actual @ actual)
        return float(shared / np.sqrt(spread)) if spread > 0 else 0.0


@frozen_dataclass
class CohenKappa(_OfConfusion):
    """The agreement of predicted and actual classes beyond chance: 1 is perfect, 0 is by chance.

    From Cohen: A coefficient of agreement for nominal scales (1960). It is NaN if both are always
    the same class.

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...]; or one
    number for each example, [batch] or [batch, 1], and targets of 0 and 1 in that shape.

    Args:
        logits: for one number, whether the threshold is 0, for raw scores, or 0.5.
        ignore_index: the class number of targets that do not count, or None.

    Raises:
        DefinitionError: if `ignore_index` is not a whole number.

    Example:
        >>> import lamina as lm
        >>> lm.CohenKappa().name
        'cohen_kappa'
    """

    _: KW_ONLY
    logits: bool = False
    ignore_index: int | None = None

    @property
    def name(self) -> str:
        """`"cohen_kappa"`."""
        return "cohen_kappa"

    def _of_matrix(self, counts: Array) -> float:
        total = counts.sum()
        if not total:
            return float("nan")
        by_chance = counts.sum(1) @ counts.sum(0) / total**2
        return float((np.trace(counts) / total - by_chance) / (1 - by_chance or np.nan))
