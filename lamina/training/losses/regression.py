"""Losses of numbers: squared, absolute, and Huber's."""

from __future__ import annotations

from dataclasses import KW_ONLY

from lamina import ops
from lamina.graph import Tensor
from lamina.graph.kinds import Positive
from lamina.records import frozen_dataclass
from lamina.training.losses.loss import Loss, Reduction, reduced
from lamina.training.target_checks import matched


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

    _: KW_ONLY
    reduction: Reduction = "mean"

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        difference = prediction - matched(self, prediction, target)
        return reduced(difference * difference, self.reduction)


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

    _: KW_ONLY
    reduction: Reduction = "mean"

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        difference = prediction - matched(self, prediction, target)
        return reduced(ops.abs(difference), self.reduction)


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

    _: KW_ONLY
    delta: Positive = 1.0
    reduction: Reduction = "mean"

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Builds the loss; ShapeError and DTypeError as for all losses."""
        difference = prediction - matched(self, prediction, target)
        size = ops.abs(difference)
        parabola = difference * difference * 0.5
        line = (size - 0.5 * self.delta) * self.delta
        return reduced(ops.where(size <= self.delta, parabola, line), self.reduction)
