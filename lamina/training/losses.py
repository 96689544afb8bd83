"""Losses: how wrong a prediction is, as one number.

A loss is a frozen record that builds a piece of graph from ops, so its gradient follows by itself
and it is fused with the network. All formulas are those of PyTorch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np

from lamina import ops
from lamina.errors import DefinitionError
from lamina.graph import Tensor
from lamina.graph.kinds import Either, NotNegative, Number, Positive, Row
from lamina.layers.checks import Sourced, place_of
from lamina.records import frozen_dataclass
from lamina.shapes import Array, DType, Shape, int64
from lamina.training.target_checks import (
    Weights,
    check_labels,
    check_probabilities,
    check_values,
    class_count,
    hits,
    known_classes,
    label_shape,
    matched,
    weight_tensor,
)

Reduction = Literal["mean", "sum"]
_WEIGHT = Number("[0, inf)")
Target = tuple[Shape, DType]


class Loss(Sourced, ABC):
    """The base of all losses; a loss of one's own is a frozen dataclass like any other.

    Example:
        >>> from dataclasses import dataclass
        >>> import lamina as lm
        >>> @dataclass(frozen=True)
        ... class LogCosh(lm.training.losses.Loss):
        ...     def __call__(self, prediction, target):
        ...         difference = prediction - target
        ...         return lm.ops.mean(lm.ops.softplus(difference * 2) - difference)
    """

    @abstractmethod
    def __call__(self, prediction: Any, target: Any) -> Tensor:
        """Builds the loss.

        Args:
            prediction: what the network gives, batch first; a tuple for several outputs.
            target: what it should give.

        Returns:
            A tensor without axes, in the prediction's dtype.

        Raises:
            ShapeError, DTypeError: if the target does not fit the prediction.
        """

    # Whether it is called with tuples, for networks of several outputs.
    takes_several: ClassVar[bool] = False

    def target(self, prediction: Any) -> Target | None:
        """The shape and dtype that a target for this prediction has; None if there is none."""
        return prediction.shape, prediction.dtype

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        """Targets to try the loss on, made of normal noise in the targets' shape."""
        del prediction_shape
        return 1 / (1 + np.exp(-noise))

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Checks the values of targets before they reach the device.

        Args:
            array: targets of any number of examples.
            prediction_shape: of the network's output, batch first.

        Raises:
            DataError: if there are values for which the loss has no meaning.
        """


# Regression ---------------------------------------------------------------------------------------


@frozen_dataclass
class MSE(Loss):
    """The mean of (prediction - target)^2.

    Takes a prediction f32 or f64 of any shape and a target of the same shape.

    Args:
        reduction: `"mean"` over all elements, or `"sum"`.

    Raises:
        DefinitionError: for another reduction.

    Example:
        >>> import lamina as lm
        >>> lm.MSE()(lm.Input(3), lm.Input(3)).shape
        ()
    """

    reduction: Reduction = "mean"

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        difference = prediction - matched(self, prediction, target)
        return _reduced(difference * difference, self.reduction)


@frozen_dataclass
class MAE(Loss):
    """The mean of |prediction - target|; the gradient at 0 is 0.

    Takes a prediction f32 or f64 of any shape and a target of the same shape.

    Args:
        reduction: `"mean"` over all elements, or `"sum"`.

    Raises:
        DefinitionError: for another reduction.

    Example:
        >>> import lamina as lm
        >>> lm.MAE()(lm.Input(3), lm.Input(3)).shape
        ()
    """

    reduction: Reduction = "mean"

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        difference = prediction - matched(self, prediction, target)
        return _reduced(ops.abs(difference), self.reduction)


@frozen_dataclass
class Huber(Loss):
    """d^2 / 2 for differences |d| up to delta, delta (|d| - delta / 2) beyond: robust to outliers.

    From Huber: Robust estimation of a location parameter (1964). Takes a prediction f32 or f64 of
    any shape and a target of the same shape.

    Args:
        delta: where the parabola becomes a line.
        reduction: `"mean"` over all elements, or `"sum"`.

    Raises:
        DefinitionError: unless delta is above zero.

    Example:
        >>> import lamina as lm
        >>> lm.Huber(delta=0.5)(lm.Input(3), lm.Input(3)).shape
        ()
    """

    delta: Positive = 1.0
    reduction: Reduction = "mean"

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        difference = prediction - matched(self, prediction, target)
        size = ops.abs(difference)
        parabola = difference * difference * 0.5
        line = (size - 0.5 * self.delta) * self.delta
        return _reduced(ops.where(size <= self.delta, parabola, line), self.reduction)


# Classification -----------------------------------------------------------------------------------


@frozen_dataclass
class CrossEntropy(Loss):
    """-log of the probability that softmax gives to the right class.

    Takes raw scores ("logits"), f32 or f64 [batch, classes, ...], not probabilities: softmax is
    part of the loss. Targets are class numbers, integers [batch, ...] without the axis of classes,
    or probabilities in the shape of the prediction.

    Args:
        label_smoothing: this share of the probability is spread evenly over all classes: Szegedy
            et al.: Rethinking the Inception architecture (2016), section 7.
        class_weights: one number for each class. With class numbers the mean is divided by the
            weights of the targets, as in PyTorch.
        reduction: `"mean"` or `"sum"` over the examples.

    Raises:
        DefinitionError: for a smoothing outside [0, 1], or a negative weight.

    Example:
        >>> import lamina as lm
        >>> lm.CrossEntropy()(lm.Input(10), lm.Input(dtype="int64")).shape
        ()
    """

    label_smoothing: Annotated[float, Number("[0, 1]")] = 0.0
    class_weights: Weights | None = None
    reduction: Reduction = "mean"

    def target(self, prediction: Tensor) -> Target:
        """Class numbers: int64, the prediction's shape without the classes."""
        class_count(self, prediction)
        return label_shape(prediction), int64

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        """Class numbers, spread over the classes."""
        return np.floor(np.abs(noise) * 1000) % prediction_shape[1]

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for class numbers that are out of range."""
        if array.dtype.kind in "iu":
            check_labels(self, array, prediction_shape)

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        classes = class_count(self, prediction)
        weights = weight_tensor(self, self.class_weights, prediction, axis=1)
        # The logarithm of softmax is shifted - normaliser. It is not written down as one tensor:
        # the gradient of the normaliser alone is softmax, without another sum over the classes.
        largest = ops.max(prediction, 1, keepdims=True)
        shifted = prediction - ops.stop_gradient(largest)
        normaliser = ops.log(ops.sum(ops.exp(shifted), 1, keepdims=True))
        smoothing = self.label_smoothing
        if target.dtype.is_float and target.shape != label_shape(prediction):
            shares = matched(self, prediction, target)
            if smoothing:
                shares = shares * (1 - smoothing) + smoothing / classes
            if weights is not None:
                shares = shares * weights
            each = ops.sum(shares * (normaliser - shifted), 1)
            return _reduced(each, self.reduction)
        hit = hits(self, prediction, target)
        each = normaliser - ops.sum(ops.where(hit, shifted, 0.0), 1, keepdims=True)
        each = known_classes(each, target, classes)
        of_target = None
        if weights is not None:
            of_target = ops.sum(ops.where(hit, weights, 0.0), 1, keepdims=True)
            each = each * of_target
        if smoothing:
            every = normaliser - shifted if weights is None else (normaliser - shifted) * weights
            spread = ops.sum(every, 1, keepdims=True)
            each = each * (1 - smoothing) + spread * (smoothing / classes)
        return _weighted(each, of_target, self.reduction)


@frozen_dataclass
class NLL(Loss):
    """-log of the probability of the right class, from log-probabilities.

    Takes log-probabilities, f32 or f64 [batch, classes, ...], as `LogSoftmax` gives them, and
    class numbers, integers [batch, ...]. `CrossEntropy` does both at once.

    Args:
        class_weights: one number for each class; the mean is divided by the weights of the
            targets, as in PyTorch.
        reduction: `"mean"` or `"sum"` over the examples.

    Raises:
        DefinitionError: for a negative weight.

    Example:
        >>> import lamina as lm
        >>> lm.NLL()(lm.LogSoftmax()(lm.Input(10)), lm.Input(dtype="int64")).shape
        ()
    """

    class_weights: Weights | None = None
    reduction: Reduction = "mean"

    def target(self, prediction: Tensor) -> Target:
        """Class numbers: int64, the prediction's shape without the classes."""
        class_count(self, prediction)
        return label_shape(prediction), int64

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        """Class numbers, spread over the classes."""
        return np.floor(np.abs(noise) * 1000) % prediction_shape[1]

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for class numbers that are out of range."""
        check_labels(self, array, prediction_shape)

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        classes = class_count(self, prediction)
        weights = weight_tensor(self, self.class_weights, prediction, axis=1)
        hit = hits(self, prediction, target)
        each = -ops.sum(ops.where(hit, prediction, 0.0), 1, keepdims=True)
        each = known_classes(each, target, classes)
        of_target = None
        if weights is not None:
            of_target = ops.sum(ops.where(hit, weights, 0.0), 1, keepdims=True)
            each = each * of_target
        return _weighted(each, of_target, self.reduction)


@frozen_dataclass
class BCE(Loss):
    """-(t log p + (1 - t) log(1 - p)) for probabilities p and targets t between 0 and 1.

    Takes p f32 or f64 of any shape, as `Sigmoid` gives it, and targets of the same shape. The
    logarithms are not less than -100, as in PyTorch; where one would be, the gradient is 0.
    `BCEWithLogits` is more accurate.

    Args:
        reduction: `"mean"` over all elements, or `"sum"`.

    Raises:
        DefinitionError: for another reduction.

    Example:
        >>> import lamina as lm
        >>> lm.BCE()(lm.Sigmoid()(lm.Input(1)), lm.Input(1)).shape
        ()
    """

    reduction: Reduction = "mean"

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for targets outside 0 to 1."""
        check_probabilities(self, array)

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        wanted = matched(self, prediction, target)
        each = wanted * _log(prediction) + (1.0 - wanted) * _log1m(prediction)
        return -_reduced(each, self.reduction)


