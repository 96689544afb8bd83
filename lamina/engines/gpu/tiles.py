"""Kernels of contractions whose work groups share tiles of the operands in local memory.

A work group computes a tile of the result. For each stretch of K it copies a tile of each operand
to local memory, and its work items multiply them into blocks of sums in registers. The operands
are read through their views, so that windows, transposes, gathers and casts need no copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from lamina.codegen.builder import OpenLoop
from lamina.codegen.c import Function
from lamina.codegen.primitives import element
from lamina.codegen.signatures import Signature
from lamina.codegen.values import Type, Value, constant
from lamina.engines.gpu.schedule import TiledSchedule
from lamina.engines.gpu.tile_kernels import Block, TileKernel, kernel_in_tiles
from lamina.engines.gpu.tile_operands import TileOperand, Tiling
from lamina.engines.gpu.work_item import Body, ItemPoints, with_products
from lamina.program.index import Axis, Index, axis_index


def tiled_kernel(signature: Signature[TiledSchedule]) -> Body:
    """A work group computes a tile, and a work item a block of it."""
    return kernel_in_tiles(signature, _Tiles)


@final
class _Tiles(TileKernel[TiledSchedule]):
    def _blocks(self, item: Index) -> tuple[Index, Block, Block]:
        tiled = self._decided
        m_items, n_items = tiled.tile_m // tiled.item_m, tiled.tile_n // tiled.item_n
        m_width, n_width = (math.gcd(tiled.width, size) for size in (tiled.item_m, tiled.item_n))
        left = Block(tiled.item_m, m_items, item // n_items % m_items, m_width)
        right = Block(tiled.item_n, n_items, item % n_items, n_width)
        return item // (n_items * m_items), left, right

    def _zeros(self) -> Sequence[Value]:
        right, type = self._right, Type(element(self._step.dtype))
        zero = constant(0, type.wide(right.width if right.width > 1 else 0))
        return [zero] * (self._left.block * right.block // right.width)

    def _summed(self, totals: Sequence[Value], tiling: Tiling) -> Sequence[Value]:
        buffers, type = self._decided.buffers, Type(element(self._step.dtype))
        operands = [TileOperand(tiling, side, type, buffers) for side in (self._left, self._right)]
        if buffers == 1:
            return self._one_buffer(operands, totals)
        return self._two_buffers(operands, totals)

    def _one_buffer(
        self, operands: Sequence[TileOperand], totals: Sequence[Value]
    ) -> Sequence[Value]:
        code, begins = self._code, [self._points.position(0)] * 2

        def body(opened: OpenLoop) -> Sequence[Value]:
            loaded = [operand.loaded(axis_index(self._stretch)) for operand in operands]
            # All items are done with the previous tile.
            code.barrier()
            for operand, values, begin in zip(operands, loaded, begins, strict=True):
                operand.keep(values, begin)
            code.barrier()
            return self._products(operands, begins, opened.carried)

        return self._over_tiles(totals, body)

    def _two_buffers(
        self, operands: Sequence[TileOperand], totals: Sequence[Value]
    ) -> Sequence[Value]:
        """While a tile is multiplied, the next one is read into registers."""
        code, points = self._code, self._points
        for operand in operands:
            operand.keep(operand.loaded(Index()), points.position(0))
        code.barrier()
        following = Axis("following", self._stretch.extent)

        def body(opened: OpenLoop) -> Sequence[Value]:
            odd = opened.index & 1
            begins = [odd * operand.size for operand in operands]
            # The last tile is read once more, from the cache, and not used: a condition would cost
            # each read.
            number = code.minimum(opened.index + 1, self._stretch.extent - 1)
            with points.bound(following, number):
                loaded = [operand.loaded(axis_index(following)) for operand in operands]
            received = self._products(operands, begins, opened.carried)
            for operand, values, begin in zip(operands, loaded, begins, strict=True):
                operand.keep(values, operand.size - begin)
            code.barrier()
            return received

        return self._over_tiles(totals, body)

    def _products(
        self, operands: Sequence[TileOperand], begins: Sequence[Value], totals: Sequence[Value]
    ) -> Sequence[Value]:
        """The totals plus the products of the tiles, which begin at `begins` in local memory."""
        tile_k, unrolled = self._decided.tile_k, self._decided.unrolled
        product = self._batch.position
        starts = [tile.start(product, begin) for tile, begin in zip(operands, begins, strict=True)]
        return write_products(self._points, operands, starts, tile_k, unrolled, totals)


def write_products(
    points: ItemPoints,
    tiles: Sequence[TileOperand],
    starts: Sequence[Value],
    tile_k: int,
    unrolled: int,
    totals: Sequence[Value],
) -> Sequence[Value]:
    """The totals plus the products of two tiles in local memory, where blocks begin at `starts`.

    `unrolled` is the number of k that are written out, a divisor of `tile_k`.
    """
    code = points.code
    if unrolled == tile_k:
        for following in range(tile_k):
            totals = _multiplied(code, tiles, starts, points.position(0), following, totals)
        return totals
    bounds = points.position(0), points.position(tile_k)
    opened = code.begin_loop(*bounds, unrolled, totals, rolled=True)
    received: Sequence[Value] = opened.carried
    for following in range(unrolled):
        received = _multiplied(code, tiles, starts, opened.index, following, received)
    return code.end_loop(opened, received)


def _multiplied(
    code: Function,
    tiles: Sequence[TileOperand],
    starts: Sequence[Value],
    k: Value,
    following: int,
    totals: Sequence[Value],
) -> Sequence[Value]:
    left, right = (
        tile.vectors(start, k, following) for tile, start in zip(tiles, starts, strict=True)
    )
    lanes = right[0].type.lanes
    scalars = [
        code.extract(vector, lane) if vector.type.lanes else vector
        for vector in left
        for lane in range(vector.type.lanes or 1)
    ]
    pairs = ((code.splat(scalar, lanes), vector) for scalar in scalars for vector in right)
    return with_products(code, totals, pairs)
