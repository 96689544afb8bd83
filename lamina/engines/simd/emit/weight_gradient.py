"""Gradients of the weights of convolutions: K runs over output positions, image by image.

An implicit GEMM: images are copied with their padding, each panel of the right operand is packed,
and partial sums are added at the end. Read `write` first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from lamina.base.shapes import size_of
from lamina.codegen.axes import flattened, row_major_strides
from lamina.codegen.builder import Builder
from lamina.codegen.matrix import as_plain
from lamina.codegen.values import Type, Value
from lamina.engines.simd.decide.convolutions import (
    m_runs_of,
    m_tiles_of,
    matrix_of_positions,
    outer_stride,
)
from lamina.engines.simd.decide.packing import Panel
from lamina.engines.simd.decide.schedule import DIRECT, WindowSchedule
from lamina.engines.simd.decide.windows import Windowed
from lamina.engines.simd.emit.context import Context, Points, WrittenKernel
from lamina.engines.simd.emit.m_tiles import address, m_start_of, offsets, over_kinds, over_tiles
from lamina.engines.simd.emit.packing import RightPanelWriter
from lamina.engines.simd.emit.tiles import call_tile
from lamina.engines.simd.emit.windows import WindowWriter
from lamina.engines.simd.processor import whole_lines
from lamina.program.rewrite import Rewrite


@final
class WeightGradient(WindowWriter):
    """Work items are (batch, panel of N, piece of M, block of the outer positions).

    If there are few tiles, K is split into several blocks of outer positions. Each has partial
    sums, which are added up at the end.
    """

    def __init__(
        self, context: Context, name: str, windowed: Windowed, schedule: WindowSchedule
    ) -> None:
        super().__init__(context, name, windowed, schedule)
        step, image, block = windowed.step, windowed.image, schedule.block
        self._m, of_m = flattened(step.m, "m")
        change = Rewrite(of_m)
        self._step = replace(step, stores=change.records(step.stores))
        self._matrix = matrix_of_positions(windowed)
        self._positions_of_run = size_of([axis.extent for axis in image.positions[1:]])
        self._tiles = m_tiles_of(windowed, block, schedule.tile_m)
        # The worker's memory: images, a chunk of a panel, and the sums of all M.
        images = max(image.size(size) for _, size, _ in self._chunks.sizes())
        packed = schedule.images * block * self._positions_of_run // self._per_step
        self._right_offset = whole_lines(schedule.images * images * self._left_bytes)
        packed_bytes = whole_lines(packed * self._panels.width * self._bytes)
        self._sums_offset = self._right_offset + packed_bytes

    def write(self) -> list[WrittenKernel]:
        schedule = self._schedule
        sums_bytes = self._m.extent * self._panels.width * self._bytes
        self._context.workspaces.need_thread_memory(self._sums_offset + sums_bytes)
        matrices = self._batch.extent * self._panels.count
        if schedule.partial_sums > 1:
            self._context.need_shared(schedule.partial_sums * matrices * sums_bytes)
        for kind, panel, _, _ in self._panels.kinds():
            self._write_epilogue(kind, panel, [self._m], [panel.width])
            for label, size, _ in self._chunks.sizes():
                self._write_chunk(f"{kind}_{label}", panel, size)
            self._write_panel(kind, panel)
        sums = self._over_items(self._name, "sums", schedule.split_m, schedule.partial_sums)
        if schedule.partial_sums == 1:
            return [sums]
        for kind, panel, _, _ in self._panels.kinds():
            self._write_total(kind, panel)
        shared = frozenset([self._context.SHARED])
        total = self._over_items(f"{self._name}_total", "total", 1, 1)
        return [replace(sums, writes=shared), replace(total, reads=total.reads | shared)]

    def _over_items(self, name: str, function: str, split_m: int, blocks: int) -> WrittenKernel:
        """A kernel that calls `function(table, thread, batch, panel, low, high, block)` per item.

        `low` and `high` are the first tile of the item's piece of M, and the tile after the last.
        """
        with self._items(name, blocks, split_m, self._panels.count) as (code, _, numbers):
            block, piece, panel, batch = numbers
            tiles = self._tiles.count
            low, high = piece * tiles // split_m, (piece + 1) * tiles // split_m
            for kind in over_kinds(code, self._panels, panel):
                self._call(code, f"{kind}_{function}", batch, panel, low, high, block)
        return self._kernel(name)

    def _write_panel(self, kind: str, panel: Panel) -> None:
        """Writes `sums(..)`: sums over all chunks. Without partial sums it stores the results."""
        _, code, numbers = self._begin(f"{kind}_sums", _ITEM_NUMBERS)
        batch, number, low, high, block = numbers
        n_start = number * self._panels.width
        first, end = (m_start_of(self._tiles, tile) for tile in (low, high))
        if self._schedule.partial_sums == 1:
            sums = code.offset(self._context.thread_memory(code), self._sums_offset, "i8")
        else:
            sums = self._partial_sums(code, batch, number, block)
        zero = code.constant(0, Type(self._element, panel.lanes))
        with code.loop(first, end) as loop:
            here = code.offset(sums, loop.index * panel.width, self._element)
            for vector in range(panel.vectors):
                code.store(zero, code.offset(here, vector * panel.lanes, self._element))
        groups = self._outer.extent // self._schedule.images
        edges = (block, block + 1)
        begin, stop = (edge * groups // self._schedule.partial_sums for edge in edges)
        with code.loop(begin, stop) as loop:
            outer = loop.index * self._schedule.images
            further = (n_start, low, high, sums)
            with code.loop(0, self._chunks.full) as inside:
                start = inside.index * self._schedule.block
                self._call(code, f"{kind}_whole", batch, outer, start, *further)
            if self._chunks.rest:
                start = self._chunks.full * self._schedule.block
                self._call(code, f"{kind}_rest", batch, outer, start, *further)
        if self._schedule.partial_sums == 1:
            self._store_rows(code, kind, panel, sums, first, end)

    def _store_rows(
        self, code: Builder, kind: str, panel: Panel, sums: Value, first: Value, end: Value
    ) -> None:
        """Calls the epilogue for rows from `first` up to `end`."""
        _, _, batch, number, *_ = code.parameters
        n_start = number * self._panels.width
        start = code.offset(sums, first * panel.width, self._element)
        self._call_epilogue(code, kind, start, batch, 0, first, end - first, n_start)

    def _partial_sums(self, code: Builder, batch: Value, panel: Value, block: Value) -> Value:
        """The address of the partial sums of a block."""
        number = (batch * self._panels.count + panel) * self._schedule.partial_sums + block
        shared = self._context.address(code, self._context.SHARED)
        return code.offset(shared, number * (self._m.extent * self._panels.width), self._element)

    def _write_total(self, kind: str, panel: Panel) -> None:
        """Writes `total(..)`: adds up partial sums."""
        _, code, numbers = self._begin(f"{kind}_total", _ITEM_NUMBERS)
        batch, number, low, high, zero = numbers
        blocks = self._partial_sums(code, batch, number, zero)
        totals = code.offset(self._context.thread_memory(code), self._sums_offset, "i8")
        first, end = (m_start_of(self._tiles, tile) for tile in (low, high))
        with code.loop(first, end) as m:
            vector = Type(self._element, panel.lanes)
            source = code.offset(blocks, m.index * panel.width, self._element)
            target = code.offset(totals, m.index * panel.width, self._element)
            size = self._m.extent * self._panels.width
            for skipped in range(0, panel.vectors * panel.lanes, panel.lanes):
                total = code.constant(0, vector)
                for block in range(self._schedule.partial_sums):
                    partial = code.offset(source, block * size + skipped, self._element)
                    total = total + code.load(partial, vector)
                code.store(total, code.offset(target, skipped, self._element))
        self._store_rows(code, kind, panel, totals, first, end)

    def _write_chunk(self, name: str, panel: Panel, block: int) -> None:
        """Writes a function that adds the products of a chunk of output positions to the sums."""
        image = self._image
        points, code, arguments = self._begin(name, "batch outer start n_start low high", "sums")
        batch, outer, start, n_start, low, high, sums = arguments
        memory = self._context.thread_memory(code)
        run = self._positions_of_run // self._per_step
        strides, skipped = image.layout(block)
        end = outer + self._schedule.images
        first = outer * (image.positions[0].extent * run) + start * run
        with points.bound(self._batch, batch):
            if image.is_direct:
                with points.bound(self._outer, outer):
                    left = self._image_start(points)
                left = code.offset(left, start * strides[image.positions[0]], self._of_left)
                image_stride = outer_stride(self._windowed) or 0
            else:
                self._copy_images(points, block, outer, end, start, memory)
                left, image_stride = code.offset(memory, skipped, self._of_left), image.size(block)
            count = self._schedule.images * block * run
            right, right_stride = self._right_of_chunk(points, panel, memory, n_start, first, count)
        inner = [(axis.extent, strides[axis]) for axis in image.positions[1:]]
        around = (self._schedule.images, image_stride), (block, strides[image.positions[0]])
        loops = self._loops([*around, *inner])
        pitches = [stride * panel.width for stride in row_major_strides(self._tiles.extents)]
        for size, firsts in over_tiles(code, self._tiles, low, high):
            moves, of_left = self._rows_of_tile(code, block, size, firsts)
            at = address(code, left, moves, self._of_left)
            to = address(code, sums, zip(firsts, pitches, strict=True), self._element)
            rows = of_left, offsets(size, pitches)
            call_tile(code, self._register_tile(panel, *rows, loops, right_stride), at, right, to)

    def _rows_of_tile(
        self, code: Builder, block: int, size: tuple[int, int], firsts: list[Value]
    ) -> tuple[list[tuple[Value, int]], tuple[int, ...]]:
        """The (index, stride) that lead to a tile's first row, and its rows' offsets from there.

        Elements of the image that strides split have their offsets in a table.
        """
        runs, split = m_runs_of(self._windowed, block)
        along = [stride for _, stride in runs]
        moves = list(zip(firsts, along, strict=True))
        if split is None:
            return moves, offsets(size, along)
        of_split = self._image.split_offsets(block)
        name = "split_offsets_" + "_".join(map(str, of_split))
        table = code.module.table_once(name, of_split)
        moves[split] = code.picked(table, firsts[split]), 1
        if split != len(along) - 2:
            return moves, offsets(size, along)
        starts, inner = of_split[: size[0]], [m * along[-1] for m in range(size[1])]
        return moves, tuple(start - starts[0] + past for start in starts for past in inner)

    def _right_of_chunk(
        self, points: Points, panel: Panel, memory: Value, n_start: Value, first: Value, count: int
    ) -> tuple[Value, int]:
        """The address of `count` k of a panel, packed if necessary, and their stride."""
        code, matrix, schedule = points.code, self._matrix, self._schedule
        if schedule.right == DIRECT and panel.last == panel.lanes:
            plain = as_plain(matrix.right, matrix.n, matrix)
            assert plain is not None
            offset = points.indices(plain.start).start
            right = code.offset(points.base(plain.buffer), offset, self._element)
            moves = [(first, plain.k_stride), (n_start, 1)]
            return address(code, right, moves, self._element), plain.k_stride
        assert schedule.packing is not None
        right = code.offset(memory, self._right_offset, "i8")
        packed = RightPanelWriter(points, matrix, schedule.packing, panel, n_start, right)
        packed.write_some(first, count)
        return right, panel.width


# The parameters, after the thread, of functions that do a work item.
_ITEM_NUMBERS = "batch panel low high block"
