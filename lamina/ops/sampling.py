"""Images read at positions between their pixels: grid_sample, and grids of affine maps.

Jaderberg, Simonyan, Zisserman, Kavukcuoglu: Spatial transformer networks (2015). Positions go from
-1 to 1 along each axis. Everything is as in PyTorch, also reflection and the gradient at borders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from typing import Literal, get_args

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, int32, size_of, static
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import Word
from lamina.errors import ShapeError
from lamina.graph import Tensor, TensorLike, constant, described
from lamina.graph.attributes import whole
from lamina.ops import basic as ops
from lamina.ops.arguments import each_of, flag_of, read
from lamina.ops.conversion import floating, floats_of, rounded_once

__all__ = ["affine_grid", "grid_sample"]

SampleMode = Literal["nearest", "bilinear", "bicubic"]
SamplePadding = Literal["zeros", "border", "reflect"]


@checked
def grid_sample(
    x: TensorLike,
    grid: TensorLike,
    mode: SampleMode = "bilinear",
    padding: SamplePadding = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Images, read at the positions of a grid.

    Args:
        x: [batch, channels, ...] with one, two or three axes after the channels; floats.
        grid: [batch, ..., axes]: for each element of the result its position, the last axis of x
            first; -1 and 1 are the borders of the image.
        mode: `"nearest"`: the nearest element (of two the even one), `"bilinear"`: the mean of the
            nearest ones, by their distance, `"bicubic"`: the cubic convolution of 4 x 4 elements
            (Keys 1981, with -0.75), for two axes.
        padding: elements outside the image: `"zeros"`, `"border"`: the nearest border element,
            `"reflect"`: the image reflected at its borders.
        align_corners: whether -1 and 1 are the centres of the border elements, otherwise their
            outer edges.

    Returns:
        [batch, channels, ...], with the middle axes of the grid.
    """
    x, grid = floats_of(x, grid)
    chosen = read("mode", Word(get_args(SampleMode)), mode)
    edges = read("padding", Word(get_args(SamplePadding)), padding)
    corners = flag_of("align_corners", align_corners)
    axes = x.rank - 2
    _check_sample(x, grid, chosen)

    def sampled(x: Tensor, grid: Tensor) -> Tensor:
        flat = ops.reshape(x, (*x.shape[:2], size_of(static(x.shape[2:]))))
        reader = _Reader(flat, static(x.shape[2:]), edges, corners)
        # In elements, 0 for the centre of the first one.
        shifted = [grid[..., axes - 1 - axis] + 1 for axis in range(axes)]
        positions = [
            at * ((extent - 1) / 2) if corners else (at * extent - 1) * 0.5
            for at, extent in zip(shifted, reader.extents, strict=True)
        ]
        if chosen != "bicubic":
            positions = [reader.inside(at, axis) for axis, at in enumerate(positions)]
        return _weighted(reader, positions, _TAPS[chosen])

    return rounded_once(sampled, x, grid)


def _check_sample(x: Tensor, grid: Tensor, mode: str) -> None:
    axes = x.rank - 2
    fits = axes in (1, 2, 3) and grid.rank == x.rank and grid.shape[-1] == axes
    if not fits or grid.shape[0] != x.shape[0] or (mode == "bicubic" and axes != 2):
        raise ShapeError(
            "grid_sample: the images and the grid do not fit together",
            facts=(("images", described(x)), ("grid", described(grid)), ("mode", mode)),
            advice="Images are [batch, channels, height, width], the grid [batch, rows, "
            'columns, 2]; mode "bicubic" takes no other number of axes.',
        )


@frozen_dataclass
class _Reader:
    """Reads elements of images, `flat` [batch, channels, elements], at whole positions."""

    flat: Tensor
    extents: tuple[int, ...]
    padding: str
    corners: bool

    def inside(self, position: Tensor, axis: int) -> Tensor:
        """The position, moved into the image if the padding says so."""
        extent = self.extents[axis]
        if self.padding == "reflect":
            position = _reflected(position, extent, self.corners)
        if self.padding == "zeros":
            return position
        # Limited to the image; the gradient at the borders is zero.
        last = extent - 1
        return ops.where(position <= 0, 0, ops.where(position >= last, last, position))

    def read(self, positions: Sequence[Tensor]) -> Tensor:
        """[batch, channels, ...]: the elements at whole positions [batch, ...]; zero outside."""
        pairs = list(zip(positions, self.extents, strict=True))
        limited = [ops.maximum(ops.minimum(at, extent - 1), 0) for at, extent in pairs]
        number, *further = (ops.cast(at, int32) for at in limited)
        for index, extent in zip(further, self.extents[1:], strict=True):
            number = number * extent + index
        count = size_of(static(number.shape[1:]))
        spread = ops.reshape(number, (number.shape[0], 1, count))
        shape = (*self.flat.shape[:2], *spread.shape[2:])
        elements = ops.take_along_axis(self.flat, ops.broadcast_to(spread, shape), 2)
        elements = ops.reshape(elements, (*shape[:2], *number.shape[1:]))
        if self.padding != "zeros":
            return elements
        inside = reduce(ops.logical_and, map(ops.equal, limited, positions))
        return ops.where(ops.expand_dims(inside, 1), elements, 0)


