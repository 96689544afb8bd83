"""The base of losses, and the reductions."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast, final

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, DType, Shape, int64
from lamina.checks.kinds import Number
from lamina.errors import DefinitionError
from lamina.graph import Tensor
from lamina.layers.checks import Sourced
from lamina.learning.losses.scores import SCORES, doubt
from lamina.learning.target_checks import (
    check_labels,
    check_probabilities,
    check_values,
    class_count,
    label_shape,
)
from lamina.learning.weighting import aligned, called
from lamina.ops.conversion import widened

Reduction = Literal["mean", "sum", "none"]
WEIGHT = Number("[0, inf)")
Target = tuple[Shape, DType]
# A loss, and the sum of weights by which a mean is divided, unless that is the number of elements.
Divided = tuple[Tensor, Tensor | None]
Scores = Literal["", "sigmoid", "softmax", "margins"]


@final
@frozen_dataclass
class Elements:
    """The losses of the elements of a batch, before the reduction.

    Attributes:
        each: the losses, [batch, ...], already multiplied by `counts`.
        counts: the weights of the elements by which a mean is divided, in a shape that broadcasts
            over `each`; None where each counts 1.
        axis: an axis of extent 1 that `each` and `counts` have for the classes; None if they have
            none.
    """

    each: Tensor
    counts: Tensor | None = None
    axis: int | None = None


class Loss(Sourced, ABC):
    """The base of all losses. A subclass is a frozen dataclass.

    It defines `elements`, and has a `reduction` then, as `__call__` explains. A subclass may define
    `__call__` instead; its examples cannot have weights, unless `__call__` has a third parameter
    `weights`.

    Example:
        >>> from dataclasses import dataclass
        >>> from lamina.learning.losses import Elements
        >>> @dataclass(frozen=True)
        ... class Quartic(lm.training.losses.Loss):
        ...     reduction: str = "mean"
        ...     def elements(self, prediction, target):
        ...         return Elements((prediction - target) ** 4)
        >>> Quartic()(lm.Input(3), lm.Input(3)).shape
        ()
    """

    def elements(self, prediction: Any, target: Any) -> Elements:
        """Builds the losses of the elements.

        Args:
            prediction: the network's output, batch first; a tuple for several outputs.
            target: the expected output.

        Raises:
            DefinitionError: for another number of outputs than the loss takes.
            ShapeError, DTypeError: if the outputs, or the target, do not fit each other.
        """
        raise DefinitionError(
            "the loss defines neither elements nor __call__",
            facts=(("found", type(self).__name__),),
            advice="Write `def elements(self, prediction, target)`, which returns Elements(each).",
        )

    def __call__(
        self, prediction: Any, target: Any = None, weights: Tensor | None = None
    ) -> Tensor:
        """Builds the loss.

        Args:
            prediction: the network's output, batch first; a tuple for several outputs.
            target: the expected output; None for a loss without targets.
            weights: the weights of the examples, [batch], or of the elements of the loss.

        Returns:
            A tensor in the prediction's dtype. The option `reduction` is `"mean"` over the losses
            of all elements (of all examples, where a loss compares classes, vectors or sequences),
            `"sum"`, or `"none"` for the loss of each, [batch, ...]; the first two have no axes.

        Raises:
            ShapeError, DTypeError: if target or weights do not fit the prediction.
            DefinitionError: for arrays.
        """
        if hasattr(prediction, "__array__") and not isinstance(prediction, Tensor):
            raise DefinitionError(
                "a loss is applied to tensors",
                facts=(("expected", "Tensor"), ("found", type(prediction).__name__)),
                advice="model.evaluate(data, loss=...) computes it. For arrays alone compile it: "
                "lm.compile([p, t], [loss(p, t)]), where p and t are made by lm.Input.",
            )
        # As in models: with floats of 16 bits the loss is computed in float32, and rounded once.
        several = isinstance(prediction, list | tuple)
        predictions = cast(Sequence[object], prediction if several else (prediction,))
        halves = [x.dtype for x in predictions if isinstance(x, Tensor) and x.dtype.is_half]
        if not halves:
            return self._reduced(prediction, target, weights)[0]
        wide, _ = self._reduced(_widened(prediction), _widened(target), weights)
        return ops.cast(wide, halves[0])

    def measured(self, prediction: Any, target: Any, weights: Tensor | None) -> Divided:
        if type(self).__call__ is not Loss.__call__:
            return called(self, prediction, target, weights), None
        return self._reduced(prediction, target, weights)

    def _reduced(self, prediction: Any, target: Any, weights: Tensor | None) -> Divided:
        elements = self.elements(prediction, target)
        each, counts = elements.each, elements.counts
        how: str = getattr(self, "reduction", "mean")
        if elements.axis is not None and (weights is not None or how == "none"):
            each = ops.squeeze(each, elements.axis)
            counts = None if counts is None else ops.squeeze(counts, elements.axis)
        if weights is not None:
            weights = aligned(ops.cast(weights, each.dtype), each)
            each = product(weights, each)
            counts = weights if counts is None else counts * weights
        if how == "none":
            return each, None
        if how == "sum":
            return ops.sum(each), None
        if counts is None:
            return ops.mean(each), None
        divisor = ops.sum(ops.broadcast_to(counts, each.shape))
        if weights is None:
            return ops.sum(each) / divisor, divisor
        # A batch whose examples all have the weight 0 has no loss.
        empty = ops.equal(divisor, 0.0)
        return ops.sum(each) / ops.where(empty, 1.0, divisor), divisor

    # Whether the prediction is a tuple, for networks with several outputs.
    takes_several: ClassVar[bool] = False
    # The raw scores it takes: a sigmoid or a softmax makes probabilities of them, or they
    # are margins, whose sign or order decides; "" for other predictions.
    scores: ClassVar[Scores] = ""

    def doubt(self, prediction: Any) -> str:
        """A warning about a prediction that is certainly of a wrong kind; "" for all others."""
        return ""

    def target(self, prediction: Any) -> Target | Sequence[Target] | None:
        """The shape and dtype of a target for this prediction, or of each of several targets.

        None for a loss without targets.
        """
        return prediction.shape, prediction.dtype

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        """Valid random targets, made from normal noise in the shape of the targets."""
        return 1 / (1 + np.exp(-noise))

    def check_target(self, array: Any, prediction_shape: Shape) -> None:
        """Checks the values of targets before they reach the device.

        Args:
            array: targets of any number of examples; a tuple of arrays for several targets.
            prediction_shape: the shape of the network's output, batch first.

        Raises:
            DataError: for values for which the loss is not defined.
        """


@frozen_dataclass(kw_only=True)
class Reduced(Loss):
    """The base of losses without another option than the reduction."""

    reduction: Reduction = "mean"


class OfScores(Loss):
    """The base of losses of raw scores that have a sigmoid or a softmax inside."""

    def doubt(self, prediction: Any) -> str:
        """Of probabilities and their logarithms."""
        wrong = "probabilities", "logarithms of probabilities"
        return doubt(prediction, wrong, SCORES, "Leave the layer before the loss out.")


class OfClassNumbers(Loss):
    """A loss of scores [batch, classes, ...] and class numbers, integers [batch, ...]."""

    ignore_index: int | None = None

    def target(self, prediction: Tensor) -> Target:
        class_count(prediction)
        return label_shape(prediction), int64

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        return np.floor(np.abs(noise) * 1000) % prediction_shape[1]

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        check_labels(self, array, prediction_shape, self.ignore_index)


class OfProbabilities(Loss):
    """A loss with targets between 0 and 1 in the shape of the prediction."""

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        check_probabilities(self, array)


class OfSigns(Loss):
    """A loss with targets of -1 and 1."""

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        return np.where(noise < 0, -1.0, 1.0)

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        check_values(
            self,
            array,
            np.equal(array, 1) | (np.equal(array, -1)),
            expected="-1 or 1",
            advice="Convert targets of 0 and 1 by 2 * y - 1, in a signed dtype.",
        )


class OfSeveral(Loss):
    """The base of losses of several outputs of a network, which `_names` lists for errors."""

    takes_several: ClassVar[bool] = True
    _names: ClassVar[tuple[str, ...]] = ("first", "second")
    # For another error than the usual one.
    _problem: ClassVar[str] = ""
    _advice: ClassVar[str] = ""

    def target(self, prediction: Sequence[Tensor]) -> Target | None:
        first, *_ = self._outputs(prediction)
        return first.shape, first.dtype

    def _outputs(self, prediction: Any) -> Sequence[Tensor]:
        output_count, count = count_of(prediction), len(self._names)
        if not isinstance(prediction, list | tuple) or output_count != count:
            names = ", ".join(self._names)
            outputs = f"{output_count} output{'s' * (output_count != 1)}"
            raise DefinitionError(
                self._problem or f"{type(self).__name__} compares {count} outputs of a network",
                facts=(("expected", f"({names})"), ("found", outputs)),
                advice=self._advice or f"Give the network as many outputs: outputs=[{names}].",
            )
        return cast(Sequence[Tensor], prediction)


def count_of(prediction: object) -> int:
    """The number of tensors in a prediction; 0 for any other value."""
    if isinstance(prediction, list | tuple):
        listed = cast(Sequence[object], prediction)
        return len(listed) if all(isinstance(member, Tensor) for member in listed) else 0
    return int(isinstance(prediction, Tensor))


def _widened(value: Any) -> Any:
    """One tensor, several or none, with floats of 16 bits as float32."""
    if isinstance(value, list | tuple):
        return tuple(map(_widened, cast(Sequence[Any], value)))
    return widened(value) if isinstance(value, Tensor) else value


def product(share: Tensor, value: Tensor) -> Tensor:
    """Share * value with its limit: 0 where the share is 0 and the value infinity. NaN stays."""
    none = ops.logical_and(ops.equal(share, 0.0), ops.equal(value, math.inf))
    return share * ops.where(none, 0.0, value)


def weighted_by_class(
    each: Tensor, hit: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Losses [batch, 1, ...] times the weights of their targets' classes, and these weights."""
    if weights is None:
        return each, None
    of_target = ops.sum(ops.where(hit, weights, 0.0), 1, keepdims=True)
    return product(of_target, each), of_target


