"""The base of losses, and the reductions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

import numpy as np

from lamina import ops
from lamina.graph import Tensor
from lamina.graph.kinds import Number
from lamina.layers.checks import Sourced
from lamina.shapes import Array, DType, Shape

Reduction = Literal["mean", "sum"]
WEIGHT = Number("[0, inf)")
Target = tuple[Shape, DType]


class Loss(Sourced, ABC):
    """The base of all losses. A subclass is a frozen dataclass.

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
            prediction: the network's output, batch first; a tuple for several outputs.
            target: the expected output.

        Returns:
            A tensor without axes, in the prediction's dtype.

        Raises:
            ShapeError, DTypeError: if the target does not fit the prediction.
        """

    # Whether the prediction is a tuple, for networks with several outputs.
    takes_several: ClassVar[bool] = False

    def doubt(self, prediction: Any) -> str:
        """A warning about a prediction that is certainly of a wrong kind; "" for all others."""
        del prediction
        return ""

    def target(self, prediction: Any) -> Target | None:
        """The shape and dtype of a target for this prediction; None for a loss without targets."""
        return prediction.shape, prediction.dtype

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        """Valid random targets, made from normal noise in the targets' shape."""
        del prediction_shape
        return 1 / (1 + np.exp(-noise))

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Checks the values of targets before they reach the device.

        Args:
            array: targets of any number of examples.
            prediction_shape: of the network's output, batch first.

        Raises:
            DataError: for values for which the loss is not defined.
        """


def count_of(prediction: object) -> int:
    """The number of tensors in a prediction; 0 for any other value."""
    if isinstance(prediction, list | tuple):
        several = cast(Sequence[object], prediction)
        return len(several) if all(isinstance(one, Tensor) for one in several) else 0
    return int(isinstance(prediction, Tensor))


def reduced(each: Tensor, reduction: str) -> Tensor:
    """The mean, or the sum."""
    return ops.mean(each) if reduction == "mean" else ops.sum(each)


def weighted(each: Tensor, weights: Tensor | None, reduction: Reduction) -> Tensor:
    """The sum of losses that are weighted already; for the mean, divided by the sum of weights."""
    if weights is None or reduction == "sum":
        return reduced(each, reduction)
    return ops.sum(each) / ops.sum(weights)


def log(p: Tensor) -> Tensor:
    """log(p), but at least -100, with a finite gradient at 0."""
    positive = p > 0
    return ops.where(positive, ops.clip(ops.log(ops.where(positive, p, 1.0)), low=-100.0), -100.0)


def log1m(p: Tensor) -> Tensor:
    """log(1 - p), but at least -100, with a finite gradient at 1."""
    below = p < 1
    return ops.where(below, ops.clip(ops.log1p(-ops.where(below, p, 0.0)), low=-100.0), -100.0)
