"""Losses of embeddings: distances and angles between the outputs of a network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, ClassVar

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import shape_text
from lamina.checks.kinds import Function, NotNegative, Number
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import Tensor, described
from lamina.learning.losses.loss import (
    Elements,
    OfSeveral,
    OfSigns,
    Reduced,
    Reduction,
    Target,
    count_of,
)
from lamina.learning.target_checks import matched

__all__ = ["CosineEmbedding", "NegativeCosine", "Triplet", "TripletWithDistance"]

# Added to squared lengths, so that the cosine has a gradient at 0; PyTorch's number.
_EPSILON = 1e-12


class _OfTriplets(OfSeveral):
    """The base of losses of an anchor, a positive and a negative, which differ in the distance."""

    _names: ClassVar[tuple[str, ...]] = ("anchor", "positive", "negative")

    margin: float
    swap: bool

    def target(self, prediction: Sequence[Tensor]) -> None:
        return

    def elements(self, prediction: Sequence[Tensor], target: Tensor | None) -> Elements:
        outputs = count_of(prediction)
        if outputs != len(self._names) or target is not None:
            arguments = f"{outputs} outputs, {'no' if target is None else 'a'} target"
            raise DefinitionError(
                f"{type(self).__name__} compares three predictions and takes no target",
                facts=(("expected", "(anchor, positive, negative), None"), ("found", arguments)),
                advice="Give the network three outputs: outputs=[anchor, positive, negative].",
            )
        anchor, positive, negative = prediction
        near = self._distance(anchor, matched(anchor, positive))
        far = self._distance(anchor, matched(anchor, negative))
        if self.swap:
            far = ops.minimum(far, self._distance(positive, negative))
        return Elements(ops.clip(near - far + self.margin, low=0.0))

    @abstractmethod
    def _distance(self, left: Tensor, right: Tensor) -> Tensor:
        """The distances of two tensors [batch, ..., features]: [batch, ...]."""


@frozen_dataclass(kw_only=True)
class Triplet(_OfTriplets):
    """max(0, margin + |a - p| - |a - n|) for an anchor a, a positive p and a negative n.

    From Schroff, Kalenichenko, Philbin: FaceNet (2015), and Balntas et al.: Learning local feature
    descriptors with triplets (2016). The prediction is a tuple of three tensors of one shape, f32
    or f64 [batch, ..., features]; there is no target.

    Args:
        margin: the distance, at least 0, by which the positive must be nearer.
        epsilon: a number of at least 0 that is added to the differences, so that the distance has a
            gradient at 0.
        swap: whether the distance from positive to negative counts where it is smaller.
        reduction: `"mean"` or `"sum"` over the examples, or `"none"` for the loss of each.

    Example:
        >>> lm.Triplet()((lm.Input(8), lm.Input(8), lm.Input(8))).shape
        ()
    """

    margin: NotNegative = 1.0
    epsilon: NotNegative = 1e-6
    swap: bool = False
    reduction: Reduction = "mean"

    def _distance(self, left: Tensor, right: Tensor) -> Tensor:
        return ops.norm(left - right + self.epsilon, axes=-1)


@frozen_dataclass
class TripletWithDistance(_OfTriplets):
    """max(0, margin + d(a, p) - d(a, n)) with a distance d of your own; else as `Triplet`.

    Args:
        distance: a function of two tensors [batch, ..., features] that gives a tensor [batch, ...].
        margin: the distance, at least 0, by which the positive must be nearer.
        swap: whether the distance from positive to negative counts where it is smaller.
        reduction: `"mean"` or `"sum"` over the examples, or `"none"` for the loss of each.

    Example:
        >>> def far(a, b):
        ...     return lm.ops.max(abs(a - b), -1)
        >>> lm.TripletWithDistance(far)((lm.Input(8), lm.Input(8), lm.Input(8))).shape
        ()
    """

    distance: Annotated[Callable[[Tensor, Tensor], Tensor], Function("lambda a, b: ...")]
    _: KW_ONLY
    margin: NotNegative = 1.0
    swap: bool = False
    reduction: Reduction = "mean"

    def _distance(self, left: Tensor, right: Tensor) -> Tensor:
        return self.distance(left, right)


@frozen_dataclass(kw_only=True)
class CosineEmbedding(OfSeveral, OfSigns):
    """1 - cos(a, b) where the target is 1, max(0, cos(a, b) - margin) where it is -1.

    The prediction is a tuple of two tensors of one shape, f32 or f64 [batch, ..., features]; the
    target, 1 for pairs that are alike and -1 for others, lacks the last axis.

    Args:
        margin: the cosine up to which pairs that differ have no loss, from -1 to 1.
        reduction: `"mean"` or `"sum"` over the examples, or `"none"` for the loss of each.

    Example:
        >>> lm.CosineEmbedding()((lm.Input(8), lm.Input(8)), lm.Input()).shape
        ()
    """

    margin: Annotated[float, Number("[-1, 1]")] = 0.0
    reduction: Reduction = "mean"

    def target(self, prediction: Sequence[Tensor]) -> Target:
        first, _ = self._outputs(prediction)
        return first.shape[:-1], first.dtype

    def elements(self, prediction: Sequence[Tensor], target: Tensor) -> Elements:
        first, second = self._outputs(prediction)
        second = _without_overflow(matched(first, second))
        if first.rank < 2 or target.shape != first.shape[:-1]:
            raise ShapeError(
                "the target does not fit the prediction",
                facts=(
                    ("prediction", described(first)),
                    ("expected", shape_text(first.shape[:-1], first.dtype)),
                    ("found", described(target)),
                ),
                advice="There is one target, 1 or -1, for each pair of vectors.",
            )
        first = _without_overflow(first)
        cosine = ops.sum(first * second, -1) / ops.sqrt(
            (ops.sum(first * first, -1) + _EPSILON) * (ops.sum(second * second, -1) + _EPSILON)
        )
        apart = ops.clip(cosine - self.margin, low=0.0)
        return Elements(ops.where(target > 0, 1.0 - cosine, apart))


@frozen_dataclass
class NegativeCosine(Reduced):
    """-cos(prediction, target) along the last axis: Keras' `CosineSimilarity`.

    Takes a prediction f32 or f64 [batch, ..., features] and a target of the same shape. A vector of
    zeros has the cosine 0.

    Args:
        reduction: `"mean"` or `"sum"` over the examples, or `"none"` for the loss of each.

    Example:
        >>> lm.NegativeCosine()(lm.Input(8), lm.Input(8)).shape
        ()
    """

    def elements(self, prediction: Tensor, target: Tensor) -> Elements:
        target = matched(prediction, target)
        return Elements(-ops.sum(_unit(prediction) * _unit(target), -1))


def _unit(x: Tensor) -> Tensor:
    """Vectors of length 1 along the last axis; shorter ones than 1e-6 are scaled less."""
    x = _without_overflow(x)
    squares = ops.maximum(ops.sum(x * x, -1, keepdims=True), _EPSILON)
    return x / ops.sqrt(squares)


def _without_overflow(x: Tensor) -> Tensor:
    """Vectors in the same direction, with squares that do not overflow; cosines are the same."""
    largest = ops.max(ops.abs(x), -1, keepdims=True)
    return x / ops.stop_gradient(ops.maximum(largest, 1.0))
