"""Activation functions as layers. Values and derivatives are PyTorch's, also at the kinks.

All take f32 or f64 of any shape and give the same shape and dtype.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

from lamina import ops
from lamina.errors import DefinitionError
from lamina.graph import Tensor
from lamina.layers.checks import axis_within_example, origin_text
from lamina.layers.layer import Layer
from lamina.layers.scope import Scope
from lamina.records import frozen_dataclass

# Klambauer, Unterthiner, Mayr, Hochreiter: Self-normalizing neural networks (2017), section 2.
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


@frozen_dataclass
class Tanh(Layer):
    """The hyperbolic tangent.

    Example:
        >>> import lamina as lm
        >>> y = lm.Tanh()(lm.Input(10))
    """

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        """Builds tanh(x)."""
        return ops.tanh(x)


@frozen_dataclass
class Sigmoid(Layer):
    """1 / (1 + exp(-x)).

    Example:
        >>> import lamina as lm
        >>> y = lm.Sigmoid()(lm.Input(10))
    """

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        """Builds sigmoid(x)."""
        return ops.sigmoid(x)


@frozen_dataclass
class ReLU(Layer):
    """max(x, 0); the derivative at 0 is 0.

    Example:
        >>> import lamina as lm
        >>> y = lm.ReLU()(lm.Input(10))
    """

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        """Builds relu(x)."""
        return ops.relu(x)


@frozen_dataclass
class LeakyReLU(Layer):
    """x above 0, slope x elsewhere; the derivative at 0 is the slope.

    Args:
        slope: the derivative below 0.

    Raises:
        DefinitionError: if the slope is not a finite number.

    Example:
        >>> import lamina as lm
        >>> y = lm.LeakyReLU(slope=0.2)(lm.Input(10))
    """

    _: KW_ONLY
    slope: float = 0.01

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        """Builds the choice between x and slope x."""
        return ops.where(x > 0, x, x * self.slope)


def _exponential_linear(x: Tensor, alpha: float, scale: float) -> Tensor:
    """Scale x above 0, scale alpha (exp(x) - 1) elsewhere."""
    # expm1 gets no positive number: it would overflow, and 0 * infinity in the gradient is NaN.
    below = ops.where(x > 0, 0.0, x)
    return ops.where(x > 0, x * scale, ops.expm1(below) * (alpha * scale))


@frozen_dataclass
class ELU(Layer):
    """x above 0, alpha (exp(x) - 1) elsewhere.

    After Clevert, Unterthiner, Hochreiter: Exponential linear units (2015).

    Args:
        alpha: minus the limit for x to minus infinity.

    Raises:
        DefinitionError: if alpha is not a finite number.

    Example:
        >>> import lamina as lm
        >>> y = lm.ELU()(lm.Input(10))
    """

    _: KW_ONLY
    alpha: float = 1.0

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        """Builds the choice between x and alpha (exp(x) - 1)."""
        return _exponential_linear(x, self.alpha, 1.0)


@frozen_dataclass
class SELU(Layer):
    """1.0507 ELU(x) with alpha 1.6733: keeps mean 0 and variance 1 from layer to layer.

    After Klambauer, Unterthiner, Mayr, Hochreiter: Self-normalizing neural networks (2017). The
    weights should start with variance 1 / inputs.

    Example:
        >>> import lamina as lm
        >>> y = lm.SELU()(lm.Input(10))
    """

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        """Builds the scaled ELU."""
        return _exponential_linear(x, _SELU_ALPHA, _SELU_SCALE)


@frozen_dataclass
class GELU(Layer):
    """x times the probability that a standard normal number is below x.

    After Hendrycks, Gimpel: Gaussian error linear units (2016).

    Args:
        approximate: `"none"` for x (1 + erf(x / sqrt 2)) / 2, `"tanh"` for
            x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.

    Raises:
        DefinitionError: for another word.

    Example:
        >>> import lamina as lm
        >>> y = lm.GELU(approximate="tanh")(lm.Input(10))
    """

    _: KW_ONLY
    approximate: Literal["none", "tanh"] = "none"

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        """Builds gelu(x), exact or approximated."""
        return ops.gelu(x, self.approximate == "tanh")


@frozen_dataclass
class SiLU(Layer):
    """x sigmoid(x), also called Swish.

    Example:
        >>> import lamina as lm
        >>> y = lm.SiLU()(lm.Input(10))
    """

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        """Builds x sigmoid(x)."""
        return x * ops.sigmoid(x)


@frozen_dataclass
class Softplus(Layer):
    """log(1 + exp(x)), a smooth ReLU.

    Computed without overflow at any x. PyTorch returns x above 20; the difference is less than
    3e-9.

    Example:
        >>> import lamina as lm
        >>> y = lm.Softplus()(lm.Input(10))
    """

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        """Builds softplus(x)."""
        return ops.softplus(x)


@frozen_dataclass
class Softmax(Layer):
    """exp(x) / sum(exp(x)) along an axis, computed without overflow.

    `CrossEntropy` takes the values before it, not the probabilities.

    Args:
        axis: of the tensor with its batch; not the batch.

    Raises:
        ShapeError: when applied to a tensor without this axis, or if the axis is the batch.

    Example:
        >>> import lamina as lm
        >>> y = lm.Softmax()(lm.Input(10))
    """

    _: KW_ONLY
    axis: int = -1

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        """Builds softmax(x)."""
        return ops.softmax(x, axis_within_example(self, self.axis, x))


@frozen_dataclass
class LogSoftmax(Layer):
    """The logarithm of softmax along an axis, computed without overflow; the loss `NLL` takes it.

    Args:
        axis: of the tensor with its batch; not the batch.

    Raises:
        ShapeError: when applied to a tensor without this axis, or if the axis is the batch.

    Example:
        >>> import lamina as lm
        >>> y = lm.LogSoftmax()(lm.Input(10))
    """

    _: KW_ONLY
    axis: int = -1

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        """Builds log_softmax(x)."""
        return ops.log_softmax(x, axis_within_example(self, self.axis, x))


@frozen_dataclass
class Hardtanh(Layer):
    """x, but not below low and not above high; the derivative at both bounds is 0.

    Args:
        low: the lower bound.
        high: the upper bound.

    Raises:
        DefinitionError: unless low < high.

    Example:
        >>> import lamina as lm
        >>> y = lm.Hardtanh(low=0.0, high=6.0)(lm.Input(10))
    """

    _: KW_ONLY
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise DefinitionError(
                "low must be below high",
                facts=(
                    ("expected", "low < high"),
                    ("found", f"low={self.low!r}, high={self.high!r}"),
                ),
                where=origin_text(self),
            )

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        """Builds x within the bounds."""
        return ops.hardtanh(x, self.low, self.high)
