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
from lamina.codegen.primitives import EMITTERS
from lamina.codegen.signatures import Signature
from lamina.codegen.values import Value, constant
from lamina.engines.gpu.chain_parts import Column, Grid, ItemParts, Totals, WarpParts
from lamina.engines.gpu.chain_rows import columns_of, rows_of, single_chain
from lamina.engines.gpu.schedule import ChainSchedule
from lamina.engines.gpu.tile_kernels import TileResults
from lamina.engines.gpu.tile_operands import Batch
from lamina.engines.gpu.work_item import (
    Body,
    ItemPoints,
    along_lanes,
    clamped,
    clamped_inside,
    inside,
    item_of,
    step_of,
)
from lamina.program.index import Axis, Index, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Literal, Local, Scalar
from lamina.program.steps import Chain

# For each row of the block, the locals that belong to it.
RowLocals = Sequence[Mapping[str, Scalar]]


@frozen_dataclass
class _Carried:
    """The values that a work item carries from tile to tile.

    The largest of each row, if rows are reduced; for each reduction that adds up, the sum of each
    row, of the item's columns; and the totals of each sum of the chain.
    """

    largest: Sequence[Value]
    sums: Sequence[Sequence[Value]]
    totals: Sequence[Sequence[Value]]

    @property
    def values(self) -> list[Value]:
        return [value for values in (self.largest, *self.sums, *self.totals) for value in values]

    def with_values(self, values: Sequence[Value]) -> _Carried:
        """The same with other values."""
        rest = iter(values)
        lists = [[next(rest) for _ in old] for old in (self.largest, *self.sums, *self.totals)]
        count = 1 + len(self.sums)
        return _Carried(lists[0], lists[1:count], lists[count:])


