"""Running combinations along an axis: cumsum, cumprod, cummax, cummin."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lamina.base.shapes import Array
from lamina.checks.kinds import Flag
from lamina.errors import ShapeError
from lamina.graph import Op, Sample, Tensor, TensorLike, described
from lamina.graph.attributes import Axis
from lamina.ops import basic as ops
from lamina.ops.arguments import as_tensor, axis_of
from lamina.ops.broadcast import require_numbers
from lamina.ops.lowering_rules import Scanning
from lamina.ops.records import Given, Gradients, Typed, as_op, decorating, make_op
from lamina.ops.recurrence import recurrence
from lamina.ops.recurrence_gradient import Tensors
from lamina.ops.reduce import summable

__all__ = ["cummax", "cummin", "cumprod", "cumsum"]

_ATTRIBUTES = {"axis": Axis(), "reverse": Flag()}


def _infer(x: Tensor, axis: int, reverse: bool) -> Typed:
    require_numbers(x)
    return x.shape, x.dtype


def _reference(function: np.ufunc) -> Callable[..., Array]:
    def reference(x: Array, axis: int, reverse: bool) -> Array:
        ordered = np.flip(x, axis) if reverse else x
        total = function.accumulate(ordered, axis, x.dtype)
        return np.flip(total, axis) if reverse else total

    return reference


def _samples(dtype: str = "int64") -> tuple[Sample, ...]:
    return (
        Sample(((3, 5),), {"axis": 1, "reverse": False}),
        Sample(((4, 1, 2),), {"axis": 0, "reverse": True}),
        Sample(((6,),), {"axis": 0, "reverse": False}, dtypes=(dtype,), differentiable=False),
        Sample(((0, 3),), {"axis": 0, "reverse": False}),
    )


@as_op(
    _infer,
    lambda x, y, g, axis, reverse: (cumsum(g, axis, not reverse),),
    _reference(np.add),
    Scanning("sum"),
    _samples(),
    attributes=_ATTRIBUTES,
    keeps_float32=True,
)
def cumsum(x: TensorLike, axis: int, reverse: bool = False) -> Given:
    """The running sum along an axis; from the end if `reverse`. Of bool and integers int64."""
    x = summable(x)
    return x, axis_of(x, axis), reverse


def _before(y: Tensor, axis: int, reverse: bool) -> Tensor:
    """The running product before each element: 1 for the first one."""
    front = (slice(None),) * axis
    ones = ops.ones_like(y[(*front, slice(0, 1))])
    if reverse:
        return ops.concat([y[(*front, slice(1, None))], ones], axis)
    return ops.concat([ones, y[(*front, slice(0, -1))]], axis)


def _cumprod_gradient(
    x: Tensor, result: Tensor, upstream: Tensor, axis: int, reverse: bool
) -> Gradients:
    """The product before each element times s, with s[i] = upstream[i] + x[i + 1] s[i + 1].

    So nothing is divided by an element, which may be zero.
    """
    if not isinstance(x.shape[axis], int):
        raise ShapeError(
            "cumprod: the gradient along an axis that depends on the batch is not supported",
            facts=(("tensor", described(x)), ("axis", str(axis))),
            advice="Take the running product along another axis.",
        )
    if x.shape[axis] == 0:
        return (upstream,)
    order = (axis, *(other for other in range(x.rank) if other != axis))
    factors, arriving = ops.transpose(x, order), ops.transpose(upstream, order)
    state, sequences = arriving[0] * 0, [factors, arriving]
    _, (sums,) = recurrence(_later_terms, [state], sequences, reverse=not reverse)
    sums = ops.transpose(sums, [order.index(dim) for dim in range(x.rank)])
    return (_before(result, axis, reverse) * sums,)


def _later_terms(states: Tensors, elements: Tensors, _: Tensors) -> tuple[Tensors, Tensors]:
    """One iteration of s: it passes x s on."""
    factor, term = elements
    total = term + states[0]
    return [factor * total], [total]


@as_op(
    _infer,
    _cumprod_gradient,
    _reference(np.multiply),
    Scanning("product"),
    _samples(),
    attributes=_ATTRIBUTES,
    keeps_float32=True,
)
def cumprod(x: TensorLike, axis: int, reverse: bool = False) -> Given:
    """The running product along an axis; from the end if `reverse`. Of bool and integers int64.

    Its gradient divides by no element: it is exact at zeros. It is a loop along the axis.
    """
    x = summable(x)
    return x, axis_of(x, axis), reverse


def _positions(x: Tensor, result: Tensor, axis: int, reverse: bool) -> Tensor:
    """The position of each running extreme: of equal ones, and of NaN, the one reached last."""
    extent = x.shape[axis]
    shape = [extent if other == axis else 1 for other in range(x.rank)]
    numbers = ops.broadcast_to(ops.reshape(ops.arange(extent), shape), x.shape)
    reached = ops.logical_or(ops.equal(x, result), ops.not_equal(x, x))
    # The first element of the scan is reached, and other elements come later.
    later = cummin if reverse else cummax
    first = numbers[(*(slice(None),) * axis, slice(-1, None) if reverse else slice(0, 1))]
    return later(ops.where(reached, numbers, first), axis, reverse)


def _extreme_gradient(
    x: Tensor, result: Tensor, upstream: Tensor, axis: int, reverse: bool
) -> Gradients:
    extent = x.shape[axis]
    if extent == 0:
        return (upstream,)
    positions = _positions(x, result, axis, reverse)
    return (ops.scatter_along_axis(upstream, positions, extent, axis),)


def _extreme_op(name: str, combine: str, function: np.ufunc) -> Op:
    samples = (*_samples("int32"), Sample(((2, 9, 3),), {"axis": 1, "reverse": True}))
    return make_op(
        name,
        lambda x, axis, reverse: (x.shape, x.dtype),
        *(_extreme_gradient, _reference(function), Scanning(combine), samples),
        attributes=_ATTRIBUTES,
    )


_extreme = decorating(_extreme_op)


@_extreme("maximum", np.maximum)
def cummax(x: TensorLike, axis: int, reverse: bool = False) -> Given:
    """The largest element so far along an axis; from the end if `reverse`. After NaN it is NaN.

    The gradient flows to that element, of equal ones to the last.
    """
    x = as_tensor(x)
    return x, axis_of(x, axis), reverse


@_extreme("minimum", np.minimum)
def cummin(x: TensorLike, axis: int, reverse: bool = False) -> Given:
    """The smallest element so far along an axis; from the end if `reverse`. After NaN it is NaN.

    The gradient flows to that element, of equal ones to the last.
    """
    x = as_tensor(x)
    return x, axis_of(x, axis), reverse
