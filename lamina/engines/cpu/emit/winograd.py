"""Convolutions by minimal filtering: 16 multiplications in the place of 36 for windows of 3x3.

Four results of a convolution, a tile of 2x2, follow from 4x4 numbers and the 3x3 weights. With both
transformed, by additions, each channel takes 16 multiplications instead of 36: this is F(2x2, 3x3)
of Lavin and Gray, *Fast algorithms for convolutional neural networks*, 2016, after Winograd.
Windows of 5x5 take 36 instead of 100, by F(2x2, 5x5).

- *Minimal places* (a convolution, and the gradient of what goes into it): the products at one of
  the places, summed up over channels, are a product of matrices, whose rows are tiles. Some tiles
  at a time are copied with their padding around them, transformed, multiplied by the weights, which
  were transformed when they were packed, and what comes out is transformed back into sums.
- *Minimal elements* (the gradient of the weights): F(3x3, 2x2), the same with a tile of gradients
  in the place of the weights. Products are summed up over tiles, and transformed back at the end.

Where a number is infinite, results that depend on it may be NaN instead.

Here is where this is taken, what is transformed how, and how weights are packed; the ways
themselves are in `winograd_kernels.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import final

import numpy as np

from lamina.codegen.llvm import Function
from lamina.codegen.primitives import element
from lamina.codegen.values import I32, I64, Type, Value, constant
from lamina.engines.cpu.decide.matrix import Matrix
from lamina.engines.cpu.decide.panels import PackedRight, Panel, Panels
from lamina.engines.cpu.emit.context import Context, Points
from lamina.engines.cpu.emit.image import Image, image_of
from lamina.engines.cpu.emit.packing import Fill, pack_whole
from lamina.engines.cpu.emit.windows import Windowed, address
from lamina.engines.cpu.emit.zeros import columns_set
from lamina.program.index import Axis, axes_of, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Bound, Load, Scalar
from lamina.program.steps import Contraction
from lamina.program.windows import Window
from lamina.records import frozen_dataclass
from lamina.shapes import Array, size_of

# Tiles have so many results along an axis.
RESULTS = 2
# The share of the direct way's work that minimal filtering may have at most to be taken.
MUST_GAIN = 0.8
# In cycles, for a vector and each place of a tile: to transform numbers, results, and the right
# operand.
_NUMBERS_CYCLES, _RESULTS_CYCLES, _FACTORS_CYCLES = 3.0, 4.5, 3.0
# What is done once, for weights and for gradients of them, takes as long as so many tiles.
_WEIGHTS_TILES, _GRADIENTS_TILES = 6, 8


def _image(step: Contraction, places: Sequence[Axis], elements: Sequence[Axis]) -> Image | None:
    """The image of square windows that lie side by side, each with channels; None if it is none.

    Its places are whole tiles, so there may be more than the view has: those show zeros.
    """
    found = [window for window in step.windows_in("left") if not window.is_axis]
    plane = places[-2:]
    windows = [window for axis in plane for window in found if window.place == axis]
    sizes = {window.element.extent if window.element else 1 for window in windows}
    numbers = {(window.stride, abs(window.dilation), window.divisor) for window in windows}
    if len(windows) != 2 or len(found) != 2:
        return None
    if len(sizes) > 1 or sizes.isdisjoint(FILTERINGS) or numbers != {(1, 1, 1)}:
        return None
    view = _with_bounds(step.left, windows)
    whole = {axis: tiled(axis) for axis in plane}
    change = Rewrite({axis: axis_index(tiles) for axis, tiles in whole.items()})
    windows = [
        replace(one, place=tiles) for one, tiles in zip(windows, whole.values(), strict=True)
    ]
    places = [whole.get(axis, axis) for axis in places]
    image = image_of(change.scalar(view), windows, places, elements, direct_outer=0)
    if image is None or len(image.places) != 2 or len(image.sides) != 3:
        return None
    return image if image.sides[-1].element is not None else None


def tiled(places: Axis) -> Axis:
    """The places of whole tiles."""
    return Axis(places.name, places.extent + places.extent % RESULTS)


def _with_bounds(view: Scalar, windows: Sequence[Window]) -> Scalar:
    """The view with bounds that say how far its windows reach.

    Nothing is changed where it shows something; places that there are not, behind the last ones,
    show zeros.
    """
    moving = {axis for window in windows for axis in window.axes}
    reached: list[Bound] = []
    for window in windows:
        low, high = window.position.bounds
        reached.append(Bound(window.position, max(low, 0), min(high + 1, window.extent)))

    def bounded(load: Load) -> Load:
        others = [bound for bound in load.bounds if moving.isdisjoint(axes_of(bound.index))]
        return replace(load, bounds=(*reached, *others))

    return Rewrite(load=bounded).scalar(view)


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
        image = _image(step, places, elements)
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
        work = (tiles + once) * channels * columns + tiles * others
        work *= filtering_of(image).places
        if step.batch[0].extent * work < MUST_GAIN * direct:
            return Windowed(step, image, way)
    return None


# Transforms, along one axis -----------------------------------------------------------------------

_Matrix = tuple[tuple[float, ...], ...]


@frozen_dataclass
class Filtering:
    """Two results of windows, along an axis, by as few multiplications as there can be.

    Numbers and weights are polynomials; products of their values at some points, and of their
    highest terms, determine the product (Toom and Cook; Blahut, *Fast algorithms for signal
    processing*, 2010). Each transform is a matrix.

    Attributes:
        window: its elements.
        points: two of opposite signs side by side, for as many additions to be shared.
    """

    window: int
    points: tuple[float, ...]

    @property
    def numbers(self) -> int:
        """How many numbers the results follow from."""
        return self.window + RESULTS - 1

    @property
    def places(self) -> int:
        """The products of a tile, along both axes."""
        return self.numbers**2

    @cached_property
    def of_numbers(self) -> _Matrix:
        """Numbers, transformed."""
        finite = (
            _row(np.poly(self._others(point)) * np.sign(self._scale(point)), self.numbers)
            for point in self.points
        )
        return (*finite, _row(np.poly(self.points), self.numbers))

    @cached_property
    def of_weights(self) -> _Matrix:
        """Weights, transformed."""
        finite = (
            tuple(point**power / abs(self._scale(point)) for power in range(self.window))
            for point in self.points
        )
        return (*finite, _last(self.window))

    @cached_property
    def of_factors(self) -> _Matrix:
        """Gradients of results, transformed."""
        finite = (tuple(point**power for power in range(RESULTS)) for point in self.points)
        return (*finite, _last(RESULTS))

    @property
    def of_products(self) -> _Matrix:
        """Results of products of transformed numbers and weights."""
        return tuple(zip(*self.of_factors, strict=True))

    @property
    def of_sums(self) -> _Matrix:
        """Gradients of weights, of sums of products of transformed numbers and factors."""
        return tuple(zip(*self.of_weights, strict=True))

    def _others(self, point: float) -> list[float]:
        return [other for other in self.points if other != point]

    def _scale(self, point: float) -> float:
        return float(np.prod([point - other for other in self._others(point)]))


def _row(coefficients: Array, size: int) -> tuple[float, ...]:
    """A polynomial's coefficients, the constant first."""
    row = [float(value) for value in coefficients[::-1]]
    return (*row, *[0.0] * (size - len(row)))


