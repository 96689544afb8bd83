"""Arithmetic of two and three operands: sums, products, powers, maximum and minimum, lerp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lamina.base.shapes import Array, DType, as_whole
from lamina.checks import checked_as_given as checked
from lamina.graph import Op, Sample, Tensor, TensorLike, apply, operator
from lamina.ops.comparison import equal, greater, less, logical_and, where
from lamina.ops.conversion import apply_to_numbers, floating, numeric, operands_of
from lamina.ops.elementwise import log
from lamina.ops.factories import (
    ANY,
    FLOAT,
    NUMBER,
    POSITIVE,
    SIGNED,
    applied,
    binary_op,
    elementwise_rule,
    elementwise_samples,
    formula,
    number_like,
    scalar_primitive,
    summed_gradients,
)
from lamina.program.integers import integer_power
from lamina.program.scalar import Scalar

__all__ = ["add", "div", "lerp", "maximum", "minimum", "mul", "multiply_add", "pow", "sub"]

ADD = binary_op("add", "add", np.add, lambda a, b, y, g: g, lambda a, b, y, g: g)


@operator
def add(left: TensorLike, right: TensorLike) -> Tensor:
    """Left + right."""
    return apply_to_numbers(ADD, left, right)


SUB = binary_op("sub", "subtract", np.subtract, lambda a, b, y, g: g, lambda a, b, y, g: -g)


@operator
def sub(left: TensorLike, right: TensorLike) -> Tensor:
    """Left - right."""
    return apply_to_numbers(SUB, left, right)


MUL = binary_op("mul", "multiply", np.multiply, lambda a, b, y, g: g * b, lambda a, b, y, g: g * a)


@operator
def mul(left: TensorLike, right: TensorLike) -> Tensor:
    """Left * right."""
    return apply_to_numbers(MUL, left, right)


def _multiply_add_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    left, right, _ = result.operands
    return summed_gradients(
        result, lambda: upstream * right, lambda: upstream * left, lambda: upstream
    )


def _multiply_add_reference(left: Array, right: Array, added: Array) -> Array:
    return np.asarray(left * right + added)


MULTIPLY_ADD = Op(
    "multiply_add",
    elementwise_rule("multiply_add", FLOAT, None),
    _multiply_add_gradient,
    _multiply_add_reference,
    scalar_primitive("multiply_add"),
    elementwise_samples(3, SIGNED),
    operands=3,
)


@checked
def multiply_add(left: TensorLike, right: TensorLike, added: TensorLike) -> Tensor:
    """Left * right + added, in one rounding where the device can; of integers float32.

    Example:
        >>> import numpy as np
        >>> lm.ops.multiply_add(np.ones(3, "float32"), 2, np.ones((2, 1), "float32")).shape
        (2, 3)
    """
    return apply(MULTIPLY_ADD, *map(floating, operands_of(left, right, added)))


DIV = binary_op(
    "div",
    "divide",
    np.divide,
    lambda a, b, y, g: g / b,
    lambda a, b, y, g: -(g * (y / b)),
    POSITIVE,
    FLOAT,
)


@operator
def div(left: TensorLike, right: TensorLike) -> Tensor:
    """Left / right; of integers float32."""
    a, b = operands_of(left, right)
    return apply(DIV, floating(a), floating(b))


def _pow_base_gradient(a: Tensor, b: Tensor, _: Tensor, g: Tensor) -> Tensor:
    # The derivative of 0 ** 0 is 0; without `where` it would be 0 * 0 ** -1, a NaN.
    exponent = where(logical_and(equal(a, 0), equal(b, 0)), 1, b)
    return g * (b * pow(a, exponent - 1))


def _pow_exponent_gradient(a: Tensor, b: Tensor, _: Tensor, g: Tensor) -> Tensor:
    # Where the base is 0, take 1 instead: log(1) = 0 gives the derivative 0, and no NaN.
    base = where(equal(a, 0), 1, a)
    return g * (pow(base, b) * log(base))


def _pow_reference(a: Array, b: Array) -> Array:
    return np.power(a, b) if a.dtype.kind == "f" else integer_power(a, b)


# Powers of integers, negative ones too.
_WHOLE_POWERS = tuple(
    Sample(((4, 6), (6,)), low=low, high=9, dtypes=(name, name), differentiable=False)
    for name, low in (("int32", -5), ("int64", -5), ("uint8", 0))
)
POW = binary_op(
    "pow",
    "power",
    _pow_reference,
    _pow_base_gradient,
    _pow_exponent_gradient,
    POSITIVE,
    NUMBER,
    _WHOLE_POWERS,
    keeps_float32=True,
)


@operator
def pow(left: TensorLike, right: TensorLike) -> Tensor:
    """Left to the power right.

    Powers of integers are integers and wrap around; negative ones are 0, but powers of 1 and -1 are
    exact. With a negative Python int, integers become float32. The gradient to the exponent is 0
    where the base is 0.
    """
    if isinstance(left, Tensor) and isinstance(right, int) and _is_product(left.dtype, right):
        return _whole_power(numeric(left), right)
    if (as_whole(right) or 0) < 0:
        left = floating(left)
    a, b = operands_of(left, right)
    wide = floating if a.dtype.is_float else numeric
    return apply(POW, wide(a), wide(b))


def _is_product(dtype: DType, exponent: int) -> bool:
    """Whether a power is computed by multiplication."""
    return exponent >= 1 and (exponent <= 3 or not dtype.is_float)


def _whole_power(x: Tensor, exponent: int) -> Tensor:
    """By squaring: exact for integers, and cheaper than logarithms."""
    if exponent == 1:
        return x
    root = _whole_power(x, exponent // 2)
    return root * root * x if exponent % 2 else root * root


Relation = Callable[[Tensor, Tensor], Tensor]


def _extreme_op(name: str, reference: Callable[..., Array], loses: Relation) -> Op:
    """The larger or the smaller of two operands; at a tie each gets half of the gradient."""

    def gradient(mine: Tensor, other: Tensor, g: Tensor) -> Tensor:
        return where(equal(mine, other), g * 0.5, where(loses(mine, other), 0, g))

    return binary_op(
        *(name, name, reference),
        lambda a, b, y, g: gradient(a, b, g),
        lambda a, b, y, g: gradient(b, a, g),
        kinds=ANY,
    )


MAXIMUM = _extreme_op("maximum", np.maximum, less)


@checked
def maximum(left: TensorLike, right: TensorLike) -> Tensor:
    """The larger of two elements, NaN if either is; at a tie the gradient is split in half."""
    return apply(MAXIMUM, *operands_of(left, right))


MINIMUM = _extreme_op("minimum", np.minimum, greater)


@checked
def minimum(left: TensorLike, right: TensorLike) -> Tensor:
    """The smaller of two elements, NaN if either is; at a tie the gradient is split in half."""
    return apply(MINIMUM, *operands_of(left, right))


def _lerp(start: Scalar, end: Scalar, weight: Scalar) -> Scalar:
    """From the nearer end, so that both ends are exact."""
    one, half = number_like(start, 1), number_like(start, 0.5)
    distance = applied("subtract", end, start)
    forwards = applied("add", start, applied("multiply", weight, distance))
    back = applied("multiply", distance, applied("subtract", one, weight))
    is_near = applied("less", weight, half)
    return applied("select", is_near, forwards, applied("subtract", end, back))


def _lerp_reference(start: Array, end: Array, weight: Array) -> Array:
    distance, one = end - start, np.ones((), start.dtype)
    return np.where(weight < 0.5, start + weight * distance, end - distance * (one - weight))


def _lerp_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    start, end, weight = result.operands
    return summed_gradients(
        result,
        lambda: upstream * (1 - weight),
        lambda: upstream * weight,
        lambda: upstream * (end - start),
    )


LERP = Op(
    "lerp",
    elementwise_rule("lerp", FLOAT, None),
    _lerp_gradient,
    _lerp_reference,
    formula(_lerp),
    elementwise_samples(3, SIGNED),
    operands=3,
)


@operator
def lerp(start: TensorLike, end: TensorLike, weight: TensorLike) -> Tensor:
    """Start + weight (end - start): start where the weight is 0, end where it is 1."""
    return apply(LERP, *map(floating, operands_of(start, end, weight)))
