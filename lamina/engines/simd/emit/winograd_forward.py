"""Winograd's algorithm for convolutions: F(2x2, 3x3), F(4x4, 3x3) and F(2x2, 5x5)."""

from __future__ import annotations

from typing import final

from lamina.codegen.values import I32
from lamina.engines.simd.decide.winograd import PackedWeights
from lamina.engines.simd.emit.context import WrittenKernel
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.winograd import Matrices, TransformedTiles
from lamina.engines.simd.emit.winograd_transforms import emit_result_transform
from lamina.engines.simd.emit.zeros import emit_cleared_windows, emit_exact_zeros, emit_zero_windows


@final
class WinogradForward(TransformedTiles):
    """Work items are (batch, chunk of tiles)."""

    def write(self) -> list[WrittenKernel]:
        chunks, m_axes = self._chunks, self._step.m[-2:]
        for kind, panel, _, _ in self._panels.kinds():
            pitches = [self._tile * self._wide * panel.width, panel.width]
            self._write_epilogue(kind, panel, m_axes, pitches)
        for label, block, _ in chunks.sizes():
            self._write_chunk(label, block, chunks.images)
        count = self._outer.extent // chunks.images * chunks.each
        with self._items(self._name, count) as (code, _, (chunk, batch)):
            for label, outer, start in self._over_chunk(code, chunk):
                self._call(code, label, batch, outer, start)
        return [self._kernel(self._name)]

    def _write_chunk(self, label: str, block: int, images: int) -> None:
        """Writes `chunk(table, thread, batch, outer, start)`: the results of some rows of tiles."""
        width, tiles = self._panels.width, images * block * self._wide
        inputs_stride, products_stride = (
            self._matrix_stride(tiles * size) for size in (self._channels, width)
        )
        rows, columns = self._tile * block, self._tile * self._wide
        each, lanes = self._image.size(rows), self._panels.lanes
        row, rest = self._tile * columns, self._channels % lanes
        matrices = self._products * inputs_stride, self._products * products_stride
        sizes = [images * each, *matrices, row * width]
        if not self._filtering.is_local:
            positions = images * block * row
            sizes += [each // self._channels + lanes, positions + lanes, images * block]
        offsets = self._own_offsets(sizes)
        points, code, (batch, outer, start) = self._begin(label, "batch outer start")
        own = self._context.own(code)
        starts = [code.offset(own, at, self._element) for at in offsets]
        # The last three are of i32: for each position of an image whether it is not zero; for each
        # result position, whether its window is not; for each row of tiles, whether a window is.
        (copied, inputs, products, out), looked_for = starts[:4], starts[4:]
        left = Matrices(inputs, inputs_stride)
        with points.bound(self._batch, batch):
            self._transform_chunk(points, (outer, start), block, copied, left)
        if looked_for:
            seen, windows, rows_with_zeros = looked_for
            kind = self._element
            function = emit_zero_windows(code.module, self._filtering, kind, lanes, rest)
            with code.loop(0, images) as loop:
                image = code.offset(copied, loop.index * each, self._element)
                window = code.offset(windows, loop.index * (rows * columns), "i32")
                found = code.offset(rows_with_zeros, loop.index * block, "i32")
                numbers = (rows, columns, self._channels - rest)
                code.call_void(function, image, seen, window, found, *numbers)
        strides, _ = self._image.layout(rows)
        steps = [strides[axis] for axis in self._image.positions]
        packed = self._schedule.prepacked
        assert isinstance(packed, PackedWeights)
        for kind, panel, number, n_start in self._over_panels(points):
            right = Matrices(self._right(code, number), self._channels * panel.width)
            flag = code.offset(right.start, packed.has_zeros * panel.width, self._element)
            has_zeros = code.load(flag, I32).differs(0)
            words = code.offset(flag, panel.width, self._element)
            sums = Matrices(products, products_stride)
            m_loop, k_loop = (tiles, self._channels), (self._channels, 1)
            self._multiply(code, panel, (left, right, sums), m_loop, k_loop, fresh=True)
            with code.loop(0, images) as outers, code.loop(0, block) as loop:
                number = outers.index * block + loop.index
                source = code.offset(products, number * (self._wide * panel.width), self._element)
                kinds = self._filtering, panel, self._element
                transform = emit_result_transform(code.module, *kinds)
                code.call_void(transform, source, out, products_stride, self._wide)
                with code.when(has_zeros):
                    moves = [(outers.index, each), (loop.index, self._tile * steps[0])]
                    source = address(code, copied, moves, self._element)
                    function = emit_exact_zeros(code.module, *kinds, lanes, rest)
                    numbers = (*steps, columns, self._channels - rest)
                    code.call_void(function, source, words, out, *numbers)
                if looked_for:
                    _, windows, rows_with_zeros = looked_for
                    found = code.load(code.offset(rows_with_zeros, number, "i32"), I32)
                    with code.when(found.differs(0)):
                        here = code.offset(windows, number * row, "i32")
                        code.call_void(emit_cleared_windows(code.module, *kinds), here, out, row)
                first = (start + loop.index) * self._tile
                high, wide = (axis.extent for axis in self._step.m[-2:])
                present = code.minimum(high - first, self._tile)
                numbers = (outer + outers.index, first, 0, present, wide, n_start)
                self._call_epilogue(code, kind, out, batch, *numbers)
