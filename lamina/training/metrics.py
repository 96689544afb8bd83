"""Metrics: measures of predictions, accumulated batch by batch.

A metric is a frozen record. It builds sums over a batch from ops, so that they are computed on the
device with the prediction. The sums of all batches are added, and `result` computes the metric.
Classes are on axis 1 of the prediction, as for `CrossEntropy`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Literal

import numpy as np

from lamina import ops
from lamina.errors import DTypeError, ShapeError
from lamina.graph import Tensor, described
from lamina.graph.kinds import Count
from lamina.layers.checks import Sourced, origin_text
from lamina.records import frozen_dataclass
from lamina.shapes import Array, Shape, int64, shape_text

Average = Literal["macro", "micro", "binary"]


class Metric(Sourced, ABC):
    """The base of all metrics. A subclass is a frozen dataclass.

    Example:
        >>> from dataclasses import dataclass
        >>> import lamina as lm
        >>> @dataclass(frozen=True)
        ... class LargestError(lm.training.metrics.Metric):
        ...     name = "mean_largest_error"
        ...     def statistics(self, prediction, target):
        ...         error = lm.ops.max(abs(prediction - target), 1)
        ...         return {"sum": lm.ops.sum(error), "count": lm.ops.sum(lm.ops.ones_like(error))}
        ...     def result(self, sums):
        ...         return float(sums["sum"] / sums["count"])
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Its key in the result of `Model.evaluate` and in the history."""

    @abstractmethod
    def statistics(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Builds sums over the batch.

        Args:
            prediction: the network's output, f32 or f64, batch first.
            target: the expected output.

        Returns:
            Float tensors by name, whose shapes do not depend on the batch. For a data set each is
            summed over the batches.

        Raises:
            ShapeError, DTypeError: if the target does not fit the prediction.
        """

    @abstractmethod
    def result(self, sums: Mapping[str, Array]) -> float | Array:
        """The metric, from the sums over all batches."""


# Accuracy -----------------------------------------------------------------------------------------


