"""Winograd's algorithm for convolutions: F(2x2, 3x3), F(4x4, 3x3) and F(2x2, 5x5)."""

from __future__ import annotations

from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder
from lamina.codegen.values import I32, Value
from lamina.engines.simd.decide.winograd import PackedWeights
from lamina.engines.simd.emit.context import WrittenKernel
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.winograd import Chunk, Matrices, TransformedTiles
from lamina.engines.simd.emit.winograd_transforms import emit_result_transform
from lamina.engines.simd.emit.winograd_zeros import (
    emit_cleared_windows,
    emit_exact_zeros,
    emit_zero_windows,
)


@frozen_dataclass
class _ZeroWindows:
    """Where the windows of zeros of a chunk are found.

    Attributes:
        seen: the address of an i32 for each position of an image.
        windows: of an i32 for each result position, which is zero if its window is.
        found: of an i32 for each row of tiles, which is not zero if one of its windows is zero.
    """

    seen: Value
    windows: Value
    found: Value


@final
class WinogradForward(TransformedTiles):
    """Work items are (batch, chunk of tiles)."""

    def write(self) -> list[WrittenKernel]:
        chunks, m_axes = self._chunks, self._step.m[-2:]
        for kind, panel, _, _ in self._panels.kinds():
            pitches = [self._tile * self._wide * panel.width, panel.width]
            self._write_epilogue(f"{self._name}_{kind}", panel, m_axes, pitches)
        for label, block, _ in chunks.sizes():
            self._write_chunk(label, block, chunks.images)
        count = self._outer.extent // chunks.images * chunks.each
        with self._items(self._name, count) as (code, _, (chunk, batch)):
            table, thread, *_ = code.parameters
            for label, outer, start in self._over_chunk(code, chunk):
                code.call_void(f"{self._name}_{label}", table, thread, batch, outer, start)
        return [self._kernel(self._name)]

    def _write_chunk(self, label: str, block: int, images: int) -> None:
        """Writes `chunk(table, thread, batch, outer, start)`: the results of some rows of tiles."""
        width, tiles = self._panels.width, images * block * self._wide
        inputs_stride, products_stride = (
            self._matrix_stride(tiles * size) for size in (self._channels, width)
        )
        each, lanes = self._image.size(self._tile * block), self._panels.lanes
        row = self._tile**2 * self._wide
        matrices = self._products * inputs_stride, self._products * products_stride
        sizes = [images * each, *matrices, row * width]
        if not self._filtering.is_local:
            positions = images * block * row
            sizes += [each // self._channels + lanes, positions + lanes, images * block]
        *offsets, _ = self._own_offsets(sizes)
        points = self._begin(f"{self._name}_{label}", "thread batch outer start")
        code, module = points.code, self._context.module
        table, _, batch, outer, start = code.parameters
        own = self._context.own(code)
        starts = [code.offset(own, at, self._element) for at in offsets]
        (copied, inputs, products, out), others = starts[:4], starts[4:]
        left = Matrices(inputs, inputs_stride)
        with points.bound(self._batch, batch):
            self._transform_chunk(points, Chunk(outer, start, images, block), copied, left)
        zeros = _ZeroWindows(*others) if others else None
        if zeros is not None:
            self._find_zero_windows(code, zeros, copied, images, block)
        strides, _ = self._image.layout(self._tile * block)
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
                transform = emit_result_transform(module, *kinds)
                code.call_void(transform, source, out, products_stride, self._wide)
                with code.when(has_zeros):
                    moves = [(outers.index, each), (loop.index, self._tile * steps[0])]
                    source = address(code, copied, moves, self._element)
                    rest = self._channels % lanes
                    function = emit_exact_zeros(module, *kinds, lanes, rest)
                    numbers = (*steps, self._tile * self._wide, self._channels - rest)
                    code.call_void(function, source, words, out, *numbers)
                if zeros is not None:
                    found = code.load(code.offset(zeros.found, number, "i32"), I32)
                    with code.when(found.differs(0)):
                        windows = code.offset(zeros.windows, number * row, "i32")
                        code.call_void(emit_cleared_windows(module, *kinds), windows, out, row)
                first = (start + loop.index) * self._tile
                high, wide = (axis.extent for axis in self._step.m[-2:])
                present = code.minimum(high - first, self._tile)
                operands = (table, out, batch, outer + outers.index, first, 0, present, wide)
                code.call_void(f"{self._name}_{kind}_epilogue", *operands, n_start)

    def _find_zero_windows(
        self, code: Builder, zeros: _ZeroWindows, copied: Value, images: int, block: int
    ) -> None:
        """Looks for windows of zeros in the images of a chunk."""
        rest = self._channels % self._panels.lanes
        function = emit_zero_windows(
            self._context.module, self._filtering, self._element, self._panels.lanes, rest
        )
        rows, columns = self._tile * block, self._tile * self._wide
        with code.loop(0, images) as loop:
            image = code.offset(copied, loop.index * self._image.size(rows), self._element)
            windows = code.offset(zeros.windows, loop.index * (rows * columns), "i32")
            found = code.offset(zeros.found, loop.index * block, "i32")
            numbers = (rows, columns, self._channels - rest)
            code.call_void(function, image, zeros.seen, windows, found, *numbers)
