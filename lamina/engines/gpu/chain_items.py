"""The tiles of a chain: operands in local memory, and blocks of products and sums in registers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.primitives import element
from lamina.codegen.values import Type, Value, constant
from lamina.engines.gpu.chain_rows import sum_tile, weight_load
from lamina.engines.gpu.schedule import VECTOR_BYTES, ChainSchedule, TileLoad
from lamina.engines.gpu.tile_operands import Batch, LocalTile, Side, TileOperand, Tiling
from lamina.engines.gpu.tiles import write_products
from lamina.engines.gpu.work_item import ItemPoints
from lamina.program.index import Axis, Index, axis_index
from lamina.program.scalar import Scalar
from lamina.program.steps import Chain

# The most multiplications along K that are written out.
_UNROLLED = 4


@frozen_dataclass
class Grid:
    """The points of a chain's kernel.

    Attributes:
        points: the kernel.
        chain: over single axes.
        batch: its batch axis.
        m_tiles, k_tiles: count the tiles of rows, and of columns.
        item: the number of the work item in its group.
    """

    points: ItemPoints
    chain: Chain
    batch: Batch
    m_tiles: Axis
    k_tiles: Axis
    item: Axis

    def tiling(self, k: Axis, extent: int, bound: ExitStack) -> Tiling:
        """The tiles of an operand, of an extent along its K."""
        return Tiling(self.points, self.batch, k, extent, self.item.extent, self.item, bound)


@frozen_dataclass
class Column:
    """A vector of columns of the work item's block.

    Attributes:
        in_tile: its location in the tile.
        k: its location along K, with the lanes' axis.
        is_inside: whether it is before the end; None if all are.
        number, lane: of the vector of the block, and of its lane if it is a single column.
    """

    in_tile: Index
    k: Index
    is_inside: Value | None
    number: int
    lane: int | None


# The products or sums of the work item's block: those of each row one after the other, in vectors.
Totals = Sequence[Value]


class Parts(ABC):
    """The blocks of a work item, and how they are multiplied.

    Attributes:
        rows, columns: the sides of a tile of rows, and of columns; their views do not matter.
        sums: the side of each sum.
        position: the number of the work item among those that share its rows.
        type: of products and sums.
    """

    type: Type
    rows: Side
    columns: Side
    sums: Sequence[Side]
    position: Index

    @abstractmethod
    def begin(self, bound: ExitStack) -> None:
        """Copies the left operands of all products to local memory."""

    @abstractmethod
    def exchange(self, count: int) -> Value:
        """An array of numbers in local memory."""

    @abstractmethod
    def product(self, number: int) -> Totals:
        """A product of the rows and a tile of columns."""

    @abstractmethod
    def weight(self, number: int) -> Scalar:
        """The weight of a sum, as it is kept in local memory."""

    @abstractmethod
    def summed(
        self,
        number: int,
        weights: Sequence[Sequence[Value]],
        columns: Sequence[Column],
        totals: Totals,
    ) -> Totals:
        """The totals of a sum after a tile of columns, with the weights of each row."""

    def zeros(self, side: Side) -> list[Value]:
        """The totals of a block before anything is added."""
        lanes = side.width if side.width > 1 else 0
        count = self.rows.block * side.block // side.width
        return [constant(0, self.type.wide(lanes))] * count


@final
class ItemParts(Parts):
    """Work items multiply by themselves."""

    def __init__(self, grid: Grid, decided: ChainSchedule) -> None:
        self._grid, self._decided = grid, decided
        self._points, self._code = grid.points, grid.points.code
        chain = grid.chain
        self._dtype = chain.products[0].dtype
        self.type = Type(element(self._dtype))
        self._items_k = decided.tile_k // decided.item_k
        at = axis_index(grid.item)
        self._row_position, self.position = at // self._items_k, at % self._items_k
        self._used = 0
        self.rows = self._row_side(chain.sums[0].weight, weight_load(self._dtype))
        self.columns = self._column_side(0)
        self.sums = [self._sum_side(number) for number in range(len(chain.sums))]
        self._lefts: list[LocalTile] = []

    def _row_side(self, view: Scalar, load: TileLoad) -> Side:
        decided, (m,) = self._decided, self._grid.chain.m
        items = decided.tile_m // decided.item_m
        return Side(
            *(view, m, self._grid.m_tiles, decided.tile_m, load, decided.item_m, items),
            *(self._row_position, math.gcd(decided.width, decided.item_m)),
        )

    def _column_side(self, number: int) -> Side:
        decided, chain = self._decided, self._grid.chain
        return Side(
            *(chain.products[number].right, chain.k[0], self._grid.k_tiles, decided.tile_k),
            *(decided.rights[number], decided.item_k, self._items_k, self.position),
            math.gcd(decided.width, decided.item_k),
        )

    def _sum_side(self, number: int) -> Side:
        one, decided = self._grid.chain.sums[number], self._decided
        (n,) = one.n
        tile = sum_tile(n.extent, decided.width, self._items_k)
        block = tile // self._items_k
        return Side(
            *(one.right, n, Axis("n_tile", 1), tile, decided.sums[number], block, self._items_k),
            *(self.position, math.gcd(decided.width, block)),
        )

    def exchange(self, count: int) -> Value:
        decided, bytes_ = self._decided, count * self.type.bytes
        begin = self._used
        self._used += -(-bytes_ // VECTOR_BYTES) * VECTOR_BYTES
        assert self._used <= decided.local_bytes
        if decided.is_launched:
            return self._code.launched(self.type.element, begin)
        return self._code.local(self.type.element, count)

    def begin(self, bound: ExitStack) -> None:
        decided, products = self._decided, self._grid.chain.products
        sizes = [side.row * decided.tile_k for side in self.sums]
        for number, product in enumerate(products):
            (d,) = product.axes
            side = self._row_side(product.left, decided.lefts[number])
            tiling = self._grid.tiling(d, d.extent, bound)
            array = self.exchange(d.extent * side.row)
            operand = TileOperand(tiling, side, self.type, 1, array)
            operand.keep(operand.loaded(Index()), None)
            self._lefts.append(operand.tile)
            sizes.append(d.extent * self._column_side(number).row)
        # One operand of columns after the other is here.
        self._right = self.exchange(max(sizes))
        weights = self.exchange(decided.tile_k * self.rows.row)
        self._weights = LocalTile(self._points, self.rows, decided.tile_k, self.type, weights)

    def product(self, number: int) -> Totals:
        (d,) = self._grid.chain.products[number].axes
        side = self._column_side(number)
        with ExitStack() as bound:
            tiling = self._grid.tiling(d, d.extent, bound)
            operand = TileOperand(tiling, side, self.type, 1, self._right)
            values = operand.loaded(Index())
            # All items are done with what was there.
            self._code.barrier()
            operand.keep(values, None)
        self._code.barrier()
        return self._multiplied((self._lefts[number], operand.tile), d.extent, self.zeros(side))

    def _multiplied(self, tiles: Sequence[LocalTile], extent: int, totals: Totals) -> Totals:
        starts = [one.start(Index()) for one in tiles]
        unrolled = math.gcd(extent, _UNROLLED)
        return write_products(self._points, tiles, starts, extent, unrolled, totals)

    def weight(self, number: int) -> Scalar:
        return self._grid.chain.sums[number].weight

    def summed(
        self,
        number: int,
        weights: Sequence[Sequence[Value]],
        columns: Sequence[Column],
        totals: Totals,
    ) -> Totals:
        code, points, tile_k = self._code, self._points, self._decided.tile_k
        with ExitStack() as bound:
            tiling = self._grid.tiling(self._grid.chain.k[0], tile_k, bound)
            operand = TileOperand(tiling, self.sums[number], self.type, 1, self._right)
            values = operand.loaded(axis_index(self._grid.k_tiles))
            code.barrier()
            operand.keep(values, None)
        rows, element_ = self.rows, self.type.element
        for row, own in enumerate(weights):
            in_rows = rows.in_tile(row // rows.width) + row % rows.width
            for column, value in zip(columns, own, strict=True):
                at = points.indices(column.in_tile * rows.row + in_rows).start
                address = code.offset(self._weights.array, at, element_)
                for lane in range(value.type.lanes or 1):
                    scalar = code.extract(value, lane) if value.type.lanes else value
                    code.store(scalar, code.offset(address, lane * rows.row, element_))
        code.barrier()
        return self._multiplied((self._weights, operand.tile), tile_k, totals)