@frozen_dataclass
class Accuracy(Metric):
    """The share of examples whose correct class has the highest score.

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...], or
    probabilities in the shape of the scores. Among equal scores the first counts.

    Example:
        >>> import lamina as lm
        >>> lm.Accuracy().name
        'accuracy'
    """

    @property
    def name(self) -> str:
        """`"accuracy"`."""
        return "accuracy"

    def statistics(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        """`correct` and `count`; ShapeError and DTypeError as for all metrics."""
        labels = _labels(self, prediction, target)
        return _counted(ops.equal(ops.argmax(prediction, 1), labels), prediction)

    def result(self, sums: Mapping[str, Array]) -> float:
        """From 0 to 1."""
        return _ratio(sums["correct"], sums["count"])


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

    def statistics(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        """`correct` and `count`; ShapeError and DTypeError as for all metrics."""
        wanted = _same_shape(self, prediction, target) > 0.5
        return _counted(ops.equal(prediction > self.threshold, wanted), prediction)

    def result(self, sums: Mapping[str, Array]) -> float:
        """From 0 to 1."""
        return _ratio(sums["correct"], sums["count"])


@frozen_dataclass
class TopK(Metric):
    """The share of examples whose correct class is among the k highest scores.

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...], or
    probabilities in the shape of the scores. Among equal scores the first classes count.

    Args:
        k: the number of classes that count.

    Raises:
        DefinitionError: if k is not a whole number above zero.

    Example:
        >>> import lamina as lm
        >>> lm.TopK(5).name
        'top_5'
    """

    k: Count = 5

    @property
    def name(self) -> str:
        """`"top_5"` for k = 5."""
        return f"top_{self.k}"

    def statistics(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        """`correct` and `count`; ShapeError and DTypeError as for all metrics."""
        labels = ops.expand_dims(_labels(self, prediction, target), 1)
        numbers = _class_numbers(self, prediction)
        own = ops.equal(labels, numbers)
        score = ops.sum(ops.where(own, prediction, 0.0), 1, keepdims=True)
        # Instead of sorting: the classes ranked before the correct one are counted.
        tie = ops.logical_and(ops.equal(prediction, score), numbers < labels)
        before = ops.sum(ops.logical_or(prediction > score, tie), 1, keepdims=True)
        # No score is greater than NaN. NaN != NaN excludes a correct class with that score.
        return _counted(ops.logical_and(before < self.k, ops.equal(score, score)), prediction)

    def result(self, sums: Mapping[str, Array]) -> float:
        """From 0 to 1."""
        return _ratio(sums["correct"], sums["count"])


# Precision and recall -----------------------------------------------------------------------------


class _ByClass(Metric):
    """The base of metrics from true positives, predictions and targets, counted for each class.

    The average `"macro"` is the mean over the classes that occur among targets or predictions;
    `"micro"` counts all classes together; `"binary"` counts one class, with targets of 0 and 1.
    """

    average: Average
    logits: bool

    def statistics(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        """`hits`, `predicted` and `actual`: of each class, or one number with `"binary"`.

        Raises ShapeError and DTypeError as for all metrics.
        """
        if self.average == "binary":
            wanted = _same_shape(self, prediction, target) > 0.5
            found = prediction > (0.0 if self.logits else 0.5)
            axes = tuple(range(prediction.rank))
        else:
            numbers = _class_numbers(self, prediction)
            labels = _labels(self, prediction, target)
            wanted = ops.equal(ops.expand_dims(labels, 1), numbers)
            found = ops.equal(ops.expand_dims(ops.argmax(prediction, 1), 1), numbers)
            axes = (0, *range(2, prediction.rank))
        masks = {"hits": ops.logical_and(found, wanted), "predicted": found, "actual": wanted}
        return {name: ops.sum(ops.cast(one, prediction.dtype), axes) for name, one in masks.items()}

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

    Raises:
        DefinitionError: for another average.

    Example:
        >>> import lamina as lm
        >>> lm.Precision(average="binary", logits=True).name
        'precision'
    """

    _: KW_ONLY
    average: Average = "macro"
    logits: bool = False

    @property
    def name(self) -> str:
        """`"precision"`."""
        return "precision"

    def _score(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return _share(hits, predicted)


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

    Raises:
        DefinitionError: for another average.

    Example:
        >>> import lamina as lm
        >>> lm.Recall(average="micro").name
        'recall'
    """

    _: KW_ONLY
    average: Average = "macro"
    logits: bool = False

    @property
    def name(self) -> str:
        """`"recall"`."""
        return "recall"

    def _score(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return _share(hits, actual)


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

    Raises:
        DefinitionError: for another average.

    Example:
        >>> import lamina as lm
        >>> lm.F1().name
        'f1'
    """

    _: KW_ONLY
    average: Average = "macro"
    logits: bool = False

    @property
    def name(self) -> str:
        """`"f1"`."""
        return "f1"

    def _score(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return _share(2 * hits, predicted + actual)


@frozen_dataclass
class ConfusionMatrix(Metric):
    """How often class i (row) was predicted as class j (column).

    Takes scores f32 or f64 [batch, classes, ...] and class numbers, integers [batch, ...], or
    probabilities in the shape of the scores. Counts are exact up to 2^24 examples in a batch.

    Example:
        >>> import lamina as lm
        >>> lm.ConfusionMatrix().name
        'confusion_matrix'
    """

    @property
    def name(self) -> str:
        """`"confusion_matrix"`."""
        return "confusion_matrix"

    def statistics(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        """`counts` [classes, classes]; ShapeError and DTypeError as for all metrics."""
        classes = _class_count(self, prediction)
        labels = _labels(self, prediction, target)
        actual = ops.one_hot(labels, classes, prediction.dtype)
        found = ops.one_hot(ops.argmax(prediction, 1), classes, prediction.dtype)
        actual, found = (ops.reshape(one, (-1, classes)) for one in (actual, found))
        return {"counts": ops.matmul(ops.transpose(actual), found)}

    def result(self, sums: Mapping[str, Array]) -> Array:
        """int64 [classes, classes]."""
        return np.rint(sums["counts"]).astype(np.int64)


# Regression ---------------------------------------------------------------------------------------


@frozen_dataclass
class MeanAbsoluteError(Metric):
    """The mean of |prediction - target|, for tensors of one shape.

    Example:
        >>> import lamina as lm
        >>> lm.MeanAbsoluteError().name
        'mean_absolute_error'
    """

    @property
    def name(self) -> str:
        """`"mean_absolute_error"`."""
        return "mean_absolute_error"

    def statistics(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        """`sum` and `count`; ShapeError and DTypeError as for all metrics."""
        error = ops.abs(prediction - _same_shape(self, prediction, target))
        return {"sum": ops.sum(error), "count": ops.sum(ops.ones_like(error))}

    def result(self, sums: Mapping[str, Array]) -> float:
        """0 or more."""
        return _ratio(sums["sum"], sums["count"])


@frozen_dataclass
class MeanSquaredError(Metric):
    """The mean of (prediction - target)^2, for tensors of one shape.

    Example:
        >>> import lamina as lm
        >>> lm.MeanSquaredError().name
        'mean_squared_error'
    """

    @property
    def name(self) -> str:
        """`"mean_squared_error"`."""
        return "mean_squared_error"

    def statistics(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        """`sum` and `count`; ShapeError and DTypeError as for all metrics."""
        error = prediction - _same_shape(self, prediction, target)
        return {"sum": ops.sum(error * error), "count": ops.sum(ops.ones_like(error))}

    def result(self, sums: Mapping[str, Array]) -> float:
        """0 or more."""
        return _ratio(sums["sum"], sums["count"])


@frozen_dataclass
class R2(Metric):
    """The share of the targets' variance that is explained: 1 - residuals / (total variation).

    Takes tensors of one shape; each output has its own coefficient, and the result is their
    mean. 1 is perfect, 0 no better than the mean of the targets. If the targets do not vary, it is
    1 for a perfect prediction and else 0. In float32 the variation has single precision: bring
    targets to a mean near zero.

    Example:
        >>> import lamina as lm
        >>> lm.R2().name
        'r2'
    """

    @property
    def name(self) -> str:
        """`"r2"`."""
        return "r2"

    def statistics(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        """`residual`, `sum`, `square_sum` and `count` for each output.

        Raises ShapeError and DTypeError as for all metrics.
        """
        wanted = _same_shape(self, prediction, target)
        error = prediction - wanted
        return {
            "residual": ops.sum(error * error, 0),
            "sum": ops.sum(wanted, 0),
            "square_sum": ops.sum(wanted * wanted, 0),
            "count": ops.sum(ops.ones_like(wanted), 0),
        }

    def result(self, sums: Mapping[str, Array]) -> float:
        """At most 1."""
        residual, total, square_sum, count = (
            np.asarray(sums[name], np.float64)
            for name in ("residual", "sum", "square_sum", "count")
        )
        variation = np.maximum(square_sum - total * total / np.maximum(count, 1), 0)
        varies = variation > 0
        explained = 1 - residual / np.where(varies, variation, 1)
        return float(np.mean(np.where(varies, explained, residual == 0)))


# Helpers ------------------------------------------------------------------------------------------


def _ratio(part: Array, whole: Array) -> float:
    return float(part / whole) if whole else 0.0


def _share(part: Array, whole: Array) -> Array:
    """Part / whole, elementwise; 0 where the whole is 0."""
    return np.where(whole > 0, part / np.maximum(whole, 1), 0.0)


def _counted(correct: Tensor, prediction: Tensor) -> dict[str, Tensor]:
    hits = ops.cast(correct, prediction.dtype)
    return {"correct": ops.sum(hits), "count": ops.sum(ops.ones_like(hits))}


def _class_count(metric: Metric, prediction: Tensor) -> int:
    classes = prediction.shape[1] if prediction.rank > 1 else None
    if not isinstance(classes, int) or classes < 2:
        raise ShapeError(
            "the prediction has no axis of at least two classes",
            facts=(("expected", "[batch, classes, ...]"), ("found", described(prediction))),
            where=origin_text(metric),
            advice="For two classes as one number use BinaryAccuracy, or average='binary'.",
        )
    return classes


def _class_numbers(metric: Metric, prediction: Tensor) -> Tensor:
    """0, 1, ... along axis 1, int64, in a shape that broadcasts over the prediction."""
    classes = _class_count(metric, prediction)
    return ops.reshape(ops.arange(classes), (1, classes, *(1,) * (prediction.rank - 2)))


def _labels(metric: Metric, prediction: Tensor, target: Tensor) -> Tensor:
    """Class numbers, int64, in the prediction's shape without the classes."""
    _class_count(metric, prediction)
    expected = prediction.shape[:1] + prediction.shape[2:]
    if target.shape == prediction.shape and target.rank != len(expected):
        return ops.argmax(target, 1)
    if target.shape != expected:
        raise _unfit(metric, prediction, target, expected)
    if target.dtype.kind != "int":
        raise DTypeError(
            "class numbers must be integers",
            facts=(("expected", shape_text(expected, int64)), ("found", described(target))),
            where=origin_text(metric),
            advice="Convert the targets: y.astype('int64').",
        )
    return ops.cast(target, "int64")


def _same_shape(metric: Metric, prediction: Tensor, target: Tensor) -> Tensor:
    """The target in the prediction's dtype."""
    if target.shape != prediction.shape:
        raise _unfit(metric, prediction, target, prediction.shape)
    return ops.cast(target, prediction.dtype)


def _unfit(metric: Metric, prediction: Tensor, target: Tensor, expected: Shape) -> ShapeError:
    return ShapeError(
        "the target does not fit the prediction",
        facts=(
            ("prediction", described(prediction)),
            ("expected", shape_text(expected)),
            ("found", described(target)),
        ),
        where=origin_text(metric),
        advice="Reshape the targets, or use another metric: Accuracy takes class numbers, "
        "BinaryAccuracy targets in the shape of the prediction.",
    )
