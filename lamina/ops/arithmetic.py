"""Arithmetic of two operands: sums, products, powers, maximum and minimum; clip and hardtanh."""

from __future__ import annotations

import math

import numpy as np

from lamina.calls import checked_as_given as checked
from lamina.errors import DefinitionError, DTypeError
from lamina.graph import (
    CONSTANT,
    Attributes,
    Op,
    Sample,
    Tensor,
    TensorLike,
    apply,
    described,
    operator,
)
from lamina.graph.attributes import AnyNumber, Element
from lamina.graph.kinds import OrNone
from lamina.ops.arguments import read
from lamina.ops.broadcast import sum_to
from lamina.ops.comparison import equal, greater, less, logical_and, logical_or, where
from lamina.ops.conversion import apply_to_numbers, floating, numeric, operands_of
from lamina.ops.elementwise import log
from lamina.ops.factories import (
    ANY,
    FLOAT,
    POSITIVE,
    SIGNED,
    binary_op,
    elementwise_rule,
    elementwise_samples,
    scalar_primitive,
)
from lamina.ops.lowering_rules import Elementwise
from lamina.program.scalar import Apply, Literal, Scalar
from lamina.shapes import Array, DType, Shape, bfloat16, float16

ADD = binary_op("add", "add", np.add, lambda a, b, y, g: g, lambda a, b, y, g: g)


@operator
@checked
def add(left: TensorLike, right: TensorLike) -> Tensor:
    """Left + right."""
    return apply_to_numbers(ADD, left, right)


SUB = binary_op("sub", "subtract", np.subtract, lambda a, b, y, g: g, lambda a, b, y, g: -g)


@operator
@checked
def sub(left: TensorLike, right: TensorLike) -> Tensor:
    """Left - right."""
    return apply_to_numbers(SUB, left, right)


MUL = binary_op("mul", "multiply", np.multiply, lambda a, b, y, g: g * b, lambda a, b, y, g: g * a)


@operator
@checked
def mul(left: TensorLike, right: TensorLike) -> Tensor:
    """Left * right."""
    return apply_to_numbers(MUL, left, right)


