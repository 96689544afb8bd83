"""Whole numbers and divisions with a remainder: ceil, round, trunc, remainder, fmod, floor_divide.

Divisions of integers by 0 give 0, and remainders of them too, as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lamina.base.shapes import Array
from lamina.checks import checked_as_given as checked
from lamina.graph import Op, Sample, Samples, Tensor, TensorLike, apply, operator
from lamina.ops.arguments import as_tensor
from lamina.ops.arithmetic import div
from lamina.ops.broadcast import sum_to
from lamina.ops.conversion import apply_to_numbers
from lamina.ops.factories import (
    NUMBER,
    applied,
    elementwise_rule,
    elementwise_samples,
    formula,
    number_like,
    unary_op,
)
from lamina.ops.lowering_rules import Elementwise
from lamina.program.scalar import Scalar

__all__ = ["ceil", "floor_divide", "fmod", "remainder", "round", "trunc"]

_SEVERAL = ((-9.0, 9.0),)


def _ceil(x: Scalar) -> Scalar:
    return applied("negative", applied("floor", applied("negative", x)))


CEIL = unary_op("ceil", formula(_ceil), np.ceil, None, _SEVERAL)


@checked
def ceil(x: TensorLike) -> Tensor:
    """The smallest whole number that is not smaller. The gradient is 0."""
    return _whole(CEIL, x)


ROUND = unary_op("round", "round", np.rint, None, _SEVERAL)


@operator
def round(x: TensorLike) -> Tensor:
    """The nearest whole number, the even one of two. The gradient is 0."""
    return _whole(ROUND, x)


def _trunc(x: Scalar) -> Scalar:
    return applied("copysign", applied("floor", applied("absolute", x)), x)


TRUNC = unary_op("trunc", formula(_trunc), np.trunc, None, _SEVERAL)


@checked
def trunc(x: TensorLike) -> Tensor:
    """x without its fraction. The gradient is 0."""
    return _whole(TRUNC, x)


def _whole(op: Op, x: TensorLike) -> Tensor:
    x = as_tensor(x)
    return apply(op, x) if x.dtype.is_float else x


# Remainders ---------------------------------------------------------------------------------------


def _fmod(a: Scalar, b: Scalar) -> Scalar:
    if a.dtype.is_float:
        return applied("fmod", a, b)
    zero = number_like(b, 0)
    rest = applied("subtract", a, applied("multiply", b, applied("quotient", a, b)))
    return applied("select", applied("equal", b, zero), zero, rest)


def _has_other_sign(rest: Scalar, b: Scalar) -> Scalar:
    """Whether a truncated remainder is not zero, and has another sign than the divisor."""
    zero = number_like(b, 0)
    signs = (applied("less", one, zero) for one in (rest, b))
    differ = applied("not_equal", *signs)
    return applied("logical_and", applied("not_equal", rest, zero), differ)


def _remainder(a: Scalar, b: Scalar) -> Scalar:
    rest = _fmod(a, b)
    return applied("select", _has_other_sign(rest, b), applied("add", rest, b), rest)


def _floor_divide(a: Scalar, b: Scalar) -> Scalar:
    if a.dtype.is_float:
        return _floor_divide_floats(a, b)
    truncated, rest = applied("quotient", a, b), _fmod(a, b)
    less = applied("subtract", truncated, number_like(a, 1))
    return applied("select", _has_other_sign(rest, b), less, truncated)


def _floor_divide_floats(a: Scalar, b: Scalar) -> Scalar:
    """As NumPy and PyTorch: from the exact remainder, rounded to the nearest whole number."""
    one, zero, half = (number_like(a, number) for number in (1, 0, 0.5))
    rest, direct = applied("fmod", a, b), applied("divide", a, b)
    near = applied("divide", applied("subtract", a, rest), b)
    less = applied("subtract", near, one)
    near = applied("select", _has_other_sign(rest, b), less, near)
    rounded = applied("floor", near)
    above = applied("greater", applied("subtract", near, rounded), half)
    rounded = applied("select", above, applied("add", rounded, one), rounded)
    signed_zero = applied("copysign", zero, direct)
    rounded = applied("select", applied("equal", near, zero), signed_zero, rounded)
    return applied("select", applied("equal", b, zero), direct, rounded)


def _reference(function: Callable[..., Array]) -> Callable[..., Array]:
    def reference(a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return function(a, b)

    return reference


def _samples() -> Samples:
    """Numbers of one sign for gradients, and integers of all dtypes, zeros included."""

    def make() -> list[Sample]:
        floats = elementwise_samples(2, ((0.3, 3.0), (-3.0, -0.3)))
        integers = Sample(((4, 7), (7,)), low=-9, high=9, differentiable=False)
        names = (("int32", -9), ("int64", -9), ("uint8", 0))
        return [
            *floats,
            Sample(((6, 5), (5,)), low=-30.0, high=30.0, differentiable=False),
            *(replace(integers, low=low, dtypes=(name, name)) for name, low in names),
        ]

    return Samples(make)


def _division_op(
    name: str,
    lowering: Elementwise,
    reference: Callable[..., Array],
    quotient: Callable[[Tensor, Tensor], Tensor] | None,
) -> Op:
    """A division; its result is a - b whole(a, b), or, without `whole`, a whole number itself."""

    def gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if quotient is None:
            return None, None
        a, b = result.operands
        divisor = sum_to(-(upstream * quotient(a, b)), b.shape)
        return sum_to(upstream, a.shape), divisor

    rule = elementwise_rule(name, NUMBER, None)
    return Op(name, rule, gradient, reference, lowering, _samples(), operands=2)


REMAINDER = _division_op(
    "remainder", formula(_remainder), _reference(np.remainder), lambda a, b: floor_divide(a, b)
)


@operator
def remainder(left: TensorLike, right: TensorLike) -> Tensor:
    """The remainder of left / right, rounded down: it has the sign of right, as Python's `%`.

    It is exact. The gradient to right is -floor(left / right).
    """
    return apply_to_numbers(REMAINDER, left, right)


FMOD = _division_op("fmod", formula(_fmod), _reference(np.fmod), lambda a, b: trunc(div(a, b)))


@checked
def fmod(left: TensorLike, right: TensorLike) -> Tensor:
    """The remainder of left / right, rounded towards zero: it has the sign of left, as C's fmod.

    It is exact. The gradient to right is -trunc(left / right).
    """
    return apply_to_numbers(FMOD, left, right)


FLOOR_DIVIDE = _division_op(
    "floor_divide", formula(_floor_divide), _reference(np.floor_divide), None
)


@operator
def floor_divide(left: TensorLike, right: TensorLike) -> Tensor:
    """Left / right, rounded down to a whole number. The gradient is 0."""
    return apply_to_numbers(FLOOR_DIVIDE, left, right)
