"""Comparison, logic, where, and operations on the bits of integers, which of bool are logical."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lamina.base.shapes import Array, bool_
from lamina.checks import checked_as_given as checked
from lamina.errors import DTypeError
from lamina.graph import CONSTANT, Op, Sample, Tensor, TensorLike, apply, described, operator
from lamina.ops.arguments import as_tensor
from lamina.ops.broadcast import sum_to
from lamina.ops.conversion import apply_to_numbers, cast, operands_of
from lamina.ops.factories import (
    NUMBER,
    SIGNED,
    comparison_op,
    elementwise_op,
    elementwise_samples,
    joint_shape,
    logical_op,
    scalar_primitive,
)
from lamina.ops.records import Gradients, Typed, make_op

__all__ = ["bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "equal", "greater"]
__all__ += ["greater_equal", "left_shift", "less", "less_equal", "logical_and", "logical_not"]
__all__ += ["logical_or", "logical_xor", "not_equal", "right_shift", "where"]

EQUAL = comparison_op("equal", np.equal)


@checked
def equal(left: TensorLike, right: TensorLike) -> Tensor:
    """Whether two elements are equal, as bool; NaN equals nothing."""
    return apply(EQUAL, *operands_of(left, right))


NOT_EQUAL = comparison_op("not_equal", np.not_equal)


@checked
def not_equal(left: TensorLike, right: TensorLike) -> Tensor:
    """Whether two elements differ, as bool."""
    return apply(NOT_EQUAL, *operands_of(left, right))


LESS = comparison_op("less", np.less, NUMBER)


@operator
def less(left: TensorLike, right: TensorLike) -> Tensor:
    """Left < right, as bool."""
    return apply_to_numbers(LESS, left, right)


LESS_EQUAL = comparison_op("less_equal", np.less_equal, NUMBER)


@operator
def less_equal(left: TensorLike, right: TensorLike) -> Tensor:
    """Left <= right, as bool."""
    return apply_to_numbers(LESS_EQUAL, left, right)


GREATER = comparison_op("greater", np.greater, NUMBER)


@operator
def greater(left: TensorLike, right: TensorLike) -> Tensor:
    """Left > right, as bool."""
    return apply_to_numbers(GREATER, left, right)


GREATER_EQUAL = comparison_op("greater_equal", np.greater_equal, NUMBER)


@operator
def greater_equal(left: TensorLike, right: TensorLike) -> Tensor:
    """Left >= right, as bool."""
    return apply_to_numbers(GREATER_EQUAL, left, right)


LOGICAL_AND = logical_op("logical_and", 2, np.logical_and)


@checked
def logical_and(left: TensorLike, right: TensorLike) -> Tensor:
    """Whether both are true (not zero)."""
    return apply(LOGICAL_AND, cast(left, bool_), cast(right, bool_))


LOGICAL_OR = logical_op("logical_or", 2, np.logical_or)


@checked
def logical_or(left: TensorLike, right: TensorLike) -> Tensor:
    """Whether either is true (not zero)."""
    return apply(LOGICAL_OR, cast(left, bool_), cast(right, bool_))


@checked
def logical_xor(left: TensorLike, right: TensorLike) -> Tensor:
    """Whether one of two is true (not zero), and the other is not."""
    return apply(NOT_EQUAL, cast(left, bool_), cast(right, bool_))


LOGICAL_NOT = logical_op("logical_not", 1, np.logical_not)


@checked
def logical_not(x: TensorLike) -> Tensor:
    """Whether the element is false (zero)."""
    return apply(LOGICAL_NOT, cast(x, bool_))


def _infer_where(condition: Tensor, a: Tensor, b: Tensor) -> Typed:
    if condition.dtype != bool_ or a.dtype != b.dtype:
        raise DTypeError(
            "where: the dtypes do not fit",
            facts=(
                ("condition", described(condition)),
                ("if true", described(a)),
                ("if false", described(b)),
            ),
            advice="The condition must be bool, and both values of one dtype.",
        )
    names = ("condition", "if true", "if false")
    return joint_shape("where", (condition, a, b), names), a.dtype


def _where_gradient(
    condition: Tensor, a: Tensor, b: Tensor, _: Tensor, upstream: Tensor
) -> Gradients:
    return (
        None,
        None if a.op is CONSTANT else sum_to(where(condition, upstream, 0), a.shape),
        None if b.op is CONSTANT else sum_to(where(condition, 0, upstream), b.shape),
    )


WHERE = make_op(
    "where",
    _infer_where,
    _where_gradient,
    np.where,
    scalar_primitive("select"),
    [
        Sample(sample.shapes, dtypes=("bool", "float", "float"))
        for sample in elementwise_samples(3, SIGNED)
    ],
    operands=3,
    selects=True,
)


@checked
def where(condition: TensorLike, a: TensorLike, b: TensorLike) -> Tensor:
    """A where the condition holds, b elsewhere; the gradient flows to the chosen one."""
    return apply(WHERE, cast(condition, bool_), *operands_of(a, b))


# Bits ---------------------------------------------------------------------------------------------


def _bits_op(name: str, primitive: str, reference: Callable[..., Array], low: float) -> Op:
    shapes = (((3, 5), (3, 5)), ((4, 1), (3,)), ((0, 2), (1,)), ((), ()))
    samples = tuple(
        Sample(shape, low=least, high=100, dtypes=(dtype, dtype), differentiable=False)
        for shape in shapes
        for dtype, least in (("int32", low), ("int64", low), ("uint8", 0))
    )
    kinds = ("int",)
    return elementwise_op(name, primitive, reference, (None, None), kinds=kinds, samples=samples)


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
