"""Kernels of contractions whose warps multiply matrices of floats of 16 bits, or of TF32.

A work group computes a tile of the result. While a tile of the operands is multiplied, later ones
are copied to local memory: asynchronously, or through registers, which are read before the
multiplication and written after it. One barrier for each stretch suffices: a tile is replaced one
stretch after it was multiplied.

Warpgroups multiply asynchronously: the products of a stretch end while the next ones are computed.
So a tile is replaced two stretches after they have begun. Vectors in registers are written one
stretch after they were read, since nobody waits for products meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import final

from lamina.codegen.builder import OpenLoop
from lamina.codegen.c import Module
from lamina.codegen.matrix import multiplied_of
from lamina.codegen.signatures import Signature
from lamina.codegen.values import FLOAT, Value, constant
from lamina.engines.gpu.matrix_operands import EDGE, MatrixOperand, products_of_warps
from lamina.engines.gpu.schedule import STEP, WARP, WARPGROUP, MatrixSchedule
from lamina.engines.gpu.tile_operands import Batch, Side, Tiling, write_in_tiles, write_over_tiles
from lamina.engines.gpu.tile_results import TileResults
from lamina.engines.gpu.work_item import ItemPoints
from lamina.program.index import Axis, Index, axis_index
from lamina.program.steps import Contraction


def write_matrices(module: Module, name: str, signature: Signature[MatrixSchedule]) -> int:
    """Writes the kernel; returns the number of its work items."""
    schedule = signature.decided
    return write_in_tiles(module, name, signature, (1, schedule.tile_m, schedule.tile_n), _Matrices)


@final
class _Matrices:
    """Writes the kernel of a contraction over single axes."""

    def __init__(
        self,
        points: ItemPoints,
        step: Contraction,
        schedule: MatrixSchedule,
        groups: Sequence[Axis],
        item: Axis,
    ) -> None:
        self._points, self._code = points, points.code
        self._step, self._schedule, self._item = step, schedule, item
        (batch,), (m,), (n,), (self._k,) = step.batch, step.m, step.n, step.k
        self._stretch = Axis("stretch", -(-self._k.extent // schedule.tile_k))
        warp, lane = axis_index(item) // WARP, axis_index(item) % WARP
        # The tile of a warp, and where it begins in the tile of the group.
        self._warp_m = schedule.tile_m // schedule.warps_m
        self._warp_n = schedule.tile_n // schedule.warps_n
        self._first_m = warp // schedule.warps_n * self._warp_m
        self._first_n = warp % schedule.warps_n * self._warp_n
        self._batch = Batch(batch, groups[0], 1, Index())
        # An item has two neighbouring sums of every eighth row and column.
        self._left = Side(
            *(step.left, m, groups[1], schedule.tile_m, schedule.left),
            *(self._warp_m // EDGE, EDGE, self._first_m + lane // 4, 1),
        )
        self._right = Side(
            *(step.right, n, groups[2], schedule.tile_n, schedule.right),
            *(self._warp_n // EDGE * 2, EDGE // 2, self._first_n // 2 + lane % 4, 2),
        )

    def write(self) -> None:
        tiles = (self._warp_m // STEP) * (self._warp_n // EDGE)
        together = tiles if self._schedule.by_warpgroups else 1
        totals: Sequence[Value] = [constant(0, FLOAT.wide(4 * together))] * (tiles // together)
        if self._k.extent:
            totals = self._summed(totals)
        results = TileResults(self._points, self._step, self._batch, self._left, self._right)
        results.write(self._pairs(totals))

    def _pairs(self, totals: Sequence[Value]) -> list[Value]:
        """The sums as pairs of neighbours: the rows of the warp, and their columns."""
        columns = self._warp_n // EDGE
        found: list[Value] = []
        for row in range(self._warp_m // EDGE):
            own = totals[row // 2 * columns : (row // 2 + 1) * columns]
            firsts = range(row % 2 * 2, totals[0].type.lanes, 4)
            found += (
                self._code.shuffle(one, None, (first, first + 1)) for one in own for first in firsts
            )
        return found

    def _operands(self, bound: ExitStack) -> list[MatrixOperand]:
        found: list[MatrixOperand] = []
        schedule = self._schedule
        begin, tiles = 0, schedule.stages * schedule.element_bytes
        tiling = Tiling(
            *(self._points, self._batch, self._k, schedule.tile_k, schedule.group),
            *(self._item, bound),
        )
        first_m = self._first_m
        if schedule.by_warpgroups:
            first_m = axis_index(self._item) // WARPGROUP * (WARPGROUP // WARP * STEP)
        left_along_k, right_along_k = schedule.rows_along_k
        for side, load, first, along_k in (
            (self._left, schedule.left, first_m, left_along_k),
            (self._right, schedule.right, self._first_n, right_along_k),
        ):
            found.append(
                MatrixOperand(
                    *(tiling, side, multiplied_of(side.view), load),
                    *(schedule.element_bytes, begin, first),
                    side is self._left,
                    in_panels=schedule.by_warpgroups,
                    along_k=along_k,
                )
            )
            begin += tiles * found[-1].size
        assert begin == schedule.local_bytes
        return found

    def _summed(self, totals: Sequence[Value]) -> Sequence[Value]:
        code, points, stages = self._code, self._points, self._schedule.stages
        ahead = self._schedule.ahead
        last = self._stretch.extent - 1
        with ExitStack() as bound:
            operands = self._operands(bound)
            is_asynchronous = any(one.is_asynchronous for one in operands)
            for stage in range(ahead):
                for one in operands if stage <= last else ():
                    begin = points.position(stage * one.size)
                    if one.is_asynchronous:
                        one.copy(Index(stage), begin)
                    else:
                        one.keep(one.loaded(Index(stage)), begin)
                if is_asynchronous:
                    code.call_void("commit_copies")
            following = Axis("following", self._stretch.extent)
            through_registers = [one for one in operands if not one.is_asynchronous]
            held: list[Value] = []
            if self._schedule.by_warpgroups:
                for one in through_registers:
                    held += one.loaded(Index(min(ahead, last)))

            def body(opened: OpenLoop) -> Sequence[Value]:
                if is_asynchronous:
                    code.call_void(f"await_copies<{ahead - 1}>")
                if self._schedule.by_warpgroups:
                    code.call_void("make_visible")
                # The tile is there for all items, and they are done with the one before.
                code.barrier()
                # After the last tile, copies write zeros without reading anything; what goes
                # through registers is read again. Neither is used.
                later = code.add(opened.index, points.position(ahead))
                more = code.compare("sle", later, points.position(last))
                number = code.minimum(later, points.position(last))
                target = code.binary("urem", later, points.position(stages))
                present = code.binary("urem", opened.index, points.position(stages))
                if self._schedule.by_warpgroups:
                    total, *read = opened.carried
                    received = self._products_of_warpgroups(operands, present, total)
                    self._keep(through_registers, read, target)
                    with points.bound(following, number):
                        self._copy(operands, axis_index(following), target, more)
                    number = code.minimum(
                        code.add(later, points.position(1)), points.position(last)
                    )
                    with points.bound(following, number):
                        for one in through_registers:
                            received += one.loaded(axis_index(following))
                    code.call_void("end_products")
                    return received
                with points.bound(following, number):
                    self._copy(operands, axis_index(following), target, more)
                    read = [
                        value
                        for one in through_registers
                        for value in one.loaded(axis_index(following))
                    ]
                received = self._products(operands, present, opened.carried)
                self._keep(through_registers, read, target)
                return received

            # Nothing can be done with sums while products of warpgroups go on.
            found = write_over_tiles(
                *(points, self._stretch, self._schedule.tile_k, [*totals, *held], body),
                in_blocks=not self._schedule.by_warpgroups,
            )
            if is_asynchronous:
                # Copies must end before their group does.
                code.call_void("await_copies<0>")
            if self._schedule.by_warpgroups:
                found = [code.call("finish_products", found[0].type, found[0])]
            return found

    def _copy(
        self, operands: Sequence[MatrixOperand], stretch: Index, target: Value, more: Value
    ) -> None:
        """Begins the asynchronous copies to a tile: of zeros unless there is one `more` tile."""
        code, points = self._code, self._points
        copied = [one for one in operands if one.is_asynchronous]
        for one in copied:
            one.copy(stretch, code.multiply(target, points.position(one.size)), more)
        if copied:
            code.call_void("commit_copies")

    def _keep(
        self, operands: Sequence[MatrixOperand], values: Sequence[Value], target: Value
    ) -> None:
        """Writes the vectors of operands, one after the other, to a tile."""
        code, points = self._code, self._points
        for one in operands:
            own, values = values[: one.count], values[one.count :]
            one.keep(own, code.multiply(target, points.position(one.size)))

    def _products(
        self, operands: Sequence[MatrixOperand], stage: Value, totals: Sequence[Value]
    ) -> Sequence[Value]:
        """The sums after the tiles of a stage."""
        code, points = self._code, self._points
        multiplied = f"multiply_{self._schedule.kind}"
        begins = [code.multiply(stage, points.position(one.size)) for one in operands]
        return products_of_warps(
            *(code, multiplied, operands, begins),
            *((self._warp_m // STEP, self._warp_n // STEP), self._schedule.tile_k, totals),
        )

    def _products_of_warpgroups(
        self, operands: Sequence[MatrixOperand], stage: Value, total: Value
    ) -> list[Value]:
        """Begins the products of the tiles of a stage; the sums after them."""
        code, points, schedule = self._code, self._points, self._schedule
        left_along_k, right_along_k = schedule.rows_along_k
        across = f"{not left_along_k:d}, {not right_along_k:d}"
        multiplied = f"multiply_tiles_{schedule.kind}<{across}>"
        begins = [code.multiply(stage, points.position(one.size)) for one in operands]
        total = code.call("begin_products", total.type, total)
        for k in range(0, schedule.tile_k, 32 // schedule.element_bytes):
            tiles = (one.descriptor(begin, k) for one, begin in zip(operands, begins, strict=True))
            total = code.call(multiplied, total.type, *tiles, total)
        return [total]
