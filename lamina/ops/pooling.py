"""The maximum and the sum of each window; windows as columns of a matrix (im2col), and back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lamina.base.shapes import Array, int32, int64, size_of, static, uint8
from lamina.checks import checked_as_given as checked
from lamina.errors import ShapeError
from lamina.graph import Sample, Tensor, TensorLike, apply, constant, described
from lamina.graph.attributes import Many, whole
from lamina.ops import basic as ops
from lamina.ops.arguments import as_tensor, each_of
from lamina.ops.broadcast import sum_axes
from lamina.ops.conversion import floating, numeric
from lamina.ops.elementwise import RELU
from lamina.ops.records import Given, Gradients, Typed, as_op
from lamina.ops.reduce import ARGMAX
from lamina.ops.windows import WINDOW, Window, windows, windows_of
from lamina.ops.windows import fold as add_windows

__all__ = ["fold", "unfold", "window_argmax", "window_max", "window_sum"]

# Windows slide along the last axes of a tensor; the attribute `along` has one for each.


def _windows(x: Tensor, along: Sequence[Window], fill: float = 0.0) -> Tensor:
    """The windows along the last axes; axes of kernel elements after the others."""
    return windows(x, range(x.rank - len(along), x.rank), along, fill)


def _infer_window_max(x: Tensor, along: Sequence[Window]) -> Typed:
    if not x.dtype.is_float or len(along) > x.rank:
        raise ShapeError(
            "window_max: expected a tensor of floats with an axis for each window",
            facts=(("tensor", described(x)), ("windows", str(len(along)))),
        )
    for window in along:
        if max_padding(window) < window.before or max_padding(window) < window.after:
            raise ShapeError(
                "window_max: a window may contain nothing but padding",
                facts=(
                    ("tensor", described(x)),
                    ("window", f"{window.size} elements, from first to last {window.reach}"),
                    ("padding", f"{window.before} before and {window.after} after"),
                ),
                advice="Pad by at most half of the window.",
            )
    return _windows(x, along).shape[: x.rank], x.dtype


def max_padding(window: Window) -> int:
    """The largest padding for which every window has an element of the tensor."""
    return window.reach // 2


def _window_max_build(x: Tensor, along: Sequence[Window]) -> Tensor:
    windowed = _windows(x, along, -math.inf)
    return ops.max(windowed, range(x.rank, windowed.rank))


def _first_largest(x: Tensor, along: Sequence[Window]) -> Tensor:
    """The number in its window of the first of the largest elements."""
    windowed = _windows(x, along, -math.inf)
    return apply(ARGMAX, windowed, axes=tuple(range(x.rank, windowed.rank)))


def _window_max_gradient(
    x: Tensor, result: Tensor, upstream: Tensor, along: Sequence[Window]
) -> Gradients:
    """Goes to the first of the largest elements, whose number in the window is stored in a byte."""
    element = _first_largest(x, along)
    sizes = [window.size for window in along]
    if size_of(sizes) <= 256:
        element = ops.cast(element, uint8)
    with_ones = (*result.shape, *(1 for _ in sizes))
    elements = ops.reshape(ops.arange(size_of(sizes), int32), sizes)
    chosen = ops.equal(ops.cast(ops.reshape(element, with_ones), int32), elements)
    shares = ops.where(chosen, ops.reshape(upstream, with_ones), 0)
    first = x.rank - len(along)
    return (add_windows(shares, range(first, x.rank), along, static(x.shape[first:])),)


def _window_max_reference(x: Array, along: Sequence[Window]) -> Array:
    for axis, window in enumerate(along, x.ndim - len(along)):
        extent = x.shape[axis]
        count = window.count(extent)
        starts = window.stride * np.arange(count) - window.before
        indices = starts[:, None] + window.dilation * np.arange(window.size)
        inside = (indices >= 0) & (indices < extent)
        windowed = np.take(x, np.clip(indices, 0, extent - 1), axis)
        mask = inside.reshape(inside.shape + (1,) * (x.ndim - axis - 1))
        x = np.max(np.where(mask, windowed, -np.inf), axis + 1).astype(x.dtype)
    return x


@as_op(
    _infer_window_max,
    _window_max_gradient,
    _window_max_reference,
    _window_max_build,
    (
        Sample(((2, 3, 4, 6),), {"along": (Window(2, 2), Window(2, 2))}),
        Sample(((2, 2, 5, 7),), {"along": (Window(2, 2), Window(3, 3))}),
        Sample(((2, 6, 5),), {"along": (Window(3, 2, 1, 1, 1), Window(3, 1, 1, 1, 1))}),
        Sample(((3, 8),), {"along": (Window(2, 3, 2, 1, 0, True),)}),
        Sample(((1, 2, 3, 4, 3),), {"along": (Window(2), Window(2, 2), Window(1))}),
    ),
    attributes={"along": Many(WINDOW)},
)
def window_max(x: TensorLike, along: Sequence[Window]) -> Given:
    """The largest element of each window along the last axes; padding counts as -infinity.

    The first of equal elements gets the gradient, as in PyTorch.

    Args:
        x: floats; integers become float32.
        along: the windows along each of the last axes, see `lamina.ops.Window`.
    """
    x = floating(x)
    along = windows_of(x.rank, along)
    if x.op is RELU:
        # The maximum of ReLUs is the ReLU of the maximum, which has fewer elements to compute. Its
        # gradient needs neither the ReLU of the larger tensor nor its operand.
        return ops.relu(window_max(x.operands[0], along))
    return x, along


@checked
def window_argmax(x: TensorLike, along: Sequence[Window]) -> Tensor:
    """The position of the largest element of each window, int64, counted along the last axes.

    The position of an element in an image is row * width + column. Of equal elements the first in
    the window counts, as in `window_max`.

    Args:
        x: floats; integers become float32.
        along: the windows along each of the last axes, see `lamina.ops.Window`.
    """
    x = floating(x)
    along = windows_of(x.rank, along)
    # Checks the windows.
    result = window_max(x, along)
    element = ops.reshape(_first_largest(x, along), result.shape)
    extents = static(x.shape[x.rank - len(along) :])
    # The position is the position of the window's first element, plus the distance from there,
    # which follows from the number of the element in the window.
    distances = np.zeros((), np.int64)
    first = constant(0, int64)
    for number, (window, extent) in enumerate(zip(along, extents, strict=True)):
        distances = distances[..., None] * extent + window.dilation * np.arange(window.size)
        starts = window.stride * np.arange(window.count(extent)) - window.before
        shape = (len(starts), *(1 for _ in along[number + 1 :]))
        first = first * extent + ops.reshape(constant(starts), shape)
    return ops.take(constant(distances.reshape(-1)), element) + first


@checked
def window_sum(x: TensorLike, along: Sequence[Window]) -> Tensor:
    """The sum of each window along the last axes; padding is zero."""
    x = floating(x)
    windowed = _windows(x, windows_of(x.rank, along))
    return sum_axes(windowed, tuple(range(x.rank, windowed.rank)))


@checked
def unfold(x: TensorLike, along: Sequence[Window]) -> Tensor:
    """The elements of all windows along the last axes; padding is zero (im2col).

    Args:
        x: [batch, channels, ...].
        along: the windows along each axis after the channels, see `lamina.ops.Window`.

    Returns:
        [batch, channels * elements of a window, windows].
    """
    x = as_tensor(x)
    listed = windows_of(x.rank, along)
    if x.rank != len(listed) + 2:
        raise ShapeError(
            "unfold: there must be a window for each axis after the channels",
            facts=(("found", described(x)), ("windows", f"along {len(listed)} axes")),
            advice="The tensor is [batch, channels, ...].",
        )
    axes = range(2, x.rank)
    windowed = windows(x, axes, listed)
    elements = range(x.rank, windowed.rank)
    shape = static(windowed.shape[1:])
    channels, positions = shape[0], size_of(shape[1 : x.rank - 1])
    kept = ops.transpose(windowed, [0, 1, *elements, *axes])
    return ops.reshape(
        kept, (x.shape[0], channels * size_of([window.size for window in listed]), positions)
    )


# The most axes of windows; arrays of NumPy have at most 64.
_MOST_AXES = 30


@checked
def fold(y: TensorLike, along: Sequence[Window], extents: int | Sequence[int]) -> Tensor:
    """Windows, added up where they overlap (col2im): the transpose of `unfold` as a linear map.

    Args:
        y: [batch, channels * elements of a window, windows], as `unfold` returns it.
        along: the windows along each axis of the result after the channels.
        extents: the extents of these axes.

    Returns:
        [batch, channels, *extents].
    """
    y = numeric(y)
    listed = windows_of(_MOST_AXES, along)
    shape = each_of("extents", extents, len(listed), whole(1))
    counts = [window.count(extent) for window, extent in zip(listed, shape, strict=True)]
    sizes = [window.size for window in listed]
    rows = y.shape[1] if y.rank == 3 else 0
    fits = isinstance(rows, int) and rows and rows % size_of(sizes) == 0 and min(counts) > 0
    if not fits or not isinstance(rows, int) or y.shape[2] != size_of(counts):
        expected = f"[batch, channels * {size_of(sizes)}, {size_of(counts)}]"
        raise ShapeError(
            "fold: the tensor does not have the elements of these windows",
            facts=(("found", described(y)), ("expected", expected)),
            advice="The windows and extents must be the same as in the unfold.",
        )
    apart = ops.reshape(y, (y.shape[0], rows // size_of(sizes), *sizes, *counts))
    count = len(listed)
    first = [0, 1, *range(2 + count, 2 + 2 * count), *range(2, 2 + count)]
    return add_windows(ops.transpose(apart, first), range(2, 2 + count), listed, shape)
