"""Kernels whose work groups compute tiles of a contraction: the loop over K, and the results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Generic, NamedTuple, TypeVar, final

from lamina.codegen.blocks import Bound, Carried, blocks_of, write_sums
from lamina.codegen.builder import OpenLoop
from lamina.codegen.matrix import exchanged, with_single_axes
from lamina.codegen.signatures import Signature
from lamina.codegen.values import Value
from lamina.engines.gpu.schedule import MatrixSchedule, TiledSchedule
from lamina.engines.gpu.tile_operands import Batch, Side, Tiling
from lamina.engines.gpu.work_item import Body, ItemPoints, along_lanes, inside, item_of, step_of
from lamina.program.index import Axis, Index, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Local, Scalar
from lamina.program.steps import Contraction, WeightedSum

# The most rows of tiles of a band.
BAND = 8
# A long K of a work group is summed in blocks of so many products.
_BLOCK = 4096
Decided = TypeVar("Decided", TiledSchedule, MatrixSchedule)


class Block(NamedTuple):
    """The blocks of work items on a side, as the last attributes of `Side`."""

    size: int
    items: int
    position: Index
    width: int


class TileKernel(ABC, Generic[Decided]):
    """Writes the kernel of a contraction over single axes, after the exchange of its operands.

    The groups count the tiles of batch, m and n.
    """

    def __init__(
        self, points: ItemPoints, step: Contraction, decided: Decided, groups: Sequence[Axis]
    ) -> None:
        self._points, self._code = points, points.code
        self._step, self._decided, self._item = step, decided, item_of(decided)
        (self._k,), tile_k = step.k, decided.tile_k
        self._stretch = Axis("stretch", max(-(-self._k.extent // tile_k), 1))
        position, left, right = self._blocks(axis_index(self._item))
        (batch,), (m,), (n,) = step.batch, step.m, step.n
        self._batch = Batch(batch, groups[0], decided.tile_b, position)
        self._left = Side(step.left, m, groups[1], decided.tile_m, decided.left, *left)
        self._right = Side(step.right, n, groups[2], decided.tile_n, decided.right, *right)

    @abstractmethod
    def _blocks(self, item: Index) -> tuple[Index, Block, Block]:
        """The number of a work item's product; and its blocks on both sides."""

    @abstractmethod
    def _zeros(self) -> Sequence[Value]:
        """The sums before anything is added."""

    @abstractmethod
    def _summed(self, totals: Sequence[Value], tiling: Tiling) -> Sequence[Value]:
        """The sums over all stretches of K."""

    def _results(self, totals: Sequence[Value]) -> Sequence[Value]:
        """The sums of the work item's block: row after row, in vectors."""
        return totals

    def write(self) -> None:
        totals, points, k = self._zeros(), self._points, self._k
        with ExitStack() as bound:
            if k.extent:
                tiling = Tiling(points, self._batch, k, self._decided.tile_k, self._item, bound)
                totals = self._summed(totals, tiling)
        results = TileResults(points, self._step, self._batch, self._left, self._right)
        results.write(self._results(totals))

    def _over_tiles(
        self,
        zeros: Sequence[Value],
        body: Callable[[OpenLoop], Sequence[Value]],
        *,
        in_blocks: bool = True,
    ) -> Sequence[Value]:
        """Writes the loop over the stretches of K, and gives its sums; the body is of one stretch.

        Unrolled, its long body would take more registers than there are. A long K is summed in
        blocks: then a work item keeps its sums twice.
        """
        points, code, stretch = self._points, self._code, self._stretch

        def loop(start: Bound, stop: Bound, most: int, received: Carried) -> Carried:
            bounds = points.loop_bound(start), points.loop_bound(stop)
            opened = code.begin_loop(*bounds, 1, received, most=most, rolled=True)
            with points.bound(stretch, opened.index, before=opened.before):
                return code.end_loop(opened, body(opened))

        is_float, tile_k = zeros[0].type.is_float, self._decided.tile_k
        blocks = blocks_of(stretch.extent, tile_k, _BLOCK) if is_float and in_blocks else []
        return write_sums(points, blocks, stretch.extent, zeros, loop)


def kernel_in_tiles(
    signature: Signature[Decided],
    kernel: Callable[[ItemPoints, Contraction, Decided, Sequence[Axis]], TileKernel[Decided]],
) -> Body:
    """A work group computes a tile."""
    decided = signature.decided
    step = with_single_axes(step_of(signature, Contraction), "batch", "m", "n", "k")
    if decided.swapped:
        step = exchanged(step)
    tiles = decided.tile_b, decided.tile_m, decided.tile_n
    groups = [
        Axis(f"{name}_tile", -(-extent // tile))
        for name, extent, tile in zip("bmn", step.extents[:3], tiles, strict=True)
    ]
    batch, m, n = groups
    rows = rows_of_band(m.extent, n.extent)
    bands, in_band = Axis("band", m.extent // rows), Axis("m_in_band", rows)

    def write(points: ItemPoints) -> None:
        points.fix(m, points.indices(axis_index(bands) * rows + axis_index(in_band)).start)
        kernel(points, step, decided, groups).write()

    return (batch, bands, n, in_band), write


def rows_of_band(m_tiles: int, n_tiles: int) -> int:
    """The rows of tiles that groups compute column by column; 1 if they go row by row.

    Groups that run at the same time then share rows of the left operand and columns of the right
    one in a cache: a long row of tiles would need nearly all columns.
    """
    if n_tiles <= BAND:
        return 1
    return next(rows for rows in range(BAND, 0, -1) if m_tiles % rows == 0)


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
        full_vectors = right.axis.extent % right.width == 0
        self._lanes = right.width if full_vectors else 1
        self._lane = Axis("lane", self._lanes)

    def write(self, totals: Sequence[Value]) -> None:
        right = self._right
        vectors = right.block // right.width
        with along_lanes(self._points, self._lane):
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
        all_locals = {**locals, step.result: Local(name, step.dtype)}
        points.store_all(Rewrite(axes, all_locals).records(step.stores))
