"""Losses of numbers: squared, absolute, Huber's, quantiles, and relative ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, Shape
from lamina.checks.kinds import Either, NotNegative, Number, Positive, Row
from lamina.errors import ShapeError
from lamina.graph import Tensor, constant, described
from lamina.learning.losses.loss import Elements, Loss, Reduced, Reduction, Target
from lamina.learning.target_checks import check_values, matched

__all__ = ["MAE", "MAPE", "MSE", "MSLE", "Huber", "LogCosh", "Quantile", "SmoothL1"]

_LEVEL = Number("(0, 1)")


@frozen_dataclass
class MSE(Reduced):
    """The mean of (prediction - target)^2.

    Takes a prediction f32 or f64 of any shape and a target of the same shape.

    Args:
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.MSE()(lm.Input(3), lm.Input(3)).shape
        ()
    """

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        difference = prediction - matched(prediction, target)
        return Elements(difference * difference)


@frozen_dataclass
class MAE(Reduced):
    """The mean of |prediction - target|; the gradient at 0 is 0.

    Takes a prediction f32 or f64 of any shape and a target of the same shape.

    Args:
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.MAE()(lm.Input(3), lm.Input(3)).shape
        ()
    """

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        return Elements(ops.abs(prediction - matched(prediction, target)))


@frozen_dataclass
class Huber(Loss):
    """d^2 / 2 for differences |d| up to delta, delta (|d| - delta / 2) beyond: robust to outliers.

    From Huber: Robust estimation of a location parameter (1964). Takes a prediction f32 or f64 of
    any shape and a target of the same shape.

    Args:
        delta: the difference, above 0, at which the parabola becomes a line.
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.Huber(delta=0.5)(lm.Input(3), lm.Input(3)).shape
        ()
    """

    delta: Positive = 1.0
    _: KW_ONLY
    reduction: Reduction = "mean"

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        difference = prediction - matched(prediction, target)
        return Elements(_rounded_corner(difference, self.delta, self.delta))


@frozen_dataclass(kw_only=True)
class SmoothL1(Loss):
    """d^2 / (2 beta) for differences |d| below beta, |d| - beta / 2 beyond: Huber's loss / beta.

    From Girshick: Fast R-CNN (2015). Takes a prediction f32 or f64 of any shape and a target of the
    same shape.

    Args:
        beta: the difference, at least 0, at which the parabola becomes a line; with 0 the loss is
            `MAE`.
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.SmoothL1(beta=0.5)(lm.Input(3), lm.Input(3)).shape
        ()
    """

    beta: NotNegative = 1.0
    reduction: Reduction = "mean"

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        difference = prediction - matched(prediction, target)
        if not self.beta:
            return Elements(ops.abs(difference))
        return Elements(_rounded_corner(difference, self.beta, 1.0))


def _rounded_corner(difference: Tensor, end: float, slope: float) -> Tensor:
    """A parabola up to |d| = end, a line with a slope beyond; also of infinite differences."""
    near = ops.clip(difference, -end, end)
    return near * (slope / end) * (difference - 0.5 * near)


@frozen_dataclass
class LogCosh(Reduced):
    """log(cosh(d)) of the difference: d^2 / 2 for small ones, |d| - log(2) for large ones.

    Takes a prediction f32 or f64 of any shape and a target of the same shape.

    Args:
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.LogCosh()(lm.Input(3), lm.Input(3)).shape
        ()
    """

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        difference = prediction - matched(prediction, target)
        # cosh d is 1 + 2 sinh(d / 2)^2, and exp(|d|) (1 + exp(-2 |d|)) / 2.
        size = ops.abs(difference)
        is_small = size < 1.0
        half = ops.sinh(0.5 * ops.where(is_small, difference, 0.0))
        size = ops.where(is_small, 1.0, size)
        large = size + ops.softplus(-2.0 * size) - float(np.log(2.0))
        return Elements(ops.where(is_small, ops.log1p(2.0 * half * half), large))


@frozen_dataclass
class Quantile(Loss):
    """max(q d, (q - 1) d) for d = target - prediction: its minimum is the quantile q.

    The "pinball loss" of Koenker, Bassett: Regression quantiles (1978). For one quantile it takes a
    prediction f32 or f64 of any shape, and a target of the same shape. For several quantiles the
    last axis of the prediction has one number for each, and the target lacks that axis.

    Args:
        quantiles: a number between 0 and 1, or several.
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.Quantile([0.1, 0.5, 0.9])(lm.Input(3), lm.Input()).shape
        ()
    """

    quantiles: Annotated[float | Sequence[float], Either(_LEVEL, Row(_LEVEL, 1))] = 0.5
    _: KW_ONLY
    reduction: Reduction = "mean"

    def target(self, prediction: Tensor) -> Target:
        alone = isinstance(self.quantiles, int | float)
        return prediction.shape if alone else prediction.shape[:-1], prediction.dtype

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        levels = self.quantiles
        if isinstance(levels, int | float):
            difference = matched(prediction, target) - prediction
            return Elements(ops.maximum(difference * levels, difference * (levels - 1.0)))
        if prediction.rank < 2 or prediction.shape[-1] != len(levels):
            prediction_type = described(prediction)
            raise ShapeError(
                "the last axis of the prediction has one number for each quantile",
                facts=(("expected", f"[batch, ..., {len(levels)}]"), ("found", prediction_type)),
                advice="Give the last layer as many features as there are quantiles.",
            )
        target = ops.expand_dims(matched(prediction[..., 0], target), prediction.rank - 1)
        difference = target - prediction
        level = constant(np.array(levels), prediction.dtype)
        return Elements(ops.maximum(difference * level, difference * (level - 1.0)))


@frozen_dataclass(kw_only=True)
class MAPE(Loss):
    """100 |target - prediction| / |target|: Keras' MeanAbsolutePercentageError.

    Takes a prediction f32 or f64 of any shape and a target of the same shape.

    Args:
        epsilon: the least divisor, above 0.
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.MAPE()(lm.Input(3), lm.Input(3)).shape
        ()
    """

    epsilon: Positive = 1e-7
    reduction: Reduction = "mean"

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        target = matched(prediction, target)
        size = ops.maximum(ops.abs(target), self.epsilon)
        return Elements(ops.abs(target - prediction) / size * 100.0)


@frozen_dataclass(kw_only=True)
class MSLE(Loss):
    """(log(1 + target) - log(1 + prediction))^2: Keras' MeanSquaredLogarithmicError.

    Takes a prediction f32 or f64 of any shape and a target of the same shape. Numbers below epsilon
    count as epsilon.

    Args:
        epsilon: the least number, at least 0.
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.MSLE()(lm.Input(3), lm.Input(3)).shape
        ()
    """

    epsilon: NotNegative = 1e-7
    reduction: Reduction = "mean"

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        check_values(
            self, array, array >= 0, expected="0 or more", advice="Use lm.MSE for negative numbers."
        )

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        target = ops.maximum(matched(prediction, target), self.epsilon)
        found = ops.maximum(prediction, self.epsilon)
        difference = ops.log1p(target) - ops.log1p(found)
        return Elements(difference * difference)
