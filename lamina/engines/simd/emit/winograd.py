"""Winograd's algorithm for convolutions, and the code that it shares with gradients of weights.

F(2x2, 3x3), F(4x4, 3x3) and F(2x2, 5x5); see `decide/winograd.py`.

Transformed tiles are stored as matrices, one for each element of a tile. The micro-kernels of other
contractions compute their products. If an input is infinite, results that depend on it may be NaN
instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder
from lamina.codegen.values import I32, Type, Value
from lamina.engines.simd.decide.packing import Panel
from lamina.engines.simd.decide.schedule import WindowSchedule
from lamina.engines.simd.decide.tiles import balanced_tile_m
from lamina.engines.simd.decide.windows import Windowed, filtering_of
from lamina.engines.simd.decide.winograd import PackedWeights
from lamina.engines.simd.emit.context import Context, Points, WrittenKernel
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.tiles import call_tile
from lamina.engines.simd.emit.windows import WindowWriter
from lamina.engines.simd.emit.winograd_transforms import emit_data_transform, emit_result_transform
from lamina.engines.simd.emit.zeros import emit_cleared_windows, emit_exact_zeros, emit_zero_windows
from lamina.engines.simd.processor import odd_lines


@frozen_dataclass
class Matrices:
    """A matrix for each element of a transformed tile, `stride` elements apart."""

    start: Value
    stride: int


class TransformedTiles(WindowWriter):
    """Copies, transforms and multiplies input tiles."""

    def __init__(
        self, context: Context, name: str, windowed: Windowed, schedule: WindowSchedule
    ) -> None:
        super().__init__(context, name, windowed, schedule)
        self._channels = schedule.channels
        self._wide = windowed.tiles[1]
        self._filtering = filtering_of(windowed)
        self._window = self._filtering.window
        # The positions of a tile along an axis, and its products for each channel: the matrices.
        self._tile, self._products = self._filtering.results, self._filtering.products

    def _matrix_stride(self, size: int) -> int:
        """The stride between matrices of `size` elements, which map to different cache sets."""
        return odd_lines(size, self._bytes)

    def _tiles(self, block: int) -> int:
        return self._chunks.images * block * self._wide

    def _arrays(self, code: Builder, sizes: Iterable[int]) -> list[Value]:
        """The addresses of arrays of these sizes in the thread's memory."""
        *offsets, end = accumulate(map(self._matrix_stride, sizes), initial=0)
        self._context.workspaces.need_thread_memory(end * self._bytes)
        memory = self._context.thread_memory(code)
        return [code.offset(memory, at, self._element) for at in offsets]

    def _memory(
        self, code: Builder, block: int, *, before: Sequence[int] = (), after: Sequence[int] = ()
    ) -> tuple[Value, Matrices, Matrices, list[Value]]:
        """The thread's memory for a chunk: images, matrices of inputs and of panels, others."""
        inputs, of_panel = (
            self._matrix_stride(self._tiles(block) * size)
            for size in (self._channels, self._panels.width)
        )
        images = self._chunks.images * self._image.size(self._tile * block)
        sizes = (*before, images, self._products * inputs, self._products * of_panel, *after)
        copied, first, second, *others = self._arrays(code, sizes)[len(before) :]
        return copied, Matrices(first, inputs), Matrices(second, of_panel), others

    def _over_chunk(self, code: Builder, number: Value) -> Iterator[tuple[str, Value, Value]]:
        """Branches by the size of a chunk; yields (label, first outer position, first row)."""
        row, group = number % self._chunks.each, number // self._chunks.each
        yield from self._over_sizes(code, row, group)

    def _transform_chunk(
        self, points: Points, at: tuple[Value, Value], block: int, copied: Value, inputs: Matrices
    ) -> None:
        """Copies the images of a chunk, from an outer position and a row on, and transforms them.

        `block` is the number of its rows of tiles.
        """
        code, positions, lanes = points.code, self._tile * block, self._panels.lanes
        outer, start = at
        end = outer + self._chunks.images
        first_position = start * self._tile
        strides, _ = self._image.layout(positions)
        down, right = (strides[axis] for axis in self._image.positions)
        rest = self._channels % lanes
        vectorized = self._channels - rest
        with points.loop(self._outer, start=outer, stop=end) as loop:
            past = loop.index - outer
            image = code.offset(copied, past * self._image.size(positions), self._element)
            self._copy_image(points, positions, first_position, image)
            skipped = past * (block * self._wide * self._channels)
            tiles = code.offset(inputs.start, skipped, self._element)
            with code.loop(0, block) as rows, code.loop(0, self._wide) as columns:
                moves = [(rows.index, self._tile * down), (columns.index, self._tile * right)]
                source = address(code, image, moves, self._element)
                tile = rows.index * self._wide + columns.index
                target = code.offset(tiles, tile * self._channels, self._element)
                for first, count, wide in ((0, vectorized, lanes), (vectorized, rest, rest)):
                    if count:
                        here = code.offset(source, first, self._element)
                        there = code.offset(target, first, self._element)
                        vector = Type(self._element, wide)
                        function = emit_data_transform(code.module, self._filtering, vector)
                        code.call_void(function, here, there, down, right, inputs.stride, count)

    def _multiply(
        self,
        code: Builder,
        panel: Panel,
        operands: tuple[Matrices, Matrices, Matrices],
        m_loop: tuple[int, int],
        k_loop: tuple[int, int],
        *,
        fresh: bool,
    ) -> None:
        """Multiplies matrices, pair by pair: the left and the right ones to sums.

        The rows of the right matrices and of the sums are the panel's columns. The loops over M and
        K have an extent, and a stride in a left matrix. Sums begin at zero if they are `fresh`.
        """
        m, stride = m_loop
        tile_m = balanced_tile_m(m, self._schedule.tile_m)
        rows = range(tile_m)
        offsets = tuple(row * stride for row in rows), tuple(row * panel.width for row in rows)
        tile = self._register_tile(panel, *offsets, (k_loop,), fresh=fresh)
        with code.loop(0, self._products) as pairs:
            left, right, sums = (
                code.offset(matrices.start, pairs.index * matrices.stride, self._element)
                for matrices in operands
            )
            full_tiles, rest = divmod(m, tile_m)
            with code.loop(0, full_tiles) as loop:
                at = code.offset(left, loop.index * (tile_m * stride), self._element)
                to = code.offset(sums, loop.index * (tile_m * panel.width), self._element)
                call_tile(code, tile, at, right, to)
            if rest:
                at = code.offset(left, full_tiles * tile_m * stride, self._element)
                to = code.offset(sums, full_tiles * tile_m * panel.width, self._element)
                last = replace(tile, left=tile.left[:rest], sums=tile.sums[:rest])
                call_tile(code, last, at, right, to)


