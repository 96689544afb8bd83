"""Layers that rearrange, pad and crop images: [batch, channels, height, width].

They are made of movements, so neither the forward nor the backward pass has scatters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import static
from lamina.checks.kinds import LARGEST, Count, Kind, Misfit, Operands, Whole, entries_of, read_each
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import Tensor, described
from lamina.layers.checks import grouped_channels, image_extents
from lamina.layers.layer import Layer
from lamina.layers.scope import Scope
from lamina.ops.rearranging import PadMode

__all__ = ["ChannelShuffle", "Crop", "Pad", "PixelShuffle", "PixelUnshuffle"]


@frozen_dataclass
class _PairsOfWidths(Kind):
    """A whole number for all axes, or for each of the last axes a pair or one for both sides."""

    least: int = 0

    def read(self, value: Any, operands: Operands = ()) -> Any:
        several = entries_of(value)
        listed = (value,) if several is None else several
        pairs = [entries_of(entry) or (entry, entry) for entry in listed]
        try:
            widths = tuple(read_each(Whole(self.least), pair) for pair in pairs)
        except Misfit:
            widths = ()
        if not widths or any(len(pair) != 2 for pair in widths):
            least = "" if self.least else " of at least 0"
            raise Misfit(
                f"whole numbers{least}, two for each axis",
                "{name}=((1, 1), (0, 2))",
                advice="For each of the last axes (before, after), in the order of the axes.",
            )
        return widths[0][0] if several is None else widths


Widths = Annotated[int | Sequence[int | tuple[int, int]], _PairsOfWidths()]
SignedWidths = Annotated[int | Sequence[int | tuple[int, int]], _PairsOfWidths(-LARGEST)]


@frozen_dataclass
class PixelShuffle(Layer):
    """Channels become pixels: factor^2 channels become one channel of a larger image.

    Takes any dtype [batch, channels * factor^2, height, width] and gives
    [batch, channels, height * factor, width * factor]. After Shi, Caballero, Huszar, Totz, Aitken,
    Bishop, Rueckert, Wang: Real-time single image and video super-resolution using an efficient
    sub-pixel convolutional neural network (2016).

    Args:
        factor: the factor by which height and width grow.

    Example:
        >>> lm.PixelShuffle(2)(lm.Input(12, 8, 8)).shape
        (batch, 3, 16, 16)
    """

    factor: Count

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        height, width = image_extents(self, x)
        batch, (channels,) = x.shape[0], static(x.shape[1:2])
        r = self.factor
        if channels % (r * r):
            raise ShapeError(
                "the channels cannot be divided evenly into images",
                facts=(("expected", f"a multiple of {r * r} channels"), ("found", described(x))),
                advice=f"Give the layer before it {r * r} channels for each channel of the result.",
            )
        split = ops.reshape(x, (batch, channels // (r * r), r, r, height, width))
        interleaved = ops.transpose(split, (0, 1, 4, 2, 5, 3))
        return ops.reshape(interleaved, (batch, channels // (r * r), height * r, width * r))


@frozen_dataclass
class PixelUnshuffle(Layer):
    """Pixels become channels: the inverse of `PixelShuffle`.

    Takes any dtype [batch, channels, height * factor, width * factor] and gives
    [batch, channels * factor^2, height, width].

    Args:
        factor: the factor by which height and width shrink.

    Example:
        >>> lm.PixelUnshuffle(2)(lm.Input(3, 16, 16)).shape
        (batch, 12, 8, 8)
    """

    factor: Count

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        height, width = image_extents(self, x)
        batch, (channels,) = x.shape[0], static(x.shape[1:2])
        r = self.factor
        if height % r or width % r:
            raise ShapeError(
                "height and width cannot be divided evenly",
                facts=(("expected", f"multiples of {r}"), ("found", described(x))),
                advice="Pad the image with lm.Pad, or crop it with lm.Crop.",
            )
        split = ops.reshape(x, (batch, channels, height // r, r, width // r, r))
        separated = ops.transpose(split, (0, 1, 3, 5, 2, 4))
        return ops.reshape(separated, (batch, channels * r * r, height // r, width // r))


@frozen_dataclass
class ChannelShuffle(Layer):
    """Channels in another order: the first of each group, then the second of each, and so on.

    Takes any dtype [batch, channels, ...] and gives the same shape. After Zhang, Zhou, Lin, Sun:
    ShuffleNet (2018).

    Args:
        groups: the number of groups of consecutive channels; their number divides the channels.

    Example:
        >>> y = lm.ChannelShuffle(2)(lm.Input(12, 8, 8))
    """

    groups: Count

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        split = ops.reshape(x, (x.shape[0], *grouped_channels(x, self.groups), *x.shape[2:]))
        return ops.reshape(ops.transpose(split, (0, 2, 1, *range(3, split.rank))), x.shape)


@frozen_dataclass
class Pad(Layer):
    """Adds elements before and after the tensor's own, along the last axes.

    Takes any dtype [batch, ...].

    Args:
        widths: pairs for the last axes, in their order, (how many before, how many after),
            or one number for both: `((1, 1), (0, 2))` for height and width. A single number is
            for both sides of every axis after the channels. In mode `"constant"` a negative number
            removes elements.
        mode: the new elements. `"constant"`: `value`; `"reflect"`: mirrored at the first and the
            last element, which are not repeated; `"replicate"`: the first and the last element;
            `"circular"`: the elements at the other end.
        value: the value of the new elements in mode `"constant"`.

    Example:
        >>> lm.Pad(((1, 1), (0, 2)))(lm.Input(3, 8, 8)).shape
        (batch, 3, 10, 10)
    """

    widths: SignedWidths
    _: KW_ONLY
    mode: PadMode = "constant"
    value: float = 0.0

    def __post_init__(self) -> None:
        listed = (self.widths,) if isinstance(self.widths, int) else self.widths
        ends = [(width,) if isinstance(width, int) else width for width in listed]
        negative = any(min(pair) < 0 for pair in ends)
        if negative and self.mode != "constant":
            raise DefinitionError(
                'negative widths apply to mode="constant" only',
                facts=(("widths", str(self.widths)), ("mode", repr(self.mode))),
                advice="Remove elements with Crop, then pad.",
            )

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return ops.pad_with(x, pairs_of_widths(self, self.widths, x), self.mode, self.value)


@frozen_dataclass
class Crop(Layer):
    """Removes elements at both ends of the last axes.

    Takes any dtype [batch, ...].

    Args:
        widths: pairs for the last axes, in their order, (how many at the front, how many
            at the end) or one number for both, as for `Pad`. A single number is for both sides of
            every axis after the channels.

    Example:
        >>> lm.Crop(((1, 1), (0, 2)))(lm.Input(3, 8, 8)).shape
        (batch, 3, 6, 6)
    """

    widths: Widths

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        key: list[slice] = []
        for dim, (front, end) in zip(x.shape, pairs_of_widths(self, self.widths, x), strict=True):
            if isinstance(dim, int) and front + end >= dim:
                raise ShapeError(
                    "a cropped axis would be empty",
                    facts=(("widths", f"{front} and {end}"), ("found", described(x))),
                    advice="Crop fewer elements than the axis has.",
                )
            key.append(slice(front, dim - end) if isinstance(dim, int) else slice(None))
        return x[tuple(key)]


def pairs_of_widths(layer: Layer, widths: Widths, x: Tensor) -> list[tuple[int, int]]:
    """The widths for all axes, 0 for the batch; ShapeError if there are fewer axes than widths."""
    if isinstance(widths, int):
        if x.rank < 3:
            raise _too_few_axes(layer, "[batch, channels, ...]", x)
        return [(0, 0), (0, 0), *((widths, widths),) * (x.rank - 2)]
    if len(widths) >= x.rank:
        raise _too_few_axes(layer, f"{len(widths)} axes after the batch", x)
    pairs = [(width, width) if isinstance(width, int) else width for width in widths]
    return [*((0, 0),) * (x.rank - len(pairs)), *pairs]


def _too_few_axes(layer: Layer, expected: str, x: Tensor) -> ShapeError:
    return ShapeError(
        f"{type(layer).__name__} has widths for more axes than the tensor has",
        facts=(("expected", expected), ("found", described(x))),
        advice="Widths belong to the last axes; the batch has none.",
    )
