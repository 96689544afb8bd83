"""Losses of distributions and embeddings: Kullback-Leibler, evidence lower bound, triplets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import ClassVar, Literal

import numpy as np

from lamina import ops
from lamina.errors import DefinitionError
from lamina.graph import Tensor
from lamina.graph.kinds import NotNegative
from lamina.layers.checks import origin_text
from lamina.records import frozen_dataclass
from lamina.shapes import Array, Shape
from lamina.training.losses.loss import Loss, Reduction, Target, count_of, reduced
from lamina.training.target_checks import check_values, matched


@frozen_dataclass
class KLDivergence(Loss):
    """t (log t - x) for log-probabilities x and probabilities t; 0 where t is 0.

    From Kullback, Leibler: On information and sufficiency (1951). Takes x f32 or f64 of any
    shape, as `LogSoftmax` gives it, and targets of the same shape.

    Args:
        reduction: `"mean"` over all elements as PyTorch's default, `"batchmean"` for the sum over
            each example and the mean over the batch, which is the divergence itself, or `"sum"`.

    Raises:
        DefinitionError: for another reduction.

    Example:
        >>> import lamina as lm
        >>> loss = lm.KLDivergence(reduction="batchmean")
        >>> loss(lm.LogSoftmax()(lm.Input(10)), lm.Input(10)).shape
        ()
    """

    _: KW_ONLY
    reduction: Literal["mean", "sum", "batchmean"] = "mean"

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        """Probabilities that sum to 1 along the last axis."""
        return np.exp(noise) / np.exp(noise).sum(axis=-1, keepdims=True)

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for negative targets."""
        check_values(
            self,
            array,
            array >= 0,
            expected="0 or more",
            advice="Targets are probabilities, not their logarithms.",
        )

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        wanted = matched(self, prediction, target)
        positive = ops.where(wanted > 0, wanted, 1.0)
        each = wanted * (ops.log(positive) - prediction)
        if self.reduction == "batchmean":
            return ops.mean(ops.sum(each, tuple(range(1, each.rank))) if each.rank > 1 else each)
        return reduced(each, self.reduction)


@frozen_dataclass
class Triplet(Loss):
    """max(0, margin + |a - p| - |a - n|) for an anchor a, a positive p and a negative n.

    From Schroff, Kalenichenko, Philbin: FaceNet (2015), and Balntas et al.: Learning local feature
    descriptors with triplets (2016). The prediction is a tuple of three tensors of one shape, f32
    or f64 [batch, ..., features]; there is no target.

    Args:
        margin: how much nearer the positive must be.
        epsilon: added to the differences, so that the distance has a gradient at 0.
        swap: uses the distance from positive to negative where that is smaller.
        reduction: `"mean"` or `"sum"`.

    Raises:
        DefinitionError: if the margin or epsilon is negative.

    Example:
        >>> import lamina as lm
        >>> lm.Triplet()((lm.Input(8), lm.Input(8), lm.Input(8))).shape
        ()
    """

    takes_several: ClassVar[bool] = True

    _: KW_ONLY
    margin: NotNegative = 1.0
    epsilon: NotNegative = 1e-6
    swap: bool = False
    reduction: Reduction = "mean"

    def target(self, prediction: Sequence[Tensor]) -> None:
        """None: the loss takes no target."""
        return

    def __call__(self, prediction: Sequence[Tensor], target: Tensor | None = None) -> Tensor:
        """Builds the loss.

        Raises:
            DefinitionError: if there are not three predictions, or there is a target.
            ShapeError, DTypeError: if the three differ.
        """
        outputs = count_of(prediction)
        if outputs != 3 or target is not None:
            raise DefinitionError(
                "Triplet compares three predictions and takes no target",
                facts=(
                    ("expected", "(anchor, positive, negative), None"),
                    ("found", f"{outputs} outputs, {'no' if target is None else 'a'} target"),
                ),
                where=origin_text(self),
                advice="Give the network three outputs: outputs=[anchor, positive, negative].",
            )
        anchor, positive, negative = prediction
        near = self._distance(anchor, matched(self, anchor, positive))
        far = self._distance(anchor, matched(self, anchor, negative))
        if self.swap:
            far = ops.minimum(far, self._distance(positive, negative))
        return reduced(ops.clip(near - far + self.margin, low=0.0), self.reduction)

    def _distance(self, left: Tensor, right: Tensor) -> Tensor:
        difference = left - right + self.epsilon
        return ops.sqrt(ops.sum(difference * difference, -1))


@frozen_dataclass
class EvidenceLowerBound(Loss):
    """The negative evidence lower bound, which a variational autoencoder minimises.

    From Kingma, Welling: Auto-encoding variational Bayes (2014), formula 10. For each example the
    binary cross-entropy of all its numbers, plus the divergence of its code from the standard
    normal distribution, in nats; the mean over the batch. The prediction is a tuple as
    `lm.networks.variational_autoencoder` gives it: logits, f32 or f64 [batch, ...], and mean and
    logarithm of the variance of the code, [batch, code] each. The target has the shape of the
    logits, and numbers in [0, 1].

    Args:
        divergence: the factor of the divergence; the beta of Higgins et al.: beta-VAE (2017).

    Raises:
        DefinitionError: if the factor is negative.

    Example:
        >>> import lamina as lm
        >>> outputs = lm.Input(1, 28, 28), lm.Input(20), lm.Input(20)
        >>> lm.EvidenceLowerBound()(outputs, lm.Input(1, 28, 28)).shape
        ()
    """

    takes_several: ClassVar[bool] = True

    _: KW_ONLY
    divergence: NotNegative = 1.0

    def target(self, prediction: Sequence[Tensor]) -> Target:
        """The shape and dtype of the logits."""
        logits, _, _ = self._outputs(prediction)
        return logits.shape, logits.dtype

    def __call__(self, prediction: Sequence[Tensor], target: Tensor) -> Tensor:
        """Builds the loss.

        Raises:
            DefinitionError: if there are not three predictions.
            ShapeError, DTypeError: if they, or the target, do not fit each other.
        """
        logits, mean, log_variance = self._outputs(prediction)
        wanted, log_variance = matched(self, logits, target), matched(self, mean, log_variance)
        each = ops.softplus(logits) - logits * wanted
        squares = mean * mean + ops.exp(log_variance) - 1 - log_variance
        divergence = 0.5 * ops.sum(squares, tuple(range(1, squares.rank)))
        missed = ops.sum(each, tuple(range(1, each.rank)))
        return ops.mean(missed + self.divergence * divergence)

    def _outputs(self, prediction: Sequence[Tensor]) -> Sequence[Tensor]:
        outputs = count_of(prediction)
        if outputs != 3:
            raise DefinitionError(
                "EvidenceLowerBound takes the three outputs of a variational autoencoder",
                facts=(
                    ("expected", "(logits, mean, log_variance)"),
                    ("found", f"{outputs} {'output' if outputs == 1 else 'outputs'}"),
                ),
                where=origin_text(self),
                advice="lm.networks.variational_autoencoder(...).network has them.",
            )
        return prediction
