"""Whole numbers and divisions with a remainder: ceil, round, trunc, remainder, fmod, floor_divide.

Divisions of integers by 0 give 0, and remainders of them too, as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lamina.base.shapes import Array
from lamina.graph import Op, Sample, Tensor, TensorLike
from lamina.ops.arguments import as_tensor
from lamina.ops.arithmetic import div
from lamina.ops.conversion import numbers_of
from lamina.ops.factories import NUMBER, applied, elementwise_op, formula, unary
from lamina.ops.lowering_rules import Elementwise
from lamina.ops.records import Operands, Rule, decorating
from lamina.program.scalar import Scalar

__all__ = ["ceil", "floor_divide", "fmod", "remainder", "round", "trunc"]

_SEVERAL = ((-9.0, 9.0),)


@unary(
    formula(lambda x: applied("negative", applied("floor", applied("negative", x)))),
    np.ceil,
    None,
    _SEVERAL,
)
def ceil(x: TensorLike) -> Tensor:
    """The smallest whole number that is not smaller. The gradient is 0."""
    return as_tensor(x)


@unary("round", np.rint, None, _SEVERAL)
def round(x: TensorLike) -> Tensor:
    """The nearest whole number, the even one of two. The gradient is 0."""
    return as_tensor(x)


@unary(
    formula(lambda x: applied("copysign", applied("floor", applied("absolute", x)), x)),
    np.trunc,
    None,
    _SEVERAL,
)
def trunc(x: TensorLike) -> Tensor:
    """x without its fraction. The gradient is 0."""
    return as_tensor(x)


def _fmod(a: Scalar, b: Scalar) -> Scalar:
    if a.dtype.is_float:
        return applied("fmod", a, b)
    rest = applied("subtract", a, applied("multiply", b, applied("quotient", a, b)))
    return applied("select", applied("equal", b, 0), 0, rest)


def _has_other_sign(rest: Scalar, b: Scalar) -> Scalar:
    """Whether a truncated remainder is not zero, and has another sign than the divisor."""
    differ = applied("not_equal", applied("less", rest, 0), applied("less", b, 0))
    return applied("logical_and", applied("not_equal", rest, 0), differ)


def _remainder(a: Scalar, b: Scalar) -> Scalar:
    rest = _fmod(a, b)
    return applied("select", _has_other_sign(rest, b), applied("add", rest, b), rest)


def _floor_divide(a: Scalar, b: Scalar) -> Scalar:
    if a.dtype.is_float:
        return _floor_divide_floats(a, b)
    truncated, rest = applied("quotient", a, b), _fmod(a, b)
    less = applied("subtract", truncated, 1)
    return applied("select", _has_other_sign(rest, b), less, truncated)


def _floor_divide_floats(a: Scalar, b: Scalar) -> Scalar:
    """As NumPy and PyTorch: from the exact remainder, rounded to the nearest whole number."""
    rest, direct = applied("fmod", a, b), applied("divide", a, b)
    near = applied("divide", applied("subtract", a, rest), b)
    less = applied("subtract", near, 1)
    near = applied("select", _has_other_sign(rest, b), less, near)
    nearest = applied("floor", near)
    above = applied("greater", applied("subtract", near, nearest), 0.5)
    nearest = applied("select", above, applied("add", nearest, 1), nearest)
    signed_zero = applied("copysign", 0, direct)
    nearest = applied("select", applied("equal", near, 0), signed_zero, nearest)
    return applied("select", applied("equal", b, 0), direct, nearest)


# Numbers of one sign for gradients, and integers of all dtypes, zeros included.
_OF_ONE_SIGN = ((0.3, 3.0), (-3.0, -0.3))
_MORE_SAMPLES = (
    Sample(((6, 5), (5,)), low=-30.0, high=30.0, differentiable=False),
    *(
        Sample(((4, 7), (7,)), low=low, high=9, dtypes=(name, name), differentiable=False)
        for name, low in (("int32", -9), ("int64", -9), ("uint8", 0))
    ),
)


def _division_op(
    name: str,
    lowering: Elementwise,
    function: Callable[[Array, Array], Array],
    quotient: Callable[[Tensor, Tensor], Tensor] | None,
) -> Op:
    """A division; its result is a - b quotient(a, b), or, without it, a whole number itself."""

    def reference(a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            return function(a, b)

    if quotient is None:
        rules: Sequence[Rule[Tensor, Tensor] | None] = (None, None)
    else:
        rules = (lambda a, b, y, g: g, lambda a, b, y, g: -(g * quotient(a, b)))
    ranges, kinds = _OF_ONE_SIGN, NUMBER
    return elementwise_op(
        name, lowering, reference, rules, ranges, kinds, more_samples=_MORE_SAMPLES
    )


_division = decorating(_division_op)


@_division(formula(_remainder), np.remainder, lambda a, b: floor_divide(a, b))
def remainder(left: TensorLike, right: TensorLike) -> Operands:
    """The remainder of left / right, rounded down: it has the sign of right, as Python's `%`.

    It is exact. The gradient to right is -floor(left / right).
    """
    return numbers_of(left, right)


@_division(formula(_fmod), np.fmod, lambda a, b: trunc(div(a, b)))
def fmod(left: TensorLike, right: TensorLike) -> Operands:
    """The remainder of left / right, rounded towards zero: it has the sign of left, as C's fmod.

    It is exact. The gradient to right is -trunc(left / right).
    """
    return numbers_of(left, right)


@_division(formula(_floor_divide), np.floor_divide, None)
def floor_divide(left: TensorLike, right: TensorLike) -> Operands:
    """Left / right, rounded down to a whole number. The gradient is 0."""
    return numbers_of(left, right)