def elements_that_count(
    each: Tensor, weights: Tensor | None, target: Tensor, ignored: int | None
) -> Elements:
    """Losses [batch, 1, ...] and their weights, both 0 where the target does not count."""
    if ignored is not None:
        counts = ops.not_equal(ops.expand_dims(ops.cast(target, "int64"), 1), ignored)
        weights = ops.ones_like(each) if weights is None else weights
        each, weights = ops.where(counts, each, 0.0), ops.where(counts, weights, 0.0)
    return Elements(each, weights, axis=1)


def binary_cross_entropy(
    scores: Tensor, target: Tensor, weight: Tensor | float | None = None
) -> Tensor:
    """-(weight t log q + (1 - t) log(1 - q)) for q = sigmoid(x), also of infinite scores x."""
    # With m = |x| the loss is m times the part of the target on the other side of 0, and
    # log(1 + exp(-m)), which is small.
    positive = scores >= 0
    size = ops.where(positive, scores, -scores)  # unlike abs(x), with a slope at 0
    right = target if weight is None else target * weight
    missed = product(ops.where(positive, 1.0 - target, right), size)
    rest = ops.softplus(-size)
    return missed + (rest if weight is None else (1.0 - target + right) * rest)


def focused(each: Tensor, wrong: Tensor, focus: float) -> Tensor:
    """A focal loss: wrong^focus times each; zero without a gradient where wrong is 0."""
    # Rounding makes `wrong` 0 for certain predictions. Powers below 1 have no slope there.
    certain = ops.equal(wrong, 0.0)
    return ops.where(certain, 0.0, each * ops.where(certain, 1.0, wrong) ** focus)
