"""Tensors that depend on no other tensor: constants, and 0, 1, 2, .."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.base.shapes import Array, Dim, DType, DTypeLike, Size, float32, int32, int64
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import ElementType, Extent
from lamina.graph import Op, Sample, Tensor, TensorLike, apply
from lamina.graph import constant as fixed
from lamina.graph.attributes import Element
from lamina.ops.arguments import as_tensor, dtype_of, read
from lamina.ops.broadcast import broadcast_to
from lamina.ops.conversion import cast
from lamina.ops.lowering_rules import Coordinates, Generator, Pull
from lamina.program.scalar import Apply, Position, Scalar

__all__ = ["arange", "constant", "full", "ones_like", "zeros_like"]


@checked
def constant(value: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """A tensor with a fixed value; arrays keep their dtype unless one is given."""
    if isinstance(value, Tensor):
        return value if dtype is None else cast(value, dtype)
    return fixed(value, None if dtype is None else dtype_of(dtype))


@checked
def full(shape: int | Sequence[Dim], value: float, dtype: DTypeLike = float32) -> Tensor:
    """A tensor that has the same value everywhere."""
    wanted = dtype_of(dtype)
    number = read("value", Element(), value, fixed(0, wanted))
    return broadcast_to(fixed(number, wanted), shape)


@checked
def zeros_like(x: TensorLike) -> Tensor:
    """Zeros in x's shape and dtype."""
    x = as_tensor(x)
    return full(x.shape, 0, x.dtype)


@checked
def ones_like(x: TensorLike) -> Tensor:
    """Ones in x's shape and dtype."""
    x = as_tensor(x)
    return full(x.shape, 1, x.dtype)


def _arange_scalar(node: Tensor, coordinates: Coordinates, _: Pull) -> Scalar:
    position = Position(coordinates[0])
    return position if node.dtype == int64 else Apply("cast", (position,), node.dtype)


_NUMBERS = ElementType(("float", "int"))


def _arange_reference(n: int, dtype: DType) -> Array:
    return np.arange(n, dtype=dtype.numpy)


ARANGE = Op(
    "arange",
    lambda _, attributes: ((attributes["n"],), attributes["dtype"]),
    None,
    _arange_reference,
    Generator(_arange_scalar),
    (
        Sample((), {"n": 5, "dtype": int64}, differentiable=False),
        Sample((), {"n": 7, "dtype": float32}, differentiable=False),
        Sample((), {"n": 0, "dtype": int32}, differentiable=False),
    ),
    operands=0,
    attributes={"n": Extent(), "dtype": _NUMBERS},
)


@checked
def arange(n: int | Size, dtype: DTypeLike = int64) -> Tensor:
    """0, 1, .. n - 1."""
    return apply(ARANGE, n=n, dtype=dtype_of(dtype, _NUMBERS))
