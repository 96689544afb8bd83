"""Implicit GEMM: convolutions as matrix products, without copies of the windows.

M is the output positions, K the elements of their windows. With AMX, tiles are in tile registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from lamina.codegen.builder import Builder
from lamina.codegen.values import Value
from lamina.engines.simd.decide.amx import amx_tiles
from lamina.engines.simd.decide.tiles import MTiles
from lamina.engines.simd.emit.amx import AmxTile, begin_tiles, emit_amx_tile, end_tiles
from lamina.engines.simd.emit.context import WrittenKernel
from lamina.engines.simd.emit.m_tiles import address, offsets, over_pieces, over_tiles
from lamina.engines.simd.emit.tiles import call_tile
from lamina.engines.simd.emit.windows import WindowWriter
from lamina.engines.simd.processor import whole_lines


@final
class ImplicitGemm(WindowWriter):
    """Work items are (batch, some outer positions, a block along the first inner axis)."""

    def write(self) -> list[WrittenKernel]:
        chunks, images, positions = self._chunks, self._schedule.images, self._image.positions
        # The worker's memory: images, and the sums of a tile.
        largest = max(self._image.size(size) for _, size, _ in chunks.sizes())
        sums_at = whole_lines(images * largest * self._left_bytes)
        tile_bytes = self._schedule.tile_m * self._panels.width * self._bytes
        self._context.workspaces.need_thread_memory(sums_at + tile_bytes)
        for kind, panel, _, _ in self._panels.kinds():
            pitches = [0] * (len(positions) - 1) + [panel.width]
            if len(positions) > 1:
                pitches[-2] = self._tiles(positions[0].extent).run_pitch * panel.width
            self._write_epilogue(kind, panel, positions, pitches)
        for label, size, _ in chunks.sizes():
            self._write_block(label, size, sums_at)
        extents = chunks.each, self._outer.extent // images
        with self._items(self._name, *extents) as (code, _, (number, group, batch)):
            for label, outer, start in self._over_sizes(code, number, group):
                self._call(code, label, batch, outer, start)
        return [self._kernel(self._name)]

    def _write_block(self, label: str, block: int, sums_at: int) -> None:
        """Writes `block(table, thread, batch, outer, start)`: all tiles, each with its epilogue."""
        image, is_amx = self._image, self._schedule.amx
        points, code, (batch, outer, start) = self._begin(label, "batch outer start")
        memory = self._context.thread_memory(code)
        sums = code.offset(memory, sums_at, "i8")
        end = outer + self._schedule.images
        strides, skipped = image.layout(block)
        along = [strides[axis] for axis in image.positions]
        loops = self._loops([(axis.extent, strides[axis]) for axis in self._step.k])
        with points.bound(self._batch, batch):
            if not image.is_direct:
                self._copy_images(points, block, outer, end, start, memory)
            for kind, panel, number, n_start in self._over_panels(points):
                right = self._right(code, number)
                with points.loop(self._outer, start=outer, stop=end) as loop:
                    if image.is_direct:
                        left = self._image_start(points)
                        left = code.offset(left, start * along[0], self._of_left)
                    else:
                        past = (loop.index - outer) * image.size(block)
                        left = code.offset(memory, past, self._of_left)
                        left = code.offset(left, skipped, self._of_left)
                    for size, firsts in self._over_tiles(code, block):
                        at = address(code, left, zip(firsts, along, strict=True), self._of_left)
                        if is_amx:
                            height = self._tiles(block).height(size)
                            tile = AmxTile(height, panel.vectors, along[-1], True, loops)
                            code.call_void(emit_amx_tile(code.module, tile), at, right, sums)
                        else:
                            rows = offsets(size, along)
                            to = tuple(m * panel.width for m in range(len(rows)))
                            tile = self._register_tile(panel, rows, to, loops, fresh=True)
                            call_tile(code, tile, at, right, sums)
                        counts = [*[1] * (len(firsts) - 2), *size][-len(firsts) :]
                        numbers = (firsts[0] + start, *firsts[1:], *counts, n_start)
                        self._call_epilogue(code, kind, sums, batch, loop.index, *numbers)
            if is_amx:
                end_tiles(code)

    def _tiles(self, block: int) -> MTiles:
        if self._schedule.amx:
            return amx_tiles(self._windowed, block, self._schedule.tile_m)
        extents = (block, *(axis.extent for axis in self._image.positions[1:]))
        return MTiles(extents, self._schedule.tile_m)

    def _over_tiles(
        self, code: Builder, block: int
    ) -> Iterator[tuple[tuple[int, int], list[Value]]]:
        """Opens a loop over the tiles of a block; yields each size with its first coordinates."""
        tiles = self._tiles(block)
        if not self._schedule.amx:
            yield from over_tiles(code, tiles, 0, code.constant(tiles.count))
            return
        # Tiles of one size come one after the other, because registers are configured for it.
        for size, pieces in tiles.sizes:
            begin_tiles(code, tiles.height(size))
            with over_pieces(code, tiles, pieces) as firsts:
                yield size, firsts
