"""Contractions over windows as each algorithm reads them: the roles of the axes, and the image.

- *Implicit GEMM*: M is the output positions, K the elements of their windows. The right operand is
  packed once. It computes a convolution, and the gradient of its input if few windows are in the
  padding.
- *Weight gradient*: M is the elements of windows, K the output positions, image by image. The sums
  of all M stay in memory meanwhile.
- *col2im*: each output position adds to the sums of its window's elements, in an image of sums. It
  computes the gradient of a strided convolution, or one whose gathering would mostly read padding.
- *Winograd*: the first two for windows of 3x3 and 5x5 with stride and dilation 1, with fewer
  multiplications; see `filtering.py`. Tiles of 4x4 positions need an operand of 16 bits.

No algorithm copies the windows. This module states whether an algorithm can compute a contraction,
and how; both follow from the contraction alone. `convolutions.py` decides which algorithm pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina.base.records import frozen_dataclass
from lamina.codegen.axes import flattened
from lamina.codegen.filtering import FILTERINGS, ROUNDED_FILTERINGS, Filtering
from lamina.codegen.matrix import narrowed, stored, with_single_axes
from lamina.engines.simd.decide.images import Image, image_of
from lamina.program.index import Axis, axes_of, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Bound, Load, Scalar
from lamina.program.steps import Contraction
from lamina.program.windows import DATA_GRADIENT, Sliding, loaded

IMPLICIT_GEMM, WEIGHT_GRADIENT, COL2IM = "implicit GEMM", "weight gradient", "col2im"
# The algorithms for convolutions, and for gradients of weights.
_ALL_FILTERINGS = (*FILTERINGS.values(), *ROUNDED_FILTERINGS.values())
WINOGRAD = {filtering: f"Winograd {filtering.name}" for filtering in _ALL_FILTERINGS}
WINOGRAD_WEIGHT_GRADIENT = {
    filtering: f"Winograd {filtering.gradient_name}" for filtering in _ALL_FILTERINGS
}


@frozen_dataclass
class Windowed:
    """A contraction over windows, as an algorithm reads it.

    Attributes:
        algorithm: the algorithm's name.
        step: the contraction, with one batch axis and one N axis, and stores over the outer axis.
        image: the left operand; with col2im the view over output positions and channels.
        outer: the image's outer axes as one.
        scattered: the windows of the convolution whose gradient is computed with col2im: they
            slide along each axis of M except the outer ones.
        paired: whether the views are bfloat16, and are multiplied in pairs along k.
        filtering: the transforms of Winograd's algorithm; None for other algorithms.
    """

    algorithm: str
    step: Contraction
    image: Image
    outer: Axis
    scattered: tuple[Sliding, ...] = ()
    paired: bool = False
    filtering: Filtering | None = None

    @property
    def sums(self) -> list[int]:
        """With col2im, the lengths of the image of sums, margins included."""
        return [
            max(window.reach(axis.extent), window.extent - window.offset)
            for window, axis in zip(self.scattered, self.image.positions, strict=True)
        ]

    @property
    def tile(self) -> int:
        """The positions of a tile along an axis; 1 unless the algorithm is Winograd's."""
        return self.filtering.results if self.filtering else 1

    @property
    def tiles(self) -> tuple[int, ...]:
        """The number of tiles along each axis of positions."""
        return tuple(axis.extent // self.tile for axis in self.image.positions)

    @property
    def channels(self) -> int:
        """The number of channels, if the image has them along its last side."""
        return self.image.sides[-1].axis.extent

    @property
    def itemsize(self) -> int:
        """The bytes of an element of an image."""
        return 2 if self.paired else self.step.dtype.itemsize


def paired_readings(step: Contraction) -> dict[str, Windowed]:
    """The contraction as each algorithm reads it that can multiply pairs of bfloat16.

    Pairs run along the channels; for gradients of weights, along the last axis of positions.
    """
    if not step.k:
        return {}
    step = narrowed(with_single_axes(step, "batch", "n"))
    pairs: list[Windowed] = []
    for windowed in (_over_positions(IMPLICIT_GEMM, step, step.m, step.k), _col2im(step)):
        if windowed is not None:
            strides, _ = windowed.image.layout(windowed.image.positions[0].extent)
            if strides.get(step.k[-1]) == 1 and step.k[-1].extent % 2 == 0:
                pairs.append(windowed)
    gradient = _over_positions(WEIGHT_GRADIENT, step, step.k, step.m, across=True)
    if gradient is not None:
        # Blocks split the first axis of positions, which must not be the one of the pairs.
        positions = gradient.image.positions
        if len(positions) > 1 and positions[-1].extent % 2 == 0:
            pairs.append(gradient)
    return {candidate.algorithm: replace(candidate, paired=True) for candidate in pairs}


def readings(step: Contraction) -> dict[str, Windowed]:
    """The contraction as each possible algorithm reads it, by the algorithm's name."""
    step = with_single_axes(step, "batch", "n")
    candidates = [
        _over_positions(IMPLICIT_GEMM, step, step.m, step.k),
        _over_positions(WEIGHT_GRADIENT, step, step.k, step.m),
        _col2im(step),
    ]
    # Of an operand of 16 bits that was cast to longer floats.
    has_half_operand = any(map(_is_half, (step.left, step.right)))
    filterings = _ALL_FILTERINGS if has_half_operand else FILTERINGS.values()
    for names, positions, elements in (
        (WINOGRAD, step.m, step.k),
        (WINOGRAD_WEIGHT_GRADIENT, step.k, step.m),
    ):
        for filtering in filterings:
            image = _tiled_image(step, positions, elements, filtering)
            if image is not None:
                windowed = _windowed(names[filtering], step, image)
                candidates.append(replace(windowed, filtering=filtering))
    return {candidate.algorithm: candidate for candidate in candidates if candidate is not None}


def reading(step: Contraction, algorithm: str, *, paired: bool) -> Windowed:
    """The contraction as one algorithm reads it, which must be able to compute it."""
    return (paired_readings if paired else readings)(step)[algorithm]


def _over_positions(
    algorithm: str,
    step: Contraction,
    positions: Sequence[Axis],
    elements: Sequence[Axis],
    *,
    across: bool = False,
) -> Windowed | None:
    """The contraction with an image of its left operand.

    With `across`, the image is a copy in which the last positions are contiguous.
    """
    windows, outer = step.left_windows, len(positions) - 2
    image = image_of(step.left, windows, positions, elements, outer=outer, across=across)
    return _windowed(algorithm, step, image) if image is not None and image.positions else None


def _windowed(
    algorithm: str, step: Contraction, image: Image, scattered: tuple[Sliding, ...] = ()
) -> Windowed:
    outer, of_outer = flattened(image.outer, "o")
    change = Rewrite(of_outer)
    image = replace(image, view=change.scalar(image.view))
    stores = change.records(step.stores)
    return Windowed(algorithm, replace(step, stores=stores), image, outer, scattered)


def _col2im(step: Contraction) -> Windowed | None:
    """The contraction as col2im reads it; None if it is not the gradient of a convolution."""
    scattered: dict[Axis, Sliding] = {}
    for window in step.left_windows:
        m = window.position
        if window.kind(step.k) != DATA_GRADIENT or m is None or window.stride != 1:
            return None
        dilation = -window.dilation if window.element is not None else 1
        if dilation < 1 or window.offset < 0:
            return None
        position = Axis(f"{m.name}_position", window.extent)
        numbers = (window.divisor, dilation, -window.offset, 1, m.extent)
        scattered[m] = Sliding(position, window.element, *numbers)
    lead = len(step.m) - len(scattered)
    outer, moved = step.m[:lead], step.m[lead:]
    if not scattered or set(moved) != scattered.keys():
        return None
    windows = tuple(scattered[axis] for axis in moved)
    elements = [window.element for window in windows if window.element is not None]
    if set(elements) != set(step.k[: len(elements)]):
        return None
    replacements = {axis: window.scaled_index for axis, window in scattered.items()}
    view = Rewrite(replacements).scalar(step.left)
    load = loaded(view)
    if load is None or not all(bound.always for bound in load.bounds):
        return None
    if axes_of(load.index) & set(elements):
        return None
    positions = [window.position for window in windows if window.position is not None]
    channels = step.k[len(elements) :]
    view = Rewrite(load=lambda read: replace(read, bounds=())).scalar(view)
    image = image_of(view, (), (*outer, *positions), channels, outer=len(outer), all_positions=True)
    return None if image is None else _windowed(COL2IM, step, image, windows)


def _is_half(view: Scalar) -> bool:
    load = stored(view)
    return load is not None and any(dtype.is_float and dtype.itemsize == 2 for dtype in load.dtypes)


def filtering_of(windowed: Windowed) -> Filtering:
    """Winograd's transforms; the algorithm must be his."""
    assert windowed.filtering is not None
    return windowed.filtering


def _tiled_image(
    step: Contraction, positions: Sequence[Axis], elements: Sequence[Axis], filtering: Filtering
) -> Image | None:
    """The image for Winograd's algorithms; None unless windows have the size and stride 1.

    Its positions are whole tiles: positions after the view's last one read zeros.
    """
    sliding = [window for window in step.left_windows if not window.is_axis]
    plane = positions[-2:]
    windows = [window for axis in plane for window in sliding if window.position == axis]
    sizes = {window.elements for window in windows}
    numbers = {(window.stride, abs(window.dilation), window.divisor) for window in windows}
    if len(windows) != 2 or len(sliding) != 2:
        return None
    if sizes != {filtering.window} or numbers != {(1, 1, 1)}:
        return None
    view = _with_bounds(step.left, windows)
    tile_axes = {axis: tiled(axis, filtering.results) for axis in plane}
    change = Rewrite({axis: axis_index(tiles) for axis, tiles in tile_axes.items()})
    pairs = zip(windows, tile_axes.values(), strict=True)
    windows = [replace(window, position=tiles) for window, tiles in pairs]
    positions = [tile_axes.get(axis, axis) for axis in positions]
    image = image_of(change.scalar(view), windows, positions, elements, outer=0)
    if image is None or len(image.positions) != 2 or len(image.sides) != 3:
        return None
    return image if image.sides[-1].element is not None else None


def tiled(positions: Axis, tile: int) -> Axis:
    """An axis of output positions, extended to whole tiles."""
    return Axis(positions.name, positions.extent + -positions.extent % tile)


def _with_bounds(view: Scalar, windows: Sequence[Sliding]) -> Scalar:
    """The view with bounds at the ends of its input along the windows.

    The view's values do not change; positions after its last ones read zeros.
    """
    moving = {axis for window in windows for axis in window.axes}
    reached: list[Bound] = []
    for window in windows:
        low, high = window.scaled_index.bounds
        reached.append(Bound(window.scaled_index, max(low, 0), min(high + 1, window.extent)))

    def bounded(load: Load) -> Load:
        others = [bound for bound in load.bounds if moving.isdisjoint(axes_of(bound.index))]
        return replace(load, bounds=(*reached, *others))

    return Rewrite(load=bounded).scalar(view)
