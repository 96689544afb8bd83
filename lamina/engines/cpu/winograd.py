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

A number that is infinite makes NaN of all results that depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from lamina.engines.cpu.context import Context
from lamina.engines.cpu.image import Image, image_of, pack_image
from lamina.engines.cpu.ir import I64, POINTER, Function, Type, Value, constant
from lamina.engines.cpu.loops import PART_PARAMETERS, Part
from lamina.engines.cpu.matrix import Matrix
from lamina.engines.cpu.packing import TILE, PackedRight, Panel, Panels, pack_whole
from lamina.engines.cpu.points import Points
from lamina.engines.cpu.primitives import element
from lamina.engines.cpu.reshape import Replacing, flattened
from lamina.engines.cpu.tiles import LINE_BYTES, Tile, emit_tile, rows_of_tiles
from lamina.engines.cpu.window_way import Way, Windowed, address, divisor_near
from lamina.program.index import Axis, axes_of, axis_index
from lamina.program.scalar import Apply, Bound, Load, Scalar
from lamina.program.steps import Contraction, reads_of
from lamina.shapes import size_of

# Along an axis: of a window, a tile of results, and the numbers that such a tile follows from.
WINDOW, RESULTS, NUMBERS = 3, 2, 4
PLACES = NUMBERS * NUMBERS
# The share of the direct way's work that minimal filtering may have at most to be taken.
MUST_GAIN = 0.8
# In cycles, for a vector: to transform a tile of numbers, of results, and of the right operand.
_NUMBERS_CYCLES, _RESULTS_CYCLES, _FACTORS_CYCLES = 48, 72, 48
# What is done once, for weights or gradients of them, takes as long as so many tiles.
_ONCE_TILES = 3
# The transformed numbers of some tiles take such a share of the second cache, and sums of gradients
# that wait such a one.
_CACHE_SHARE, _SUMS_SHARE = 2, 8
# Gradients of weights are cut into so many units, for all threads to have some.
_UNITS = 16


def _whole_tiles(left: Scalar, places: Sequence[Axis], elements: Sequence[Axis]) -> Image | None:
    """The image of 3x3 windows that lie side by side, each with channels; None if it is none.

    Its places are whole tiles, so there may be more than the view has: those show zeros.
    """
    view = _with_bounds(left, places[-2:], elements)
    whole = {axis: _tiled(axis) for axis in places[-2:]}
    change = Replacing({axis: axis_index(tiled) for axis, tiled in whole.items()})
    tiled = [whole.get(axis, axis) for axis in places]
    image = image_of(change.scalar(view), tiled, elements, direct_outer=0)
    if image is None or len(image.places) != 2 or len(image.sides) != 3:
        return None
    *plane, channels = image.sides
    for side, place in zip(plane, image.places, strict=True):
        if side.place != place or side.element is None or side.element.extent != WINDOW:
            return None
        if side.scale != 1 or abs(side.slope) != 1:
            return None
    return image if channels.element is not None and channels.slope == 1 else None


def _tiled(places: Axis) -> Axis:
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