def _last(size: int) -> tuple[float, ...]:
    return (*[0.0] * (size - 1), 1.0)


# By the size of windows. With these points sums of 5x5 are on average three times as far from the
# true value as direct ones, with whole numbers (1, -1, 2, -2) five times.
FILTERINGS = {
    3: Filtering(3, (0.0, 1.0, -1.0)),
    5: Filtering(5, (0.0, 0.5, -0.5, 1.5, -1.5)),
}


def filtering_of(image: Image) -> Filtering:
    """That of the windows of an image."""
    element_ = image.sides[0].element
    assert element_ is not None
    return FILTERINGS[element_.extent]


def _transformed(code: Function, matrix: _Matrix, values: Sequence[Value]) -> list[Value]:
    """A matrix times a vector; of rows that are each other's mirror, halves are shared."""
    results: list[Value] = []
    for number, row in enumerate(matrix):
        if len(results) > number:
            continue
        following = matrix[number + 1] if number + 1 < len(matrix) else ()
        even = tuple(value if place % 2 == 0 else 0.0 for place, value in enumerate(row))
        odd = tuple(value - half for value, half in zip(row, even, strict=True))
        mirrored = tuple(half - other for half, other in zip(even, odd, strict=True))
        swapped = tuple(-value for value in mirrored)
        if any(even) and any(odd) and following in (mirrored, swapped):
            left, right = _combined(code, even, values), _combined(code, odd, values)
            results.append(code.add(left, right))
            ordered = (left, right) if following == mirrored else (right, left)
            results.append(code.subtract(*ordered))
        else:
            results.append(_combined(code, row, values))
    return results


def _combined(code: Function, factors: Sequence[float], values: Sequence[Value]) -> Value:
    """A sum of products with numbers that are known; those that are 1 come first."""
    terms = [term for term in zip(factors, values, strict=True) if term[0]]
    terms.sort(key=lambda term: term[0] != 1)
    (factor, total), *rest = terms
    if factor != 1:
        total = code.multiply(total, constant(factor, total.type))
    for factor, value in rest:
        if factor == 1:
            total = code.add(total, value)
        elif factor == -1:
            total = code.subtract(total, value)
        else:
            total = code.multiply_add(value, constant(factor, value.type), total)
    return total


def along_both(
    code: Function, matrix: _Matrix, number: Callable[[int, int], Value]
) -> list[list[Value]]:
    """A transform along both axes of a square of numbers; gives its rows."""
    size = range(len(matrix[0]))
    columns = [_transformed(code, matrix, [number(row, column) for row in size]) for column in size]
    return [_transformed(code, matrix, row) for row in zip(*columns, strict=True)]


# Weights ------------------------------------------------------------------------------------------


