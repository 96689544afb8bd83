"""Metrics of classes and labels: accuracy, precision, recall and F1."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, Shape
from lamina.checks.kinds import Count
from lamina.errors import DefinitionError
from lamina.graph import Tensor
from lamina.learning.metrics.metric import (
    ByThreshold,
    Metric,
    OfClasses,
    Sums,
    counted,
    doubt_by_threshold,
    element_weights,
    ratio,
    same_shape,
    share,
    unknown,
)
from lamina.learning.weighting import aligned, weighted

__all__ = ["F1", "Accuracy", "BinaryAccuracy", "Precision", "Recall", "TopK"]

Average = Literal["macro", "micro", "weighted", "none", "binary"]


@frozen_dataclass
class Accuracy(OfClasses):
    """The share of examples whose correct class has the highest score.

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...], or
    probabilities in the shape of the scores, which add up to 1; an example of zeros does not
    count. Among equal scores the first counts. `BinaryAccuracy` takes several labels at once.

    Args:
        ignore_index: the class number of targets that do not count, or None.

    Example:
        >>> lm.Accuracy().name
        'accuracy'
    """

    of_one_number: ClassVar[str] = (
        "lm.BinaryAccuracy(), for raw scores lm.BinaryAccuracy(threshold=0.0)"
    )
    of_labels: ClassVar[str] = of_one_number

    def statistics(self, prediction: Tensor, target: Tensor, weights: Tensor | None = None) -> Sums:
        wanted, kept = self._labels(prediction, target)
        correct = ops.equal(ops.argmax(prediction, 1), wanted)
        return counted(correct, prediction, target, weights, kept)

    def result(self, sums: Mapping[str, Array]) -> float:
        """From 0 to 1."""
        return ratio(sums["correct"], sums["count"])


@frozen_dataclass(kw_only=True)
class BinaryAccuracy(Metric):
    """The share of elements on the right side of a threshold.

    Takes predictions f32 or f64 of any shape and targets of 0 and 1 in the same shape.

    Args:
        threshold: predictions above it mean 1; 0.5 for probabilities, 0 for raw scores.

    Example:
        >>> lm.BinaryAccuracy(threshold=0.0).name
        'binary_accuracy'
    """

    smaller_is_better: ClassVar[bool | None] = False
    threshold: float = 0.5

    def statistics(self, prediction: Tensor, target: Tensor, weights: Tensor | None = None) -> Sums:
        wanted = same_shape(prediction, target) > 0.5
        correct = ops.equal(prediction > self.threshold, wanted)
        return counted(correct, prediction, target, weights)

    def doubt(self, prediction: Any, target: Any, loss: object) -> str:
        """Of raw scores with a threshold of 0.5, and of probabilities with one up to 0."""
        if 0 < self.threshold != 0.5:
            return ""
        is_for_scores = self.threshold <= 0
        writing = f"threshold={self.threshold if is_for_scores else 0.0}"
        return doubt_by_threshold(prediction, loss, logits=is_for_scores, writing=writing)

    def result(self, sums: Mapping[str, Array]) -> float:
        """From 0 to 1."""
        return ratio(sums["correct"], sums["count"])


@frozen_dataclass
class TopK(Accuracy):
    """The share of examples whose correct class is among the k highest scores.

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...], or
    probabilities in the shape of the scores. Among equal scores the first classes count.

    Args:
        k: the number of classes that count.
        ignore_index: the class number of targets that do not count, or None.

    Example:
        >>> lm.TopK(5).name
        'top_5'
    """

    k: Count = 5

    @property
    def name(self) -> str:
        """`"top_5"` for k = 5."""
        return f"top_{self.k}"

    of_labels: ClassVar[str] = "lm.AveragePrecision()"

    def statistics(self, prediction: Tensor, target: Tensor, weights: Tensor | None = None) -> Sums:
        classes, kept = self._labels(prediction, target)
        labels = ops.expand_dims(classes, 1)
        numbers = self._class_numbers(prediction)
        is_label = ops.equal(labels, numbers)
        score = ops.sum(ops.where(is_label, prediction, 0.0), 1, keepdims=True)
        # Instead of sorting: the classes ranked before the correct one are counted.
        tie = ops.logical_and(ops.equal(prediction, score), numbers < labels)
        before = ops.sum(ops.logical_or(prediction > score, tie), 1, keepdims=True)
        correct = ops.squeeze(before < self.k, 1)
        return counted(correct, prediction, target, weights, kept)


@frozen_dataclass(kw_only=True)
class _ByClass(ByThreshold):
    """The base of metrics from true positives, predictions and targets, counted for each class.

    With `multilabel` or the average `"binary"` each number is compared with a threshold, on its
    own; otherwise the class with the highest score is compared with the right one.
    """

    average: Average = "macro"
    multilabel: bool = False

    of_one_number: ClassVar[str] = 'average="binary", for raw scores with logits=True'
    of_labels: ClassVar[str] = "multilabel=True, for raw scores with logits=True"

    def __post_init__(self) -> None:
        if self.multilabel and self.average == "binary":
            raise DefinitionError(
                "the average 'binary' is for one label",
                facts=(("expected", "multilabel=True, average='micro'"), ("found", repr(self))),
                advice="'micro' counts all labels together.",
            )

    @property
    def _on_its_own(self) -> bool:
        """Whether each number is compared with a threshold."""
        return self.multilabel or self.average == "binary"

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for several classes at once, unless they are labels."""
        if not self._on_its_own:
            super().check_target(array, prediction_shape)

    def statistics(self, prediction: Tensor, target: Tensor, weights: Tensor | None = None) -> Sums:
        """`hits`, `predicted` and `actual`: of each class, or one number with `"binary"`."""
        axes = (0, *range(2, prediction.rank))
        if self._on_its_own:
            marks = same_shape(prediction, target)
            truth, predicted = marks > 0.5, prediction > self._threshold
            weights = element_weights(marks, weights, self._kept(target))
            weights = None if weights is None else aligned(weights, prediction)
            nans = unknown(prediction, target, prediction.rank)
            axes = axes if self.multilabel else tuple(range(prediction.rank))
        else:
            numbers = self._class_numbers(prediction)
            classes, kept = self._labels(prediction, target)
            truth = ops.equal(ops.expand_dims(classes, 1), numbers)
            predicted = ops.equal(ops.expand_dims(ops.argmax(prediction, 1), 1), numbers)
            weights = element_weights(ops.cast(classes, prediction.dtype), weights, kept)
            if weights is not None:
                # Weights [batch] count for all elements of an example.
                shape = [weights.shape[0], 1, *weights.shape[1:]]
                weights = ops.reshape(weights, (*shape, *(1,) * (prediction.rank - len(shape))))
            nans = ops.expand_dims(unknown(prediction, target, classes.rank), 1)
        masks = {"hits": ops.logical_and(predicted, truth), "predicted": predicted, "actual": truth}
        sums: Sums = {}
        for name, mask in masks.items():
            counts = ops.cast(mask, prediction.dtype) + nans
            sums[name] = ops.sum(counts if weights is None else weighted(counts, weights), axes)
        return sums

    def _is_by_threshold(self, prediction: Any, target: Any) -> bool:
        return self._on_its_own

    def result(self, sums: Mapping[str, Array]) -> float | Array:
        """From 0 to 1; 0 where the divisor is 0, and NaN without examples."""
        counts = [np.asarray(sums[name], np.float64) for name in ("hits", "predicted", "actual")]
        if self.average in ("micro", "binary"):
            counts = [class_counts.sum(keepdims=True) for class_counts in counts]
        hits, predicted, actual = counts
        occurs = predicted + actual != 0
        scores = np.where(occurs, self._score(hits, predicted, actual), np.nan)
        if self.average == "none":
            return scores
        shares = actual if self.average == "weighted" else np.ones_like(actual)
        if not occurs.any() or not shares[occurs].sum():
            return 0.0 if self._on_its_own else float("nan")
        return float(np.average(scores[occurs], weights=shares[occurs]))

    @abstractmethod
    def _score(self, hits: Array, predicted: Array, actual: Array) -> Array:
        """The score of each class."""


