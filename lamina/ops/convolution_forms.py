"""How convolutions are computed: where channels lie, and windows as views.

Neither windows nor padding are ever stored. A convolution is a contraction over windows, and so are
both of its gradients; where each channel has windows of its own, a contraction would have one row
and one column, and a loop over windows does the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

from lamina.graph import Attributes, Tensor
from lamina.ops.broadcast import broadcast_to, sum_axes
from lamina.ops.linalg import contract
from lamina.ops.movement import reshape, transpose
from lamina.ops.windows import Slope, Window, shear, windows
from lamina.program.target import Target
from lamina.shapes import Shape, static

Pairs = tuple[tuple[int, int], ...]
Labels = tuple[str, ...]


@final
class Axes:
    """The labels of a convolution's axes, and its hyper-parameters.

    `b` is the batch, `g` the group, `c` and `o` the channels of a group of the original and of the
    convolved tensor, `p` are places of the tensor that is made, `w` elements of the window.
    """

    def __init__(self, weight_shape: Shape, attributes: Attributes) -> None:
        self.strides: tuple[int, ...] = tuple(attributes["strides"])
        self.dilations: tuple[int, ...] = tuple(attributes["dilations"])
        self.padding: Pairs = tuple((low, high) for low, high in attributes["padding"])
        self.groups: int = attributes["groups"]
        self.sizes = static(weight_shape[2:])
        self.rank = len(self.sizes)
        self.places = tuple(f"p{n}" for n in range(self.rank))
        self.elements = tuple(f"w{n}" for n in range(self.rank))
        self.weight_shape = static(weight_shape)
        # A weight without them has too few axes, which the shape rule says.
        self.outputs, self.inputs = (*self.weight_shape, 0, 0)[:2]

    @property
    def along(self) -> list[Window]:
        """The windows along each axis of the original tensor."""
        rows = zip(self.sizes, self.strides, self.dilations, self.padding, strict=True)
        return [
            Window(size, stride, dilation, low, high)
            for size, stride, dilation, (low, high) in rows
        ]

    def is_loop(self, target: Target) -> bool:
        """Whether it is no contraction: each channel has its own windows and one result."""
        depthwise = self.groups > 1 and self.inputs == 1 and self.outputs == self.groups
        return depthwise and target.depthwise_loops

    def form(self, target: Target) -> Form:
        """How it is computed on a target."""
        return _ChannelsLast(self) if target.channels_last else _ChannelsFirst(self)

    def labels(self, *names: str) -> Labels:
        """The labels, without `"g"` if there is one group."""
        return tuple(name for name in names if name != "g" or self.groups > 1)

    def grouped(self, weight: Tensor) -> Tensor:
        """The weight with an axis of groups in front, if there are several."""
        if self.groups == 1:
            return weight
        each = self.outputs // self.groups
        return reshape(weight, (self.groups, each, self.inputs, *self.sizes))


class Form(ABC):
    """The order of axes in which a convolution is computed."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.weight_labels = axes.labels("g", "o", "c", *axes.elements)

    @abstractmethod
    def arranged(self, x: Tensor) -> Tensor:
        """The tensor in this order, with an axis of groups if there are several."""

    @abstractmethod
    def restored(self, x: Tensor) -> Tensor:
        """The way back: [batch, channels, places...]."""

    @abstractmethod
    def labels(self, channel: str) -> Labels:
        """Of an arranged tensor with such channels."""

    @abstractmethod
    def window_labels(self, channel: str) -> Labels:
        """Of its windows."""

    @abstractmethod
    def gathered(self, x: Tensor) -> Tensor:
        """The windows of the original tensor."""

    @abstractmethod
    def spread(self, y: Tensor, extents: Sequence[int]) -> Tensor:
        """For each place of the original tensor the places that saw it, by elements."""

    @abstractmethod
    def _by_channel(self, seen: Tensor, weight: Tensor) -> Tensor:
        """Of each channel the sum over its own window."""

    @abstractmethod
    def _weight_by_channel(self, seen: Tensor, arranged: Tensor) -> Tensor:
        """Of each channel the sum over all places of window times result."""

    @property
    @abstractmethod
    def _weight_order(self) -> Labels:
        """In which the gradient of a weight is computed."""

    def applied(self, seen: Tensor, weight: Tensor, target: Target, given: str) -> Tensor:
        """The contraction of windows with a weight: [batch, channels, places...].

        Args:
            seen: windows, from `gathered` or `spread`.
            weight: of the convolution.
            target: for which it is.
            given: the channels that the windows have, `"c"` or `"o"`; the result has the others.
        """
        if self.axes.is_loop(target):
            return self.restored(self._by_channel(seen, weight))
        left, output = self.window_labels(given), self.labels("o" if given == "c" else "c")
        own = self.axes.grouped(weight)
        return self.restored(contract(seen, own, left, self.weight_labels, output))

    def weight_gradient(self, original: Tensor, convolved: Tensor, target: Target) -> Tensor:
        """The sum over all places of window times result, in the shape of the weight."""
        seen, arranged = self.gathered(original), self.arranged(convolved)
        if self.axes.is_loop(target):
            return self._weight_by_channel(seen, arranged)
        left, right, output = self.window_labels("c"), self.labels("o"), self._weight_order
        gradient = contract(seen, arranged, left, right, output)
        order = [output.index(label) for label in self.weight_labels]
        return reshape(transpose(gradient, order), self.axes.weight_shape)

    def _spread_along(self, arranged: Tensor, first: int, extents: Sequence[int]) -> Tensor:
        """Places that saw those of the original tensor, elements behind all other axes."""
        axes = self.axes
        ones = (1,) * axes.rank
        shape = arranged.shape
        repeated = broadcast_to(reshape(arranged, (*shape, *ones)), (*shape, *axes.sizes))
        slopes = [
            Slope(first + n, arranged.rank + n, extent, 1, -dilation, low, stride)
            for n, (extent, stride, dilation, (low, _)) in enumerate(
                zip(extents, axes.strides, axes.dilations, axes.padding, strict=True)
            )
        ]
        return shear(repeated, slopes)


