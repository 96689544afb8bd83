"""Pooling: one number for each window of each channel.

The layers of one, two and three dimensions share a base class; `axes` is their number of axes.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, size_of, static
from lamina.checks.kinds import Count, Positive
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import Tensor, constant, described
from lamina.layers.checks import require_float
from lamina.layers.layer import Layer
from lamina.layers.per_axis import (
    ForEachAxis,
    Numbers,
    OfWindows,
    Pairs,
    check_image,
    numbers_of,
    pairs_of,
)
from lamina.layers.scope import Scope, in_float32
from lamina.ops import Window

__all__ = ["AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool1d", "AvgPool2d", "AvgPool3d"]
__all__ += ["GlobalAvgPool", "GlobalMaxPool", "LPPool1d", "LPPool2d", "LPPool3d", "MaxPool1d"]
__all__ += ["MaxPool2d", "MaxPool3d", "MaxUnpool"]


@frozen_dataclass
class _Pool(OfWindows, ABC):
    window: Numbers
    _: KW_ONLY
    stride: Numbers | None = None
    padding: Pairs = 0
    dilation: Numbers = 1
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        for window in self._windows():
            if max(window.before, window.after) > window.reach // 2:
                raise DefinitionError(
                    "padding is at most half of the window",
                    facts=(("window", repr(self.window)), ("padding", repr(self.padding))),
                    advice="With more padding, a window may contain nothing but padding.",
                )

    def _windows(self) -> list[Window]:
        """The windows along each axis."""
        sizes, strides, dilations = self._numbers(
            "window", "window" if self.stride is None else "stride", "dilation"
        )
        settings = zip(sizes, strides, dilations, pairs_of(self.padding, self.axes), strict=True)
        return [
            Window(size, stride, dilation, before, after, self.ceil_mode)
            for size, stride, dilation, (before, after) in settings
        ]


@frozen_dataclass(kw_only=True)
class _MaxPool(_Pool, ABC):
    returns: Literal["values", "indices"] = "values"

    def forward(self, scope: Scope, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        check_image(self, x, self.axes)
        values = ops.window_max(x, self._windows())
        if self.returns == "values":
            return values
        return values, ops.window_argmax(x, self._windows())


@frozen_dataclass
class MaxPool1d(_MaxPool):
    """As `MaxPool2d`, of sequences: f32 or f64 [batch, channels, length]."""

    axes = 1


@frozen_dataclass
class MaxPool2d(_MaxPool):
    """The largest element of each window of an image.

    Takes f32 or f64 [batch, channels, height, width]; extents become as in `Conv2d`. The first of
    equal elements gets the gradient. After Riesenhuber and Poggio: Hierarchical models of object
    recognition in cortex (Nature Neuroscience 2, 1999).

    Args:
        window: the size of a window, a number or one for each axis.
        stride: the distance between windows; by default the window's size.
        padding: elements of minus infinity around, at most half of the window.
        dilation: the distance between the elements of a window.
        ceil_mode: whether a last window that reaches beyond the end counts too.
        returns: the `"values"`, or a tuple of the values and their `"indices"`, int64: row * width
            + column of an element, for `MaxUnpool`.

    Example:
        >>> lm.MaxPool2d(2)(lm.Input(20, 24, 24)).shape
        (batch, 20, 12, 12)
    """

    axes = 2


@frozen_dataclass
class MaxPool3d(_MaxPool):
    """As `MaxPool2d`, of volumes: f32 or f64 [batch, channels, depth, height, width]."""

    axes = 3


@frozen_dataclass(kw_only=True)
class MaxUnpool(Layer):
    """Puts values at the positions in a larger tensor from which a `MaxPool2d` took them.

    Applied to values, f32 or f64 [batch, channels, ...] with one to three further axes, and to
    integers of the same shape: the indices that a pooling layer with `returns="indices"` gives.
    Gives [batch, channels, *size], with zeros elsewhere. Where several values have one index the
    result is their mean. After Zeiler, Taylor, Fergus: Adaptive deconvolutional networks (2011).

    Args:
        size: the size of the result, a number or one for each further axis: the extents before
            pooling.

    Example:
        >>> values, indices = lm.MaxPool2d(2, returns="indices")(lm.Input(20, 24, 24))
        >>> lm.MaxUnpool(size=24)(values, indices).shape
        (batch, 20, 24, 24)
    """

    size: Numbers

    @in_float32
    def forward(self, scope: Scope, x: Tensor, indices: Tensor) -> Tensor:
        rank = x.rank - 2
        if rank not in (1, 2, 3) or indices.shape != x.shape:
            raise ShapeError(
                "MaxUnpool needs values and as many indices",
                facts=(
                    ("expected", "f32[batch, channels, ...] and i64[batch, channels, ...]"),
                    *(("found", described(operand)) for operand in (x, indices)),
                ),
                advice='lm.MaxPool2d(2, returns="indices") gives both.',
            )
        require_float(self, x)
        sizes = numbers_of(self, "size", self.size, rank)
        count = size_of(sizes)
        scope.limit_indices(indices, count, advice="They lie within the tensor before pooling.")
        flat = (*x.shape[:2], size_of(static(x.shape[2:])))
        positions = ops.reshape(indices, flat)
        total = ops.scatter_along_axis(ops.reshape(x, flat), positions, count, 2)
        ones = ops.full(flat, 1.0, x.dtype)
        number = ops.scatter_along_axis(ones, positions, count, 2)
        return ops.reshape(total / ops.maximum(number, 1), (*x.shape[:2], *sizes))


@frozen_dataclass(kw_only=True)
class _AvgPool(_Pool, ABC):
    count_padding: bool = True
    divisor: Count | None = None

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        check_image(self, x, self.axes)
        along = self._windows()
        total = ops.window_sum(x, along)
        if self.divisor is not None:
            return total * (1.0 / self.divisor)
        counts = _counts(static(x.shape[2:]), along, self.count_padding)
        return total * constant(1.0 / counts, x.dtype)


def _counts(extents: tuple[int, ...], along: list[Window], padding: bool) -> Any:
    """The number of elements of each window; one number if it is the same for all."""
    total: Any = np.ones(())
    for axis, (extent, window) in enumerate(zip(extents, along, strict=True)):
        starts = window.stride * np.arange(window.count(extent)) - window.before
        elements = starts[:, None] + window.dilation * np.arange(window.size)
        # In ceil_mode windows reach beyond the padding; elements there never count.
        low, high = (-window.before, extent + window.after) if padding else (0, extent)
        inside = ((elements >= low) & (elements < high)).sum(1)
        total = total[..., None] * inside.reshape((1,) * axis + (-1,))
    return np.float64(total.flat[0]) if np.all(total == total.flat[0]) else total


@frozen_dataclass
class AvgPool1d(_AvgPool):
    """As `AvgPool2d`, of sequences: f32 or f64 [batch, channels, length]."""

    axes = 1


@frozen_dataclass
class AvgPool2d(_AvgPool):
    """The mean of each window of an image.

    Takes f32 or f64 [batch, channels, height, width]; extents become as in `Conv2d`. After LeCun
    et al.: Handwritten digit recognition with a back-propagation network (NIPS 1989).

    Args:
        window, stride, dilation, ceil_mode: the arguments of `MaxPool2d`.
        padding: zeros around, at most half of the window.
        count_padding: whether zeros of the padding count as elements.
        divisor: the divisor of the sum of each window; None: the number of its elements.

    Example:
        >>> lm.AvgPool2d(3, stride=2, padding=1)(lm.Input(8, 16, 16)).shape
        (batch, 8, 8, 8)
    """

    axes = 2


@frozen_dataclass
class AvgPool3d(_AvgPool):
    """As `AvgPool2d`, of volumes: f32 or f64 [batch, channels, depth, height, width]."""

    axes = 3


@frozen_dataclass(kw_only=True)
class _LPPool(_Pool, ABC):
    power: Positive = 2.0

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        check_image(self, x, self.axes)
        squares = self.power == 2.0
        powers = x * x if squares else ops.pow(ops.abs(x), self.power)
        total = ops.window_sum(powers, self._windows())
        # A root has no derivative at 0; the gradient of a window of zeros is 0, as in PyTorch.
        is_zero = ops.equal(total, 0)
        total = ops.where(is_zero, 1, total)
        root = ops.sqrt(total) if squares else ops.pow(total, 1.0 / self.power)
        return ops.where(is_zero, 0, root)


@frozen_dataclass
class LPPool1d(_LPPool):
    """As `LPPool2d`, of sequences: f32 or f64 [batch, channels, length]."""

    axes = 1


@frozen_dataclass
class LPPool2d(_LPPool):
    """(sum |x|^power)^(1 / power) of each window of an image.

    Takes f32 or f64 [batch, channels, height, width]; extents become as in `Conv2d`. The gradient
    of a window of zeros is 0, as in PyTorch. After Sermanet, Chintala, LeCun:
    Convolutional neural networks applied to house numbers digit classification (ICPR 2012).

    Args:
        window, stride, dilation, ceil_mode: the arguments of `MaxPool2d`.
        padding: zeros around, at most half of the window.
        power: the exponent of the norm.

    Example:
        >>> lm.LPPool2d(2)(lm.Input(8, 16, 16)).shape
        (batch, 8, 8, 8)
    """

    axes = 2


@frozen_dataclass
class LPPool3d(_LPPool):
    """As `LPPool2d`, of volumes: f32 or f64 [batch, channels, depth, height, width]."""

    axes = 3


@frozen_dataclass(kw_only=True)
class _Global(Layer, ABC):
    keepdims: bool = False

    def _axes(self, x: Tensor) -> tuple[int, ...]:
        if x.rank < 3:
            raise ShapeError(
                f"{type(self).__name__} needs an axis after the channels",
                facts=(("expected", "f32[batch, channels, ...]"), ("found", described(x))),
                advice="It takes sequences, images and volumes.",
            )
        require_float(self, x)
        return tuple(range(2, x.rank))


@frozen_dataclass
class GlobalAvgPool(_Global):
    """The mean of each channel.

    Takes f32 or f64 [batch, channels, ...] and gives [batch, channels]. After Lin, Chen, Yan:
    Network in network (2013).

    Args:
        keepdims: whether the further axes stay, with extent 1.

    Example:
        >>> lm.GlobalAvgPool()(lm.Input(512, 4, 4)).shape
        (batch, 512)
    """

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.mean(x, self._axes(x), keepdims=self.keepdims)


@frozen_dataclass
class GlobalMaxPool(_Global):
    """The largest element of each channel; equal ones share the gradient.

    Takes f32 or f64 [batch, channels, ...] and gives [batch, channels]. After Oquab, Bottou,
    Laptev, Sivic: Is object localization for free? (CVPR 2015).

    Args:
        keepdims: whether the further axes stay, with extent 1.

    Example:
        >>> lm.GlobalMaxPool(keepdims=True)(lm.Input(512, 4, 4)).shape
        (batch, 512, 1, 1)
    """

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.max(x, self._axes(x), keepdims=self.keepdims)


# The size of a result; None along axes that keep their extent.
AdaptiveSize = Annotated[int | tuple[int | None, ...], ForEachAxis(allows_none=True)]


@frozen_dataclass
class _Adaptive(Layer, ABC):
    size: AdaptiveSize

    def _sizes(self, x: Tensor) -> list[tuple[int, int]]:
        """For each axis after the channels its extent, and the extent of the result."""
        rank = x.rank - 2
        if rank not in (1, 2, 3):
            raise ShapeError(
                f"{type(self).__name__} needs one to three axes after the channels",
                facts=(("expected", "f32[batch, channels, ...]"), ("found", described(x))),
                advice="It takes sequences, images and volumes.",
            )
        check_image(self, x, rank)
        extents, sizes = static(x.shape[2:]), numbers_of(self, "size", self.size, rank)
        return [(old, new or old) for old, new in zip(extents, sizes, strict=True)]


@frozen_dataclass
class AdaptiveAvgPool(_Adaptive):
    """The means of windows that follow from the size of the result.

    Takes f32 or f64 [batch, channels, ...] with one to three further axes and gives
    [batch, channels, *size]. Window i of n along an axis of L elements goes from floor(i L / n) to
    ceil((i + 1) L / n), as PyTorch's; if n does not divide L, neighbours overlap.

    Args:
        size: the size of the result, a number or one for each further axis; None along an axis
            that keeps its extent.

    Example:
        >>> lm.AdaptiveAvgPool((2, None))(lm.Input(64, 9, 6)).shape
        (batch, 64, 2, 6)
    """

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        sizes = self._sizes(x)
        if all(old % new == 0 for old, new in sizes):
            along = [Window(old // new, stride=old // new) for old, new in sizes]
            count = np.prod([window.size for window in along])
            return ops.window_sum(x, along) * (1.0 / float(count))
        for axis, (old, new) in enumerate(sizes, start=2):
            x = x if old == new else along_axis(x, axis, means(old, new))
        return x


@frozen_dataclass(kw_only=True)
class AdaptiveMaxPool(_Adaptive):
    """The largest elements of windows that follow from the size of the result.

    Takes f32 or f64 [batch, channels, ...] with one to three further axes and gives
    [batch, channels, *size]. Its windows are as in `AdaptiveAvgPool`; the first of equal
    elements gets the gradient.

    Args:
        size: the size of the result, as in `AdaptiveAvgPool`.
        returns: the `"values"`, or a tuple of the values and their `"indices"`, as of `MaxPool2d`.

    Example:
        >>> lm.AdaptiveMaxPool((4, 2))(lm.Input(64, 9, 6)).shape
        (batch, 64, 4, 2)
    """

    returns: Literal["values", "indices"] = "values"

    def forward(self, scope: Scope, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        along: list[Window] = []
        sizes = self._sizes(x)
        # Of each axis, the numbers of the elements of all windows, one window after the other.
        elements: list[Array] = []
        for axis, (old, new) in enumerate(sizes, start=2):
            size, numbers = old // new, np.arange(old)
            if old % new:
                # Windows that are shorter have their last element again, which is never the first
                # of equal ones.
                bounds = windows_of_size(old, new)
                size = max(end - start for start, end in bounds)
                rows = [np.minimum(start + np.arange(size), end - 1) for start, end in bounds]
                numbers = np.concatenate(rows)
                x = ops.take(x, constant(numbers), axis)
            elements.append(numbers)
            along.append(Window(size, stride=size))
        values = ops.window_max(x, along)
        if self.returns == "values":
            return values
        remaining, position, step = ops.window_argmax(x, along), constant(0), 1
        for numbers, (old, _new) in zip(reversed(elements), reversed(sizes), strict=True):
            position = position + ops.take(constant(numbers), remaining % len(numbers)) * step
            remaining, step = remaining // len(numbers), step * old
        return values, position


def along_axis(x: Tensor, axis: int, matrix: Array) -> Tensor:
    """The product of a constant matrix, (new, old), and a tensor along one axis."""
    # Most weights are zero. For axes of up to some hundreds of elements the product is still as
    # fast as loads of neighbours.
    letters = "abcde"[: x.rank]
    result = letters.replace(letters[axis], "z")
    weights = constant(matrix, x.dtype)
    return ops.einsum(f"{letters},z{letters[axis]}->{result}", x, weights)


def windows_of_size(old: int, new: int) -> list[tuple[int, int]]:
    """The first element of each window of adaptive pooling, and the one after its last."""
    return [(i * old // new, -(-(i + 1) * old // new)) for i in range(new)]


def means(old: int, new: int) -> Array:
    """The float64 matrix (new, old) of means of windows, as PyTorch's adaptive pooling."""
    matrix = np.zeros((new, old))
    for row, (start, end) in enumerate(windows_of_size(old, new)):
        matrix[row, start:end] = 1.0 / (end - start)
    return matrix
