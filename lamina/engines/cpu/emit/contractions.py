"""Contraction steps as products of matrices: tiles of sums, each with its epilogue.

Workers share the panels of columns. For a panel, the right operand is read through its view and
packed into memory of the worker's own, unless it was packed before; then the tiles of all rows pass
over it. The left operand is read where it lies, or was packed as a whole by an earlier part. Sums
run over k in order, so nothing depends on the number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina.codegen.llvm import Function
from lamina.codegen.matrix import Plain, as_loop, as_matrix, as_plain
from lamina.codegen.primitives import element
from lamina.codegen.values import I64, POINTER, Type, Value, constant
from lamina.engines.cpu.decide.panels import Panel
from lamina.engines.cpu.decide.schedule import (
    DIRECT,
    PREPACKED,
    GemmSchedule,
    LoopSchedule,
    StepSchedule,
)
from lamina.engines.cpu.emit.context import PART_PARAMETERS, Context, Part, Points
from lamina.engines.cpu.emit.convolutions import emit_windows
from lamina.engines.cpu.emit.epilogues import Epilogue, write_epilogue
from lamina.engines.cpu.emit.loops import emit_nest
from lamina.engines.cpu.emit.packing import TILE, RightPanel, panel_address, write_pack_left
from lamina.engines.cpu.emit.tiles import Dots, Tile, emit_dots, emit_tile
from lamina.program.steps import Contraction, reads_of, writes_of
from lamina.records import frozen_dataclass


def emit_contraction(
    context: Context,
    name: str,
    step: Contraction,
    schedule: StepSchedule,
    column_sums: Sequence[Part] = (),
) -> list[Part]:
    """Writes the functions of a contraction step, the parts of its column sums included.

    Args:
        context: of the program.
        name: what their names begin with.
        step: the contraction.
        schedule: how it is computed.
        column_sums: loops with a work item for each panel of columns, to be run when it is done.
    """
    if isinstance(schedule, LoopSchedule):
        (nest,) = schedule.nests
        return [emit_nest(context, name, as_loop(step), nest)]
    if isinstance(schedule, GemmSchedule):
        return _Gemm(context, name, step, schedule, column_sums).write()
    return emit_windows(context, name, step, schedule)


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


class _Gemm:
    """Writes one product of matrices."""

    def __init__(
        self,
        context: Context,
        name: str,
        step: Contraction,
        schedule: GemmSchedule,
        column_sums: Sequence[Part],
    ) -> None:
        self._context = context
        self._name = name
        self._schedule = schedule
        self._matrix = matrix = as_matrix(step)
        self._column_sums = column_sums
        self._element = element(step.dtype)
        self._panels = panels = schedule.panels
        self._dots = schedule.algorithm == "dots"
        is_direct = schedule.left == DIRECT
        self._left = as_plain(matrix.left, matrix.m, matrix) if is_direct else None
        self._right = as_plain(matrix.right, matrix.n, matrix)
        # The worker's own memory: a chunk of a panel, and sums of one tile or of all of them.
        packs = schedule.right != PREPACKED and not self._dots
        panel_bytes = schedule.chunk * panels.width * step.dtype.itemsize if packs else 0
        tiles = 1 if schedule.chunk == matrix.k.extent else schedule.row_tiles
        sums_bytes = tiles * schedule.rows * panels.width * step.dtype.itemsize
        self._sums_offset = -(-panel_bytes // 64) * 64
        context.workspaces.need_own(self._sums_offset + sums_bytes)

    # Parts

    def write(self) -> list[Part]:
        matrix, schedule = self._matrix, self._schedule
        parts: list[Part] = []
        if schedule.packing_left is not None:
            name = f"{self._name}_left"
            parts.append(write_pack_left(self._context, name, matrix, schedule.rows))
        for kind, panel, _, _ in self._panels.kinds():
            self._write_panel(kind, panel)
        self._write_compute()
        reads = reads_of(matrix.step) | {name for part in parts for name in part.writes}
        if schedule.prepacked is not None:
            reads |= {schedule.prepacked.buffer}
        part = Part(self._name, reads, writes_of(matrix.step))
        if schedule.row_cuts > 1:
            return [*parts, part, *self._column_sums]
        for one in self._column_sums:
            part = replace(part, reads=part.reads | one.reads, writes=part.writes | one.writes)
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
        cuts = constant(self._schedule.row_cuts, I64)
        cut = code.binary("urem", loop.index, cuts)
        panel_of_all = code.binary("udiv", loop.index, cuts)
        count = constant(self._panels.count, I64)
        batch = code.binary("udiv", panel_of_all, count)
        panel = code.binary("urem", panel_of_all, count)
        tiles = constant(self._schedule.row_tiles, I64)
        begin = code.binary("udiv", code.multiply(cut, tiles), cuts)
        following = code.add(cut, constant(1, I64))
        end = code.binary("udiv", code.multiply(following, tiles), cuts)
        operands = (table, thread, batch, panel, begin, end)
        for kind, _, condition, limit in self._panels.kinds():
            with code.when(code.compare(condition, panel, constant(limit, I64))):
                code.call_void(f"{self._name}_{kind}", *operands)
        if self._schedule.row_cuts == 1:
            following = code.add(panel, constant(1, I64))
            for one in self._column_sums:
                code.call_void(one.function, table, thread, panel, following)
        code.end_loop(loop)
        code.finish()

    def _write_panel(self, kind: str, panel: Panel) -> None:
        """One panel of columns: packs it if need be, then passes the tiles of the rows over it."""
        matrix, workspaces = self._matrix, self._context.workspaces
        name = f"{self._name}_{kind}"
        wide, around = self._schedule.wide_epilogue, (matrix.batch,)
        epilogue = Epilogue(matrix.step, around, (matrix.m,), (panel.width,), panel, wide)
        write_epilogue(self._context, name, epilogue, ("batch", "row", "count", "column"))
        points = self._begin(name, _PANEL_PARAMETERS)
        code = points.code
        table, thread, batch, number, begin, end = code.parameters
        own = workspaces.own(code, table, thread)
        sums = code.offset(own, self._sums_offset, "i8")
        column = code.multiply(number, constant(self._panels.width, I64))
        k, longest = matrix.k.extent, self._schedule.chunk
        with points.bound(matrix.batch, batch):
            for start in range(0, k, longest):
                chunk = range(start, min(start + longest, k))
                right, stride = self._right_address(points, panel, own, column, chunk)
                one = _Pass(name, panel, chunk, table, right, stride, sums, column)
                self._tiles(points, one, begin, end)
        code.finish()

    def _right_address(
        self, points: Points, panel: Panel, own: Value, column: Value, chunk: range
    ) -> tuple[Value, int]:
        """Where a chunk of a panel is read, and the stride between two k; packs it if need be."""
        code = points.code
        _, _, batch, number, *_ = code.parameters
        packed = self._schedule.prepacked
        if packed is not None:
            before = code.multiply(batch, constant(self._panels.count, I64))
            place = code.add(before, number)
            whole = panel_address(self._context, code, packed, place, self._element)
            return code.offset(whole, chunk.start * panel.width, self._element), panel.width
        plain = self._right_as_it_lies(panel)
        if plain is not None:
            return self._address(points, plain, column, chunk.start), plain.k_stride
        packing = self._schedule.packing
        assert packing is not None
        packed = RightPanel(points, self._matrix, packing, panel, column, own)
        packed.write_some(constant(chunk.start, I64), len(chunk))
        return own, panel.width

    def _right_as_it_lies(self, panel: Panel) -> Plain | None:
        """The right operand where it is read without packing; tiles read full vectors only."""
        is_direct = self._schedule.right == DIRECT
        return self._right if is_direct and (self._dots or panel.last == panel.lanes) else None

    def _tiles(self, points: Points, one: _Pass, begin: Value, end: Value) -> None:
        """All tiles of some rows over one chunk of k."""
        code, matrix = points.code, self._matrix
        whole, rest = divmod(matrix.m.extent, self._schedule.rows)
        if whole:
            limit = constant(whole, I64)
            stop = code.select(code.compare("slt", end, limit), end, limit) if rest else end
            loop = code.begin_loop(begin, stop)
            with points.bound(TILE, loop.index, before=loop.before):
                self._tile(points, one, loop.index, self._schedule.rows)
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
        row = code.multiply(number, constant(self._schedule.rows, I64))
        left, row_stride, left_stride = self._left_address(points, number, row, one.chunk.start)
        sums = one.sums
        if self._dots:
            self._dot_tiles(code, one, left, row_stride, rows)
        else:
            lanes, vectors = one.panel.lanes, one.panel.vectors
            if self._schedule.chunk < matrix.k.extent:
                size = self._schedule.rows * one.panel.width
                skipped = code.multiply(number, constant(size, I64))
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
                fetched=self._schedule.prefetch,
            )
            kernel = emit_tile(self._context.module, tile)
            code.call_void(kernel, left, one.right, sums, constant(len(one.chunk), I64))
        if one.chunk.stop == matrix.k.extent:
            batch = points.axis(matrix.batch)
            operands = (one.table, sums, batch, row, constant(rows, I64), one.column)
            code.call_void(f"{one.name}_epilogue", *operands)

    def _dot_tiles(
        self, code: Function, one: _Pass, left: Value, row_stride: int, rows: int
    ) -> None:
        """The sums of some rows and all columns of a panel, a few columns at a time."""
        plain = self._right_as_it_lies(one.panel)
        assert plain is not None
        most = self._schedule.columns
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
        k = matrix.k.extent
        if self._left is not None:
            plain = self._left
            return self._address(points, plain, row, start), plain.stride, plain.k_stride
        whole = self._context.address(code, self._context.SHARED)
        batch = points.axis(matrix.batch)
        tile = code.add(code.multiply(batch, constant(self._schedule.row_tiles, I64)), number)
        rows = self._schedule.rows
        position = code.multiply(tile, constant(k * rows, I64))
        # The last tile may have fewer rows, and lies as close.
        position = code.add(position, constant(start * rows, I64))
        return code.offset(whole, position, self._element), 1, rows

    def _address(self, points: Points, plain: Plain, outer: Value, start: int) -> Value:
        """Where a plain operand lies from a row or column and a k on."""
        code = points.code
        first = points.indices(plain.start).start
        position = code.add(first, code.multiply(outer, constant(plain.stride, I64)))
        position = code.add(position, constant(start * plain.k_stride, I64))
        return code.offset(points.base(plain.buffer), position, self._element)


_PANEL_PARAMETERS = (
    ("table", POINTER),
    ("thread", I64),
    *((name, I64) for name in ("batch", "panel", "begin", "end")),
)