@frozen_dataclass
class Precision(_ByClass):
    """The share of the examples predicted to be of a class that are of that class.

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...], or
    probabilities in the shape of the scores; with `multilabel` scores [batch, labels, ...] and
    targets of 0 and 1 in that shape; with `"binary"` the same in any shape.

    Args:
        average: the average over classes or labels: `"macro"` is the mean over those that occur
            among targets or predictions, `"weighted"` the mean weighted by how often each occurs
            among targets, `"none"` an array, with NaN for one that does not occur. `"micro"` counts
            all together. `"binary"` is for one class, above the threshold; not with `multilabel`.
        multilabel: whether an example may have several labels: each counts on its own, above the
            threshold.
        logits: whether the threshold is 0, for raw scores, or 0.5.
        ignore_index: the class number of targets that do not count, or None.

    Example:
        >>> lm.Precision(average="binary", logits=True).name
        'precision'
    """

    def _score(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return share(hits, predicted)


@frozen_dataclass
class Recall(_ByClass):
    """The share of the examples of a class that are predicted to be of that class.

    Takes the tensors and the arguments of `Precision`.

    Example:
        >>> lm.Recall(average="micro").name
        'recall'
    """

    def _score(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return share(hits, actual)


@frozen_dataclass
class F1(_ByClass):
    """The harmonic mean of precision and recall: 2 hits / (predicted + actual).

    Takes the tensors and the arguments of `Precision`.

    Example:
        >>> lm.F1().name
        'f1'
    """

    def _score(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return share(2 * hits, predicted + actual)
