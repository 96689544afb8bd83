"""Reductions: mean, variance, standard deviation, max and min, any and all, products.

Reductions take `axes` (an int, several, or None for all) and drop them; with `keepdims` they stay,
with extent 1. The records of the ops always drop them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lamina.base.shapes import (
    Array,
    DTypeLike,
    bool_,
    divide_counts,
    float32,
    int64,
    size_of,
    static,
)
from lamina.base.shapes import element_count as count_polynomial
from lamina.checks.kinds import ElementType, Kind
from lamina.errors import DTypeError, ShapeError
from lamina.graph import OPS, Op, Sample, Tensor, TensorLike, apply, constant, described, operator
from lamina.graph.attributes import AnyNumber
from lamina.graph.attributes import Axes as SomeAxes
from lamina.ops.arguments import as_tensor, axes_of, axis_of, dtype_of, flag_of
from lamina.ops.broadcast import infer_reduction, infer_sum, spread, sum_axes, with_ones
from lamina.ops.comparison import equal, where
from lamina.ops.conversion import cast, floating, rounded_once
from lamina.ops.creation import arange, full
from lamina.ops.elementwise import sqrt
from lamina.ops.lowering_rules import Reduction
from lamina.ops.movement import expand_dims, reshape, transpose
from lamina.ops.records import Given, Gradients, Typed, as_op, decorating, make_op

__all__ = ["all", "any", "argmax", "argmin", "element_count", "max", "mean", "min", "prod", "std"]
__all__ += ["sum", "variance"]

Axes = int | Sequence[int] | None


def summable(x: TensorLike) -> Tensor:
    """Narrow integers and bool as int64, so that sums do not overflow."""
    x = as_tensor(x)
    return x if x.dtype.is_float else cast(x, int64)


def reduced(
    op: Op, x: Tensor, axes: Axes, keepdims: bool, of_nothing: float | None = None
) -> Tensor:
    """A reduction along axes, counted from either end; the tensor itself if no axes are named.

    If an axis is empty, the result is `of_nothing`, unless that is None.
    """
    named = axes_of(x, axes)
    if of_nothing is not None and 0 in [x.shape[axis] for axis in named]:
        kept = [dim for axis, dim in enumerate(x.shape) if axis not in named]
        return _kept(full(kept, of_nothing, x.dtype), x, named, keepdims)
    return _kept(apply(op, x, axes=named) if named else x, x, named, keepdims)


def _kept(y: Tensor, x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return with_ones(y, x, axes) if flag_of("keepdims", keepdims) else y


reduction = decorating(make_op, reduced)

# The attributes of reductions.
OF_AXES: dict[str, Kind] = {"axes": SomeAxes()}


@operator
def sum(x: TensorLike, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """The sum of the elements along axes; of bool and integers int64."""
    x = summable(x)
    named = axes_of(x, axes)
    return _kept(sum_axes(x, named), x, named, keepdims)


@as_op(
    lambda x, axes, dtype: ((), dtype),
    lambda x, y, g, axes, dtype: (None,),
    lambda x, axes, dtype: np.asarray(size_of([x.shape[axis] for axis in axes]), dtype.numpy),
    lambda x, axes, dtype: constant(size_of(static(tuple(map(x.shape.__getitem__, axes)))), dtype),
    (
        Sample(((3, 4),), {"axes": (0,), "dtype": float32}, differentiable=False),
        Sample(((3, 0, 2),), {"axes": (0, 1), "dtype": int64}, differentiable=False),
    ),
    attributes={"axes": SomeAxes(), "dtype": ElementType()},
)
def element_count(x: Tensor, axes: Axes, dtype: DTypeLike) -> Given:
    """The number of elements along the axes, as a tensor without axes."""
    x = as_tensor(x)
    target, named = dtype_of(dtype), axes_of(x, axes)
    extents = [x.shape[axis] for axis in named]
    fixed = [dim for dim in extents if isinstance(dim, int)]
    if len(fixed) == len(extents):
        return constant(size_of(fixed), target)
    return x, named, target


def _infer_float_reduction(x: Tensor, axes: tuple[int, ...], correction: float = 0) -> Typed:
    require_float(x)
    return infer_reduction(x, axes)


def require_float(x: Tensor) -> None:
    """Raises DTypeError for integers and bool."""
    if not x.dtype.is_float:
        raise DTypeError(
            "expected a float tensor",
            facts=(("expected", "f32 or f64"), ("found", described(x))),
            advice="Convert with ops.cast(x, 'float32').",
        )


@reduction(
    _infer_float_reduction,
    lambda x, y, g, axes: (spread(g / element_count(x, axes, x.dtype), x, axes),),
    lambda x, axes: np.sum(x, axes) / np.asarray(size_of([x.shape[n] for n in axes]), x.dtype),
    lambda x, axes: sum_axes(x, axes) / element_count(x, axes, x.dtype),
    (
        Sample(((4, 5),), {"axes": (0,)}),
        Sample(((2, 3, 4),), {"axes": (0, 2)}),
        Sample(((3, 1),), {"axes": (0, 1)}),
    ),
    attributes=OF_AXES,
)
def mean(x: TensorLike, axes: Axes = None, keepdims: bool = False) -> Given:
    """The mean of the elements along axes; of integers float32."""
    return floating(x), axes, keepdims


def _variance_build(x: Tensor, axes: tuple[int, ...], correction: float) -> Tensor:
    deviation = x - mean(x, axes, keepdims=True)
    return sum_axes(deviation * deviation, axes) / (element_count(x, axes, x.dtype) - correction)


def _variance_gradient(
    x: Tensor, _: Tensor, upstream: Tensor, axes: tuple[int, ...], correction: float
) -> Gradients:
    scale = upstream * 2 / (element_count(x, axes, x.dtype) - correction)
    return (with_ones(scale, x, axes) * (x - mean(x, axes, keepdims=True)),)


def _variance_reference(x: Array, axes: tuple[int, ...], correction: float) -> Array:
    count = size_of([x.shape[axis] for axis in axes])
    deviation = x - x.mean(axes, keepdims=True)
    return np.sum(deviation * deviation, axes) / np.asarray(count - correction, x.dtype)


VARIANCE = make_op(
    "variance",
    _infer_float_reduction,
    _variance_gradient,
    _variance_reference,
    _variance_build,
    (
        Sample(((4, 5),), {"axes": (0,), "correction": 0}),
        Sample(((2, 3, 4),), {"axes": (0, 2), "correction": 1}),
        Sample(((7, 1),), {"axes": (1,), "correction": 0}),
    ),
    attributes={"axes": SomeAxes(least=0), "correction": AnyNumber()},
)


@operator
def variance(
    x: TensorLike, axes: Axes = None, correction: float = 0, keepdims: bool = False
) -> Tensor:
    """The mean squared deviation from the mean along axes, in two passes.

    Args:
        x: any tensor; integers become float32.
        axes: the axes that are reduced; None means all.
        correction: subtracted from the number of elements; 1 gives the unbiased estimate.
        keepdims: whether the axes stay, with extent 1.
    """
    x = floating(x)
    keepdims, named = flag_of("keepdims", keepdims), axes_of(x, axes)
    return _kept(apply(VARIANCE, x, axes=named, correction=correction), x, named, keepdims)


@operator
def std(x: TensorLike, axes: Axes = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The standard deviation along axes: the square root of the variance.

    Where it is zero, its gradient is zero, as in PyTorch.

    Args:
        x, axes, correction, keepdims: the arguments of `variance`.
    """

    def deviation(x: Tensor) -> Tensor:
        squared = variance(x, axes, correction, keepdims)
        is_zero = equal(squared, 0)
        return where(is_zero, 0, sqrt(where(is_zero, 1, squared)))

    return rounded_once(deviation, floating(x))


