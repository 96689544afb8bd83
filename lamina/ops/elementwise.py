"""Functions of one operand, element by element: exp, tanh, sigmoid and the like.

`@unary` makes the record of an op with the name of the function below it: the primitive, NumPy's
function, the gradient for the operand x, the result y and the upstream gradient g, and the ranges
of the samples. The op is applied to the operand that the function returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lamina.base.shapes import Array
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import Flag
from lamina.graph import OPS, Samples, Tensor, TensorLike, apply
from lamina.ops.arguments import as_tensor
from lamina.ops.comparison import where
from lamina.ops.conversion import floating, numeric, recomputed
from lamina.ops.factories import (
    NUMBER,
    POSITIVE,
    SIGNED,
    WIDE,
    applied,
    elementwise,
    elementwise_op,
    elementwise_samples,
    formula,
    unary,
)
from lamina.ops.records import Given

__all__ = ["abs", "cos", "erf", "erfc", "exp", "exp2", "expm1", "floor", "gelu", "log", "log1p"]
__all__ += ["log2", "log10", "neg", "reciprocal", "relu", "rsqrt", "sigmoid", "sign", "sin"]
__all__ += ["softplus", "sqrt", "tanh"]


@unary("negative", np.negative, lambda x, y, g: -g, kinds=NUMBER, selects=True)
def neg(x: TensorLike) -> Tensor:
    """-x."""
    return numeric(x)


@unary("absolute", np.absolute, lambda x, y, g: g * sign(x), kinds=NUMBER)
def abs(x: TensorLike) -> Tensor:
    """The absolute value; the gradient at 0 is 0."""
    return as_tensor(x)


@unary("sign", np.sign, None, kinds=NUMBER)
def sign(x: TensorLike) -> Tensor:
    """-1, 0 or 1; NaN for NaN. The gradient is 0."""
    return numeric(x)


@unary("floor", np.floor, None, ((-9.0, 9.0),))
def floor(x: TensorLike) -> Tensor:
    """The largest whole number that is not larger. The gradient is 0."""
    return as_tensor(x)


@unary("exp", np.exp, lambda x, y, g: g * y, WIDE, keeps_float32=True)
def exp(x: TensorLike) -> Tensor:
    """exp(x): e to the power x."""
    return floating(x)


@unary("expm1", np.expm1, lambda x, y, g: g * (y + 1), keeps_float32=True)
def expm1(x: TensorLike) -> Tensor:
    """exp(x) - 1, accurate near 0."""
    return floating(x)


@unary("log", np.log, lambda x, y, g: g / x, POSITIVE, keeps_float32=True)
def log(x: TensorLike) -> Tensor:
    """The natural logarithm."""
    return floating(x)


@unary("log1p", np.log1p, lambda x, y, g: g / (x + 1), ((-0.7, 3.0),), keeps_float32=True)
def log1p(x: TensorLike) -> Tensor:
    """log(1 + x), accurate near 0."""
    return floating(x)


_LN2, _LN10 = math.log(2.0), math.log(10.0)


@unary("exp2", np.exp2, lambda x, y, g: g * (y * _LN2), WIDE)
def exp2(x: TensorLike) -> Tensor:
    """2 to the power x."""
    return floating(x)


@unary("log2", np.log2, lambda x, y, g: g / (x * _LN2), POSITIVE)
def log2(x: TensorLike) -> Tensor:
    """The logarithm to base 2; whole for powers of 2."""
    return floating(x)


@unary("log10", np.log10, lambda x, y, g: g / (x * _LN10), POSITIVE)
def log10(x: TensorLike) -> Tensor:
    """The logarithm to base 10; whole for powers of 10."""
    return floating(x)


@unary("square_root", np.sqrt, lambda x, y, g: g / (y * 2), POSITIVE)
def sqrt(x: TensorLike) -> Tensor:
    """The square root; the gradient at 0 is infinite."""
    return floating(x)


@unary(
    formula(lambda x: applied("reciprocal", applied("square_root", x))),
    lambda x: np.reciprocal(np.sqrt(x)),
    lambda x, y, g: g * (y * y * y) * -0.5,
    POSITIVE,
)
def rsqrt(x: TensorLike) -> Tensor:
    """1 / sqrt(x)."""
    return floating(x)


@unary("reciprocal", np.reciprocal, lambda x, y, g: -(g * (y * y)), POSITIVE)
def reciprocal(x: TensorLike) -> Tensor:
    """1 / x."""
    return floating(x)


SIN = elementwise_op("sin", "sin", np.sin, (lambda x, y, g: g * cos(x),), WIDE)


@checked
def sin(x: TensorLike) -> Tensor:
    """The sine of x in radians."""
    return apply(SIN, floating(x))


@unary("cos", np.cos, lambda x, y, g: -(g * sin(x)), WIDE)
def cos(x: TensorLike) -> Tensor:
    """The cosine of x in radians."""
    return floating(x)


@unary("tanh", np.tanh, lambda x, y, g: g * (1 - y * y), WIDE)
def tanh(x: TensorLike) -> Tensor:
    """The hyperbolic tangent."""
    return floating(x)


def _of_each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    of_objects = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(of_objects(x)).astype(x.dtype)


_erf_reference = _of_each(math.erf)
_TWO_OVER_ROOT_PI = 2.0 / math.sqrt(math.pi)


@unary("erf", _erf_reference, lambda x, y, g: g * (exp(-(x * x)) * _TWO_OVER_ROOT_PI), WIDE)
def erf(x: TensorLike) -> Tensor:
    """The error function."""
    return floating(x)


@unary(
    "erfc",
    _of_each(math.erfc),
    lambda x, y, g: g * (exp(-(x * x)) * -_TWO_OVER_ROOT_PI),
    ((-2.0, 2.0), (-8.0, 8.0)),
)
def erfc(x: TensorLike) -> Tensor:
    """1 - erf(x), accurate where it is small."""
    return floating(x)


def _sigmoid_reference(x: Array) -> Array:
    # exp cannot overflow for numbers that are not positive.
    small = np.exp(-np.absolute(x))
    return np.where(x < 0, small / (1 + small), 1 / (1 + small))


@unary("sigmoid", _sigmoid_reference, lambda x, y, g: g * (y * (1 - y)), WIDE)
def sigmoid(x: TensorLike) -> Tensor:
    """1 / (1 + exp(-x))."""
    return floating(x)


@unary(
    "softplus",
    lambda x: np.logaddexp(x, np.zeros((), x.dtype)),
    lambda x, y, g: g * sigmoid(x),
    WIDE,
)
def softplus(x: TensorLike) -> Tensor:
    """log(1 + exp(x)), without overflow."""
    return floating(x)


@unary(
    formula(lambda x: applied("maximum", x, 0)),
    lambda x: np.maximum(x, np.zeros((), x.dtype)),
    lambda x, y, g: where(y <= 0, 0, g),
    kinds=NUMBER,
)
def relu(x: TensorLike) -> Tensor:
    """The larger of x and 0; the gradient at 0 is 0."""
    return numeric(x)


def _gelu_of(x: Tensor, approximate: bool) -> Tensor:
    if not approximate:
        return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1.0)
    return x * 0.5 * (tanh((x * x * x * _CUBE + x) * _TANH_SCALE) + 1.0)


def _gelu_gradient(x: Tensor, _: Tensor, upstream: Tensor, approximate: bool) -> Tensor:
    """Computes the expensive terms again, because keeping them from the forward pass costs more."""
    x = recomputed(x, upstream)
    if not approximate:
        density = exp(x * x * -0.5) * math.sqrt(0.5 / math.pi)
        return upstream * ((erf(x * math.sqrt(0.5)) + 1.0) * 0.5 + x * density)
    t = tanh((x * x * x * _CUBE + x) * _TANH_SCALE)
    derivative = (x * x * (3.0 * _CUBE) + 1.0) * _TANH_SCALE
    return upstream * ((t + 1.0) * 0.5 + x * 0.5 * (1.0 - t * t) * derivative)


def _gelu_reference(x: Array, approximate: bool) -> Array:
    if approximate:
        inner = np.tanh((x * x * x * _CUBE + x) * _TANH_SCALE)
    else:
        inner = _erf_reference(x * math.sqrt(0.5))
    return x * 0.5 * (inner + 1.0)


_CUBE, _TANH_SCALE = 0.044715, math.sqrt(2.0 / math.pi)


@elementwise(
    _gelu_of,
    _gelu_reference,
    (_gelu_gradient,),
    samples=Samples(
        lambda: [
            replace(sample, attributes={"approximate": approximate})
            for approximate in (False, True)
            for sample in elementwise_samples(1, SIGNED)
        ]
    ),
    attributes={"approximate": Flag()},
)
def gelu(x: TensorLike, approximate: bool = False) -> Given:
    """x times the probability that a standard normal number is below x, exactly or by tanh."""
    return floating(x), approximate


# Records that the compiler and other ops look for.
_NAMES = ("gelu", "neg", "relu", "sigmoid")
GELU, NEG, RELU, SIGMOID = (OPS[name] for name in _NAMES)