@frozen_dataclass
class BCEWithLogits(Loss):
    """Binary cross entropy of sigmoid(x), computed from the scores x without overflow.

    Takes raw scores, f32 or f64 of any shape, and targets between 0 and 1 of the same shape.

    Args:
        positive_weight: a factor for targets of 1: one number, or one for each place on the last
            axis.
        reduction: `"mean"` over all elements, or `"sum"`.

    Raises:
        DefinitionError: for a negative weight.

    Example:
        >>> import lamina as lm
        >>> lm.BCEWithLogits(positive_weight=3.0)(lm.Input(1), lm.Input(1)).shape
        ()
    """

    positive_weight: Annotated[float | Sequence[float], Either(_WEIGHT, Row(_WEIGHT))] | None = None
    reduction: Reduction = "mean"

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for targets outside 0 to 1."""
        check_probabilities(self, array)

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        wanted = matched(self, prediction, target)
        # -log sigmoid(x) = softplus(-x), and -log(1 - sigmoid(x)) = softplus(-x) + x.
        negative = ops.softplus(-prediction)
        weight = self.positive_weight
        if weight is not None and not isinstance(weight, int | float):
            weight = weight_tensor(self, weight, prediction, axis=-1)
        if weight is not None:
            negative = negative * (wanted * (weight - 1.0) + 1.0)
        return _reduced((1.0 - wanted) * prediction + negative, self.reduction)


@frozen_dataclass
class Hinge(Loss):
    """max(0, 1 - t x) for scores x and targets t of -1 or 1: the loss of a support vector machine.

    From Cortes, Vapnik: Support-vector networks (1995). Takes scores f32 or f64 of any shape and
    targets of the same shape. The gradient where t x = 1 is 0.

    Args:
        reduction: `"mean"` over all elements, or `"sum"`.

    Raises:
        DefinitionError: for another reduction.

    Example:
        >>> import lamina as lm
        >>> lm.Hinge()(lm.Input(1), lm.Input(1)).shape
        ()
    """

    reduction: Reduction = "mean"

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        """-1 and +1."""
        return np.where(noise < 0, -1.0, 1.0)

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for targets other than -1 and 1."""
        check_values(
            self,
            array,
            np.equal(array, 1) | (np.equal(array, -1)),
            expected="-1 or 1",
            advice="Targets of 0 and 1 are turned by 2 * y - 1, in a signed dtype.",
        )

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        wanted = matched(self, prediction, target)
        return _reduced(ops.relu(1.0 - wanted * prediction), self.reduction)


