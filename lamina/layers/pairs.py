"""Layers of two tensors: bilinear forms, similarities and distances."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Annotated

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import static
from lamina.checks.kinds import Count, Positive, Whole
from lamina.errors import ShapeError
from lamina.graph import Tensor, described
from lamina.layers.checks import axis_within_example, require_float
from lamina.layers.init import Uniform
from lamina.layers.layer import Layer
from lamina.layers.scope import (
    InitializerOption,
    RegularizerOption,
    Scope,
    in_float32,
    parameter_of,
)

__all__ = ["Bilinear", "CosineSimilarity", "PairwiseDistance"]


@frozen_dataclass
class Bilinear(Layer):
    """y = a^T W b + bias, for each feature of the result, along the last axes.

    Applied to f32 or f64 [batch, ..., inputs] and [batch, ..., other inputs]; gives
    [batch, ..., features]. Its parameters are `weight`, (features, inputs, other inputs), and
    `bias`, (features,).

    Args:
        features: the extent of the last axis of the result.
        bias: whether a bias is added.
        weight_init, bias_init: first values; by default U(-1/sqrt(inputs), 1/sqrt(inputs)), as in
            PyTorch.
        weight_regularizer: a function of the weight that is added to the loss, such as `lm.L2`.

    Example:
        >>> lm.Bilinear(10)(lm.Input(4), lm.Input(6)).shape
        (batch, 10)
    """

    features: Count
    _: KW_ONLY
    bias: bool = True
    weight_init: InitializerOption = None
    bias_init: InitializerOption = None
    weight_regularizer: RegularizerOption = None

    @in_float32
    def forward(self, scope: Scope, a: Tensor, b: Tensor) -> Tensor:
        for x in (a, b):
            require_float(self, x)
        if a.rank < 2 or a.shape[:-1] != b.shape[:-1]:
            raise _differing(self, a, b, "All axes but the last must be equal.")
        (left, right) = static((a.shape[-1], b.shape[-1]))
        bound = 1.0 / math.sqrt(left)
        usual, shape = Uniform(-bound, bound), (self.features, left, right)
        weight = parameter_of(self, scope, "weight", shape, usual)
        axes = "uvwxyz"[: a.rank - 1]
        products = ops.einsum(f"{axes}i,oij->{axes}oj", a, weight)
        y = ops.einsum(f"{axes}oj,{axes}j->{axes}o", products, b)
        if not self.bias:
            return y
        return y + parameter_of(self, scope, "bias", (self.features,), usual)


@frozen_dataclass(kw_only=True)
class CosineSimilarity(Layer):
    """The cosine of the angle between two tensors along an axis.

    Applied to two tensors of one shape, f32 or f64; gives the shape without the axis. The norm of
    each is at least epsilon.

    Args:
        axis: the axis along which the products are summed.
        epsilon: the smallest norm.

    Example:
        >>> lm.CosineSimilarity()(lm.Input(8), lm.Input(8)).shape
        (batch,)
    """

    axis: Annotated[int, Whole()] = 1
    epsilon: Positive = 1e-8

    def forward(self, scope: Scope, a: Tensor, b: Tensor) -> Tensor:
        _require_equal(self, a, b)
        axis = axis_within_example(self, self.axis, a)
        return ops.cosine_similarity(a, b, axis, self.epsilon)


@frozen_dataclass(kw_only=True)
class PairwiseDistance(Layer):
    """(sum abs(a - b + epsilon)^power)^(1 / power), along the last axis.

    Applied to two tensors of one shape, f32 or f64 [batch, ..., features]; gives [batch, ...].

    Args:
        power: the exponent of the norm.
        epsilon: the summand of each difference, as in PyTorch, which keeps the root differentiable
            for equal tensors.
        keepdims: whether the last axis stays, with extent 1.

    Example:
        >>> lm.PairwiseDistance()(lm.Input(8), lm.Input(8)).shape
        (batch,)
    """

    power: Positive = 2.0
    epsilon: Positive = 1e-6
    keepdims: bool = False

    @in_float32
    def forward(self, scope: Scope, a: Tensor, b: Tensor) -> Tensor:
        _require_equal(self, a, b)
        difference = a - b + self.epsilon
        axis = axis_within_example(self, -1, a)
        if self.power == 2.0:
            return ops.sqrt(ops.sum(difference * difference, axis, keepdims=self.keepdims))
        total = ops.sum(ops.pow(ops.abs(difference), self.power), axis, keepdims=self.keepdims)
        return ops.pow(total, 1.0 / self.power)


def _require_equal(layer: Layer, a: Tensor, b: Tensor) -> None:
    """Raises ShapeError or DTypeError unless two tensors are floats of one shape."""
    for x in (a, b):
        require_float(layer, x)
    if a.rank < 2 or a.shape != b.shape:
        raise _differing(layer, a, b, "Both tensors must have the same shape, and features.")


def _differing(layer: Layer, a: Tensor, b: Tensor, advice: str) -> ShapeError:
    return ShapeError(
        f"the tensors of {type(layer).__name__} do not fit",
        facts=(("first", described(a)), ("second", described(b))),
        advice=advice,
    )
