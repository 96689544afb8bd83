"""Gradients of the weights of convolutions: K runs over output positions, image by image."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from lamina.codegen.axes import flattened
from lamina.codegen.llvm import Function
from lamina.codegen.matrix import as_plain
from lamina.codegen.values import I64, POINTER, Type, Value, constant
from lamina.engines.cpu.decide.convolutions import (
    matrix_of_positions,
    outer_stride,
    row_tiles_of,
)
from lamina.engines.cpu.decide.panels import Panel
from lamina.engines.cpu.decide.row_tiles import merged
from lamina.engines.cpu.decide.schedule import DIRECT, WindowSchedule
from lamina.engines.cpu.decide.windows import Windowed
from lamina.engines.cpu.emit.context import PART_PARAMETERS, Context, Part, Points
from lamina.engines.cpu.emit.packing import RightPanel
from lamina.engines.cpu.emit.row_tiles import (
    address,
    offsets,
    over_tiles,
    row_of,
    start_of_part,
)
from lamina.engines.cpu.emit.tiles import Tile, emit_tile
from lamina.engines.cpu.emit.windows import WindowWriter
from lamina.program.rewrite import Rewrite
from lamina.program.steps import reads_of, writes_of
from lamina.shapes import size_of


@final
class WeightGradient(WindowWriter):
    """Work items are (batch, panel of columns, cut of the rows, block of the outer positions).

    Where there are few tiles there are several blocks, each with sums of its own, which are added
    up at the end.
    """

    def __init__(
        self, context: Context, name: str, how: Windowed, schedule: WindowSchedule
    ) -> None:
        super().__init__(context, name, how, schedule)
        step, image, block = how.step, how.image, schedule.block
        self._row, of_rows = flattened(step.m, "m")
        change = Rewrite(of_rows)
        self._step = replace(step, stores=tuple(change.store(store) for store in step.stores))
        self._matrix = matrix_of_positions(how)
        whole, rest = divmod(image.places[0].extent, block)
        # The chunks that differ: how long they are, and how many there are.
        self._sizes = {"whole": (block, whole)} | ({"rest": (rest, 1)} if rest else {})
        self._places_of_run = size_of([axis.extent for axis in image.places[1:]])
        self._tiles = row_tiles_of(how, block, schedule.rows)
        # The worker's own memory: images, a chunk of a panel, and the sums of all rows.
        images = max(image.size(size) for size, _ in self._sizes.values())
        chunk = schedule.images * block * self._places_of_run
        self._rights = -(-schedule.images * images * self._bytes // 64) * 64
        self._sums = self._rights + -(-chunk * self._panels.width * self._bytes // 64) * 64

    def write(self) -> list[Part]:
        schedule = self._schedule
        rows_bytes = self._row.extent * self._panels.width * self._bytes
        self._context.workspaces.need_own(self._sums + rows_bytes)
        matrices = self._batch.extent * self._panels.count
        if schedule.partial_sums > 1:
            self._context.need_shared(schedule.partial_sums * matrices * rows_bytes)
        for kind, panel, _, _ in self._panels.kinds():
            self._write_epilogue(f"{self._name}_{kind}", panel, [self._row], [panel.width])
            for label, (size, _) in self._sizes.items():
                self._write_chunk(f"{self._name}_{kind}_{label}", panel, size)
            self._write_panel(kind, panel)
        cuts, sums = schedule.row_cuts, schedule.partial_sums
        part = self._over_items(self._name, "sums", cuts, sums)
        if sums == 1:
            return [part]
        for kind, panel, _, _ in self._panels.kinds():
            self._write_total(kind, panel)
        shared = frozenset([self._context.SHARED])
        total = self._over_items(f"{self._name}_total", "total", 1, 1)
        return [replace(part, writes=shared), replace(total, reads=total.reads | shared)]

    def _over_items(self, name: str, what: str, cuts: int, blocks: int) -> Part:
        """A part that calls `what(table, thread, batch, panel, low, high, block)` for all items."""
        code = self._context.module.function(name, PART_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        remaining = loop.index
        numbers: list[Value] = []
        for extent in (blocks, cuts, self._panels.count):
            numbers.append(code.binary("urem", remaining, constant(extent, I64)))
            remaining = code.binary("udiv", remaining, constant(extent, I64))
        block, cut, panel = numbers
        low = start_of_part(code, cut, self._tiles.count, cuts)
        high = start_of_part(code, code.add(cut, constant(1, I64)), self._tiles.count, cuts)
        for kind, _, condition, limit in self._panels.kinds():
            with code.when(code.compare(condition, panel, constant(limit, I64))):
                operands = (table, thread, remaining, panel, low, high, block)
                code.call_void(f"{self._name}_{kind}_{what}", *operands)
        code.end_loop(loop)
        code.finish()
        return self._part(name)

    def _write_panel(self, kind: str, panel: Panel) -> None:
        """`sums(table, thread, batch, panel, low, high, block)`: all chunks, then the rows."""
        name = f"{self._name}_{kind}"
        points = self._begin(f"{name}_sums", _UNIT)
        code = points.code
        table, thread, batch, number, low, high, block = code.parameters
        column = code.multiply(number, constant(self._panels.width, I64))
        first, end = self._row_range(code, low, high)
        if self._schedule.partial_sums == 1:
            sums = code.offset(self._own(code), self._sums, "i8")
        else:
            sums = self._waiting(code, batch, number, block)
        zero = constant(0, Type(self._element, panel.lanes))
        loop = code.begin_loop(first, end)
        here = address(code, sums, [(loop.index, panel.width)], self._element)
        for vector in range(panel.vectors):
            code.store(zero, code.offset(here, vector * panel.lanes, self._element))
        code.end_loop(loop)
        groups = self._outer.extent // self._schedule.images
        following = code.add(block, constant(1, I64))
        loop = code.begin_loop(
            start_of_part(code, block, groups, self._schedule.partial_sums),
            start_of_part(code, following, groups, self._schedule.partial_sums),
        )
        outer = code.multiply(loop.index, constant(self._schedule.images, I64))
        for label, (_, count) in self._sizes.items():
            chunk = f"{name}_{label}"
            operands = (table, thread, batch, outer)
            if label == "whole":
                inside = code.begin_loop(0, count)
                start = code.multiply(inside.index, constant(self._schedule.block, I64))
                code.call_void(chunk, *operands, start, column, low, high, sums)
                code.end_loop(inside)
            else:
                start = constant(self._sizes["whole"][1] * self._schedule.block, I64)
                code.call_void(chunk, *operands, start, column, low, high, sums)
        code.end_loop(loop)
        if self._schedule.partial_sums == 1:
            self._finish_rows(code, name, panel, sums, first, end)
        code.finish()

    def _finish_rows(
        self, code: Function, name: str, panel: Panel, sums: Value, first: Value, end: Value
    ) -> None:
        """The epilogue of some rows."""
        table, _, batch, number, *_ = code.parameters
        column = code.multiply(number, constant(self._panels.width, I64))
        start = address(code, sums, [(first, panel.width)], self._element)
        numbers = (batch, constant(0, I64), first, code.subtract(end, first), column)
        code.call_void(f"{name}_epilogue", table, start, *numbers)

    def _waiting(self, code: Function, batch: Value, panel: Value, block: Value) -> Value:
        """Where the sums of a block wait."""
        number = code.add(code.multiply(batch, constant(self._panels.count, I64)), panel)
        number = code.add(code.multiply(number, constant(self._schedule.partial_sums, I64)), block)
        shared = self._context.address(code, self._context.SHARED)
        size = self._row.extent * self._panels.width
        return address(code, shared, [(number, size)], self._element)

    def _write_total(self, kind: str, panel: Panel) -> None:
        """`total(table, thread, batch, panel, low, high, block)`: adds up the blocks' sums."""
        name = f"{self._name}_{kind}"
        code = self._begin(f"{name}_total", _UNIT).code
        _, _, batch, number, low, high, zero = code.parameters
        blocks = self._waiting(code, batch, number, zero)
        totals = code.offset(self._own(code), self._sums, "i8")
        first, end = self._row_range(code, low, high)
        rows = code.begin_loop(first, end)
        vector = Type(self._element, panel.lanes)
        source = address(code, blocks, [(rows.index, panel.width)], self._element)
        target = address(code, totals, [(rows.index, panel.width)], self._element)
        size = self._row.extent * self._panels.width
        for skipped in range(0, panel.vectors * panel.lanes, panel.lanes):
            total = constant(0, vector)
            for block in range(self._schedule.partial_sums):
                place = code.offset(source, block * size + skipped, self._element)
                total = code.add(total, code.load(place, vector))
            code.store(total, code.offset(target, skipped, self._element))
        code.end_loop(rows)
        self._finish_rows(code, name, panel, totals, first, end)
        code.finish()

    def _row_range(self, code: Function, low: Value, high: Value) -> tuple[Value, Value]:
        """The rows of some tiles."""
        return row_of(code, self._tiles, low), row_of(code, self._tiles, high)

    def _write_chunk(self, name: str, panel: Panel, block: int) -> None:
        """`chunk(table, thread, batch, outer, start, column, low, high, sums)`: adds places."""
        image = self._image
        numbers = ("thread", "batch", "outer", "start", "column", "low", "high")
        parameters = (("table", POINTER), *((number, I64) for number in numbers))
        used = reads_of(self._step) | writes_of(self._step)
        points = self._context.begin(name, (*parameters, ("sums", POINTER)), used)
        code = points.code
        _, _, batch, outer, start, column, low, high, sums = code.parameters
        own = self._own(code)
        size, run = image.size(block), self._places_of_run
        strides, skipped = image.moves(block)
        end = code.add(outer, constant(self._schedule.images, I64))
        whole_run = constant(image.places[0].extent * run, I64)
        first = code.add(code.multiply(outer, whole_run), code.multiply(start, constant(run, I64)))
        with points.bound(self._batch, batch):
            if image.is_direct:
                with points.bound(self._outer, outer):
                    left = self._image_start(points)
                left = address(code, left, [(start, strides[image.places[0]])], self._element)
                slot = outer_stride(self._how) or 0
            else:
                with points.loop(self._outer, (), outer, end) as loop:
                    past = code.subtract(loop.index, outer)
                    target = address(code, own, [(past, size)], self._element)
                    self._copy_image(points, block, start, target)
                    code.end_loop(loop)
                left, slot = code.offset(own, skipped, self._element), size
            count = self._schedule.images * block * run
            right, right_stride = self._right_of_chunk(points, panel, own, column, first, count)
        loops = merged(
            [
                (self._schedule.images, slot),
                (block, strides[image.places[0]]),
                *((axis.extent, strides[axis]) for axis in image.places[1:]),
            ]
        )
        runs = merged([(axis.extent, strides[axis]) for axis in image.elements])
        along = [stride for _, stride in runs]
        pitches = self._tiles.pitches(panel.width)

        for size, firsts in over_tiles(code, self._tiles, low, high):
            tile = Tile(
                offsets(size, along),
                offsets(size, pitches),
                panel.vectors,
                panel.lanes,
                panel.last_lanes,
                self._element,
                loops,
                right_stride,
                self._schedule.unrolled,
            )
            at = address(code, left, list(zip(firsts, along, strict=True)), self._element)
            to = address(code, sums, list(zip(firsts, pitches, strict=True)), self._element)
            code.call_void(emit_tile(self._context.module, tile), at, right, to)
        code.finish()

    def _right_of_chunk(
        self, points: Points, panel: Panel, own: Value, column: Value, first: Value, count: int
    ) -> tuple[Value, int]:
        """Where some positions of a panel are read, and how far apart two are; packs them first."""
        code, matrix, schedule = points.code, self._matrix, self._schedule
        if schedule.right == DIRECT and panel.last == panel.lanes:
            plain = as_plain(matrix.right, matrix.n, matrix)
            assert plain is not None
            place = points.indices(plain.start).start
            right = code.offset(points.base(plain.buffer), place, self._element)
            moves = [(first, plain.k_stride), (column, 1)]
            return address(code, right, moves, self._element), plain.k_stride
        assert schedule.packing is not None
        right = code.offset(own, self._rights, "i8")
        packed = RightPanel(points, matrix, schedule.packing, panel, column, right)
        packed.write_some(first, count)
        return right, panel.width


# What functions of units are called with, beside the table.
_UNIT = ("thread", "batch", "panel", "low", "high", "block")
