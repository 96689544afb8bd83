"""Comparison, logic, and where: ops with a bool result or operand."""

from __future__ import annotations

import numpy as np

from lamina.base.shapes import DType, Shape, bool_
from lamina.checks import checked_as_given as checked
from lamina.errors import DTypeError
from lamina.graph import (
    CONSTANT,
    Attributes,
    Op,
    Sample,
    Samples,
    Tensor,
    TensorLike,
    apply,
    described,
    operator,
)
from lamina.ops.broadcast import sum_to
from lamina.ops.conversion import apply_to_numbers, cast, operands_of
from lamina.ops.factories import (
    NUMBER,
    SIGNED,
    comparison_op,
    elementwise_samples,
    joint_shape,
    logical_op,
    scalar_primitive,
)

__all__ = ["equal", "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_not"]
__all__ += ["logical_or", "logical_xor", "not_equal", "where"]

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


def _infer_where(operands: tuple[Tensor, ...], _: Attributes) -> tuple[Shape, DType]:
    condition, a, b = operands
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
    return joint_shape("where", operands, ("condition", "if true", "if false")), a.dtype


def _where_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    condition, a, b = result.operands
    return (
        None,
        None if a.op is CONSTANT else sum_to(where(condition, upstream, 0), a.shape),
        None if b.op is CONSTANT else sum_to(where(condition, 0, upstream), b.shape),
    )


WHERE = Op(
    "where",
    _infer_where,
    _where_gradient,
    np.where,
    scalar_primitive("select"),
    Samples(
        lambda: [
            Sample(sample.shapes, dtypes=("bool", "float", "float"))
            for sample in elementwise_samples(3, SIGNED)
        ]
    ),
    operands=3,
    selects=True,
)


@checked
def where(condition: TensorLike, a: TensorLike, b: TensorLike) -> Tensor:
    """A where the condition holds, b elsewhere; the gradient flows to the chosen one."""
    return apply(WHERE, cast(condition, bool_), *operands_of(a, b))