def _multiply_add_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    left, right, added = result.operands
    found = (lambda: upstream * right, lambda: upstream * left, lambda: upstream)
    return tuple(
        None if x.op is CONSTANT else sum_to(gradient(), x.shape)
        for x, gradient in zip((left, right, added), found, strict=True)
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
        >>> import lamina as lm
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
@checked
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


POW = binary_op(
    "pow", "power", np.power, _pow_base_gradient, _pow_exponent_gradient, POSITIVE, FLOAT
)


@operator
@checked
def pow(left: TensorLike, right: TensorLike) -> Tensor:
    """Left to the power right; of integers float32, unless right is a Python int of at least 1.

    The gradient to the exponent is 0 where the base is 0.
    """
    if isinstance(left, Tensor) and isinstance(right, int) and _is_product(left.dtype, right):
        return _whole_power(numeric(left), right)
    a, b = operands_of(left, right)
    return apply(POW, floating(a), floating(b))


def _is_product(dtype: DType, exponent: int) -> bool:
    """Whether a power is computed by multiplication."""
    return exponent >= 1 and (exponent <= 3 or not dtype.is_float)


def _whole_power(x: Tensor, exponent: int) -> Tensor:
    """By squaring: exact for integers, and cheaper than logarithms."""
    if exponent == 1:
        return x
    root = _whole_power(x, exponent // 2)
    return root * root * x if exponent % 2 else root * root


def _larger_gradient(mine: Tensor, other: Tensor, g: Tensor) -> Tensor:
    """The gradient of `mine` in maximum(mine, other); at a tie each operand gets half."""
    return where(equal(mine, other), g * 0.5, where(less(mine, other), 0, g))


MAXIMUM = binary_op(
    "maximum",
    "maximum",
    np.maximum,
    lambda a, b, y, g: _larger_gradient(a, b, g),
    lambda a, b, y, g: _larger_gradient(b, a, g),
    kinds=ANY,
)


@checked
def maximum(left: TensorLike, right: TensorLike) -> Tensor:
    """The larger of two elements, NaN if either is; at a tie the gradient is split in half."""
    return apply(MAXIMUM, *operands_of(left, right))


MINIMUM = binary_op(
    "minimum",
    "minimum",
    np.minimum,
    lambda a, b, y, g: _smaller_gradient(a, b, g),
    lambda a, b, y, g: _smaller_gradient(b, a, g),
    kinds=ANY,
)


def _smaller_gradient(mine: Tensor, other: Tensor, g: Tensor) -> Tensor:
    return where(equal(mine, other), g * 0.5, where(greater(mine, other), 0, g))


@checked
def minimum(left: TensorLike, right: TensorLike) -> Tensor:
    """The smaller of two elements, NaN if either is; at a tie the gradient is split in half."""
    return apply(MINIMUM, *operands_of(left, right))


def _infer_clip(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    if operands[0].dtype.kind == "bool":
        raise DTypeError(
            "clip: a tensor of numbers is needed here",
            facts=(("found", described(operands[0])),),
            advice="Convert with ops.cast.",
        )
    low, high = attributes["low"], attributes["high"]
    if low is not None and high is not None and low > high:
        raise DefinitionError(
            "clip: the lower bound is above the upper one",
            facts=(("low", str(low)), ("high", str(high))),
            advice="Give low <= high.",
        )
    return operands[0].shape, operands[0].dtype


def _clip_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    (x,) = result.operands
    low, high = result.attributes["low"], result.attributes["high"]
    above = x >= (-math.inf if low is None else low)
    below = x <= (math.inf if high is None else high)
    return (where(logical_and(above, below), upstream, 0),)


def _clip_reference(x: Array, low: float | None, high: float | None) -> Array:
    if low is not None:
        x = np.maximum(x, np.asarray(low, x.dtype))
    return x if high is None else np.minimum(x, np.asarray(high, x.dtype))


def _clip_scalar(node: Tensor, operands: tuple[Scalar, ...]) -> Scalar:
    (result,) = operands
    for primitive, limit in (("maximum", "low"), ("minimum", "high")):
        value = node.attributes[limit]
        if value is not None:
            result = Apply(primitive, (result, Literal(value, node.dtype)), node.dtype)
    return result


CLIP = Op(
    "clip",
    _infer_clip,
    _clip_gradient,
    _clip_reference,
    Elementwise(_clip_scalar),
    (
        Sample(((3, 5),), {"low": -1.0, "high": 0.5}),
        Sample(((7,),), {"low": None, "high": 0.5}),
        Sample(((1, 4),), {"low": 0.25, "high": None}),
        Sample(((0,),), {"low": -1.0, "high": 1.0}),
    ),
    attributes={"low": OrNone(Element()), "high": OrNone(Element())},
)


@checked
def clip(x: TensorLike, low: float | None = None, high: float | None = None) -> Tensor:
    """x, but not less than `low` and not more than `high`; the gradient passes at the bounds.

    Raises:
        DefinitionError: if low is above high.
    """
    x = numeric(x)
    limits = [
        limit if limit is None else read(name, AnyNumber(), limit)
        for name, limit in (("low", low), ("high", high))
    ]
    if any(isinstance(limit, float) for limit in limits):
        x = floating(x)
    if x.dtype.is_float:
        limits = [limit if limit is None else float(limit) for limit in limits]
    return apply(CLIP, x, low=limits[0], high=limits[1])


def _infer_hardtanh(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    if not attributes["low"] < attributes["high"]:
        raise DefinitionError(
            "hardtanh: low must be below high",
            facts=(("low", str(attributes["low"])), ("high", str(attributes["high"]))),
            advice="Give low < high.",
        )
    return elementwise_rule("hardtanh", FLOAT, None)(operands, attributes)


def _hardtanh_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    (x,) = result.operands
    low, high = result.attributes["low"], result.attributes["high"]
    # If floats of 16 bits hold the bounds, a rounded result shows which elements reach them. So x
    # need not be stored for the gradient, if the result is.
    bounds = np.array([low, high])
    with np.errstate(over="ignore"):
        same = all((bounds.astype(half.numpy) == bounds).all() for half in (bfloat16, float16))
    bounded = result if same else x
    return (where(logical_or(bounded <= low, bounded >= high), 0, upstream),)


HARDTANH = Op(
    "hardtanh",
    _infer_hardtanh,
    _hardtanh_gradient,
    _clip_reference,
    Elementwise(_clip_scalar),
    (
        Sample(((3, 5),), {"low": -1.0, "high": 0.5}),
        Sample(((2, 7),), {"low": -0.1, "high": 0.3}),
        Sample(((0,),), {"low": -1.0, "high": 1.0}),
    ),
    attributes={"low": Element(), "high": Element()},
)


@checked
def hardtanh(x: TensorLike, low: float = -1.0, high: float = 1.0) -> Tensor:
    """x, limited to the interval from `low` to `high`; the gradient at the bounds is 0.

    Raises:
        DefinitionError: unless low is below high.
    """
    low, high = (float(read(name, AnyNumber(), x)) for name, x in (("low", low), ("high", high)))
    return apply(HARDTANH, floating(x), low=low, high=high)
