"""Implicit GEMM: convolutions as matrix products, without copies of the windows.

M is the output positions, K the elements of their windows. With AMX, tiles are in tile registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder
from lamina.codegen.values import Value
from lamina.engines.simd.decide.amx import amx_tiles
from lamina.engines.simd.decide.m_tiles import MTiles
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.emit.amx import AmxTile, begin_tiles, emit_amx_tile, end_tiles
from lamina.engines.simd.emit.context import WrittenKernel
from lamina.engines.simd.emit.m_tiles import address, offsets, over_pieces, over_tiles
from lamina.engines.simd.emit.tiles import call_tile
from lamina.engines.simd.emit.windows import WindowWriter
from lamina.engines.simd.processor import whole_lines


@frozen_dataclass
class _At:
    """A panel and an image, while the tiles of a block pass over them.

    Attributes:
        kind, panel: the panel.
        left, right: the addresses of the operands.
        sums: the address of a tile's sums.
        outer: the outer position of the image.
        n_start: the first column of the panel.
    """

    kind: str
    panel: Panel
    left: Value
    right: Value
    sums: Value
    outer: Value
    n_start: Value


@final
class ImplicitGemm(WindowWriter):
    """Work items are (batch, some outer positions, a block along the first inner axis)."""

    def write(self) -> list[WrittenKernel]:
        image = self._image
        chunks, images = self._chunks, self._schedule.images
        # The worker's memory: images, and the sums of a tile.
        largest = max(image.size(size) for _, size, _ in chunks.sizes())
        sums_at = whole_lines(images * largest * self._left_bytes)
        tile_bytes = self._schedule.tile_m * self._panels.width * self._bytes
        self._context.workspaces.need_own(sums_at + tile_bytes)
        for kind, panel, _, _ in self._panels.kinds():
            positions, width = image.positions, panel.width
            pitches = [0] * (len(positions) - 1) + [width]
            if len(positions) > 1:
                pitches[-2] = self._tiles(positions[0].extent).run_pitch * width
            self._write_epilogue(f"{self._name}_{kind}", panel, positions, pitches)
        for label, size, _ in chunks.sizes():
            self._write_block(label, size, sums_at)
        extents = chunks.each, self._outer.extent // images
        with self._items(self._name, *extents) as (code, _, (number, group, batch)):
            table, thread, *_ = code.parameters
            outer, start = group * images, number * chunks.block
            for label, _, condition in chunks.sizes():
                with code.when(code.compare(condition, number, chunks.whole)):
                    operands = (table, thread, batch, outer, start)
                    code.call_void(f"{self._name}_{label}", *operands)
        return [self._kernel(self._name)]

    def _write_block(self, label: str, block: int, sums_at: int) -> None:
        image = self._image
        points = self._begin(f"{self._name}_{label}", "thread batch outer start")
        code = points.code
        _, _, batch, outer, start = code.parameters
        own = self._context.own(code)
        sums = code.offset(own, sums_at, "i8")
        end = outer + self._schedule.images
        with points.bound(self._batch, batch):
            if not image.is_direct:
                self._copy_images(points, block, outer, end, start, own)
            strides, skipped = image.layout(block)
            first = strides[image.positions[0]]
            for kind, panel, number, n_start in self._over_panels(points):
                right = self._right(code, number)
                with points.loop(self._outer, start=outer, stop=end) as loop:
                    if image.is_direct:
                        left = code.offset(self._image_start(points), start * first, self._of_left)
                    else:
                        past = (loop.index - outer) * image.size(block)
                        left = code.offset(own, past, self._of_left)
                        left = code.offset(left, skipped, self._of_left)
                    at = _At(kind, panel, left, right, sums, loop.index, n_start)
                    self._write_tiles(code, block, at)
            if self._schedule.amx:
                end_tiles(code)

    def _tiles(self, block: int) -> MTiles:
        """The tiles of a block."""
        if self._schedule.amx:
            return amx_tiles(self._windowed, block, self._schedule.tile_m)
        extents = (block, *(axis.extent for axis in self._image.positions[1:]))
        return MTiles(extents, self._schedule.tile_m)

    def _write_tiles(self, code: Builder, block: int, at: _At) -> None:
        """All tiles of a block, each with its epilogue."""
        tiles = self._tiles(block)
        if not self._schedule.amx:
            for size, firsts in over_tiles(code, tiles, 0, code.constant(tiles.count)):
                self._write_tile(code, block, at, size, firsts)
            return
        # Tiles of one size come one after the other, because registers are configured for it.
        for size, pieces in tiles.sizes:
            begin_tiles(code, tiles.height(size))
            with over_pieces(code, tiles, pieces) as firsts:
                self._write_tile(code, block, at, size, firsts)

    def _write_tile(
        self, code: Builder, block: int, at: _At, size: tuple[int, int], firsts: Sequence[Value]
    ) -> None:
        """A tile of a size, given by its first coordinates."""
        table, _, batch, _, start = code.parameters
        image, panel = self._image, at.panel
        strides, _ = image.layout(block)
        along = [strides[axis] for axis in image.positions]
        loops = self._loops([(axis.extent, strides[axis]) for axis in self._step.k])
        left = address(code, at.left, zip(firsts, along, strict=True), self._of_left)
        if self._schedule.amx:
            height = self._tiles(block).height(size)
            one = AmxTile(height, panel.vectors, along[-1], fresh=True, loops=loops)
            kernel = emit_amx_tile(self._context.module, one)
            code.call_void(kernel, left, at.right, at.sums)
        else:
            left_offsets = offsets(size, along)
            sums = tuple(m * panel.width for m in range(len(left_offsets)))
            tile = self._register_tile(panel, left_offsets, sums, loops, fresh=True)
            call_tile(code, tile, left, at.right, at.sums)
        counts = [*[1] * (len(firsts) - 2), *size][-len(firsts) :]
        absolute = [firsts[0] + start, *firsts[1:]]
        operands = (table, at.sums, batch, at.outer, *absolute, *counts, at.n_start)
        code.call_void(f"{self._name}_{at.kind}_epilogue", *operands)
