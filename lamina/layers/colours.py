"""Layers that change the colours of training images at random, in training mode only."""

from __future__ import annotations

from typing import Annotated

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import float32
from lamina.checks.kinds import NotNegative, Number, Positive
from lamina.errors import ShapeError
from lamina.graph import Tensor, described
from lamina.layers.augmentation import Probability, chosen, each
from lamina.layers.checks import image_extents, require_float
from lamina.layers.layer import Layer
from lamina.layers.scope import Scope

__all__ = ["ColourJitter", "RandomGreyscale"]


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
    """Red, green and blue of the same value and saturation (HSV), with another hue.

    Smith: Color gamut transform pairs (1978). A distance of 1 is once around the colour circle.
    """
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
