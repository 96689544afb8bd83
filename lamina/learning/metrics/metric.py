"""The base of metrics, and what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from inspect import isabstract
from typing import Any, ClassVar

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, Shape, int64, shape_text
from lamina.errors import DTypeError
from lamina.graph import Tensor, described
from lamina.layers.checks import Sourced
from lamina.learning.losses.scores import SCORES, doubt, kind_of
from lamina.learning.protocols import name_of_class
from lamina.learning.target_checks import check_one_class, counted_classes, unfit
from lamina.learning.weighting import aligned, weighted_sum

# Tensors of a batch by name, which become a metric.
Sums = dict[str, Tensor]


class Metric(Sourced, ABC):
    """The base of all metrics. A subclass is a frozen dataclass.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class LargestError(lm.training.metrics.Metric):
        ...     name = "mean_largest_error"
        ...     def statistics(self, prediction, target, weights=None):
        ...         error = lm.ops.max(abs(prediction - target), 1)
        ...         weights = lm.ops.ones_like(error) if weights is None else weights
        ...         return {"sum": lm.ops.sum(error * weights), "count": lm.ops.sum(weights)}
        ...     def result(self, sums):
        ...         return float(sums["sum"] / sums["count"])

    Attributes:
        smaller_is_better: whether smaller values are better; None: callbacks must be told.
    """

    smaller_is_better: ClassVar[bool | None] = None

    @property
    def name(self) -> str:
        """Its key in results of `Model.evaluate` and in the history; by default from its class.

        A user's subclass of a metric of Lamina keeps the name of that metric.
        """
        cls = type(self)
        bases = (base for base in cls.__mro__ if base.__module__.startswith(f"{__package__}."))
        return name_of_class(next((base for base in bases if not isabstract(base)), cls))

    @abstractmethod
    def statistics(self, prediction: Tensor, target: Tensor, weights: Tensor | None = None) -> Sums:
        """Builds sums over the batch.

        Args:
            prediction: the network's output, f32 or f64, batch first.
            target: the expected output.
            weights: the weights of the examples, if the data has them. A metric without this
                parameter cannot be used with such data.

        Returns:
            Float tensors by name. Those whose shape does not depend on the batch are summed over
            the batches of a data set; the rows [batch, ...] of others are kept for all examples.

        Raises:
            ShapeError, DTypeError: if the target does not fit the prediction.
        """

    def doubt(self, prediction: Any, target: Any, loss: object) -> str:
        """A warning about a prediction that is certainly of a wrong kind; "" for all others."""
        return ""

    @abstractmethod
    def result(self, sums: Mapping[str, Array]) -> float | Array:
        """The metric, from the sums over all batches, and the rows of all examples."""

    # How two classes are measured if the network gives one number for them, for errors.
    of_one_number: ClassVar[str] = "targets in the shape of the prediction: y[..., None]"

    def _class_numbers(self, prediction: Tensor) -> Tensor:
        """0, 1, ... along axis 1, int64, in a shape that broadcasts over the prediction."""
        classes = counted_classes(prediction, self.of_one_number)
        return ops.reshape(ops.arange(classes), (1, classes, *(1,) * (prediction.rank - 2)))


@frozen_dataclass(kw_only=True)
class OfTargets(Metric):
    """The base of metrics of class numbers or labels; some of them may not count."""

    smaller_is_better: ClassVar[bool | None] = False
    ignore_index: int | None = None

    def _kept(self, labels: Tensor) -> Tensor | None:
        """Where class numbers are not the ignored one; None if none is."""
        return None if self.ignore_index is None else ops.not_equal(labels, self.ignore_index)

    def _labels(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """Class numbers, int64[batch, ...], and which of them count: None if all do."""
        # Of shares, the class is the largest; an example of zeros does not count.
        counted_classes(prediction, self.of_one_number)
        expected = prediction.shape[:1] + prediction.shape[2:]
        if target.shape == prediction.shape:
            numbers, some = ops.argmax(target, 1), ops.not_equal(ops.max(target, 1), 0)
            kept = self._kept(numbers)
            return numbers, some if kept is None else ops.logical_and(some, kept)
        if target.shape != expected:
            raise unfit(prediction, target, expected, int64)
        if target.dtype.kind != "int":
            raise DTypeError(
                "class numbers must be integers",
                facts=(("expected", shape_text(expected, int64)), ("found", described(target))),
                advice="Convert the targets: y.astype('int64').",
            )
        numbers = ops.cast(target, "int64")
        return numbers, self._kept(numbers)


@frozen_dataclass
class OfClasses(OfTargets):
    """The base of metrics that compare the class with the highest score with one right class."""

    # What measures several labels of an example at once, for errors.
    of_labels: ClassVar[str] = "lm.F1(multilabel=True)"

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for targets in the prediction's shape with other than one class."""
        if array.ndim == len(prediction_shape) > 1 and prediction_shape[1] != 1:
            advice = f"For several labels at once use {self.of_labels}, for quantities lm.R2()."
            if (array < 0).any():
                advice = (
                    "For quantities use lm.R2(). Scores are compared by a function: "
                    "lm.FunctionMetric(lambda y, t: lm.ops.mean(lm.ops.equal(lm.ops.argmax(y, 1), "
                    "lm.ops.argmax(t, 1))), name='agreement')."
                )
            check_one_class(self, array, advice)