@frozen_dataclass
class Taps:
    """Which k belong to the elements of windows.

    Attributes:
        window: how many elements there are along an axis.
        first: for each element, row by row as the image has them, that of the first channel.
        pitch: from channel to channel.
        channels: how many there are.
    """

    window: int
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
    window = filtering_of(how.image).window
    # Where windows are mirrored, weights are.
    along = [
        [pitches[side.element] * element_ for element_ in range(window)][:: side.slope]
        for side in plane
        if side.element is not None
    ]
    first = tuple(row + column for row in along[0] for column in along[1])
    return Taps(window, first, pitches[channels.axis], channels.axis.extent)


@final
@frozen_dataclass
class PackedWeights(PackedRight):
    """Transformed weights: for each place of a tile a panel of all channels.

    Behind them is said which weights are not zero, by a word for each (`zeros.py`): first a number
    that is not 0 if there are zeros among the weights, and only then, in the next row, the words,
    by elements and channels.

    Attributes:
        taps: the k that they are made of.
    """

    taps: Taps

    @property
    def unpacked(self) -> int:
        """How many k the weights have before they are transformed."""
        return len(self.taps.first) * self.taps.channels

    @property
    def has_zeros(self) -> int:
        """Where it is said whether a panel has zeros, in rows."""
        return FILTERINGS[self.taps.window].places * self.taps.channels


def packed_weights(how: Windowed, panels: Panels) -> PackedWeights:
    """The weights of a contraction in the way of minimal places."""
    taps = _taps_of(how)
    words = len(taps.first) * taps.channels * I32.bits // 8
    words = -(-words // (panels.width * how.step.dtype.itemsize))
    inner = FILTERINGS[taps.window].places * taps.channels + 1 + words
    return PackedWeights(panels, inner, taps)


def fill_with_weights(context: Context, packed: PackedWeights, matrix: Matrix) -> Fill:
    """Writes the transforming of the weights of a panel."""
    size = packed.unpacked * packed.panels.width * matrix.step.dtype.itemsize
    context.workspaces.need_own(size)
    taps = packed.taps

    def fill(points: Points, panel: Panel, column: Value, target: Value) -> None:
        code, kind = points.code, element(matrix.step.dtype)
        table, thread, *_ = code.parameters
        own = context.workspaces.own(code, table, thread)
        pack_whole(points, matrix, panel, own, column, packed.unpacked)
        vector = Type(kind, panel.lanes)
        apart = taps.channels * panel.width
        none, one = constant(0, vector), constant(1, vector)
        loop = code.begin_loop(0, taps.channels, 1, [none] * panel.vectors)
        source = address(code, own, [(loop.index, taps.pitch * panel.width)], kind)
        here = address(code, target, [(loop.index, panel.width)], kind)
        with_zeros: list[Value] = []
        for number, found in enumerate(loop.carried):
            skipped = number * panel.lanes
            weights: list[Value] = []
            for tap in taps.first:
                place = code.offset(source, tap * panel.width + skipped, kind)
                weights.append(code.load(place, vector))
                found = code.select(code.compare("oeq", weights[-1], none), one, found)
            with_zeros.append(found)

            def weight(row: int, column: int, weights: Sequence[Value] = weights) -> Value:
                return weights[row * taps.window + column]

            rows = along_both(code, FILTERINGS[taps.window].of_weights, weight)
            for place, value in enumerate(value for row in rows for value in row):
                code.store(value, code.offset(here, place * apart + skipped, kind))
        with_zeros = list(code.end_loop(loop, with_zeros))
        # Columns that are not there are zeros.
        present = constant((1 << panel.columns) - 1, I64)
        word = code.convert("zext", columns_set(code, panel, with_zeros), "i64")
        word = code.binary("and", word, present)
        at = code.offset(target, packed.has_zeros * panel.width, kind)
        code.store(code.convert("trunc", word, "i32"), at)
        with code.when(code.compare("ne", word, constant(0, I64))):
            _write_words(taps, code, panel, own, code.offset(at, panel.width, kind), vector)

    return fill


def _write_words(
    taps: Taps, code: Function, panel: Panel, weights: Value, words: Value, vector: Type
) -> None:
    """Which weights are not zero."""
    first, window, width = taps.first, taps.window, panel.width
    row, column, channel = (
        code.begin_loop(0, extent) for extent in (window, window, taps.channels)
    )
    moves = [(row.index, (first[window] - first[0]) * width)]
    moves += [(column.index, (first[1] - first[0]) * width)]
    moves += [(channel.index, taps.pitch * width)]
    source = code.offset(weights, first[0] * width, vector.element)
    source = address(code, source, moves, vector.element)
    loaded = [
        code.load(code.offset(source, number * panel.lanes, vector.element), vector)
        for number in range(panel.vectors)
    ]
    strides = [window * taps.channels, taps.channels, 1]
    indices = [loop.index for loop in (row, column, channel)]
    target = address(code, words, list(zip(indices, strides, strict=True)), "i32")
    code.store(columns_set(code, panel, loaded), target)
    for loop in (channel, column, row):
        code.end_loop(loop)
