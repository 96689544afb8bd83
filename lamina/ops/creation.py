"""Tensors made of no other tensor: one value everywhere, and 0, 1, 2, .."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.errors import ShapeError
from lamina.graph import Attributes, Op, Sample, Tensor, TensorLike, apply, constant
from lamina.ops.arguments import as_tensor
from lamina.ops.broadcast import broadcast_to
from lamina.ops.lowering import Coordinates, Generator, Pull
from lamina.program.scalar import Apply, Position, Scalar
from lamina.shapes import (
    Array,
    Dim,
    DType,
    DTypeLike,
    Shape,
    Size,
    as_dtype,
    float32,
    int32,
    int64,
)


def full(shape: Sequence[Dim], value: float, dtype: DTypeLike = float32) -> Tensor:
    """A tensor that has the same value everywhere."""
    return broadcast_to(constant(value, as_dtype(dtype)), shape)


def zeros_like(x: TensorLike) -> Tensor:
    """Zeros in x's shape and dtype."""
    x = as_tensor(x)
    return full(x.shape, 0, x.dtype)


def ones_like(x: TensorLike) -> Tensor:
    """Ones in x's shape and dtype."""
    x = as_tensor(x)
    return full(x.shape, 1, x.dtype)


def _infer_arange(_: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    n: Dim = attributes["n"]
    if isinstance(n, int) and n < 0:
        raise ShapeError(
            "arange: the number of elements is negative",
            facts=(("found", str(n)),),
            advice="Give a number of at least 0.",
        )
    return (n,), attributes["dtype"]


def _arange_reference(n: int, dtype: DType) -> Array:
    return np.arange(n, dtype=dtype.numpy)


def _arange_scalar(node: Tensor, coordinates: Coordinates, _: Pull) -> Scalar:
    position = Position(coordinates[0])
    return position if node.dtype == int64 else Apply("cast", (position,), node.dtype)


ARANGE = Op(
    "arange",
    _infer_arange,
    None,
    _arange_reference,
    Generator(_arange_scalar),
    (
        Sample((), {"n": 5, "dtype": int64}, differentiable=False),
        Sample((), {"n": 7, "dtype": float32}, differentiable=False),
        Sample((), {"n": 0, "dtype": int32}, differentiable=False),
    ),
)


def arange(n: int | Size, dtype: DTypeLike = int64) -> Tensor:
    """0, 1, .. n - 1."""
    return apply(ARANGE, n=n, dtype=as_dtype(dtype))


OPS = (ARANGE,)
