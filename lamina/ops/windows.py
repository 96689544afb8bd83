"""Windows: views of the elements under a kernel, for each output position.

`shear` is the only movement in convolution, pooling and their gradients: it shifts the index along
one axis by the kernel element, which is the index along another axis. The gradient of a shear is a
shear with other numbers. So gradients of windows are windows too, and nothing is scattered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from lamina.base.shapes import Array, Dim, static
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import LARGEST, Flag, entries_of
from lamina.checks.origin import located
from lamina.errors import ShapeError
from lamina.graph import Sample, Tensor, apply, described, topological
from lamina.graph.attributes import Axis, Element, Fields, Many, whole
from lamina.ops.arguments import as_tensor, read, refused
from lamina.ops.broadcast import broadcast_to, sum_axes
from lamina.ops.lowering_rules import Coordinates, Movement, Pull, select_within
from lamina.ops.movement import reshape, transpose
from lamina.ops.records import Gradients, Typed, make_op
from lamina.ops.slicing import pad, slice_axis
from lamina.program.scalar import Bound, Literal, Scalar
from lamina.program.windows import Sliding, sliding_at

# The largest window, stride, dilation and padding. Indices of elements still fit into 64 bits.
LARGEST_WINDOW = 2**31


class Slope(NamedTuple):
    """The indices of the elements of windows along one axis.

    Kernel element `w` at output position `p` has the index
    `(stride * p + dilation * w + offset) / divisor`, if that is a whole number within the axis.

    Attributes:
        position: the axis of output positions.
        element: the axis of kernel elements.
        extent: the number of output positions.
        stride, dilation, offset, divisor: whole numbers; stride and divisor are above zero.
    """

    position: int
    element: int
    extent: int
    stride: int = 1
    dilation: int = 1
    offset: int = 0
    divisor: int = 1


_SLOPE_KINDS = (Axis(), Axis(), whole(0), whole(1), whole(), whole(), whole(1))
_SLOPE = Fields(dict(zip(Slope._fields, _SLOPE_KINDS, strict=True)), Slope)


def _infer_shear(x: Tensor, slopes: Sequence[Slope], fill: float) -> Typed:
    axes = [axis for slope in slopes for axis in (slope.position, slope.element)]
    if len(set(axes)) != len(axes):
        raise ShapeError(
            "shear: each axis may occur only once in the slopes",
            facts=(("tensor", described(x)), ("axes", str(axes))),
            advice=f"Name each axis from 0 to {x.rank - 1} at most once.",
        )
    shape = list(x.shape)
    for slope in slopes:
        extent, window = static((shape[slope.position], shape[slope.element]))
        farthest = slope.stride * slope.extent + abs(slope.dilation) * window + abs(slope.offset)
        if farthest > LARGEST or slope.divisor * extent > LARGEST:
            raise ShapeError("shear: the indices are too large", facts=(("slope", str(slope)),))
        shape[slope.position] = slope.extent
    return tuple(shape), x.dtype


def _shear_gradient(
    x: Tensor, _: Tensor, upstream: Tensor, slopes: Sequence[Slope], fill: float
) -> Gradients:
    inverse: list[Slope] = []
    for slope in slopes:
        (extent,) = static((x.shape[slope.position],))
        numbers = (slope.divisor, -slope.dilation, -slope.offset, slope.stride)
        inverse.append(Slope(slope.position, slope.element, extent, *numbers))
    return (shear(upstream, inverse),)


def _shear_reference(x: Array, slopes: Sequence[Slope], fill: float) -> Array:
    for slope in slopes:
        extent, size = static((x.shape[slope.position], x.shape[slope.element]))
        elements = np.arange(size)
        starts = slope.stride * np.arange(slope.extent) + slope.offset
        indices: Array = np.add.outer(starts, slope.dilation * elements)
        inside = (indices >= 0) & (indices // slope.divisor < extent)
        inside &= indices % slope.divisor == 0
        moved = np.moveaxis(x, (slope.position, slope.element), (0, 1))
        if extent:
            values = moved[np.where(inside, indices // slope.divisor, 0), elements]
        else:
            values = np.zeros((*indices.shape, *moved.shape[2:]), x.dtype)
        mask = inside.reshape(inside.shape + (1,) * (moved.ndim - 2))
        filled = np.where(mask, values, x.dtype.type(fill))
        x = np.moveaxis(filled, (0, 1), (slope.position, slope.element))
    return x


def _shear_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    shape = static(node.operands[0].shape)
    pulled = list(coordinates)
    bounds: list[Bound] = []
    slopes: tuple[Slope, ...] = node.attributes["slopes"]
    for slope in slopes:
        element = coordinates[slope.element] * slope.dilation
        index = coordinates[slope.position] * slope.stride + element + slope.offset
        bounds.append(Bound(index, 0, (shape[slope.position] - 1) * slope.divisor + 1))
        if slope.divisor > 1:
            bounds.append(Bound(index % slope.divisor, 0, 1))
        pulled[slope.position] = index // slope.divisor
    fill = Literal(node.attributes["fill"], node.dtype)
    if 0 in shape:
        return fill
    return select_within(tuple(bounds), pull(0, tuple(pulled)), fill)


def _shear_slides(node: Tensor, coordinates: Coordinates) -> tuple[Sliding | None, ...]:
    shape = static(node.operands[0].shape)
    slopes: tuple[Slope, ...] = node.attributes["slopes"]
    return tuple(
        sliding_at(
            *(coordinates[slope.position], coordinates[slope.element]),
            (slope.stride, slope.dilation, slope.offset, slope.divisor),
            shape[slope.position],
        )
        for slope in slopes
    )


SHEAR = make_op(
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
    """The elements of windows: result[p, w] is x[(a p + b w + c) / d, w].

    Each slope has a pair of axes p and w, the numbers a, b, c and d, and the extent of p. The value
    is `fill` where x has no such element.
    """
    x = as_tensor(x)
    return apply(SHEAR, x, slopes=tuple(slopes), fill=float(fill))


class _WindowFields(NamedTuple):
    size: int
    stride: int
    dilation: int
    before: int
    after: int
    ceil: bool


class Window(_WindowFields):
    """The windows along one axis.

    Raises:
        DefinitionError: for a size, stride or dilation below 1, or a padding below 0.

    Attributes:
        size: the number of elements of a window.
        stride: the distance between two neighbouring windows.
        dilation: the distance between two neighbouring elements of a window.
        before, after: the padding, in elements.
        ceil: whether the last window may reach beyond the padding after the tensor, if it begins
            before that padding (as PyTorch's `ceil_mode`).
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
        return read("Window", WINDOW, given)

    @property
    def reach(self) -> int:
        """The distance from the first element to the one after the last: the dilated size."""
        return (self.size - 1) * self.dilation + 1

    def count(self, extent: int) -> int:
        """The number of windows on an axis; 0 or less if none fits."""
        free = extent + self.before + self.after - self.reach
        if free < 0:
            return 0
        count = free // self.stride + 1
        further = self.ceil and free % self.stride != 0
        # The last window must begin within the elements or the padding before them.
        return count + int(further and count * self.stride < extent + self.before)


WINDOW = Fields(
    {
        **dict.fromkeys(("size", "stride", "dilation"), whole(1, most=LARGEST_WINDOW)),
        **dict.fromkeys(("before", "after"), whole(0, most=LARGEST_WINDOW)),
        "ceil": Flag(),
    },
    Window,
)


def advice_on_extents(x: Tensor, advice: str = "") -> str:
    """The advice where an axis is too short; another if channels of an input seem to be last."""
    for node in topological([x]):
        first, last = node.shape[1:-1], node.shape[-1:]
        has_few = len(first) == x.rank - 2 > 0 and last[0] in (1, 3)
        are_large = all(isinstance(extent, int) and extent > 4 for extent in first)
        if node.attributes.get("role") == "input" and has_few and are_large:
            return f"Channels come first: lm.Input({', '.join(map(str, last + first))})."
    return advice or "Use a smaller window, less dilation, or padding."


def windows(x: Tensor, axes: Sequence[int], along: Sequence[Window], fill: float = 0.0) -> Tensor:
    """All windows of a tensor along some axes, whose extents do not depend on the batch.

    Each of the axes counts output positions. The axes of kernel elements follow after all others,
    in the same order. The padding has the value `fill`.
    """
    extents = static(tuple(x.shape[axis] for axis in axes))
    for axis, extent, window in zip(axes, extents, along, strict=True):
        if window.count(extent) < 1:
            raise located(
                ShapeError(
                    "no window fits",
                    facts=(
                        ("tensor", described(x)),
                        ("axis", f"{axis}, {window.before} + {extent} + {window.after} elements"),
                        ("window", f"{window.size} elements, from first to last {window.reach}"),
                    ),
                    advice=advice_on_extents(x),
                )
            )
    if all(_is_tiling(extent, window) for extent, window in zip(extents, along, strict=True)):
        return _tiles(x, axes, along)
    sizes = tuple(window.size for window in along)
    repeated = broadcast_to(reshape(x, (*x.shape, *(1 for _ in sizes))), (*x.shape, *sizes))
    numbered = enumerate(zip(axes, extents, along, strict=True), start=x.rank)
    slopes = [
        Slope(axis, element, window.count(extent), window.stride, window.dilation, -window.before)
        for element, (axis, extent, window) in numbered
    ]
    return shear(repeated, slopes, fill)


def windows_of(most: int, along: Sequence[Window]) -> tuple[Window, ...]:
    """The windows along the last axes of a tensor with `most` axes, as the user passed them."""
    entries = entries_of([along] if isinstance(along, Window) else along)
    if entries is None or len(entries) > most:
        raise refused("along", f"ops.Window(...) for each of the last axes, of {most}", along)
    return tuple(read("along", WINDOW, entry) for entry in entries)


def fold(y: Tensor, axes: Sequence[int], along: Sequence[Window], extents: Sequence[int]) -> Tensor:
    """The adjoint of `windows` (col2im): each element of x is the sum of its copies in windows.

    The axes have these extents in x.
    """
    rank = y.rank - len(axes)
    if all(_is_tiling(extent, window) for extent, window in zip(extents, along, strict=True)):
        order: list[int] = []
        shape: list[Dim] = []
        widths: list[tuple[int, int]] = []
        number = dict(zip(axes, range(len(axes)), strict=True))
        for axis in range(rank):
            order.append(axis)
            (dim,), rest = y.shape[axis : axis + 1], 0
            if axis in number:
                (count,), window = static((dim,)), along[number[axis]]
                order.append(rank + number[axis])
                dim, rest = count * window.size, extents[number[axis]] - count * window.size
            shape.append(dim)
            widths.append((0, rest))
        return pad(reshape(transpose(y, order), shape), widths)
    slopes = [
        Slope(axis, rank + number, extent, 1, -window.dilation, window.before, window.stride)
        for number, (axis, extent, window) in enumerate(zip(axes, extents, along, strict=True))
    ]
    return sum_axes(shear(y, slopes), tuple(range(rank, y.rank)))


def _is_tiling(extent: int, window: Window) -> bool:
    """Whether the windows do not overlap and leave no gaps or padding."""
    inside = window.count(extent) * window.size <= extent
    return window.stride == window.size and window.dilation == 1 and window.before == 0 and inside


def _tiles(x: Tensor, axes: Sequence[int], along: Sequence[Window]) -> Tensor:
    """Windows that do not overlap: a reshape."""
    tiled: list[Dim] = []
    order: list[int] = []
    of_axis = dict(zip(axes, along, strict=True))
    for axis, dim in enumerate(x.shape):
        order.append(len(tiled))
        window = of_axis.get(axis)
        if window is None or not isinstance(dim, int):
            tiled.append(dim)
        else:
            count = window.count(dim)
            x = slice_axis(x, axis, 0, count * window.size)
            tiled += [count, window.size]
    elements = [order[axis] + 1 for axis in axes]
    return transpose(reshape(x, tiled), [*order, *elements])