@frozen_dataclass
class _ZeroWindows:
    """Addresses of i32 that are not 0: for each position of an image if it is not zero, for each
    result position if its window is not zero, for each row of tiles if it has a zero window.
    """

    seen: Value
    windows: Value
    rows: Value


@final
class WinogradForward(TransformedTiles):
    """Work items are (batch, chunk of tiles)."""

    def write(self) -> list[WrittenKernel]:
        chunks, m_axes = self._chunks, self._step.m[-2:]
        for kind, panel, _, _ in self._panels.kinds():
            pitches = [self._tile * self._wide * panel.width, panel.width]
            self._write_epilogue(kind, panel, m_axes, pitches)
        for label, block, _ in chunks.sizes():
            self._write_chunk(label, block)
        count = self._outer.extent // chunks.images * chunks.each
        with self._items(self._name, count) as (code, _, (chunk, batch)):
            for label, outer, start in self._over_chunk(code, chunk):
                self._call(code, label, batch, outer, start)
        return [self._kernel(self._name)]

    def _write_chunk(self, label: str, block: int) -> None:
        """Writes `chunk(table, thread, batch, outer, start)`: the results of some rows of tiles."""
        images, lanes = self._chunks.images, self._panels.lanes
        columns, size = self._tile * self._wide, self._image.size(self._tile * block)
        row, rest = self._tile * columns, self._channels % lanes
        sizes = [row * self._panels.width]
        if not self._filtering.is_local:
            positions = images * block * row
            sizes += [size // self._channels + lanes, positions + lanes, images * block]
        points, code, (batch, outer, start) = self._begin(label, "batch outer start")
        copied, inputs, products, (out, *marks) = self._memory(code, block, after=sizes)
        zeros = _ZeroWindows(*marks) if marks else None
        with points.bound(self._batch, batch):
            self._transform_chunk(points, (outer, start), block, copied, inputs)
        if zeros is not None:
            self._mark_zeros(code, block, copied, zeros)
        strides, _ = self._image.layout(self._tile * block)
        down, right = (strides[axis] for axis in self._image.positions)
        high, wide = (axis.extent for axis in self._step.m[-2:])
        packed = self._schedule.prepacked
        assert isinstance(packed, PackedWeights)
        m_loop, k_loop = (self._tiles(block), self._channels), (self._channels, 1)
        for kind, panel, panel_number, n_start in self._over_panels(points):
            weights = Matrices(self._right(code, panel_number), self._channels * panel.width)
            flag = code.offset(weights.start, packed.has_zeros * panel.width, self._element)
            has_zeros = code.load(flag, I32).differs(0)
            words = code.offset(flag, panel.width, self._element)
            self._multiply(code, panel, (inputs, weights, products), m_loop, k_loop, fresh=True)
            emitted = code.module, self._filtering, panel, self._element
            with code.loop(0, images) as outers, code.loop(0, block) as rows:
                number = outers.index * block + rows.index
                tiles = number * (self._wide * panel.width)
                source = code.offset(products.start, tiles, self._element)
                transform = emit_result_transform(*emitted)
                code.call_void(transform, source, out, products.stride, self._wide)
                with code.when(has_zeros):
                    moves = [(outers.index, size), (rows.index, self._tile * down)]
                    windows = address(code, copied, moves, self._element)
                    numbers = (down, right, columns, self._channels - rest)
                    set_zeros = emit_exact_zeros(*emitted, lanes, rest)
                    code.call_void(set_zeros, windows, words, out, *numbers)
                if zeros is not None:
                    has_zero_window = code.load(code.offset(zeros.rows, number, "i32"), I32)
                    with code.when(has_zero_window.differs(0)):
                        marked = code.offset(zeros.windows, number * row, "i32")
                        code.call_void(emit_cleared_windows(*emitted), marked, out, row)
                first = (start + rows.index) * self._tile
                present = code.minimum(high - first, self._tile)
                extents = (outer + outers.index, first, 0, present, wide, n_start)
                self._call_epilogue(code, kind, out, batch, *extents)

    def _mark_zeros(self, code: Builder, block: int, copied: Value, zeros: _ZeroWindows) -> None:
        """Looks for windows of zeros in the copied images."""
        lanes, rest = self._panels.lanes, self._channels % self._panels.lanes
        mark = emit_zero_windows(code.module, self._filtering, self._element, lanes, rest)
        rows, columns = self._tile * block, self._tile * self._wide
        with code.loop(0, self._chunks.images) as loop:
            image = code.offset(copied, loop.index * self._image.size(rows), self._element)
            windows = code.offset(zeros.windows, loop.index * (rows * columns), "i32")
            with_zeros = code.offset(zeros.rows, loop.index * block, "i32")
            numbers = (rows, columns, self._channels - rest)
            code.call_void(mark, image, zeros.seen, windows, with_zeros, *numbers)
