"""All contraction steps: products of matrices here; windows by the writer of their algorithm.

A product of matrices (`_Gemm`) is made of register tiles of sums, each with its epilogue. Workers
share the panels of N. For a panel, the right operand is read through its view and packed into the
worker's memory, unless it was packed before. Then the tiles of all M pass over the panel. The left
operand is read in its buffer, or an earlier kernel has packed all of it. Sums run over k in order,
so results do not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder
from lamina.codegen.matrix import Plain, as_loop, as_matrix, as_plain
from lamina.codegen.primitives import element
from lamina.codegen.values import TABLE, Value
from lamina.engines.simd.decide.packing import Panel
from lamina.engines.simd.decide.schedule import (
    ALONG_K,
    AMX,
    DIRECT,
    PREPACKED,
    GemmSchedule,
    LoopSchedule,
    StepSchedule,
)
from lamina.engines.simd.decide.tiles import AMX_STEPS
from lamina.engines.simd.decide.windows import (
    COL2IM,
    IMPLICIT_GEMM,
    WEIGHT_GRADIENT,
    WINOGRAD,
    WINOGRAD_WEIGHT_GRADIENT,
    reading,
)
from lamina.engines.simd.emit.amx import AmxTile, begin_tiles, emit_amx_tile, end_tiles
from lamina.engines.simd.emit.col2im import Col2im
from lamina.engines.simd.emit.context import (
    ITEM_RANGE_PARAMETERS,
    Context,
    Points,
    WrittenKernel,
    parameters,
)
from lamina.engines.simd.emit.epilogues import write_epilogue
from lamina.engines.simd.emit.implicit_gemm import ImplicitGemm
from lamina.engines.simd.emit.loops import emit_nest
from lamina.engines.simd.emit.m_tiles import over_kinds
from lamina.engines.simd.emit.packing import (
    RightPanelWriter,
    m_stride_along_k,
    panel_address,
    write_left_along_k,
    write_pack_left,
)
from lamina.engines.simd.emit.tiles import Dots, Tile, call_tile, emit_dots
from lamina.engines.simd.emit.weight_gradient import WeightGradient
from lamina.engines.simd.emit.windows import WindowWriter
from lamina.engines.simd.emit.winograd import WinogradForward
from lamina.engines.simd.emit.winograd_weight_gradient import WinogradWeightGradient
from lamina.engines.simd.processor import whole_lines
from lamina.program.scalar import loads
from lamina.program.steps import Contraction, reads_of, writes_of


def emit_contraction(
    context: Context,
    name: str,
    step: Contraction,
    schedule: StepSchedule,
    column_sums: Sequence[WrittenKernel] = (),
) -> list[WrittenKernel]:
    """Writes the functions of a contraction step; gives the kernels of it and its column sums.

    The names of the functions begin with `name`. Column sums are loops with a work item for each
    panel, which run when the panel is stored.
    """
    if isinstance(schedule, LoopSchedule):
        (nest,) = schedule.nests
        return [emit_nest(context, name, as_loop(step), nest)]
    if isinstance(schedule, GemmSchedule):
        return _Gemm(context, name, step, schedule, column_sums).write()
    windowed = reading(step, schedule.algorithm, paired=schedule.paired)
    return _WINDOW_WRITERS[schedule.algorithm](context, name, windowed, schedule).write()


_WINDOW_WRITERS: dict[str, type[WindowWriter]] = {
    IMPLICIT_GEMM: ImplicitGemm,
    WEIGHT_GRADIENT: WeightGradient,
    COL2IM: Col2im,
    **dict.fromkeys(WINOGRAD.values(), WinogradForward),
    **dict.fromkeys(WINOGRAD_WEIGHT_GRADIENT.values(), WinogradWeightGradient),
}


@frozen_dataclass
class _Pass:
    """A chunk of k of one panel, over which the tiles of M pass; the stride is along K.

    `right` is the address of the chunk in the panel, `sums` the address of the tiles' sums.
    """

    name: str
    panel: Panel
    chunk: range
    right: Value
    right_stride: int
    sums: Value
    n_start: Value


class _Gemm:
    """Writes one matrix product."""

    def __init__(
        self,
        context: Context,
        name: str,
        step: Contraction,
        schedule: GemmSchedule,
        column_sums: Sequence[WrittenKernel],
    ) -> None:
        self._context = context
        self._name = name
        self._schedule = schedule
        self._matrix = matrix = as_matrix(step, paired=schedule.paired)
        self._column_sums = column_sums
        # Of packed operands and of sums. Both have the same size.
        self._element, self._of_sums = matrix.element, element(step.dtype)
        self._panels = panels = schedule.panels
        self._dots, self._amx = schedule.algorithm == "dots", schedule.algorithm == AMX
        is_direct = schedule.left == DIRECT
        self._left = as_plain(matrix.left, matrix.m, matrix) if is_direct else None
        self._right = as_plain(matrix.right, matrix.n, matrix)
        # The worker's memory: a chunk of a panel, and the sums of one tile or of all tiles.
        packs = schedule.right != PREPACKED and not self._dots
        panel_bytes = schedule.chunk * panels.width * step.dtype.itemsize if packs else 0
        tiles = 1 if schedule.chunk == schedule.k_steps else schedule.m_tiles
        sums_bytes = tiles * schedule.tile_m * panels.width * step.dtype.itemsize
        self._sums_offset = whole_lines(panel_bytes)
        context.workspaces.need_thread_memory(self._sums_offset + sums_bytes)

    # Kernels

    def write(self) -> list[WrittenKernel]:
        context, matrix, schedule = self._context, self._matrix, self._schedule
        kernels: list[WrittenKernel] = []
        if schedule.packing_left is not None:
            name = f"{self._name}_left"
            if schedule.left == ALONG_K:
                lanes = schedule.panels.lanes
                write_left_along_k(context, name, matrix, lanes, filled=self._amx)
            else:
                write_pack_left(context, name, matrix, schedule.tile_m)
            reads = frozenset(load.buffer for load in loads(matrix.left))
            kernels.append(WrittenKernel(name, reads, frozenset([context.SHARED])))
        for kind, panel, _, _ in self._panels.kinds():
            self._write_panel(kind, panel)
        # The kernel that multiplies: work items are (batch, panel of N, piece of M).
        code = context.module.function(self._name, ITEM_RANGE_PARAMETERS)
        table, thread, first, last = code.parameters
        with code.loop(first, last) as loop:
            pieces, tiles = schedule.split_m, schedule.m_tiles
            piece, panel_of_all = loop.index % pieces, loop.index // pieces
            batch, number = panel_of_all // self._panels.count, panel_of_all % self._panels.count
            begin, end = piece * tiles // pieces, (piece + 1) * tiles // pieces
            for kind in over_kinds(code, self._panels, number):
                code.call_void(f"{self._name}_{kind}", table, thread, batch, number, begin, end)
            if pieces == 1:
                following = number + 1
                for sums in self._column_sums:
                    code.call_void(sums.function, table, thread, number, following)
        reads = reads_of(matrix.step) | {name for kernel in kernels for name in kernel.writes}
        if schedule.prepacked is not None:
            reads |= {schedule.prepacked.buffer}
        product = WrittenKernel(self._name, reads, writes_of(matrix.step))
        if schedule.split_m > 1:
            return [*kernels, product, *self._column_sums]
        for sums in self._column_sums:
            reads, writes = product.reads | sums.reads, product.writes | sums.writes
            product = replace(product, reads=reads, writes=writes)
        return [*kernels, product]

    def _write_panel(self, kind: str, panel: Panel) -> None:
        """Writes the function of a panel: packs it if necessary, then computes its tiles."""
        matrix = self._matrix
        name = f"{self._name}_{kind}"
        step, wide = matrix.step, self._schedule.wide_epilogue
        numbers = ("batch", "m_start", "count", "n_start")
        axes = (matrix.batch,), (matrix.m,)
        write_epilogue(self._context, name, numbers, step, *axes, (panel.width,), panel, wide=wide)
        declared = ("table", TABLE), *parameters("", "thread batch panel begin end")
        points = self._context.begin(name, declared, reads_of(step) | writes_of(step))
        code = points.code
        _, _, batch, number, begin, end = code.parameters
        memory = self._context.thread_memory(code)
        sums = code.offset(memory, self._sums_offset, "i8")
        n_start = number * self._panels.width
        k, longest = self._schedule.k_steps, self._schedule.chunk
        with points.bound(matrix.batch, batch):
            for start in range(0, k, longest):
                chunk = range(start, min(start + longest, k))
                right, stride = self._right_address(points, panel, memory, n_start, chunk)
                current = _Pass(name, panel, chunk, right, stride, sums, n_start)
                self._tiles(points, current, begin, end)

    def _right_address(
        self, points: Points, panel: Panel, memory: Value, n_start: Value, chunk: range
    ) -> tuple[Value, int]:
        """The address of a chunk of a panel, packed if necessary, and its stride along K."""
        code = points.code
        _, _, batch, number, *_ = code.parameters
        packed = self._schedule.prepacked
        if packed is not None:
            panel_of_all = batch * self._panels.count + number
            packed_panel = panel_address(self._context, code, packed, panel_of_all, self._element)
            return code.offset(packed_panel, chunk.start * panel.width, self._element), panel.width
        plain = self._right_in_place(panel)
        if plain is not None:
            # With dots, vectors run along K; otherwise a k is a step.
            return self._address(points, plain, n_start, chunk.start), plain.k_stride
        packing = self._schedule.packing
        assert packing is not None
        packed = RightPanelWriter(points, self._matrix, packing, panel, n_start, memory)
        packed.write_some(code.constant(chunk.start), len(chunk))
        return memory, panel.width

    def _right_in_place(self, panel: Panel) -> Plain | None:
        """The right operand if it is read in its buffer; tiles then need full vectors."""
        is_direct = self._schedule.right == DIRECT
        return self._right if is_direct and (self._dots or panel.last == panel.lanes) else None

    def _tiles(self, points: Points, current: _Pass, begin: Value, end: Value) -> None:
        """The tiles of M from number `begin` up to `end`, over one chunk of k."""
        code, matrix = points.code, self._matrix
        full_tiles, rest = divmod(matrix.m.extent, self._schedule.tile_m)
        if full_tiles:
            stop = code.minimum(end, full_tiles) if rest else end
            if self._amx:
                begin_tiles(code, self._schedule.tile_m)
            with points.counting(begin, stop) as number:
                self._tile(points, current, number, self._schedule.tile_m)
        if rest:
            with code.when(end > full_tiles) as before, points.inside(before):
                if self._amx:
                    begin_tiles(code, rest)
                self._tile(points, current, code.constant(full_tiles), rest)
        if self._amx:
            end_tiles(code)

    def _tile(self, points: Points, current: _Pass, number: Value, tile_m: int) -> None:
        """One tile over one chunk: sums begin at zero or in the last chunk; epilogue at the end."""
        code, matrix = points.code, self._matrix
        m_start = number * self._schedule.tile_m
        left, m_stride, k_stride = self._left_address(points, number, m_start, current.chunk.start)
        sums = current.sums
        if self._schedule.chunk < self._schedule.k_steps:
            skipped = number * (self._schedule.tile_m * current.panel.width)
            sums = code.offset(sums, skipped, self._of_sums)
        fresh = current.chunk.start == 0
        if self._dots:
            self._dot_tiles(code, current, left, m_stride, tile_m)
        elif self._amx:
            tile = AmxTile(tile_m, current.panel.vectors, m_stride, fresh)
            kernel = emit_amx_tile(self._context.module, tile)
            code.call_void(kernel, left, current.right, sums, len(current.chunk) // AMX_STEPS)
        else:
            rows = range(tile_m)
            tile = Tile(
                *(tuple(m * m_stride for m in rows), tuple(m * current.panel.width for m in rows)),
                *(*current.panel.sizes, self._of_sums, ((0, k_stride),), current.right_stride),
                fresh=fresh,
                prefetch=self._schedule.prefetch,
                paired=matrix.paired,
            )
            call_tile(code, tile, left, current.right, sums, len(current.chunk))
        if current.chunk.stop == self._schedule.k_steps:
            batch = points.axis(matrix.batch)
            operands = (code.parameters[0], sums, batch, m_start, tile_m, current.n_start)
            code.call_void(f"{current.name}_epilogue", *operands)

    def _dot_tiles(
        self, code: Builder, current: _Pass, left: Value, m_stride: int, tile_m: int
    ) -> None:
        """The sums of a tile's rows and all columns of a panel, `tile_n` columns at a time."""
        plain = self._right_in_place(current.panel)
        assert plain is not None
        for first in range(0, current.panel.n, self._schedule.tile_n):
            tile_n = min(self._schedule.tile_n, current.panel.n - first)
            dots = Dots(
                *(tile_m, tile_n, current.panel.lanes, self._of_sums, len(current.chunk)),
                *(m_stride, plain.stride, current.panel.width, self._matrix.paired),
            )
            kernel = emit_dots(self._context.module, dots)
            memory = "i16" if self._matrix.paired else self._element
            right = code.offset(current.right, first * plain.stride, memory)
            code.call_void(kernel, left, right, code.offset(current.sums, first, self._of_sums))

    def _left_address(
        self, points: Points, number: Value, m_start: Value, k_start: int
    ) -> tuple[Value, int, int]:
        """The address at which a tile reads the left operand, and the strides of M and of a step.

        The strides of pairs count bfloat16.
        """
        code, matrix = points.code, self._matrix
        k = matrix.k_steps
        per_step = 2 if matrix.paired else 1
        if self._left is not None:
            plain = self._left
            address = self._address(points, plain, m_start, k_start)
            return address, plain.stride, per_step * plain.k_stride
        packed_left = self._context.address(code, self._context.SHARED)
        batch = points.axis(matrix.batch)
        if self._schedule.left == ALONG_K:
            stride = m_stride_along_k(matrix)
            offset = (batch * matrix.m.extent + m_start) * stride + k_start
            return code.offset(packed_left, offset, self._element), per_step * stride, per_step
        tile = batch * self._schedule.m_tiles + number
        tile_m = self._schedule.tile_m
        # The last tile may have fewer rows, but has the same strides.
        offset = tile * (k * tile_m) + k_start * tile_m
        return code.offset(packed_left, offset, self._element), per_step, per_step * tile_m

    def _address(self, points: Points, plain: Plain, outer: Value, k_start: int) -> Value:
        """The address of a plain operand at a row (left) or column (right) and a step."""
        code, paired = points.code, self._matrix.paired
        k = 2 * k_start if paired else k_start
        first = points.indices(plain.start).start
        offset = first + outer * plain.stride + k * plain.k_stride
        return code.offset(points.base(plain.buffer), offset, "i16" if paired else self._element)
