"""Layers that change training images at random: flips, crops, shifts, erasing, colours.

They act in training mode only. Each example has its own random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any, final

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Dim, Shape, float32, int64, static
from lamina.checks.kinds import (
    Kind,
    Misfit,
    NotNegative,
    Number,
    Operands,
    Positive,
    Probability,
    entries_of,
    read_each,
)
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import Tensor, described
from lamina.layers.checks import axis_within_example, image_extents, no_images, require_float
from lamina.layers.image import Widths, pairs_of_widths
from lamina.layers.layer import Layer
from lamina.layers.per_axis import ForEachAxis, Numbers, numbers_of
from lamina.layers.scope import Scope
from lamina.ops.rearranging import PadMode

__all__ = ["ColourJitter", "RandomCrop", "RandomErasing", "RandomFlip", "RandomGreyscale"]
__all__ += ["RandomShift"]


@final
@frozen_dataclass
class Ordered(Kind):
    """Two numbers, the lower one first, or twice the same."""

    number: Number
    example: str = "(0.5, 1.0)"

    def read(self, value: Any, operands: Operands = ()) -> tuple[float, float]:
        ends = read_each(self.number, entries_of(value) or ())
        if len(ends) != 2 or ends[0] > ends[1]:
            raise Misfit("two numbers, the lower one first", f"{{name}}={self.example}")
        return ends[0], ends[1]


_Area = Annotated[tuple[float, float], Ordered(Number("(0, 1]"), "(0.02, 0.33)")]
_Ratio = Annotated[tuple[float, float], Ordered(Number("(0, inf)"), "(0.3, 3.3)")]


@frozen_dataclass(kw_only=True)
class RandomFlip(Layer):
    """Reverses an axis of some examples while training; does nothing in inference.

    Takes any dtype [batch, ...]. As `RandomHorizontalFlip` and `RandomVerticalFlip` of torchvision.

    Args:
        axis: an axis of the example: -1 exchanges left and right, -2 above and below.
        probability: the probability of an example to be reversed.

    Example:
        >>> y = lm.RandomFlip()(lm.Input(3, 32, 32))
    """

    axis: int = -1
    probability: Probability = 0.5

    def __post_init__(self) -> None:
        if self.axis == 0:
            raise DefinitionError(
                "axis 0 is the batch, and examples are reversed one by one",
                facts=(("found", "axis=0"),),
                advice="Name an axis of the example: -1 exchanges left and right.",
            )

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        axis = axis_within_example(self, self.axis, x)
        if not scope.training or not self.probability:
            return x
        return ops.where(chosen(scope, x, self.probability), ops.flip(x, axis), x)


@frozen_dataclass
class RandomCrop(Layer):
    """A part of each example, at a random position while training; the centre in inference.

    Takes any dtype [batch, channels, ...] with one to three further axes, and gives
    [batch, channels, *size]. As `RandomCrop` of torchvision; where an axis is an odd number of
    elements too long, the centre has one more of them after it than before it.

    Args:
        size: the size of the part, a number or one for each further axis.
        padding: elements that are added first: a number for both sides of all further axes, or for
            each of them a pair (before, after) or one number.
        padding_mode: `"constant"`, `"reflect"`, `"replicate"` or `"circular"`, as for `Pad`.
        value: the value of the new elements in padding mode `"constant"`.

    Example:
        >>> lm.RandomCrop(28, padding=2)(lm.Input(3, 32, 32)).shape
        (batch, 3, 28, 28)
    """

    size: Numbers
    _: KW_ONLY
    padding: Widths = 0
    padding_mode: PadMode = "constant"
    value: float = 0.0

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        sizes = numbers_of(self, "size", self.size, _further_axes(self, x))
        widths = pairs_of_widths(self, self.padding, x)
        x = ops.pad_with(x, widths, self.padding_mode, self.value)
        extents = static(x.shape[2:])
        if any(size > extent for size, extent in zip(sizes, extents, strict=True)):
            raise ShapeError(
                "the image is smaller than the crop",
                facts=(("size", str(tuple(sizes))), ("found", described(x))),
                advice="Choose a smaller size, or more padding.",
            )
        if scope.training:
            return _cropped(scope, x, sizes)
        starts = [(extent - size) // 2 for size, extent in zip(sizes, extents, strict=True)]
        inner = [slice(at, at + size) for at, size in zip(starts, sizes, strict=True)]
        return x[(slice(None), slice(None), *inner)]


@frozen_dataclass
class RandomShift(Layer):
    """Moves each example by whole elements while training; does nothing in inference.

    Takes any dtype [batch, channels, ...] with one to three further axes. All shifts up to `most`
    in both directions are equally likely.

    Args:
        most: elements by which an axis is moved at most, a number or one for each further axis.
        mode: elements that move in: `"constant"`: `value`; `"reflect"`: the example mirrored at its
            border; `"replicate"`: its border; `"circular"`: elements that moved out.
        value: the value of the elements that move in, in mode `"constant"`.

    Example:
        >>> y = lm.RandomShift(2)(lm.Input(1, 28, 28))
    """

    most: Annotated[int | tuple[int, ...], ForEachAxis(0)]
    _: KW_ONLY
    mode: PadMode = "constant"
    value: float = 0.0

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        widths = numbers_of(self, "most", self.most, _further_axes(self, x))
        wider = ops.pad_with(x, (0, 0, *widths), self.mode, self.value)
        return _cropped(scope, wider, static(x.shape[2:])) if scope.training else x


@frozen_dataclass(kw_only=True)
class RandomErasing(Layer):
    """Replaces a rectangle of some images by one value while training; nothing in inference.

    Takes any dtype [batch, channels, height, width]. Area and ratio of sides are drawn until the
    rectangle is smaller than the image, but ten times at most; then the image stays as it is. So
    does torchvision's `RandomErasing`. After Zhong, Zheng, Kang, Li, Yang: Random erasing data
    augmentation (2017).

    Args:
        probability: the probability of an image to be changed.
        area: the least and the greatest area of the rectangle, as shares of the image's.
        ratio: the least and the greatest ratio of height to width; its logarithm is uniform.
        value: the value of the elements in the rectangle.

    Example:
        >>> y = lm.RandomErasing()(lm.Input(3, 32, 32))
    """

    probability: Probability = 0.5
    area: _Area = (0.02, 0.33)
    ratio: _Ratio = (0.3, 3.3)
    value: float = 0.0

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        height, width = image_extents(self, x)
        if not scope.training or not self.probability:
            return x
        sides, erased = self._rectangle(scope, x.shape[0], (height, width))
        erased = ops.logical_and(erased, scope.bernoulli((x.shape[0], 1), self.probability) > 0)
        erased = ops.reshape(erased, each(x))
        for axis, side, extent in zip((2, 3), sides, (height, width), strict=True):
            start = ops.reshape(below(scope, (x.shape[0], 1), extent - side + 1), each(x))
            end = start + ops.reshape(ops.cast(side, int64), each(x))
            at = positions(x, axis)
            erased = ops.logical_and(erased, ops.logical_and(at >= start, at < end))
        return ops.where(erased, ops.constant(self.value, x.dtype), x)

    def _rectangle(
        self, scope: Scope, batch: Dim, extents: tuple[int, int]
    ) -> tuple[list[Tensor], Tensor]:
        """Height and width of a rectangle for each image, and whether it is smaller."""
        height, width = extents
        tries = (batch, _TRIES)
        least, most = (share * height * width for share in self.area)
        area = scope.uniform(tries, least, most, dtype=float32)
        low, high = map(math.log, self.ratio)
        ratio = ops.exp(scope.uniform(tries, low, high, dtype=float32))
        heights, widths = ops.round(ops.sqrt(area * ratio)), ops.round(ops.sqrt(area / ratio))
        smaller = ops.logical_and(heights < height, widths < width)
        first = ops.argmax(ops.cast(smaller, int64), 1, keepdims=True)
        sides = [ops.take_along_axis(drawn, first, 1) for drawn in (heights, widths)]
        return sides, ops.any(smaller, 1, keepdims=True)


@frozen_dataclass(kw_only=True)
class ColourJitter(Layer):
    """Brightness, contrast, saturation and hue of each image at random; nothing in inference.

    Takes f32 or f64 [batch, 1 or 3 channels, height, width] with values from 0 to `high`: grey
    images, or red, green and blue. A brightness, contrast or saturation of b draws a factor from
    max(0, 1 - b) to 1 + b. The changes are as in torchvision's `ColorJitter`, always in this order,
    and each is clipped to the range of values.

    Args:
        brightness: the largest distance from 1 of the factor of all values.
        contrast: the same for the factor of the difference to the image's mean grey.
        saturation: the same for the factor of the difference to each pixel's grey.
        hue: the largest shift of the hue around the colour circle, as a share of the circle.
        high: the greatest value of an image.

    Example:
        >>> y = lm.ColourJitter(brightness=0.2, contrast=0.2)(lm.Input(3, 32, 32))
    """

    brightness: NotNegative = 0.0
    contrast: NotNegative = 0.0
    saturation: NotNegative = 0.0
    hue: Annotated[float, Number("[0, 0.5]")] = 0.0
    high: Positive = 1.0

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        _check_colours(self, x)
        if not scope.training:
            return x
        if self.brightness:
            x = self._blended(scope, x, ops.zeros_like(x), self.brightness)
        if self.contrast:
            mean = ops.mean(_grey(x), (1, 2, 3), keepdims=True)
            x = self._blended(scope, x, mean, self.contrast)
        if self.saturation and x.shape[1] == 3:
            x = self._blended(scope, x, _grey(x), self.saturation)
        if self.hue and x.shape[1] == 3:
            distance = scope.uniform(each(x), -self.hue, self.hue, dtype=float32)
            x = _with_hue_moved(x, ops.cast(distance, x.dtype))
        return x

    def _blended(self, scope: Scope, x: Tensor, other: Tensor, most: float) -> Tensor:
        """Factor * x + (1 - factor) * other, clipped."""
        drawn = scope.uniform(each(x), max(0.0, 1 - most), 1 + most, dtype=float32)
        factor = ops.cast(drawn, x.dtype)
        return ops.clip(factor * x + (1 - factor) * other, 0.0, self.high)


@frozen_dataclass
class RandomGreyscale(Layer):
    """Replaces the three colours of some images by their grey while training; else nothing.

    Takes f32 or f64 [batch, 3, height, width]: red, green, blue. Grey is 0.2989 red + 0.587 green +
    0.114 blue, as in torchvision's `RandomGrayscale`.

    Args:
        probability: the probability of an image to become grey.

    Example:
        >>> y = lm.RandomGreyscale(probability=0.2)(lm.Input(3, 32, 32))
    """

    probability: Probability = 0.1

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        _check_colours(self, x)
        if not scope.training or not self.probability:
            return x
        return ops.where(chosen(scope, x, self.probability), _grey(x), x)


def _check_colours(layer: Layer, x: Tensor) -> None:
    """Checks that a layer is applied to floats: grey images, or red, green and blue."""
    image_extents(layer, x)
    if x.shape[1] not in (1, 3):
        raise ShapeError(
            f"{type(layer).__name__} takes grey images, or red, green and blue",
            facts=(("expected", "1 or 3 channels"), ("found", described(x))),
            advice="Apply it to the images, before the first convolution.",
        )
    require_float(layer, x, "Put lm.Rescale(1 / 255) before it.")


def _grey(x: Tensor) -> Tensor:
    """[batch, 1, height, width]; ITU-R BT.601 weighs the colours."""
    if x.shape[1] == 1:
        return x
    red, green, blue = ops.split(x, (1, 1, 1), 1)
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def _with_hue_moved(x: Tensor, distance: Tensor) -> Tensor:
    """Red, green and blue with the hue (HSV) moved; a distance of 1 is once around the circle."""
    # Smith: Color gamut transform pairs (1978).
    red, green, blue = ops.split(x, (1, 1, 1), 1)
    value = ops.max(x, 1, keepdims=True)
    chroma = value - ops.min(x, 1, keepdims=True)
    divisor = ops.where(chroma > 0, chroma, 1.0)
    others = ops.where(
        ops.equal(value, green), 2 + (blue - red) / divisor, 4 + (red - green) / divisor
    )
    hue = ops.where(ops.equal(value, red), (green - blue) / divisor, others) + 6 * distance
    # Each colour as a function of the hue: 1 at its own sixth of the circle and the two next to it.
    sixths = ops.concat([ops.remainder(hue + n, 6) for n in (5, 3, 1)], 1)
    return value - chroma * ops.clip(ops.minimum(sixths, 4 - sixths), 0.0, 1.0)


# How often a rectangle is drawn at most.
_TRIES = 10


def each(x: Tensor) -> Shape:
    """The shape of one number for each example, which broadcasts to x."""
    return (x.shape[0], *(1,) * (x.rank - 1))


def chosen(scope: Scope, x: Tensor, probability: float) -> Tensor:
    """True for some examples, bool [batch, 1, ...]."""
    return scope.bernoulli(each(x), probability) > 0


def below(scope: Scope, shape: Shape, count: int | Tensor) -> Tensor:
    """Random whole numbers from 0 to count - 1, int64; the count is float32 if it is a tensor."""
    return ops.cast(scope.uniform(shape, dtype=float32) * count, int64)


def positions(x: Tensor, axis: int, count: int | None = None) -> Tensor:
    """0, 1, ... along an axis, as many as it has or `count`: [1, ..., count, ..., 1]."""
    (extent,) = static(x.shape[axis : axis + 1])
    count = extent if count is None else count
    return ops.reshape(
        ops.arange(count, int64), tuple(count if n == axis else 1 for n in range(x.rank))
    )


def _cropped(scope: Scope, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """A part of each example at a random position along the axes after the channels."""
    for axis, size in enumerate(sizes, 2):
        (extent,) = static(x.shape[axis : axis + 1])
        if size < extent:
            shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            start = below(scope, each(x), extent - size + 1)
            indices = ops.broadcast_to(start + positions(x, axis, size), shape)
            x = ops.take_along_axis(x, indices, axis)
    return x


def _further_axes(layer: Layer, x: Tensor) -> int:
    """The number of axes after the channels; ShapeError unless it is 1, 2 or 3."""
    if x.rank not in (3, 4, 5):
        raise no_images(layer, x)
    return x.rank - 2
