"""The code that both of Winograd's algorithms for convolutions share; see `decide/winograd.py`.

Transformed tiles are stored as matrices, one for each element of a tile. The micro-kernels of other
contractions compute their products. If an input is infinite, results that depend on it may be NaN
instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder
from lamina.codegen.values import Type, Value
from lamina.engines.simd.decide.packing import Panel
from lamina.engines.simd.decide.schedule import WindowSchedule
from lamina.engines.simd.decide.tiles import balanced_tile_m
from lamina.engines.simd.decide.windows import Windowed, filtering_of
from lamina.engines.simd.emit.context import Context, Points
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.tiles import call_tile
from lamina.engines.simd.emit.windows import WindowWriter
from lamina.engines.simd.emit.winograd_transforms import emit_data_transform
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

    def _own_offsets(self, sizes: Sequence[int]) -> list[int]:
        """Requests thread memory of these sizes; gives the offset of each."""
        *offsets, end = accumulate(map(self._matrix_stride, sizes), initial=0)
        self._context.workspaces.need_own(end * self._bytes)
        return offsets

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
        whole = self._channels - rest
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
                for first, count, wide in ((0, whole, lanes), (whole, rest, rest)):
                    if count:
                        ends = [code.offset(one, first, self._element) for one in (source, target)]
                        vector = Type(self._element, wide)
                        function = emit_data_transform(code.module, self._filtering, vector)
                        code.call_void(function, *ends, down, right, inputs.stride, count)

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
                code.offset(one.start, pairs.index * one.stride, self._element) for one in operands
            )
            whole, rest = divmod(m, tile_m)
            with code.loop(0, whole) as loop:
                at = code.offset(left, loop.index * (tile_m * stride), self._element)
                to = code.offset(sums, loop.index * (tile_m * panel.width), self._element)
                call_tile(code, tile, at, right, to)
            if rest:
                at = code.offset(left, whole * tile_m * stride, self._element)
                to = code.offset(sums, whole * tile_m * panel.width, self._element)
                last = replace(tile, left=tile.left[:rest], sums=tile.sums[:rest])
                call_tile(code, last, at, right, to)
