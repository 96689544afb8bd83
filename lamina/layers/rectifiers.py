"""Activation functions made of pieces: rectifiers, shrinkage, hard limits.

Values and derivatives are PyTorch's, also at the kinks. All take f32 or f64 of any shape and give
the same shape and dtype: `y = lm.ReLU()(x)`.
"""

from __future__ import annotations

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import static
from lamina.checks.kinds import NotNegative, Positive
from lamina.graph import Tensor
from lamina.layers.checks import crossed, require_channels
from lamina.layers.init import Constant
from lamina.layers.layer import Layer
from lamina.layers.scope import Scope

__all__ = ["CELU", "ELU", "SELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU"]
__all__ += ["PReLU", "RReLU", "ReLU", "ReLU6", "Softshrink", "Threshold"]

# Klambauer, Unterthiner, Mayr, Hochreiter: Self-normalizing neural networks (2017), section 2.
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


@frozen_dataclass
class ReLU(Layer):
    """max(x, 0); the derivative at 0 is 0."""

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.relu(x)


@frozen_dataclass
class LeakyReLU(Layer):
    """x above 0, slope x elsewhere; the derivative at 0 is the slope.

    Args:
        slope: the derivative below 0.

    Example:
        >>> y = lm.LeakyReLU(slope=0.2)(lm.Input(10))
    """

    slope: float = 0.01

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.where(x > 0, x, x * self.slope)


@frozen_dataclass(kw_only=True)
class PReLU(Layer):
    """x above 0, weight x elsewhere, with a learned weight.

    After He, Zhang, Ren, Sun: Delving deep into rectifiers (2015).

    Args:
        per_channel: whether each channel, along axis 1, has its own weight.
        slope: the initial weight.

    Parameters: `weight` [channels] or [1].

    Example:
        >>> y = lm.PReLU(per_channel=True)(lm.Input(16, 8, 8))
    """

    per_channel: bool = False
    slope: float = 0.25

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        if self.per_channel:
            require_channels(self, x, "Leave per_channel out, for one weight.")
        (channels,) = static(x.shape[1:2]) if self.per_channel else (1,)
        weight = scope.parameter("weight", shape=(channels,), init=Constant(self.slope))
        if self.per_channel:
            weight = ops.reshape(weight, (channels, *(1,) * (x.rank - 2)))
        return ops.where(x > 0, x, x * weight)


@frozen_dataclass(kw_only=True)
class RReLU(Layer):
    """x above 0, slope x elsewhere, with a random slope for each element while training.

    In inference the slope is the mean of the bounds. After Xu, Wang, Chen, Li: Empirical evaluation
    of rectified activations in convolutional network (2015).

    Args:
        low: the lower bound of slopes.
        high: the upper bound of slopes.
    """

    low: float = 1 / 8
    high: float = 1 / 3

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise crossed(self, "low must not be above high", "low <= high")

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        if scope.training:
            return ops.where(x > 0, x, x * scope.uniform(x.shape, self.low, self.high))
        return ops.where(x > 0, x, x * ((self.low + self.high) / 2))


@frozen_dataclass
class Threshold(Layer):
    """x above the threshold, another value elsewhere.

    Args:
        threshold: the largest x that is replaced; up to it the derivative is 0.
        value: the number in place of x.
    """

    threshold: float
    value: float

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.where(x <= self.threshold, self.value, x)


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
    """

    alpha: float = 1.0

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return _exponential_linear(x, self.alpha, 1.0)


@frozen_dataclass
class SELU(Layer):
    """1.0507 ELU(x) with alpha 1.6733: keeps mean 0 and variance 1 from layer to layer.

    After Klambauer, Unterthiner, Mayr, Hochreiter: Self-normalizing neural networks (2017). The
    weights should start with variance 1 / inputs.
    """

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return _exponential_linear(x, _SELU_ALPHA, _SELU_SCALE)


@frozen_dataclass
class CELU(Layer):
    """x above 0, alpha (exp(x / alpha) - 1) elsewhere: its derivative at 0 is 1.

    After Barron: Continuously differentiable exponential linear units (2017).

    Args:
        alpha: minus the limit for x to minus infinity.
    """

    alpha: Positive = 1.0

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        below = ops.where(x > 0, 0.0, x)
        return ops.where(x > 0, x, ops.expm1(below * (1 / self.alpha)) * self.alpha)


@frozen_dataclass
class Hardshrink(Layer):
    """x, but 0 from -threshold to threshold.

    Args:
        threshold: the largest value of |x|.
    """

    threshold: NotNegative = 0.5

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.where(abs(x) <= self.threshold, 0.0, x)


@frozen_dataclass
class Softshrink(Layer):
    """x, moved towards 0 by the threshold, and 0 where |x| is below it.

    It is the proximal operator of the L1 norm; Donoho: De-noising by soft-thresholding (1995).

    Args:
        threshold: the largest value of |x|; up to it the derivative is 0.
    """

    threshold: NotNegative = 0.5

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        above, below = x - self.threshold, x + self.threshold
        # The product keeps NaN.
        return ops.where(x > self.threshold, above, ops.where(x < -self.threshold, below, x * 0.0))


@frozen_dataclass(kw_only=True)
class Hardtanh(Layer):
    """x, but not below low and not above high; the derivative at both bounds is 0.

    Args:
        low: the lower bound.
        high: the upper bound.

    Example:
        >>> y = lm.Hardtanh(low=0.0, high=6.0)(lm.Input(10))
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise crossed(self, "low must be below high", "low < high")

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.hardtanh(x, self.low, self.high)


@frozen_dataclass
class ReLU6(Layer):
    """x, but not below 0 and not above 6; the derivative at both bounds is 0."""

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.hardtanh(x, 0.0, 6.0)


@frozen_dataclass
class Hardsigmoid(Layer):
    """(x + 3) / 6 from 0 to 1: a sigmoid of straight lines.

    After Courbariaux, Bengio, David: BinaryConnect (2015).
    """

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return _hard_sigmoid(x)


def _hard_sigmoid(x: Tensor) -> Tensor:
    return (ops.hardtanh(x, -3.0, 3.0) + 3.0) / 6.0


@frozen_dataclass
class Hardswish(Layer):
    """x Hardsigmoid(x), a cheap SiLU.

    After Howard et al.: Searching for MobileNetV3 (2019).
    """

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return x * _hard_sigmoid(x)
