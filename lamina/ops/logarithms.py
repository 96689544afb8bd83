"""Exponentials and logarithms to other bases, and sums and products of logarithms."""

from __future__ import annotations

import math

import numpy as np

from lamina.base.shapes import Array
from lamina.checks import checked_as_given as checked
from lamina.graph import Op, Tensor, TensorLike, apply
from lamina.ops.arithmetic import maximum
from lamina.ops.comparison import equal, less_equal, logical_and, where
from lamina.ops.conversion import floating, operands_of
from lamina.ops.elementwise import sigmoid, softplus
from lamina.ops.factories import (
    FLOAT,
    POSITIVE,
    WIDE,
    applied,
    binary_op,
    elementwise_rule,
    elementwise_samples,
    formula,
    number_like,
    summed_gradients,
    unary_op,
)
from lamina.ops.lowering_rules import Decomposition
from lamina.program.scalar import Scalar

__all__ = ["exp2", "log2", "log10", "logaddexp", "xlogy"]

_LN2, _LN10 = math.log(2.0), math.log(10.0)

EXP2 = unary_op("exp2", "exp2", np.exp2, lambda x, y, g: g * (y * _LN2), WIDE)


@checked
def exp2(x: TensorLike) -> Tensor:
    """2 to the power x."""
    return apply(EXP2, floating(x))


LOG2 = unary_op("log2", "log2", np.log2, lambda x, y, g: g / (x * _LN2), POSITIVE)


@checked
def log2(x: TensorLike) -> Tensor:
    """The logarithm to base 2; whole for powers of 2."""
    return apply(LOG2, floating(x))


LOG10 = unary_op("log10", "log10", np.log10, lambda x, y, g: g / (x * _LN10), POSITIVE)


@checked
def log10(x: TensorLike) -> Tensor:
    """The logarithm to base 10; whole for powers of 10."""
    return apply(LOG10, floating(x))


# Sums and products of logarithms ------------------------------------------------------------------


def _logaddexp_of(a: Tensor, b: Tensor) -> Tensor:
    """max(a, b) + log(1 + exp(-|a - b|)); equal infinities have no difference."""
    distance = where(equal(a, b), 0, abs(a - b))
    return maximum(a, b) + softplus(-distance)


def _logaddexp_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    a, b = result.operands
    return summed_gradients(
        result, lambda: upstream * sigmoid(a - b), lambda: upstream * sigmoid(b - a)
    )


LOGADDEXP = Op(
    "logaddexp",
    elementwise_rule("logaddexp", FLOAT, None),
    _logaddexp_gradient,
    np.logaddexp,
    Decomposition(lambda node: _logaddexp_of(*node.operands)),
    elementwise_samples(2, WIDE),
    operands=2,
)


@checked
def logaddexp(left: TensorLike, right: TensorLike) -> Tensor:
    """log(exp(left) + exp(right)), without overflow."""
    return apply(LOGADDEXP, *map(floating, operands_of(left, right)))


def _xlogy(x: Scalar, y: Scalar) -> Scalar:
    number = applied("logical_and", applied("equal", x, number_like(x, 0)), applied("equal", y, y))
    product = applied("multiply", x, applied("log", y))
    return applied("select", number, number_like(x, 0), product)


def _xlogy_reference(x: Array, y: Array) -> Array:
    return np.where((x == 0) & (y == y), np.zeros((), x.dtype), x * np.log(y))


def _xlogy_left(x: Tensor, y: Tensor, _: Tensor, g: Tensor) -> Tensor:
    # Where x and the logarithm's pole or branch meet, the derivative is 0, as for 0 log(y).
    undefined = logical_and(equal(x, 0), less_equal(y, 0))
    return where(undefined, 0, xlogy(g, where(undefined, 1, y)))


XLOGY = binary_op(
    "xlogy",
    formula(_xlogy),
    _xlogy_reference,
    _xlogy_left,
    lambda a, b, y, g: g * a / b,
    POSITIVE,
    FLOAT,
)


@checked
def xlogy(left: TensorLike, right: TensorLike) -> Tensor:
    """Left log(right), and 0 where left is 0, unless right is NaN."""
    return apply(XLOGY, *map(floating, operands_of(left, right)))
