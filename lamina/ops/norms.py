"""Norms, and what is made of them: unit vectors, cosines and distances; the cross product.

Where a norm is zero, its gradient is zero, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lamina.base.shapes import Dim
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import Number
from lamina.errors import ShapeError
from lamina.graph import Tensor, TensorLike, described
from lamina.ops import basic as ops
from lamina.ops.arguments import as_tensor, axes_of, axis_of, flag_of, read
from lamina.ops.conversion import floating, floats_of, operands_of, rounded_once
from lamina.ops.slicing import slice_axis

__all__ = ["cdist", "cosine_similarity", "cross", "norm", "normalize"]

Axes = int | Sequence[int] | None
_NOT_NEGATIVE = Number("[0, inf)")


@checked
def norm(x: TensorLike, order: float = 2.0, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """The norm of the vectors along axes: sum(abs(x)^order)^(1/order).

    Args:
        x: floats; integers become float32.
        order: any number. Infinity: the largest absolute value, -infinity: the smallest; 0: the
            number of elements that are not zero.
        axes: the axes along which elements are combined; None means all.
        keepdims: whether these axes stay, with extent 1.
    """
    x = floating(x)
    p = read("order", Number("[-inf, inf]"), order)
    named, kept = axes_of(x, axes), flag_of("keepdims", keepdims)
    return rounded_once(lambda x: _norm(x, p, named, kept), x)


def _norm(x: Tensor, p: float, named: tuple[int, ...], kept: bool) -> Tensor:
    if math.isinf(p):
        return (ops.max if p > 0 else ops.min)(ops.abs(x), named, kept)
    if p == 0:
        return ops.sum(ops.cast(ops.not_equal(x, 0), x.dtype), named, kept)
    if p == 1:
        return ops.sum(ops.abs(x), named, kept)
    if p == 2:
        return _without_zero(ops.sum(x * x, named, kept), 0.5)
    if p < 0:
        is_zero = ops.equal(x, 0)
        powers = ops.pow(ops.where(is_zero, 1, ops.abs(x)), p)
        norms = ops.pow(ops.sum(powers, named, kept), 1 / p)
        return ops.where(
            ops.logical_and(ops.any(is_zero, named, kept), ops.equal(norms, norms)), 0, norms
        )
    return _without_zero(ops.sum(_without_zero(ops.abs(x), p), named, kept), 1 / p)


def _without_zero(x: Tensor, exponent: float) -> Tensor:
    """A power whose gradient at zero is zero."""
    is_zero = ops.equal(x, 0)
    safe = ops.where(is_zero, 1, x)
    return ops.where(is_zero, 0, ops.sqrt(safe) if exponent == 0.5 else ops.pow(safe, exponent))


@checked
def normalize(x: TensorLike, order: float = 2.0, axis: int = -1, epsilon: float = 1e-12) -> Tensor:
    """The vectors along an axis, divided by their norm, or by epsilon if that is larger."""
    x = floating(x)
    least, along = read("epsilon", _NOT_NEGATIVE, epsilon), axis_of(x, axis)
    return rounded_once(lambda x: x / ops.maximum(norm(x, order, along, True), least), x)


@checked
def cosine_similarity(
    left: TensorLike, right: TensorLike, axis: int = -1, epsilon: float = 1e-8
) -> Tensor:
    """The cosine of the angle between the vectors along an axis.

    Args:
        left: floats; integers become float32.
        right: a tensor of the same shape, or of one that broadcasts with it.
        axis: the axis of the vectors, in the joint shape.
        epsilon: the least value of each norm.
    """
    a, b = floats_of(left, right)
    joint = a * b
    axis = axis_of(joint, axis) - joint.rank
    least = read("epsilon", _NOT_NEGATIVE, epsilon)

    def unit(x: Tensor) -> Tensor:
        return x / ops.maximum(norm(x, 2.0, axis, True), least)

    a, b = (_repeated(x, axis, joint.shape[axis]) for x in (a, b))
    return rounded_once(lambda a, b: ops.sum(unit(a) * unit(b), axis), a, b)


def _repeated(x: Tensor, axis: int, extent: Dim) -> Tensor:
    """The tensor, repeated along an axis that is counted from the end, where it may have none."""
    shape = [*(1,) * (-axis - x.rank), *x.shape]
    shape[axis] = extent
    return ops.broadcast_to(x, shape)


@checked
def cdist(left: TensorLike, right: TensorLike, order: float = 2.0) -> Tensor:
    """The distances between all vectors of two sets: the norms of their differences.

    Args:
        left: [..., n, features].
        right: [..., m, features]; the batch axes broadcast.
        order: the order of the norm.

    Returns:
        [..., n, m].
    """
    a, b = floats_of(left, right)
    if a.rank < 2 or b.rank < 2 or a.shape[-1] != b.shape[-1]:
        raise ShapeError(
            "cdist: the vectors do not fit together",
            facts=(("left", described(a)), ("right", described(b))),
            advice="Both need at least two axes, and the same last axis.",
        )
    return rounded_once(
        lambda a, b: norm(a - b, order, -1), ops.expand_dims(a, -2), ops.expand_dims(b, -3)
    )


@checked
def cross(left: TensorLike, right: TensorLike, axis: int = -1) -> Tensor:
    """The cross products of the vectors of three elements along an axis."""
    a, b = operands_of(left, right)
    parts: list[list[Tensor]] = []
    for x in (a, b):
        counted = axis_of(x, axis)
        if x.shape[counted] != 3:
            raise ShapeError(
                f"cross: axis {counted} does not have extent 3",
                facts=(("left", described(a)), ("right", described(b))),
                advice="A cross product is of vectors of three elements.",
            )
        parts.append([slice_axis(x, counted, i, i + 1) for i in range(3)])
    (a0, a1, a2), (b0, b1, b2) = parts
    differences = [
        rounded_once(lambda a, b, c, d: a * d - b * c, *four)
        for four in ((a1, a2, b1, b2), (a2, a0, b2, b0), (a0, a1, b0, b1))
    ]
    return ops.concat(differences, axis_of(as_tensor(differences[0]), axis))