def infer_nonempty(x: Tensor, axes: tuple[int, ...]) -> Typed:
    """The shape rule of reductions that are undefined without elements."""
    require_elements(x, axes)
    return infer_reduction(x, axes)


def require_elements(x: Tensor, axes: tuple[int, ...]) -> None:
    """Raises ShapeError where an axis has no elements."""
    for axis in axes:
        if x.shape[axis] == 0:
            raise ShapeError(
                f"axis {axis} is empty: there is no largest or smallest element",
                facts=(("tensor", described(x)), ("axes", str(axes))),
                advice="Only sums and products are defined without elements; check the extent.",
            )


REDUCTION_SAMPLES = (
    Sample(((3, 5),), {"axes": (0,)}),
    Sample(((2, 3, 4),), {"axes": (0, 2)}),
    Sample(((7,),), {"axes": (0,)}),
    Sample(((2, 1),), {"axes": (1,)}),
    Sample(((0, 3),), {"axes": (1,)}),
)


def _extreme_gradient(
    x: Tensor, result: Tensor, upstream: Tensor, axes: tuple[int, ...]
) -> Gradients:
    """Split evenly between all elements that equal the result."""
    chosen = cast(equal(x, with_ones(result, x, axes)), x.dtype)
    share = upstream / sum_axes(chosen, axes)
    return (chosen * with_ones(share, x, axes),)


def _extreme_op(name: str, combine: str, reference: Callable[..., Array]) -> Op:
    of_integers = Sample(((3, 4),), {"axes": (1,)}, dtypes=("int64",), differentiable=False)
    return make_op(
        *(name, infer_nonempty, _extreme_gradient),
        lambda x, axes: reference(x, axis=axes),
        *(Reduction(combine), (*REDUCTION_SAMPLES, of_integers)),
        attributes=OF_AXES,
    )


_extreme = decorating(_extreme_op, reduced)


@_extreme("maximum", np.max)
def max(x: TensorLike, axes: Axes = None, keepdims: bool = False) -> Given:
    """The largest element along axes, NaN if there is one; equal ones share the gradient."""
    return as_tensor(x), axes, keepdims


