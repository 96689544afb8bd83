"""Metrics of rankings: areas under curves over all thresholds, exact over a data set.

The scores of all examples are kept during an evaluation or an epoch, and sorted at its end.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.graph import Tensor
from lamina.learning.losses.scores import SCORES, doubt
from lamina.learning.metrics.metric import (
    PROBABILITIES,
    OfTargets,
    Sums,
    element_weights,
    full_weights,
    not_probabilities,
    same_shape,
)

__all__ = ["AUROC", "AveragePrecision"]

Averages = Literal["macro", "micro", "weighted", "none"]


@frozen_dataclass(kw_only=True)
class _Ranking(OfTargets):
    """The base of metrics from scores and targets of all examples, for each class or label."""

    average: Averages = "macro"
    logits: bool = False

    def statistics(self, prediction: Tensor, target: Tensor, weights: Tensor | None = None) -> Sums:
        """The rows `scores` and `targets`, and `weights` if there are any."""
        if target.shape == prediction.shape:
            targets = same_shape(prediction, target)
            kept = self._kept(target)
        else:
            classes, kept = self._labels(prediction, target)
            prediction = ops.softmax(prediction, 1) if self.logits else prediction
            targets = ops.cast(classes, prediction.dtype)
        rows = {"scores": prediction, "targets": targets}
        weights = element_weights(targets, weights, kept)
        if weights is not None:
            rows["weights"] = full_weights(targets, weights)
        return rows

    def doubt(self, prediction: Any, target: Any, loss: object) -> str:
        """With class numbers: of raw scores without `logits`, and of probabilities with it."""
        if target.shape == prediction.shape:
            return ""
        if self.logits:
            return not_probabilities(prediction, "logits=True")
        # Scores of margins are compared as they are.
        wrong = () if getattr(loss, "scores", "") == "margins" else (SCORES,)
        advice = "Write logits=True for raw scores."
        return doubt(prediction, wrong, f"{PROBABILITIES} of classes", advice, "metric")

    def result(self, sums: Mapping[str, Array]) -> float | Array:
        """From 0 to 1; NaN without examples of both kinds, and for NaN among those that count."""
        scores, targets = (np.asarray(sums[name], np.float64) for name in ("scores", "targets"))
        weights = np.asarray(sums["weights"], np.float64) if "weights" in sums else None
        columns, labels, weights = _columns(scores, targets, weights)
        if self.average == "micro":
            columns, labels, weights = (rows.reshape(-1, 1) for rows in (columns, labels, weights))
        counts = [_counts(*arrays) for arrays in zip(columns.T, labels.T, weights.T, strict=True)]
        each = np.array([self._area(*pair) for pair in counts])
        if self.average == "none":
            return each
        positives = np.array([hits[-1] for hits, _ in counts])
        shares = positives if self.average == "weighted" else np.ones_like(positives)
        defined = ~np.isnan(each) | np.isnan(positives)
        if not shares[defined].sum():
            return float("nan")
        return float(np.average(each[defined], weights=shares[defined]))

    @abstractmethod
    def _area(self, hits: Array, alarms: Array) -> float:
        """The area, from the weights of positives and of negatives above each threshold."""


def _columns(scores: Array, targets: Array, weights: Array | None) -> tuple[Array, Array, Array]:
    """Scores, targets of 0, 1 and NaN, and weights, with a column for each class or label."""
    if scores.ndim == 1:
        scores, targets = scores[:, None], targets[:, None]
        weights = None if weights is None else weights[:, None]
    classes = scores.shape[1]
    columns = np.moveaxis(scores, 1, -1).reshape(-1, classes)
    if targets.ndim == scores.ndim:
        labels: Array = np.moveaxis(targets, 1, -1).reshape(-1, classes)
        labels = np.where(np.isnan(labels), np.nan, labels > 0.5)
        weights = None if weights is None else np.moveaxis(weights, 1, -1).reshape(-1, classes)
    else:
        labels = np.equal(targets.reshape(-1, 1), np.arange(int(classes))).astype(np.float64)
        weights = None if weights is None else np.repeat(weights.reshape(-1, 1), classes, axis=1)
    return columns, labels, np.ones_like(columns) if weights is None else weights


def _counts(scores: Array, labels: Array, weights: Array) -> tuple[Array, Array]:
    """The weights of positives and negatives at or above each score, highest first; NaN for NaN."""
    counts = weights > 0
    scores, labels, weights = scores[counts], labels[counts], weights[counts]
    if not len(scores):
        return np.zeros(1), np.zeros(1)
    if np.isnan(scores).any() or np.isnan(labels).any():
        return np.full(1, np.nan), np.full(1, np.nan)
    order = np.argsort(-scores, kind="stable")
    scores, labels, weights = scores[order], labels[order], weights[order]
    # Equal scores are one threshold, infinite ones too.
    last = np.append(np.flatnonzero(scores[1:] != scores[:-1]), len(scores) - 1)
    return np.cumsum(weights * labels)[last], np.cumsum(weights * (1 - labels))[last]


@frozen_dataclass
class AUROC(_Ranking):
    """The area under the receiver operating characteristic: how well scores rank positives first.

    It is the probability that a positive example has a higher score than a negative one; equal
    scores count half. Hanley, McNeil: The meaning and use of the area under a receiver operating
    characteristic (ROC) curve (1982). The value is exact: the scores of all examples are kept. Any
    increasing function of all scores gives the same.

    Takes scores f32 or f64 and targets of 0 and 1 in the same shape, [batch], [batch, labels] or
    [batch, labels, ...]; or scores [batch, classes, ...] and class numbers, integers [batch, ...],
    for each class against all others.

    Args:
        average: the average over labels or classes: `"macro"` is the mean over those with positives
            and negatives, `"weighted"` the same weighted by the numbers of positives, `"micro"`
            takes all scores together, `"none"` gives an array.
        logits: whether scores with class numbers are raw, and softmax is taken of them first:
            it changes the order of different examples.
        ignore_index: the class number of targets that do not count, or None.

    Example:
        >>> lm.AUROC().name
        'auroc'
    """

    def _area(self, hits: Array, alarms: Array) -> float:
        if not hits[-1] or not alarms[-1]:
            return float("nan")
        rates = np.append(0.0, hits) / hits[-1]
        return float(np.diff(alarms, prepend=0.0) @ (rates[1:] + rates[:-1]) / 2 / alarms[-1])


@frozen_dataclass
class AveragePrecision(_Ranking):
    """The mean precision over all thresholds, weighted by the recall that each of them adds.

    The area below the curve of precision and recall, without interpolation, as in scikit-learn. The
    value is exact: the scores of all examples are kept. Takes what `AUROC` takes.

    Args:
        average: the average over labels or classes: `"macro"` is the mean over those with
            positives, `"weighted"` the same weighted by their numbers, `"micro"` takes all scores
            together, `"none"` gives an array.
        logits, ignore_index: the arguments of `AUROC`.

    Example:
        >>> lm.AveragePrecision().name
        'average_precision'
    """

    def _area(self, hits: Array, alarms: Array) -> float:
        if not hits[-1]:
            return float("nan")
        predicted = hits + alarms
        precision = np.where(predicted > 0, hits / np.where(predicted > 0, predicted, 1.0), 1.0)
        return float(np.diff(hits, prepend=0.0) @ precision / hits[-1])
