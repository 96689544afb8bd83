"""Losses of classes: cross-entropy from scores, log-probabilities and probabilities; hinge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any

import numpy as np

from lamina import ops
from lamina.graph import Tensor
from lamina.graph.kinds import Either, Number, Row
from lamina.records import frozen_dataclass
from lamina.shapes import Array, Shape, int64
from lamina.training.losses.loss import (
    WEIGHT,
    Loss,
    Reduction,
    Target,
    log,
    log1m,
    reduced,
    weighted,
)
from lamina.training.losses.scores import SCORES, doubt
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


@frozen_dataclass
class CrossEntropy(Loss):
    """-log of the probability that softmax gives to the correct class.

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

    _: KW_ONLY
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

    def doubt(self, prediction: Any) -> str:
        """Of probabilities and their logarithms: the loss has a softmax inside."""
        wrong = "probabilities", "logarithms of probabilities"
        return doubt(prediction, wrong, SCORES, "Leave the layer before the loss out.")

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        classes = class_count(self, prediction)
        weights = weight_tensor(self, self.class_weights, prediction, axis=1)
        # The logarithm of softmax is shifted - normaliser. The two are kept apart: the gradient of
        # the normaliser alone is softmax, without another sum over the classes.
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
            return reduced(each, self.reduction)
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
        return weighted(each, of_target, self.reduction)


@frozen_dataclass
class NLL(Loss):
    """-log of the probability of the correct class, from log-probabilities.

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

    _: KW_ONLY
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

    def doubt(self, prediction: Any) -> str:
        """Of raw scores and probabilities."""
        advice = "Write lm.CrossEntropy() for raw scores, or end in lm.LogSoftmax()."
        wanted = "logarithms of probabilities"
        return doubt(prediction, (SCORES, "probabilities"), wanted, advice)

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
        return weighted(each, of_target, self.reduction)


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

    _: KW_ONLY
    reduction: Reduction = "mean"

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for targets outside 0 to 1."""
        check_probabilities(self, array)

    def doubt(self, prediction: Any) -> str:
        """Of raw scores and logarithms."""
        advice = "Write lm.BCEWithLogits() for raw scores, or end in lm.Sigmoid()."
        return doubt(prediction, (SCORES, "logarithms of probabilities"), "probabilities", advice)

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        wanted = matched(self, prediction, target)
        each = wanted * log(prediction) + (1.0 - wanted) * log1m(prediction)
        return -reduced(each, self.reduction)


@frozen_dataclass
class BCEWithLogits(Loss):
    """Binary cross entropy of sigmoid(x), computed from the scores x without overflow.

    Takes raw scores, f32 or f64 of any shape, and targets between 0 and 1 of the same shape.

    Args:
        positive_weight: a factor for targets of 1: one number, or one for each index of the last
            axis.
        reduction: `"mean"` over all elements, or `"sum"`.

    Raises:
        DefinitionError: for a negative weight.

    Example:
        >>> import lamina as lm
        >>> lm.BCEWithLogits(positive_weight=3.0)(lm.Input(1), lm.Input(1)).shape
        ()
    """

    _: KW_ONLY
    positive_weight: Annotated[float | Sequence[float], Either(WEIGHT, Row(WEIGHT))] | None = None
    reduction: Reduction = "mean"

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for targets outside 0 to 1."""
        check_probabilities(self, array)

    def doubt(self, prediction: Any) -> str:
        """Of probabilities and their logarithms: the loss has a sigmoid inside."""
        wrong = "probabilities", "logarithms of probabilities"
        return doubt(prediction, wrong, SCORES, "Leave the layer before the loss out.")

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
        return reduced((1.0 - wanted) * prediction + negative, self.reduction)


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

    _: KW_ONLY
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
            advice="Convert targets of 0 and 1 by 2 * y - 1, in a signed dtype.",
        )

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        wanted = matched(self, prediction, target)
        return reduced(ops.relu(1.0 - wanted * prediction), self.reduction)
