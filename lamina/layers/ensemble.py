"""Linear layers of several members in one network: an axis of members after the batch."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Annotated

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import static
from lamina.checks.kinds import Count, OrNone, Whole
from lamina.errors import ShapeError
from lamina.graph import Tensor, described
from lamina.layers.checks import require_float
from lamina.layers.init import Constant, Uniform
from lamina.layers.layer import Layer
from lamina.layers.scope import InitializerOption, RegularizerOption, Scope, parameter_of

__all__ = ["LinearBatchEnsemble", "LinearEnsemble"]


@frozen_dataclass
class LinearEnsemble(Layer):
    """A linear layer of its own for each member.

    Takes f32 or f64 [batch, members, inputs] and gives [batch, members, features]. Its parameters
    are `weight`, (members, inputs, features), and `bias`, (members, features).

    Args:
        features: the extent of the last axis of the result.
        bias: whether a bias is added.
        weight_init, bias_init: first values; by default uniform within 1/sqrt(inputs).
        weight_regularizer: a function of the weight that is added to the loss, such as `lm.L2`.

    Example:
        >>> lm.LinearEnsemble(10)(lm.Input(32, 64)).shape
        (batch, 32, 10)
    """

    features: Count
    _: KW_ONLY
    bias: bool = True
    weight_init: InitializerOption = None
    bias_init: InitializerOption = None
    weight_regularizer: RegularizerOption = None

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        members, inputs = _members_of(self, x)
        bound = 1.0 / math.sqrt(inputs)
        shape, usual = (members, inputs, self.features), Uniform(-bound, bound)
        y = ops.einsum("bki,kif->bkf", x, parameter_of(self, scope, "weight", shape, usual))
        if not self.bias:
            return y
        return y + parameter_of(self, scope, "bias", (members, self.features), usual)


@frozen_dataclass
class LinearBatchEnsemble(Layer):
    """A linear layer that members share, between a scaling of inputs and of results of their own.

    y = ((x r) weight^T) s + bias, each member with its row of r, s and bias. Takes f32 or f64
    [batch, members, inputs] and gives [batch, members, features]. Its parameters are `weight`,
    (features, inputs), `r`, (members, inputs), `s` and `bias`, (members, features). Wen, Tran, Ba:
    BatchEnsemble: an alternative approach to efficient ensemble and lifelong learning (2020).

    Args:
        features: the extent of the last axis of the result.
        members: the number of members of an input [batch, inputs], which all of them take.
        bias: whether a bias is added.
        weight_init, bias_init: first values; by default uniform within 1/sqrt(inputs).
        r_init, s_init: first values of the scalings; by default 1.
        weight_regularizer: a function of the weight that is added to the loss, such as `lm.L2`.

    Example:
        >>> lm.LinearBatchEnsemble(10, members=32)(lm.Input(64)).shape
        (batch, 32, 10)
    """

    features: Count
    members: Annotated[int | None, OrNone(Whole(1))] = None
    _: KW_ONLY
    bias: bool = True
    weight_init: InitializerOption = None
    r_init: InitializerOption = None
    s_init: InitializerOption = None
    bias_init: InitializerOption = None
    weight_regularizer: RegularizerOption = None

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        if self.members is not None and x.rank == 2:
            members, (inputs,) = self.members, static(x.shape[1:])
            x = ops.expand_dims(x, 1)
        else:
            members, inputs = _members_of(self, x)
        require_float(self, x)
        bound = 1.0 / math.sqrt(inputs)
        usual, ones = Uniform(-bound, bound), Constant(1.0)
        weight = parameter_of(self, scope, "weight", (self.features, inputs), usual)
        r = parameter_of(self, scope, "r", (members, inputs), ones)
        s = parameter_of(self, scope, "s", (members, self.features), ones)
        y = ops.matmul(x * r, ops.transpose(weight)) * s
        if not self.bias:
            return y
        return y + parameter_of(self, scope, "bias", (members, self.features), usual)


def _members_of(layer: Layer, x: Tensor) -> tuple[int, int]:
    """The members and the features of an input [batch, members, inputs]."""
    name = type(layer).__name__
    if x.rank != 3:
        raise ShapeError(
            f"{name} needs an axis of members",
            facts=(("expected", "[batch, members, inputs]"), ("found", described(x))),
            advice="lm.LinearBatchEnsemble(features, members=32) makes one.",
        )
    require_float(layer, x)
    members, inputs = static(x.shape[1:])
    return members, inputs
