"""Arithmetic of two and three operands: sums, products, powers, logarithms, maximum, lerp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lamina.base.shapes import Array, as_whole
from lamina.checks import checked_as_given as checked
from lamina.graph import Op, Sample, Tensor, TensorLike, apply, operator
from lamina.ops.comparison import equal, greater, less, less_equal, logical_and, where
from lamina.ops.conversion import apply_to_numbers, floating, numeric, operands_of
from lamina.ops.elementwise import log, sigmoid, softplus
from lamina.ops.factories import ANY, NUMBER, POSITIVE, WIDE, applied, elementwise_op, formula
from lamina.program.definitions import integer_power
from lamina.program.scalar import Scalar

__all__ = ["add", "div", "lerp", "logaddexp", "maximum", "minimum", "mul", "multiply_add", "pow"]
__all__ += ["sub", "xlogy"]

ADD = elementwise_op(
    "add", "add", np.add, (lambda a, b, y, g: g, lambda a, b, y, g: g), kinds=NUMBER
)


@operator
def add(left: TensorLike, right: TensorLike) -> Tensor:
    """Left + right."""
    return apply_to_numbers(ADD, left, right)


SUB = elementwise_op(
    "sub", "subtract", np.subtract, (lambda a, b, y, g: g, lambda a, b, y, g: -g), kinds=NUMBER
)


@operator
def sub(left: TensorLike, right: TensorLike) -> Tensor:
    """Left - right."""
    return apply_to_numbers(SUB, left, right)


MUL = elementwise_op(
    *("mul", "multiply", np.multiply),
    (lambda a, b, y, g: g * b, lambda a, b, y, g: g * a),
    kinds=NUMBER,
)


@operator
def mul(left: TensorLike, right: TensorLike) -> Tensor:
    """Left * right."""
    return apply_to_numbers(MUL, left, right)


MULTIPLY_ADD = elementwise_op(
    "multiply_add",
    "multiply_add",
    lambda left, right, added: np.asarray(left * right + added),
    (lambda a, b, c, y, g: g * b, lambda a, b, c, y, g: g * a, lambda a, b, c, y, g: g),
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


DIV = elementwise_op(
    *("div", "divide", np.divide),
    (lambda a, b, y, g: g / b, lambda a, b, y, g: -(g * (y / b))),
    POSITIVE,
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


# Powers of integers, negative ones too.
_WHOLE_POWERS = tuple(
    Sample(((4, 6), (6,)), low=low, high=9, dtypes=(name, name), differentiable=False)
    for name, low in (("int32", -5), ("int64", -5), ("uint8", 0))
)
POW = elementwise_op(
    "pow",
    "power",
    lambda a, b: np.power(a, b) if a.dtype.kind == "f" else integer_power(a, b),
    (_pow_base_gradient, _pow_exponent_gradient),
    *(POSITIVE, NUMBER),
    more_samples=_WHOLE_POWERS,
    keeps_float32=True,
)


@operator
def pow(left: TensorLike, right: TensorLike) -> Tensor:
    """Left to the power right.

    Powers of integers are integers and wrap around; negative ones are 0, but powers of 1 and -1 are
    exact. With a negative Python int, integers become float32. The gradient to the exponent is 0
    where the base is 0.
    """
    exponent = right if isinstance(right, int) else 0
    if isinstance(left, Tensor) and exponent >= 1 and (exponent <= 3 or not left.dtype.is_float):
        return _whole_power(numeric(left), exponent)
    if (as_whole(right) or 0) < 0:
        left = floating(left)
    a, b = operands_of(left, right)
    wide = floating if a.dtype.is_float else numeric
    return apply(POW, wide(a), wide(b))


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

    return elementwise_op(
        *(name, name, reference),
        (lambda a, b, y, g: gradient(a, b, g), lambda a, b, y, g: gradient(b, a, g)),
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
    distance = applied("subtract", end, start)
    forwards = applied("add", start, applied("multiply", weight, distance))
    back = applied("multiply", distance, applied("subtract", 1, weight))
    is_near = applied("less", weight, 0.5)
    return applied("select", is_near, forwards, applied("subtract", end, back))


def _lerp_reference(start: Array, end: Array, weight: Array) -> Array:
    distance, one = end - start, np.ones((), start.dtype)
    return np.where(weight < 0.5, start + weight * distance, end - distance * (one - weight))


LERP = elementwise_op(
    "lerp",
    formula(_lerp),
    _lerp_reference,
    (
        lambda start, end, weight, y, g: g * (1 - weight),
        lambda start, end, weight, y, g: g * weight,
        lambda start, end, weight, y, g: g * (end - start),
    ),
)


@operator
def lerp(start: TensorLike, end: TensorLike, weight: TensorLike) -> Tensor:
    """Start + weight (end - start): start where the weight is 0, end where it is 1."""
    return apply(LERP, *map(floating, operands_of(start, end, weight)))


def _logaddexp_of(a: Tensor, b: Tensor) -> Tensor:
    """max(a, b) + log(1 + exp(-|a - b|)); equal infinities have no difference."""
    distance = where(equal(a, b), 0, abs(a - b))
    return maximum(a, b) + softplus(-distance)


LOGADDEXP = elementwise_op(
    *("logaddexp", _logaddexp_of, np.logaddexp),
    (lambda a, b, y, g: g * sigmoid(a - b), lambda a, b, y, g: g * sigmoid(b - a)),
    WIDE,
)


@checked
def logaddexp(left: TensorLike, right: TensorLike) -> Tensor:
    """log(exp(left) + exp(right)), without overflow."""
    return apply(LOGADDEXP, *map(floating, operands_of(left, right)))


def _xlogy(x: Scalar, y: Scalar) -> Scalar:
    number = applied("logical_and", applied("equal", x, 0), applied("equal", y, y))
    product = applied("multiply", x, applied("log", y))
    return applied("select", number, 0, product)


def _xlogy_left(x: Tensor, y: Tensor, _: Tensor, g: Tensor) -> Tensor:
    # Where x and the logarithm's pole or branch meet, the derivative is 0, as for 0 log(y).
    undefined = logical_and(equal(x, 0), less_equal(y, 0))
    return where(undefined, 0, xlogy(g, where(undefined, 1, y)))


XLOGY = elementwise_op(
    "xlogy",
    formula(_xlogy),
    lambda x, y: np.where((x == 0) & (y == y), np.zeros((), x.dtype), x * np.log(y)),
    (_xlogy_left, lambda a, b, y, g: g * a / b),
    POSITIVE,
)


@checked
def xlogy(left: TensorLike, right: TensorLike) -> Tensor:
    """Left log(right), and 0 where left is 0, unless right is NaN."""
    return apply(XLOGY, *map(floating, operands_of(left, right)))
