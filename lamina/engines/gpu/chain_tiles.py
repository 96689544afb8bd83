"""Kernels of chains: a work group computes the sums of some rows, over tiles of columns.

For each tile of columns it computes the products of its rows, from these the weights, and adds the
weighted rows of the right operands to sums in registers (Dao: FlashAttention-2: Faster attention
with better parallelism and work partitioning, 2023). So the products are nowhere as a whole.
Nothing is added up by several groups: each sum has its order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import bool_
from lamina.codegen.c import Module
from lamina.codegen.primitives import EMITTERS, element
from lamina.codegen.signatures import Signature
from lamina.codegen.values import Type, Value, constant
from lamina.engines.gpu.chain_rows import columns_of, rows_of, sum_tile, weight_load
from lamina.engines.gpu.schedule import ChainSchedule, TileLoad
from lamina.engines.gpu.tile_operands import Batch, LocalTile, Side, TileOperand, Tiling
from lamina.engines.gpu.tile_results import TileResults
from lamina.engines.gpu.tiles import write_products
from lamina.engines.gpu.work_item import (
    ItemPoints,
    chain_of,
    clamped,
    clamped_inside,
    inside,
    work_group,
)
from lamina.program.index import Axis, Index, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Literal, Local, Scalar
from lamina.program.steps import Chain, Reduce, WeightedSum

# The most multiplications along K that are written out.
_UNROLLED = 4


def write_chain(module: Module, name: str, signature: Signature[ChainSchedule]) -> int:
    """Writes the kernel; returns the number of its work items."""
    decided, chain = signature.decided, chain_of(signature)
    (batch,), (m,) = chain.batch, chain.m
    groups = [Axis("batch_tile", batch.extent), Axis("m_tile", -(-m.extent // decided.tile_m))]
    if not all(chain.extents):
        return 0
    item = Axis("item", decided.group)
    with work_group(module, name, signature, groups, item) as points:
        _Chain(points, chain, decided, groups, item).write()
    return math.prod(axis.extent for axis in groups) * decided.group


@frozen_dataclass
class _Column:
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


# The sums of the work item's block: those of each row one after the other.
_Totals = Sequence[Value]


@final
class _Chain:
    """Writes the kernel of a chain over single axes."""

    def __init__(
        self,
        points: ItemPoints,
        chain: Chain,
        decided: ChainSchedule,
        groups: Sequence[Axis],
        item: Axis,
    ) -> None:
        self._points, self._code = points, points.code
        self._chain, self._decided, self._item = chain, decided, item
        (batch,), (self._m,), (self._k,) = chain.batch, chain.m, chain.k
        self._dtype = chain.products[0].dtype
        self._type = Type(element(self._dtype))
        self._batch = Batch(batch, groups[0], 1, Index())
        self._m_tiles = groups[1]
        self._tiles = Axis("k_tile", -(-self._k.extent // decided.tile_k))
        self._items_k = decided.tile_k // decided.item_k
        self._items_m = decided.tile_m // decided.item_m
        at = axis_index(item)
        self._row_position, self._column_position = at // self._items_k, at % self._items_k
        self._rows = rows_of(chain)
        self._used = 0
        width = math.gcd(decided.width, decided.item_k)
        self._lanes = width if self._k.extent % width == 0 else 1
        self._lane = Axis("lane", self._lanes)
        self._names = 0
        # For each row of the block, its index.
        self._m_indices: list[Index] = []

    # Local memory

    def _array(self, count: int) -> Value:
        """A further array in local memory."""
        decided, bytes_ = self._decided, count * self._type.bytes
        begin, self._used = self._used, self._used + -(-bytes_ // 16) * 16
        assert self._used <= decided.local_bytes
        if decided.is_launched:
            return self._code.launched(self._type.element, begin)
        return self._code.local(self._type.element, count)

    def _tiling(self, k: Axis, extent: int, bound: ExitStack) -> Tiling:
        group = self._decided.group
        return Tiling(self._points, self._batch, k, extent, group, self._item, bound)

    def _row_side(self, view: Scalar, load: TileLoad) -> Side:
        decided = self._decided
        return Side(
            *(view, self._m, self._m_tiles, decided.tile_m, load, decided.item_m, self._items_m),
            *(self._row_position, math.gcd(decided.width, decided.item_m)),
        )

    def _column_side(self, view: Scalar, load: TileLoad) -> Side:
        decided = self._decided
        return Side(
            *(view, self._k, self._tiles, decided.tile_k, load, decided.item_k, self._items_k),
            *(self._column_position, math.gcd(decided.width, decided.item_k)),
        )

    def _sum_side(self, one: WeightedSum, load: TileLoad) -> Side:
        (n,), decided = one.n, self._decided
        tile = sum_tile(n.extent, decided.width, self._items_k)
        block = tile // self._items_k
        return Side(
            *(one.right, n, Axis("n_tile", 1), tile, load, block, self._items_k),
            *(self._column_position, math.gcd(decided.width, block)),
        )

    # The kernel

    def write(self) -> None:
        points, chain, decided = self._points, self._chain, self._decided
        with ExitStack() as bound:
            self._bind_rows(bound)
            lefts: list[LocalTile] = []
            for product, load in zip(chain.products, decided.lefts, strict=True):
                (d,) = product.axes
                side = self._row_side(product.left, load)
                tiling = self._tiling(d, d.extent, bound)
                array = self._array(d.extent * side.row)
                operand = TileOperand(tiling, side, self._type, 1, array)
                operand.keep(operand.loaded(Index()), None)
                lefts.append(operand.tile)
            sides = [
                self._sum_side(one, load)
                for one, load in zip(chain.sums, decided.sums, strict=True)
            ]
            sizes = [side.row * decided.tile_k for side in sides]
            for product, load in zip(chain.products, decided.rights, strict=True):
                sizes.append(product.axes[0].extent * self._column_side(product.right, load).row)
            # One operand of columns after the other is here.
            self._right = self._array(max(sizes))
            side = self._row_side(chain.sums[0].weight, weight_load(self._dtype))
            weights = self._array(decided.tile_k * side.row)
            self._weights = LocalTile(points, side, decided.tile_k, self._type, weights)
            self._weight_row = side.row
            self._exchanged = self._array(self._items_k * decided.tile_m) if self._rows else None
            found = self._over_columns(lefts, sides)
            self._store(found, sides)
        assert self._used == decided.local_bytes

    def _bind_rows(self, bound: ExitStack) -> None:
        decided = self._decided
        side = self._row_side(self._chain.sums[0].weight, weight_load(self._dtype))
        for row in range(decided.item_m):
            number, lane = divmod(row, side.width)
            location = axis_index(self._m_tiles) * decided.tile_m + side.in_tile(number) + lane
            if side.is_ragged:
                axis = Axis(f"row{row}", self._m.extent)
                location = clamped(self._points, axis, location, bound)
            self._m_indices.append(location)

    def _over_columns(self, lefts: Sequence[LocalTile], sides: Sequence[Side]) -> _Carried:
        points, code = self._points, self._code
        first, after = columns_of(
            self._chain, self._decided.tile_m, self._decided.tile_k, self._m_tiles
        )
        extent = self._tiles.extent
        end = points.position(extent)
        if after is not None:
            end = code.minimum(points.indices(after).start, end)
        start = points.indices(first).start
        carried = self._fresh(sides)
        opened = code.begin_loop(start, end, 1, carried.values, most=extent, rolled=True)
        with points.bound(self._tiles, opened.index, before=opened.before):
            received = self._at_tile(lefts, sides, carried.with_values(opened.carried))
            return carried.with_values(code.end_loop(opened, received.values))

    def _fresh(self, sides: Sequence[Side]) -> _Carried:
        rows = self._decided.item_m
        zero = constant(0, self._type)
        largest: list[Value] = []
        sums: list[list[Value]] = []
        if self._rows is not None:
            largest = [constant(-math.inf, self._type)] * rows
            sums = [[zero] * rows for _ in self._rows.sums]
        totals = [
            [constant(0, self._type.wide(side.width if side.width > 1 else 0))]
            * (rows * side.block // side.width)
            for side in sides
        ]
        return _Carried(tuple(largest), tuple(map(tuple, sums)), tuple(map(tuple, totals)))

    def _at_tile(
        self, lefts: Sequence[LocalTile], sides: Sequence[Side], carried: _Carried
    ) -> _Carried:
        """The carried values after a tile of columns."""
        points, code, chain, decided = self._points, self._code, self._chain, self._decided
        products = [self._product(number, left) for number, left in enumerate(lefts)]
        with ExitStack() as bound:
            if self._lanes > 1:
                first = points.position(0)
                bound.enter_context(
                    points.along(self._lane, first, self._lanes, multiple=self._lanes)
                )
            columns = list(self._columns(bound))
            names = self._named(products, columns)
            largest, sums, scales = carried.largest, carried.sums, None
            locals_: list[Mapping[str, Scalar]] = [{}] * decided.item_m
            if self._rows is not None:
                largest, scales, locals_ = self._advanced(names, columns, carried.largest)
                sums = tuple(
                    self._added(one, scales, own, names, columns, locals_)
                    for one, own in zip(self._rows.sums, carried.sums, strict=True)
                )
            weights = [
                self._at_points(one.weight, 0.0, names, columns, locals_) for one in chain.sums
            ]
        totals: list[Sequence[Value]] = []
        for one, side, values, own in zip(chain.sums, sides, weights, carried.totals, strict=True):
            if scales is not None:
                vectors = side.block // side.width
                own = [
                    code.multiply(total, code.splat(scales[number // vectors], total.type.lanes))
                    for number, total in enumerate(own)
                ]
            totals.append(self._summed(one, side, values, columns, own))
        return _Carried(tuple(largest), tuple(map(tuple, sums)), tuple(map(tuple, totals)))

    def _product(self, number: int, left: LocalTile) -> _Totals:
        """The products of the work item's block."""
        code, decided = self._code, self._decided
        product, load = self._chain.products[number], decided.rights[number]
        (d,) = product.axes
        side = self._column_side(product.right, load)
        with ExitStack() as bound:
            tiling = self._tiling(d, d.extent, bound)
            operand = TileOperand(tiling, side, self._type, 1, self._right)
            values = operand.loaded(Index())
            # All items are done with what was there.
            code.barrier()
            operand.keep(values, None)
        code.barrier()
        lanes = side.width if side.width > 1 else 0
        count = decided.item_m * decided.item_k // side.width
        zeros = [constant(0, self._type.wide(lanes))] * count
        return self._multiplied((left, operand.tile), d.extent, zeros)

    def _multiplied(self, tiles: Sequence[LocalTile], extent: int, totals: _Totals) -> _Totals:
        starts = [one.start(Index()) for one in tiles]
        unrolled = math.gcd(extent, _UNROLLED)
        return write_products(self._points, tiles, starts, extent, unrolled, totals)

    def _columns(self, bound: ExitStack) -> Iterator[_Column]:
        """The vectors of the block's columns; inside, their locations have values."""
        points, decided, lanes = self._points, self._decided, self._lanes
        side = self._column_side(self._chain.products[0].right, decided.rights[0])
        singles = side.width // lanes
        for vector in range(side.block // side.width):
            for lane in range(singles):
                in_tile = side.in_tile(vector) + lane
                location = (axis_index(self._tiles) * decided.tile_k + in_tile) // lanes
                is_inside: Value | None = None
                if side.is_ragged:
                    axis = Axis(f"column{vector}_{lane}", self._k.extent // lanes)
                    is_inside, location = clamped_inside(points, axis, location, bound)
                k = location * lanes + (axis_index(self._lane) if lanes > 1 else 0)
                yield _Column(in_tile, k, is_inside, vector, lane if singles > 1 else None)

    def _local(self, value: Value, stem: str) -> Local:
        """A local of a value."""
        self._names += 1
        name = f"{stem}_{self._names}"
        self._points.define(name, value)
        return Local(name, self._dtype)

    def _named(
        self, products: Sequence[_Totals], columns: Sequence[_Column]
    ) -> list[list[dict[str, Scalar]]]:
        """For each row and column, the locals of the products."""
        decided = self._decided
        vectors = len({one.number for one in columns})
        found: list[list[dict[str, Scalar]]] = []
        for row in range(decided.item_m):
            found.append([])
            for column in columns:
                own: dict[str, Scalar] = {}
                for product, totals in zip(self._chain.products, products, strict=True):
                    value = totals[row * vectors + column.number]
                    if column.lane is not None:
                        value = self._code.extract(value, column.lane)
                    own[product.result] = self._local(value, product.result)
                found[-1].append(own)
        return found

    def _at_points(
        self,
        scalar: Scalar,
        beyond: float,
        names: Sequence[Sequence[Mapping[str, Scalar]]],
        columns: Sequence[_Column],
        locals_: Sequence[Mapping[str, Scalar]],
    ) -> list[list[Value]]:
        """The scalar at each row and column; columns beyond the end have another value."""
        points, code = self._points, self._code
        found: list[list[Value]] = []
        for row, index in enumerate(self._m_indices):
            found.append([])
            for number, column in enumerate(columns):
                axes = {self._m: index, self._k: column.k, self._batch.axis: self._batch.first}
                change = Rewrite(axes, {**names[row][number], **locals_[row]})
                value = points.vector(change.scalar(scalar))
                if column.is_inside is not None:
                    nothing = constant(beyond, value.type)
                    value = code.select(column.is_inside, value, nothing)
                found[-1].append(value)
        return found

    def _combined(self, combine: str, values: Sequence[Value]) -> Value:
        """All lanes of some values combined, in order."""
        code = self._code
        scalars = [
            code.extract(value, lane) if value.type.lanes else value
            for value in values
            for lane in range(value.type.lanes or 1)
        ]
        total = scalars[0]
        for one in scalars[1:]:
            total = EMITTERS[combine](code, self._dtype, total, one)
        return total

    def _shared(self, combine: str, values: Sequence[Value]) -> list[Value]:
        """The values of the rows, combined over the work items that share them, in order."""
        points, code, decided = self._points, self._code, self._decided
        assert self._exchanged is not None
        side = self._row_side(self._chain.sums[0].weight, weight_load(self._dtype))
        rows = [side.in_tile(row // side.width) + row % side.width for row in range(decided.item_m)]
        element_ = self._type.element
        for row, value in zip(rows, values, strict=True):
            at = points.indices(self._column_position * decided.tile_m + row).start
            code.store(value, code.offset(self._exchanged, at, element_))
        code.barrier()
        found: list[Value] = []
        for row in rows:
            at = code.offset(self._exchanged, points.indices(row).start, element_)
            shares = [
                code.load(code.offset(at, number * decided.tile_m, element_), self._type)
                for number in range(self._items_k)
            ]
            found.append(self._combined(combine, shares))
        return found

    def _advanced(
        self,
        names: Sequence[Sequence[Mapping[str, Scalar]]],
        columns: Sequence[_Column],
        largest: Sequence[Value],
    ) -> tuple[Sequence[Value], list[Value], list[Mapping[str, Scalar]]]:
        """The largest values so far, the factors of earlier sums, and the locals of each row."""
        rows, points = self._rows, self._points
        assert rows is not None
        name, dtype = rows.maximum.local, rows.maximum.dtype
        nothing: list[Mapping[str, Scalar]] = [{}] * len(largest)
        values = self._at_points(rows.maximum.value, -math.inf, names, columns, nothing)
        own = self._shared("maximum", [self._combined("maximum", one) for one in values])
        found = [
            EMITTERS["maximum"](self._code, dtype, *pair) for pair in zip(largest, own, strict=True)
        ]
        scales: list[Value] = []
        locals_: list[Mapping[str, Scalar]] = []
        for before, now in zip(largest, found, strict=True):
            old, new = self._local(before, name), self._local(now, name)
            difference = Apply(
                "subtract", (old, Rewrite(locals={name: new}).scalar(rows.shift)), dtype
            )
            # Until then, all values were zero.
            fresh = Apply("equal", (old, Literal(-math.inf, dtype)), bool_)
            factor = Apply("exp", (difference,), dtype)
            scale = Apply("select", (fresh, Literal(1.0, dtype), factor), dtype)
            scales.append(points.value(scale))
            locals_.append({name: new})
        return found, scales, locals_

    def _added(
        self,
        one: Reduce,
        scales: Sequence[Value],
        totals: Sequence[Value],
        names: Sequence[Sequence[Mapping[str, Scalar]]],
        columns: Sequence[_Column],
        locals_: Sequence[Mapping[str, Scalar]],
    ) -> tuple[Value, ...]:
        """The work item's sums of a reduction after its columns."""
        code = self._code
        values = self._at_points(one.value, 0.0, names, columns, locals_)
        return tuple(
            code.add(code.multiply(total, scale), self._combined("add", row))
            for total, scale, row in zip(totals, scales, values, strict=True)
        )

    def _summed(
        self,
        one: WeightedSum,
        side: Side,
        weights: Sequence[Sequence[Value]],
        columns: Sequence[_Column],
        totals: _Totals,
    ) -> _Totals:
        """The totals of a sum after the columns of a tile."""
        code, points, decided = self._code, self._points, self._decided
        with ExitStack() as bound:
            tiling = self._tiling(self._k, decided.tile_k, bound)
            operand = TileOperand(tiling, side, self._type, 1, self._right)
            values = operand.loaded(axis_index(self._tiles))
            code.barrier()
            operand.keep(values, None)
        rows = self._row_side(one.weight, weight_load(self._dtype))
        element_ = self._type.element
        for row, own in enumerate(weights):
            in_rows = rows.in_tile(row // rows.width) + row % rows.width
            for column, value in zip(columns, own, strict=True):
                at = points.indices(column.in_tile * self._weight_row + in_rows).start
                address = code.offset(self._weights.array, at, element_)
                for lane in range(value.type.lanes or 1):
                    scalar = code.extract(value, lane) if value.type.lanes else value
                    code.store(scalar, code.offset(address, lane * self._weight_row, element_))
        code.barrier()
        return self._multiplied((self._weights, operand.tile), decided.tile_k, totals)

    # Results

    def _store(self, carried: _Carried, sides: Sequence[Side]) -> None:
        points, code, chain = self._points, self._code, self._chain
        locals_: list[dict[str, Scalar]] = [{} for _ in range(self._decided.item_m)]
        if self._rows is not None:
            name = self._rows.maximum.local
            for row, value in enumerate(carried.largest):
                locals_[row][name] = self._local(value, name)
            for one, own in zip(self._rows.sums, carried.sums, strict=True):
                # All items are done with what was exchanged before.
                code.barrier()
                for row, value in enumerate(self._shared("add", own)):
                    locals_[row][one.local] = self._local(value, one.local)
        if chain.stores:
            # One of the items that share rows stores what belongs to them.
            first = code.compare(
                "eq", points.indices(self._column_position).start, points.position(0)
            )
            point = Axis("first", 1)
            with code.when(first) as before, points.bound(point, points.position(0), before=before):
                self._store_rows(locals_)
        row_side = self._row_side(chain.sums[0].weight, weight_load(self._dtype))
        for one, side, totals in zip(chain.sums, sides, carried.totals, strict=True):
            TileResults(points, one, self._batch, row_side, side, locals_).write(totals)

    def _store_rows(self, locals_: Sequence[Mapping[str, Scalar]]) -> None:
        points, chain, decided = self._points, self._chain, self._decided
        side = self._row_side(chain.sums[0].weight, weight_load(self._dtype))
        for row, own in enumerate(locals_):
            number, lane = divmod(row, side.width)
            location = axis_index(self._m_tiles) * decided.tile_m + side.in_tile(number) + lane
            with ExitStack() as within:
                if side.is_ragged:
                    location = within.enter_context(
                        inside(points, "m_inside", location, self._m.extent)
                    )
                axes = {self._m: location, self._batch.axis: self._batch.first}
                points.store_all(Rewrite(axes, own).stores(chain.stores))


@frozen_dataclass
class _Carried:
    """The values that a work item carries from tile to tile.

    Attributes:
        largest: of each row; none if rows are not reduced.
        sums: of each reduction that adds up, its sum of each row, of the item's columns.
        totals: of each sum of the chain.
    """

    largest: tuple[Value, ...]
    sums: tuple[tuple[Value, ...], ...]
    totals: tuple[tuple[Value, ...], ...]

    @property
    def values(self) -> list[Value]:
        return [*self.largest, *(v for own in (*self.sums, *self.totals) for v in own)]

    def with_values(self, values: Sequence[Value]) -> _Carried:
        """The same with other values."""
        rest = iter(values)

        def taken(like: Sequence[Value]) -> tuple[Value, ...]:
            return tuple(next(rest) for _ in like)

        return _Carried(
            taken(self.largest), tuple(map(taken, self.sums)), tuple(map(taken, self.totals))
        )
