"""Contraction steps: tiles of sums, each with its epilogue while it is still in the cache.

Threads share the panels of columns. For a panel, the right operand is read through its view and
packed, transposed where needed, into memory of the thread's own; then the tiles of all rows pass
over it. The left operand is read where it lies if its view is plain, and packed as a whole by an
earlier part if not. Sums run over k in order, so nothing depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.engines.cpu.ir import I64, POINTER, Function, Module, Type, Value, constant
from lamina.engines.cpu.loops import (
    PART_PARAMETERS,
    Part,
    begin_points,
    emit_loop,
    stride_along,
)
from lamina.engines.cpu.points import Points
from lamina.engines.cpu.primitives import element
from lamina.engines.cpu.processor import Processor
from lamina.engines.cpu.reshape import Replacing, flattened
from lamina.engines.cpu.tiles import VECTORS, Tile, emit_tile, most_rows, rows_of_tiles
from lamina.engines.cpu.workspaces import SHARED, Workspaces
from lamina.program.index import Axis, Index
from lamina.program.program import Buffer
from lamina.program.scalar import Apply, Load, Scalar, loads
from lamina.program.steps import Contraction, Loop, Reduce, Write, reads_of, writes_of

# Contractions with less work than this, in multiply-adds, are loops: nothing pays for tiles.
SMALLEST_WORK = 8192
# Sums over more than this many k are made in chunks of so many, so that a panel fits the cache.
LONGEST_CHUNK = 2048
# A left operand that is read along its rows by at least this many panels of columns is packed.
PANELS_WORTH_PACKING = 6


@dataclass(frozen=True)
class _Matrix:
    """The contraction over single axes.

    Attributes:
        batch, row, column, inner: the axes; of extent 1 where there is none.
        left, right: the views over them.
        step: the contraction with its stores over them.
    """

    batch: Axis
    row: Axis
    column: Axis
    inner: Axis
    left: Scalar
    right: Scalar
    step: Contraction


@dataclass(frozen=True)
class _Plain:
    """A view that is an address and strides.

    Attributes:
        buffer: where it lies.
        start: the position of its first element, over the batch axis.
        stride: between rows (of the left operand) or columns (of the right one).
        inner_stride: between two k.
    """

    buffer: str
    start: Index
    stride: int
    inner_stride: int


def emit_contraction(
    module: Module,
    name: str,
    step: Contraction,
    buffers: Mapping[str, Buffer],
    table: Mapping[str, int],
    processor: Processor,
    workspaces: Workspaces,
) -> list[Part]:
    """Writes the functions of a contraction step.

    Args:
        module: where they are written.
        name: what their names begin with.
        step: the contraction.
        buffers: all buffers of the program.
        table: the number of each buffer in the table of addresses.
        processor: what they are written for.
        workspaces: where memory for packed operands is asked for.
    """
    b, m, n, k = step.extents
    lanes = processor.vector_bytes // step.dtype.itemsize
    small = b * m * n * k < SMALLEST_WORK or m < 2 or n < lanes // 4 or k < 2
    if small or not step.dtype.is_float:
        return [emit_loop(module, name, as_loop(step), buffers, table, processor)]
    return _Tiled(module, name, step, buffers, table, processor, workspaces).write()


def as_loop(step: Contraction) -> Loop:
    """The contraction as a loop over its results, each a sum of products."""
    product = Apply("multiply", (step.left, step.right), step.dtype)
    axes = (*step.batch, *step.rows, *step.columns)
    reduce = Reduce(step.result, "sum", step.inner, product, step.dtype)
    return Loop(step.name, axes, (reduce, Write((), step.stores)))


class _Tiled:
    """Writes one contraction in tiles."""

    def __init__(
        self,
        module: Module,
        name: str,
        step: Contraction,
        buffers: Mapping[str, Buffer],
        table: Mapping[str, int],
        processor: Processor,
        workspaces: Workspaces,
    ) -> None:
        self._module = module
        self._name = name
        self._matrix = matrix = _as_matrix(step)
        self._buffers = buffers
        self._table = table
        self._processor = processor
        self._element = element(step.dtype)
        self._lanes = lanes = processor.vector_bytes // step.dtype.itemsize
        n = matrix.column.extent
        self._vectors = min(VECTORS, -(-n // lanes))
        self._width = self._vectors * lanes
        self._rows = rows_of_tiles(matrix.row.extent, most_rows(processor, self._vectors))
        self._row_tiles = -(-matrix.row.extent // self._rows)
        self._panels = -(-n // self._width)
        self._chunk = min(matrix.inner.extent, LONGEST_CHUNK)
        self._left = self._plain_left()
        if self._left is None:
            workspaces.need_shared(self._packed_left_bytes())
        self._cuts = self._row_cuts()
        panel_bytes = self._chunk * self._width * step.dtype.itemsize
        tiles = 1 if self._chunk == matrix.inner.extent else self._row_tiles
        sums_bytes = tiles * self._rows * self._width * step.dtype.itemsize
        self._sums_offset = -(-panel_bytes // 64) * 64
        workspaces.need_own(self._sums_offset + sums_bytes)
        self._workspaces = workspaces

    def _row_cuts(self) -> int:
        """Into how many parts the rows are cut, so that all threads have a share."""
        threads = self._processor.threads
        units = self._matrix.batch.extent * self._panels
        if units >= 4 * threads or units % threads == 0:
            return 1
        return min(self._row_tiles, -(-4 * threads // units))

    # Operands

    def _plain_left(self) -> _Plain | None:
        plain = _as_plain(self._matrix.left, self._matrix.row, self._matrix)
        if plain is None or 1 not in (plain.stride, plain.inner_stride):
            return None
        if plain.inner_stride == 1 or self._panels < PANELS_WORTH_PACKING:
            return plain
        return None

    def _packed_left_bytes(self) -> int:
        matrix = self._matrix
        elements = self._row_tiles * self._rows * matrix.inner.extent * matrix.batch.extent
        return elements * matrix.step.dtype.itemsize

    # Parts

    def write(self) -> list[Part]:
        matrix = self._matrix
        b, m = matrix.batch.extent, matrix.row.extent
        n, k = matrix.column.extent, matrix.inner.extent
        parts: list[Part] = []
        if self._left is None:
            units = b * self._row_tiles
            self._write_pack_left()
            cycles = 1.5 * b * m * k / self._lanes
            reads = frozenset(load.buffer for load in loads(matrix.left))
            pack = Part(f"{self._name}_pack", units, cycles, reads, frozenset([SHARED]))
            parts.append(pack)
        full, rest = divmod(n, self._width)
        if full:
            self._write_panel("full", self._vectors, self._lanes)
        if rest:
            vectors = -(-rest // self._lanes)
            self._write_panel("rest", vectors, rest - (vectors - 1) * self._lanes)
        self._write_compute(full, rest)
        work = b * m * -(-n // self._lanes) * k * (1.0 if self._processor.fused else 2.0)
        reads = reads_of(matrix.step) | frozenset([SHARED] if parts else [])
        units = b * self._panels * self._cuts
        parts.append(Part(self._name, units, work, reads, writes_of(matrix.step)))
        return parts

    def _begin(self, name: str, parameters: Sequence[tuple[str, Type]]) -> Points:
        """A function of this step."""
        step = self._matrix.step
        used = reads_of(step) | writes_of(step)
        return begin_points(self._module, name, parameters, used, self._buffers, self._table)

    def _write_compute(self, full: int, rest: int) -> None:
        """The part: units are (batch, panel of columns, cut of the rows)."""
        code = self._module.function(self._name, PART_PARAMETERS)
        table, thread, first, last = code.parameters
        loop = code.begin_loop(first, last)
        cuts = constant(self._cuts, I64)
        cut = code.binary("urem", loop.index, cuts)
        panel_of_all = code.binary("udiv", loop.index, cuts)
        panels = constant(self._panels, I64)
        batch = code.binary("udiv", panel_of_all, panels)
        panel = code.binary("urem", panel_of_all, panels)
        tiles = constant(self._row_tiles, I64)
        begin = code.binary("udiv", code.multiply(cut, tiles), cuts)
        following = code.add(cut, constant(1, I64))
        end = code.binary("udiv", code.multiply(following, tiles), cuts)
        operands = (table, thread, batch, panel, begin, end)
        if full:
            with code.when(code.compare("slt", panel, constant(full, I64))):
                code.call_void(f"{self._name}_full", *operands)
        if rest:
            with code.when(code.compare("eq", panel, constant(full, I64))):
                code.call_void(f"{self._name}_rest", *operands)
        code.end_loop(loop)
        code.finish()

    def _write_panel(self, suffix: str, vectors: int, last_lanes: int) -> None:
        """One panel of columns: packs it, then passes the tiles of the rows over it."""
        matrix = self._matrix
        name = f"{self._name}_{suffix}"
        self._write_epilogue(name, vectors, last_lanes)
        points = self._begin(name, _PANEL_PARAMETERS)
        code = points.code
        table, thread, batch, panel, begin, end = code.parameters
        own = self._workspaces.own(code, table, thread)
        sums = code.offset(own, self._sums_offset, "i8")
        column = code.multiply(panel, constant(self._width, I64))
        k = matrix.inner.extent
        with points.bound(matrix.batch, batch):
            for start in range(0, k, self._chunk):
                count = min(self._chunk, k - start)
                self._pack_panel(points, own, column, start, count, vectors, last_lanes)
                self._tiles(
                    points, name, (table, own, sums, column), start, count, vectors, begin, end
                )
        code.finish()

    def _tiles(
        self,
        points: Points,
        epilogue: str,
        places: tuple[Value, Value, Value, Value],
        start: int,
        count: int,
        vectors: int,
        begin: Value,
        end: Value,
    ) -> None:
        """All tiles of some rows over one packed chunk of k."""
        code, matrix = points.code, self._matrix
        whole, rest = divmod(matrix.row.extent, self._rows)
        if whole:
            limit = constant(whole, I64)
            stop = code.select(code.compare("slt", end, limit), end, limit) if rest else end
            loop = code.begin_loop(begin, stop)
            with points.bound(_TILE, loop.index, before=loop.before):
                self._tile(points, epilogue, places, start, count, vectors, loop.index, self._rows)
                code.end_loop(loop)
        if rest:
            number = constant(whole, I64)
            with (
                code.when(code.compare("sgt", end, number)) as before,
                points.bound(_TILE, number, before=before),
            ):
                self._tile(points, epilogue, places, start, count, vectors, number, rest)

    def _tile(
        self,
        points: Points,
        epilogue: str,
        places: tuple[Value, Value, Value, Value],
        start: int,
        count: int,
        vectors: int,
        number: Value,
        rows: int,
    ) -> None:
        """One tile over one chunk: sums from zero or from the last chunk, epilogue at the end."""
        code, matrix = points.code, self._matrix
        table, panel, sums, column = places
        k, width = matrix.inner.extent, vectors * self._lanes
        row = code.multiply(number, constant(self._rows, I64))
        if self._chunk < k:
            skipped = code.multiply(number, constant(self._rows * width, I64))
            sums = code.offset(sums, skipped, self._element)
        if start == 0:
            zero = constant(0, Type(self._element, self._lanes))
            for position in range(rows * vectors):
                code.store(zero, code.offset(sums, position * self._lanes, self._element))
        left, row_stride, left_stride = self._left_address(points, number, row, start)
        tile = Tile(rows, vectors, self._lanes, self._element, row_stride, left_stride, width)
        kernel = emit_tile(self._module, tile)
        code.call_void(kernel, left, panel, constant(count, I64), sums)
        if start + count == k:
            batch = points.axis(matrix.batch)
            operands = (table, sums, batch, row, constant(rows, I64), column)
            code.call_void(f"{epilogue}_epilogue", *operands)

    def _left_address(
        self, points: Points, number: Value, row: Value, start: int
    ) -> tuple[Value, int, int]:
        """Where a tile reads the left operand, and the strides between rows and between k."""
        code, matrix = points.code, self._matrix
        k = matrix.inner.extent
        if self._left is not None:
            plain = self._left
            first = points.place(plain.start).start
            position = code.add(first, code.multiply(row, constant(plain.stride, I64)))
            position = code.add(position, constant(start * plain.inner_stride, I64))
            base = points.base(plain.buffer)
            return code.offset(base, position, self._element), plain.stride, plain.inner_stride
        whole = self._workspaces.shared(code, code.parameters[0])
        batch = points.axis(matrix.batch)
        tile = code.add(code.multiply(batch, constant(self._row_tiles, I64)), number)
        position = code.multiply(tile, constant(k * self._rows, I64))
        # The last tile may have fewer rows, and lies as close.
        rows = self._rows
        position = code.add(position, constant(start * rows, I64))
        return code.offset(whole, position, self._element), 1, rows

    # Packing

    def _write_pack_left(self) -> None:
        """Packs the left operand: for each tile of rows the numbers of one k side by side."""
        matrix = self._matrix
        points = self._begin(f"{self._name}_pack", PART_PARAMETERS)
        code = points.code
        table, _, first, last = code.parameters
        whole = self._workspaces.shared(code, table)
        loop = code.begin_loop(first, last)
        tiles = constant(self._row_tiles, I64)
        batch = code.binary("udiv", loop.index, tiles)
        number = code.binary("urem", loop.index, tiles)
        row = code.multiply(number, constant(self._rows, I64))
        size = matrix.inner.extent * self._rows
        start = code.offset(whole, code.multiply(loop.index, constant(size, I64)), self._element)
        full, rest = divmod(matrix.row.extent, self._rows)
        with points.bound(matrix.batch, batch):
            for condition, rows, limit in (("slt", self._rows, full), ("eq", rest, full)):
                if not rows or (condition == "slt" and not full):
                    continue
                with (
                    code.when(code.compare(condition, number, constant(limit, I64))) as before,
                    points.bound(_TILE, number, before=before),
                    points.loop(matrix.inner) as inner,
                ):
                    with points.along(matrix.row, row, rows):
                        value = points.vector(matrix.left)
                    offset = code.multiply(inner.index, constant(self._rows, I64))
                    code.store(value, code.offset(start, offset, self._element))
                    code.end_loop(inner)
        code.end_loop(loop)
        code.finish()

    def _pack_panel(
        self,
        points: Points,
        panel: Value,
        column: Value,
        start: int,
        count: int,
        vectors: int,
        last_lanes: int,
    ) -> None:
        """Packs a chunk of a panel of columns: for each k its columns side by side."""
        plain = _as_plain(self._matrix.right, self._matrix.column, self._matrix)
        done = 0
        if plain is not None and plain.inner_stride == 1 and plain.stride != 1:
            done = count - count % self._lanes
            if done:
                self._transpose_panel(
                    points, plain, panel, column, start, done, vectors, last_lanes
                )
        if done == count:
            return
        code, matrix = points.code, self._matrix
        first, last = constant(start + done, I64), constant(start + count, I64)
        with points.loop(matrix.inner, (), first, last) as inner:
            past = code.subtract(inner.index, constant(start, I64))
            offset = code.multiply(past, constant(vectors * self._lanes, I64))
            target = code.offset(panel, offset, self._element)
            for number in range(vectors):
                lanes = last_lanes if number == vectors - 1 else self._lanes
                base = code.add(column, constant(number * self._lanes, I64))
                with points.along(matrix.column, base, lanes):
                    value = points.vector(matrix.right)
                if lanes < self._lanes:
                    picks = [min(lane, lanes) for lane in range(self._lanes)]
                    value = code.shuffle(value, constant(0, value.type), picks)
                code.store(value, code.offset(target, number * self._lanes, self._element))
            code.end_loop(inner)

    def _transpose_panel(
        self,
        points: Points,
        plain: _Plain,
        panel: Value,
        column: Value,
        start: int,
        count: int,
        vectors: int,
        last_lanes: int,
    ) -> None:
        """The same where k lies contiguous: squares of numbers are turned in registers."""
        code, lanes = points.code, self._lanes
        base = points.base(plain.buffer)
        first = points.place(plain.start).start
        first = code.add(first, code.multiply(column, constant(plain.stride, I64)))
        source = code.offset(base, code.add(first, constant(start, I64)), self._element)
        vector = Type(self._element, lanes)
        loop = code.begin_loop(constant(0, I64), constant(count, I64), lanes)
        offset = code.multiply(loop.index, constant(vectors * lanes, I64))
        target = code.offset(panel, offset, self._element)
        for number in range(vectors):
            present = last_lanes if number == vectors - 1 else lanes
            columns: list[Value] = []
            for lane in range(lanes):
                if lane < present:
                    skipped = constant((number * lanes + lane) * plain.stride, I64)
                    place = code.offset(source, code.add(loop.index, skipped), self._element)
                    columns.append(code.load(place, vector))
                else:
                    columns.append(constant(0, vector))
            for position, turned in enumerate(transposed(code, columns)):
                distance = position * vectors * lanes + number * lanes
                code.store(turned, code.offset(target, distance, self._element))
        code.end_loop(loop)

    # Epilogue

    def _write_epilogue(self, name: str, vectors: int, last_lanes: int) -> None:
        """The stores of a tile: each row in vectors along the columns."""
        step, matrix = self._matrix.step, self._matrix
        points = self._begin(f"{name}_epilogue", _EPILOGUE_PARAMETERS)
        code = points.code
        _, sums, batch, row, count, column = code.parameters
        end = code.add(row, count)
        width = vectors * self._lanes
        with (
            points.bound(matrix.batch, batch),
            points.loop(matrix.row, (), row, end) as loop,
        ):
            past = code.subtract(loop.index, row)
            source = code.offset(sums, code.multiply(past, constant(width, I64)), self._element)
            for number in range(vectors):
                lanes = last_lanes if number == vectors - 1 else self._lanes
                base = code.add(column, constant(number * self._lanes, I64))
                place = code.offset(source, number * self._lanes, self._element)
                with points.along(matrix.column, base, lanes):
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
# The tile that a loop over tiles is at; no expression depends on it.
_TILE = Axis("tile", 1 << 40)


def transposed(code: Function, rows: Sequence[Value]) -> list[Value]:
    """The columns of a square of numbers: log2(lanes) rounds of exchanging halves."""
    lanes = len(rows)
    current = list(rows)
    distance = lanes // 2
    while distance:
        following = list(current)
        for first in range(lanes):
            if first & distance:
                continue
            second = first + distance
            low = [
                lane if not lane & distance else lane - distance + lanes for lane in range(lanes)
            ]
            high = [
                lane + distance if not lane & distance else lane + lanes for lane in range(lanes)
            ]
            following[first] = code.shuffle(current[first], current[second], low)
            following[second] = code.shuffle(current[first], current[second], high)
        current = following
        distance //= 2
    return current


def _as_matrix(step: Contraction) -> _Matrix:
    """The contraction with every group of axes made one."""
    batch, of_batch = flattened(step.batch, "b")
    row, of_rows = flattened(step.rows, "m")
    column, of_columns = flattened(step.columns, "n")
    inner, of_inner = flattened(step.inner, "k")
    change = Replacing(of_batch | of_rows | of_columns | of_inner)
    left, right = change.scalar(step.left), change.scalar(step.right)
    stores = tuple(change.store(store) for store in step.stores)
    merged = replace(
        step,
        batch=(batch,),
        rows=(row,),
        columns=(column,),
        inner=(inner,),
        left=left,
        right=right,
        stores=stores,
    )
    return _Matrix(batch, row, column, inner, left, right, merged)


def _as_plain(view: Scalar, outer: Axis, matrix: _Matrix) -> _Plain | None:
    """The view as an address and strides; None if it is more than that."""
    if not isinstance(view, Load) or view.bounds:
        return None
    stride = stride_along(view.index, outer)
    inner_stride = stride_along(view.index, matrix.inner)
    if stride is None or inner_stride is None:
        return None
    start = Index(
        view.index.constant,
        tuple(term for term in view.index.terms if term[0] not in (outer, matrix.inner)),
    )
    return _Plain(view.buffer, start, stride, inner_stride)
