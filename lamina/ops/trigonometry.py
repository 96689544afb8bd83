"""Circular and hyperbolic functions, their inverses, and `hypot`.

Most inverses are formulas of `atan2` and `log1p`, in which no digits cancel.
"""

from __future__ import annotations

import math

import numpy as np

from lamina.base.shapes import Array
from lamina.checks import checked_as_given as checked
from lamina.graph import Tensor, TensorLike, apply
from lamina.ops.comparison import equal, where
from lamina.ops.conversion import floating, floats_of
from lamina.ops.elementwise import reciprocal, rsqrt
from lamina.ops.factories import WIDE, applied, elementwise, elementwise_op, formula, unary
from lamina.ops.records import Operands
from lamina.program.scalar import Literal, Scalar

__all__ = ["acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "hypot", "sinh"]
__all__ += ["tan"]

_WITHIN_ONE = ((-0.9, 0.9),)


@unary("tan", np.tan, lambda x, y, g: g * (y * y + 1), ((-1.2, 1.2),))
def tan(x: TensorLike) -> Tensor:
    """The tangent of x in radians."""
    return floating(x)


def _other_leg(x: Scalar) -> Scalar:
    """sqrt(1 - x**2)."""
    product = applied("multiply", applied("subtract", 1, x), applied("add", 1, x))
    return applied("square_root", product)


@unary(
    formula(lambda x: applied("atan2", x, _other_leg(x))),
    np.arcsin,
    lambda x, y, g: g * rsqrt(1 - x * x),
    _WITHIN_ONE,
)
def asin(x: TensorLike) -> Tensor:
    """The angle from -pi/2 to pi/2 whose sine is x; NaN beyond -1 and 1."""
    return floating(x)


@unary(
    formula(lambda x: applied("atan2", _other_leg(x), x)),
    np.arccos,
    lambda x, y, g: -(g * rsqrt(1 - x * x)),
    _WITHIN_ONE,
)
def acos(x: TensorLike) -> Tensor:
    """The angle from 0 to pi whose cosine is x; NaN beyond -1 and 1."""
    return floating(x)


@unary(formula(lambda x: applied("atan2", x, 1)), np.arctan, lambda x, y, g: g / (x * x + 1), WIDE)
def atan(x: TensorLike) -> Tensor:
    """The angle from -pi/2 to pi/2 whose tangent is x."""
    return floating(x)


def _reciprocal_square(a: Tensor, b: Tensor) -> Tensor:
    """1 / (a**2 + b**2), but 1 at the origin."""
    square = a * a + b * b
    return reciprocal(where(equal(square, 0), 1, square))


@elementwise(
    *("atan2", np.arctan2),
    (
        lambda a, b, y, g: g * (b * _reciprocal_square(a, b)),
        lambda a, b, y, g: g * (-a * _reciprocal_square(a, b)),
    ),
)
def atan2(left: TensorLike, right: TensorLike) -> Operands:
    """The angle of the point (right, left), from -pi to pi; the gradient at the origin is 0."""
    return floats_of(left, right)


SINH = elementwise_op("sinh", "sinh", np.sinh, (lambda x, y, g: g * cosh(x),), WIDE)


@checked
def sinh(x: TensorLike) -> Tensor:
    """The hyperbolic sine."""
    return apply(SINH, floating(x))


@unary("cosh", np.cosh, lambda x, y, g: g * sinh(x), WIDE)
def cosh(x: TensorLike) -> Tensor:
    """The hyperbolic cosine."""
    return floating(x)


# Above it, x**2 + 1 and x**2 - 1 are x**2, and log1p(x) is log(x).
_LARGE = 2.0**28


def _logarithm(size: Scalar, small: Scalar) -> Scalar:
    """log(1 + small), but log(2 size) where the size is large and its square may overflow."""
    large = applied("greater", size, _LARGE)
    argument = applied("select", large, size, small)
    logarithm = applied("log1p", argument)
    twice = Literal(math.log(2), size.dtype)
    return applied("add", logarithm, applied("select", large, twice, 0))


def _asinh(x: Scalar) -> Scalar:
    """log(1 + x + x**2 / (1 + sqrt(x**2 + 1))) of the absolute value, with the sign of x."""
    size = applied("absolute", x)
    square = applied("multiply", size, size)
    root = applied("square_root", applied("add", square, 1))
    small = applied("add", size, applied("divide", square, applied("add", root, 1)))
    return applied("copysign", _logarithm(size, small), x)


@unary(formula(_asinh), np.arcsinh, lambda x, y, g: g * rsqrt(x * x + 1), WIDE)
def asinh(x: TensorLike) -> Tensor:
    """The number whose hyperbolic sine is x."""
    return floating(x)


def _acosh(x: Scalar) -> Scalar:
    """log(1 + t + sqrt(t (t + 2))) with t = x - 1; NaN below 1."""
    above = applied("subtract", x, 1)
    square = applied("multiply", above, applied("add", above, 2))
    small = applied("add", above, applied("square_root", square))
    return applied("select", applied("less", x, 1), math.nan, _logarithm(x, small))


@unary(formula(_acosh), np.arccosh, lambda x, y, g: g * rsqrt(x * x - 1), ((1.1, 30.0),))
def acosh(x: TensorLike) -> Tensor:
    """The positive number whose hyperbolic cosine is x; NaN below 1."""
    return floating(x)


def _atanh(x: Scalar) -> Scalar:
    """log(1 + 2 x / (1 - x)) / 2 of the absolute value, with the sign of x."""
    size = applied("absolute", x)
    ratio = applied("divide", applied("add", size, size), applied("subtract", 1, size))
    return applied("copysign", applied("multiply", applied("log1p", ratio), 0.5), x)


@unary(formula(_atanh), np.arctanh, lambda x, y, g: g / (1 - x * x), _WITHIN_ONE)
def atanh(x: TensorLike) -> Tensor:
    """The number whose hyperbolic tangent is x; NaN beyond -1 and 1."""
    return floating(x)


def _hypot(a: Scalar, b: Scalar) -> Scalar:
    """The larger size times sqrt(1 + q**2), with q the quotient of the sizes."""
    sizes = applied("absolute", a), applied("absolute", b)
    large, small = applied("maximum", *sizes), applied("minimum", *sizes)
    divisor = applied("select", applied("equal", large, 0), 1, large)
    ratio = applied("divide", small, divisor)
    root = applied("square_root", applied("add", applied("multiply", ratio, ratio), 1))
    finite = applied("multiply", large, root)
    endless = applied("logical_or", *(applied("equal", size, math.inf) for size in sizes))
    return applied("select", endless, math.inf, finite)


def _hypot_reference(a: Array, b: Array) -> Array:
    large, small = (f(np.abs(a), np.abs(b)) for f in (np.maximum, np.minimum))
    ratio = small / np.where(large == 0, np.ones((), a.dtype), large)
    finite = large * np.sqrt(ratio * ratio + 1)
    return np.where(np.isinf(a) | np.isinf(b), np.asarray(math.inf, a.dtype), finite)


@elementwise(
    *(formula(_hypot), _hypot_reference),
    (lambda a, b, y, g: g * (a / y), lambda a, b, y, g: g * (b / y)),
)
def hypot(left: TensorLike, right: TensorLike) -> Operands:
    """sqrt(left**2 + right**2), without overflow; the gradient at the origin is NaN."""
    return floats_of(left, right)
