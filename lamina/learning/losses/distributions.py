"""Losses of distributions: Kullback-Leibler, Gauss, Poisson, and the evidence lower bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, Shape
from lamina.checks.kinds import NotNegative, Positive
from lamina.errors import ShapeError
from lamina.graph import Tensor, described
from lamina.learning.losses.loss import (
    Elements,
    Loss,
    OfSeveral,
    Reduction,
    binary_cross_entropy,
    product,
)
from lamina.learning.losses.scores import SCORES, doubt, is_softmax_of_one
from lamina.learning.target_checks import check_values, matched

__all__ = ["EvidenceLowerBound", "GaussianNLL", "KLDivergence", "PoissonNLL"]


@frozen_dataclass(kw_only=True)
class KLDivergence(Loss):
    """t (log t - x) for log-probabilities x and probabilities t; 0 where t is 0.

    From Kullback, Leibler: On information and sufficiency (1951). Takes x f32 or f64 of any
    shape, as `LogSoftmax` gives it, and targets of the same shape.

    Args:
        log_target: whether targets are logarithms of probabilities too.
        reduction: `"mean"` over all elements as PyTorch's default, `"batchmean"` for the sum over
            each example and the mean over the batch, which is the divergence itself, `"sum"`, or
            `"none"` for the summand of each element.

    Example:
        >>> loss = lm.KLDivergence(reduction="batchmean")
        >>> loss(lm.LogSoftmax()(lm.Input(10)), lm.Input(10)).shape
        ()
    """

    log_target: bool = False
    reduction: Literal["mean", "sum", "batchmean", "none"] = "mean"

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        probabilities = np.exp(noise) / np.exp(noise).sum(axis=-1, keepdims=True)
        return np.log(probabilities) if self.log_target else probabilities

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        if self.log_target:
            return
        check_values(
            self,
            array,
            array >= 0,
            expected="0 or more",
            advice="Targets are probabilities; of their logarithms say log_target=True.",
        )

    def doubt(self, prediction: Any) -> str:
        if is_softmax_of_one(prediction):
            return "the prediction is the softmax of a single number. Give each class a score."
        wanted, advice = "logarithms of probabilities", "End in lm.LogSoftmax()."
        return doubt(prediction, (SCORES, "probabilities"), wanted, advice)

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        target = matched(prediction, target)
        if self.log_target:
            finite = ops.where(ops.equal(target, -math.inf), 0.0, target)
            each = product(ops.exp(target), finite - prediction)
        else:
            logarithm = ops.log(ops.where(ops.equal(target, 0.0), 1.0, target))
            each = product(target, logarithm - prediction)
        if self.reduction == "batchmean" and each.rank > 1:
            each = ops.sum(each, tuple(range(1, each.rank)))
        return Elements(each)


@frozen_dataclass(kw_only=True)
class GaussianNLL(OfSeveral):
    """(log(v) + (target - mean)^2 / v) / 2: -log of the density of a normal distribution.

    From Nix, Weigend: Estimating the mean and variance of the target probability distribution
    (1994). The prediction is a tuple of the mean, f32 or f64 of any shape, and of the variance v in
    the same shape, or with a last axis of extent 1. The target has the shape of the mean. A
    variance below epsilon counts as epsilon, and its gradient passes as if it were not, as in
    PyTorch; PyTorch refuses negative ones.

    Args:
        full: whether the constant log(2 pi) / 2 is added.
        epsilon: the least variance, above 0.
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.GaussianNLL()((lm.Input(3), lm.Softplus()(lm.Input(3))), lm.Input(3)).shape
        ()
    """

    _names: ClassVar[tuple[str, ...]] = ("mean", "variance")

    full: bool = False
    epsilon: Positive = 1e-6
    reduction: Reduction = "mean"

    def elements(self, prediction: Sequence[Tensor], target: Tensor) -> Elements:
        mean, variance = self._outputs(prediction)
        target = matched(mean, target)
        if variance.shape not in (mean.shape, (*mean.shape[:-1], 1)):
            raise ShapeError(
                "the variance does not fit the mean",
                facts=(("mean", described(mean)), ("variance", described(variance))),
                advice="Give it the shape of the mean, or a last axis of extent 1.",
            )
        raised = variance + ops.stop_gradient(ops.relu(self.epsilon - variance))
        difference = mean - target
        each = 0.5 * (ops.log(raised) + difference * difference / raised)
        return Elements(each + 0.5 * math.log(2 * math.pi) if self.full else each)


@frozen_dataclass(kw_only=True)
class PoissonNLL(Loss):
    """exp(x) - t x for the logarithm x of the mean of a Poisson distribution, and counts t.

    -log of the probability of t, without log(t!). Takes a prediction f32 or f64 of any shape and a
    target of the same shape.

    Args:
        log_input: whether x is the logarithm of the mean; otherwise it is the mean, and the loss is
            x - t log(x + epsilon), as Keras' `Poisson`.
        full: whether Stirling's approximation of log(t!), t log(t) - t + log(2 pi t) / 2, is added
            where t > 1.
        epsilon: a number of at least 0 that keeps the logarithm finite.
        reduction: `"mean"` over all elements, `"sum"`, or `"none"` for the loss of each.

    Example:
        >>> lm.PoissonNLL()(lm.Input(3), lm.Input(3)).shape
        ()
    """

    log_input: bool = True
    full: bool = False
    epsilon: NotNegative = 1e-8
    reduction: Reduction = "mean"

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        return np.floor(np.abs(noise) * 3)

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        check_values(
            self, array, array >= 0, expected="0 or more", advice="Targets are counts of events."
        )

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        target = matched(prediction, target)
        if self.log_input:
            each = ops.exp(prediction) + product(target, -prediction)
        else:
            mean = prediction + self.epsilon
            never = ops.logical_and(ops.equal(target, 0.0), ops.equal(mean, 0.0))
            each = prediction + product(target, -ops.log(ops.where(never, 1.0, mean)))
        if self.full:
            count = ops.where(target > 1, target, 1.0)
            logarithm = ops.log(count)
            stirling = count * logarithm - count + 0.5 * (logarithm + math.log(2 * math.pi))
            each = each + ops.where(target > 1, stirling, 0.0)
        return Elements(each)


@frozen_dataclass(kw_only=True)
class EvidenceLowerBound(OfSeveral):
    """The negative evidence lower bound, which a variational autoencoder minimises.

    From Kingma, Welling: Auto-encoding variational Bayes (2014), formula 10. For each example the
    binary cross-entropy of all its numbers, plus the divergence of its code from the standard
    normal distribution, in nats; the mean over the batch. The prediction is a tuple as
    `lm.networks.variational_autoencoder` gives it: logits, f32 or f64 [batch, ...], and mean and
    logarithm of the variance of the code, [batch, code] each. The target has the shape of the
    logits, and numbers in [0, 1].

    Args:
        divergence: the factor of the divergence, at least 0; the beta of Higgins et al.: beta-VAE
            (2017).

    Example:
        >>> outputs = lm.Input(1, 28, 28), lm.Input(20), lm.Input(20)
        >>> lm.EvidenceLowerBound()(outputs, lm.Input(1, 28, 28)).shape
        ()
    """

    divergence: NotNegative = 1.0
    _names: ClassVar[tuple[str, ...]] = ("logits", "mean", "log_variance")
    _problem: ClassVar[str] = (
        "EvidenceLowerBound takes the three outputs of a variational autoencoder"
    )
    _advice: ClassVar[str] = "lm.networks.variational_autoencoder(...).network has them."

    def elements(self, prediction: Sequence[Tensor], target: Tensor) -> Elements:
        logits, mean, log_variance = self._outputs(prediction)
        target, log_variance = matched(logits, target), matched(mean, log_variance)
        each = binary_cross_entropy(logits, target)
        squares = mean * mean + (ops.expm1(log_variance) - log_variance)
        divergence = 0.5 * ops.sum(squares, tuple(range(1, squares.rank)))
        missed = ops.sum(each, tuple(range(1, each.rank)))
        return Elements(missed + self.divergence * divergence)
