"""Operations on the bits of integers; of bool they are logical ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lamina.base.shapes import Array, bool_
from lamina.errors import DTypeError
from lamina.graph import Op, Sample, Samples, Tensor, TensorLike, apply, described, operator
from lamina.ops.arguments import as_tensor
from lamina.ops.comparison import logical_and, logical_not, logical_or, logical_xor
from lamina.ops.conversion import operands_of
from lamina.ops.factories import elementwise_rule, scalar_primitive

__all__ = ["bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"]

_INTEGERS = ("int",)


def _samples(low: float, high: float) -> Samples:
    shapes = (((3, 5), (3, 5)), ((4, 1), (3,)), ((0, 2), (1,)), ((), ()))
    dtypes = (("int32", low), ("int64", low), ("uint8", 0))
    return Samples(
        lambda: [
            Sample(shape, low=least, high=high, dtypes=(name, name), differentiable=False)
            for shape in shapes
            for name, least in dtypes
        ]
    )


def _bits_op(name: str, primitive: str, reference: Callable[..., Array], low: float) -> Op:
    rule, lowering = elementwise_rule(name, _INTEGERS, None), scalar_primitive(primitive)
    return Op(name, rule, None, reference, lowering, _samples(low, 100), operands=2)


def _integers(name: str, left: TensorLike, right: TensorLike) -> tuple[Tensor, Tensor]:
    """Two tensors of one dtype of integers, or of bool."""
    a, b = operands_of(left, right)
    if a.dtype.is_float:
        raise DTypeError(
            f"{name}: floats have no bits here",
            facts=(("expected", "integers or bool"), ("found", f"{described(a)}, {described(b)}")),
            advice="Convert with ops.cast.",
        )
    return a, b


BITWISE_AND = _bits_op("bitwise_and", "bitwise_and", np.bitwise_and, -100)


@operator
def bitwise_and(left: TensorLike, right: TensorLike) -> Tensor:
    """The bits that both integers have; of bool logical_and."""
    a, b = _integers("bitwise_and", left, right)
    return logical_and(a, b) if a.dtype == bool_ else apply(BITWISE_AND, a, b)


BITWISE_OR = _bits_op("bitwise_or", "bitwise_or", np.bitwise_or, -100)


@operator
def bitwise_or(left: TensorLike, right: TensorLike) -> Tensor:
    """The bits that either integer has; of bool logical_or."""
    a, b = _integers("bitwise_or", left, right)
    return logical_or(a, b) if a.dtype == bool_ else apply(BITWISE_OR, a, b)


BITWISE_XOR = _bits_op("bitwise_xor", "bitwise_xor", np.bitwise_xor, -100)


@operator
def bitwise_xor(left: TensorLike, right: TensorLike) -> Tensor:
    """The bits that one of two integers has; of bool logical_xor."""
    a, b = _integers("bitwise_xor", left, right)
    return logical_xor(a, b) if a.dtype == bool_ else apply(BITWISE_XOR, a, b)


@operator
def bitwise_not(x: TensorLike) -> Tensor:
    """The bits that the integer does not have; of bool logical_not."""
    x = as_tensor(x)
    if x.dtype == bool_:
        return logical_not(x)
    # All bits: the largest number of an unsigned type.
    least, most = x.dtype.limits
    every = -1 if least else most
    return apply(BITWISE_XOR, *_integers("bitwise_not", x, every))


LEFT_SHIFT = _bits_op("left_shift", "shift_left", np.left_shift, -3)


@operator
def left_shift(left: TensorLike, right: TensorLike) -> Tensor:
    """Left times 2 to the power right, wrapping around; of integers.

    Shifts by a negative number, or by all bits and more, give 0.
    """
    return apply(LEFT_SHIFT, *_integers("left_shift", left, right))


RIGHT_SHIFT = _bits_op("right_shift", "shift_right", np.right_shift, -3)


@operator
def right_shift(left: TensorLike, right: TensorLike) -> Tensor:
    """Left divided by 2 to the power right, rounded down; of integers.

    Shifts by a negative number, or by all bits and more, give 0 or -1, by the sign of left.
    """
    return apply(RIGHT_SHIFT, *_integers("right_shift", left, right))
