"""NaN and infinities: tests for them, and numbers in place of them; signs."""

from __future__ import annotations

import math

import numpy as np

from lamina.base.shapes import bool_
from lamina.checks import checked_as_given as checked
from lamina.graph import Sample, Tensor, TensorLike, apply
from lamina.graph.attributes import AnyNumber
from lamina.ops.arguments import as_tensor, read
from lamina.ops.comparison import equal, less, not_equal, where
from lamina.ops.conversion import floating, operands_of
from lamina.ops.creation import full
from lamina.ops.factories import applied, elementwise_op
from lamina.ops.lowering_rules import Elementwise
from lamina.program.scalar import Scalar

__all__ = ["copysign", "isfinite", "isinf", "isnan", "nan_to_num"]


@checked
def isnan(x: TensorLike) -> Tensor:
    """Whether the element is NaN, as bool; no integer is."""
    x = as_tensor(x)
    return not_equal(x, x) if x.dtype.is_float else full(x.shape, False, bool_)


@checked
def isinf(x: TensorLike) -> Tensor:
    """Whether the element is infinite, as bool; no integer is."""
    x = as_tensor(x)
    return equal(abs(x), math.inf) if x.dtype.is_float else full(x.shape, False, bool_)


@checked
def isfinite(x: TensorLike) -> Tensor:
    """Whether the element is neither infinite nor NaN, as bool; every integer is finite."""
    x = as_tensor(x)
    return less(abs(x), math.inf) if x.dtype.is_float else full(x.shape, True, bool_)


def _nan_to_num_scalar(node: Tensor, operands: tuple[Scalar, ...]) -> Scalar:
    (x,) = operands
    result: Scalar = x
    for relation, other, name in (
        ("not_equal", x, "nan"),
        ("equal", math.inf, "posinf"),
        ("equal", -math.inf, "neginf"),
    ):
        found = applied(relation, x, other)
        result = applied("select", found, node.attributes[name], result)
    return result


def _sample(*shape: int, nan: float, posinf: float, neginf: float) -> Sample:
    return Sample((shape,), {"nan": nan, "posinf": posinf, "neginf": neginf})


NAN_TO_NUM = elementwise_op(
    "nan_to_num",
    Elementwise(_nan_to_num_scalar),
    np.nan_to_num,
    (lambda x, y, g, nan, posinf, neginf: where(isfinite(x), g, 0),),
    samples=(
        _sample(3, 5, nan=0.0, posinf=2.5, neginf=-7.0),
        _sample(7, nan=1.5, posinf=1e30, neginf=-1e30),
        _sample(0, nan=0.0, posinf=0.0, neginf=0.0),
    ),
    attributes={"nan": AnyNumber(), "posinf": AnyNumber(), "neginf": AnyNumber()},
)


@checked
def nan_to_num(
    x: TensorLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """x with numbers in place of NaN and infinities; there the gradient is 0.

    Args:
        x: any tensor; integers stay as they are.
        nan: the number in place of NaN.
        posinf: the number in place of infinity; None for the largest number of x's dtype.
        neginf: the number in place of -infinity; None for the smallest number of x's dtype.
    """
    x = as_tensor(x)
    least, most = x.dtype.limits
    given = (("nan", nan, 0.0), ("posinf", posinf, most), ("neginf", neginf, least))
    numbers = {
        name: float(read(name, AnyNumber(), default if value is None else value))
        for name, value, default in given
    }
    return apply(NAN_TO_NUM, x, **numbers) if x.dtype.is_float else x


def _copysign_gradient(a: Tensor, _: Tensor, result: Tensor, upstream: Tensor) -> Tensor:
    """The derivative is 1 or -1, and 0 where the operand is zero."""
    return upstream * where(equal(a, 0), 0, result / where(equal(a, 0), 1, a))


COPYSIGN = elementwise_op("copysign", "copysign", np.copysign, (_copysign_gradient, None))


@checked
def copysign(left: TensorLike, right: TensorLike) -> Tensor:
    """The absolute value of left with the sign of right, also of zeros; the gradient at 0 is 0."""
    return apply(COPYSIGN, *map(floating, operands_of(left, right)))