@final
class _ChannelsLast(Form):
    """[batch, places..., elements..., group, channel]: channels lie side by side."""

    def arranged(self, x: Tensor) -> Tensor:
        moved = transpose(x, [0, *range(2, x.rank), 1])
        if self.axes.groups == 1:
            return moved
        (channels,) = static(x.shape[1:2])
        return reshape(moved, (*moved.shape[:-1], self.axes.groups, channels // self.axes.groups))

    def restored(self, x: Tensor) -> Tensor:
        if self.axes.groups > 1:
            channels = self.axes.groups * static(x.shape[-1:])[0]
            x = reshape(x, (*x.shape[:-2], channels))
        return transpose(x, [0, x.rank - 1, *range(1, x.rank - 1)])

    def labels(self, channel: str) -> Labels:
        return self.axes.labels("b", *self.axes.places, "g", channel)

    def window_labels(self, channel: str) -> Labels:
        return self.axes.labels("b", *self.axes.places, *self.axes.elements, "g", channel)

    def gathered(self, x: Tensor) -> Tensor:
        arranged = self.arranged(x)
        seen = windows(arranged, range(1, 1 + self.axes.rank), self.axes.along)
        return self._channels_behind(seen, arranged.rank)

    def spread(self, y: Tensor, extents: Sequence[int]) -> Tensor:
        arranged = self.arranged(y)
        return self._channels_behind(self._spread_along(arranged, 1, extents), arranged.rank)

    def _channels_behind(self, seen: Tensor, rank: int) -> Tensor:
        """Channels behind the elements of the windows, which were put last."""
        places = 1 + self.axes.rank
        return transpose(seen, [*range(places), *range(rank, seen.rank), *range(places, rank)])

    def _by_channel(self, seen: Tensor, weight: Tensor) -> Tensor:
        axes = self.axes
        last = transpose(axes.grouped(weight), [*range(3, 3 + axes.rank), 0, 1, 2])
        products = seen * reshape(last, (*axes.sizes, axes.groups, 1))
        return sum_axes(products, tuple(range(1 + axes.rank, 1 + 2 * axes.rank)))

    def _weight_by_channel(self, seen: Tensor, arranged: Tensor) -> Tensor:
        rank, ones = self.axes.rank, (1,) * self.axes.rank
        shape = (*arranged.shape[: 1 + rank], *ones, *arranged.shape[-2:])
        summed = sum_axes(seen * reshape(arranged, shape), tuple(range(1 + rank)))
        moved = transpose(summed, [rank, rank + 1, *range(rank)])
        return reshape(moved, self.axes.weight_shape)

    @property
    def _weight_order(self) -> Labels:
        return self.axes.labels("g", *self.axes.elements, "c", "o")


@final
class _ChannelsFirst(Form):
    """[batch, group, channel, places..., elements...], as the user sees them."""

    def arranged(self, x: Tensor) -> Tensor:
        if self.axes.groups == 1:
            return x
        (channels,) = static(x.shape[1:2])
        each = channels // self.axes.groups
        return reshape(x, (x.shape[0], self.axes.groups, each, *x.shape[2:]))

    def restored(self, x: Tensor) -> Tensor:
        if self.axes.groups == 1:
            return x
        channels = self.axes.groups * static(x.shape[2:3])[0]
        return reshape(x, (x.shape[0], channels, *x.shape[3:]))

    def labels(self, channel: str) -> Labels:
        return self.axes.labels("b", "g", channel, *self.axes.places)

    def window_labels(self, channel: str) -> Labels:
        return (*self.labels(channel), *self.axes.elements)

    def gathered(self, x: Tensor) -> Tensor:
        arranged = self.arranged(x)
        return windows(arranged, range(self._first, arranged.rank), self.axes.along)

    def spread(self, y: Tensor, extents: Sequence[int]) -> Tensor:
        return self._spread_along(self.arranged(y), self._first, extents)

    @property
    def _first(self) -> int:
        """The first axis of places."""
        return 2 if self.axes.groups == 1 else 3

    def _by_channel(self, seen: Tensor, weight: Tensor) -> Tensor:
        axes = self.axes
        shape = (axes.groups, 1, *(1,) * axes.rank, *axes.sizes)
        last = range(seen.rank - axes.rank, seen.rank)
        return sum_axes(seen * reshape(weight, shape), tuple(last))

    def _weight_by_channel(self, seen: Tensor, arranged: Tensor) -> Tensor:
        axes = self.axes
        products = seen * reshape(arranged, (*arranged.shape, *(1,) * axes.rank))
        summed = sum_axes(products, (0, *range(self._first, self._first + axes.rank)))
        return reshape(summed, axes.weight_shape)

    @property
    def _weight_order(self) -> Labels:
        return self.weight_labels
