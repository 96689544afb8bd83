"""Kernels of contractions whose work groups share tiles of the operands in local memory.

A work group computes a tile of the result. For each stretch of K it copies a tile of each operand
to local memory, and its work items multiply them into blocks of sums in registers. The operands
are read through their views, so that windows, transposes, gathers and casts need no copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import final

from lamina.codegen.builder import OpenLoop
from lamina.codegen.c import Function, Module
from lamina.codegen.primitives import element
from lamina.codegen.signatures import Signature
from lamina.codegen.values import Type, Value, constant
from lamina.engines.gpu.schedule import TiledSchedule
from lamina.engines.gpu.tile_operands import (
    Batch,
    LocalTile,
    Side,
    TileOperand,
    Tiling,
    write_in_tiles,
    write_over_tiles,
)
from lamina.engines.gpu.tile_results import TileResults
from lamina.engines.gpu.work_item import ItemPoints, with_products
from lamina.program.index import Axis, Index, axis_index
from lamina.program.steps import Contraction


def write_tiled(module: Module, name: str, signature: Signature[TiledSchedule]) -> int:
    """Writes the kernel; returns the number of its work items."""
    tiled = signature.decided
    tiles = (tiled.tile_b, tiled.tile_m, tiled.tile_n)
    return write_in_tiles(module, name, signature, tiles, _Tiles)


@final
class _Tiles:
    """Writes the kernel of a contraction over single axes."""

    def __init__(
        self,
        points: ItemPoints,
        step: Contraction,
        tiled: TiledSchedule,
        groups: Sequence[Axis],
        item: Axis,
    ) -> None:
        self._points, self._code = points, points.code
        self._step, self._tiled, self._item = step, tiled, item
        (batch,), (m,), (n,), (self._k,) = step.batch, step.m, step.n, step.k
        self._stretch = Axis("stretch", max(-(-self._k.extent // tiled.tile_k), 1))
        self._type = Type(element(step.dtype))
        at = axis_index(item)
        m_items, n_items = tiled.tile_m // tiled.item_m, tiled.tile_n // tiled.item_n
        self._batch = Batch(batch, groups[0], tiled.tile_b, at // (n_items * m_items))
        self._left = Side(
            *(step.left, m, groups[1], tiled.tile_m, tiled.left, tiled.item_m),
            *(m_items, at // n_items % m_items, math.gcd(tiled.width, tiled.item_m)),
        )
        self._right = Side(
            *(step.right, n, groups[2], tiled.tile_n, tiled.right, tiled.item_n),
            *(n_items, at % n_items, math.gcd(tiled.width, tiled.item_n)),
        )

    def write(self) -> None:
        right = self._right
        lanes = right.width if right.width > 1 else 0
        zero = constant(0, self._type.wide(lanes))
        totals: Sequence[Value] = [zero] * (self._left.block * right.block // right.width)
        if self._k.extent:
            totals = self._summed(totals)
        TileResults(self._points, self._step, self._batch, self._left, right).write(totals)

    def _summed(self, totals: Sequence[Value]) -> Sequence[Value]:
        with ExitStack() as bound:
            tiling = Tiling(
                *(self._points, self._batch, self._k, self._tiled.tile_k, self._tiled.group),
                *(self._item, bound),
            )
            operands = [
                TileOperand(tiling, side, self._type, self._tiled.buffers)
                for side in (self._left, self._right)
            ]
            if self._tiled.buffers == 1:
                return self._one_buffer(operands, totals)
            return self._two_buffers(operands, totals)

    def _one_buffer(
        self, operands: Sequence[TileOperand], totals: Sequence[Value]
    ) -> Sequence[Value]:
        code = self._code

        def body(opened: OpenLoop) -> Sequence[Value]:
            loaded = [one.loaded(axis_index(self._stretch)) for one in operands]
            # All items are done with the previous tile.
            code.barrier()
            for one, values in zip(operands, loaded, strict=True):
                one.keep(values, None)
            code.barrier()
            return self._products(operands, (None, None), opened.carried)

        return write_over_tiles(self._points, self._stretch, self._tiled.tile_k, totals, body)

    def _two_buffers(
        self, operands: Sequence[TileOperand], totals: Sequence[Value]
    ) -> Sequence[Value]:
        """While a tile is multiplied, the next one is read into registers."""
        code, points = self._code, self._points
        for one in operands:
            one.keep(one.loaded(Index()), None)
        code.barrier()
        following = Axis("following", self._stretch.extent)

        def body(opened: OpenLoop) -> Sequence[Value]:
            odd = code.binary("and", opened.index, points.position(1))
            halves = [code.multiply(odd, points.position(one.size)) for one in operands]
            # After the last tile it is read once more, and not used.
            number = code.add(opened.index, points.position(1))
            number = code.minimum(number, points.position(self._stretch.extent - 1))
            with points.bound(following, number):
                loaded = [one.loaded(axis_index(following)) for one in operands]
            received = self._products(operands, halves, opened.carried)
            for one, values, half in zip(operands, loaded, halves, strict=True):
                one.keep(values, code.subtract(points.position(one.size), half))
            code.barrier()
            return received

        return write_over_tiles(points, self._stretch, self._tiled.tile_k, totals, body)

    def _products(
        self,
        operands: Sequence[TileOperand],
        halves: Sequence[Value | None],
        totals: Sequence[Value],
    ) -> Sequence[Value]:
        """The sums after the tiles in local memory, the halves of which begin there."""
        tiles = [one.tile for one in operands]
        starts = [
            one.start(self._batch.position, half) for one, half in zip(tiles, halves, strict=True)
        ]
        tiled = self._tiled
        return write_products(self._points, tiles, starts, tiled.tile_k, tiled.unrolled, totals)


def write_products(
    points: ItemPoints,
    tiles: Sequence[LocalTile],
    starts: Sequence[Value],
    tile_k: int,
    unrolled: int,
    totals: Sequence[Value],
) -> Sequence[Value]:
    """The totals after the products of two tiles, in which the work item's blocks begin there.

    `unrolled` divides the extent of the tiles along K.
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
    tiles: Sequence[LocalTile],
    starts: Sequence[Value],
    k: Value,
    following: int,
    totals: Sequence[Value],
) -> Sequence[Value]:
    left, right = (
        one.vectors(start, k, following) for one, start in zip(tiles, starts, strict=True)
    )
    lanes = right[0].type.lanes
    scalars = [
        code.extract(vector, lane) if vector.type.lanes else vector
        for vector in left
        for lane in range(vector.type.lanes or 1)
    ]
    pairs = ((code.splat(one, lanes), other) for one in scalars for other in right)
    return with_products(code, totals, pairs)
