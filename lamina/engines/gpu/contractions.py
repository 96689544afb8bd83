"""Kernels of contractions: a work item keeps a register tile of sums.

The operands are read through their views, each element once for each m or n of the tile. At the
edges of the result, work items compute the last row or column again, and store it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import reduce
from itertools import product
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
from lamina.codegen.blocks import Bound, Carried, blocks_of, write_sums
from lamina.codegen.matrix import with_single_axes
from lamina.codegen.primitives import element
from lamina.codegen.signatures import Signature
from lamina.codegen.values import Type, Value, constant
from lamina.engines.gpu.schedule import ContractionSchedule
from lamina.engines.gpu.work_item import Body, ItemPoints, step_of, with_products
from lamina.program.index import Axis
from lamina.program.scalar import Scalar
from lamina.program.steps import Contraction


def contraction_kernel(signature: Signature[ContractionSchedule]) -> Body:
    """A work item computes a tile."""
    tiles = signature.decided
    step = with_single_axes(step_of(signature, Contraction), "batch", "m", "n")
    (m,), (n,) = step.m, step.n
    m_tiles = Axis("m_tile", -(-m.extent // tiles.tile_m))
    n_tiles = Axis("n_tile", -(-n.extent // tiles.tile_n))
    sides = (_TiledAxis(m, m_tiles, tiles.tile_m), _TiledAxis(n, n_tiles, tiles.tile_n))
    return (*step.batch, m_tiles, n_tiles), lambda points: _Tile(points, step, *sides).write()


@frozen_dataclass
class _TiledAxis:
    """The merged m or n of a contraction, the axis that counts its tiles, and their size."""

    axis: Axis
    tiles: Axis
    size: int

    @property
    def is_ragged(self) -> bool:
        """Whether the last tile reaches beyond the end."""
        return self.axis.extent % self.size != 0


@final
class _Tile:
    def __init__(self, points: ItemPoints, step: Contraction, m: _TiledAxis, n: _TiledAxis) -> None:
        self._points = points
        self._code = points.code
        self._step = step
        self._m, self._n = m, n

    def write(self) -> None:
        sides = (self._m, self._n)
        zero = constant(0, Type(element(self._step.dtype)))
        totals: Sequence[Value] = [zero] * (self._m.size * self._n.size)
        if all(axis.extent for axis in self._step.k):
            ms, ns = (self._clamped(side) for side in sides)
            totals = self._over(self._step.k, ms, ns, totals)
        self._store(totals)

    def _first(self, side: _TiledAxis) -> Value:
        return self._points.axis(side.tiles) * side.size

    def _clamped(self, side: _TiledAxis) -> list[Value]:
        """Each m or n of the tile; the last valid one for those beyond the end of the axis."""
        first = self._first(side)
        indices = [first + number for number in range(side.size)]
        if not side.is_ragged:
            return indices
        return [self._code.minimum(index, side.axis.extent - 1) for index in indices]

    def _over(
        self,
        k_axes: Sequence[Axis],
        ms: Sequence[Value],
        ns: Sequence[Value],
        totals: Sequence[Value],
    ) -> Sequence[Value]:
        """The totals after a loop over some axes of k."""
        if not k_axes:
            left = self._read(self._step.left, self._m.axis, ms)
            right = self._read(self._step.right, self._n.axis, ns)
            return with_products(self._code, totals, product(left, right))
        axis, *rest = k_axes

        def loop(start: Bound, stop: Bound, most: int, received: Carried) -> Carried:
            with self._points.loop(axis, received, start, stop, most) as opened:
                received = tuple(self._over(rest, ms, ns, opened.carried))
                return self._code.end_loop(opened, received)

        terms = size_of([inner.extent for inner in rest])
        blocks = blocks_of(axis.extent, terms) if self._step.dtype.is_float else []
        return write_sums(self._points, blocks, axis.extent, totals, loop)

    def _read(self, view: Scalar, axis: Axis, indices: Sequence[Value]) -> list[Value]:
        """The view's value at the current k, for each index along an axis."""
        values: list[Value] = []
        for index in indices:
            with self._points.bound(axis, index):
                values.append(self._points.value(view))
        return values

    def _store(self, totals: Sequence[Value]) -> None:
        """The epilogue of all sums that are inside the result.

        It is written out, because GPUs keep arrays in registers only if their indices are known.
        """
        points = self._points
        for number, total in enumerate(totals):
            row, column = divmod(number, self._n.size)
            m, n = self._first(self._m) + row, self._first(self._n) + column
            sides = ((self._m, m), (self._n, n))
            conditions = [index < side.axis.extent for side, index in sides if side.is_ragged]
            inside = reduce(lambda left, right: left & right, conditions) if conditions else None
            with (
                nullcontext() if inside is None else self._code.when(inside) as before,
                points.bound(self._m.axis, m, before=before),
                points.bound(self._n.axis, n),
            ):
                points.define(self._step.result, total)
                points.store_all(self._step.stores)
