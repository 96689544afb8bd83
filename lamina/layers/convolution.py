"""Convolutions and transposed convolutions in one, two and three dimensions.

The layers of one, two and three dimensions share a base class; `axes` is their number of axes.
"""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import KW_ONLY
from typing import Annotated, Literal, cast

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of, static
from lamina.checks.kinds import Count
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import Tensor, described
from lamina.layers.init import KaimingUniform, Uniform
from lamina.layers.per_axis import (
    ForEachAxis,
    Numbers,
    OfWindows,
    Padding,
    Pairs,
    check_image,
    pairs_of,
)
from lamina.layers.scope import InitializerOption, RegularizerOption, Scope, parameter_of
from lamina.ops.rearranging import PadMode

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]


@frozen_dataclass
class _Convolution(OfWindows, ABC):
    channels: Count
    window: Numbers
    _: KW_ONLY
    stride: Numbers = 1
    padding: Padding = 0
    dilation: Numbers = 1
    groups: Count = 1
    bias: bool = True
    padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros"
    weight_init: InitializerOption = None
    bias_init: InitializerOption = None
    weight_regularizer: RegularizerOption = None
    bias_regularizer: RegularizerOption = None

    def __post_init__(self) -> None:
        self._widths()
        _check_result_groups(self.channels, self.groups)

    def _widths(self) -> tuple[tuple[int, int], ...]:
        """The widths of padding (before, after) of each axis."""
        if self.padding == "valid":
            return ((0, 0),) * self.axes
        if self.padding != "same":
            return pairs_of(self.padding, self.axes)
        sizes, strides, dilations = self._numbers("window", "stride", "dilation")
        if any(stride != 1 for stride in strides):
            raise DefinitionError(
                'padding="same" needs a stride of 1',
                facts=(("stride", repr(self.stride)),),
                advice="Give the padding as a number, such as padding=1.",
            )
        widths = ((size - 1) * dilation for size, dilation in zip(sizes, dilations, strict=True))
        # For even windows the extra element is padded at the end, as in PyTorch.
        return tuple((width // 2, width - width // 2) for width in widths)

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        inputs = _inputs(self, x)
        sizes, strides, dilations = self._numbers("window", "stride", "dilation")
        shape = (self.channels, inputs // self.groups, *sizes)
        weight = parameter_of(self, scope, "weight", shape, _USUAL)
        widths = self._widths()
        if self.padding_mode != "zeros":
            mode = cast(PadMode, self.padding_mode)
            x = ops.pad_with(x, ((0, 0), (0, 0), *widths), mode)
            widths = ((0, 0),) * self.axes
        y = ops.conv(x, weight, strides, widths, dilations, self.groups)
        return _with_bias(self, scope, y, inputs // self.groups * size_of(sizes))


_UNEVEN = "the channels cannot be divided into groups"
_MULTIPLES = "The channels of the input and of the result must be multiples of groups."
_USUAL = KaimingUniform(slope=math.sqrt(5.0))


def _check_result_groups(channels: int, groups: int) -> None:
    if channels % groups:
        facts = (("channels", str(channels)), ("groups", str(groups)))
        raise DefinitionError(_UNEVEN, facts=facts, advice=_MULTIPLES)


def _inputs(layer: _Convolution | _TransposedConvolution, x: Tensor) -> int:
    """The number of channels of the input."""
    check_image(layer, x, layer.axes)
    (inputs,) = static(x.shape[1:2])
    if inputs % layer.groups:
        facts = (("found", described(x)), ("groups", str(layer.groups)))
        raise ShapeError(_UNEVEN, facts=facts, advice=_MULTIPLES)
    return inputs


def _with_bias(
    layer: _Convolution | _TransposedConvolution, scope: Scope, y: Tensor, products: int
) -> Tensor:
    """The result with a number added to each channel; it is a sum of so many products."""
    if not layer.bias:
        return y
    bound = 1.0 / math.sqrt(products)
    bias = parameter_of(layer, scope, "bias", (layer.channels,), Uniform(-bound, bound))
    return y + ops.reshape(bias, (layer.channels, *(1,) * layer.axes))


@frozen_dataclass
class Conv1d(_Convolution):
    """As `Conv2d`, of sequences: f32 or f64 [batch, inputs, length]."""

    axes = 1


@frozen_dataclass
class Conv2d(_Convolution):
    """The convolution of images, plus a bias for each channel.

    Takes f32 or f64 [batch, inputs, height, width] and gives [batch, channels, ...]; with window
    k, stride s, dilation d and padding p before and q after, an extent n becomes
    (n + p + q - d (k - 1) - 1) // s + 1. The weight is [channels, inputs / groups, kh, kw], as
    PyTorch's. After LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document
    recognition (1998).

    Args:
        channels: the number of channels of the result.
        window: the size of a window, a number or one for each axis.
        stride: the distance between windows, a number or one for each axis.
        padding: zeros around, a number, one for each axis, or a pair (before, after) for each;
            `"same"` keeps the extents, `"valid"` means none.
        dilation: the distance between the elements of a window.
        groups: the number of groups of channels; each group of the result is computed from one
            group of the inputs. As many groups as channels make the convolution depthwise.
        bias: whether a number is added to each channel.
        padding_mode: `"zeros"`, `"reflect"`, `"replicate"` or `"circular"`.
        weight_init, bias_init: first values, see `lamina.init`; by default as in PyTorch,
            uniform within 1 / sqrt(inputs / groups * kh * kw).
        weight_regularizer, bias_regularizer: penalties, such as `lm.L2(1e-4)`.

    Example:
        >>> lm.Conv2d(20, 5)(lm.Input(1, 28, 28)).shape
        (batch, 20, 24, 24)
    """

    axes = 2


@frozen_dataclass
class Conv3d(_Convolution):
    """As `Conv2d`, of volumes: f32 or f64 [batch, inputs, depth, height, width]."""

    axes = 3


@frozen_dataclass
class _TransposedConvolution(OfWindows, ABC):
    channels: Count
    window: Numbers
    _: KW_ONLY
    stride: Numbers = 1
    padding: Pairs = 0
    output_padding: Annotated[int | tuple[int, ...], ForEachAxis(0)] = 0
    dilation: Numbers = 1
    groups: Count = 1
    bias: bool = True
    weight_init: InitializerOption = None
    bias_init: InitializerOption = None
    weight_regularizer: RegularizerOption = None
    bias_regularizer: RegularizerOption = None

    def __post_init__(self) -> None:
        further, strides, dilations = self._numbers("output_padding", "stride", "dilation")
        for more, stride, dilation in zip(further, strides, dilations, strict=True):
            if more >= max(stride, dilation):
                raise DefinitionError(
                    "output_padding must be smaller than the stride or the dilation",
                    facts=(
                        ("output_padding", repr(self.output_padding)),
                        ("stride", repr(self.stride)),
                        ("dilation", repr(self.dilation)),
                    ),
                    advice="Several extents become the same one in a convolution with this stride; "
                    "output_padding chooses one of them.",
                )
        _check_result_groups(self.channels, self.groups)

    def _ends(self, strides: list[int]) -> tuple[list[tuple[int, int]], list[int], list[int]]:
        """For each axis the widths cropped, the elements added to its extent, the zeros after."""
        # `stride` consecutive extents become the same one in a convolution with this stride. A
        # larger output_padding crops less, or adds zeros where no window reaches.
        (further,) = self._numbers("output_padding")
        widths: list[tuple[int, int]] = []
        zeros: list[int] = []
        pairs = pairs_of(self.padding, self.axes)
        for axis, (stride, (low, high)) in enumerate(zip(strides, pairs, strict=True)):
            beyond = max(further[axis] - (stride - 1), 0)
            further[axis] -= beyond
            widths.append((low, max(high - beyond, 0)))
            zeros.append(max(beyond - high, 0))
        return widths, further, zeros

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        inputs, each = _inputs(self, x), self.channels // self.groups
        sizes, strides, dilations = self._numbers("window", "stride", "dilation")
        widths, further, zeros = self._ends(strides)
        weight = parameter_of(self, scope, "weight", (inputs, each, *sizes), _USUAL)
        axes = zip(static(x.shape[2:]), sizes, strides, dilations, widths, further, strict=True)
        extents = [
            (n - 1) * stride - low - high + (size - 1) * dilation + 1 + more
            for n, size, stride, dilation, (low, high), more in axes
        ]
        if min(extents) < 1:
            raise ShapeError(
                "the result would be empty",
                facts=(("found", described(x)), ("padding", repr(self.padding))),
                advice="The padding is cropped from the result: use a smaller one.",
            )
        y = ops.conv_transpose(x, weight, extents, strides, widths, dilations, self.groups)
        y = ops.pad(y, ((0, 0), (0, 0), *((0, width) for width in zeros)))
        return _with_bias(self, scope, y, each * size_of(sizes))


@frozen_dataclass
class ConvTranspose1d(_TransposedConvolution):
    """As `ConvTranspose2d`, of sequences: f32 or f64 [batch, inputs, length]."""

    axes = 1


@frozen_dataclass
class ConvTranspose2d(_TransposedConvolution):
    """The transposed convolution: each element is spread over a window of the result.

    Takes f32 or f64 [batch, inputs, height, width] and gives [batch, channels, ...]; with window
    k, stride s, dilation d, padding p before and q after, an extent n becomes
    (n - 1) s - p - q + d (k - 1) + 1 + output_padding. The weight is
    [inputs, channels / groups, kh, kw], as PyTorch's. After Zeiler, Krishnan, Taylor, Fergus:
    Deconvolutional networks (CVPR 2010).

    Args:
        channels, window, dilation, groups, bias: the arguments of `Conv2d`.
        stride: the distance between windows in the result.
        padding: widths cropped from the result, a number, one for each axis, or a pair.
        output_padding: the number of elements added at the end of the result, less than the stride
            or the dilation.
        weight_init, bias_init, weight_regularizer, bias_regularizer: the arguments of `Conv2d`.

    Example:
        >>> lm.ConvTranspose2d(16, 4, stride=2, padding=1)(lm.Input(32, 7, 7)).shape
        (batch, 16, 14, 14)
    """

    axes = 2


@frozen_dataclass
class ConvTranspose3d(_TransposedConvolution):
    """As `ConvTranspose2d`, of volumes: f32 or f64 [batch, inputs, depth, height, width]."""

    axes = 3