# Distributions and distances ----------------------------------------------------------------------


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
        >>> lm.KLDivergence("batchmean")(lm.LogSoftmax()(lm.Input(10)), lm.Input(10)).shape
        ()
    """

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
        return _reduced(each, self.reduction)


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

    margin: NotNegative = 1.0
    epsilon: NotNegative = 1e-6
    swap: bool = False
    reduction: Reduction = "mean"

    def target(self, prediction: Sequence[Tensor]) -> None:
        """There is none."""
        return

    def __call__(self, prediction: Sequence[Tensor], target: Tensor | None = None) -> Tensor:
        """Builds the loss.

        Raises:
            DefinitionError: if there are not three predictions, or there is a target.
            ShapeError, DTypeError: if the three differ.
        """
        outputs = _count(prediction)
        if outputs != 3 or target is not None:
            raise DefinitionError(
                "Triplet compares three predictions and takes no target",
                facts=(
                    ("expected", "(anchor, positive, negative), None"),
                    ("found", f"{outputs} outputs, {'no' if target is None else 'a'} target"),
                ),
                where=place_of(self),
                advice="Give the network three outputs: outputs=[anchor, positive, negative].",
            )
        anchor, positive, negative = prediction
        near = self._distance(anchor, matched(self, anchor, positive))
        far = self._distance(anchor, matched(self, anchor, negative))
        if self.swap:
            far = ops.minimum(far, self._distance(positive, negative))
        return _reduced(ops.clip(near - far + self.margin, low=0.0), self.reduction)

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
        divergence: a factor for the second part; the beta of Higgins et al.: beta-VAE (2017).

    Raises:
        DefinitionError: if the factor is negative.

    Example:
        >>> import lamina as lm
        >>> outputs = lm.Input(1, 28, 28), lm.Input(20), lm.Input(20)
        >>> lm.EvidenceLowerBound()(outputs, lm.Input(1, 28, 28)).shape
        ()
    """

    takes_several: ClassVar[bool] = True

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
        outputs = _count(prediction)
        if outputs != 3:
            raise DefinitionError(
                "EvidenceLowerBound takes the three outputs of a variational autoencoder",
                facts=(
                    ("expected", "(logits, mean, log_variance)"),
                    ("found", f"{outputs} {'output' if outputs == 1 else 'outputs'}"),
                ),
                where=place_of(self),
                advice="lm.networks.variational_autoencoder(...).network has them.",
            )
        return prediction


