"""What both of Winograd's algorithms for convolutions do; see `decide/winograd.py`.

All transformed numbers lie as matrices, one for each place of a tile; products of these matrices
are made by the same kernels as other contractions'. Where a number is infinite, results that depend
on it may be NaN instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lamina.codegen.filtering import RESULTS, Filtering
from lamina.codegen.llvm import Function
from lamina.codegen.values import I64, Type, Value, constant
from lamina.engines.cpu.decide.panels import Panel
from lamina.engines.cpu.decide.schedule import WindowSchedule
from lamina.engines.cpu.decide.tiles import rows_of_tiles
from lamina.engines.cpu.decide.windows import Windowed, filtering_of
from lamina.engines.cpu.decide.winograd import chunks_of
from lamina.engines.cpu.emit.context import Context, Points
from lamina.engines.cpu.emit.row_tiles import address
from lamina.engines.cpu.emit.tiles import Tile, emit_tile
from lamina.engines.cpu.emit.transforms import Stored, along_both
from lamina.engines.cpu.emit.windows import WindowWriter
from lamina.engines.cpu.processor import LINE_BYTES
from lamina.records import frozen_dataclass


@frozen_dataclass
class Chunk:
    """Rows of tiles, while code for them is written.

    Attributes:
        outer, start: the first outer place and the first row.
        images, block: how many.
    """

    outer: Value
    start: Value
    images: int
    block: int


@frozen_dataclass
class Matrices:
    """A matrix for each place of a tile.

    Attributes:
        start: where the first one begins.
        apart: how many elements lie between the beginnings of two.
    """

    start: Value
    apart: int


@frozen_dataclass
class _TileOfNumbers:
    """A tile of all channels, while it is transformed.

    Attributes:
        source: where its numbers begin.
        down, right: how many elements lie between two rows, and between two columns.
        target: where the transformed ones begin.
    """

    source: Value
    down: int
    right: int
    target: Matrices


class TransformedTiles(WindowWriter):
    """Tiles of numbers are copied, transformed and multiplied."""

    def __init__(
        self, context: Context, name: str, how: Windowed, schedule: WindowSchedule
    ) -> None:
        super().__init__(context, name, how, schedule)
        self._channels = schedule.channels
        self._wide = how.image.places[1].extent // RESULTS
        self._chunks = chunks_of(how, schedule.block, schedule.images)

    @property
    def _filtering(self) -> Filtering:
        return filtering_of(self._image)

    @property
    def _window(self) -> int:
        return self._filtering.window

    @property
    def _products(self) -> int:
        """The products of a tile for each channel."""
        return self._filtering.products

    def _apart(self, size: int) -> int:
        """How far apart matrices of a size lie: an odd number of the cache's lines.

        So what is stored in all of them at once falls on different places of the first cache.
        """
        line = LINE_BYTES // self._bytes
        return (-(-size // line) | 1) * line

    def _places(self, sizes: Sequence[int]) -> list[int]:
        """Where memory of such sizes lies, one after the other; at last where it ends."""
        places = [0]
        for size in sizes:
            places.append(places[-1] + self._apart(size))
        self._context.workspaces.need_own(places[-1] * self._bytes)
        return places

    def _over_chunk(self, code: Function, number: Value) -> Iterator[tuple[str, Value, Value]]:
        """For each kind of chunk, where this one is of it: name, first outer position and row."""
        cut = self._chunks
        row, outer = divided(code, number, cut.each)
        outer = code.multiply(outer, constant(cut.images, I64))
        start = code.multiply(row, constant(cut.block, I64))
        for label, _, condition in cut.sizes():
            with code.when(code.compare(condition, row, constant(cut.whole, I64))):
                yield label, outer, start

    def _numbers(self, points: Points, chunk: Chunk, copied: Value, numbers: Matrices) -> None:
        """Copies the images of a chunk and transforms them."""
        code, places = points.code, RESULTS * chunk.block
        end = code.add(chunk.outer, constant(chunk.images, I64))
        first = code.multiply(chunk.start, constant(RESULTS, I64))
        with points.loop(self._outer, (), chunk.outer, end) as loop:
            past = code.subtract(loop.index, chunk.outer)
            image = address(code, copied, [(past, self._image.size(places))], self._element)
            self._copy_image(points, places, first, image)
            skipped = chunk.block * self._wide * self._channels
            target = address(code, numbers.start, [(past, skipped)], self._element)
            self._transform(code, image, chunk.block, Matrices(target, numbers.apart))
            code.end_loop(loop)

    def _transform(self, code: Function, copied: Value, block: int, numbers: Matrices) -> None:
        """Transforms the tiles of an image."""
        strides, _ = self._image.moves(RESULTS * block)
        down, right = (strides[axis] for axis in self._image.places)
        rows = code.begin_loop(0, block)
        columns = code.begin_loop(0, self._wide)
        moves = [(rows.index, RESULTS * down), (columns.index, RESULTS * right)]
        source = address(code, copied, moves, self._element)
        tile = code.add(code.multiply(rows.index, constant(self._wide, I64)), columns.index)
        target = address(code, numbers.start, [(tile, self._channels)], self._element)

        one = _TileOfNumbers(source, down, right, Matrices(target, numbers.apart))
        lanes = self._panels.lanes
        whole = self._channels - self._channels % lanes
        if whole:
            channels = code.begin_loop(0, whole, lanes)
            self._transform_some(code, one, channels.index, lanes)
            code.end_loop(channels)
        if whole < self._channels:
            self._transform_some(code, one, constant(whole, I64), self._channels - whole)
        code.end_loop(columns)
        code.end_loop(rows)

    def _transform_some(
        self, code: Function, one: _TileOfNumbers, channel: Value, lanes: int
    ) -> None:
        """Transforms some channels of a tile, from one on."""
        here = code.offset(one.source, channel, self._element)
        square = Stored(code, here, 0, one.down, one.right, Type(self._element, lanes))
        to = Matrices(code.offset(one.target.start, channel, self._element), one.target.apart)
        self._scatter(code, along_both(code, self._filtering.data_transform, square), to)

    def _scatter(self, code: Function, tile: Sequence[Sequence[Value]], to: Matrices) -> None:
        """Stores a transformed tile, each of its places in a matrix of its own."""
        for place, value in enumerate(value for row in tile for value in row):
            code.store(value, code.offset(to.start, place * to.apart, self._element))

    def _vectors(self, code: Function, panel: Panel, start: Value) -> list[Value]:
        """The vectors of a row of a panel."""
        vectors: list[Value] = []
        for number in range(panel.vectors):
            last = number == panel.vectors - 1
            vector = Type(self._element, panel.last_lanes if last else panel.lanes)
            vectors.append(
                code.load(code.offset(start, number * panel.lanes, self._element), vector)
            )
        return vectors

    def _multiply(
        self,
        code: Function,
        panel: Panel,
        operands: tuple[Matrices, Matrices, Matrices],
        rows: tuple[int, int],
        inner: tuple[int, int],
        *,
        fresh: bool,
    ) -> None:
        """Products of matrices.

        Args:
            code: where to write.
            panel: the columns of the right ones and the sums; their rows are one after the other.
            operands: left, right, and the sums.
            rows: of the left ones, how many there are and how far apart.
            inner: the same of k.
            fresh: whether sums begin at zero, and not with what is there.
        """
        count, stride = rows
        size = rows_of_tiles(count, self._schedule.rows)
        tile = Tile(
            tuple(row * stride for row in range(size)),
            tuple(row * panel.width for row in range(size)),
            panel.vectors,
            panel.lanes,
            panel.last_lanes,
            self._element,
            (inner,),
            panel.width,
            self._schedule.unrolled,
            fresh=fresh,
        )
        places = code.begin_loop(0, self._products)
        left, right, sums = (
            address(code, one.start, [(places.index, one.apart)], self._element) for one in operands
        )
        whole, rest = divmod(count, size)
        loop = code.begin_loop(0, whole)
        at = address(code, left, [(loop.index, size * stride)], self._element)
        to = address(code, sums, [(loop.index, size * panel.width)], self._element)
        code.call_void(emit_tile(self._context.module, tile), at, right, to)
        code.end_loop(loop)
        if rest:
            at = code.offset(left, whole * size * stride, self._element)
            to = code.offset(sums, whole * size * panel.width, self._element)
            last = replace(tile, rows=tile.rows[:rest], sums=tile.sums[:rest])
            code.call_void(emit_tile(self._context.module, last), at, right, to)
        code.end_loop(places)


def divided(code: Function, number: Value, by: int) -> tuple[Value, Value]:
    """The remainder and the quotient."""
    divisor = constant(by, I64)
    return code.binary("urem", number, divisor), code.binary("udiv", number, divisor)
