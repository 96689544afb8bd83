"""Sums of exponentials: logsumexp, softmax, and the logarithm of softmax."""

from __future__ import annotations

import math

import numpy as np

from lamina.base.shapes import Array
from lamina.graph import OPS, Op, Sample, Tensor, TensorLike, apply
from lamina.graph.attributes import Axis
from lamina.ops import basic as ops
from lamina.ops.arguments import axis_of
from lamina.ops.broadcast import sum_axes, with_ones
from lamina.ops.conversion import floating
from lamina.ops.records import Given, Gradients, Typed, decorating, make_op
from lamina.ops.reduce import (
    OF_AXES,
    REDUCTION_SAMPLES,
    Axes,
    infer_nonempty,
    reduction,
    require_elements,
    require_float,
)

__all__ = ["log_softmax", "logsumexp", "softmax"]


def _logsumexp_build(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    # An infinite maximum must not be subtracted: infinity - infinity is NaN.
    most = ops.max(x, axes)
    shift = ops.where(abs(most) < math.inf, most, 0)
    return ops.log(sum_axes(ops.exp(x - with_ones(shift, x, axes)), axes)) + shift


def _logsumexp_gradient(
    x: Tensor, result: Tensor, upstream: Tensor, axes: tuple[int, ...]
) -> Gradients:
    # Infinite elements share the gradient, which is the limit. NaN stays NaN.
    is_infinite = ops.equal(x, math.inf)
    number = ops.maximum(sum_axes(ops.cast(is_infinite, x.dtype), axes), 1)
    shift = ops.where(ops.equal(abs(result), math.inf), 0, result)
    shares = ops.where(
        with_ones(ops.equal(result, math.inf), x, axes),
        ops.where(is_infinite, with_ones(1 / number, x, axes), 0),
        ops.exp(x - with_ones(shift, x, axes)),
    )
    return (with_ones(upstream, x, axes) * shares,)


def _logsumexp_reference(x: Array, axes: tuple[int, ...]) -> Array:
    largest = np.max(x, axes, keepdims=True)
    largest = np.where(np.isfinite(largest), largest, 0)
    total = np.log(np.sum(np.exp(x - largest), axes, keepdims=True)) + largest
    return total.squeeze(axes)


def _infer_logsumexp(x: Tensor, axes: tuple[int, ...]) -> Typed:
    require_float(x)
    return infer_nonempty(x, axes)


@reduction(
    _infer_logsumexp,
    _logsumexp_gradient,
    _logsumexp_reference,
    _logsumexp_build,
    (*REDUCTION_SAMPLES, Sample(((4, 6),), {"axes": (1,)}, low=-200, high=200)),
    attributes=OF_AXES,
    keeps_float32=True,
)
def logsumexp(x: TensorLike, axes: Axes = None, keepdims: bool = False) -> Given:
    """log(sum(exp(x))) along axes, without overflow; -infinity if an axis is empty."""
    return floating(x), axes, keepdims, -math.inf


def _infer_softmax(x: Tensor, axis: int) -> Typed:
    require_float(x)
    require_elements(x, (axis,))
    return x.shape, x.dtype


def _softmax_build(x: Tensor, axis: int) -> Tensor:
    powers = ops.exp(x - ops.max(x, axis, keepdims=True))
    return powers / ops.sum(powers, axis, keepdims=True)


def _softmax_reference(x: Array, axis: int) -> Array:
    powers = np.exp(x - np.max(x, axis, keepdims=True))
    return powers / np.sum(powers, axis, keepdims=True)


_SOFTMAX_SAMPLES = (
    Sample(((3, 5),), {"axis": 1}),
    Sample(((4, 2, 3),), {"axis": 0}),
    Sample(((2, 1),), {"axis": 1}),
    Sample(((0, 4),), {"axis": 1}),
    Sample(((3, 4),), {"axis": 1}, low=-200, high=200),
)


def _along(op: Op, x: TensorLike, axis: int) -> Tensor:
    x = floating(x)
    axis = axis_of(x, axis)
    return x if x.shape[axis] == 0 else apply(op, x, axis=axis)


_along_op = decorating(make_op, _along)


@_along_op(
    _infer_softmax,
    lambda x, y, g, axis: (y * (g - ops.sum(g * y, axis, keepdims=True)),),
    _softmax_reference,
    _softmax_build,
    _SOFTMAX_SAMPLES,
    attributes={"axis": Axis()},
    keeps_float32=True,
)
def softmax(x: TensorLike, axis: int = -1) -> Given:
    """exp(x) / sum(exp(x)) along an axis, without overflow."""
    return x, axis


def _log_softmax_build(x: Tensor, axis: int) -> Tensor:
    shifted = x - ops.max(x, axis, keepdims=True)
    return shifted - ops.log(ops.sum(ops.exp(shifted), axis, keepdims=True))


def _log_softmax_reference(x: Array, axis: int) -> Array:
    shifted = x - np.max(x, axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))


@_along_op(
    _infer_softmax,
    lambda x, y, g, axis: (g - ops.exp(y) * ops.sum(g, axis, keepdims=True),),
    _log_softmax_reference,
    _log_softmax_build,
    _SOFTMAX_SAMPLES,
    attributes={"axis": Axis()},
    keeps_float32=True,
)
def log_softmax(x: TensorLike, axis: int = -1) -> Given:
    """log(softmax(x)) along an axis, without overflow."""
    return x, axis


SOFTMAX, LOG_SOFTMAX = OPS["softmax"], OPS["log_softmax"]
