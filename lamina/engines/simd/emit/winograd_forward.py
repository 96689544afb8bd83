"""Winograd's algorithm for convolutions: F(2x2, 3x3), F(4x4, 3x3) and F(2x2, 5x5)."""

from __future__ import annotations

from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder
from lamina.codegen.values import I32, I64, Value, constant
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.decide.winograd import PackedWeights
from lamina.engines.simd.emit.context import ITEM_RANGE_PARAMETERS, WrittenKernel
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.winograd import Chunk, Matrices, TransformedTiles, divided
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
        code = self._context.module.function(self._name, ITEM_RANGE_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        count = self._outer.extent // chunks.images * chunks.each
        chunk, batch = divided(code, loop.index, count)

        for label, outer, start in self._over_chunk(code, chunk):
            code.call_void(f"{self._name}_{label}", table, thread, batch, outer, start)
        code.end_loop(loop)
        code.finish()
        return [self._kernel(self._name)]

    def _write_chunk(self, label: str, block: int, images: int) -> None:
        """Writes `chunk(table, thread, batch, outer, start)`: the results of some rows of tiles."""
        width, tiles = self._panels.width, images * block * self._wide
        inputs_stride, products_stride = (
            self._matrix_stride(tiles * size) for size in (self._channels, width)
        )
        each, lanes = self._image.size(self._tile * block), self._panels.lanes
        sizes = [
            images * each,
            self._products * inputs_stride,
            self._products * products_stride,
            self._tile**2 * self._wide * width,
        ]
        if not self._filtering.is_local:
            positions = self._tile**2 * block * self._wide
            sizes += [each // self._channels + lanes, images * positions + lanes, images * block]
        *offsets, _ = self._own_offsets(sizes)
        points = self._begin(f"{self._name}_{label}", ("thread", "batch", "outer", "start"))
        code = points.code
        table, _, batch, outer, start = code.parameters
        own = self._own(code)
        starts = [code.offset(own, at, self._element) for at in offsets]
        (copied, inputs, products, out), others = starts[:4], starts[4:]
        left = Matrices(inputs, inputs_stride)
        with points.bound(self._batch, batch):
            self._transform_chunk(points, Chunk(outer, start, images, block), copied, left)
        zeros = _ZeroWindows(*others) if others else None
        if zeros is not None:
            self._find_zero_windows(code, zeros, copied, images, block)
        strides, _ = self._image.layout(self._tile * block)
        steps = tuple(strides[axis] for axis in self._image.positions)
        image_size = self._image.size(self._tile * block)

        for kind, panel, number, n_start in self._over_panels(points):
            packed = self._packed_weights
            right = Matrices(self._right(code, number), self._channels * panel.width)
            flag = code.offset(right.start, packed.has_zeros * panel.width, self._element)
            has_zeros = code.compare("ne", code.load(flag, I32), constant(0, I32))
            words = code.offset(flag, panel.width, self._element)
            sums = Matrices(products, products_stride)
            m_loop, k_loop = (tiles, self._channels), (self._channels, 1)
            self._multiply(code, panel, (left, right, sums), m_loop, k_loop, fresh=True)
            outers = code.begin_loop(0, images)
            loop = code.begin_loop(0, block)
            row = code.add(code.multiply(outers.index, constant(block, I64)), loop.index)
            source = address(code, products, [(row, self._wide * panel.width)], self._element)
            transform = emit_result_transform(
                self._context.module, self._filtering, panel, self._element
            )
            numbers = (products_stride, self._wide)
            code.call_void(transform, source, out, *(constant(one, I64) for one in numbers))
            with code.when(has_zeros):
                moves = [(outers.index, image_size), (loop.index, self._tile * steps[0])]
                source = address(code, copied, moves, self._element)
                self._set_zeros(code, panel, (source, words, out), steps)
            if zeros is not None:
                self._clear_windows(code, panel, zeros, row, out)
            first = code.multiply(code.add(start, loop.index), constant(self._tile, I64))
            high, wide = (constant(axis.extent, I64) for axis in self._step.m[-2:])
            present = code.minimum(code.subtract(high, first), constant(self._tile, I64))
            code.call_void(
                f"{self._name}_{kind}_epilogue",
                *(table, out, batch, code.add(outer, outers.index)),
                *(first, constant(0, I64), present, wide, n_start),
            )
            code.end_loop(loop)
            code.end_loop(outers)
        code.finish()

    @property
    def _packed_weights(self) -> PackedWeights:
        packed = self._schedule.prepacked
        assert isinstance(packed, PackedWeights)
        return packed

    def _find_zero_windows(
        self, code: Builder, zeros: _ZeroWindows, copied: Value, images: int, block: int
    ) -> None:
        """Looks for windows of zeros in the images of a chunk."""
        rest = self._channels % self._panels.lanes
        function = emit_zero_windows(
            self._context.module, self._element, self._filtering, self._panels.lanes, rest
        )
        rows, columns = self._tile * block, self._tile * self._wide
        loop = code.begin_loop(0, images)
        starts = (
            address(code, copied, [(loop.index, self._image.size(rows))], self._element),
            zeros.seen,
            address(code, zeros.windows, [(loop.index, rows * columns)], "i32"),
            address(code, zeros.found, [(loop.index, block)], "i32"),
        )
        numbers = (rows, columns, self._channels - rest)
        code.call_void(function, *starts, *(constant(one, I64) for one in numbers))
        code.end_loop(loop)

    def _clear_windows(
        self, code: Builder, panel: Panel, zeros: _ZeroWindows, row: Value, results: Value
    ) -> None:
        """Clears the results of windows of zeros in a row of tiles of a chunk."""
        found = code.load(code.offset(zeros.found, row, "i32"), I32)
        with code.when(code.compare("ne", found, constant(0, I32))):
            count = self._tile**2 * self._wide
            windows = address(code, zeros.windows, [(row, count)], "i32")
            function = emit_cleared_windows(
                self._context.module, panel, self._element, self._filtering
            )
            code.call_void(function, windows, results, constant(count, I64))

    def _set_zeros(
        self,
        code: Builder,
        panel: Panel,
        addresses: tuple[Value, Value, Value],
        steps: tuple[int, ...],
    ) -> None:
        """Sets exact zeros in the results of a row of tiles.

        Args:
            code: of the function.
            panel: the vectors of the panel.
            addresses: of the inputs, the words of the weights, and the results.
            steps: the elements between the inputs of two positions, down and to the right.
        """
        lanes, channels = self._panels.lanes, self._channels
        rest = channels % lanes
        function = emit_exact_zeros(
            self._context.module, panel, self._element, self._filtering, lanes, rest
        )
        numbers = (*steps, self._tile * self._wide, channels - rest)
        code.call_void(function, *addresses, *(constant(one, I64) for one in numbers))
