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
from typing import final

from lamina.codegen.builder import OpenLoop
from lamina.codegen.signatures import Signature
from lamina.codegen.values import FLOAT, Value, constant
from lamina.engines.gpu.matrix_operands import EDGE, MatrixOperand, products_of_warps
from lamina.engines.gpu.schedule import STEP, WARP, WARPGROUP, MatrixSchedule
from lamina.engines.gpu.tile_kernels import Block, TileKernel, kernel_in_tiles
from lamina.engines.gpu.tile_operands import Tiling
from lamina.engines.gpu.work_item import Body
from lamina.program.index import Axis, Index, axis_index


def matrix_kernel(signature: Signature[MatrixSchedule]) -> Body:
    """A work group computes a tile, and its warps multiply matrices."""
    return kernel_in_tiles(signature, _Matrices)


@final
class _Matrices(TileKernel[MatrixSchedule]):
    def _blocks(self, item: Index) -> tuple[Index, Block, Block]:
        schedule = self._decided
        warp, lane = item // WARP, item % WARP
        # The tile of a warp, and where it begins in the tile of the group.
        self._warp_m = schedule.tile_m // schedule.warps_m
        self._warp_n = schedule.tile_n // schedule.warps_n
        self._first_m = warp // schedule.warps_n * self._warp_m
        self._first_n = warp % schedule.warps_n * self._warp_n
        # An item has two neighbouring sums of every eighth row and column.
        left = Block(self._warp_m // EDGE, EDGE, self._first_m + lane // 4, 1)
        right = Block(self._warp_n // EDGE * 2, EDGE // 2, self._first_n // 2 + lane % 4, 2)
        return Index(), left, right

    def _zeros(self) -> Sequence[Value]:
        tiles = (self._warp_m // STEP) * (self._warp_n // EDGE)
        together = tiles if self._decided.by_warpgroups else 1
        return [constant(0, FLOAT.wide(4 * together))] * (tiles // together)

    def _results(self, totals: Sequence[Value]) -> Sequence[Value]:
        columns = self._warp_n // EDGE
        results: list[Value] = []
        for row in range(self._warp_m // EDGE):
            lanes = range(row % 2 * 2, totals[0].type.lanes, 4)
            for total in totals[row // 2 * columns : (row // 2 + 1) * columns]:
                results += (self._code.shuffle(total, None, (lane, lane + 1)) for lane in lanes)
        return results

    def _operands_of(self, tiling: Tiling) -> list[MatrixOperand]:
        operands: list[MatrixOperand] = []
        schedule, first_m = self._decided, self._first_m
        begin, tiles = 0, schedule.stages * schedule.element_bytes
        if schedule.by_warpgroups:
            first_m = axis_index(self._item) // WARPGROUP * (WARPGROUP // WARP * STEP)
        for side, first in ((self._left, first_m), (self._right, self._first_n)):
            is_left = side is self._left
            panels = schedule.by_warpgroups
            operands.append(
                MatrixOperand(tiling, side, begin, first, is_left=is_left, in_panels=panels)
            )
            begin += tiles * operands[-1].size
        assert begin == schedule.local_bytes
        return operands

    def _summed(self, totals: Sequence[Value], tiling: Tiling) -> Sequence[Value]:
        code, schedule, last = self._code, self._decided, self._stretch.extent - 1
        self._operands = operands = self._operands_of(tiling)
        self._through_registers = [operand for operand in operands if not operand.is_asynchronous]
        self._is_asynchronous = len(self._through_registers) < len(operands)
        self._following = Axis("following", self._stretch.extent)
        for stage in range(schedule.ahead):
            for operand in operands if stage <= last else ():
                begin = self._points.position(stage * operand.size)
                if operand.is_asynchronous:
                    operand.copy(Index(stage), begin)
                else:
                    operand.keep(operand.loaded(Index(stage)), begin)
            if self._is_asynchronous:
                code.call_void("commit_copies")
        if schedule.by_warpgroups:
            totals = [*totals, *self._read(Index(min(schedule.ahead, last)))]
        # Nothing can be done with sums while products of warpgroups go on.
        in_blocks = not schedule.by_warpgroups
        sums = self._over_tiles(totals, self._after_stretch, in_blocks=in_blocks)
        if self._is_asynchronous:
            # Copies must end before their group does.
            code.call_void("await_copies<0>")
        if schedule.by_warpgroups:
            sums = [code.call("finish_products", sums[0].type, sums[0])]
        return sums

    def _after_stretch(self, opened: OpenLoop) -> Sequence[Value]:
        """The sums after a stretch; and for warpgroups the vectors that are in registers."""
        code, points, schedule = self._code, self._points, self._decided
        ahead, last = schedule.ahead, self._stretch.extent - 1
        if self._is_asynchronous:
            code.call_void(f"await_copies<{ahead - 1}>")
        if schedule.by_warpgroups:
            code.call_void("make_visible")
        # The tile is there for all items, and they are done with the one before.
        code.barrier()
        # After the last tile, copies write zeros without reading anything. What goes through
        # registers is read again, from the cache: a condition would cost each read. Neither is
        # used.
        later = opened.index + ahead
        more, number = later <= last, code.minimum(later, last)
        target, present = later % schedule.stages, opened.index % schedule.stages
        if not schedule.by_warpgroups:
            with points.bound(self._following, number):
                self._copy(target, more)
                read = self._read(axis_index(self._following))
            received = self._products(present, opened.carried)
            self._keep(read, target)
            return received
        total, *read = opened.carried
        total = self._begun_products(present, total)
        self._keep(read, target)
        with points.bound(self._following, number):
            self._copy(target, more)
        with points.bound(self._following, code.minimum(later + 1, last)):
            read = self._read(axis_index(self._following))
        code.call_void("end_products")
        return [total, *read]

    def _products(self, stage: Value, totals: Sequence[Value]) -> Sequence[Value]:
        """The sums after the tiles of a stage."""
        multiplied = f"multiply_{self._decided.kind}"
        return products_of_warps(
            *(self._code, multiplied, self._operands, self._begins(stage)),
            *((self._warp_m // STEP, self._warp_n // STEP), self._decided.tile_k, totals),
        )

    def _begun_products(self, stage: Value, total: Value) -> Value:
        """Begins the products of a warpgroup at the tiles of a stage; the sums after them."""
        code, schedule = self._code, self._decided
        left, right = self._operands
        across = f"{not left.along_k:d}, {not right.along_k:d}"
        multiplied = f"multiply_tiles_{schedule.kind}<{across}>"
        begins = self._begins(stage)
        total = code.call("begin_products", total.type, total)
        for k in range(0, schedule.tile_k, 32 // schedule.element_bytes):
            tiles = left.descriptor(begins[0], k), right.descriptor(begins[1], k)
            total = code.call(multiplied, total.type, *tiles, total)
        return total

    def _begins(self, stage: Value) -> list[Value]:
        """Where the tiles of a stage begin."""
        return [stage * operand.size for operand in self._operands]

    def _copy(self, target: Value, more: Value) -> None:
        """Begins the asynchronous copies to a tile: of zeros unless there is one `more` tile."""
        copied = [operand for operand in self._operands if operand.is_asynchronous]
        for operand in copied:
            operand.copy(axis_index(self._following), target * operand.size, more)
        if copied:
            self._code.call_void("commit_copies")

    def _read(self, stretch: Index) -> list[Value]:
        """The vectors that go through registers, one operand after the other."""
        return [value for operand in self._through_registers for value in operand.loaded(stretch)]

    def _keep(self, values: Sequence[Value], target: Value) -> None:
        """Writes these vectors to a tile."""
        for operand in self._through_registers:
            vectors, values = values[: operand.count], values[operand.count :]
            operand.keep(vectors, target * operand.size)
