"""Arithmetic of two and three operands: sums, products, powers, logarithms, maximum, lerp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lamina.base.shapes import Array, as_whole
from lamina.graph import OPS, Sample, Tensor, TensorLike
from lamina.ops.comparison import equal, greater, less, less_equal, logical_and, where
from lamina.ops.conversion import floating, floats_of, numbers_of, numeric, operands_of
from lamina.ops.elementwise import log, sigmoid, softplus
from lamina.ops.factories import ANY, NUMBER, POSITIVE, WIDE, applied, elementwise, formula
from lamina.ops.records import Operands
from lamina.program.definitions import integer_power
from lamina.program.scalar import Scalar

__all__ = ["add", "div", "lerp", "logaddexp", "maximum", "minimum", "mul", "multiply_add", "pow"]
__all__ += ["sub", "xlogy"]


@elementwise("add", np.add, (lambda a, b, y, g: g, lambda a, b, y, g: g), kinds=NUMBER)
def add(left: TensorLike, right: TensorLike) -> Operands:
    """Left + right."""
    return numbers_of(left, right)


@elementwise("subtract", np.subtract, (lambda a, b, y, g: g, lambda a, b, y, g: -g), kinds=NUMBER)
def sub(left: TensorLike, right: TensorLike) -> Operands:
    """Left - right."""
    return numbers_of(left, right)


@elementwise(
    "multiply", np.multiply, (lambda a, b, y, g: g * b, lambda a, b, y, g: g * a), kinds=NUMBER
)
def mul(left: TensorLike, right: TensorLike) -> Operands:
    """Left * right."""
    return numbers_of(left, right)


@elementwise(
    "multiply_add",
    lambda left, right, added: np.asarray(left * right + added),
    (lambda a, b, c, y, g: g * b, lambda a, b, c, y, g: g * a, lambda a, b, c, y, g: g),
)
def multiply_add(left: TensorLike, right: TensorLike, added: TensorLike) -> Operands:
    """Left * right + added, in one rounding where the device can; of integers float32.

    Example:
        >>> import numpy as np
        >>> lm.ops.multiply_add(np.ones(3, "float32"), 2, np.ones((2, 1), "float32")).shape
        (2, 3)
    """
    return floats_of(left, right, added)


@elementwise(
    "divide", np.divide, (lambda a, b, y, g: g / b, lambda a, b, y, g: -(g * (y / b))), POSITIVE
)
def div(left: TensorLike, right: TensorLike) -> Operands:
    """Left / right; of integers float32."""
    return floats_of(left, right)


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


@elementwise(
    "power",
    lambda a, b: np.power(a, b) if a.dtype.kind == "f" else integer_power(a, b),
    (_pow_base_gradient, _pow_exponent_gradient),
    *(POSITIVE, NUMBER),
    more_samples=_WHOLE_POWERS,
    keeps_float32=True,
)
def pow(left: TensorLike, right: TensorLike) -> Operands | Tensor:
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
    operands = operands_of(left, right)
    return tuple(map(floating if operands[0].dtype.is_float else numeric, operands))


def _whole_power(x: Tensor, exponent: int) -> Tensor:
    """By squaring: exact for integers, and cheaper than logarithms."""
    if exponent == 1:
        return x
    root = _whole_power(x, exponent // 2)
    return root * root * x if exponent % 2 else root * root


Gradient = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _to_winner(loses: Callable[[Tensor, Tensor], Tensor]) -> tuple[Gradient, Gradient]:
    """The gradients of the larger or the smaller of two operands; at a tie each gets half."""

    def gradient(mine: Tensor, other: Tensor, _: Tensor, g: Tensor) -> Tensor:
        return where(equal(mine, other), g * 0.5, where(loses(mine, other), 0, g))

    return gradient, lambda a, b, y, g: gradient(b, a, y, g)


@elementwise("maximum", np.maximum, _to_winner(less), kinds=ANY)
def maximum(left: TensorLike, right: TensorLike) -> Operands:
    """The larger of two elements, NaN if either is; at a tie the gradient is split in half."""
    return operands_of(left, right)


@elementwise("minimum", np.minimum, _to_winner(greater), kinds=ANY)
def minimum(left: TensorLike, right: TensorLike) -> Operands:
    """The smaller of two elements, NaN if either is; at a tie the gradient is split in half."""
    return operands_of(left, right)


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


@elementwise(
    formula(_lerp),
    _lerp_reference,
    (
        lambda start, end, weight, y, g: g * (1 - weight),
        lambda start, end, weight, y, g: g * weight,
        lambda start, end, weight, y, g: g * (end - start),
    ),
)
def lerp(start: TensorLike, end: TensorLike, weight: TensorLike) -> Operands:
    """Start + weight (end - start): start where the weight is 0, end where it is 1."""
    return floats_of(start, end, weight)


def _logaddexp_of(a: Tensor, b: Tensor) -> Tensor:
    """max(a, b) + log(1 + exp(-|a - b|)); equal infinities have no difference."""
    distance = where(equal(a, b), 0, abs(a - b))
    return maximum(a, b) + softplus(-distance)


@elementwise(
    *(_logaddexp_of, np.logaddexp),
    (lambda a, b, y, g: g * sigmoid(a - b), lambda a, b, y, g: g * sigmoid(b - a)),
    WIDE,
)
def logaddexp(left: TensorLike, right: TensorLike) -> Operands:
    """log(exp(left) + exp(right)), without overflow."""
    return floats_of(left, right)


def _xlogy(x: Scalar, y: Scalar) -> Scalar:
    number = applied("logical_and", applied("equal", x, 0), applied("equal", y, y))
    product = applied("multiply", x, applied("log", y))
    return applied("select", number, 0, product)


def _xlogy_left(x: Tensor, y: Tensor, _: Tensor, g: Tensor) -> Tensor:
    # Where x and the logarithm's pole or branch meet, the derivative is 0, as for 0 log(y).
    undefined = logical_and(equal(x, 0), less_equal(y, 0))
    return where(undefined, 0, xlogy(g, where(undefined, 1, y)))


@elementwise(
    formula(_xlogy),
    lambda x, y: np.where((x == 0) & (y == y), np.zeros((), x.dtype), x * np.log(y)),
    (_xlogy_left, lambda a, b, y, g: g * a / b),
    POSITIVE,
)
def xlogy(left: TensorLike, right: TensorLike) -> Operands:
    """Left log(right), and 0 where left is 0, unless right is NaN."""
    return floats_of(left, right)


# Records that the compiler and other ops look for.
_NAMES = ("add", "sub", "mul", "multiply_add", "div", "pow")
ADD, SUB, MUL, MULTIPLY_ADD, DIV, POW = (OPS[name] for name in _NAMES)
