"""What the ways of contractions over windows share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from lamina.codegen.axes import flattened
from lamina.codegen.llvm import Function
from lamina.codegen.primitives import element
from lamina.codegen.values import I64, POINTER, Type, Value, constant
from lamina.engines.cpu.decide.panels import PackedRight, Panel, Panels
from lamina.engines.cpu.decide.tiles import most_rows, rows_of_tiles
from lamina.engines.cpu.decide.vectors import are_short
from lamina.engines.cpu.decide.work import Work
from lamina.engines.cpu.emit.context import Context, Part, Points
from lamina.engines.cpu.emit.image import Image
from lamina.engines.cpu.emit.packing import TILE, panel_address
from lamina.program.index import Axis
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Load
from lamina.program.steps import Contraction, reads_of, writes_of
from lamina.records import frozen_dataclass
from lamina.shapes import size_of


@frozen_dataclass
class Spread:
    """Along one axis of the rows: row = scale * place + slope * element - offset.

    Attributes:
        row, place: the axes.
        element: the axis of a window's elements; missing if there is one.
    """

    row: Axis
    place: Axis
    element: Axis | None
    scale: int
    slope: int
    offset: int

    @property
    def length(self) -> int:
        """Of the sums along it, margins included."""
        elements = self.element.extent if self.element else 1
        reached = self.scale * (self.place.extent - 1) + self.slope * (elements - 1) + 1
        return max(reached, self.offset + self.row.extent)


@frozen_dataclass
class Windowed:
    """A contraction over windows, and the way in which it is made.

    Attributes:
        step: with one batch axis and one column axis.
        image: of the left operand; in the scattered way of what is spread.
        way: `"places"`, `"elements"`, `"scattered"`, `"minimal places"` or `"minimal elements"`.
        spreads: in the scattered way, for each axis of the rows but the outer ones.
    """

    step: Contraction
    image: Image
    way: str
    spreads: tuple[Spread, ...] = ()

    @property
    def packs_ahead(self) -> bool:
        """Whether every unit uses the whole right operand."""
        return self.way not in ("elements", "minimal elements")


@frozen_dataclass
class RowTiles:
    """How rows over several axes are cut into tiles.

    A tile is a part of a run along the last axis, or, where runs are short, several whole ones.

    Attributes:
        extents: of the axes.
        most: rows of a tile.
    """

    extents: tuple[int, ...]
    most: int

    @property
    def _groups(self) -> bool:
        return len(self.extents) > 1 and 2 * self.extents[-1] <= self.most

    @property
    def size(self) -> tuple[int, int]:
        """Runs and rows of each of a full tile."""
        if self._groups:
            return min(self.most // self.extents[-1], self.extents[-2]), self.extents[-1]
        return 1, rows_of_tiles(self.extents[-1], self.most)

    @property
    def _cut(self) -> tuple[int, int]:
        """Which axis is cut, and into pieces of how many."""
        runs, rows = self.size
        return (len(self.extents) - 2, runs) if self._groups else (len(self.extents) - 1, rows)

    @property
    def count(self) -> int:
        axis, piece = self._cut
        return size_of(self.extents[:axis]) * -(-self.extents[axis] // piece)

    def pitches(self, width: int) -> list[int]:
        """How far apart rows lie along each axis, if all lie one after the other."""
        return [size_of(self.extents[number + 1 :]) * width for number in range(len(self.extents))]

    def row_of(self, code: Function, tile: Value) -> Value:
        """The first row of a tile, if all lie one after the other."""
        axis, piece = self._cut
        each = constant(-(-self.extents[axis] // piece), I64)
        past = size_of(self.extents[axis + 1 :])
        runs = code.multiply(
            code.binary("udiv", tile, each), constant(self.extents[axis] * past, I64)
        )
        within = code.multiply(code.binary("urem", tile, each), constant(piece * past, I64))
        return code.add(runs, within)

    def emit(
        self,
        code: Function,
        begin: Value,
        end: Value,
        body: Callable[[tuple[int, int], list[Value]], None],
    ) -> None:
        """Calls `body(size, first coordinates)` for each size of tiles, in a loop over some."""
        axis, piece = self._cut
        full, rest = divmod(self.extents[axis], piece)
        each = constant(full + bool(rest), I64)
        loop = code.begin_loop(begin, end)
        position = code.binary("urem", loop.index, each)
        remaining = code.binary("udiv", loop.index, each)
        before: list[Value] = []
        for extent in reversed(self.extents[:axis]):
            before.insert(0, code.binary("urem", remaining, constant(extent, I64)))
            remaining = code.binary("udiv", remaining, constant(extent, I64))
        start = code.multiply(position, constant(piece, I64))
        after = [constant(0, I64)] * (len(self.extents) - 1 - axis)
        runs, rows = self.size
        for size, condition, present in ((piece, "slt", full), (rest, "eq", rest)):
            if not present:
                continue
            tile = (size, rows) if self._groups else (runs, size)
            if not (full and rest):
                body(tile, [*before, start, *after])
                continue
            with code.when(code.compare(condition, position, constant(full, I64))):
                body(tile, [*before, start, *after])
        code.end_loop(loop)


def merged(loops: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """(extent, stride) of nested loops, where neighbours that are one loop are made one."""
    merged: list[tuple[int, int]] = []
    for extent, stride in loops:
        if extent == 1:
            continue
        if merged and merged[-1][1] == extent * stride:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return tuple(merged) or ((1, 0),)


class Way(ABC):
    """Writes one contraction over windows."""

    def __init__(
        self,
        context: Context,
        name: str,
        how: Windowed,
        packed: PackedRight | None,
        panels: Panels,
    ) -> None:
        self._context = context
        self._name = name
        self._image = how.image
        self._spreads = how.spreads
        self._packed = packed
        self._panels = panels
        self._outer, of_outer = flattened(how.image.outer, "o")
        change = Rewrite(of_outer)
        self._image = replace(how.image, view=change.scalar(how.image.view))
        stores = tuple(change.store(store) for store in how.step.stores)
        self._step = replace(how.step, stores=stores)
        self._batch, self._column = how.step.batch[0], how.step.columns[0]
        self._inner_size = size_of([axis.extent for axis in how.step.inner])
        self._element = element(how.step.dtype)
        self._bytes = how.step.dtype.itemsize
        self._most = most_rows(context.processor, panels.vectors)

    @abstractmethod
    def write(self) -> list[Part]:
        """Writes the functions; gives the parts."""

    def _begin(self, name: str, numbers: Sequence[str]) -> Points:
        step = self._step
        parameters = (("table", POINTER), *((number, I64) for number in numbers))
        return self._context.begin(name, parameters, reads_of(step) | writes_of(step))

    def _part(self, units: int) -> Part:
        step, panels = self._step, self._panels
        rows = size_of([axis.extent for axis in step.rows])
        vectors = -(-panels.columns // panels.lanes)
        cycles = float(vectors * self._batch.extent * rows * self._inner_size)
        if not self._context.processor.fused:
            cycles *= 2
        reads = reads_of(step)
        if self._packed is not None:
            reads |= {self._packed.buffer}
        return Part(self._name, Work(units, cycles), reads, writes_of(step))

    def _own(self, code: Function) -> Value:
        """The thread's own memory; its number is the second parameter."""
        table, thread, *_ = code.parameters
        return self._context.workspaces.own(code, table, thread)

    def _for_panels(self, points: Points, body: Callable[[str, Panel, Value, Value], None]) -> None:
        """Calls `body(kind, panel, number, first column)` for all panels."""
        code = points.code
        full = self._panels.columns // self._panels.width
        width = constant(self._panels.width, I64)
        for kind, panel, condition, _ in self._panels.kinds():
            if condition == "slt":
                loop = code.begin_loop(0, full)
                with points.bound(TILE, loop.index, before=loop.before):
                    body(kind, panel, loop.index, code.multiply(loop.index, width))
                    code.end_loop(loop)
            else:
                number = constant(full, I64)
                body(kind, panel, number, constant(full * self._panels.width, I64))

    def _right(self, code: Function, number: Value) -> Value:
        """Where a panel of the right operand lies that was packed ahead."""
        assert self._packed is not None
        batch = code.parameters[2]
        before = code.multiply(batch, constant(self._panels.count, I64))
        number = code.add(before, number)
        return panel_address(self._context, code, self._packed, number, self._element)

    def _image_start(self, points: Points) -> Value:
        """Where a view that is read directly begins."""
        load = self._image.view
        assert isinstance(load, Load)
        return points.code.offset(
            points.base(load.buffer), points.place(load.index).start, self._element
        )

    def _write_epilogue(
        self, name: str, panel: Panel, rows: Sequence[Axis], pitches: Sequence[int]
    ) -> None:
        """`epilogue(table, sums, batch, outer, firsts.., counts.., column)`: what is stored.

        The sums of a row lie at the pitches of its axes, counted from the first one.
        """
        numbers = [f"{word}{n}" for word in ("first", "count") for n in range(len(rows))]
        parameters = (
            *(("table", POINTER), ("sums", POINTER), ("batch", I64), ("outer", I64)),
            *((number, I64) for number in (*numbers, "column")),
        )
        step = self._step
        used = reads_of(step) | writes_of(step)
        points = self._context.begin(f"{name}_epilogue", parameters, used, calling=True)
        code = points.code
        _, sums, batch, outer, *given, column = code.parameters
        firsts, counts = given[: len(rows)], given[len(rows) :]

        def store_row(source: Value) -> None:
            for first, lanes in panel.runs(wide=are_short(store.value for store in step.stores)):
                base = code.add(column, constant(first, I64))
                place = code.offset(source, first, self._element)
                with points.along(self._column, base, lanes, multiple=panel.lanes):
                    points.define(step.result, code.load(place, Type(self._element, lanes)))
                    points.store_all(step.stores)

        def nest(depth: int, source: Value) -> None:
            if depth == len(rows):
                store_row(source)
                return
            end = code.add(firsts[depth], counts[depth])
            with points.loop(rows[depth], (), firsts[depth], end) as loop:
                past = code.subtract(loop.index, firsts[depth])
                skipped = code.multiply(past, constant(pitches[depth], I64))
                nest(depth + 1, code.offset(source, skipped, self._element))
                code.end_loop(loop)

        with points.bound(self._batch, batch), points.bound(self._outer, outer):
            nest(0, sums)
        code.finish()


def divisor_near(number: int, wanted: int) -> int:
    """The largest divisor of a number that is not above the wanted one."""
    return max(one for one in range(1, max(wanted, 1) + 1) if number % one == 0)


def start_of_part(code: Function, number: Value, whole: int, parts: int) -> Value:
    """Where a part begins of a whole that is cut into parts about equally long."""
    of_all = code.multiply(number, constant(whole, I64))
    return code.binary("udiv", of_all, constant(parts, I64))


def address(code: Function, base: Value, places: Sequence[tuple[Value, int]], kind: str) -> Value:
    """The base moved by some numbers of strides."""
    for value, stride in places:
        base = code.offset(base, code.multiply(value, constant(stride, I64)), kind)
    return base


def offsets(size: tuple[int, int], strides: Sequence[int]) -> tuple[int, ...]:
    """Where the rows of a tile begin, for the strides of all axes."""
    along, across = strides[-1], strides[-2] if len(strides) > 1 else 0
    runs, rows = size
    return tuple(run * across + row * along for run in range(runs) for row in range(rows))