def _reflected(position: Tensor, extent: int, corners: bool) -> Tensor:
    """The position, reflected until it is within the image."""
    low, span = (0.0, extent - 1.0) if corners else (-0.5, float(extent))
    if not span:
        return position * 0
    distance = ops.abs(position - low)
    flips = ops.floor(distance * (1 / span))
    # Where the quotient was rounded, the rest may be outside by a rounding error.
    rest = distance - flips * span
    odd = ops.equal(flips - ops.floor(flips * 0.5) * 2, 1)
    return ops.where(odd, span - rest, rest) + low


# A whole position along one axis, and the weight of the element there; None for 1.
_Tap = tuple[Tensor, Tensor | None]


def _nearest(at: Tensor) -> list[_Tap]:
    """The nearest whole number; of two the even one."""
    above = ops.floor(at + 0.5)
    is_odd = ops.equal(above - ops.floor(above * 0.5) * 2, 1)
    tie = ops.logical_and(ops.equal(above - at, 0.5), is_odd)
    return [(ops.where(tie, above - 1, above), None)]


def _linear(at: Tensor) -> list[_Tap]:
    low = ops.floor(at)
    share = at - low
    return [(low, 1 - share), (low + 1, share)]


# The parameter of cubic convolution.
_CUBIC = -0.75


def _cubic(at: Tensor) -> list[_Tap]:
    low = ops.floor(at)
    t = at - low

    def near(d: Tensor) -> Tensor:
        return ((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((_CUBIC * d - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC

    weights = (far(t + 1), near(t), near(1 - t), far(2 - t))
    return [(low + (number - 1), weight) for number, weight in enumerate(weights)]


_TAPS: dict[str, Callable[[Tensor], list[_Tap]]] = {
    "nearest": _nearest,
    "bilinear": _linear,
    "bicubic": _cubic,
}


def _weighted(
    reader: _Reader, positions: Sequence[Tensor], taps: Callable[[Tensor], list[_Tap]]
) -> Tensor:
    """The weighted sum of the elements at all combinations of taps."""
    values: list[Tensor] = []
    for chosen in product(*(taps(at) for at in positions)):
        at = [
            reader.inside(position, axis) if taps is _cubic else position
            for axis, (position, _) in enumerate(chosen)
        ]
        factors = [factor for _, factor in chosen if factor is not None]
        value = reader.read(at)
        if factors:
            value = value * ops.expand_dims(reduce(ops.mul, factors), 1)
        values.append(value)
    return reduce(ops.add, values)


@checked
def affine_grid(
    matrices: TensorLike, extents: int | Sequence[int], align_corners: bool = False
) -> Tensor:
    """The positions to which affine maps send the elements of an image, for `grid_sample`.

    Args:
        matrices: [batch, axes, axes + 1]; floats.
        extents: the extents of the result's axes, [height, width] for two.
        align_corners: the option of `grid_sample`.

    Returns:
        [batch, *extents, axes].
    """
    matrices = floating(matrices)
    corners = flag_of("align_corners", align_corners)
    axes = matrices.shape[1] if matrices.rank == 3 else 0
    if not isinstance(axes, int) or not axes or matrices.shape[2] != axes + 1:
        raise ShapeError(
            "affine_grid: the matrices must be [batch, axes, axes + 1]",
            facts=(("found", described(matrices)),),
            advice="For images with two axes they are [batch, 2, 3].",
        )
    shape = each_of("extents", extents, axes, whole(1))
    base = constant(_base_grid(shape, corners), matrices.dtype)
    moved = ops.matmul(base, ops.transpose(matrices, (0, 2, 1)))
    return ops.reshape(moved, (matrices.shape[0], *shape, axes))


def _base_grid(shape: Sequence[int], corners: bool) -> Array:
    """[elements, axes + 1]: the positions of all elements, the last axis first, and 1."""
    lines = [
        np.linspace(-1, 1, count) * (1 if corners else (count - 1) / count)
        if count > 1
        else np.zeros(1)
        for count in shape
    ]
    points = np.stack([grid.ravel() for grid in np.meshgrid(*lines, indexing="ij")][::-1], -1)
    return np.concatenate([points, np.ones((len(points), 1))], 1)
