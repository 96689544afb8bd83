"""Sums of exponentials: logsumexp, softmax, and the logarithm of softmax."""

from __future__ import annotations

import math

import numpy as np

from lamina.base.shapes import Array
from lamina.checks import checked_as_given as checked
from lamina.graph import Op, Sample, Tensor, TensorLike, apply, operator
from lamina.graph.attributes import Axis
from lamina.ops.arguments import axis_of
from lamina.ops.arithmetic import maximum
from lamina.ops.broadcast import sum_axes, with_ones
from lamina.ops.comparison import equal, where
from lamina.ops.conversion import cast, floating
from lamina.ops.elementwise import exp, log
from lamina.ops.records import Gradients, Typed, make_op
from lamina.ops.reduce import (
    OF_AXES,
    REDUCTION_SAMPLES,
    Axes,
    infer_nonempty,
    reduced,
    require_elements,
    require_float,
)
from lamina.ops.reduce import max as largest
from lamina.ops.reduce import sum as total

__all__ = ["log_softmax", "logsumexp", "softmax"]


def _logsumexp_build(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    # An infinite maximum must not be subtracted: infinity - infinity is NaN.
    most = largest(x, axes)
    shift = where(abs(most) < math.inf, most, 0)
    return log(sum_axes(exp(x - with_ones(shift, x, axes)), axes)) + shift


def _logsumexp_gradient(
    x: Tensor, result: Tensor, upstream: Tensor, axes: tuple[int, ...]
) -> Gradients:
    # Infinite elements share the gradient, which is the limit. NaN stays NaN.
    is_infinite = equal(x, math.inf)
    number = maximum(sum_axes(cast(is_infinite, x.dtype), axes), 1)
    shift = where(equal(abs(result), math.inf), 0, result)
    shares = where(
        with_ones(equal(result, math.inf), x, axes),
        where(is_infinite, with_ones(1 / number, x, axes), 0),
        exp(x - with_ones(shift, x, axes)),
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


LOGSUMEXP = make_op(
    "logsumexp",
    _infer_logsumexp,
    _logsumexp_gradient,
    _logsumexp_reference,
    _logsumexp_build,
    (*REDUCTION_SAMPLES, Sample(((4, 6),), {"axes": (1,)}, low=-200, high=200)),
    attributes=OF_AXES,
    keeps_float32=True,
)


@checked
def logsumexp(x: TensorLike, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) along axes, without overflow; -infinity if an axis is empty."""
    return reduced(LOGSUMEXP, floating(x), axes, keepdims, -math.inf)


def _infer_softmax(x: Tensor, axis: int) -> Typed:
    require_float(x)
    require_elements(x, (axis,))
    return x.shape, x.dtype


def _softmax_build(x: Tensor, axis: int) -> Tensor:
    powers = exp(x - largest(x, axis, keepdims=True))
    return powers / total(powers, axis, keepdims=True)


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

SOFTMAX = make_op(
    "softmax",
    _infer_softmax,
    lambda x, y, g, axis: (y * (g - total(g * y, axis, keepdims=True)),),
    _softmax_reference,
    _softmax_build,
    _SOFTMAX_SAMPLES,
    attributes={"axis": Axis()},
    keeps_float32=True,
)


def _along(op: Op, x: TensorLike, axis: int) -> Tensor:
    x = floating(x)
    axis = axis_of(x, axis)
    return x if x.shape[axis] == 0 else apply(op, x, axis=axis)


@operator
def softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis, without overflow."""
    return _along(SOFTMAX, x, axis)


def _log_softmax_build(x: Tensor, axis: int) -> Tensor:
    shifted = x - largest(x, axis, keepdims=True)
    return shifted - log(total(exp(shifted), axis, keepdims=True))


def _log_softmax_reference(x: Array, axis: int) -> Array:
    shifted = x - np.max(x, axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))


LOG_SOFTMAX = make_op(
    "log_softmax",
    _infer_softmax,
    lambda x, y, g, axis: (g - exp(y) * total(g, axis, keepdims=True),),
    _log_softmax_reference,
    _log_softmax_build,
    _SOFTMAX_SAMPLES,
    attributes={"axis": Axis()},
    keeps_float32=True,
)


@operator
def log_softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """log(softmax(x)) along an axis, without overflow."""
    return _along(LOG_SOFTMAX, x, axis)
