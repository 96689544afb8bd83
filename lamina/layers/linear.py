"""The fully connected layer."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import static
from lamina.checks.kinds import Count
from lamina.errors import ShapeError
from lamina.graph import Tensor, described
from lamina.layers.checks import require_float
from lamina.layers.init import KaimingUniform, Uniform
from lamina.layers.layer import Layer
from lamina.layers.scope import InitializerOption, RegularizerOption, Scope, parameter_of

__all__ = ["Linear"]


@frozen_dataclass
class Linear(Layer):
    """y = x weight^T + bias, along the last axis.

    Takes f32 or f64 [batch, ..., inputs] and gives [batch, ..., features]. Its parameters are
    `weight`, (features, inputs), and `bias`, (features,).

    Args:
        features: the extent of the last axis of the result.
        bias: whether a bias is added.
        weight_init: first values; by default U(-1/sqrt(inputs), 1/sqrt(inputs)), as in PyTorch.
        bias_init: first values; by default uniform in the same bounds.
        weight_regularizer: a function of the weight that is added to the loss, such as `lm.L2`.
        bias_regularizer: the same for the bias.

    Example:
        >>> lm.Linear(10)(lm.Input(784)).shape
        (batch, 10)
    """

    features: Count
    _: KW_ONLY
    bias: bool = True
    weight_init: InitializerOption = None
    bias_init: InitializerOption = None
    weight_regularizer: RegularizerOption = None
    bias_regularizer: RegularizerOption = None

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        if x.rank < 2:
            raise ShapeError(
                "Linear needs an axis of features",
                facts=(("expected", "[batch, features]"), ("found", described(x))),
                advice="Add lm.Flatten() before it: one scalar per example becomes one feature.",
            )
        require_float(self, x)
        (inputs,) = static(x.shape[-1:])
        usual = KaimingUniform(slope=math.sqrt(5.0))
        weight = parameter_of(self, scope, "weight", (self.features, inputs), usual)
        y = ops.matmul(x, ops.transpose(weight))
        if not self.bias:
            return y
        bound = 1.0 / math.sqrt(inputs)
        return y + parameter_of(self, scope, "bias", (self.features,), Uniform(-bound, bound))
