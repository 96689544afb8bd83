"""Smooth activation functions as layers; those made of pieces are in `rectifiers.py`.

All take f32 or f64 of any shape and give the same shape and dtype: `y = lm.Tanh()(x)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Literal

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.checks.kinds import Positive
from lamina.errors import ShapeError
from lamina.graph import Tensor, described
from lamina.layers.checks import axis_within_example
from lamina.layers.layer import Layer
from lamina.layers.scope import Scope, in_float32

__all__ = ["GELU", "GLU", "LogSigmoid", "LogSoftmax", "Mish", "SiLU", "Sigmoid", "Softmax"]
__all__ += ["Softmin", "Softplus", "Softsign", "Tanh", "Tanhshrink"]


@frozen_dataclass
class Tanh(Layer):
    """The hyperbolic tangent."""

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.tanh(x)


@frozen_dataclass
class Sigmoid(Layer):
    """1 / (1 + exp(-x))."""

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.sigmoid(x)


@frozen_dataclass(kw_only=True)
class GELU(Layer):
    """x times the probability that a standard normal number is below x.

    After Hendrycks, Gimpel: Gaussian error linear units (2016).

    Args:
        approximate: `"none"` for x (1 + erf(x / sqrt 2)) / 2, `"tanh"` for
            x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.

    Example:
        >>> y = lm.GELU(approximate="tanh")(lm.Input(10))
    """

    approximate: Literal["none", "tanh"] = "none"

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.gelu(x, self.approximate == "tanh")


@frozen_dataclass
class SiLU(Layer):
    """x sigmoid(x), also called Swish."""

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return x * ops.sigmoid(x)


@frozen_dataclass
class Mish(Layer):
    """x tanh(softplus(x)).

    After Misra: Mish: A self regularized non-monotonic activation function (2019).
    """

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return x * ops.tanh(ops.softplus(x))


@frozen_dataclass
class Softplus(Layer):
    """log(1 + exp(beta x)) / beta, a smooth ReLU.

    Computed without overflow at any x. PyTorch returns x where beta x is above 20; the difference
    is less than 3e-9 / beta.

    Args:
        beta: the larger, the nearer to ReLU.
    """

    beta: Positive = 1.0

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.softplus(x) if self.beta == 1 else ops.softplus(x * self.beta) / self.beta


@frozen_dataclass
class LogSigmoid(Layer):
    """log(1 / (1 + exp(-x))), computed without overflow."""

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return -ops.softplus(-x)


@frozen_dataclass
class Softsign(Layer):
    """x / (1 + |x|)."""

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return x / (abs(x) + 1.0)


@frozen_dataclass
class Tanhshrink(Layer):
    """x - tanh(x)."""

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return x - ops.tanh(x)


@frozen_dataclass
class Softmax(Layer):
    """exp(x) / sum(exp(x)) along an axis, computed without overflow.

    `CrossEntropy` takes the values before it, not the probabilities.

    Args:
        axis: an axis of the tensor with its batch; not the batch.
    """

    axis: int = -1

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.softmax(x, axis_within_example(self, self.axis, x))


@frozen_dataclass
class LogSoftmax(Layer):
    """The logarithm of `Softmax`, computed without overflow; the loss `NLL` takes it."""

    axis: int = -1

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.log_softmax(x, axis_within_example(self, self.axis, x))


@frozen_dataclass
class Softmin(Layer):
    """`Softmax` of -x: exp(-x) / sum(exp(-x)) along an axis."""

    axis: int = -1

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.softmax(-x, axis_within_example(self, self.axis, x))


# The functions of the second half in `GLU`.
_OF_SECOND: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": ops.sigmoid,
    "silu": lambda x: x * ops.sigmoid(x),
    "gelu": ops.gelu,
    "relu": ops.relu,
    "none": lambda x: x,
}


@frozen_dataclass
class GLU(Layer):
    """The first half along an axis times the sigmoid of the second half.

    The result has half the extent. After Dauphin, Fan, Auli, Grangier: Language modeling with gated
    convolutional networks (2016); its variants SwiGLU (`"silu"`), GEGLU (`"gelu"`), ReGLU
    (`"relu"`) and bilinear (`"none"`) after Shazeer: GLU variants improve transformer (2020).

    Args:
        axis: the axis of the tensor with its batch; not the batch.
        activation: the function of the second half.

    Example:
        >>> lm.GLU(activation="silu")(lm.Input(10)).shape
        (batch, 5)
    """

    axis: int = -1
    _: KW_ONLY
    activation: Literal["sigmoid", "silu", "gelu", "relu", "none"] = "sigmoid"

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        axis = axis_within_example(self, self.axis, x)
        extent = x.shape[axis]
        if not isinstance(extent, int) or extent % 2:
            raise ShapeError(
                "GLU halves an axis of even extent",
                facts=(("axis", str(axis)), ("found", described(x))),
                advice="Give the layer before it twice the features.",
            )
        first, second = ops.split(x, 2, axis)
        return first * _OF_SECOND[self.activation](second)
