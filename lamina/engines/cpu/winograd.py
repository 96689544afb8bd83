"""Convolutions of 3x3 windows by minimal filtering: 16 multiplications in the place of 36.

Four results of a convolution, a tile of 2x2, follow from 4x4 numbers and the 3x3 weights. With both
transformed, by additions, each channel takes 16 multiplications instead of 36: this is F(2x2, 3x3)
of Lavin and Gray, *Fast algorithms for convolutional neural networks*, 2016, after Winograd.

- *Minimal places* (a convolution, and the gradient of what goes into it): the products at one of
  the 16 places, summed up over channels, are a product of matrices, whose rows are tiles. Some
  tiles at a time are copied with their padding around them, transformed, multiplied by the weights,
  which were transformed when they were packed, and what comes out is transformed back into sums.
- *Minimal elements* (the gradient of the weights): F(3x3, 2x2), the same with a tile of gradients
  in the place of the weights. Products are summed up over tiles, and transformed back at the end.

Where a number is infinite, results that depend on it may be NaN instead.

Here is where this is taken, what is transformed how, and how weights are packed; the ways
themselves are in `winograd_ways.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from lamina.engines.cpu.context import Context
from lamina.engines.cpu.image import Image, image_of
from lamina.engines.cpu.ir import Function, Type, Value, constant
from lamina.engines.cpu.matrix import Matrix
from lamina.engines.cpu.packing import PackedRight, Panel, Panels, pack_whole
from lamina.engines.cpu.points import Points
from lamina.engines.cpu.primitives import element
from lamina.engines.cpu.reshape import Replacing
from lamina.engines.cpu.window_way import Windowed, address
from lamina.program.index import Axis, axes_of, axis_index
from lamina.program.scalar import Apply, Bound, Load, Scalar
from lamina.program.steps import Contraction
from lamina.shapes import size_of

# Along an axis: of a window, a tile of results, and the numbers that such a tile follows from.
WINDOW, RESULTS, NUMBERS = 3, 2, 4
PLACES = NUMBERS * NUMBERS
# The share of the direct way's work that minimal filtering may have at most to be taken.
MUST_GAIN = 0.8
# In cycles, for a vector: to transform a tile of numbers, of results, and of the right operand.
_NUMBERS_CYCLES, _RESULTS_CYCLES, _FACTORS_CYCLES = 48, 72, 48
# What is done once, for weights and for gradients of them, takes as long as so many tiles.
_WEIGHTS_TILES, _GRADIENTS_TILES = 6, 8


def _image(left: Scalar, places: Sequence[Axis], elements: Sequence[Axis]) -> Image | None:
    """The image of 3x3 windows that lie side by side, each with channels; None if it is none.

    Its places are whole tiles, so there may be more than the view has: those show zeros.
    """
    view = _with_bounds(left, places[-2:], elements)
    whole = {axis: tiled(axis) for axis in places[-2:]}
    change = Replacing({axis: axis_index(tiles) for axis, tiles in whole.items()})
    places = [whole.get(axis, axis) for axis in places]
    image = image_of(change.scalar(view), places, elements, direct_outer=0)
    if image is None or len(image.places) != 2 or len(image.sides) != 3:
        return None
    *plane, channels = image.sides
    for side, place in zip(plane, image.places, strict=True):
        if side.place != place or side.element is None or side.element.extent != WINDOW:
            return None
        if side.scale != 1 or abs(side.slope) != 1:
            return None
    return image if channels.element is not None and channels.slope == 1 else None


def tiled(places: Axis) -> Axis:
    """The places of whole tiles."""
    return Axis(places.name, places.extent + places.extent % RESULTS)


def _with_bounds(view: Scalar, places: Sequence[Axis], elements: Sequence[Axis]) -> Scalar:
    """The view with bounds that say what places and elements move along together.

    Nothing is changed where it shows something; places that there are not, behind the last ones,
    show zeros.
    """
    if isinstance(view, Apply) and view.primitive == "cast":
        return replace(view, operands=(_with_bounds(view.operands[0], places, elements),))
    if not isinstance(view, Load):
        return view
    bounds = [
        Bound(bound.index, max(bound.low, low), min(bound.high, high + 1))
        for bound in view.bounds
        for low, high in [bound.index.bounds]
    ]
    free = [axis for axis in elements if not any(axis in axes_of(b.index) for b in bounds)]
    steps = dict(view.index.terms)
    for place in places:
        step = steps.get(place, 0)
        moved = [axis for axis in free if abs(steps.get(axis, 0)) == abs(step)]
        if not step or len(moved) != 1 or any(place in axes_of(bound.index) for bound in bounds):
            continue
        slope = 1 if steps[moved[0]] == step else -1
        index = axis_index(place) + axis_index(moved[0]) * slope
        bounds.append(Bound(index, index.bounds[0], index.bounds[1] + 1))
    return replace(view, bounds=tuple(bounds))


def minimal(step: Contraction, panels: Panels, direct: float) -> Windowed | None:
    """A contraction over windows as one by minimal filtering; None where that does not pay.

    Args:
        step: the contraction.
        panels: how its columns are cut.
        direct: how many multiplications it takes otherwise.
    """
    for way, places, elements in (
        ("minimal places", step.rows, step.inner),
        ("minimal elements", step.inner, step.rows),
    ):
        image = _image(step.left, places, elements)
        if image is None:
            continue
        channels, columns = image.sides[-1].axis.extent, panels.columns
        images = size_of([axis.extent for axis in image.outer])
        tiles = images * size_of([axis.extent // RESULTS for axis in image.places])
        if way == "minimal places":
            once, others = _WEIGHTS_TILES, _NUMBERS_CYCLES * channels + _RESULTS_CYCLES * columns
        else:
            once = _GRADIENTS_TILES
            others = _NUMBERS_CYCLES * channels * panels.count + _FACTORS_CYCLES * columns
        work = (tiles + once) * PLACES * channels * columns + tiles * others
        if step.batch[0].extent * work < MUST_GAIN * direct:
            return Windowed(step, image, way)
    return None


# Transforms, along one axis -----------------------------------------------------------------------


def of_numbers(code: Function, numbers: Sequence[Value]) -> list[Value]:
    """Four numbers, transformed."""
    first, second, third, fourth = numbers
    return [
        code.subtract(first, third),
        code.add(second, third),
        code.subtract(third, second),
        code.subtract(second, fourth),
    ]


def of_weights(code: Function, weights: Sequence[Value]) -> list[Value]:
    """Three weights, transformed."""
    first, second, third = weights
    half = constant(0.5, first.type)
    ends = code.multiply(code.add(first, third), half)
    middle = code.multiply(second, half)
    return [first, code.add(ends, middle), code.subtract(ends, middle), third]


def of_products(code: Function, products: Sequence[Value]) -> list[Value]:
    """Two results of the products of four transformed numbers and weights."""
    first, second, third, fourth = products
    return [
        code.add(code.add(first, second), third),
        code.subtract(code.subtract(second, third), fourth),
    ]


def of_factors(code: Function, factors: Sequence[Value]) -> list[Value]:
    """Two gradients of results, transformed, the second and third one twice."""
    first, second = factors
    return [first, code.add(first, second), code.subtract(first, second), second]


def of_sums(code: Function, sums: Sequence[Value]) -> list[Value]:
    """Three gradients of weights of the sums of products of transformed numbers and factors."""
    first, second, third, fourth = sums
    half = constant(0.5, first.type)
    added = code.multiply(code.add(second, third), half)
    return [
        code.add(first, added),
        code.multiply(code.subtract(second, third), half),
        code.subtract(added, fourth),
    ]


Transform = Callable[[Function, Sequence[Value]], list[Value]]


def along_both(
    code: Function, transform: Transform, size: int, number: Callable[[int, int], Value]
) -> list[list[Value]]:
    """A transform along both axes of a square of numbers; gives its rows."""
    columns = [
        transform(code, [number(row, column) for row in range(size)]) for column in range(size)
    ]
    return [transform(code, row) for row in zip(*columns, strict=True)]


# Weights ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taps:
    """Which k belong to the elements of windows.

    Attributes:
        first: for each element, row by row as the image has them, that of the first channel.
        pitch: from channel to channel.
        channels: how many there are.
    """

    first: tuple[int, ...]
    pitch: int
    channels: int


def _taps_of(how: Windowed) -> Taps:
    """The taps of a contraction by minimal filtering."""
    inner = how.step.inner
    pitches = {
        axis: size_of([later.extent for later in inner[number + 1 :]])
        for number, axis in enumerate(inner)
    }
    *plane, channels = how.image.sides
    # Where windows are mirrored, weights are.
    along = [
        [pitches[side.element] * element_ for element_ in range(WINDOW)][:: side.slope]
        for side in plane
        if side.element is not None
    ]
    first = tuple(row + column for row in along[0] for column in along[1])
    return Taps(first, pitches[channels.axis], channels.axis.extent)


@final
@dataclass(frozen=True)
class PackedWeights(PackedRight):
    """Transformed weights: for each of the 16 places a panel of all channels.

    Attributes:
        taps: the k that they are made of.
    """

    taps: Taps

    @property
    def _packed(self) -> int:
        """How many k the weights have before they are transformed."""
        return len(self.taps.first) * self.taps.channels

    def prepare(self, context: Context, matrix: Matrix) -> None:
        size = self._packed * self.panels.width * matrix.step.dtype.itemsize
        context.workspaces.need_own(size)

    def fill(
        self,
        context: Context,
        points: Points,
        matrix: Matrix,
        panel: Panel,
        column: Value,
        target: Value,
    ) -> None:
        code, kind = points.code, element(matrix.step.dtype)
        table, thread, *_ = code.parameters
        own = context.workspaces.own(code, table, thread)
        pack_whole(points, matrix, panel, own, column, self._packed)
        vector = Type(kind, panel.lanes)
        apart = self.taps.channels * panel.width
        loop = code.begin_loop(0, self.taps.channels)
        source = address(code, own, [(loop.index, self.taps.pitch * panel.width)], kind)
        here = address(code, target, [(loop.index, panel.width)], kind)
        for number in range(panel.vectors):
            skipped = number * panel.lanes

            def weight(row: int, column: int, skipped: int = skipped) -> Value:
                tap = self.taps.first[row * WINDOW + column]
                place = code.offset(source, tap * panel.width + skipped, kind)
                return code.load(place, vector)

            rows = along_both(code, of_weights, WINDOW, weight)
            for place, value in enumerate(value for row in rows for value in row):
                code.store(value, code.offset(here, place * apart + skipped, kind))
        code.end_loop(loop)


def packed_weights(how: Windowed, panels: Panels) -> PackedWeights:
    """The weights of a contraction in the way of minimal places."""
    taps = _taps_of(how)
    return PackedWeights(panels, PLACES * taps.channels, taps)
