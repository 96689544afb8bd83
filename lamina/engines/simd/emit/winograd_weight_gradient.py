"""Winograd's algorithm for gradients of weights: F(3x3, 2x2), F(3x3, 4x4), F(5x5, 2x2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.axes import flattened
from lamina.codegen.builder import Builder
from lamina.codegen.values import I32, I64, POINTER, TABLE, Type, Value, constant
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.decide.schedule import WindowSchedule
from lamina.engines.simd.decide.windows import Windowed, tiled
from lamina.engines.simd.decide.winograd import SumsAtOnce
from lamina.engines.simd.emit.context import ITEM_RANGE_PARAMETERS, Context, Points, WrittenKernel
from lamina.engines.simd.emit.m_tiles import address, start_of_piece
from lamina.engines.simd.emit.winograd import Chunk, Matrices, TransformedTiles, divided
from lamina.engines.simd.emit.winograd_transforms import (
    emit_factor_transform,
    emit_gradient_transform,
)
from lamina.engines.simd.emit.zeros import cleared, nonzero_n_of_any, panel_vectors, write_narrowing
from lamina.program.index import Axis, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Bound, Scalar
from lamina.program.steps import reads_of


@final
class WinogradWeightGradient(TransformedTiles):
    """Work items are (batch, group of panels, piece of the channels, block of chunks).

    A work item keeps its sums in the thread's memory, and transforms them to gradients at its end.
    If the gradients have partial sums, they are in the shared workspace. Another kernel, with work
    items of (batch, panel, vector of channels), adds them up and transforms them.
    """

    def __init__(
        self, context: Context, name: str, windowed: Windowed, schedule: WindowSchedule
    ) -> None:
        super().__init__(context, name, windowed, schedule)
        *plane, channels = windowed.image.sides
        self._plane = plane
        self._all_channels = channels.axis.extent
        self._piece = Axis("piece", self._all_channels // schedule.channels)
        within = Axis(channels.axis.name, schedule.channels)
        channel = axis_index(self._piece) * schedule.channels + axis_index(within)
        self._image = replace(
            windowed.image,
            view=Rewrite({channels.axis: channel}).scalar(windowed.image.view),
            sides=(
                *plane,
                replace(channels, axis=within, windows=replace(channels.windows, element=within)),
            ),
        )
        self._blocks = schedule.partial_sums
        at_once = SumsAtOnce(schedule.channels, schedule.panels_at_once)
        self._groups = at_once.groups(self._panels)
        self._sums_stride = self._matrix_stride(schedule.channels * schedule.panels.width)
        # The elements of the sums of a panel, and of a work item.
        self._panel_sums = self._products * self._sums_stride
        self._item_sums = self._panel_sums * schedule.panels_at_once

    def write(self) -> list[WrittenKernel]:
        chunks, (work, *_) = self._chunks, self._schedule.works
        count = self._outer.extent // chunks.images * chunks.each
        if self._blocks > 1:
            self._context.need_shared(work.items * self._item_sums * self._bytes)
        for kind, panel, _, _ in self._panels.kinds():
            for label, block, _ in chunks.sizes():
                self._write_panel(f"{self._name}_{kind}_{label}", panel, block)
            self._write_gradients(f"{self._name}_{kind}", panel)
        for label, block, _ in chunks.sizes():
            self._write_chunk(label, block)
        self._write_item(count)
        summing = self._summing()
        if self._blocks == 1:
            return [summing]
        return [replace(summing, writes=frozenset([self._context.SHARED])), self._finishing()]

    def _summing(self) -> WrittenKernel:
        """The kernel that sums products."""
        code = self._context.module.function(self._name, ITEM_RANGE_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        block, remaining = divided(code, loop.index, self._blocks)
        piece, remaining = divided(code, remaining, self._piece.extent)
        group, batch = divided(code, remaining, self._groups)
        operands = (table, thread, batch, group, piece, block, loop.index)
        code.call_void(f"{self._name}_item", *operands)
        code.end_loop(loop)
        code.finish()
        return self._kernel(self._name)

    def _write_item(self, chunks: int) -> None:
        """Writes `item(table, thread, batch, group, piece, block, number)`: sums over chunks."""
        numbers = ("thread", "batch", "group", "piece", "block", "number")
        code = self._begin(f"{self._name}_item", numbers).code
        table, thread, batch, group, piece, block, number = code.parameters
        if self._blocks == 1:
            sums = self._own(code)
        else:
            sums = self._context.address(code, self._context.SHARED)
            sums = address(code, sums, [(number, self._item_sums)], self._element)
        lanes = self._panels.lanes
        fill = code.begin_loop(0, self._item_sums, lanes)
        zero = constant(0, Type(self._element, lanes))
        code.store(zero, code.offset(sums, fill.index, self._element))
        code.end_loop(fill)
        at_once = constant(self._schedule.panels_at_once, I64)
        first = code.multiply(group, at_once)
        last = code.minimum(code.add(first, at_once), constant(self._panels.count, I64))
        following = code.add(block, constant(1, I64))
        begin, end = (start_of_piece(code, one, chunks, self._blocks) for one in (block, following))
        loop = code.begin_loop(begin, end)
        for label, outer, start in self._over_chunk(code, loop.index):
            operands = (table, thread, batch, outer, start, first, last, piece, sums)
            code.call_void(f"{self._name}_{label}", *operands)
        code.end_loop(loop)
        if self._blocks == 1:
            each = -(-self._schedule.channels // lanes)
            start = code.multiply(piece, constant(each, I64))
            panels = code.begin_loop(first, last)
            past = code.subtract(panels.index, first)
            of_panel = address(code, sums, [(past, self._panel_sums)], self._element)
            vectors = code.begin_loop(start, code.add(start, constant(each, I64)))
            self._call_gradients(code, (batch, panels.index, vectors.index), of_panel)
            code.end_loop(vectors)
            code.end_loop(panels)
        code.finish()

    def _over_kinds(self, code: Builder, panel: Value) -> Iterator[str]:
        """Branches by the kind of a panel; yields its name."""
        for kind, _, condition, limit in self._panels.kinds():
            with code.when(code.compare(condition, panel, constant(limit, I64))):
                yield kind

    def _write_chunk(self, label: str, block: int) -> None:
        """Writes `chunk(table, thread, batch, outer, start, first, last, piece, sums)`.

        It adds the products of a chunk of tiles to the sums of some panels.
        """
        numbers = ("thread", "batch", "outer", "start", "first", "last", "piece")
        parameters = (("table", TABLE), *((one, I64) for one in numbers), ("sums", POINTER))
        points = self._context.begin(f"{self._name}_{label}", parameters, reads_of(self._step))
        code = points.code
        table, thread, batch, outer, start, first, last, piece, sums = code.parameters
        copied, left, _ = self._memory(code, block)
        chunk = Chunk(outer, start, self._chunks.images, block)
        with points.bound(self._batch, batch), points.bound(self._piece, piece):
            self._transform_chunk(points, chunk, copied, left)
        loop = code.begin_loop(first, last)
        past = code.subtract(loop.index, first)
        target = address(code, sums, [(past, self._panel_sums)], self._element)
        for kind in self._over_kinds(code, loop.index):
            operands = (table, thread, batch, outer, start, loop.index, target)
            code.call_void(f"{self._name}_{kind}_{label}", *operands)
        code.end_loop(loop)
        code.finish()

    def _write_panel(self, name: str, panel: Panel, block: int) -> None:
        """Writes `panel(table, thread, batch, outer, start, number, sums)`.

        It adds the products of the transformed tiles of a chunk to the sums of a panel.
        """
        numbers = ("thread", "batch", "outer", "start", "number")
        parameters = (("table", TABLE), *((one, I64) for one in numbers), ("sums", POINTER))
        points = self._context.begin(name, parameters, reads_of(self._step))
        code = points.code
        _, _, batch, outer, start, number, sums = code.parameters
        n_start = code.multiply(number, constant(self._panels.width, I64))
        _, left, factors = self._memory(code, block)
        right = replace(factors, stride=self._matrix_stride(self._tiles(block) * panel.width))
        with points.bound(self._batch, batch):
            chunk = Chunk(outer, start, self._chunks.images, block)
            self._transform_right(points, chunk, panel, n_start, right)
        operands = (left, right, Matrices(sums, self._sums_stride))
        m_loop, k_loop = (self._channels, 1), (self._tiles(block), self._channels)
        self._multiply(code, panel, operands, m_loop, k_loop, fresh=False)
        code.finish()

    def _tiles(self, block: int) -> int:
        """The tiles of a chunk."""
        return self._chunks.images * block * self._wide

    def _memory(self, code: Builder, block: int) -> tuple[Value, Matrices, Matrices]:
        """The thread's memory for a chunk: of images, transformed inputs, and factors."""
        inputs, factors = (
            self._matrix_stride(self._tiles(block) * size)
            for size in (self._channels, self._panels.width)
        )
        image = self._chunks.images * self._image.size(self._tile * block)
        sizes = (self._own_sums, image, self._products * inputs, self._products * factors)
        _, *offsets, _ = self._own_offsets(sizes)
        own = self._own(code)
        starts = [code.offset(own, at, self._element) for at in offsets]
        return starts[0], Matrices(starts[1], inputs), Matrices(starts[2], factors)

    @property
    def _own_sums(self) -> int:
        """The elements of sums at the beginning of the thread's memory."""
        return self._item_sums if self._blocks == 1 else 0

    def _transform_right(
        self, points: Points, chunk: Chunk, panel: Panel, n_start: Value, factors: Matrices
    ) -> None:
        """Transforms the tiles of the right operand of a chunk."""
        code, view, (high, wide) = points.code, self._right_view(), self._image.positions
        end = code.add(chunk.outer, constant(chunk.images, I64))
        with points.loop(self._outer, (), chunk.outer, end) as outers:
            past = code.subtract(outers.index, chunk.outer)
            rows = code.begin_loop(0, chunk.block)
            columns = code.begin_loop(0, self._wide)
            row = code.add(code.multiply(past, constant(chunk.block, I64)), rows.index)
            tile = code.add(code.multiply(row, constant(self._wide, I64)), columns.index)
            target = address(code, factors.start, [(tile, panel.width)], self._element)
            row = code.multiply(code.add(chunk.start, rows.index), constant(self._tile, I64))
            column = code.multiply(columns.index, constant(self._tile, I64))
            for number in range(panel.vectors):
                skipped = number * panel.lanes
                base = code.add(n_start, constant(skipped, I64))
                along_n = (self._n, base, panel.present(number), panel.lanes)
                square = _Factors(points, view, (high, row), (wide, column), *along_n)
                transform = emit_factor_transform(
                    self._context.module, self._filtering, Type(self._element, panel.lanes)
                )
                to = code.offset(target, skipped, self._element)
                values = [square.number(*at) for at in product(range(self._tile), repeat=2)]
                code.call_void(transform, *values, to, constant(factors.stride, I64))
            code.end_loop(columns)
            code.end_loop(rows)
            code.end_loop(outers)

    def _right_view(self) -> Scalar:
        """The right operand over whole tiles, with zeros past its last position."""
        whole = {axis: tiled(axis, self._tile) for axis in self._step.k[-2:]}
        _, of_outer = flattened(self._image.outer, self._outer.name)
        change = Rewrite(of_outer | {axis: axis_index(one) for axis, one in whole.items()})
        bounds = tuple(
            Bound(axis_index(axis), 0, axis.extent) for axis, one in whole.items() if one != axis
        )
        within = Rewrite(load=lambda load: replace(load, bounds=(*load.bounds, *bounds)))
        return change.scalar(within.scalar(self._step.right))

    def _finishing(self) -> WrittenKernel:
        """The kernel that adds up partial sums and transforms them to gradients."""
        name = f"{self._name}_gradients"
        code = self._context.module.function(name, ITEM_RANGE_PARAMETERS)
        *_, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        vectors = -(-self._all_channels // self._panels.lanes)
        number, remaining = divided(code, loop.index, vectors)
        panel, batch = divided(code, remaining, self._panels.count)
        past, group = divided(code, panel, self._schedule.panels_at_once)
        channel = code.multiply(number, constant(self._panels.lanes, I64))
        piece = code.binary("udiv", channel, constant(self._channels, I64))
        item = code.add(code.multiply(batch, constant(self._groups, I64)), group)
        item = code.add(code.multiply(item, constant(self._piece.extent, I64)), piece)
        moves = [(item, self._blocks * self._item_sums), (past, self._panel_sums)]
        shared = self._context.address(code, self._context.SHARED)
        sums = address(code, shared, moves, self._element)
        self._call_gradients(code, (batch, panel, number), sums)
        code.end_loop(loop)
        code.finish()
        kernel = self._kernel(name)
        return replace(kernel, reads=kernel.reads | {self._context.SHARED})

    def _call_gradients(self, code: Builder, at: tuple[Value, Value, Value], sums: Value) -> None:
        """Calls the function of a panel's kind, at a batch, panel and vector of channels."""
        table, thread, *_ = code.parameters
        for kind in self._over_kinds(code, at[1]):
            code.call_void(f"{self._name}_{kind}_gradients", table, thread, *at, sums)

    def _write_gradients(self, name: str, panel: Panel) -> None:
        """Writes `gradients(table, thread, batch, panel, number, sums)`, for a vector of channels.

        Gradients stay in the thread's memory until those whose terms are all zero are known.
        """
        lanes, each = self._panels.lanes, self._window**2 * panel.width
        elements = [side.element for side in self._plane if side.element is not None]
        (channels,) = (axis for axis in self._step.m if axis not in elements)
        pitches = [self._window * panel.width, panel.width, 0]
        self._write_epilogue(name, panel, [*elements, channels], pitches)
        whole, rest = divmod(self._all_channels, lanes)
        kinds = [("whole", lanes, "slt"), ("rest", rest, "eq")]
        kinds = [one for one in kinds if (rest if one[0] == "rest" else whole)]
        for label, present, _ in kinds:
            narrowing = f"{name}_{label}_zeros"
            plane = self._step.k[-2:]
            along = (channels, present)
            write_narrowing(self._context, narrowing, self._step, along, panel, plane)
        sizes = (self._own_sums, lanes * each, lanes, lanes * self._window**2)
        _, *offsets, _ = self._own_offsets(sizes)
        numbers = ("thread", "batch", "panel", "number")
        parameters = (("table", TABLE), *((one, I64) for one in numbers), ("sums", POINTER))
        code = self._context.begin(f"{name}_gradients", parameters, ()).code
        table, _, batch, number, vector, sums = code.parameters
        own = self._own(code)
        gradients, found, words = (code.offset(own, at, self._element) for at in offsets)
        n_start = code.multiply(number, constant(self._panels.width, I64))
        first = code.multiply(vector, constant(lanes, I64))
        last = code.minimum(
            code.add(first, constant(lanes, I64)), constant(self._all_channels, I64)
        )
        loop = code.begin_loop(first, last)
        past = code.subtract(loop.index, first)
        target = address(code, gradients, [(past, each)], self._element)
        row = code.binary("urem", loop.index, constant(self._channels, I64))
        source = address(code, sums, [(row, panel.width)], self._element)
        high, wide = (side.windows.dilation < 0 for side in self._plane)
        transform = emit_gradient_transform(
            self._context.module, self._filtering, panel, self._element, (high, wide)
        )
        strides = (self._sums_stride, self._blocks, self._item_sums)
        code.call_void(transform, source, target, *(constant(one, I64) for one in strides))
        rows = [
            panel_vectors(
                code, panel, self._element, code.offset(target, row * panel.width, self._element)
            )
            for row in range(self._window**2)
        ]
        code.store(nonzero_n_of_any(code, panel, rows), code.offset(found, past, "i32"))
        code.end_loop(loop)
        # For each element of the windows as many words as the vector has channels, contiguous.
        count = code.subtract(last, first)
        for label, present, condition in kinds:
            with code.when(code.compare(condition, vector, constant(whole, I64))):
                seen = code.load(found, Type("i32", present))
                for element_ in range(self._window**2):
                    code.store(seen, code.offset(words, element_ * present, "i32"))
                operands = (table, batch, first, n_start, words)
                code.call_void(f"{name}_{label}_zeros", *operands)
        order = [elements.index(axis) for axis in self._step.m if axis != channels]
        self._clear(code, panel, order, count, gradients, words)
        loop = code.begin_loop(first, last)
        past = code.subtract(loop.index, first)
        zero, one, all_ = (constant(value, I64) for value in (0, 1, self._window))
        source = address(code, gradients, [(past, each)], self._element)
        operands = (table, source, batch, zero, zero, zero, loop.index, all_, all_, one, n_start)
        code.call_void(f"{name}_epilogue", *operands)
        code.end_loop(loop)
        code.finish()

    def _clear(
        self,
        code: Builder,
        panel: Panel,
        order: Sequence[int],
        count: Value,
        gradients: Value,
        words: Value,
    ) -> None:
        """Stores zeros for the gradients whose bits are set.

        Args:
            code: of the function.
            panel: the vectors of the panel.
            order: of the axes of the windows' elements, as in the words.
            count: of channels.
            gradients: their address, channel by channel.
            words: the address of the bits: element by element, a word for each channel.
        """
        each = self._window**2 * panel.width
        element_ = code.begin_loop(0, self._window**2)
        numbers = [*divided(code, element_.index, self._window)][::-1]
        row = code.multiply(numbers[order.index(0)], constant(self._window, I64))
        row = code.add(row, numbers[order.index(1)])
        loop = code.begin_loop(constant(0, I64), count)
        word = code.add(code.multiply(element_.index, count), loop.index)
        word = code.load(code.offset(words, word, "i32"), I32)
        with code.when(code.compare("ne", word, constant(0, I32))):
            start = address(
                code, gradients, [(loop.index, each), (row, panel.width)], self._element
            )
            for vector, value in enumerate(panel_vectors(code, panel, self._element, start)):
                target = code.offset(start, vector * panel.lanes, self._element)
                code.store(cleared(code, panel, vector, value, word), target)
        code.end_loop(loop)
        code.end_loop(element_)


@frozen_dataclass
class _Factors:
    """A tile of the right operand: vectors along N.

    Attributes:
        points: of the function that reads it.
        view: the operand.
        high, wide: the axes of output positions, each with the tile's first coordinate.
        n: the axis N.
        base: the first column.
        present: the number of columns.
        lanes: of the vectors; lanes without a column are zero.
    """

    points: Points
    view: Scalar
    high: tuple[Axis, Value]
    wide: tuple[Axis, Value]
    n: Axis
    base: Value
    present: int
    lanes: int

    def number(self, row: int, column: int) -> Value:
        """The vector in a row and a column of the tile."""
        points, code = self.points, self.points.code
        (high, first_row), (wide, first_column) = self.high, self.wide
        with (
            points.bound(high, code.add(first_row, constant(row, I64))),
            points.bound(wide, code.add(first_column, constant(column, I64))),
            points.along(self.n, self.base, self.present),
        ):
            return code.padded(points.vector(self.view), self.lanes, 0)
