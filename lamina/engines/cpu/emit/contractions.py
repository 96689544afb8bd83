"""Contraction steps: tiles of sums, each with its epilogue while it is still in the cache.

Threads share the panels of columns. For a panel, the right operand is read through its view and
packed into memory of the thread's own, unless it was packed before; then the tiles of all rows pass
over it. The left operand is read where it lies if its view is plain, and packed as a whole by an
earlier part if not. Sums run over k in order, so nothing depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from lamina.codegen.llvm import Function
from lamina.codegen.primitives import element
from lamina.codegen.values import I64, POINTER, Type, Value, constant
from lamina.engines.cpu.decide.matrix import Matrix, Plain, as_matrix, as_plain
from lamina.engines.cpu.emit.context import Context, Points
from lamina.engines.cpu.emit.implicit_gemm import Windowed, emit_windowed, windowed
from lamina.engines.cpu.emit.loops import PART_PARAMETERS, Part, are_short, emit_loop
from lamina.engines.cpu.emit.packing import (
    TILE,
    PackedRight,
    Panel,
    Panels,
    pack_panel,
    write_pack_left,
)
from lamina.engines.cpu.emit.tiles import (
    LINE_BYTES,
    VECTORS,
    Dots,
    Tile,
    dot_sides,
    emit_dots,
    emit_tile,
    most_rows,
    rows_of_tiles,
)
from lamina.engines.cpu.processor import Processor
from lamina.program.scalar import Apply
from lamina.program.steps import Contraction, Loop, Reduce, Write, reads_of, writes_of
from lamina.records import frozen_dataclass

# Contractions with less work than this, in multiply-adds, are loops: nothing pays for tiles.
SMALLEST_WORK = 8192
# Sums over many k are made in chunks, so that a panel stays in the second cache; of at least so
# many, as each chunk begins and ends with the sums of a tile in memory.
SHORTEST_CHUNK = 512
# In cycles, for the choice between tiles and dots.
_PACKED_VECTOR, _SUM_OF_LANES, _DOTS_MUST_GAIN = 2.5, 5, 0.8
# A left operand that is read along its rows by at least this many panels of columns is packed.
PANELS_WORTH_PACKING = 6
# Of memory, in bytes.
_PAGE = 4096
# Numbers of the left operand that lie k by k are fetched into the cache so many k ahead.
K_AHEAD = 64


def emit_contraction(
    context: Context,
    name: str,
    step: Contraction,
    packed: PackedRight | None = None,
    riders: Sequence[Part] = (),
) -> list[Part]:
    """Writes the functions of a contraction step, the riders' parts included.

    Args:
        context: of the program.
        name: what their names begin with.
        step: the contraction.
        packed: its right operand, if that was packed before.
        riders: loops with a unit for each panel of columns, to be run when it is done.
    """
    if not is_tiled(step, context.processor):
        return [emit_loop(context, name, as_loop(step)), *riders]
    how = windows_of(step, context.processor)
    if how is not None:
        return emit_windowed(context, name, how, packed, panels_of(step, context.processor))
    return _Tiled(context, name, step, packed, riders).write()


def is_tiled(step: Contraction, processor: Processor) -> bool:
    """Whether there is enough work for tiles."""
    b, m, n, k = step.extents
    lanes = processor.vector_bytes // step.dtype.itemsize
    small = b * m * n * k < SMALLEST_WORK or m < 2 or n < lanes // 4 or k < 2
    return step.dtype.is_float and not small


def windows_of(step: Contraction, processor: Processor) -> Windowed | None:
    """How a tiled contraction is made if its left operand shows windows; None if it does not."""
    if not is_tiled(step, processor):
        return None
    matrix = as_matrix(step)
    plain = as_plain(matrix.left, matrix.row, matrix)
    if plain is not None and 1 in (plain.stride, plain.inner_stride):
        return None
    return windowed(step, panels_of(step, processor))


def panels_of(step: Contraction, processor: Processor) -> Panels:
    """How the columns of a contraction are cut."""
    lanes = processor.vector_bytes // step.dtype.itemsize
    columns = step.extents[2]
    return Panels(lanes, min(VECTORS, -(-columns // lanes)), columns)


def prefers_dots(matrix: Matrix, panels: Panels, *, ahead: bool) -> bool:
    """Whether sums are made along k, in lanes that are added up at the end, without packing.

    That is better where few columns would leave lanes empty, or few rows would use what was
    packed for them; both operands must lie contiguous along k.

    Args:
        matrix: the contraction.
        panels: how its columns would be cut.
        ahead: whether the right operand would be packed ahead.
    """
    for view, outer in ((matrix.left, matrix.row), (matrix.right, matrix.column)):
        plain = as_plain(view, outer, matrix)
        if plain is None or plain.inner_stride != 1 or plain.stride == 1:
            return False
    m, n, k = matrix.row.extent, matrix.column.extent, matrix.inner.extent
    # Rough cycles: a multiply-add takes one, k of a packed vector some more, a sum of lanes a few.
    vectors = -(-n // panels.lanes)
    tiles = m * vectors * k + (0 if ahead else _PACKED_VECTOR * vectors * k)
    dots = m * n * (-(-k // panels.lanes) + _SUM_OF_LANES)
    return dots < _DOTS_MUST_GAIN * tiles


def as_loop(step: Contraction) -> Loop:
    """The contraction as a loop over its results, each a sum of products."""
    product = Apply("multiply", (step.left, step.right), step.dtype)
    axes = (*step.batch, *step.rows, *step.columns)
    reduce = Reduce(step.result, "sum", step.inner, product, step.dtype)
    return Loop(step.name, axes, (reduce, Write((), step.stores)))


@frozen_dataclass
class _Pass:
    """A chunk of k of one panel, over which the tiles of the rows pass.

    Attributes:
        name: of the panel's function; what its epilogue's begins with.
        panel: its columns.
        chunk: the k.
        table: of the buffers.
        right: where the panel lies, and how far apart two k are.
        sums: where tiles keep theirs.
        column: the first one.
    """

    name: str
    panel: Panel
    chunk: range
    table: Value
    right: Value
    right_stride: int
    sums: Value
    column: Value


class _Tiled:
    """Writes one contraction in tiles."""

    def __init__(
        self,
        context: Context,
        name: str,
        step: Contraction,
        packed: PackedRight | None,
        riders: Sequence[Part],
    ) -> None:
        self._context = context
        self._name = name
        self._matrix = matrix = as_matrix(step)
        self._packed = packed
        self._riders = riders
        self._element = element(step.dtype)
        self._panels = panels = panels_of(step, context.processor)
        self._dots = packed is None and prefers_dots(matrix, panels, ahead=False)
        self._left = self._plain_left()
        self._rows = rows_of_tiles(matrix.row.extent, self._most_rows())
        self._row_tiles = -(-matrix.row.extent // self._rows)
        self._chunk = self._longest_chunk()
        self._cuts = self._row_cuts()
        # The thread's own memory: a chunk of a panel, and sums of one tile or of all of them.
        packs = packed is None and not self._dots
        panel_bytes = self._chunk * panels.width * step.dtype.itemsize if packs else 0
        tiles = 1 if self._chunk == matrix.inner.extent else self._row_tiles
        sums_bytes = tiles * self._rows * panels.width * step.dtype.itemsize
        self._sums_offset = -(-panel_bytes // 64) * 64
        context.workspaces.need_own(self._sums_offset + sums_bytes)

    def _longest_chunk(self) -> int:
        """How many k are summed up in one pass: so many that a panel takes half of the cache.

        The chunks of a sum are about equally long.
        """
        k, panels = self._matrix.inner.extent, self._panels
        if self._dots:
            return k
        row_bytes = panels.width * self._matrix.step.dtype.itemsize
        most = max(self._context.processor.level2_bytes // 2 // row_bytes, SHORTEST_CHUNK)
        each = -(-k // -(-k // most))
        return min(k, -(-each // panels.lanes) * panels.lanes)

    def _row_cuts(self) -> int:
        """Into how many parts the rows are cut, so that all threads have a share."""
        threads = self._context.processor.threads
        units = self._matrix.batch.extent * self._panels.count
        if units >= 4 * threads or units % threads == 0:
            return 1
        return min(self._row_tiles, -(-4 * threads // units))

    def _plain_left(self) -> Plain | None:
        plain = as_plain(self._matrix.left, self._matrix.row, self._matrix)
        if plain is None or 1 not in (plain.stride, plain.inner_stride):
            return None
        fits = self._left_bytes() <= self._context.processor.level1_bytes // 2
        if plain.inner_stride == 1 or fits or self._panels.count < PANELS_WORTH_PACKING:
            return plain
        return None

    def _most_rows(self) -> int:
        """How many rows a tile may have: registers are one limit, the first cache another."""
        processor, left = self._context.processor, self._left
        if self._dots:
            return dot_sides(processor)[0]
        most = most_rows(processor, self._panels.vectors)
        if left is None:
            return most
        itemsize = self._matrix.step.dtype.itemsize
        if left.stride == 1 and left.inner_stride * itemsize % LINE_BYTES == 0:
            # A power of two: no tile has a part of one line of the cache and a part of another.
            return 1 << (most.bit_length() - 1)
        # Where a number lies in the cache follows from its address within a page, and there are so
        # many pages: rows that lie whole pages apart fall on one another. Some of the room is the
        # right operand's.
        apart = gcd(left.stride * itemsize, _PAGE)
        return min(most, max(3 * processor.level1_bytes // (4 * apart), 4))

    def _left_bytes(self) -> int:
        """The size of one matrix of the left operand."""
        matrix = self._matrix
        return matrix.row.extent * matrix.inner.extent * matrix.step.dtype.itemsize

    # Parts

    def write(self) -> list[Part]:
        matrix, panels, context = self._matrix, self._panels, self._context
        parts: list[Part] = []
        if self._left is None:
            parts.append(write_pack_left(context, f"{self._name}_left", matrix, self._rows))
        for kind, panel, _, _ in panels.kinds():
            self._write_panel(kind, panel)
        self._write_compute()
        vectors = -(-panels.columns // panels.lanes)
        cycles = vectors * matrix.batch.extent * matrix.row.extent * matrix.inner.extent
        reads = reads_of(matrix.step) | {name for part in parts for name in part.writes}
        if self._packed is not None:
            reads |= {self._packed.buffer}
        part = Part(
            self._name,
            matrix.batch.extent * panels.count * self._cuts,
            cycles * (1.0 if context.processor.fused else 2.0),
            reads,
            writes_of(matrix.step),
        )
        if self._cuts > 1:
            return [*parts, part, *self._riders]
        for rider in self._riders:
            part = replace(
                part,
                cycles=part.cycles + rider.cycles,
                reads=part.reads | rider.reads,
                writes=part.writes | rider.writes,
            )
        return [*parts, part]

    def _begin(self, name: str, parameters: Sequence[tuple[str, Type]]) -> Points:
        """A function of this step."""
        step = self._matrix.step
        return self._context.begin(name, parameters, reads_of(step) | writes_of(step))

    def _write_compute(self) -> None:
        """The part: units are (batch, panel of columns, cut of the rows)."""
        code = self._context.module.function(self._name, PART_PARAMETERS)
        table, thread, first, last = code.parameters
        loop = code.begin_loop(first, last)
        cuts = constant(self._cuts, I64)
        cut = code.binary("urem", loop.index, cuts)
        panel_of_all = code.binary("udiv", loop.index, cuts)
        count = constant(self._panels.count, I64)
        batch = code.binary("udiv", panel_of_all, count)
        panel = code.binary("urem", panel_of_all, count)
        tiles = constant(self._row_tiles, I64)
        begin = code.binary("udiv", code.multiply(cut, tiles), cuts)
        following = code.add(cut, constant(1, I64))
        end = code.binary("udiv", code.multiply(following, tiles), cuts)
        operands = (table, thread, batch, panel, begin, end)
        for kind, _, condition, limit in self._panels.kinds():
            with code.when(code.compare(condition, panel, constant(limit, I64))):
                code.call_void(f"{self._name}_{kind}", *operands)
        if self._cuts == 1:
            following = code.add(panel, constant(1, I64))
            for rider in self._riders:
                code.call_void(rider.function, table, thread, panel, following)
        code.end_loop(loop)
        code.finish()

    def _write_panel(self, kind: str, panel: Panel) -> None:
        """One panel of columns: packs it if need be, then passes the tiles of the rows over it."""
        matrix, workspaces = self._matrix, self._context.workspaces
        name = f"{self._name}_{kind}"
        self._write_epilogue(name, panel)
        points = self._begin(name, _PANEL_PARAMETERS)
        code = points.code
        table, thread, batch, number, begin, end = code.parameters
        own = workspaces.own(code, table, thread)
        sums = code.offset(own, self._sums_offset, "i8")
        column = code.multiply(number, constant(self._panels.width, I64))
        as_it_lies = self._right_as_it_lies(panel)
        k = matrix.inner.extent
        with points.bound(matrix.batch, batch):
            for start in range(0, k, self._chunk):
                chunk = range(start, min(start + self._chunk, k))
                if as_it_lies is not None:
                    right = self._address(points, as_it_lies, column, start)
                    stride = as_it_lies.inner_stride
                else:
                    right, stride = own, panel.width
                    if self._packed is not None:
                        before = code.multiply(batch, constant(self._panels.count, I64))
                        place = code.add(before, number)
                        whole = self._packed.panel(self._context, code, place, self._element)
                        right = code.offset(whole, start * panel.width, self._element)
                    else:
                        pack_panel(
                            points, matrix, panel, right, column, constant(start, I64), len(chunk)
                        )
                one = _Pass(name, panel, chunk, table, right, stride, sums, column)
                self._tiles(points, one, begin, end)
        code.finish()

    def _right_as_it_lies(self, panel: Panel) -> Plain | None:
        """The right operand where it is read without packing.

        Dots read it along k; tiles do, if a panel is used but once and its vectors are full.
        """
        plain = as_plain(self._matrix.right, self._matrix.column, self._matrix)
        if self._dots:
            return plain
        once = self._row_tiles == 1 and panel.last == panel.lanes and self._packed is None
        return plain if once and plain is not None and plain.stride == 1 else None

    def _tiles(self, points: Points, one: _Pass, begin: Value, end: Value) -> None:
        """All tiles of some rows over one chunk of k."""
        code, matrix = points.code, self._matrix
        whole, rest = divmod(matrix.row.extent, self._rows)
        if whole:
            limit = constant(whole, I64)
            stop = code.select(code.compare("slt", end, limit), end, limit) if rest else end
            loop = code.begin_loop(begin, stop)
            with points.bound(TILE, loop.index, before=loop.before):
                self._tile(points, one, loop.index, self._rows)
                code.end_loop(loop)
        if rest:
            number = constant(whole, I64)
            with (
                code.when(code.compare("sgt", end, number)) as before,
                points.bound(TILE, number, before=before),
            ):
                self._tile(points, one, number, rest)

    def _tile(self, points: Points, one: _Pass, number: Value, rows: int) -> None:
        """One tile over one chunk: sums from zero or from the last chunk, epilogue at the end."""
        code, matrix = points.code, self._matrix
        row = code.multiply(number, constant(self._rows, I64))
        left, row_stride, left_stride = self._left_address(points, number, row, one.chunk.start)
        sums = one.sums
        if self._dots:
            self._dot_tiles(code, one, left, row_stride, rows)
        else:
            lanes, vectors = one.panel.lanes, one.panel.vectors
            if self._chunk < matrix.inner.extent:
                skipped = code.multiply(number, constant(self._rows * one.panel.width, I64))
                sums = code.offset(sums, skipped, self._element)
            tile = Tile(
                tuple(number * row_stride for number in range(rows)),
                tuple(number * one.panel.width for number in range(rows)),
                vectors,
                lanes,
                one.panel.last_lanes,
                self._element,
                ((0, left_stride),),
                one.right_stride,
                fresh=one.chunk.start == 0,
                fetched=self._fetched(row_stride, left_stride),
            )
            kernel = emit_tile(self._context.module, tile)
            code.call_void(kernel, left, one.right, sums, constant(len(one.chunk), I64))
        if one.chunk.stop == matrix.inner.extent:
            batch = points.axis(matrix.batch)
            operands = (one.table, sums, batch, row, constant(rows, I64), one.column)
            code.call_void(f"{one.name}_epilogue", *operands)

    def _fetched(self, row_stride: int, left_stride: int) -> int:
        """How far ahead the left operand is fetched: some k, or what the next tile reads."""
        processor = self._context.processor
        if row_stride == 1:
            far = self._left_bytes() > processor.level1_bytes
            return K_AHEAD * left_stride if far else 0
        far = self._left_bytes() > processor.level2_bytes // 2
        return self._rows * row_stride if far else 0

    def _dot_tiles(
        self, code: Function, one: _Pass, left: Value, row_stride: int, rows: int
    ) -> None:
        """The sums of some rows and all columns of a panel, a few columns at a time."""
        plain = self._right_as_it_lies(one.panel)
        assert plain is not None
        most = dot_sides(self._context.processor)[1]
        for first in range(0, one.panel.columns, most):
            columns = min(most, one.panel.columns - first)
            kernel = emit_dots(
                self._context.module,
                Dots(
                    rows,
                    columns,
                    one.panel.lanes,
                    self._element,
                    len(one.chunk),
                    row_stride,
                    plain.stride,
                    one.panel.width,
                ),
            )
            right = code.offset(one.right, first * plain.stride, self._element)
            code.call_void(kernel, left, right, code.offset(one.sums, first, self._element))

    def _left_address(
        self, points: Points, number: Value, row: Value, start: int
    ) -> tuple[Value, int, int]:
        """Where a tile reads the left operand, and the strides between rows and between k."""
        code, matrix = points.code, self._matrix
        k = matrix.inner.extent
        if self._left is not None:
            plain = self._left
            return self._address(points, plain, row, start), plain.stride, plain.inner_stride
        whole = self._context.address(code, self._context.SHARED)
        batch = points.axis(matrix.batch)
        tile = code.add(code.multiply(batch, constant(self._row_tiles, I64)), number)
        position = code.multiply(tile, constant(k * self._rows, I64))
        # The last tile may have fewer rows, and lies as close.
        rows = self._rows
        position = code.add(position, constant(start * rows, I64))
        return code.offset(whole, position, self._element), 1, rows

    def _address(self, points: Points, plain: Plain, outer: Value, start: int) -> Value:
        """Where a plain operand lies from a row or column and a k on."""
        code = points.code
        first = points.place(plain.start).start
        position = code.add(first, code.multiply(outer, constant(plain.stride, I64)))
        position = code.add(position, constant(start * plain.inner_stride, I64))
        return code.offset(points.base(plain.buffer), position, self._element)

    # Epilogue

    def _write_epilogue(self, name: str, panel: Panel) -> None:
        """The stores of a tile: each row in vectors along the columns."""
        step, matrix = self._matrix.step, self._matrix
        used = reads_of(step) | writes_of(step)
        epilogue = f"{name}_epilogue"
        points = self._context.begin(epilogue, _EPILOGUE_PARAMETERS, used, calling=True)
        code = points.code
        _, sums, batch, row, count, column = code.parameters
        end = code.add(row, count)
        with (
            points.bound(matrix.batch, batch),
            points.loop(matrix.row, (), row, end) as loop,
        ):
            past = code.subtract(loop.index, row)
            source = code.offset(
                sums, code.multiply(past, constant(panel.width, I64)), self._element
            )
            for first, lanes in panel.runs(wide=are_short(store.value for store in step.stores)):
                base = code.add(column, constant(first, I64))
                place = code.offset(source, first, self._element)
                with points.along(matrix.column, base, lanes, multiple=panel.lanes):
                    total = code.load(place, Type(self._element, lanes))
                    points.define(step.result, total)
                    points.store_all(step.stores)
            code.end_loop(loop)
        code.finish()


_PANEL_PARAMETERS = (
    ("table", POINTER),
    ("thread", I64),
    *((name, I64) for name in ("batch", "panel", "begin", "end")),
)
_EPILOGUE_PARAMETERS = (
    ("table", POINTER),
    ("sums", POINTER),
    *((name, I64) for name in ("batch", "row", "count", "column")),
)
