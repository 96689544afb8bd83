"""The tiles of a chain: operands in local memory, and blocks of products and sums in registers.

Work items multiply by themselves, or a warp multiplies matrices of floats of 16 bits, or of TF32.
Such a warp has rows of its own, and all columns of a tile. Weights pass through local memory in the
form in which they are multiplied.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Generic, TypeVar, final

from lamina.base.records import frozen_dataclass
from lamina.codegen.matrix import multiplied_of
from lamina.codegen.primitives import element
from lamina.codegen.values import FLOAT, Type, Value, constant
from lamina.engines.gpu.matrix_operands import EDGE, MatrixOperand, products_of_warps
from lamina.engines.gpu.schedule import (
    VECTOR_BYTES,
    WARP,
    ChainSchedule,
    OperandLoad,
    element_bytes_of,
    whole_steps,
)
from lamina.engines.gpu.tile_kernels import Block
from lamina.engines.gpu.tile_operands import Batch, Side, TileOperand, Tiling
from lamina.engines.gpu.tiles import write_products
from lamina.engines.gpu.work_item import ItemPoints
from lamina.program.index import Axis, Index, axis_index
from lamina.program.scalar import Scalar
from lamina.program.steps import Chain

# The most multiplications, or instructions on matrices, along K that are written out.
_UNROLLED = 4
# The products or sums of the work item's block: row after row, in vectors.
Totals = Sequence[Value]
# A tile in local memory, as it is multiplied.
Tile = TypeVar("Tile", TileOperand, MatrixOperand)
# An array in local memory: its address, or the byte with which it begins.
Place = TypeVar("Place", Value, int)


@frozen_dataclass
class Grid:
    """The points of the kernel of a chain over single axes, and what counts its tiles and items."""

    points: ItemPoints
    chain: Chain
    batch: Batch
    m_tiles: Axis
    k_tiles: Axis
    item: Axis

    def tiling(self, k: Axis, extent: int, bound: ExitStack) -> Tiling:
        """The tiles of an operand, of an extent along its K."""
        return Tiling(self.points, self.batch, k, extent, self.item, bound)


@frozen_dataclass
class Column:
    """A vector of columns of the work item's block.

    Attributes:
        in_tile: its location in the tile.
        k: its location along K, with the lanes' axis.
        is_inside: whether it is before the end; None if all are.
        number, lane: the number of the block's vector, and its lane if it is a single column.
    """

    in_tile: Index
    k: Index
    is_inside: Value | None
    number: int
    lane: int | None


class Parts(ABC, Generic[Tile, Place]):
    """The blocks of a work item, and how they are multiplied.

    Products and sums have a type; `position` is the number of the work item among those that share
    its rows.

    Attributes:
        rows, columns: the sides of a tile of rows, and of columns; their views do not matter.
        sums: the side of each sum.
    """

    def __init__(
        self, grid: Grid, decided: ChainSchedule, type: Type, block: Block, position: Index
    ) -> None:
        """Sides of rows have the block."""
        self._grid, self._decided, self.type = grid, decided, type
        self._points, self._code = grid.points, grid.points.code
        self._block, self.position = block, position
        self._used, self._zero = 0, grid.points.position(0)
        self._lefts: list[Tile] = []
        self.rows = self._row_side(grid.chain.sums[0].weight, decided.weights)
        self.columns = self._column_side(0)
        self.sums = [
            self._across(total.right, total.n[0], Axis("n_tile", 1), tile, load)
            for total, tile, load in zip(grid.chain.sums, decided.tiles, decided.sums, strict=True)
        ]

    def _row_side(self, view: Scalar, load: OperandLoad) -> Side:
        (m,), tile = self._grid.chain.m, self._decided.tile_m
        return Side(view, m, self._grid.m_tiles, tile, load, *self._block)

    def _column_side(self, number: int) -> Side:
        chain, decided, tiles = self._grid.chain, self._decided, self._grid.k_tiles
        view, load = chain.products[number].right, decided.rights[number]
        return self._across(view, chain.k[0], tiles, decided.tile_k, load)

    def _across(self, view: Scalar, axis: Axis, tiles: Axis, tile: int, load: OperandLoad) -> Side:
        """A side whose tile the work items of a row share."""
        items = self._decided.items_k
        width = math.gcd(self._decided.width, tile // items)
        return Side(view, axis, tiles, tile, load, tile // items, items, self.position, width)

    def zeros(self, side: Side) -> list[Value]:
        """The totals of a block before anything is added."""
        lanes = side.width if side.width > 1 else 0
        count = self.rows.block * side.block // side.width
        return [constant(0, self.type.wide(lanes))] * count

    # Local memory

    def _taken(self, bytes_: int) -> int:
        """Where further bytes of local memory begin."""
        begin = self._used
        self._used += whole_steps(bytes_, VECTOR_BYTES)
        assert self._used <= self._decided.local_bytes
        return begin

    def exchange(self, count: int) -> Value:
        """An array of numbers in local memory."""
        begin = self._taken(count * self.type.bytes)
        if self._decided.is_launched:
            return self._code.launched(self.type.element, begin)
        return self._code.local(self.type.element, count)

    @abstractmethod
    def _place(self, count: int) -> Place:
        """The place of some elements of operands."""

    @abstractmethod
    def _operand(
        self, side: Side, k: Axis, extent: int, place: Place, bound: ExitStack, *, is_left: bool
    ) -> Tile:
        """An operand that is copied, with an extent along its K."""

    @abstractmethod
    def _tiles_of_weights(self, place: Place, bound: ExitStack) -> Sequence[Tile]:
        """The tile of the weights of each sum; all are at one place."""

    def begin(self, bound: ExitStack) -> None:
        """Copies the left operands of all products to local memory."""
        decided, tile_k = self._decided, self._decided.tile_k
        counts = [side.load.size(side.tile, tile_k) for side in self.sums]
        for number, product in enumerate(self._grid.chain.products):
            (d,), load, extent = product.axes, decided.lefts[number], decided.lengths[number]
            side = self._row_side(product.left, load)
            place = self._place(load.size(decided.tile_m, extent))
            self._lefts.append(self._operand(side, d, extent, place, bound, is_left=True))
            self._lefts[-1].keep(self._lefts[-1].loaded(Index()), self._zero)
            counts.append(decided.rights[number].size(tile_k, extent))
        # One operand of columns after the other is here.
        self._right = self._place(max(counts))
        place = self._place(decided.weights.size(decided.tile_m, tile_k))
        self._weights = self._tiles_of_weights(place, bound)

    def _copied(self, side: Side, k: Axis, extent: int, stretch: Index) -> Tile:
        """An operand of columns, which is copied when all items are done with what was there."""
        with ExitStack() as bound:
            operand = self._operand(side, k, extent, self._right, bound, is_left=False)
            values = operand.loaded(stretch)
            self._code.barrier()
            operand.keep(values, self._zero)
        return operand

    # Products and sums

    def product(self, number: int) -> Totals:
        """A product of the rows and a tile of columns."""
        (d,), side = self._grid.chain.products[number].axes, self._column_side(number)
        extent = self._decided.lengths[number]
        right = self._copied(side, d, extent, Index())
        self._code.barrier()
        return self._multiplied(self._lefts[number], right, extent, side, self.zeros(side))

    def weight(self, number: int) -> Scalar:
        """The weight of a sum as it is kept in local memory."""
        return self._grid.chain.sums[number].weight

    def summed(
        self,
        number: int,
        weights: Sequence[Sequence[Value]],
        columns: Sequence[Column],
        totals: Totals,
    ) -> Totals:
        """The totals of a sum after a tile of columns, with the weights of each row."""
        (k,), side, rows = self._grid.chain.k, self.sums[number], self.rows
        extent, kept = self._decided.tile_k, self._weights[number]
        right = self._copied(side, k, extent, axis_index(self._grid.k_tiles))
        for row, row_weights in enumerate(weights):
            outer = rows.in_tile(row // rows.width) + row % rows.width
            for column, value in zip(columns, row_weights, strict=True):
                kept.put(value, outer, column.in_tile)
        self._code.barrier()
        return self._multiplied(kept, right, extent, side, totals)

    @abstractmethod
    def _multiplied(
        self, left: Tile, right: Tile, extent: int, side: Side, totals: Totals
    ) -> Totals:
        """The totals of a block across a side after products of an extent."""


@final
class ItemParts(Parts[TileOperand, Value]):
    """Work items multiply by themselves."""

    def __init__(self, grid: Grid, decided: ChainSchedule) -> None:
        at, items = axis_index(grid.item), decided.items_k
        type = Type(element(grid.chain.products[0].dtype))
        width = math.gcd(decided.width, decided.item_m)
        block = Block(decided.item_m, decided.tile_m // decided.item_m, at // items, width)
        super().__init__(grid, decided, type, block, at % items)

    def _place(self, count: int) -> Value:
        return self.exchange(count)

    def _operand(
        self, side: Side, k: Axis, extent: int, place: Value, bound: ExitStack, *, is_left: bool
    ) -> TileOperand:
        return TileOperand(self._grid.tiling(k, extent, bound), side, self.type, array=place)

    def _tiles_of_weights(self, place: Value, bound: ExitStack) -> Sequence[TileOperand]:
        tiling = self._grid.tiling(self._grid.chain.k[0], self._decided.tile_k, bound)
        tile = TileOperand(tiling, self.rows, self.type, array=place, is_copied=False)
        return [tile] * len(self.sums)

    def _multiplied(
        self, left: TileOperand, right: TileOperand, extent: int, side: Side, totals: Totals
    ) -> Totals:
        starts = [operand.start(Index(), self._zero) for operand in (left, right)]
        unrolled = math.gcd(extent, _UNROLLED)
        return write_products(self._points, (left, right), starts, extent, unrolled, totals)


@final
class WarpParts(Parts[MatrixOperand, int]):
    """The work items of a warp multiply matrices together."""

    def __init__(self, grid: Grid, decided: ChainSchedule) -> None:
        at = axis_index(grid.item)
        self._first = at // WARP * (decided.item_m * EDGE)
        # An item has two neighbouring sums of every eighth row and column.
        lane = at % WARP
        block = Block(decided.item_m, EDGE, self._first + lane // 4, 1)
        super().__init__(grid, decided, FLOAT, block, lane % 4)

    def _place(self, count: int) -> int:
        return self._taken(count * element_bytes_of(self._decided.kind))

    def _operand(
        self, side: Side, k: Axis, extent: int, place: int, bound: ExitStack, *, is_left: bool
    ) -> MatrixOperand:
        first = self._first if is_left else Index()
        tiling = self._grid.tiling(k, extent, bound)
        return MatrixOperand(tiling, side, place, first, is_left=is_left)

    def _tiles_of_weights(self, place: int, bound: ExitStack) -> Sequence[MatrixOperand]:
        (k,), tile_k, load = self._grid.chain.k, self._decided.tile_k, self._decided.weights
        sides = [self._row_side(product.weight, load) for product in self._grid.chain.sums]
        return [self._operand(side, k, tile_k, place, bound, is_left=True) for side in sides]

    def weight(self, number: int) -> Scalar:
        return multiplied_of(super().weight(number))

    def _multiplied(
        self, left: MatrixOperand, right: MatrixOperand, extent: int, side: Side, totals: Totals
    ) -> Totals:
        code, points, step = self._code, self._points, left.step_k
        multiplied = f"multiply_{self._decided.kind}"
        vectors, rows = side.block // side.width, self.rows.block // 2

        def after(first: Value, extent: int, blocks: Sequence[Value]) -> Sequence[Value]:
            """The sums of blocks of 16 rows and 8 columns after an extent of K from `first` on."""
            begins = [first * operand.k_distance for operand in (left, right)]
            counts = rows, vectors // 2
            return products_of_warps(
                code, multiplied, (left, right), begins, counts, extent, blocks
            )

        # Of each 16 rows and 8 columns: two neighbours of a row, and two of the eighth row below.
        blocks: Sequence[Value] = [
            code.shuffle(total, below, range(4))
            for row in range(rows)
            for total, below in zip(
                totals[2 * row * vectors : (2 * row + 1) * vectors],
                totals[(2 * row + 1) * vectors : (2 * row + 2) * vectors],
                strict=True,
            )
        ]
        together = step * math.gcd(extent // step, _UNROLLED)
        if together == extent:
            blocks = after(self._zero, extent, blocks)
        else:
            opened = code.begin_loop(
                self._zero, points.position(extent), together, blocks, rolled=True
            )
            blocks = code.end_loop(opened, after(opened.index, together, opened.carried))
        return [
            code.shuffle(blocks[row // 2 * vectors + number], None, (first, first + 1))
            for row in range(self.rows.block)
            for first in (row % 2 * 2,)
            for number in range(vectors)
        ]
