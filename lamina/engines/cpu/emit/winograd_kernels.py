"""Contractions over windows by minimal filtering: what `winograd.py` explains, written out.

All transformed numbers lie as matrices, one for each place of a tile; products of these matrices
are made by the same kernels as other contractions'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

from lamina.codegen.axes import flattened
from lamina.codegen.llvm import Function
from lamina.codegen.values import I32, I64, POINTER, Type, Value, constant
from lamina.engines.cpu.decide.panels import Panel
from lamina.engines.cpu.decide.tiles import rows_of_tiles
from lamina.engines.cpu.decide.work import Work
from lamina.engines.cpu.emit.context import PART_PARAMETERS, Part, Points
from lamina.engines.cpu.emit.image import pack_image
from lamina.engines.cpu.emit.tiles import Tile, emit_tile
from lamina.engines.cpu.emit.windows import Way, address, divisor_near, start_of_part
from lamina.engines.cpu.emit.winograd import (
    RESULTS,
    Filtering,
    PackedWeights,
    along_both,
    filtering_of,
    tiled,
)
from lamina.engines.cpu.emit.zeros import cleared, columns_seen, columns_set, write_narrowing
from lamina.engines.cpu.processor import LINE_BYTES
from lamina.program.index import Axis, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Bound, Load, Scalar
from lamina.program.steps import reads_of
from lamina.records import frozen_dataclass

# What is transformed of some tiles takes such a share of the second cache, and sums of gradients
# that wait such a one.
_CACHE_SHARE, _SUMS_SHARE = 2, 8
# Gradients of weights are cut into so many units, whatever the number of threads.
_UNITS = 16


@frozen_dataclass
class _Cut:
    """How tiles are cut into chunks.

    Attributes:
        block: so many rows of tiles of an outer place are a chunk.
        slots: or all rows of so many outer places.
        whole: how many whole blocks the rows are.
        rest: the rows that are left.
    """

    block: int
    slots: int
    whole: int
    rest: int

    @property
    def each(self) -> int:
        """The blocks of an outer place."""
        return self.whole + bool(self.rest)

    def sizes(self) -> list[tuple[str, int, str]]:
        """The chunks that differ: a name, the rows, and how their number compares to `whole`."""
        sizes = [("whole", self.block, "slt"), ("rest", self.rest, "eq")]
        return [one for one in sizes if one[1]]


@frozen_dataclass
class _Chunk:
    """Rows of tiles, while code for them is written.

    Attributes:
        outer, start: the first outer place and the first row.
        slots, block: how many.
    """

    outer: Value
    start: Value
    slots: int
    block: int


@frozen_dataclass
class _Matrices:
    """A matrix for each place of a tile.

    Attributes:
        start: where the first one begins.
        apart: how many elements lie between the beginnings of two.
    """

    start: Value
    apart: int


class _Minimal(Way):
    """What both ways share: tiles of numbers are copied, transformed and multiplied."""

    def _measure(self) -> int:
        """Notes the channels and the tiles of a row; gives the rows of tiles."""
        self._channels = self._image.sides[-1].axis.extent
        high, self._wide = (axis.extent // RESULTS for axis in self._image.places)
        return high

    @property
    def _filtering(self) -> Filtering:
        return filtering_of(self._image)

    @property
    def _window(self) -> int:
        return self._filtering.window

    @property
    def _products(self) -> int:
        """The products of a tile for each channel."""
        return self._filtering.places

    @property
    def _gain(self) -> float:
        """The share of multiplications that is left."""
        return self._products / (RESULTS * self._window) ** 2

    def _fitting(self) -> int:
        """How many tiles fit the cache, with what is made of them."""
        room = self._context.processor.level2_bytes // _CACHE_SHARE // self._bytes
        return max(room // (self._products * (self._channels + self._panels.width)), self._most)

    def _cut_into(self, high: int, block: int, outers: int) -> _Cut:
        """Chunks of about so many rows, or of at most so many outer places."""
        if block < high:
            block = -(-high // -(-high // block))
            return _Cut(block, 1, *divmod(high, block))
        return _Cut(high, divisor_near(self._outer.extent, outers), 1, 0)

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

    def _with_chunk(
        self, code: Function, cut: _Cut, number: Value, body: Callable[[str, Value, Value], None]
    ) -> None:
        """Calls `body(name, outer, start)` for each kind of chunk, where this one is of it."""
        row, outer = _divided(code, number, cut.each)
        outer = code.multiply(outer, constant(cut.slots, I64))
        start = code.multiply(row, constant(cut.block, I64))
        for label, _, condition in cut.sizes():
            with code.when(code.compare(condition, row, constant(cut.whole, I64))):
                body(label, outer, start)

    def _numbers(self, points: Points, chunk: _Chunk, copied: Value, numbers: _Matrices) -> None:
        """Copies the images of a chunk and transforms them."""
        code, places = points.code, RESULTS * chunk.block
        end = code.add(chunk.outer, constant(chunk.slots, I64))
        first = code.multiply(chunk.start, constant(RESULTS, I64))
        with points.loop(self._outer, (), chunk.outer, end) as loop:
            past = code.subtract(loop.index, chunk.outer)
            image = address(code, copied, [(past, self._image.size(places))], self._element)
            pack_image(points, self._image, places, first, image, self._panels.lanes)
            skipped = chunk.block * self._wide * self._channels
            target = address(code, numbers.start, [(past, skipped)], self._element)
            self._transform(code, image, chunk.block, _Matrices(target, numbers.apart))
            code.end_loop(loop)

    def _transform(self, code: Function, copied: Value, block: int, numbers: _Matrices) -> None:
        """Transforms the tiles of an image."""
        strides, _ = self._image.moves(RESULTS * block)
        down, right = (strides[axis] for axis in self._image.places)
        rows = code.begin_loop(0, block)
        columns = code.begin_loop(0, self._wide)
        moves = [(rows.index, RESULTS * down), (columns.index, RESULTS * right)]
        source = address(code, copied, moves, self._element)
        tile = code.add(code.multiply(rows.index, constant(self._wide, I64)), columns.index)
        target = address(code, numbers.start, [(tile, self._channels)], self._element)

        def some(channel: Value, lanes: int) -> None:
            here = code.offset(source, channel, self._element)

            def number(row: int, column: int) -> Value:
                place = code.offset(here, row * down + column * right, self._element)
                return code.load(place, Type(self._element, lanes))

            to = _Matrices(code.offset(target, channel, self._element), numbers.apart)
            self._scatter(code, along_both(code, self._filtering.of_numbers, number), to)

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

    def _scatter(self, code: Function, tile: Sequence[Sequence[Value]], to: _Matrices) -> None:
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
        operands: tuple[_Matrices, _Matrices, _Matrices],
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
        size = rows_of_tiles(count, self._most)

        def kernel(present: int) -> str:
            tile = Tile(
                tuple(row * stride for row in range(present)),
                tuple(row * panel.width for row in range(present)),
                panel.vectors,
                panel.lanes,
                panel.last_lanes,
                self._element,
                (inner,),
                panel.width,
                fresh=fresh,
            )
            return emit_tile(self._context.module, tile)

        places = code.begin_loop(0, self._products)
        left, right, sums = (
            address(code, one.start, [(places.index, one.apart)], self._element) for one in operands
        )
        whole, rest = divmod(count, size)
        loop = code.begin_loop(0, whole)
        at = address(code, left, [(loop.index, size * stride)], self._element)
        to = address(code, sums, [(loop.index, size * panel.width)], self._element)
        code.call_void(kernel(size), at, right, to)
        code.end_loop(loop)
        if rest:
            at = code.offset(left, whole * size * stride, self._element)
            to = code.offset(sums, whole * size * panel.width, self._element)
            code.call_void(kernel(rest), at, right, to)
        code.end_loop(places)


def _divided(code: Function, number: Value, by: int) -> tuple[Value, Value]:
    """The remainder and the quotient."""
    divisor = constant(by, I64)
    return code.binary("urem", number, divisor), code.binary("udiv", number, divisor)


# Rows are places ----------------------------------------------------------------------------------


@final
class MinimalPlaces(_Minimal):
    """Units are (batch, chunk of tiles)."""

    def write(self) -> list[Part]:
        self._rows = self._step.rows[-2:]
        cut = self._chunks(self._measure())
        for kind, panel, _, _ in self._panels.kinds():
            pitches = [RESULTS * self._wide * panel.width, panel.width]
            self._write_epilogue(f"{self._name}_{kind}", panel, self._rows, pitches)
        for label, block, _ in cut.sizes():
            self._write_chunk(label, block, cut.slots)
        code = self._context.module.function(self._name, PART_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        chunks = self._outer.extent // cut.slots * cut.each
        chunk, batch = _divided(code, loop.index, chunks)

        def one(label: str, outer: Value, start: Value) -> None:
            code.call_void(f"{self._name}_{label}", table, thread, batch, outer, start)

        self._with_chunk(code, cut, chunk, one)
        code.end_loop(loop)
        code.finish()
        part = self._part(self._batch.extent * chunks)
        return [replace(part, work=Work(part.work.items, part.work.cycles * self._gain))]

    def _chunks(self, high: int) -> _Cut:
        """So many tiles as fit the cache, if there are some for all threads."""
        threads, tiles = self._context.processor.threads, self._fitting()
        units = self._batch.extent * self._outer.extent
        block = min(high, max(tiles // self._wide, 1))
        while block > 1 and units * -(-high // block) < 4 * threads:
            block = -(-block // 2)
        return self._cut_into(
            high, block, min(tiles // (high * self._wide), units // (2 * threads))
        )

    def _write_chunk(self, label: str, block: int, slots: int) -> None:
        """`chunk(table, thread, batch, outer, start)`: all results of some rows of tiles."""
        width, tiles = self._panels.width, slots * block * self._wide
        numbers_apart, products_apart = (
            self._apart(tiles * size) for size in (self._channels, width)
        )
        image = slots * self._image.size(RESULTS * block)
        sizes = (
            image,
            self._products * numbers_apart,
            self._products * products_apart,
        )
        *places, _ = self._places((*sizes, RESULTS**2 * self._wide * width))
        points = self._begin(f"{self._name}_{label}", ("thread", "batch", "outer", "start"))
        code = points.code
        table, _, batch, outer, start = code.parameters
        own = self._own(code)
        copied, numbers, products, out = (code.offset(own, at, self._element) for at in places)
        left = _Matrices(numbers, numbers_apart)
        with points.bound(self._batch, batch):
            self._numbers(points, _Chunk(outer, start, slots, block), copied, left)
        strides, _ = self._image.moves(RESULTS * block)
        down, right = (strides[axis] for axis in self._image.places)
        for kind, panel, _, _ in self._panels.kinds():
            self._write_zeros(f"{self._name}_{kind}_{label}_zeros", panel, (down, right))
        apart = self._image.size(RESULTS * block)

        def over_panel(kind: str, panel: Panel, number: Value, column: Value) -> None:
            packed = self._packed_weights
            right = _Matrices(self._right(code, number), self._channels * panel.width)
            said = code.offset(right.start, packed.has_zeros * panel.width, self._element)
            has_zeros = code.compare("ne", code.load(said, I32), constant(0, I32))
            words = code.offset(said, panel.width, self._element)
            sums = _Matrices(products, products_apart)
            rows, inner = (tiles, self._channels), (self._channels, 1)
            self._multiply(code, panel, (left, right, sums), rows, inner, fresh=True)
            outers = code.begin_loop(0, slots)
            loop = code.begin_loop(0, block)
            row = code.add(code.multiply(outers.index, constant(block, I64)), loop.index)
            source = address(code, products, [(row, self._wide * panel.width)], self._element)
            self._transform_back(code, panel, _Matrices(source, products_apart), out)
            with code.when(has_zeros):
                moves = [(outers.index, apart), (loop.index, RESULTS * down)]
                seen = address(code, copied, moves, self._element)
                code.call_void(f"{self._name}_{kind}_{label}_zeros", seen, words, out)
            first = code.multiply(code.add(start, loop.index), constant(RESULTS, I64))
            high, wide = (constant(axis.extent, I64) for axis in self._rows)
            present = code.minimum(code.subtract(high, first), constant(RESULTS, I64))
            code.call_void(
                f"{self._name}_{kind}_epilogue",
                *(table, out, batch, code.add(outer, outers.index)),
                *(first, constant(0, I64), present, wide, column),
            )
            code.end_loop(loop)
            code.end_loop(outers)

        self._for_panels(points, over_panel)
        code.finish()

    @property
    def _packed_weights(self) -> PackedWeights:
        assert isinstance(self._packed, PackedWeights)
        return self._packed

    def _write_zeros(self, name: str, panel: Panel, steps: tuple[int, int]) -> None:
        """`zeros(numbers, words, results)`: exact zeros in two rows of sums of a row of tiles.

        Where no weight is zero, tiles have them: no sum sees numbers outside its window. A weight
        that is zero cancels only in theory, among those that are transformed with it.

        Args:
            name: of the function.
            panel: the columns.
            steps: how far apart the numbers of places lie, down and to the right.
        """
        parameters = (("numbers", POINTER), ("words", POINTER), ("results", POINTER))
        code = self._context.module.function(name, parameters)
        numbers, words, results = code.parameters
        row = code.begin_loop(0, RESULTS)
        column = code.begin_loop(0, RESULTS * self._wide)
        place = code.multiply(row.index, constant(RESULTS * self._wide, I64))
        place = code.add(place, column.index)
        result = address(code, results, [(place, panel.width)], self._element)
        sums = self._vectors(code, panel, result)
        word = columns_set(code, panel, sums)
        with code.when(code.compare("ne", word, constant(0, I32))):
            moves = [(row.index, steps[0]), (column.index, steps[1])]
            seen = address(code, numbers, moves, self._element)
            word = self._zeros_of_window(code, word, seen, words, steps)
            with code.when(code.compare("ne", word, constant(0, I32))):
                for number, value in enumerate(sums):
                    target = code.offset(result, number * panel.lanes, self._element)
                    code.store(cleared(code, panel, number, value, word), target)
        code.end_loop(column)
        code.end_loop(row)
        code.finish()

    def _zeros_of_window(
        self, code: Function, word: Value, numbers: Value, words: Value, steps: tuple[int, int]
    ) -> Value:
        """The bits of a word whose results have no number and weight that are both not zero."""
        lanes, channels = self._panels.lanes, self._channels
        whole = channels - channels % lanes

        def narrowed(zeros: Value, start: Value, factors: Value, present: int) -> Value:
            number = code.load(start, Type(self._element, present))
            weights = code.load(factors, Type("i32", present))
            is_set = code.compare("une", number, constant(0, number.type))
            weights = code.select(is_set, weights, constant(0, weights.type))
            others = code.binary("xor", weights, constant(-1, weights.type))
            return code.binary("and", zeros, code.padded(others, lanes, -1))

        down = code.begin_loop(0, self._window, 1, [code.splat(word, lanes)])
        right = code.begin_loop(0, self._window, 1, down.carried)
        moves = [(down.index, steps[0]), (right.index, steps[1])]
        start = address(code, numbers, moves, self._element)
        moves = [(down.index, self._window * channels), (right.index, channels)]
        factors = address(code, words, moves, "i32")
        (zeros,) = right.carried
        if whole:
            loop = code.begin_loop(0, whole, lanes, [zeros])
            here = code.offset(start, loop.index, self._element)
            there = code.offset(factors, loop.index, "i32")
            (zeros,) = code.end_loop(loop, [narrowed(loop.carried[0], here, there, lanes)])
        if whole < channels:
            here = code.offset(start, whole, self._element)
            there = code.offset(factors, whole, "i32")
            zeros = narrowed(zeros, here, there, channels - whole)
        for loop in (right, down):
            going = code.compare("ne", code.all_bits(zeros), constant(0, I32))
            (zeros,) = code.end_loop(loop, [zeros], going)
        return code.all_bits(zeros)

    def _transform_back(
        self, code: Function, panel: Panel, products: _Matrices, results: Value
    ) -> None:
        """Makes two rows of sums of a row of tiles."""
        columns = code.begin_loop(0, self._wide)
        source = address(code, products.start, [(columns.index, panel.width)], self._element)
        target = address(code, results, [(columns.index, RESULTS * panel.width)], self._element)
        for number in range(panel.vectors):
            last = number == panel.vectors - 1
            vector = Type(self._element, panel.last_lanes if last else panel.lanes)
            skipped = number * panel.lanes

            def product(
                row: int, column: int, skipped: int = skipped, vector: Type = vector
            ) -> Value:
                place = (row * self._filtering.numbers + column) * products.apart + skipped
                return code.load(code.offset(source, place, self._element), vector)

            for row, values in enumerate(along_both(code, self._filtering.of_products, product)):
                for column, value in enumerate(values):
                    place = (row * RESULTS * self._wide + column) * panel.width + skipped
                    code.store(value, code.offset(target, place, self._element))
        code.end_loop(columns)


# Rows are elements --------------------------------------------------------------------------------


@final
class MinimalElements(_Minimal):
    """Units are (batch, panel, piece of the channels, block of chunks), each with its own sums.

    They wait in the shared workspace; what is made of them has units of (batch, panel, channel).
    """

    def write(self) -> list[Part]:
        *plane, channels = self._image.sides
        self._plane = plane
        self._all_channels = channels.axis.extent
        size = self._piece_size()
        self._piece = Axis("piece", self._all_channels // size)
        within = Axis(channels.axis.name, size)
        place = axis_index(self._piece) * size + axis_index(within)
        self._image = replace(
            self._image,
            view=Rewrite({channels.axis: place}).scalar(self._image.view),
            sides=(*plane, replace(channels, axis=within, element=within)),
        )
        high, tiles = self._measure(), self._fitting()
        block = min(high, max(tiles // self._wide, 1))
        cut = self._cut_into(high, block, tiles // (high * self._wide))
        chunks = self._outer.extent // cut.slots * cut.each
        units = self._batch.extent * self._panels.count * self._piece.extent
        self._blocks = min(chunks, -(-_UNITS // units))
        self._sums_apart = self._apart(self._channels * self._panels.width)
        units *= self._blocks
        self._context.need_shared(units * self._products * self._sums_apart * self._bytes)
        for kind, panel, _, _ in self._panels.kinds():
            for label, rows, _ in cut.sizes():
                self._write_chunk(f"{self._name}_{kind}_{label}", panel, rows, cut.slots)
            self._write_unit(f"{self._name}_{kind}", panel, cut, chunks)
            self._write_gradients(f"{self._name}_{kind}", panel)
        return [self._summing(units), self._finishing()]

    def _piece_size(self) -> int:
        """How many channels have sums at once: whole vectors, so many as fit their share."""
        lanes, channels = self._panels.lanes, self._all_channels
        most = self._context.processor.level2_bytes // _SUMS_SHARE // self._bytes
        most //= self._products * self._panels.width
        sizes = [size for size in range(lanes, channels + 1, lanes) if channels % size == 0]
        return max((size for size in sizes if size <= most), default=min([*sizes, channels]))

    def _summing(self, units: int) -> Part:
        """The part that makes sums of products."""
        code = self._context.module.function(self._name, PART_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        block, remaining = _divided(code, loop.index, self._blocks)
        piece, remaining = _divided(code, remaining, self._piece.extent)
        panel, batch = _divided(code, remaining, self._panels.count)
        for kind, _, condition, limit in self._panels.kinds():
            with code.when(code.compare(condition, panel, constant(limit, I64))):
                operands = (table, thread, batch, panel, piece, block, loop.index)
                code.call_void(f"{self._name}_{kind}", *operands)
        code.end_loop(loop)
        code.finish()
        part = self._part(units)
        work = Work(units, part.work.cycles * self._gain)
        return replace(part, work=work, writes=frozenset([self._context.SHARED]))

    def _write_unit(self, name: str, panel: Panel, cut: _Cut, chunks: int) -> None:
        """`unit(table, thread, batch, panel, piece, block, number)`: the sums of some chunks."""
        numbers = ("thread", "batch", "panel", "piece", "block", "number")
        code = self._begin(name, numbers).code
        table, thread, batch, panel_number, piece, block, number = code.parameters
        size = self._products * self._sums_apart
        sums = self._context.address(code, self._context.SHARED)
        sums = address(code, sums, [(number, size)], self._element)
        fill = code.begin_loop(0, size, panel.lanes)
        zero = constant(0, Type(self._element, panel.lanes))
        code.store(zero, code.offset(sums, fill.index, self._element))
        code.end_loop(fill)
        column = code.multiply(panel_number, constant(self._panels.width, I64))
        following = code.add(block, constant(1, I64))
        begin, end = (start_of_part(code, one, chunks, self._blocks) for one in (block, following))
        loop = code.begin_loop(begin, end)

        def chunk(label: str, outer: Value, start: Value) -> None:
            operands = (table, thread, batch, outer, start, column, piece, sums)
            code.call_void(f"{name}_{label}", *operands)

        self._with_chunk(code, cut, loop.index, chunk)
        code.end_loop(loop)
        code.finish()

    def _write_chunk(self, name: str, panel: Panel, block: int, slots: int) -> None:
        """`chunk(table, thread, batch, outer, start, column, piece, sums)`: adds some tiles."""
        tiles = slots * block * self._wide
        numbers_apart, factors_apart = (
            self._apart(tiles * size) for size in (self._channels, panel.width)
        )
        image = slots * self._image.size(RESULTS * block)
        *places, _ = self._places(
            (image, self._products * numbers_apart, self._products * factors_apart)
        )
        parameters = (
            *(("table", POINTER), ("thread", I64), ("batch", I64), ("outer", I64)),
            *(("start", I64), ("column", I64), ("piece", I64), ("sums", POINTER)),
        )
        points = self._context.begin(name, parameters, reads_of(self._step))
        code = points.code
        _, _, batch, outer, start, column, piece, sums = code.parameters
        own = self._own(code)
        copied, numbers, factors = (code.offset(own, at, self._element) for at in places)
        left, right = _Matrices(numbers, numbers_apart), _Matrices(factors, factors_apart)
        chunk = _Chunk(outer, start, slots, block)
        with points.bound(self._batch, batch), points.bound(self._piece, piece):
            self._numbers(points, chunk, copied, left)
            self._factors(points, chunk, panel, column, right)
        operands = (left, right, _Matrices(sums, self._sums_apart))
        rows, inner = (self._channels, 1), (tiles, self._channels)
        self._multiply(code, panel, operands, rows, inner, fresh=False)
        code.finish()

    def _factors(
        self, points: Points, chunk: _Chunk, panel: Panel, column: Value, factors: _Matrices
    ) -> None:
        """Transforms tiles of the right operand."""
        code, view, (high, wide) = points.code, self._right_view(), self._image.places
        end = code.add(chunk.outer, constant(chunk.slots, I64))
        with points.loop(self._outer, (), chunk.outer, end) as outers:
            past = code.subtract(outers.index, chunk.outer)
            rows = code.begin_loop(0, chunk.block)
            columns = code.begin_loop(0, self._wide)
            row = code.add(code.multiply(past, constant(chunk.block, I64)), rows.index)
            tile = code.add(code.multiply(row, constant(self._wide, I64)), columns.index)
            target = address(code, factors.start, [(tile, panel.width)], self._element)
            row = code.multiply(code.add(chunk.start, rows.index), constant(RESULTS, I64))
            place = code.multiply(columns.index, constant(RESULTS, I64))
            for number in range(panel.vectors):
                skipped = number * panel.lanes
                base = code.add(column, constant(skipped, I64))
                present = panel.present(number)

                def factor(
                    down: int, right: int, base: Value = base, present: int = present
                ) -> Value:
                    with (
                        points.bound(high, code.add(row, constant(down, I64))),
                        points.bound(wide, code.add(place, constant(right, I64))),
                        points.along(self._column, base, present),
                    ):
                        return code.padded(points.vector(view), panel.lanes, 0)

                to = _Matrices(code.offset(target, skipped, self._element), factors.apart)
                self._scatter(code, along_both(code, self._filtering.of_factors, factor), to)
            code.end_loop(columns)
            code.end_loop(rows)
            code.end_loop(outers)

    def _right_view(self) -> Scalar:
        """The right operand over whole tiles, with zeros where there is none."""
        places = self._step.inner[-2:]
        _, of_outer = flattened(self._image.outer, self._outer.name)
        change = Rewrite(of_outer | {axis: axis_index(tiled(axis)) for axis in places})
        bounds = tuple(Bound(axis_index(one), 0, one.extent) for one in places if tiled(one) != one)

        def bounded(load: Load) -> Load:
            return replace(load, bounds=(*load.bounds, *bounds))

        return change.scalar(Rewrite(load=bounded).scalar(self._step.right))

    def _finishing(self) -> Part:
        """The part that makes gradients of the sums."""
        name = f"{self._name}_gradients"
        code = self._context.module.function(name, PART_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        groups = -(-self._all_channels // self._panels.lanes)
        group, remaining = _divided(code, loop.index, groups)
        panel, batch = _divided(code, remaining, self._panels.count)
        for kind, _, condition, limit in self._panels.kinds():
            with code.when(code.compare(condition, panel, constant(limit, I64))):
                operands = (table, thread, batch, panel, group)
                code.call_void(f"{self._name}_{kind}_gradients", *operands)
        code.end_loop(loop)
        code.finish()
        part = self._part(self._batch.extent * self._panels.count * groups)
        cycles = float(
            self._batch.extent
            * self._panels.count
            * self._all_channels
            * self._panels.vectors
            * self._products
            * (self._blocks + self._window)
        )
        reads = part.reads | {self._context.SHARED}
        return replace(part, function=name, work=Work(part.work.items, cycles), reads=reads)

    def _write_gradients(self, name: str, panel: Panel) -> None:
        """`gradients(table, thread, batch, panel, group)`: of a vector of channels.

        They wait in the thread's memory until it is known which of them are zero by their terms.
        """
        lanes, each = self._panels.lanes, self._window**2 * panel.width
        elements = [side.element for side in self._plane if side.element is not None]
        (channels,) = (axis for axis in self._step.rows if axis not in elements)
        pitches = [self._window * panel.width, panel.width, 0]
        self._write_epilogue(name, panel, [*elements, channels], pitches)
        whole, rest = divmod(self._all_channels, lanes)
        kinds = [("whole", lanes, "slt"), ("rest", rest, "eq")]
        kinds = [one for one in kinds if (rest if one[0] == "rest" else whole)]
        for label, present, _ in kinds:
            narrowing = f"{name}_{label}_zeros"
            places = self._step.inner[-2:]
            along = (channels, present)
            write_narrowing(self._context, narrowing, self._step, along, panel, places)
        *places, _ = self._places((lanes * each, lanes, lanes * self._window**2))
        code = self._begin(f"{name}_gradients", ("thread", "batch", "panel", "group")).code
        table, _, batch, number, group = code.parameters
        own = self._own(code)
        waiting, found, words = (code.offset(own, at, self._element) for at in places)
        column = code.multiply(number, constant(self._panels.width, I64))
        first = code.multiply(group, constant(lanes, I64))
        last = code.minimum(
            code.add(first, constant(lanes, I64)), constant(self._all_channels, I64)
        )
        loop = code.begin_loop(first, last)
        past = code.subtract(loop.index, first)
        target = address(code, waiting, [(past, each)], self._element)
        self._gradients_of(code, panel, (batch, number, loop.index), target)
        rows = [
            self._vectors(code, panel, code.offset(target, row * panel.width, self._element))
            for row in range(self._window**2)
        ]
        code.store(columns_seen(code, panel, rows), code.offset(found, past, "i32"))
        code.end_loop(loop)
        # As many words as there are channels in the group: those of its elements lie one after
        # the other.
        count = code.subtract(last, first)
        for label, present, condition in kinds:
            with code.when(code.compare(condition, group, constant(whole, I64))):
                seen = code.load(found, Type("i32", present))
                for element_ in range(self._window**2):
                    code.store(seen, code.offset(words, element_ * present, "i32"))
                operands = (table, batch, first, column, words)
                code.call_void(f"{name}_{label}_zeros", *operands)
        order = [elements.index(axis) for axis in self._step.rows if axis != channels]
        self._clear(code, panel, order, count, waiting, words)
        loop = code.begin_loop(first, last)
        past = code.subtract(loop.index, first)
        zero, one, all_ = (constant(value, I64) for value in (0, 1, self._window))
        source = address(code, waiting, [(past, each)], self._element)
        operands = (table, source, batch, zero, zero, zero, loop.index, all_, all_, one, column)
        code.call_void(f"{name}_epilogue", *operands)
        code.end_loop(loop)
        code.finish()

    def _clear(
        self,
        code: Function,
        panel: Panel,
        order: Sequence[int],
        count: Value,
        waiting: Value,
        words: Value,
    ) -> None:
        """Stores zeros where bits are left.

        Args:
            code: where to write.
            panel: the columns.
            order: of the axes of the windows' elements, as words have them.
            count: of channels that wait.
            waiting: the gradients, channel by channel.
            words: element by element, a word for each channel.
        """
        each = self._window**2 * panel.width
        element_ = code.begin_loop(0, self._window**2)
        numbers = [*_divided(code, element_.index, self._window)][::-1]
        place = code.multiply(numbers[order.index(0)], constant(self._window, I64))
        place = code.add(place, numbers[order.index(1)])
        loop = code.begin_loop(constant(0, I64), count)
        word = code.add(code.multiply(element_.index, count), loop.index)
        word = code.load(code.offset(words, word, "i32"), I32)
        with code.when(code.compare("ne", word, constant(0, I32))):
            start = address(
                code, waiting, [(loop.index, each), (place, panel.width)], self._element
            )
            for vector, value in enumerate(self._vectors(code, panel, start)):
                target = code.offset(start, vector * panel.lanes, self._element)
                code.store(cleared(code, panel, vector, value, word), target)
        code.end_loop(loop)
        code.end_loop(element_)

    def _gradients_of(
        self, code: Function, panel: Panel, at: tuple[Value, Value, Value], target: Value
    ) -> None:
        """Writes the gradients of all elements of the windows, at a batch, panel and channel."""
        batch, number, channel = at
        row, piece = _divided(code, channel, self._channels)
        unit = code.add(code.multiply(batch, constant(self._panels.count, I64)), number)
        unit = code.add(code.multiply(unit, constant(self._piece.extent, I64)), piece)
        size = self._products * self._sums_apart
        moves = [(unit, self._blocks * size), (row, panel.width)]
        shared = self._context.address(code, self._context.SHARED)
        source = address(code, shared, moves, self._element)
        down, right = (range(self._window)[:: side.slope] for side in self._plane)
        for vector in range(panel.vectors):
            here = code.offset(source, vector * panel.lanes, self._element)
            totals = self._totals(code, here, Type(self._element, panel.lanes))

            def total(row: int, column: int, totals: Sequence[Value] = totals) -> Value:
                return totals[row * self._filtering.numbers + column]

            gradients = along_both(code, self._filtering.of_sums, total)
            # Where windows are mirrored, their elements are.
            for row_, values in zip(down, gradients, strict=True):
                for column_, value in zip(right, values, strict=True):
                    place = (row_ * self._window + column_) * panel.width + vector * panel.lanes
                    code.store(value, code.offset(target, place, self._element))

    def _totals(self, code: Function, start: Value, vector: Type) -> Sequence[Value]:
        """The sums of all blocks at the places of a tile."""
        size = self._products * self._sums_apart
        loop = code.begin_loop(0, self._blocks, 1, [constant(0, vector)] * self._products)
        block = address(code, start, [(loop.index, size)], self._element)
        added: list[Value] = []
        for place, total in enumerate(loop.carried):
            at = code.offset(block, place * self._sums_apart, self._element)
            added.append(code.add(total, code.load(at, vector)))
        return code.end_loop(loop, added)
