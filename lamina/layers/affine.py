"""Layers that rotate, move, scale and shear training images at random, in training mode only."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal, final

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Dim, float32
from lamina.checks.kinds import Kind, Misfit, NotNegative, Number, Operands
from lamina.graph import Tensor
from lamina.layers.augmentation import Ordered
from lamina.layers.checks import image_extents, require_float
from lamina.layers.layer import Layer
from lamina.layers.scope import Scope

__all__ = ["RandomAffine", "RandomRotation"]

_Mode = Literal["nearest", "bilinear", "bicubic"]
_Padding = Literal["zeros", "border", "reflect"]


@final
@frozen_dataclass
class _Degrees(Kind):
    """An angle that is no share of a circle: 0, or at least 1 degree."""

    def read(self, value: Any, operands: Operands = ()) -> float:
        degrees = Number("[0, inf)").read(value)
        if not 0.0 < degrees < 1.0:
            return degrees
        raise Misfit(
            "a number of degrees, 0 or at least 1",
            "{name} >= 1",
            advice=f"Write RandomRotation({round(360.0 * degrees, 6)}) for a share of a circle, as "
            f"Keras' factor is. RandomAffine(degrees={degrees}) takes less than a degree.",
        )


@frozen_dataclass(kw_only=True)
class RandomAffine(Layer):
    """Rotates, scales, shears and moves each image at random; does nothing in inference.

    Takes f32 or f64 [batch, channels, height, width]. About its centre an image is sheared, scaled
    and rotated, and then moved, as by torchvision's `RandomAffine`; all numbers are uniform. Pixels
    are read by `lm.ops.grid_sample`.

    Args:
        degrees: the greatest angle of rotation, in both directions.
        shift: the greatest distance along each axis, as a share of the axis; may be a fraction.
        scale: the least and the greatest factor of the image's size.
        shear: the greatest angle by which columns are slanted, in degrees.
        mode: `"bilinear"`, `"nearest"` or `"bicubic"`: how pixels are read between pixels.
        padding: pixels from outside the image: `"zeros"`, `"border"` or `"reflect"`.

    Example:
        >>> y = lm.RandomAffine(degrees=10, shift=0.1, scale=(0.9, 1.1))(lm.Input(3, 32, 32))
    """

    degrees: NotNegative = 0.0
    shift: NotNegative = 0.0
    scale: Annotated[tuple[float, float], Ordered(Number("(0, inf)"), "(0.9, 1.1)")] = (1.0, 1.0)
    shear: Annotated[float, Number("[0, 90)")] = 0.0
    mode: _Mode = "bilinear"
    padding: _Padding = "zeros"

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return _changed(self, scope, x, self)


@frozen_dataclass
class RandomRotation(Layer):
    """Rotates each image about its centre by a random angle; does nothing in inference.

    Takes f32 or f64 [batch, channels, height, width]. As `RandomRotation` of torchvision, which
    reads the nearest pixel by default; here pixels are interpolated.

    Args:
        degrees: the greatest angle, in both directions: 0, or 1 and more. Keras' `factor` is
            a share of a circle instead, and 360 * factor are the degrees.
        mode, padding: the arguments of `RandomAffine`.

    Example:
        >>> y = lm.RandomRotation(15)(lm.Input(1, 28, 28))
    """

    degrees: Annotated[float, _Degrees()]
    _: KW_ONLY
    mode: _Mode = "bilinear"
    padding: _Padding = "zeros"

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        same = RandomAffine(degrees=self.degrees, mode=self.mode, padding=self.padding)
        return _changed(self, scope, x, same)


def _changed(layer: Layer, scope: Scope, x: Tensor, options: RandomAffine) -> Tensor:
    """The image read through an affine map, or x alone in inference mode."""
    height, width = image_extents(layer, x)
    require_float(layer, x, "Put lm.Rescale(1 / 255) before it.")
    if not scope.training:
        return x
    grid = _grid(options, scope, x.shape[0], height, width)
    # With 8 or 11 bits, positions would be too coarse.
    wide = float32 if x.dtype.is_half else x.dtype
    read = ops.grid_sample(ops.cast(x, wide), ops.cast(grid, wide), options.mode, options.padding)
    return ops.cast(read, x.dtype)


def _grid(options: RandomAffine, scope: Scope, batch: Dim, height: int, width: int) -> Tensor:
    """Pixels' positions in the image, x before y, from -1 to 1, f32[batch, height, width, 2]."""

    def drawn(low: float, high: float) -> Tensor:
        return scope.uniform((batch, 1, 1), low, high, dtype=float32)

    radians = math.radians(options.degrees)
    angle, factor = drawn(-radians, radians), drawn(*options.scale)
    slant = ops.tan(drawn(-math.radians(options.shear), math.radians(options.shear)))
    # In pixels from the centre, moved back. These are no matrix products, since mixed precision
    # would round their operands.
    across = _from_centre(width) - drawn(-options.shift, options.shift) * width
    along = _from_centre(height)[:, None] - drawn(-options.shift, options.shift) * height
    # Rotated and scaled back, then sheared back.
    cosine, sine = ops.cos(angle) / factor, ops.sin(angle) / factor
    across, along = cosine * across + sine * along, cosine * along - sine * across
    across = across - slant * along
    return ops.stack([across * (2 / width), along * (2 / height)], 3)


def _from_centre(extent: int) -> Tensor:
    """The positions of pixels, 0 for the centre of the image."""
    return ops.constant(np.arange(extent) - (extent - 1) / 2, float32)