def chain_kernel(signature: Signature[ChainSchedule]) -> Body:
    """A work group computes the sums of a tile of rows."""
    decided, chain = signature.decided, single_chain(step_of(signature, Chain))
    (batch,), (m,) = chain.batch, chain.m
    groups = [Axis("batch_tile", batch.extent), Axis("m_tile", -(-m.extent // decided.tile_m))]
    return groups, lambda points: _Chain(points, chain, decided, groups).write()


@final
class _Chain:
    """Writes the kernel of a chain over single axes."""

    def __init__(
        self, points: ItemPoints, chain: Chain, decided: ChainSchedule, groups: Sequence[Axis]
    ) -> None:
        self._points, self._code = points, points.code
        self._chain, self._decided = chain, decided
        (batch,), (self._m,), (self._k,) = chain.batch, chain.m, chain.k
        self._dtype = chain.products[0].dtype
        self._batch = Batch(batch, groups[0], 1, Index())
        self._m_tiles = groups[1]
        self._tiles = Axis("k_tile", -(-self._k.extent // decided.tile_k))
        grid = Grid(points, chain, self._batch, self._m_tiles, self._tiles, item_of(decided))
        self._parts = (WarpParts if decided.kind else ItemParts)(grid, decided)
        self._rows = rows_of(chain)
        width = self._parts.columns.width
        self._lane = Axis("lane", width if self._k.extent % width == 0 else 1)
        self._no_locals: list[Mapping[str, Scalar]] = [{}] * self._parts.rows.block
        self._names = 0

    def write(self) -> None:
        with ExitStack() as bound:
            # For each row of the block, its index.
            self._m_indices = [self._m_index(row, bound) for row in range(self._parts.rows.block)]
            self._parts.begin(bound)
            if self._rows is not None:
                items = self._parts.columns.items
                self._exchanged = self._parts.exchange(items * self._decided.tile_m)
            self._store(self._over_columns())

    def _m_index(self, row: int, bound: ExitStack) -> Index:
        location = self._row_in_all(row)
        if not self._parts.rows.is_ragged:
            return location
        return clamped(self._points, Axis(f"row{row}", self._m.extent), location, bound)

    def _row_in_tile(self, row: int) -> Index:
        """The location in the tile of a row of the block."""
        number, lane = divmod(row, self._parts.rows.width)
        return self._parts.rows.in_tile(number) + lane

    def _row_in_all(self, row: int) -> Index:
        return axis_index(self._m_tiles) * self._decided.tile_m + self._row_in_tile(row)

    def _over_columns(self) -> _Carried:
        points, code, decided = self._points, self._code, self._decided
        first, after = columns_of(self._chain, decided.tile_m, decided.tile_k, self._m_tiles)
        extent = self._tiles.extent
        end = points.position(extent)
        if after is not None:
            end = code.minimum(points.indices(after).start, end)
        start = points.indices(first).start
        fresh = self._fresh()
        opened = code.begin_loop(start, end, 1, fresh.values, most=extent, rolled=True)
        with points.bound(self._tiles, opened.index, before=opened.before):
            received = self._at_tile(fresh.with_values(opened.carried))
            return fresh.with_values(code.end_loop(opened, received.values))

    def _fresh(self) -> _Carried:
        type, rows = self._parts.type, self._parts.rows.block
        totals = [self._parts.zeros(side) for side in self._parts.sums]
        if self._rows is None:
            return _Carried([], [], totals)
        sums = [[constant(0, type)] * rows for _ in self._rows.sums]
        return _Carried([constant(-math.inf, type)] * rows, sums, totals)

    def _at_tile(self, carried: _Carried) -> _Carried:
        """The carried values after a tile of columns."""
        code, parts, largest, sums = self._code, self._parts, carried.largest, carried.sums
        products = [parts.product(number) for number in range(len(self._chain.products))]
        scales: Sequence[Value] | None = None
        with ExitStack() as bound:
            bound.enter_context(along_lanes(self._points, self._lane))
            self._columns = list(self._columns_of_block(bound))
            self._products = self._named(products)
            locals_: RowLocals = self._no_locals
            if self._rows is not None:
                largest, scales, locals_ = self._advanced(largest)
                sums = [
                    self._added(reduction.value, scales, running, locals_)
                    for reduction, running in zip(self._rows.sums, sums, strict=True)
                ]
            weights = [
                self._at_points(parts.weight(number), 0, locals_)
                for number in range(len(parts.sums))
            ]
        totals: list[Sequence[Value]] = []
        for number, (side, values) in enumerate(zip(parts.sums, carried.totals, strict=True)):
            if scales is not None:
                vectors = side.block // side.width
                values = [
                    total * code.splat(scales[place // vectors], total.type.lanes)
                    for place, total in enumerate(values)
                ]
            totals.append(parts.summed(number, weights[number], self._columns, values))
        return _Carried(largest, sums, totals)

    def _columns_of_block(self, bound: ExitStack) -> Iterator[Column]:
        """The vectors of the block's columns; inside, their locations have values."""
        side, lanes = self._parts.columns, self._lane.extent
        singles = side.width // lanes
        for vector in range(side.block // side.width):
            for lane in range(singles):
                in_tile = side.in_tile(vector) + lane
                location = axis_index(self._tiles) * self._decided.tile_k + in_tile
                location //= lanes
                is_inside: Value | None = None
                if side.is_ragged:
                    axis = Axis(f"column{vector}_{lane}", self._k.extent // lanes)
                    is_inside, location = clamped_inside(self._points, axis, location, bound)
                k = location * lanes + (axis_index(self._lane) if lanes > 1 else 0)
                yield Column(in_tile, k, is_inside, vector, lane if singles > 1 else None)

    def _local(self, value: Value, stem: str) -> Local:
        """A local of a value."""
        self._names += 1
        name = f"{stem}_{self._names}"
        self._points.define(name, value)
        return Local(name, self._dtype)

    def _named(self, products: Sequence[Totals]) -> list[list[dict[str, Scalar]]]:
        """For each row and column, the locals of the products."""
        vectors = len({column.number for column in self._columns})

        def locals_at(row: int, column: Column) -> Iterator[tuple[str, Scalar]]:
            for product, totals in zip(self._chain.products, products, strict=True):
                value = totals[row * vectors + column.number]
                if column.lane is not None:
                    value = self._code.extract(value, column.lane)
                yield product.result, self._local(value, product.result)

        rows = range(self._parts.rows.block)
        return [[dict(locals_at(row, column)) for column in self._columns] for row in rows]

    def _at_points(self, scalar: Scalar, beyond: float, locals_: RowLocals) -> list[list[Value]]:
        """The scalar at each row and column; columns beyond the end have another value."""
        rows: list[list[Value]] = []
        for m, row_locals, products in zip(self._m_indices, locals_, self._products, strict=True):
            rows.append([])
            for column, names in zip(self._columns, products, strict=True):
                axes = {self._m: m, self._k: column.k, self._batch.axis: self._batch.first}
                value = self._points.vector(Rewrite(axes, {**names, **row_locals}).scalar(scalar))
                if column.is_inside is not None:
                    value = self._code.select(column.is_inside, value, beyond)
                rows[-1].append(value)
        return rows

    def _combined(self, combine: str, values: Sequence[Value]) -> Value:
        """All lanes of some values combined, in order."""
        code = self._code
        total, *others = [
            code.extract(value, lane) if value.type.lanes else value
            for value in values
            for lane in range(value.type.lanes or 1)
        ]
        for other in others:
            total = EMITTERS[combine](code, self._dtype, total, other)
        return total

    def _shared(self, combine: str, values: Sequence[Value]) -> list[Value]:
        """The values of the rows, combined over the work items that share them, in order."""
        points, code, parts = self._points, self._code, self._parts
        tile_m, element_ = self._decided.tile_m, parts.type.element
        for row, value in enumerate(values):
            at = points.indices(parts.position * tile_m + self._row_in_tile(row)).start
            code.store(value, code.offset(self._exchanged, at, element_))
        code.barrier()
        combined: list[Value] = []
        for row in range(len(values)):
            start = points.indices(self._row_in_tile(row)).start
            at = code.offset(self._exchanged, start, element_)
            shares = [
                code.load(code.offset(at, number * tile_m, element_), parts.type)
                for number in range(parts.columns.items)
            ]
            combined.append(self._combined(combine, shares))
        return combined

    def _advanced(
        self, largest: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Value], RowLocals]:
        """The largest values so far, the factors of earlier sums, and the locals of each row."""
        rows, points = self._rows, self._points
        assert rows is not None
        name, dtype, maximum = rows.maximum.local, rows.maximum.dtype, EMITTERS["maximum"]
        values = self._at_points(rows.maximum.value, -math.inf, self._no_locals)
        tile_largest = self._shared("maximum", [self._combined("maximum", row) for row in values])
        new_largest = [
            maximum(self._code, dtype, *pair) for pair in zip(largest, tile_largest, strict=True)
        ]
        scales: list[Value] = []
        locals_: list[Mapping[str, Scalar]] = []
        for before, now in zip(largest, new_largest, strict=True):
            old, new = self._local(before, name), self._local(now, name)
            shift = Rewrite(locals={name: new}).scalar(rows.shift)
            factor = Apply("exp", (Apply("subtract", (old, shift), dtype),), dtype)
            # Until then, all values were zero.
            fresh = Apply("equal", (old, Literal(-math.inf, dtype)), bool_)
            scale = Apply("select", (fresh, Literal(1.0, dtype), factor), dtype)
            scales.append(points.value(scale))
            locals_.append({name: new})
        return new_largest, scales, locals_

    def _added(
        self, value: Scalar, scales: Sequence[Value], totals: Sequence[Value], locals_: RowLocals
    ) -> Sequence[Value]:
        """The work item's sums of a reduction after its columns."""
        values = self._at_points(value, 0.0, locals_)
        return [
            total * scale + self._combined("add", row)
            for total, scale, row in zip(totals, scales, values, strict=True)
        ]

    # Results

    def _store(self, carried: _Carried) -> None:
        points, code, chain, parts = self._points, self._code, self._chain, self._parts
        locals_: list[dict[str, Scalar]] = [{} for _ in range(parts.rows.block)]
        if self._rows is not None:
            name = self._rows.maximum.local
            for row_locals, value in zip(locals_, carried.largest, strict=True):
                row_locals[name] = self._local(value, name)
            for reduction, values in zip(self._rows.sums, carried.sums, strict=True):
                # All items are done with what was exchanged before.
                code.barrier()
                for row_locals, value in zip(locals_, self._shared("add", values), strict=True):
                    row_locals[reduction.local] = self._local(value, reduction.local)
        if chain.stores:
            # One of the items that share rows stores what belongs to them.
            is_first = points.indices(parts.position).start.equals(0)
            with code.when(is_first) as before, points.inside(before):
                self._store_rows(locals_)
        for weighted, side, values in zip(chain.sums, parts.sums, carried.totals, strict=True):
            TileResults(points, weighted, self._batch, parts.rows, side, locals_).write(values)

    def _store_rows(self, locals_: RowLocals) -> None:
        points = self._points
        for row, row_locals in enumerate(locals_):
            location = self._row_in_all(row)
            with ExitStack() as within:
                if self._parts.rows.is_ragged:
                    location = within.enter_context(
                        inside(points, "m_inside", location, self._m.extent)
                    )
                axes = {self._m: location, self._batch.axis: self._batch.first}
                points.store_all(Rewrite(axes, row_locals).records(self._chain.stores))
