"""Comparison, logic, where, and operations on the bits of integers, which of bool are logical."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lamina.base.shapes import Array, bool_
from lamina.checks import checked_as_given as checked
from lamina.errors import DTypeError
from lamina.graph import CONSTANT, OPS, Op, Sample, Tensor, TensorLike, described, operator
from lamina.ops.arguments import as_tensor
from lamina.ops.broadcast import sum_to
from lamina.ops.conversion import cast, numbers_of, operands_of
from lamina.ops.factories import (
    NUMBER,
    SIGNED,
    comparison,
    elementwise_op,
    elementwise_samples,
    joint_shape,
    logical,
    scalar_primitive,
)
from lamina.ops.records import Gradients, Operands, Typed, as_op, decorating

__all__ = ["bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "equal", "greater"]
__all__ += ["greater_equal", "left_shift", "less", "less_equal", "logical_and", "logical_not"]
__all__ += ["logical_or", "logical_xor", "not_equal", "right_shift", "where"]


@comparison(np.equal)
def equal(left: TensorLike, right: TensorLike) -> Operands:
    """Whether two elements are equal, as bool; NaN equals nothing."""
    return operands_of(left, right)


@comparison(np.not_equal)
def not_equal(left: TensorLike, right: TensorLike) -> Operands:
    """Whether two elements differ, as bool."""
    return operands_of(left, right)


@comparison(np.less, NUMBER)
def less(left: TensorLike, right: TensorLike) -> Operands:
    """Left < right, as bool."""
    return numbers_of(left, right)


@comparison(np.less_equal, NUMBER)
def less_equal(left: TensorLike, right: TensorLike) -> Operands:
    """Left <= right, as bool."""
    return numbers_of(left, right)


@comparison(np.greater, NUMBER)
def greater(left: TensorLike, right: TensorLike) -> Operands:
    """Left > right, as bool."""
    return numbers_of(left, right)


@comparison(np.greater_equal, NUMBER)
def greater_equal(left: TensorLike, right: TensorLike) -> Operands:
    """Left >= right, as bool."""
    return numbers_of(left, right)


@logical(np.logical_and)
def logical_and(left: TensorLike, right: TensorLike) -> Operands:
    """Whether both are true (not zero)."""
    return cast(left, bool_), cast(right, bool_)


@logical(np.logical_or)
def logical_or(left: TensorLike, right: TensorLike) -> Operands:
    """Whether either is true (not zero)."""
    return cast(left, bool_), cast(right, bool_)


@checked
def logical_xor(left: TensorLike, right: TensorLike) -> Tensor:
    """Whether one of two is true (not zero), and the other is not."""
    return not_equal(cast(left, bool_), cast(right, bool_))


@logical(np.logical_not)
def logical_not(x: TensorLike) -> Operands:
    """Whether the element is false (zero)."""
    return (cast(x, bool_),)


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


@as_op(
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
def where(condition: TensorLike, a: TensorLike, b: TensorLike) -> Operands:
    """A where the condition holds, b elsewhere; the gradient flows to the chosen one."""
    return cast(condition, bool_), *operands_of(a, b)


def _bits_op(name: str, primitive: str, reference: Callable[..., Array], low: float) -> Op:
    shapes = (((3, 5), (3, 5)), ((4, 1), (3,)), ((0, 2), (1,)), ((), ()))
    samples = tuple(
        Sample(shape, low=least, high=100, dtypes=(dtype, dtype), differentiable=False)
        for shape in shapes
        for dtype, least in (("int32", low), ("int64", low), ("uint8", 0))
    )
    kinds = ("int",)
    return elementwise_op(name, primitive, reference, (None, None), kinds=kinds, samples=samples)


_bits = decorating(_bits_op)


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


@_bits("bitwise_and", np.bitwise_and, -100)
def bitwise_and(left: TensorLike, right: TensorLike) -> Operands | Tensor:
    """The bits that both integers have; of bool logical_and."""
    a, b = _integers("bitwise_and", left, right)
    return logical_and(a, b) if a.dtype == bool_ else (a, b)


@_bits("bitwise_or", np.bitwise_or, -100)
def bitwise_or(left: TensorLike, right: TensorLike) -> Operands | Tensor:
    """The bits that either integer has; of bool logical_or."""
    a, b = _integers("bitwise_or", left, right)
    return logical_or(a, b) if a.dtype == bool_ else (a, b)


@_bits("bitwise_xor", np.bitwise_xor, -100)
def bitwise_xor(left: TensorLike, right: TensorLike) -> Operands | Tensor:
    """The bits that one of two integers has; of bool logical_xor."""
    a, b = _integers("bitwise_xor", left, right)
    return logical_xor(a, b) if a.dtype == bool_ else (a, b)


@operator
def bitwise_not(x: TensorLike) -> Tensor:
    """The bits that the integer does not have; of bool logical_not."""
    x = as_tensor(x)
    if x.dtype == bool_:
        return logical_not(x)
    # All bits: the largest number of an unsigned type.
    least, most = x.dtype.limits
    return bitwise_xor(*_integers("bitwise_not", x, -1 if least else most))


@_bits("shift_left", np.left_shift, -3)
def left_shift(left: TensorLike, right: TensorLike) -> Operands:
    """Left times 2 to the power right, wrapping around; of integers.

    Shifts by a negative number, or by all bits and more, give 0.
    """
    return _integers("left_shift", left, right)


@_bits("shift_right", np.right_shift, -3)
def right_shift(left: TensorLike, right: TensorLike) -> Operands:
    """Left divided by 2 to the power right, rounded down; of integers.

    Shifts by a negative number, or by all bits and more, give 0 or -1, by the sign of left.
    """
    return _integers("right_shift", left, right)


WHERE = OPS["where"]
