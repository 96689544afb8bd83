"""The tiles of a chain for instructions on matrices of floats of 16 bits, or of TF32.

Each warp has rows of its own, and all columns of a tile. Weights pass through local memory as
floats of 16 bits, or of TF32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import final

from lamina.codegen.matrix import multiplied_of
from lamina.codegen.values import FLOAT, Value
from lamina.engines.gpu.chain_items import Column, Grid, Parts, Totals
from lamina.engines.gpu.chain_rows import whole_steps
from lamina.engines.gpu.matrix_operands import EDGE, MatrixOperand, products_of_warps
from lamina.engines.gpu.schedule import STEP, VECTOR_BYTES, WARP, MatrixChainSchedule, MatrixLoad
from lamina.engines.gpu.tile_operands import Side
from lamina.program.index import Axis, Index, axis_index
from lamina.program.scalar import Scalar

# The most instructions along K that are written out.
_UNROLLED = 4


@final
class WarpParts(Parts):
    """The work items of a warp multiply matrices together."""

    def __init__(self, grid: Grid, decided: MatrixChainSchedule) -> None:
        self._grid, self._decided = grid, decided
        self._points, self._code = grid.points, grid.points.code
        self.type = FLOAT
        lane = axis_index(grid.item) % WARP
        self._first = axis_index(grid.item) // WARP * decided.warp_m
        # An item has two neighbouring sums of every eighth row and column.
        self._row_position, self.position = self._first + lane // 4, lane % 4
        chain = grid.chain
        self.rows = self._row_side(chain.sums[0].weight, decided.weights)
        self.columns = self._column_side(0)
        self.sums = [self._sum_side(number) for number in range(len(chain.sums))]
        self._used = 0
        self._lefts: list[MatrixOperand] = []

    def _row_side(self, view: Scalar, load: MatrixLoad) -> Side:
        decided, (m,) = self._decided, self._grid.chain.m
        return Side(
            *(view, m, self._grid.m_tiles, decided.tile_m, load, decided.warp_m // EDGE, EDGE),
            *(self._row_position, 1),
        )

    def _across(self, view: Scalar, axis: Axis, tiles: Axis, tile: int, load: MatrixLoad) -> Side:
        block = tile // EDGE * 2
        return Side(view, axis, tiles, tile, load, block, EDGE // 2, self.position, 2)

    def _column_side(self, number: int) -> Side:
        chain, decided, grid = self._grid.chain, self._decided, self._grid
        view, load = chain.products[number].right, decided.rights[number]
        return self._across(view, chain.k[0], grid.k_tiles, decided.tile_k, load)

    def _sum_side(self, number: int) -> Side:
        one, load = self._grid.chain.sums[number], self._decided.sums[number]
        tile = whole_steps(one.n[0].extent, STEP)
        return self._across(one.right, one.n[0], Axis("n_tile", 1), tile, load)

    def _taken(self, bytes_: int) -> int:
        """Where further bytes of local memory begin."""
        begin = self._used
        self._used += whole_steps(bytes_, VECTOR_BYTES)
        assert self._used <= self._decided.local_bytes
        return begin

    def exchange(self, count: int) -> Value:
        return self._code.launched(self.type.element, self._taken(count * self.type.bytes))

    def _operand(
        self, side: Side, k: Axis, extent: int, begin: int, bound: ExitStack, *, is_left: bool
    ) -> MatrixOperand:
        load = side.load
        assert isinstance(load, MatrixLoad)
        return MatrixOperand(
            *(self._grid.tiling(k, extent, bound), side, multiplied_of(side.view), load),
            *(self._decided.element_bytes, begin, self._first if is_left else Index()),
            is_left,
            in_panels=False,
            along_k=load.along_k,
        )

    def _length(self, number: int) -> tuple[Axis, int]:
        """The axis of a product, and its extent in local memory."""
        (d,) = self._grid.chain.products[number].axes
        return d, whole_steps(d.extent, self._decided.step_k)

    def begin(self, bound: ExitStack) -> None:
        decided, chain, zero = self._decided, self._grid.chain, self._points.position(0)
        bytes_ = decided.element_bytes
        for number, product in enumerate(chain.products):
            d, extent = self._length(number)
            load = decided.lefts[number]
            begin = self._taken(bytes_ * load.size(decided.tile_m, extent))
            side = self._row_side(product.left, load)
            operand = self._operand(side, d, extent, begin, bound, is_left=True)
            operand.keep(operand.loaded(Index()), zero)
            self._lefts.append(operand)
        self._right = self._taken(bytes_ * decided.right_count)
        begin = self._taken(bytes_ * decided.weights.size(decided.tile_m, decided.tile_k))
        k = chain.k[0]
        self._weights = [
            self._operand(
                self._row_side(one.weight, decided.weights),
                *(k, decided.tile_k, begin, bound),
                is_left=True,
            )
            for one in chain.sums
        ]

    def product(self, number: int) -> Totals:
        d, extent = self._length(number)
        side, zero = self._column_side(number), self._points.position(0)
        with ExitStack() as bound:
            operand = self._operand(side, d, extent, self._right, bound, is_left=False)
            values = operand.loaded(Index())
            # All items are done with what was there.
            self._code.barrier()
            operand.keep(values, zero)
        self._code.barrier()
        return self._multiplied(self._lefts[number], operand, extent, side, self.zeros(side))

    def _multiplied(
        self, left: MatrixOperand, right: MatrixOperand, extent: int, side: Side, totals: Totals
    ) -> Totals:
        """The totals of a block after products of an extent."""
        code, points, zero = self._code, self._points, self._points.position(0)
        vectors = side.block // side.width
        # Of each 16 rows and 8 columns: two neighbours of a row, and two of the eighth row below.
        blocks = [
            code.shuffle(
                totals[row * vectors + number], totals[(row + 1) * vectors + number], range(4)
            )
            for row in range(0, self.rows.block, 2)
            for number in range(vectors)
        ]
        step = self._decided.step_k
        together = step * math.gcd(extent // step, _UNROLLED)
        if together == extent:
            blocks = self._after(left, right, zero, extent, blocks)
        else:
            opened = code.begin_loop(zero, points.position(extent), together, blocks, rolled=True)
            received = self._after(left, right, opened.index, together, opened.carried)
            blocks = code.end_loop(opened, received)
        return [
            code.shuffle(blocks[row // 2 * vectors + number], None, (first, first + 1))
            for row in range(self.rows.block)
            for first in (row % 2 * 2,)
            for number in range(vectors)
        ]

    def _after(
        self,
        left: MatrixOperand,
        right: MatrixOperand,
        first: Value,
        extent: int,
        blocks: Sequence[Value],
    ) -> Sequence[Value]:
        """The sums of blocks of 16 rows and 8 columns after an extent of K, from the first on."""
        code, points = self._code, self._points
        multiplied = f"multiply_{self._decided.kind}"
        begins = [code.multiply(first, points.position(one.k_distance)) for one in (left, right)]
        rows = self.rows.block // 2
        columns = len(blocks) // rows // 2
        return products_of_warps(
            code, multiplied, (left, right), begins, (rows, columns), extent, blocks
        )

    def weight(self, number: int) -> Scalar:
        return multiplied_of(self._grid.chain.sums[number].weight)

    def summed(
        self,
        number: int,
        weights: Sequence[Sequence[Value]],
        columns: Sequence[Column],
        totals: Totals,
    ) -> Totals:
        code, tile_k, side = self._code, self._decided.tile_k, self.sums[number]
        kept = self._weights[number]
        with ExitStack() as bound:
            k = self._grid.chain.k[0]
            operand = self._operand(side, k, tile_k, self._right, bound, is_left=False)
            values = operand.loaded(axis_index(self._grid.k_tiles))
            code.barrier()
            operand.keep(values, self._points.position(0))
        for row, own in enumerate(weights):
            for column, value in zip(columns, own, strict=True):
                kept.put(value, self.rows.in_tile(row), column.in_tile)
        code.barrier()
        return self._multiplied(kept, operand, tile_k, side, totals)
