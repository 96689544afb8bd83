"""Metrics of numbers: errors, and how much of the targets is explained."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.graph import Tensor
from lamina.learning.metrics.metric import Metric, Sums, full_weights, ratio, same_shape, summed
from lamina.learning.weighting import weighted

__all__ = ["R2", "MeanAbsoluteError", "MeanSquaredError", "PearsonCorrelation"]
__all__ += ["RootMeanSquaredError"]


class _MeanOfErrors(Metric):
    """The base of means over errors; the statistics are `sum` and `count`."""

    smaller_is_better: ClassVar[bool | None] = True

    def statistics(self, prediction: Tensor, target: Tensor, weights: Tensor | None = None) -> Sums:
        return summed(self._size(prediction - same_shape(prediction, target)), weights)

    @abstractmethod
    def _size(self, error: Tensor) -> Tensor:
        """What is averaged, of each error."""

    def result(self, sums: Mapping[str, Array]) -> float:
        """0 or more."""
        return ratio(sums["sum"], sums["count"])


@frozen_dataclass
class MeanAbsoluteError(_MeanOfErrors):
    """The mean of |prediction - target|, for tensors of one shape.

    Example:
        >>> lm.MeanAbsoluteError().name
        'mean_absolute_error'
    """

    def _size(self, error: Tensor) -> Tensor:
        return ops.abs(error)


@frozen_dataclass
class MeanSquaredError(_MeanOfErrors):
    """The mean of (prediction - target)^2, for tensors of one shape.

    Example:
        >>> lm.MeanSquaredError().name
        'mean_squared_error'
    """

    def _size(self, error: Tensor) -> Tensor:
        return error * error


@frozen_dataclass
class RootMeanSquaredError(MeanSquaredError):
    """The square root of the mean of (prediction - target)^2, for tensors of one shape.

    Example:
        >>> lm.RootMeanSquaredError().name
        'root_mean_squared_error'
    """

    def result(self, sums: Mapping[str, Array]) -> float:
        return math.sqrt(super().result(sums))


@frozen_dataclass
class R2(Metric):
    """The share of the targets' variance that is explained: 1 - residuals / (total variation).

    Takes tensors of one shape; each output has its own coefficient, and the result is their
    mean. 1 is perfect, 0 no better than the mean of the targets. If the targets do not vary, it is
    1 for a perfect prediction and else 0. The targets of all examples are kept, and their variation
    is computed in float64.

    Example:
        >>> lm.R2().name
        'r2'
    """

    smaller_is_better: ClassVar[bool | None] = False

    def statistics(self, prediction: Tensor, target: Tensor, weights: Tensor | None = None) -> Sums:
        """`residual` of each output, and the rows `target`, and `weights` if there are any."""
        target = same_shape(prediction, target)
        error = prediction - target
        square, rows = error * error, {"target": target}
        if weights is not None:
            rows["weights"] = full_weights(target, weights)
            square = weighted(square, rows["weights"])
        return {"residual": ops.sum(square, 0), **rows}

    def result(self, sums: Mapping[str, Array]) -> float:
        """At most 1."""
        arrays = {name: np.asarray(array, np.float64) for name, array in sums.items()}
        residual, target = arrays["residual"], arrays["target"]
        weights = arrays.get("weights", np.ones_like(target))
        target = np.where(weights > 0, target, 0.0)
        with np.errstate(invalid="ignore"):
            centred = target - (target * weights).sum(0) / weights.sum(0)
            variation = (centred * centred * weights).sum(0)
            varies = variation != 0
            explained = 1 - residual / np.where(varies, variation, 1)
            same = np.where(np.isnan(residual), np.nan, residual == 0)
            return float(np.mean(np.where(varies, explained, same)))


@frozen_dataclass
class PearsonCorrelation(Metric):
    """The correlation of prediction and target, from -1 to 1, for tensors of one shape.

    Each output has its own coefficient, and the result is their mean; it is NaN for an output that
    does not vary. Predictions and targets of all examples are kept, and computed in float64.

    Example:
        >>> lm.PearsonCorrelation().name
        'pearson_correlation'
    """

    smaller_is_better: ClassVar[bool | None] = False

    def statistics(self, prediction: Tensor, target: Tensor, weights: Tensor | None = None) -> Sums:
        rows = {"prediction": prediction, "target": same_shape(prediction, target)}
        if weights is not None:
            rows["weights"] = full_weights(prediction, weights)
        return rows

    def result(self, sums: Mapping[str, Array]) -> float:
        """From -1 to 1."""
        rows = {name: np.asarray(array, np.float64) for name, array in sums.items()}
        x, y = rows["prediction"], rows["target"]
        weights = rows.get("weights", np.ones_like(x))
        x, y = (np.where(weights > 0, values, 0.0) for values in (x, y))
        with np.errstate(invalid="ignore", divide="ignore"):
            x, y = (values - (values * weights).sum(0) / weights.sum(0) for values in (x, y))
            shared = (x * y * weights).sum(0)
            spread = np.sqrt((x * x * weights).sum(0) * (y * y * weights).sum(0))
            each: Array = shared / spread
            return float(each.mean())