# Reduction ----------------------------------------------------------------------------------------


def _count(prediction: object) -> int:
    """How many tensors a prediction has; 0 for what is none."""
    if isinstance(prediction, list | tuple):
        several = cast(Sequence[object], prediction)
        return len(several) if all(isinstance(one, Tensor) for one in several) else 0
    return int(isinstance(prediction, Tensor))


def _reduced(each: Tensor, reduction: str) -> Tensor:
    return ops.mean(each) if reduction == "mean" else ops.sum(each)


def _weighted(each: Tensor, weights: Tensor | None, reduction: Reduction) -> Tensor:
    """The sum, or the mean by weights."""
    if weights is None or reduction == "sum":
        return _reduced(each, reduction)
    return ops.sum(each) / ops.sum(weights)


def _log(p: Tensor) -> Tensor:
    """log(p), but at least -100, with a finite gradient at 0."""
    positive = p > 0
    return ops.where(positive, ops.clip(ops.log(ops.where(positive, p, 1.0)), low=-100.0), -100.0)


def _log1m(p: Tensor) -> Tensor:
    """log(1 - p), but at least -100, with a finite gradient at 1."""
    below = p < 1
    return ops.where(below, ops.clip(ops.log1p(-ops.where(below, p, 0.0)), low=-100.0), -100.0)
