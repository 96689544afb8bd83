"""Kernels of contractions: a work item keeps a small tile of sums in registers.

The operands are read through their views, each number once for a row or column of the tile. At the
edges of the result work items compute the last row or column again, and store it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from lamina.codegen.builder import Block
from lamina.codegen.c import Module
from lamina.codegen.matrix import with_single_axes
from lamina.codegen.primitives import element
from lamina.codegen.values import Type, Value, constant
from lamina.engines.gpu.item import Form, ItemPoints, work_item
from lamina.engines.gpu.schedule import Tiles
from lamina.program.index import Axis
from lamina.program.scalar import Scalar
from lamina.program.steps import Contraction
from lamina.records import frozen_dataclass
from lamina.shapes import size_of


def write_contraction(module: Module, name: str, form: Form) -> int:
    """Writes the kernel; gives the number of its work items."""
    step, tiles = form.steps[0], form.decided
    assert isinstance(step, Contraction)
    assert isinstance(tiles, Tiles)
    step = with_single_axes(step, "batch", "m", "n")
    (batch,), (row,), (column,) = step.batch, step.m, step.n
    rows, columns = tiles.rows, tiles.columns
    if not batch.extent * row.extent * column.extent:
        return 0
    row_tile = Axis("row_tile", -(-row.extent // rows))
    column_tile = Axis("column_tile", -(-column.extent // columns))
    axes = (batch, row_tile, column_tile)
    with work_item(module, name, form, axes) as points:
        sides = (_Side(row, row_tile, rows), _Side(column, column_tile, columns))
        _Tile(points, step, *sides).write()
    return size_of([axis.extent for axis in axes])


@frozen_dataclass
class _Side:
    """The rows or the columns of a tile.

    Attributes:
        axis: of the contraction, all of its own axes as one.
        tile: counts the tiles along it.
        size: of a tile.
    """

    axis: Axis
    tile: Axis
    size: int

    @property
    def is_ragged(self) -> bool:
        """Whether the last tile reaches beyond the end."""
        return self.axis.extent % self.size != 0


@final
class _Tile:
    """Writes one tile of a contraction."""

    def __init__(self, points: ItemPoints, step: Contraction, rows: _Side, columns: _Side) -> None:
        self._points = points
        self._code = points.code
        self._step = step
        self._rows, self._columns = rows, columns

    def write(self) -> None:
        sides = (self._rows, self._columns)
        zero = constant(0, Type(element(self._step.dtype)))
        totals: Sequence[Value] = [zero] * (self._rows.size * self._columns.size)
        if all(axis.extent for axis in self._step.k):
            rows, columns = (self._clamped(side) for side in sides)
            totals = self._over(self._step.k, rows, columns, totals)
        self._store(totals)

    def _first(self, side: _Side) -> Value:
        """The first row or column of the tile."""
        points = self._points
        return self._code.multiply(points.axis(side.tile), points.position(side.size))

    def _clamped(self, side: _Side) -> list[Value]:
        """The rows or columns of the tile; the last one for those behind it, so that all are."""
        code, points, first = self._code, self._points, self._first(side)
        places = [code.add(first, points.position(number)) for number in range(side.size)]
        if not side.is_ragged:
            return places
        last = points.position(side.axis.extent - 1)
        return [code.minimum(place, last) for place in places]

    def _over(
        self,
        inner: Sequence[Axis],
        rows: Sequence[Value],
        columns: Sequence[Value],
        totals: Sequence[Value],
    ) -> Sequence[Value]:
        """The totals after all k of some axes."""
        if not inner:
            left = self._read(self._step.left, self._rows.axis, rows)
            right = self._read(self._step.right, self._columns.axis, columns)
            pairs = ((one, other) for one in left for other in right)
            return [
                self._added(total, one, other)
                for total, (one, other) in zip(totals, pairs, strict=True)
            ]
        axis, *rest = inner
        with self._points.loop(axis, totals) as opened:
            received = self._over(rest, rows, columns, opened.carried)
            return self._code.end_loop(opened, received)

    def _read(self, view: Scalar, axis: Axis, places: Sequence[Value]) -> list[Value]:
        """What a view shows at the current k."""
        found: list[Value] = []
        for place in places:
            with self._points.bound(axis, place):
                found.append(self._points.value(view))
        return found

    def _added(self, total: Value, left: Value, right: Value) -> Value:
        if total.type.is_float:
            return self._code.multiply_add(left, right, total)
        return self._code.add(total, self._code.multiply(left, right))

    def _store(self, totals: Sequence[Value]) -> None:
        """The epilogue of all sums that the result has, written once."""
        points, code = self._points, self._code
        table = code.table(totals)
        rows = Axis("row_of_tile", self._rows.size)
        columns = Axis("column_of_tile", self._columns.size)
        with points.loop(rows) as outer, points.loop(columns) as inner:
            row = code.add(self._first(self._rows), outer.index)
            column = code.add(self._first(self._columns), inner.index)
            number = code.multiply(outer.index, points.position(self._columns.size))
            total = code.picked(table, code.add(number, inner.index))
            inside = self._inside(row, column)
            if inside is None:
                self._store_at(row, column, total, None)
            else:
                with code.when(inside) as before:
                    self._store_at(row, column, total, before)
            code.end_loop(inner)
            code.end_loop(outer)

    def _inside(self, row: Value, column: Value) -> Value | None:
        """Whether the result has that row and column; None if it always has."""
        code, found = self._code, list[Value]()
        for side, place in ((self._rows, row), (self._columns, column)):
            if side.is_ragged:
                end = self._points.position(side.axis.extent)
                found.append(code.compare("slt", place, end))
        if len(found) < 2:
            return found[0] if found else None
        return code.binary("and", *found)

    def _store_at(self, row: Value, column: Value, total: Value, before: Block | None) -> None:
        points, step = self._points, self._step
        with (
            points.bound(self._rows.axis, row, before=before),
            points.bound(self._columns.axis, column),
        ):
            points.define(step.result, total)
            points.store_all(step.stores)
