"""Winograd's algorithm for gradients of weights: F(3x3, 2x2), F(3x3, 4x4), F(5x5, 2x2)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import final

from lamina.codegen.axes import flattened
from lamina.codegen.builder import Builder
from lamina.codegen.values import I32, Type, Value
from lamina.engines.simd.decide.packing import Panel
from lamina.engines.simd.decide.schedule import WindowSchedule
from lamina.engines.simd.decide.windows import Windowed, tiled
from lamina.engines.simd.emit.context import Context, Points, WrittenKernel
from lamina.engines.simd.emit.m_tiles import address, over_kinds
from lamina.engines.simd.emit.winograd import Matrices, TransformedTiles
from lamina.engines.simd.emit.winograd_transforms import (
    emit_factor_transform,
    emit_gradient_transform,
)
from lamina.engines.simd.emit.zeros import clear, nonzero_n_of_any, panel_vectors, write_narrowing
from lamina.program.index import Axis, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Bound, Scalar
from lamina.program.steps import reads_of


@final
class WinogradWeightGradient(TransformedTiles):
    """Work items are (batch, group of panels, piece of the channels, block of chunks).

    A work item keeps its sums in the thread's memory, and transforms them to gradients at its end.
    If the gradients have partial sums, they are in the shared workspace. Another kernel, with work
    items of (batch, panel, vector of channels), adds them up and transforms them.
    """

    def __init__(
        self, context: Context, name: str, windowed: Windowed, schedule: WindowSchedule
    ) -> None:
        super().__init__(context, name, windowed, schedule)
        *plane, channels = windowed.image.sides
        self._plane = plane
        self._all_channels = channels.axis.extent
        self._piece = Axis("piece", self._all_channels // schedule.channels)
        within = Axis(channels.axis.name, schedule.channels)
        channel = axis_index(self._piece) * schedule.channels + axis_index(within)
        view = Rewrite({channels.axis: channel}).scalar(windowed.image.view)
        side = replace(channels, axis=within, windows=replace(channels.windows, element=within))
        self._image = replace(windowed.image, view=view, sides=(*plane, side))
        self._blocks = schedule.partial_sums
        self._groups = -(-self._panels.count // schedule.panels_at_once)
        self._sums_stride = self._matrix_stride(schedule.channels * schedule.panels.width)
        # The elements of the sums of a panel, and of a work item.
        self._panel_sums = self._products * self._sums_stride
        self._item_sums = self._panel_sums * schedule.panels_at_once
        # The elements of sums at the beginning of the thread's memory.
        self._thread_sums = [self._item_sums if self._blocks == 1 else 0]
        self._elements = [side.element for side in plane if side.element is not None]

    def write(self) -> list[WrittenKernel]:
        chunks, (work, *_) = self._chunks, self._schedule.works
        count = self._outer.extent // chunks.images * chunks.each
        if self._blocks > 1:
            self._context.need_shared(work.items * self._item_sums * self._bytes)
        for kind, panel, _, _ in self._panels.kinds():
            for label, block, _ in chunks.sizes():
                self._write_panel(f"{kind}_{label}", panel, block)
            self._write_gradients(kind, panel)
        for label, block, _ in chunks.sizes():
            self._write_chunk(label, block)
        self._write_item(count)
        extents = (self._blocks, self._piece.extent, self._groups)
        with self._items(self._name, *extents) as (code, item, (block, piece, group, batch)):
            self._call(code, "item", batch, group, piece, block, item)
        summing = self._kernel(self._name)
        if self._blocks == 1:
            return [summing]
        return [replace(summing, writes=frozenset([self._context.SHARED])), self._finishing()]

    def _write_item(self, chunks: int) -> None:
        """Writes `item(table, thread, batch, group, piece, block, number)`: sums over chunks."""
        numbers = "batch group piece block number"
        _, code, (batch, group, piece, block, number) = self._begin("item", numbers)
        if self._blocks == 1:
            sums = self._context.thread_memory(code)
        else:
            sums = self._context.address(code, self._context.SHARED)
            sums = code.offset(sums, number * self._item_sums, self._element)
        lanes, at_once = self._panels.lanes, self._schedule.panels_at_once
        self._fill_with_zeros(code, sums, self._item_sums, lanes)
        first = group * at_once
        last = code.minimum(first + at_once, self._panels.count)
        begin, end = (edge * chunks // self._blocks for edge in (block, block + 1))
        with code.loop(begin, end) as loop:
            for label, outer, start in self._over_chunk(code, loop.index):
                self._call(code, label, batch, outer, start, first, last, piece, sums)
        if self._blocks == 1:
            vectors_of_piece = -(-self._schedule.channels // lanes)
            start = piece * vectors_of_piece
            with code.loop(first, last) as panels:
                past = (panels.index - first) * self._panel_sums
                of_panel = code.offset(sums, past, self._element)
                with code.loop(start, start + vectors_of_piece) as vectors:
                    self._call_gradients(code, batch, panels.index, vectors.index, of_panel)

    def _write_chunk(self, label: str, block: int) -> None:
        """Writes a function that adds the products of a chunk of tiles to the sums of panels."""
        numbers, used = "batch outer start first last piece", reads_of(self._step)
        points, code, arguments = self._begin(label, numbers, "sums", used)
        batch, outer, start, first, last, piece, sums = arguments
        copied, left, *_ = self._memory(code, block, before=self._thread_sums)
        with points.bound(self._batch, batch), points.bound(self._piece, piece):
            self._transform_chunk(points, (outer, start), block, copied, left)
        with code.loop(first, last) as loop:
            past = (loop.index - first) * self._panel_sums
            target = code.offset(sums, past, self._element)
            for kind in over_kinds(code, self._panels, loop.index):
                self._call(code, f"{kind}_{label}", batch, outer, start, loop.index, target)

    def _write_panel(self, name: str, panel: Panel, block: int) -> None:
        """Writes a function that adds the products of the tiles of a chunk to a panel's sums."""
        numbers, used = "batch outer start number", reads_of(self._step)
        points, code, (batch, outer, start, number, sums) = self._begin(name, numbers, "sums", used)
        n_start = number * self._panels.width
        _, left, factors, _ = self._memory(code, block, before=self._thread_sums)
        right = replace(factors, stride=self._matrix_stride(self._tiles(block) * panel.width))
        with points.bound(self._batch, batch):
            self._transform_right(points, (outer, start), block, panel, n_start, right)
        operands = (left, right, Matrices(sums, self._sums_stride))
        m_loop, k_loop = (self._channels, 1), (self._tiles(block), self._channels)
        self._multiply(code, panel, operands, m_loop, k_loop, fresh=False)

    def _transform_right(
        self,
        points: Points,
        at: tuple[Value, Value],
        block: int,
        panel: Panel,
        n_start: Value,
        factors: Matrices,
    ) -> None:
        """Transforms the tiles of the right operand, as `_transform_chunk` transforms images."""
        code, view, (high, wide) = points.code, self._right_view(), self._image.positions
        outer, start = at
        with points.loop(self._outer, start=outer, stop=outer + self._chunks.images) as outers:
            past = outers.index - outer
            with code.loop(0, block) as rows, code.loop(0, self._wide) as columns:
                tile = (past * block + rows.index) * self._wide + columns.index
                target = code.offset(factors.start, tile * panel.width, self._element)
                first_row = (start + rows.index) * self._tile
                first_column = columns.index * self._tile
                for number in range(panel.vectors):
                    skipped = number * panel.lanes
                    base = n_start + skipped
                    vector = Type(self._element, panel.lanes)
                    transform = emit_factor_transform(code.module, self._filtering, vector)
                    to = code.offset(target, skipped, self._element)
                    values: list[Value] = []
                    for row, column in product(range(self._tile), repeat=2):
                        with (
                            points.bound(high, first_row + row),
                            points.bound(wide, first_column + column),
                            points.along(self._n, base, panel.present(number)),
                        ):
                            values.append(code.padded(points.vector(view), panel.lanes, 0))
                    code.call_void(transform, *values, to, factors.stride)

    def _right_view(self) -> Scalar:
        """The right operand over whole tiles, with zeros past its last position."""
        tiles = [(axis, tiled(axis, self._tile)) for axis in self._step.k[-2:]]
        _, of_outer = flattened(self._image.outer, self._outer.name)
        change = Rewrite(of_outer | {axis: axis_index(padded) for axis, padded in tiles})
        bounds = tuple(
            Bound(axis_index(axis), 0, axis.extent) for axis, padded in tiles if padded != axis
        )
        within = Rewrite(load=lambda load: replace(load, bounds=(*load.bounds, *bounds)))
        return change.scalar(within.scalar(self._step.right))

    def _finishing(self) -> WrittenKernel:
        """The kernel that adds up partial sums and transforms them to gradients."""
        name, at_once = f"{self._name}_gradients", self._schedule.panels_at_once
        vectors = -(-self._all_channels // self._panels.lanes)
        with self._items(name, vectors, self._panels.count) as (code, _, (number, panel, batch)):
            past, group = panel % at_once, panel // at_once
            piece = number * self._panels.lanes // self._channels
            item = (batch * self._groups + group) * self._piece.extent + piece
            moves = [(item, self._blocks * self._item_sums), (past, self._panel_sums)]
            shared = self._context.address(code, self._context.SHARED)
            sums = address(code, shared, moves, self._element)
            self._call_gradients(code, batch, panel, number, sums)
        kernel = self._kernel(name)
        return replace(kernel, reads=kernel.reads | {self._context.SHARED})

    def _call_gradients(
        self, code: Builder, batch: Value, panel: Value, number: Value, sums: Value
    ) -> None:
        for kind in over_kinds(code, self._panels, panel):
            self._call(code, f"{kind}_gradients", batch, panel, number, sums)

    def _write_gradients(self, kind: str, panel: Panel) -> None:
        """Writes `gradients(table, thread, batch, panel, number, sums)`, for a vector of channels.

        Gradients stay in the thread's memory until those whose terms are all zero are known.
        """
        lanes, window = self._panels.lanes, self._window
        size = window**2 * panel.width
        (channels,) = (axis for axis in self._step.m if axis not in self._elements)
        pitches = [window * panel.width, panel.width, 0]
        self._write_epilogue(kind, panel, [*self._elements, channels], pitches)
        full_vectors, rest = divmod(self._all_channels, lanes)
        sizes = [("whole", lanes, "slt")] if full_vectors else []
        sizes += [("rest", rest, "eq")] if rest else []
        for label, present, _ in sizes:
            narrowing, along = f"{self._name}_{kind}_{label}_zeros", (channels, present)
            write_narrowing(self._context, narrowing, self._step, along, panel, self._step.k[-2:])
        name, numbers = f"{kind}_gradients", "batch panel number"
        _, code, (batch, number, vector, sums) = self._begin(name, numbers, "sums", frozenset())
        thread_sizes = (*self._thread_sums, lanes * size, lanes, lanes * window**2)
        _, gradients, nonzero, words = self._arrays(code, thread_sizes)
        n_start = number * self._panels.width
        first = vector * lanes
        last = code.minimum(first + lanes, self._all_channels)
        with code.loop(first, last) as loop:
            past = loop.index - first
            target = code.offset(gradients, past * size, self._element)
            source = code.offset(sums, loop.index % self._channels * panel.width, self._element)
            high, wide = (side.windows.dilation < 0 for side in self._plane)
            transform = emit_gradient_transform(
                code.module, self._filtering, panel, self._element, (high, wide)
            )
            strides = (self._sums_stride, self._blocks, self._item_sums)
            code.call_void(transform, source, target, *strides)
            starts = range(0, size, panel.width)
            at = (code.offset(target, start, self._element) for start in starts)
            rows = [panel_vectors(code, panel, self._element, start) for start in at]
            code.store(nonzero_n_of_any(code, panel, rows), code.offset(nonzero, past, "i32"))
        # For each element of the windows as many words as the vector has channels, contiguous.
        count = last - first
        for label, present, condition in sizes:
            with code.when(code.compare(condition, vector, full_vectors)):
                seen = code.load(nonzero, Type("i32", present))
                for element in range(window**2):
                    code.store(seen, code.offset(words, element * present, "i32"))
                operands = (code.parameters[0], batch, first, n_start, words)
                code.call_void(f"{self._name}_{kind}_{label}_zeros", *operands)
        self._clear_zeros(code, panel, count, gradients, words)
        with code.loop(first, last) as loop:
            source = code.offset(gradients, (loop.index - first) * size, self._element)
            numbers = (0, 0, 0, loop.index, window, window, 1, n_start)
            self._call_epilogue(code, kind, source, batch, *numbers)

    def _clear_zeros(
        self, code: Builder, panel: Panel, count: Value, gradients: Value, words: Value
    ) -> None:
        """Clears the gradients of `count` channels whose bits are set in the words.

        Gradients are stored channel by channel; in the words the axes of the windows are in the
        step's order.
        """
        order = [self._elements.index(axis) for axis in self._step.m if axis in self._elements]
        window = self._window
        with code.loop(0, window**2) as elements:
            minor, major = elements.index % window, elements.index // window
            row, column = ((major, minor)[order.index(axis)] for axis in (0, 1))
            place = row * window + column
            with code.loop(0, count) as loop:
                number = elements.index * count + loop.index
                word = code.load(code.offset(words, number, "i32"), I32)
                with code.when(word.differs(0)):
                    moves = [(loop.index, window**2 * panel.width), (place, panel.width)]
                    start = address(code, gradients, moves, self._element)
                    vectors = panel_vectors(code, panel, self._element, start)
                    clear(code, panel, start, vectors, word)