def minimal(step: Contraction, panels: Panels) -> Windowed | None:
    """A contraction over windows as one by minimal filtering; None where that does not pay."""
    for way, places, elements in (
        ("minimal places", step.rows, step.inner),
        ("minimal elements", step.inner, step.rows),
    ):
        image = _whole_tiles(step.left, places, elements)
        if image is None:
            continue
        channels, columns = image.sides[-1].axis.extent, panels.columns
        images = size_of([axis.extent for axis in image.outer])
        tiles = images * size_of([axis.extent // RESULTS for axis in image.places])
        if way == "minimal places":
            others = _NUMBERS_CYCLES * channels + _RESULTS_CYCLES * columns
        else:
            others = _NUMBERS_CYCLES * channels * panels.count + _FACTORS_CYCLES * columns
        work = (tiles + _ONCE_TILES) * PLACES * channels * columns + tiles * others
        _, m, n, k = step.extents
        if work < MUST_GAIN * m * n * k:
            return Windowed(step, image, way)
    return None


# Transforms, along one axis -----------------------------------------------------------------------


def _of_numbers(code: Function, numbers: Sequence[Value]) -> list[Value]:
    """Four numbers, transformed."""
    first, second, third, fourth = numbers
    return [
        code.subtract(first, third),
        code.add(second, third),
        code.subtract(third, second),
        code.subtract(second, fourth),
    ]


def _of_weights(code: Function, weights: Sequence[Value]) -> list[Value]:
    """Three weights, transformed."""
    first, second, third = weights
    half = constant(0.5, first.type)
    ends = code.multiply(code.add(first, third), half)
    middle = code.multiply(second, half)
    return [first, code.add(ends, middle), code.subtract(ends, middle), third]


def _of_products(code: Function, products: Sequence[Value]) -> list[Value]:
    """Two results of the products of four transformed numbers and weights."""
    first, second, third, fourth = products
    return [
        code.add(code.add(first, second), third),
        code.subtract(code.subtract(second, third), fourth),
    ]


def _of_factors(code: Function, factors: Sequence[Value]) -> list[Value]:
    """Two gradients of results, transformed, the second and third one twice."""
    first, second = factors
    return [first, code.add(first, second), code.subtract(first, second), second]


def _of_sums(code: Function, sums: Sequence[Value]) -> list[Value]:
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


def _along_both(
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

            rows = _along_both(code, _of_weights, WINDOW, weight)
            for place, value in enumerate(value for row in rows for value in row):
                code.store(value, code.offset(here, place * apart + skipped, kind))
        code.end_loop(loop)


def packed_weights(how: Windowed, panels: Panels) -> PackedWeights:
    """The weights of a contraction in the way of minimal places."""
    taps = _taps_of(how)
    return PackedWeights(panels, PLACES * taps.channels, taps)


# What both ways share -----------------------------------------------------------------------------


class _Minimal(Way):
    """Copies and transforms tiles of numbers."""

    def _measure(self) -> int:
        """Notes the channels and the tiles of a row; gives the rows of tiles."""
        self._channels = self._image.sides[-1].axis.extent
        high, self._wide = (axis.extent // RESULTS for axis in self._image.places)
        return high

    def _apart(self, size: int) -> int:
        """How far apart such matrices lie: an odd number of the cache's lines.

        So what is stored in all 16 of them at once falls on different places of the first cache.
        """
        line = LINE_BYTES // self._bytes
        return (-(-size // line) | 1) * line

    def _numbers(
        self,
        points: Points,
        outer: Value,
        start: Value,
        block: int,
        slots: int,
        copied: Value,
        numbers: Value,
        apart: int,
    ) -> None:
        """Copies some rows of tiles of some outer places, and transforms them."""
        code, size = points.code, self._image.size(RESULTS * block)
        end = code.add(outer, constant(slots, I64))
        first = code.multiply(start, constant(RESULTS, I64))
        with points.loop(self._outer, (), outer, end) as loop:
            past = code.subtract(loop.index, outer)
            image = address(code, copied, [(past, size)], self._element)
            pack_image(points, self._image, RESULTS * block, first, image, self._panels.lanes)
            tiles = block * self._wide * self._channels
            target = address(code, numbers, [(past, tiles)], self._element)
            self._transform(code, image, target, block, apart)
            code.end_loop(loop)

    def _transform(
        self, code: Function, copied: Value, numbers: Value, block: int, apart: int
    ) -> None:
        """Transforms the tiles of an image; the 16 numbers of each lie so far apart."""
        strides, _ = self._image.moves(RESULTS * block)
        down, right = (strides[axis] for axis in self._image.places)
        rows = code.begin_loop(0, block)
        columns = code.begin_loop(0, self._wide)
        moves = [(rows.index, RESULTS * down), (columns.index, RESULTS * right)]
        source = address(code, copied, moves, self._element)
        tile = code.add(code.multiply(rows.index, constant(self._wide, I64)), columns.index)
        target = address(code, numbers, [(tile, self._channels)], self._element)

        def some(channel: Value, lanes: int) -> None:
            here = code.offset(source, channel, self._element)
            to = code.offset(target, channel, self._element)

            def number(row: int, column: int) -> Value:
                place = code.offset(here, row * down + column * right, self._element)
                return code.load(place, Type(self._element, lanes))

            transformed = _along_both(code, _of_numbers, NUMBERS, number)
            for place, value in enumerate(value for row in transformed for value in row):
                code.store(value, code.offset(to, place * apart, self._element))

        lanes = self._panels.lanes
        whole = self._channels - self._channels % lanes
        if whole:
            channels = code.begin_loop(0, whole, lanes)
            some(channels.index, lanes)
            code.end_loop(channels)
        if whole < self._channels:
            some(constant(whole, I64), self._channels - whole)
        code.end_loop(columns)
        code.end_loop(rows)


# Rows are places ----------------------------------------------------------------------------------


@final
class MinimalPlaces(_Minimal):
    """Units are (batch, some outer places, some rows of tiles)."""

    def write(self) -> list[Part]:
        high = self._measure()
        block, slots = self._blocks(high)
        whole, rest = divmod(high, block)
        outer_blocks = self._outer.extent // slots
        each = whole + bool(rest)
        sizes = {"whole": block} | ({"rest": rest} if rest else {})
        for kind, panel, _, _ in self._panels.kinds():
            pitches = [RESULTS * self._wide * panel.width, panel.width]
            rows = self._step.rows[-2:]
            self._write_epilogue(f"{self._name}_{kind}", panel, rows, pitches)
        for label, size in sizes.items():
            self._write_block(label, size, slots)
        code = self._context.module.function(self._name, PART_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        number = code.binary("urem", loop.index, constant(each, I64))
        remaining = code.binary("udiv", loop.index, constant(each, I64))
        outer = code.binary("urem", remaining, constant(outer_blocks, I64))
        batch = code.binary("udiv", remaining, constant(outer_blocks, I64))
        outer = code.multiply(outer, constant(slots, I64))
        start = code.multiply(number, constant(block, I64))
        for label, condition in (("whole", "slt"), ("rest", "eq")):
            if label in sizes:
                with code.when(code.compare(condition, number, constant(whole, I64))):
                    operands = (table, thread, batch, outer, start)
                    code.call_void(f"{self._name}_{label}", *operands)
        code.end_loop(loop)
        code.finish()
        part = self._part(self._batch.extent * outer_blocks * each)
        return [replace(part, cycles=part.cycles * PLACES / (RESULTS * WINDOW) ** 2)]

    def _blocks(self, high: int) -> tuple[int, int]:
        """How many rows of tiles are a block, and how many outer places a unit."""
        processor = self._context.processor
        room = processor.level2_bytes // _CACHE_SHARE // self._bytes
        of_tile = PLACES * (self._channels + self._panels.width)
        tiles = max(room // of_tile, self._most)
        units = self._batch.extent * self._outer.extent
        block = min(high, max(tiles // self._wide, 1))
        while block > 1 and units * -(-high // block) < 4 * processor.threads:
            block = -(-block // 2)
        if block < high:
            return -(-high // -(-high // block)), 1
        fitting = min(tiles // (high * self._wide), units // (2 * processor.threads))
        return block, divisor_near(self._outer.extent, fitting)

    def _write_block(self, label: str, block: int, slots: int) -> None:
        """`block(table, thread, batch, outer, start)`: all results of some rows of tiles."""
        image, kind = self._image, self._element
        tiles = slots * block * self._wide
        numbers_apart = self._apart(tiles * self._channels)
        products_apart = self._apart(tiles * self._panels.width)
        offsets = [0, self._apart(slots * image.size(RESULTS * block))]
        offsets.append(offsets[1] + PLACES * numbers_apart)
        offsets.append(offsets[2] + PLACES * products_apart)
        size = offsets[3] + RESULTS**2 * self._wide * self._panels.width
        self._context.workspaces.need_own(size * self._bytes)
        points = self._begin(f"{self._name}_{label}", ("thread", "batch", "outer", "start"))
        code = points.code
        _, _, batch, outer, start = code.parameters
        own = self._own(code)
        copied, numbers, products, out = (code.offset(own, offset, kind) for offset in offsets)
        with points.bound(self._batch, batch):
            self._numbers(points, outer, start, block, slots, copied, numbers, apart=numbers_apart)

        def over_panel(name: str, panel: Panel, number: Value, column: Value) -> None:
            right = self._right(code, number)
            places = code.begin_loop(0, PLACES)
            left = address(code, numbers, [(places.index, numbers_apart)], kind)
            to = address(code, products, [(places.index, products_apart)], kind)
            here = address(code, right, [(places.index, self._channels * panel.width)], kind)
            self._multiply(code, panel, left, here, to, tiles)
            code.end_loop(places)
            outers = code.begin_loop(0, slots)
            rows = code.begin_loop(0, block)
            row = code.add(code.multiply(outers.index, constant(block, I64)), rows.index)
            source = address(code, products, [(row, self._wide * panel.width)], kind)
            self._transform_back(code, panel, source, out, products_apart)
            zero = constant(0, I64)
            first = code.multiply(code.add(start, rows.index), constant(RESULTS, I64))
            extents = [axis.extent for axis in self._step.rows[-2:]]
            left_over = code.subtract(constant(extents[0], I64), first)
            counts = (code.minimum(left_over, constant(RESULTS, I64)), constant(extents[1], I64))
            code.call_void(
                f"{self._name}_{name}_epilogue",
                *(code.parameters[0], out, batch, code.add(outer, outers.index)),
                *(first, zero, *counts, column),
            )
            code.end_loop(rows)
            code.end_loop(outers)

        self._for_panels(points, over_panel)
        code.finish()

    def _multiply(
        self, code: Function, panel: Panel, left: Value, right: Value, to: Value, tiles: int
    ) -> None:
        """The products at one place: tiles by channels times channels by columns."""
        size = rows_of_tiles(tiles, self._most)

        def kernel(rows: int) -> str:
            tile = Tile(
                tuple(row * self._channels for row in range(rows)),
                tuple(row * panel.width for row in range(rows)),
                panel.vectors,
                panel.lanes,
                panel.last_lanes,
                self._element,
                ((self._channels, 1),),
                panel.width,
                fresh=True,
            )
            return emit_tile(self._context.module, tile)

        whole, rest = divmod(tiles, size)
        loop = code.begin_loop(0, whole)
        at = address(code, left, [(loop.index, size * self._channels)], self._element)
        sums = address(code, to, [(loop.index, size * panel.width)], self._element)
        code.call_void(kernel(size), at, right, sums)
        code.end_loop(loop)
        if rest:
            at = code.offset(left, whole * size * self._channels, self._element)
            sums = code.offset(to, whole * size * panel.width, self._element)
            code.call_void(kernel(rest), at, right, sums)

    def _transform_back(
        self, code: Function, panel: Panel, products: Value, results: Value, apart: int
    ) -> None:
        """Makes two rows of sums of a row of tiles."""
        columns = code.begin_loop(0, self._wide)
        source = address(code, products, [(columns.index, panel.width)], self._element)
        target = address(code, results, [(columns.index, RESULTS * panel.width)], self._element)
        for number in range(panel.vectors):
            last = number == panel.vectors - 1
            vector = Type(self._element, panel.last_lanes if last else panel.lanes)
            here = code.offset(source, number * panel.lanes, self._element)
            to = code.offset(target, number * panel.lanes, self._element)

            def product(row: int, column: int, here: Value = here, vector: Type = vector) -> Value:
                place = (row * NUMBERS + column) * apart
                return code.load(code.offset(here, place, self._element), vector)

            rows = _along_both(code, _of_products, NUMBERS, product)
            for row, values in enumerate(rows):
                for column, value in enumerate(values):
                    place = (row * RESULTS * self._wide + column) * panel.width
                    code.store(value, code.offset(to, place, self._element))
        code.end_loop(columns)


# Rows are elements --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sums:
    """Where the sums of gradients wait, in the shared workspace.

    Attributes:
        pieces: into how many the channels are cut.
        blocks: into how many the tiles are; each has sums of its own.
        apart: elements between the matrices of the 16 places.
    """

    pieces: int
    blocks: int
    apart: int

    @property
    def size(self) -> int:
        """The elements of the sums of a block."""
        return PLACES * self.apart


@final
class MinimalElements(_Minimal):
    """Units are (batch, panel, piece of the channels, block of tiles); then (batch, panel, row)."""

    def write(self) -> list[Part]:
        *plane, channels = self._image.sides
        self._plane = plane
        self._all_channels = channels.axis.extent
        width = self._panels.width
        most = self._context.processor.level2_bytes // _SUMS_SHARE // self._bytes
        piece = _whole_vectors(self._all_channels, most // (PLACES * width), self._panels.lanes)
        pieces = self._all_channels // piece
        self._piece, cut = Axis("piece", pieces), Axis(channels.axis.name, piece)
        place = axis_index(self._piece) * piece + axis_index(cut)
        view = Replacing({channels.axis: place}).scalar(self._image.view)
        sides = (*plane, replace(channels, axis=cut, element=cut))
        self._image = replace(self._image, view=view, sides=sides)
        high = self._measure()
        block, slots = self._chunks(high)
        each = -(-high // block)
        chunks = self._outer.extent // slots * each
        units = self._batch.extent * self._panels.count * pieces
        blocks = min(chunks, -(-_UNITS // units))
        self._sums = _Sums(pieces, blocks, self._apart(piece * width))
        units *= blocks
        self._context.workspaces.need_shared(units * self._sums.size * self._bytes)
        whole, rest = divmod(high, block)
        sizes = {"whole": block} | ({"rest": rest} if rest else {})
        for kind, panel, _, _ in self._panels.kinds():
            for label, size in sizes.items():
                self._write_chunk(f"{self._name}_{kind}_{label}", panel, size, slots)
            self._write_unit(f"{self._name}_{kind}", panel, sizes, slots, (chunks, each, whole))
            self._write_results(f"{self._name}_{kind}", panel)
        return [self._multiplying(units), self._finishing()]

    def _chunks(self, high: int) -> tuple[int, int]:
        """How many rows of tiles are summed up at once, and of how many outer places."""
        room = self._context.processor.level2_bytes // _CACHE_SHARE // self._bytes
        tiles = max(room // (PLACES * (self._channels + self._panels.width)), self._most)
        block = min(high, max(tiles // self._wide, 1))
        if block < high:
            return -(-high // -(-high // block)), 1
        return block, divisor_near(self._outer.extent, tiles // (high * self._wide))

    def _multiplying(self, units: int) -> Part:
        """The part that makes sums of products."""
        code = self._context.module.function(self._name, PART_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        block, remaining = _divided(code, loop.index, self._sums.blocks)
        piece, remaining = _divided(code, remaining, self._sums.pieces)
        panel, batch = _divided(code, remaining, self._panels.count)
        for kind, _, condition, limit in self._panels.kinds():
            with code.when(code.compare(condition, panel, constant(limit, I64))):
                operands = (table, thread, batch, panel, piece, block, loop.index)
                code.call_void(f"{self._name}_{kind}", *operands)
        code.end_loop(loop)
        code.finish()
        part = self._part(units)
        return replace(
            part,
            cycles=part.cycles * PLACES / (RESULTS * WINDOW) ** 2,
            writes=frozenset([self._context.workspaces.SHARED]),
        )

    def _finishing(self) -> Part:
        """The part that makes gradients of them."""
        name = f"{self._name}_results"
        code = self._context.module.function(name, PART_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        channel, remaining = _divided(code, loop.index, self._all_channels)
        panel, batch = _divided(code, remaining, self._panels.count)
        for kind, _, condition, limit in self._panels.kinds():
            with code.when(code.compare(condition, panel, constant(limit, I64))):
                operands = (table, thread, batch, panel, channel)
                code.call_void(f"{self._name}_{kind}_results", *operands)
        code.end_loop(loop)
        code.finish()
        units = self._batch.extent * self._panels.count * self._all_channels
        part = self._part(units)
        cycles = float(units * self._panels.vectors * PLACES * (self._sums.blocks + WINDOW))
        reads = part.reads | {self._context.workspaces.SHARED}
        return replace(part, function=name, cycles=cycles, reads=reads)

    def _write_unit(
        self,
        name: str,
        panel: Panel,
        sizes: Mapping[str, int],
        slots: int,
        chunks: tuple[int, int, int],
    ) -> None:
        """`unit(table, thread, batch, panel, piece, block, number)`: sums of a block of tiles.

        `chunks` are all of them, those of an outer place, and the whole ones among these.
        """
        numbers = ("thread", "batch", "panel", "piece", "block", "number")
        points = self._begin(name, numbers)
        code = points.code
        table, thread, batch, number, piece, block, unit = code.parameters
        sums = self._context.workspaces.shared(code, table)
        sums = address(code, sums, [(unit, self._sums.size)], self._element)
        vector = Type(self._element, panel.lanes)
        fill = code.begin_loop(0, self._sums.size - self._sums.size % panel.lanes, panel.lanes)
        code.store(constant(0, vector), code.offset(sums, fill.index, self._element))
        code.end_loop(fill)
        column = code.multiply(number, constant(self._panels.width, I64))
        count, each, whole = chunks
        blocks = constant(self._sums.blocks, I64)
        following = code.add(block, constant(1, I64))
        first = code.binary("udiv", code.multiply(block, constant(count, I64)), blocks)
        last = code.binary("udiv", code.multiply(following, constant(count, I64)), blocks)
        loop = code.begin_loop(first, last)
        row, outer = _divided(code, loop.index, each)
        outer = code.multiply(outer, constant(slots, I64))
        start = code.multiply(row, constant(sizes["whole"], I64))
        for label, condition in (("whole", "slt"), ("rest", "eq")):
            if label in sizes:
                with code.when(code.compare(condition, row, constant(whole, I64))):
                    operands = (table, thread, batch, outer, start, column, piece, sums)
                    code.call_void(f"{name}_{label}", *operands)
        code.end_loop(loop)
        code.finish()

    def _write_chunk(self, name: str, panel: Panel, block: int, slots: int) -> None:
        """`chunk(table, thread, batch, outer, start, column, piece, sums)`: adds some tiles."""
        kind = self._element
        tiles = slots * block * self._wide
        numbers_apart = self._apart(tiles * self._channels)
        factors_apart = self._apart(tiles * panel.width)
        offsets = [0, self._apart(slots * self._image.size(RESULTS * block))]
        offsets.append(offsets[1] + PLACES * numbers_apart)
        size = offsets[2] + PLACES * factors_apart
        self._context.workspaces.need_own(size * self._bytes)
        parameters = (
            *(("table", POINTER), ("thread", I64), ("batch", I64), ("outer", I64)),
            *(("start", I64), ("column", I64), ("piece", I64), ("sums", POINTER)),
        )
        points = self._context.begin(name, parameters, reads_of(self._step))
        code = points.code
        _, _, batch, outer, start, column, piece, sums = code.parameters
        own = self._own(code)
        copied, numbers, factors = (code.offset(own, offset, kind) for offset in offsets)
        with points.bound(self._batch, batch), points.bound(self._piece, piece):
            self._numbers(points, outer, start, block, slots, copied, numbers, apart=numbers_apart)
            self._factors(
                points, panel, outer, start, column, block, slots, factors, apart=factors_apart
            )
        places = code.begin_loop(0, PLACES)
        left = address(code, numbers, [(places.index, numbers_apart)], kind)
        right = address(code, factors, [(places.index, factors_apart)], kind)
        to = address(code, sums, [(places.index, self._sums.apart)], kind)
        rows = rows_of_tiles(self._channels, self._most)
        whole, rest = divmod(self._channels, rows)
        loop = code.begin_loop(0, whole)
        at = address(code, left, [(loop.index, rows)], kind)
        there = address(code, to, [(loop.index, rows * panel.width)], kind)
        code.call_void(self._kernel(panel, rows, tiles), at, right, there)
        code.end_loop(loop)
        if rest:
            at = code.offset(left, whole * rows, kind)
            there = code.offset(to, whole * rows * panel.width, kind)
            code.call_void(self._kernel(panel, rest, tiles), at, right, there)
        code.end_loop(places)
        code.finish()

    def _kernel(self, panel: Panel, rows: int, tiles: int) -> str:
        tile = Tile(
            tuple(range(rows)),
            tuple(row * panel.width for row in range(rows)),
            panel.vectors,
            panel.lanes,
            panel.last_lanes,
            self._element,
            ((tiles, self._channels),),
            panel.width,
        )
        return emit_tile(self._context.module, tile)

    def _factors(
        self,
        points: Points,
        panel: Panel,
        outer: Value,
        start: Value,
        column: Value,
        block: int,
        slots: int,
        factors: Value,
        apart: int,
    ) -> None:
        """Transforms the tiles of the right operand."""
        code, view, places = points.code, self._right_view(), self._image.places
        end = code.add(outer, constant(slots, I64))
        with points.loop(self._outer, (), outer, end) as outers:
            past = code.subtract(outers.index, outer)
            rows = code.begin_loop(0, block)
            with points.bound(TILE, rows.index, before=rows.before):
                row = code.add(code.multiply(past, constant(block, I64)), rows.index)
                first = code.multiply(code.add(start, rows.index), constant(RESULTS, I64))
                columns = code.begin_loop(0, self._wide)
                with points.bound(TILE, columns.index, before=columns.before):
                    tile = code.add(code.multiply(row, constant(self._wide, I64)), columns.index)
                    target = address(code, factors, [(tile, panel.width)], self._element)
                    second = code.multiply(columns.index, constant(RESULTS, I64))
                    for number in range(panel.vectors):
                        skipped = number * panel.lanes
                        base = code.add(column, constant(skipped, I64))

                        def factor(
                            down: int, right: int, base: Value = base, number: int = number
                        ) -> Value:
                            along = (first, down), (second, right)
                            at = [code.add(one, constant(more, I64)) for one, more in along]
                            with (
                                points.bound(places[0], at[0]),
                                points.bound(places[1], at[1]),
                                points.along(self._column, base, panel.present(number)),
                            ):
                                return code.padded(points.vector(view), panel.lanes, 0)

                        transformed = _along_both(code, _of_factors, RESULTS, factor)
                        here = code.offset(target, skipped, self._element)
                        for place, value in enumerate(v for line in transformed for v in line):
                            code.store(value, code.offset(here, place * apart, self._element))
                    code.end_loop(columns)
                code.end_loop(rows)
            code.end_loop(outers)

    def _right_view(self) -> Scalar:
        """The right operand over whole tiles, with zeros where there is none."""
        inner = self._step.inner[-2:]
        _, of_outer = flattened(self._image.outer, self._outer.name)
        replacements = {axis: axis_index(_tiled(axis)) for axis in inner}
        bounds = tuple(Bound(axis_index(axis), 0, axis.extent) for axis in inner)
        return Replacing(of_outer | replacements).scalar(_bounded(self._step.right, bounds))

    def _write_results(self, name: str, panel: Panel) -> None:
        """`results(table, thread, batch, panel, channel)`: gradients of all elements of windows."""
        elements = [side.element for side in self._plane if side.element is not None]
        channel_axis = next(axis for axis in self._step.rows if axis not in elements)
        pitches = [WINDOW * panel.width, panel.width, 0]
        self._write_epilogue(name, panel, [*elements, channel_axis], pitches)
        self._context.workspaces.need_own(WINDOW**2 * panel.width * self._bytes)
        points = self._begin(f"{name}_results", ("thread", "batch", "panel", "channel"))
        code = points.code
        table, _, batch, number, channel = code.parameters
        own = self._own(code)
        shared = self._context.workspaces.shared(code, table)
        row, piece = _divided(code, channel, self._channels)
        before = code.add(code.multiply(batch, constant(self._panels.count, I64)), number)
        before = code.add(code.multiply(before, constant(self._sums.pieces, I64)), piece)
        moves = [(before, self._sums.blocks * self._sums.size), (row, panel.width)]
        source = address(code, shared, moves, self._element)
        order = [range(WINDOW)[:: side.slope] for side in self._plane]
        for vector in range(panel.vectors):
            here = code.offset(source, vector * panel.lanes, self._element)
            of_vector = Type(self._element, panel.lanes)

            def loaded(base: Value, place: int, of_vector: Type = of_vector) -> Value:
                return code.load(
                    code.offset(base, place * self._sums.apart, self._element), of_vector
                )

            zeros = [constant(0, of_vector)] * PLACES
            loop = code.begin_loop(0, self._sums.blocks, 1, zeros)
            block = address(code, here, [(loop.index, self._sums.size)], self._element)
            added = [
                code.add(total, loaded(block, place)) for place, total in enumerate(loop.carried)
            ]
            totals = code.end_loop(loop, added)

            def total(down: int, right: int, totals: Sequence[Value] = totals) -> Value:
                return totals[down * NUMBERS + right]

            rows = _along_both(code, _of_sums, NUMBERS, total)
            for down, values in zip(order[0], rows, strict=True):
                for right, value in zip(order[1], values, strict=True):
                    place = (down * WINDOW + right) * panel.width + vector * panel.lanes
                    code.store(value, code.offset(own, place, self._element))
        zero, one, all_ = (constant(value, I64) for value in (0, 1, WINDOW))
        column = code.multiply(number, constant(self._panels.width, I64))
        operands = (table, own, batch, zero, zero, zero, channel, all_, all_, one, column)
        code.call_void(f"{name}_epilogue", *operands)
        code.finish()


def _divided(code: Function, number: Value, by: int) -> tuple[Value, Value]:
    """The remainder and the quotient."""
    divisor = constant(by, I64)
    return code.binary("urem", number, divisor), code.binary("udiv", number, divisor)


def _whole_vectors(channels: int, most: int, lanes: int) -> int:
    """The largest part of the channels, of whole vectors, that is not above `most`, if any is."""
    parts = [part for part in range(lanes, channels + 1, lanes) if channels % part == 0]
    return max((part for part in parts if part <= most), default=min([*parts, channels]))


def _bounded(view: Scalar, bounds: Sequence[Bound]) -> Scalar:
    """The view, with zeros where one of the bounds fails."""
    if isinstance(view, Apply):
        operands = tuple(_bounded(operand, bounds) for operand in view.operands)
        return Apply(view.primitive, operands, view.dtype)
    return replace(view, bounds=(*view.bounds, *bounds)) if isinstance(view, Load) else view
