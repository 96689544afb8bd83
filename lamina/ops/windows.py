"""Windows: the neighbourhoods of places, as a view.

`shear` is the one movement behind convolution, pooling and all their gradients: it slides the
places of a window's elements along another axis. It is its own kind of inverse, so gradients of
windows are windows again, and nothing is ever scattered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from lamina.calls import checked_as_given as checked
from lamina.errors import ShapeError
from lamina.graph import Attributes, Op, Sample, Tensor, apply, described, located
from lamina.graph.attributes import Axis, Element, Fields, Many, whole
from lamina.graph.kinds import LARGEST, Flag, entries_of
from lamina.ops.arguments import as_tensor, read, refused
from lamina.ops.broadcast import broadcast_to, sum_axes
from lamina.ops.lowering_rules import Coordinates, Movement, Pull, Sliding, select_within
from lamina.ops.movement import reshape, transpose
from lamina.ops.slicing import pad, slice_axis
from lamina.program.scalar import Bound, Literal, Scalar
from lamina.shapes import Array, Dim, DType, Shape, static

# shear --------------------------------------------------------------------------------------------


# How far windows may reach: places of their elements still fit 64 bits.
LARGEST_WINDOW = 2**31


class Slope(NamedTuple):
    """Where the elements of windows lie along one axis.

    The element `w` of the window at place `p` is at `(scale * p + slope * w + offset) / divisor`,
    if that is a whole number and there is such an element.

    Attributes:
        place: the axis of the places.
        window: the axis of the elements of a window.
        extent: how many places there are.
        scale, slope, offset, divisor: whole numbers; scale and divisor are above zero.
    """

    place: int
    window: int
    extent: int
    scale: int = 1
    slope: int = 1
    offset: int = 0
    divisor: int = 1


_SLOPE = Fields(
    {
        "place": Axis(),
        "window": Axis(),
        "extent": whole(0),
        "scale": whole(1),
        "slope": whole(),
        "offset": whole(),
        "divisor": whole(1),
    }
)


def _slopes(node: Tensor) -> list[Slope]:
    # A definition that was read from a file has plain tuples.
    return [Slope._make(numbers) for numbers in node.attributes["slopes"]]


def _extent(x: Tensor, axis: int) -> int:
    (extent,) = static((x.shape[axis],))
    return extent


def _infer_shear(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    (x,) = operands
    slopes = [Slope._make(numbers) for numbers in attributes["slopes"]]
    axes = [axis for one in slopes for axis in (one.place, one.window)]
    if len(set(axes)) != len(axes):
        raise ShapeError(
            "shear: each slope needs two axes of its own",
            facts=(("tensor", described(x)), ("axes", str(axes))),
            advice=f"Name each axis from 0 to {x.rank - 1} at most once.",
        )
    shape = list(x.shape)
    for one in slopes:
        _, window = static((shape[one.place], shape[one.window]))
        farthest = one.scale * one.extent + abs(one.slope) * window + abs(one.offset)
        if farthest > LARGEST or one.divisor * _extent(x, one.place) > LARGEST:
            raise ShapeError("shear: the places are too far away", facts=(("slope", str(one)),))
        shape[one.place] = one.extent
    return tuple(shape), x.dtype


def _shear_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    (x,) = result.operands
    turned: list[Slope] = []
    for one in _slopes(result):
        (extent,) = static((x.shape[one.place],))
        numbers = (one.divisor, -one.slope, -one.offset, one.scale)
        turned.append(Slope(one.place, one.window, extent, *numbers))
    return (shear(upstream, turned),)


def _shear_reference(x: Array, slopes: tuple[Slope, ...], fill: float) -> Array:
    result = x
    for numbers in slopes:
        result = _sheared(result, Slope._make(numbers), fill)
    return result


def _sheared(x: Array, one: Slope, fill: float) -> Array:
    extent, size = static((x.shape[one.place], x.shape[one.window]))
    elements = np.arange(size)
    starts = one.scale * np.arange(one.extent) + one.offset
    places: Array = np.add.outer(starts, one.slope * elements)
    inside = (places % one.divisor == 0) & (places >= 0) & (places // one.divisor < extent)
    moved = np.moveaxis(x, (one.place, one.window), (0, 1))
    if extent:
        values = moved[np.where(inside, places // one.divisor, 0), elements]
    else:
        values = np.zeros((*places.shape, *moved.shape[2:]), x.dtype)
    mask = inside.reshape(inside.shape + (1,) * (moved.ndim - 2))
    return np.moveaxis(np.where(mask, values, x.dtype.type(fill)), (0, 1), (one.place, one.window))


def _shear_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    shape = static(node.operands[0].shape)
    places = list(coordinates)
    bounds: list[Bound] = []
    for one in _slopes(node):
        element = coordinates[one.window] * one.slope
        place = coordinates[one.place] * one.scale + element + one.offset
        bounds.append(Bound(place, 0, (shape[one.place] - 1) * one.divisor + 1))
        if one.divisor > 1:
            bounds.append(Bound(place % one.divisor, 0, 1))
        places[one.place] = place // one.divisor
    fill = Literal(node.attributes["fill"], node.dtype)
    if 0 in shape:
        return fill
    return select_within(tuple(bounds), pull(0, tuple(places)), fill)


def _shear_slides(node: Tensor, coordinates: Coordinates) -> tuple[Sliding, ...]:
    shape = static(node.operands[0].shape)
    return tuple(
        Sliding(
            *(coordinates[one.place], coordinates[one.window]),
            *(one.scale, one.slope, one.offset, one.divisor, shape[one.place]),
        )
        for one in _slopes(node)
    )


SHEAR = Op(
    "shear",
    _infer_shear,
    _shear_gradient,
    _shear_reference,
    Movement(_shear_scalar, slides=_shear_slides),
    (
        Sample(((2, 7, 3),), {"slopes": (Slope(1, 2, 5),), "fill": 0.0}),
        Sample(((6, 1, 3),), {"slopes": (Slope(0, 2, 4, 2, 1, -1),), "fill": 0.0}),
        Sample(((4, 3, 2, 2),), {"slopes": (Slope(0, 2, 9, 1, -1, 1, 2),), "fill": 0.0}),
        Sample(
            ((5, 4, 2, 3),),
            {"slopes": (Slope(0, 2, 3, 2, 2, -1), Slope(1, 3, 4, 1, 1, -1)), "fill": -1.5},
        ),
        Sample(((0, 3),), {"slopes": (Slope(0, 1, 2),), "fill": 0.0}),
    ),
    attributes={"slopes": Many(_SLOPE), "fill": Element()},
)


def shear(x: Tensor, slopes: Sequence[Slope], fill: float = 0.0) -> Tensor:
    """Each place's elements from along an axis: result[p, w] is x[(a p + b w + c) / d, w].

    Args:
        x: any tensor.
        slopes: for each pair of axes a, b, c and d, and how many places there are.
        fill: what stands where there is no such element.

    Raises:
        ShapeError: if two slopes name the same axis.
    """
    x = as_tensor(x)
    return apply(SHEAR, x, slopes=tuple(slopes), fill=float(fill))


# Windows ------------------------------------------------------------------------------------------


class _WindowFields(NamedTuple):
    size: int
    stride: int
    dilation: int
    before: int
    after: int
    ceil: bool


WINDOW = Fields(
    {
        "size": whole(1, most=LARGEST_WINDOW),
        "stride": whole(1, most=LARGEST_WINDOW),
        "dilation": whole(1, most=LARGEST_WINDOW),
        "before": whole(0, most=LARGEST_WINDOW),
        "after": whole(0, most=LARGEST_WINDOW),
        "ceil": Flag(),
    }
)


class Window(_WindowFields):
    """The windows along one axis.

    Raises:
        DefinitionError: for a size, stride or dilation below 1, or a padding below 0.

    Attributes:
        size: elements of a window.
        stride: between the places of two windows.
        dilation: between two elements of a window.
        before, after: how many elements of padding there are.
        ceil: whether a last window may reach beyond the padding, if it begins before it (as
            PyTorch's `ceil_mode`).
    """

    __slots__ = ()

    @checked
    def __new__(
        cls,
        size: int,
        stride: int = 1,
        dilation: int = 1,
        before: int = 0,
        after: int = 0,
        ceil: bool = False,
    ) -> Self:
        given = (size, stride, dilation, before, after, ceil)
        return cls._make(read("Window", WINDOW, given))

    @property
    def reach(self) -> int:
        """From the first element to behind the last one."""
        return (self.size - 1) * self.dilation + 1

    def count(self, extent: int) -> int:
        """How many windows there are on an axis; 0 or less if not even one fits."""
        free = extent + self.before + self.after - self.reach
        if free < 0:
            return 0
        count = free // self.stride + 1
        further = self.ceil and free % self.stride != 0
        # It must begin within the elements or the padding before them.
        return count + int(further and count * self.stride < extent + self.before)


def windows(x: Tensor, axes: Sequence[int], along: Sequence[Window], fill: float = 0.0) -> Tensor:
    """All windows of a tensor.

    Args:
        x: any tensor.
        axes: those along which windows lie, counted from the front; they do not depend on the
            batch.
        along: the windows along each.
        fill: the padding.

    Returns:
        The tensor with windows in place of elements: each axis holds the windows' places, and
        behind all axes come, in the same order, those of the windows' elements.

    Raises:
        ShapeError: if no window fits.
    """
    extents = static(tuple(x.shape[axis] for axis in axes))
    for axis, extent, one in zip(axes, extents, along, strict=True):
        if one.count(extent) < 1:
            raise located(
                ShapeError(
                    "no window fits",
                    facts=(
                        ("tensor", described(x)),
                        ("axis", f"{axis}, {one.before} + {extent} + {one.after} elements"),
                        ("window", f"{one.size} elements, from first to last {one.reach}"),
                    ),
                    advice="Use a smaller window, less dilation, or padding.",
                )
            )
    if all(_is_tiling(extent, one) for extent, one in zip(extents, along, strict=True)):
        return _tiles(x, axes, along)
    sizes = tuple(one.size for one in along)
    repeated = broadcast_to(reshape(x, (*x.shape, *(1 for _ in sizes))), (*x.shape, *sizes))
    slopes = [
        Slope(axis, x.rank + number, one.count(extent), one.stride, one.dilation, -one.before)
        for number, (axis, extent, one) in enumerate(zip(axes, extents, along, strict=True))
    ]
    return shear(repeated, slopes, fill)


def windows_of(x: Tensor, along: Sequence[Window]) -> tuple[Window, ...]:
    """What the user gave as the windows along the last axes of a tensor.

    Raises:
        DefinitionError: if it is no sequence of windows, or of more than there are axes.
    """
    entries = entries_of([along] if isinstance(along, Window) else along)
    if entries is None or len(entries) > x.rank:
        raise refused("along", f"ops.Window(...) for each of the last axes, of {x.rank}", along)
    return tuple(Window._make(read("along", WINDOW, entry)) for entry in entries)


def fold(y: Tensor, axes: Sequence[int], along: Sequence[Window], extents: Sequence[int]) -> Tensor:
    """The way back: to each element of the original tensor the sum of what windows have for it.

    Args:
        y: a tensor as `windows` gives it.
        axes, along: as they were given to `windows`.
        extents: of these axes in the original tensor.
    """
    rank = y.rank - len(axes)
    if all(_is_tiling(extent, one) for extent, one in zip(extents, along, strict=True)):
        order: list[int] = []
        shape: list[Dim] = []
        widths: list[tuple[int, int]] = []
        number = dict(zip(axes, range(len(axes)), strict=True))
        for axis in range(rank):
            order.append(axis)
            (dim,), rest = y.shape[axis : axis + 1], 0
            if axis in number:
                (count,), one = static((dim,)), along[number[axis]]
                order.append(rank + number[axis])
                dim, rest = count * one.size, extents[number[axis]] - count * one.size
            shape.append(dim)
            widths.append((0, rest))
        return pad(reshape(transpose(y, order), shape), widths)
    slopes = [
        Slope(axis, rank + number, extent, 1, -one.dilation, one.before, one.stride)
        for number, (axis, extent, one) in enumerate(zip(axes, extents, along, strict=True))
    ]
    return sum_axes(shear(y, slopes), tuple(range(rank, y.rank)))


def _is_tiling(extent: int, one: Window) -> bool:
    """Whether the windows lie side by side, without padding."""
    inside = one.count(extent) * one.size <= extent
    return one.stride == one.size and one.dilation == 1 and one.before == 0 and inside


def _tiles(x: Tensor, axes: Sequence[int], along: Sequence[Window]) -> Tensor:
    """Windows that lie side by side need no more than another shape."""
    cut: list[Dim] = []
    order: list[int] = []
    of_axis = dict(zip(axes, along, strict=True))
    for axis, dim in enumerate(x.shape):
        order.append(len(cut))
        one = of_axis.get(axis)
        if one is None or not isinstance(dim, int):
            cut.append(dim)
        else:
            count = one.count(dim)
            x = slice_axis(x, axis, 0, count * one.size)
            cut += [count, one.size]
    elements = [order[axis] + 1 for axis in axes]
    return transpose(reshape(x, cut), [*order, *elements])


OPS = (SHEAR,)
