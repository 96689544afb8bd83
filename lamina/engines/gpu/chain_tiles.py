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
from lamina.codegen.primitives import EMITTERS
from lamina.codegen.signatures import Signature
from lamina.codegen.values import Value, constant
from lamina.engines.gpu.chain_items import Column, Grid, ItemParts, Parts, Totals
from lamina.engines.gpu.chain_matrices import WarpParts
from lamina.engines.gpu.chain_rows import columns_of, rows_of
from lamina.engines.gpu.schedule import ChainSchedule, MatrixChainSchedule
from lamina.engines.gpu.tile_operands import Batch
from lamina.engines.gpu.tile_results import TileResults
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
from lamina.program.steps import Chain, Reduce


def write_chain(
    module: Module, name: str, signature: Signature[ChainSchedule | MatrixChainSchedule]
) -> int:
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


@final
class _Chain:
    """Writes the kernel of a chain over single axes."""

    def __init__(
        self,
        points: ItemPoints,
        chain: Chain,
        decided: ChainSchedule | MatrixChainSchedule,
        groups: Sequence[Axis],
        item: Axis,
    ) -> None:
        self._points, self._code = points, points.code
        self._chain, self._decided = chain, decided
        (batch,), (self._m,), (self._k,) = chain.batch, chain.m, chain.k
        self._dtype = chain.products[0].dtype
        self._batch = Batch(batch, groups[0], 1, Index())
        self._m_tiles = groups[1]
        self._tiles = Axis("k_tile", -(-self._k.extent // decided.tile_k))
        grid = Grid(points, chain, self._batch, self._m_tiles, self._tiles, item)
        if isinstance(decided, ChainSchedule):
            self._parts: Parts = ItemParts(grid, decided)
        else:
            self._parts = WarpParts(grid, decided)
        self._rows = rows_of(chain)
        width = self._parts.columns.width
        self._lanes = width if self._k.extent % width == 0 else 1
        self._lane = Axis("lane", self._lanes)
        self._names = 0
        # For each row of the block, its index.
        self._m_indices: list[Index] = []
        self._exchanged: Value | None = None

    def write(self) -> None:
        with ExitStack() as bound:
            self._bind_rows(bound)
            self._parts.begin(bound)
            if self._rows is not None:
                items = self._parts.columns.items
                self._exchanged = self._parts.exchange(items * self._decided.tile_m)
            self._store(self._over_columns())

    def _bind_rows(self, bound: ExitStack) -> None:
        side = self._parts.rows
        for row in range(side.block):
            location = self._row_in_all(row)
            if side.is_ragged:
                axis = Axis(f"row{row}", self._m.extent)
                location = clamped(self._points, axis, location, bound)
            self._m_indices.append(location)

    def _row_in_tile(self, row: int) -> Index:
        """The location in the tile of a row of the block."""
        number, lane = divmod(row, self._parts.rows.width)
        return self._parts.rows.in_tile(number) + lane

    def _row_in_all(self, row: int) -> Index:
        return axis_index(self._m_tiles) * self._decided.tile_m + self._row_in_tile(row)

    def _over_columns(self) -> _Carried:
        points, code = self._points, self._code
        first, after = columns_of(
            self._chain, self._decided.tile_m, self._decided.tile_k, self._m_tiles
        )
        extent = self._tiles.extent
        end = points.position(extent)
        if after is not None:
            end = code.minimum(points.indices(after).start, end)
        start = points.indices(first).start
        carried = self._fresh()
        opened = code.begin_loop(start, end, 1, carried.values, most=extent, rolled=True)
        with points.bound(self._tiles, opened.index, before=opened.before):
            received = self._at_tile(carried.with_values(opened.carried))
            return carried.with_values(code.end_loop(opened, received.values))

    def _fresh(self) -> _Carried:
        parts = self._parts
        rows, zero = parts.rows.block, constant(0, parts.type)
        largest: list[Value] = []
        sums: list[list[Value]] = []
        if self._rows is not None:
            largest = [constant(-math.inf, parts.type)] * rows
            sums = [[zero] * rows for _ in self._rows.sums]
        totals = [parts.zeros(side) for side in parts.sums]
        return _Carried(tuple(largest), tuple(map(tuple, sums)), tuple(map(tuple, totals)))

    def _at_tile(self, carried: _Carried) -> _Carried:
        """The carried values after a tile of columns."""
        points, code, parts = self._points, self._code, self._parts
        products = [parts.product(number) for number in range(len(self._chain.products))]
        with ExitStack() as bound:
            if self._lanes > 1:
                first = points.position(0)
                bound.enter_context(
                    points.along(self._lane, first, self._lanes, multiple=self._lanes)
                )
            columns = list(self._columns(bound))
            names = self._named(products, columns)
            largest, sums, scales = carried.largest, carried.sums, None
            locals_: list[Mapping[str, Scalar]] = [{}] * parts.rows.block
            if self._rows is not None:
                largest, scales, locals_ = self._advanced(names, columns, carried.largest)
                sums = tuple(
                    self._added(one, scales, own, names, columns, locals_)
                    for one, own in zip(self._rows.sums, carried.sums, strict=True)
                )
            weights = [
                self._at_points(parts.weight(number), 0, names, columns, locals_)
                for number in range(len(self._chain.sums))
            ]
        totals: list[Sequence[Value]] = []
        for number, (side, own) in enumerate(zip(parts.sums, carried.totals, strict=True)):
            scaled: Sequence[Value] = own
            if scales is not None:
                vectors = side.block // side.width
                scaled = [
                    code.multiply(total, code.splat(scales[place // vectors], total.type.lanes))
                    for place, total in enumerate(own)
                ]
            totals.append(parts.summed(number, weights[number], columns, scaled))
        return _Carried(tuple(largest), tuple(map(tuple, sums)), tuple(map(tuple, totals)))

    def _columns(self, bound: ExitStack) -> Iterator[Column]:
        """The vectors of the block's columns; inside, their locations have values."""
        points, decided, lanes = self._points, self._decided, self._lanes
        side = self._parts.columns
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
                yield Column(in_tile, k, is_inside, vector, lane if singles > 1 else None)

    def _local(self, value: Value, stem: str) -> Local:
        """A local of a value."""
        self._names += 1
        name = f"{stem}_{self._names}"
        self._points.define(name, value)
        return Local(name, self._dtype)

    def _named(
        self, products: Sequence[Totals], columns: Sequence[Column]
    ) -> list[list[dict[str, Scalar]]]:
        """For each row and column, the locals of the products."""
        vectors = len({one.number for one in columns})
        found: list[list[dict[str, Scalar]]] = []
        for row in range(self._parts.rows.block):
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
        columns: Sequence[Column],
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
        points, code, parts = self._points, self._code, self._parts
        assert self._exchanged is not None
        tile_m, element_ = self._decided.tile_m, parts.type.element
        for row, value in enumerate(values):
            at = points.indices(parts.position * tile_m + self._row_in_tile(row)).start
            code.store(value, code.offset(self._exchanged, at, element_))
        code.barrier()
        found: list[Value] = []
        for row in range(len(values)):
            start = points.indices(self._row_in_tile(row)).start
            at = code.offset(self._exchanged, start, element_)
            shares = [
                code.load(code.offset(at, number * tile_m, element_), parts.type)
                for number in range(parts.columns.items)
            ]
            found.append(self._combined(combine, shares))
        return found

    def _advanced(
        self,
        names: Sequence[Sequence[Mapping[str, Scalar]]],
        columns: Sequence[Column],
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
        columns: Sequence[Column],
        locals_: Sequence[Mapping[str, Scalar]],
    ) -> tuple[Value, ...]:
        """The work item's sums of a reduction after its columns."""
        code = self._code
        values = self._at_points(one.value, 0.0, names, columns, locals_)
        return tuple(
            code.add(code.multiply(total, scale), self._combined("add", row))
            for total, scale, row in zip(totals, scales, values, strict=True)
        )

    # Results

    def _store(self, carried: _Carried) -> None:
        points, code, chain, parts = self._points, self._code, self._chain, self._parts
        locals_: list[dict[str, Scalar]] = [{} for _ in range(parts.rows.block)]
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
            first = code.compare("eq", points.indices(parts.position).start, points.position(0))
            point = Axis("first", 1)
            with code.when(first) as before, points.bound(point, points.position(0), before=before):
                self._store_rows(locals_)
        for one, side, totals in zip(chain.sums, parts.sums, carried.totals, strict=True):
            TileResults(points, one, self._batch, parts.rows, side, locals_).write(totals)

    def _store_rows(self, locals_: Sequence[Mapping[str, Scalar]]) -> None:
        points = self._points
        for row, own in enumerate(locals_):
            location = self._row_in_all(row)
            with ExitStack() as within:
                if self._parts.rows.is_ragged:
                    location = within.enter_context(
                        inside(points, "m_inside", location, self._m.extent)
                    )
                axes = {self._m: location, self._batch.axis: self._batch.first}
                points.store_all(Rewrite(axes, own).records(self._chain.stores))


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