@frozen_dataclass(kw_only=True)
class ByThreshold(OfClasses):
    """The base of metrics of classes that may compare single numbers with a threshold."""

    logits: bool = False

    @property
    def _threshold(self) -> float:
        return 0.0 if self.logits else 0.5

    @abstractmethod
    def _is_by_threshold(self, prediction: Any, target: Any) -> bool:
        """Whether these numbers are compared with it."""

    def doubt(self, prediction: Any, target: Any, loss: object) -> str:
        """With a threshold: of raw scores without `logits`, and of probabilities with it."""
        if not self._is_by_threshold(prediction, target):
            return ""
        return doubt_by_threshold(prediction, loss, logits=self.logits, writing="logits=True")


PROBABILITIES = "probabilities"


def ratio(part: Array, whole: Array) -> float:
    """Part / whole; NaN if the whole is 0: nothing counted."""
    return float(part / whole) if whole else float("nan")


def share(part: Array, whole: Array) -> Array:
    """Part / whole, elementwise; 0 where the whole is 0."""
    empty = np.equal(whole, 0)
    return np.where(empty, 0.0, part / np.where(empty, 1, whole))


def summed(values: Tensor, weights: Tensor | None) -> Sums:
    """The `sum` of values [batch, ...], and their `count`: both weighted."""
    total, count = weighted_sum(values, weights, "weights")
    return {"sum": total, "count": count}


def counted(
    correct: Tensor,
    prediction: Tensor,
    target: Tensor,
    weights: Tensor | None,
    kept: Tensor | None = None,
) -> Sums:
    """The weights of `correct` elements, and of all that are kept; NaN for NaN among these."""
    hits = ops.cast(correct, prediction.dtype) + unknown(prediction, target, correct.rank)
    weight = element_weights(hits, weights, kept)
    total, count = weighted_sum(hits, weight, "weights")
    return {"correct": total, "count": count}


def unknown(prediction: Tensor, target: Tensor, rank: int) -> Tensor:
    """NaN where a score or a target is NaN, else 0: comparisons of NaN are false, not NaN.

    The rank of the result is one less than the rank of the scores if it has no axis of classes.
    """
    floats = [one for one in (prediction, target) if one.dtype.is_float]
    each = [one if one.rank == rank else ops.max(one, 1) for one in floats]
    marks = [ops.cast(ops.where(ops.isnan(one), one, 0.0), prediction.dtype) for one in each]
    return marks[0] if len(marks) == 1 else marks[0] + marks[1]


def element_weights(values: Tensor, weights: Tensor | None, kept: Tensor | None) -> Tensor | None:
    """The weight of each element, 0 where it is not kept; None if each counts 1."""
    if kept is None:
        return weights
    chosen = ops.cast(kept, values.dtype)
    if weights is None:
        return chosen
    return ops.broadcast_to(aligned(weights, values, "weights"), values.shape) * chosen


def full_weights(values: Tensor, weights: Tensor | None) -> Tensor:
    """The weight of each element; 1 without weights."""
    if weights is None:
        return ops.ones_like(values)
    return ops.broadcast_to(aligned(weights, values), values.shape)


def doubt_by_threshold(prediction: Tensor, loss: object, *, logits: bool, writing: str) -> str:
    """A doubt about predictions that mean 1 above a threshold; with `logits` it is for raw scores.

    A loss of raw scores says that they are such. With `lm.MSE`, for example, the numbers of a
    linear layer may be probabilities. Users write the metric for raw scores as `writing`:
    `"threshold=0.0"`.
    """
    if logits:
        return not_probabilities(prediction, writing)
    if getattr(loss, "scores", "") not in ("sigmoid", "margins"):
        return ""
    advice = f"Write {writing} for raw scores."
    if not kind_of(prediction)[0]:
        name = type(loss).__name__
        return f"{name} takes raw scores, and the metric takes {PROBABILITIES}. {advice}"
    return doubt(prediction, (SCORES,), PROBABILITIES, advice, "metric")


def not_probabilities(prediction: Tensor, writing: str) -> str:
    """A doubt about predictions if a metric takes their softmax, sigmoid or sign."""
    return doubt(prediction, (PROBABILITIES,), SCORES, f"Leave {writing} out.", "metric")


def same_shape(prediction: Tensor, target: Tensor) -> Tensor:
    """The target in the prediction's dtype."""
    if target.shape != prediction.shape:
        raise unfit(prediction, target, prediction.shape, prediction.dtype)
    return ops.cast(target, prediction.dtype)
