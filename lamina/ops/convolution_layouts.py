"""The layout in which convolutions are computed: channels last, windows as views.

Neither windows nor padding are stored: a convolution and both of its gradients are implicit GEMMs,
contractions over windows. The contraction of a depthwise convolution would have M = N = 1 and fill
no tile of registers, so it is a loop over windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from lamina.base.shapes import Shape, static
from lamina.graph import Attributes, Tensor
from lamina.ops.broadcast import broadcast_to, sum_axes
from lamina.ops.linalg import contract
from lamina.ops.movement import reshape, transpose
from lamina.ops.windows import Slope, Window, shear, windows

Pairs = tuple[tuple[int, int], ...]
Labels = tuple[str, ...]


@final
class Axes:
    """The labels of a convolution's axes, and its hyper-parameters.

    `b` is the batch, `g` the group, `c` and `o` the channels of a group of the original and of the
    convolved tensor, `p` are output positions, `w` kernel elements.
    """

    def __init__(self, weight_shape: Shape, attributes: Attributes) -> None:
        self.strides: tuple[int, ...] = tuple(attributes["strides"])
        self.dilations: tuple[int, ...] = tuple(attributes["dilations"])
        self.padding: Pairs = tuple((low, high) for low, high in attributes["padding"])
        self.groups: int = attributes["groups"]
        self.sizes = static(weight_shape[2:])
        self.rank = len(self.sizes)
        self.positions = tuple(f"p{n}" for n in range(self.rank))
        self.elements = tuple(f"w{n}" for n in range(self.rank))
        self.weight_shape = static(weight_shape)
        # The shape rule refuses a weight with too few axes.
        self.outputs, self.inputs = (*self.weight_shape, 0, 0)[:2]

    @property
    def along(self) -> list[Window]:
        """The windows along each axis of the original tensor."""
        rows = zip(self.sizes, self.strides, self.dilations, self.padding, strict=True)
        return [Window(size, stride, dilation, *pair) for size, stride, dilation, pair in rows]

    def counts(self, extents: Sequence[int]) -> tuple[int, ...]:
        """The number of windows along each axis of an original tensor of these extents."""
        return tuple(window.count(n) for n, window in zip(extents, self.along, strict=True))

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel has its own kernel."""
        return self.groups > 1 and self.inputs == 1 and self.outputs == self.groups

    def labels(self, *names: str) -> Labels:
        """The labels; without `"g"` if there is one group."""
        return tuple(name for name in names if name != "g" or self.groups > 1)

    def grouped(self, weight: Tensor) -> Tensor:
        """The weight; of several groups as [groups, outputs / groups, inputs, ...]."""
        if self.groups == 1:
            return weight
        group_outputs = self.outputs // self.groups
        return reshape(weight, (self.groups, group_outputs, self.inputs, *self.sizes))


@final
class Layout:
    """[batch, positions..., elements..., group, channel]: channels are contiguous.

    So vectors of channels are full for any window.
    """

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.weight_labels = axes.labels("g", "o", "c", *axes.elements)

    def arranged(self, x: Tensor) -> Tensor:
        """The tensor in this order; with an axis of groups if there are several."""
        moved = transpose(x, [0, *range(2, x.rank), 1])
        if self.axes.groups == 1:
            return moved
        (channels,) = static(x.shape[1:2])
        return reshape(moved, (*moved.shape[:-1], self.axes.groups, channels // self.axes.groups))

    def restored(self, x: Tensor) -> Tensor:
        """The inverse of `arranged`: [batch, channels, positions...]."""
        if self.axes.groups > 1:
            channels = self.axes.groups * static(x.shape[-1:])[0]
            x = reshape(x, (*x.shape[:-2], channels))
        return transpose(x, [0, x.rank - 1, *range(1, x.rank - 1)])

    def labels(self, channel: str) -> Labels:
        """The labels of an arranged tensor whose channels have this label."""
        return self.axes.labels("b", *self.axes.positions, "g", channel)

    def window_labels(self, channel: str) -> Labels:
        """The labels of the windows of such a tensor."""
        return self.axes.labels("b", *self.axes.positions, *self.axes.elements, "g", channel)

    def windows_of(self, x: Tensor) -> Tensor:
        """The windows of the original tensor."""
        arranged = self.arranged(x)
        windowed = windows(arranged, range(1, 1 + self.axes.rank), self.axes.along)
        return self._channels_last(windowed, arranged.rank)

    def transposed_windows_of(self, y: Tensor, extents: Sequence[int]) -> Tensor:
        """The windows of the transposed convolution (col2im), over positions of the original.

        For each position of the original tensor and each kernel element it has an element of y: the
        one whose window has that kernel element at that position.
        """
        axes, arranged = self.axes, self.arranged(y)
        shape = arranged.shape
        ones = (1,) * axes.rank
        repeated = broadcast_to(reshape(arranged, (*shape, *ones)), (*shape, *axes.sizes))
        slopes = [
            Slope(1 + n, arranged.rank + n, extent, 1, -dilation, low, stride)
            for n, (extent, stride, dilation, (low, _)) in enumerate(
                zip(extents, axes.strides, axes.dilations, axes.padding, strict=True)
            )
        ]
        return self._channels_last(shear(repeated, slopes), arranged.rank)

    def _channels_last(self, windowed: Tensor, rank: int) -> Tensor:
        """Moves the channels after the kernel elements, which are the last axes."""
        first = 1 + self.axes.rank
        order = [*range(first), *range(rank, windowed.rank), *range(first, rank)]
        return transpose(windowed, order)

    def applied(self, windowed: Tensor, weight: Tensor, channels: str) -> Tensor:
        """The contraction of windows with a weight: [batch, channels, positions...].

        `channels` labels the channels of the windows, `"c"` or `"o"`; the result has the other.
        """
        axes, grouped = self.axes, self.axes.grouped(weight)
        if axes.is_depthwise:
            # For each channel the sum over its window.
            last = transpose(grouped, [*range(3, 3 + axes.rank), 0, 1, 2])
            products = windowed * reshape(last, (*axes.sizes, axes.groups, 1))
            sums = sum_axes(products, tuple(range(1 + axes.rank, 1 + 2 * axes.rank)))
            return self.restored(sums)
        left, output = self.window_labels(channels), self.labels("o" if channels == "c" else "c")
        return self.restored(contract(windowed, grouped, left, self.weight_labels, output))

    def weight_gradient(self, original: Tensor, convolved: Tensor) -> Tensor:
        """The sum over all positions of window times upstream, in the shape of the weight."""
        windowed, arranged = self.windows_of(original), self.arranged(convolved)
        axes, rank = self.axes, self.axes.rank
        if axes.is_depthwise:
            # For each channel the sum over positions of window times upstream.
            shape = (*arranged.shape[: 1 + rank], *(1,) * rank, *arranged.shape[-2:])
            summed = sum_axes(windowed * reshape(arranged, shape), tuple(range(1 + rank)))
            moved = transpose(summed, [rank, rank + 1, *range(rank)])
            return reshape(moved, axes.weight_shape)
        left, right = self.window_labels("c"), self.labels("o")
        output = axes.labels("g", *axes.elements, "c", "o")
        gradient = contract(windowed, arranged, left, right, output)
        order = [output.index(label) for label in self.weight_labels]
        return reshape(transpose(gradient, order), axes.weight_shape)
