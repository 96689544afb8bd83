"""Winograd's algorithm for gradients of weights: F(3x3, 2x2) and F(5x5, 2x2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from lamina.codegen.axes import flattened
from lamina.codegen.filtering import RESULTS
from lamina.codegen.llvm import Function
from lamina.codegen.values import I32, I64, POINTER, Type, Value, constant
from lamina.engines.cpu.decide.panels import Panel
from lamina.engines.cpu.decide.schedule import WindowSchedule
from lamina.engines.cpu.decide.windows import Windowed, tiled
from lamina.engines.cpu.emit.context import PART_PARAMETERS, Context, Part, Points
from lamina.engines.cpu.emit.row_tiles import address, start_of_part
from lamina.engines.cpu.emit.transforms import Listed, along_both
from lamina.engines.cpu.emit.winograd import Chunk, Matrices, TransformedTiles, divided
from lamina.engines.cpu.emit.zeros import cleared, columns_seen, write_narrowing
from lamina.program.index import Axis, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Bound, Scalar
from lamina.program.steps import reads_of
from lamina.records import frozen_dataclass


@final
class WinogradWeightGradient(TransformedTiles):
    """Work items are (batch, panel, piece of the channels, block of chunks).

    Each has its own sums. They wait in the shared workspace; what is made of them has work items of
    (batch, panel, group of channels).
    """

    def __init__(
        self, context: Context, name: str, how: Windowed, schedule: WindowSchedule
    ) -> None:
        super().__init__(context, name, how, schedule)
        *plane, channels = how.image.sides
        self._plane = plane
        self._all_channels = channels.axis.extent
        self._piece = Axis("piece", self._all_channels // schedule.channels)
        within = Axis(channels.axis.name, schedule.channels)
        place = axis_index(self._piece) * schedule.channels + axis_index(within)
        self._image = replace(
            how.image,
            view=Rewrite({channels.axis: place}).scalar(how.image.view),
            sides=(*plane, replace(channels, axis=within, element=within)),
        )
        self._blocks = schedule.partial_sums
        self._sums_apart = self._apart(schedule.channels * schedule.panels.width)

    def write(self) -> list[Part]:
        cut, (work, _) = self._chunks, self._schedule.works
        chunks = self._outer.extent // cut.images * cut.each
        self._context.need_shared(work.items * self._products * self._sums_apart * self._bytes)
        for kind, panel, _, _ in self._panels.kinds():
            for label, rows, _ in cut.sizes():
                self._write_chunk(f"{self._name}_{kind}_{label}", panel, rows, cut.images)
            self._write_unit(f"{self._name}_{kind}", panel, chunks)
            self._write_gradients(f"{self._name}_{kind}", panel)
        return [self._summing(), self._finishing()]

    def _summing(self) -> Part:
        """The part that makes sums of products."""
        code = self._context.module.function(self._name, PART_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        block, remaining = divided(code, loop.index, self._blocks)
        piece, remaining = divided(code, remaining, self._piece.extent)
        panel, batch = divided(code, remaining, self._panels.count)
        for kind, _, condition, limit in self._panels.kinds():
            with code.when(code.compare(condition, panel, constant(limit, I64))):
                operands = (table, thread, batch, panel, piece, block, loop.index)
                code.call_void(f"{self._name}_{kind}", *operands)
        code.end_loop(loop)
        code.finish()
        part = self._part(self._name)
        return replace(part, writes=frozenset([self._context.SHARED]))

    def _write_unit(self, name: str, panel: Panel, chunks: int) -> None:
        """`unit(table, thread, batch, panel, piece, block, number)`: the sums of some chunks."""
        numbers = ("thread", "batch", "panel", "piece", "block", "number")
        code = self._begin(name, numbers).code
        table, thread, batch, panel_number, piece, block, number = code.parameters
        size = self._products * self._sums_apart
        sums = self._context.address(code, self._context.SHARED)
        sums = address(code, sums, [(number, size)], self._element)
        fill = code.begin_loop(0, size, panel.lanes)
        zero = constant(0, Type(self._element, panel.lanes))
        code.store(zero, code.offset(sums, fill.index, self._element))
        code.end_loop(fill)
        column = code.multiply(panel_number, constant(self._panels.width, I64))
        following = code.add(block, constant(1, I64))
        begin, end = (start_of_part(code, one, chunks, self._blocks) for one in (block, following))
        loop = code.begin_loop(begin, end)

        for label, outer, start in self._over_chunk(code, loop.index):
            operands = (table, thread, batch, outer, start, column, piece, sums)
            code.call_void(f"{name}_{label}", *operands)
        code.end_loop(loop)
        code.finish()

    def _write_chunk(self, name: str, panel: Panel, block: int, slots: int) -> None:
        """`chunk(table, thread, batch, outer, start, column, piece, sums)`: adds some tiles."""
        tiles = slots * block * self._wide
        numbers_apart, factors_apart = (
            self._apart(tiles * size) for size in (self._channels, panel.width)
        )
        image = slots * self._image.size(RESULTS * block)
        *places, _ = self._places(
            (image, self._products * numbers_apart, self._products * factors_apart)
        )
        parameters = (
            *(("table", POINTER), ("thread", I64), ("batch", I64), ("outer", I64)),
            *(("start", I64), ("column", I64), ("piece", I64), ("sums", POINTER)),
        )
        points = self._context.begin(name, parameters, reads_of(self._step))
        code = points.code
        _, _, batch, outer, start, column, piece, sums = code.parameters
        own = self._own(code)
        copied, numbers, factors = (code.offset(own, at, self._element) for at in places)
        left, right = Matrices(numbers, numbers_apart), Matrices(factors, factors_apart)
        chunk = Chunk(outer, start, slots, block)
        with points.bound(self._batch, batch), points.bound(self._piece, piece):
            self._numbers(points, chunk, copied, left)
            self._factors(points, chunk, panel, column, right)
        operands = (left, right, Matrices(sums, self._sums_apart))
        rows, inner = (self._channels, 1), (tiles, self._channels)
        self._multiply(code, panel, operands, rows, inner, fresh=False)
        code.finish()

    def _factors(
        self, points: Points, chunk: Chunk, panel: Panel, column: Value, factors: Matrices
    ) -> None:
        """Transforms tiles of the right operand."""
        code, view, (high, wide) = points.code, self._right_view(), self._image.places
        end = code.add(chunk.outer, constant(chunk.images, I64))
        with points.loop(self._outer, (), chunk.outer, end) as outers:
            past = code.subtract(outers.index, chunk.outer)
            rows = code.begin_loop(0, chunk.block)
            columns = code.begin_loop(0, self._wide)
            row = code.add(code.multiply(past, constant(chunk.block, I64)), rows.index)
            tile = code.add(code.multiply(row, constant(self._wide, I64)), columns.index)
            target = address(code, factors.start, [(tile, panel.width)], self._element)
            row = code.multiply(code.add(chunk.start, rows.index), constant(RESULTS, I64))
            place = code.multiply(columns.index, constant(RESULTS, I64))
            for number in range(panel.vectors):
                skipped = number * panel.lanes
                base = code.add(column, constant(skipped, I64))
                columns_ = (self._column, base, panel.present(number), panel.lanes)
                square = _Factors(points, view, (high, row), (wide, place), *columns_)
                to = Matrices(code.offset(target, skipped, self._element), factors.apart)
                self._scatter(
                    code, along_both(code, self._filtering.gradient_transform, square), to
                )
            code.end_loop(columns)
            code.end_loop(rows)
            code.end_loop(outers)

    def _right_view(self) -> Scalar:
        """The right operand over whole tiles, with zeros where there is none."""
        places = self._step.k[-2:]
        _, of_outer = flattened(self._image.outer, self._outer.name)
        change = Rewrite(of_outer | {axis: axis_index(tiled(axis)) for axis in places})
        bounds = tuple(Bound(axis_index(one), 0, one.extent) for one in places if tiled(one) != one)
        within = Rewrite(load=lambda load: replace(load, bounds=(*load.bounds, *bounds)))
        return change.scalar(within.scalar(self._step.right))

    def _finishing(self) -> Part:
        """The part that makes gradients of the sums."""
        name = f"{self._name}_gradients"
        code = self._context.module.function(name, PART_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        groups = -(-self._all_channels // self._panels.lanes)
        group, remaining = divided(code, loop.index, groups)
        panel, batch = divided(code, remaining, self._panels.count)
        for kind, _, condition, limit in self._panels.kinds():
            with code.when(code.compare(condition, panel, constant(limit, I64))):
                operands = (table, thread, batch, panel, group)
                code.call_void(f"{self._name}_{kind}_gradients", *operands)
        code.end_loop(loop)
        code.finish()
        part = self._part(name)
        return replace(part, reads=part.reads | {self._context.SHARED})

    def _write_gradients(self, name: str, panel: Panel) -> None:
        """`gradients(table, thread, batch, panel, group)`: of a vector of channels.

        They wait in the thread's memory until it is known which of them are zero by their terms.
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
            places = self._step.k[-2:]
            along = (channels, present)
            write_narrowing(self._context, narrowing, self._step, along, panel, places)
        *places, _ = self._places((lanes * each, lanes, lanes * self._window**2))
        code = self._begin(f"{name}_gradients", ("thread", "batch", "panel", "group")).code
        table, _, batch, number, group = code.parameters
        own = self._own(code)
        waiting, found, words = (code.offset(own, at, self._element) for at in places)
        column = code.multiply(number, constant(self._panels.width, I64))
        first = code.multiply(group, constant(lanes, I64))
        last = code.minimum(
            code.add(first, constant(lanes, I64)), constant(self._all_channels, I64)
        )
        loop = code.begin_loop(first, last)
        past = code.subtract(loop.index, first)
        target = address(code, waiting, [(past, each)], self._element)
        self._gradients_of(code, panel, (batch, number, loop.index), target)
        rows = [
            self._vectors(code, panel, code.offset(target, row * panel.width, self._element))
            for row in range(self._window**2)
        ]
        code.store(columns_seen(code, panel, rows), code.offset(found, past, "i32"))
        code.end_loop(loop)
        # As many words as there are channels in the group: those of its elements lie one after
        # the other.
        count = code.subtract(last, first)
        for label, present, condition in kinds:
            with code.when(code.compare(condition, group, constant(whole, I64))):
                seen = code.load(found, Type("i32", present))
                for element_ in range(self._window**2):
                    code.store(seen, code.offset(words, element_ * present, "i32"))
                operands = (table, batch, first, column, words)
                code.call_void(f"{name}_{label}_zeros", *operands)
        order = [elements.index(axis) for axis in self._step.m if axis != channels]
        self._clear(code, panel, order, count, waiting, words)
        loop = code.begin_loop(first, last)
        past = code.subtract(loop.index, first)
        zero, one, all_ = (constant(value, I64) for value in (0, 1, self._window))
        source = address(code, waiting, [(past, each)], self._element)
        operands = (table, source, batch, zero, zero, zero, loop.index, all_, all_, one, column)
        code.call_void(f"{name}_epilogue", *operands)
        code.end_loop(loop)
        code.finish()

    def _clear(
        self,
        code: Function,
        panel: Panel,
        order: Sequence[int],
        count: Value,
        waiting: Value,
        words: Value,
    ) -> None:
        """Stores zeros where bits are left.

        Args:
            code: where to write.
            panel: the columns.
            order: of the axes of the windows' elements, as words have them.
            count: of channels that wait.
            waiting: the gradients, channel by channel.
            words: element by element, a word for each channel.
        """
        each = self._window**2 * panel.width
        element_ = code.begin_loop(0, self._window**2)
        numbers = [*divided(code, element_.index, self._window)][::-1]
        place = code.multiply(numbers[order.index(0)], constant(self._window, I64))
        place = code.add(place, numbers[order.index(1)])
        loop = code.begin_loop(constant(0, I64), count)
        word = code.add(code.multiply(element_.index, count), loop.index)
        word = code.load(code.offset(words, word, "i32"), I32)
        with code.when(code.compare("ne", word, constant(0, I32))):
            start = address(
                code, waiting, [(loop.index, each), (place, panel.width)], self._element
            )
            for vector, value in enumerate(self._vectors(code, panel, start)):
                target = code.offset(start, vector * panel.lanes, self._element)
                code.store(cleared(code, panel, vector, value, word), target)
        code.end_loop(loop)
        code.end_loop(element_)

    def _gradients_of(
        self, code: Function, panel: Panel, at: tuple[Value, Value, Value], target: Value
    ) -> None:
        """Writes the gradients of all elements of the windows, at a batch, panel and channel."""
        batch, number, channel = at
        row, piece = divided(code, channel, self._channels)
        unit = code.add(code.multiply(batch, constant(self._panels.count, I64)), number)
        unit = code.add(code.multiply(unit, constant(self._piece.extent, I64)), piece)
        size = self._products * self._sums_apart
        moves = [(unit, self._blocks * size), (row, panel.width)]
        shared = self._context.address(code, self._context.SHARED)
        source = address(code, shared, moves, self._element)
        down, right = (range(self._window)[:: side.slope] for side in self._plane)
        for vector in range(panel.vectors):
            here = code.offset(source, vector * panel.lanes, self._element)
            totals = self._totals(code, here, Type(self._element, panel.lanes))
            square = Listed(totals, self._filtering.input_tile)
            gradients = along_both(code, self._filtering.weight_gradient_transform, square)
            # Where windows are mirrored, their elements are.
            for row_, values in zip(down, gradients, strict=True):
                for column_, value in zip(right, values, strict=True):
                    place = (row_ * self._window + column_) * panel.width + vector * panel.lanes
                    code.store(value, code.offset(target, place, self._element))

    def _totals(self, code: Function, start: Value, vector: Type) -> Sequence[Value]:
        """The sums of all blocks at the places of a tile."""
        size = self._products * self._sums_apart
        loop = code.begin_loop(0, self._blocks, 1, [constant(0, vector)] * self._products)
        block = address(code, start, [(loop.index, size)], self._element)
        added: list[Value] = []
        for place, total in enumerate(loop.carried):
            at = code.offset(block, place * self._sums_apart, self._element)
            added.append(code.add(total, code.load(at, vector)))
        return code.end_loop(loop, added)


@frozen_dataclass
class _Factors:
    """A tile of the right operand: vectors of its columns.

    Attributes:
        points: where they are read.
        view: the operand.
        high, wide: the axes of the places, and where the tile begins along each.
        column: the axis of the columns.
        base: the first column.
        present: how many columns there are.
        lanes: of the vectors; those without a column are zero.
    """

    points: Points
    view: Scalar
    high: tuple[Axis, Value]
    wide: tuple[Axis, Value]
    column: Axis
    base: Value
    present: int
    lanes: int

    def number(self, row: int, column: int) -> Value:
        """One of the vectors."""
        points, code = self.points, self.points.code
        (high, first), (wide, place) = self.high, self.wide
        with (
            points.bound(high, code.add(first, constant(row, I64))),
            points.bound(wide, code.add(place, constant(column, I64))),
            points.along(self.column, self.base, self.present),
        ):
            return code.padded(points.vector(self.view), self.lanes, 0)
