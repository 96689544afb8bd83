"""The stores of a tile of a contraction: sums in registers, the epilogue, and on to buffers."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import final

from lamina.codegen.values import Value
from lamina.engines.gpu.tile_operands import Batch, Side
from lamina.engines.gpu.work_item import ItemPoints, inside
from lamina.program.index import Axis, Index, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Local, Scalar
from lamina.program.steps import Contraction, WeightedSum


@final
class TileResults:
    """Writes the stores of a work item's block of sums, in vectors along n if they fit."""

    def __init__(
        self,
        points: ItemPoints,
        step: Contraction | WeightedSum,
        batch: Batch,
        left: Side,
        right: Side,
        locals: Sequence[Mapping[str, Scalar]] = (),
    ) -> None:
        """Each row of the block may have further `locals`."""
        self._points, self._code, self._step = points, points.code, step
        self._locals = locals
        self._batch, self._left, self._right = batch, left, right
        whole = right.axis.extent % right.width == 0
        self._lanes = right.width if whole else 1
        self._lane = Axis("lane", self._lanes)

    def write(self, totals: Sequence[Value]) -> None:
        points, right = self._points, self._right
        vectors = right.block // right.width
        with ExitStack() as across:
            if self._lanes > 1:
                first = points.position(0)
                across.enter_context(
                    points.along(self._lane, first, self._lanes, multiple=self._lanes)
                )
            for vector in range(vectors):
                column = totals[vector::vectors]
                if self._lanes > 1 or right.width == 1:
                    self._write_column(right.in_tile(vector), column)
                    continue
                for lane in range(right.width):
                    extracted = [self._code.extract(total, lane) for total in column]
                    self._write_column(right.in_tile(vector) + lane, extracted)

    def _write_column(self, n_in_tile: Index, totals: Sequence[Value]) -> None:
        """The stores of the block's rows in one vector of columns."""
        left = self._left
        with self._inside(self._right, n_in_tile, self._lanes) as n:
            if self._lanes > 1:
                n += axis_index(self._lane)
            for row, total in enumerate(totals):
                number, lane = divmod(row, left.width)
                with self._inside(left, left.in_tile(number) + lane, 1) as m:
                    self._store(m, n, total, self._locals[row] if self._locals else {})

    @contextmanager
    def _inside(self, side: Side, in_tile: Index, lanes: int) -> Generator[Index]:
        """Code for a location in the tile that is inside the result; yields the m or n there."""
        location = axis_index(side.tiles) * side.tile + in_tile
        if not side.is_ragged:
            yield location
            return
        name, extent = f"{side.axis.name}_inside", side.axis.extent // lanes
        # An operand that the result replaces has no index on an axis of one element: then other
        # work items would read it too.
        reads = side.axis.extent == 1
        with inside(self._points, name, location // lanes, extent, reads=reads) as index:
            yield index * lanes

    def _store(self, m: Index, n: Index, total: Value, locals: Mapping[str, Scalar]) -> None:
        points, step = self._points, self._step
        axes = {self._left.axis: m, self._right.axis: n}
        axes[self._batch.axis] = self._batch.first + self._batch.position
        # The sums of a block are different locals.
        name = f"{step.result}_{total.name}"
        points.define(name, total)
        own = {**locals, step.result: Local(name, step.dtype)}
        points.store_all(Rewrite(axes, own).records(step.stores))