@_extreme("minimum", np.min)
def min(x: TensorLike, axes: Axes = None, keepdims: bool = False) -> Given:
    """The smallest element along axes, NaN if there is one; equal ones share the gradient."""
    return as_tensor(x), axes, keepdims


def _position_op(name: str, reference: Callable[..., Array]) -> Op:
    def own_reference(x: Array, axes: tuple[int, ...]) -> Array:
        last = np.moveaxis(x, axes, range(x.ndim - len(axes), x.ndim))
        kept = last.shape[: x.ndim - len(axes)]
        return reference(last.reshape(*kept, size_of(last.shape[len(kept) :])), -1)

    rows = (((3, 5), (1,)), ((4, 1, 2), (0,)), ((1,), (0,)), ((2, 3, 4, 5), (1, 3)))
    samples = [Sample((shape,), {"axes": axes}, differentiable=False) for shape, axes in rows]
    ties = Sample(((6, 4),), {"axes": (0,)}, dtypes=("int32",), differentiable=False)
    return make_op(
        name,
        lambda x, axes: (infer_nonempty(x, axes)[0], int64),
        *(None, own_reference, Reduction(name), [*samples, ties]),
        attributes=OF_AXES,
    )


_position = decorating(_position_op, reduced)


@_position(np.argmax)
def argmax(x: TensorLike, axis: int, keepdims: bool = False) -> Given:
    """The first position of the largest element, int64; NaN counts as larger than any number."""
    x = as_tensor(x)
    return x, axis_of(x, axis), keepdims


@_position(np.argmin)
def argmin(x: TensorLike, axis: int, keepdims: bool = False) -> Given:
    """The first position of the smallest element, int64; NaN counts as smaller than any number."""
    x = as_tensor(x)
    return x, axis_of(x, axis), keepdims


ARGMAX, ARGMIN = OPS["argmax"], OPS["argmin"]


def _infer_truth(x: Tensor, axes: tuple[int, ...]) -> Typed:
    if x.dtype != bool_:
        raise DTypeError(
            "expected a bool tensor",
            facts=(("found", described(x)),),
            advice="Compare first, for example x > 0.",
        )
    return infer_nonempty(x, axes)


def _truth_op(name: str, combine: str, reference: Callable[..., Array]) -> Op:
    samples = tuple(
        Sample(sample.shapes, sample.attributes, dtypes=("bool",), differentiable=False)
        for sample in REDUCTION_SAMPLES
    )
    return make_op(
        *(name, _infer_truth, None),
        lambda x, axes: reference(x, axis=axes),
        *(Reduction(combine), samples),
        attributes=OF_AXES,
    )


_truth = decorating(_truth_op, reduced)


@_truth("maximum", np.any)
def any(x: TensorLike, axes: Axes = None, keepdims: bool = False) -> Given:
    """Whether an element along the axes is true (not zero)."""
    return cast(x, bool_), axes, keepdims, False


@_truth("minimum", np.all)
def all(x: TensorLike, axes: Axes = None, keepdims: bool = False) -> Given:
    """Whether all elements along the axes are true (not zero)."""
    return cast(x, bool_), axes, keepdims, True


def _prod_gradient(x: Tensor, _: Tensor, upstream: Tensor, axes: tuple[int, ...]) -> Gradients:
    """Each element's derivative is the product of the others.

    Division of the product by the element would fail at zeros. So each of these products is
    computed separately, with n * n multiplications for n elements, and no intermediate result is
    stored.
    """
    kept = tuple(axis for axis in range(x.rank) if axis not in axes)
    order = kept + axes
    moved = transpose(x, order)
    n = divide_counts(count_polynomial(tuple(x.shape[axis] for axis in axes)), (1,))
    if n is None:
        raise ShapeError(
            "prod: the gradient along two axes that depend on the batch is not supported",
            facts=(("tensor", described(x)), ("axes", str(axes))),
            advice="Take the product along one axis after the other.",
        )
    rows = reshape(moved, [*(x.shape[axis] for axis in kept), n])
    number = arange(n)
    is_same = equal(expand_dims(number, 1), expand_dims(number, 0))
    others = prod(where(is_same, 1, expand_dims(rows, -2)), -1)
    gradient = reshape(expand_dims(upstream, -1) * others, moved.shape)
    return (transpose(gradient, [order.index(axis) for axis in range(x.rank)]),)


@reduction(
    infer_sum,
    _prod_gradient,
    lambda x, axes: np.prod(x, axis=axes, dtype=x.dtype),
    Reduction("product"),
    (*REDUCTION_SAMPLES, Sample(((2, 0),), {"axes": (1,)})),
    attributes=OF_AXES,
)
def prod(x: TensorLike, axes: Axes = None, keepdims: bool = False) -> Given:
    """The product of the elements along axes; of bool and integers int64."""
    return summable(x), axes, keepdims
