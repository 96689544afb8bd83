"""Operands of contractions in the order in which tiles read them.

The right operand is packed in panels: some vectors of columns, for each k side by side. The left
one is packed in tiles of rows. Both are read through their views, so that transposes, gathers,
casts and padding cost nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lamina.codegen.llvm import Function, Module
from lamina.codegen.matrix import Matrix, as_plain
from lamina.codegen.primitives import element
from lamina.codegen.strides import stride_along
from lamina.codegen.values import I64, POINTER, Type, Value, constant
from lamina.engines.cpu.decide.packing import Packing, as_it_lies
from lamina.engines.cpu.decide.panels import PackedRight, Panel
from lamina.engines.cpu.emit.context import PART_PARAMETERS, Context, Part, Points
from lamina.program.index import Axis, Index
from lamina.program.scalar import Load, Scalar, loads
from lamina.records import frozen_dataclass
from lamina.shapes import size_of

# The tile that a loop over tiles is at; no expression depends on it.
TILE = Axis("tile", 1 << 40)


@frozen_dataclass
class RightPanel:
    """A panel of a right operand, while its packing is written.

    Attributes:
        points: where it is written.
        matrix: whose right operand it is.
        packing: in which order it is read.
        panel: its columns.
        column: the first one.
        target: where it lies when it is packed.
    """

    points: Points
    matrix: Matrix
    packing: Packing
    panel: Panel
    column: Value
    target: Value

    def write_all(self, count: int) -> None:
        """Packs all k, of which there are `count`."""
        if not self.packing.as_it_lies:
            self.write_some(constant(0, I64), count)
        elif self.packing.turned:
            self._turn_as_it_lies()
        else:
            self._rows_as_they_lie(as_it_lies(self.matrix), constant(0, I64))

    def write_some(self, start: Value, count: int) -> None:
        """Packs some k, one after the other."""
        done = count - count % self.panel.lanes if self.packing.turned else 0
        if done:
            self._turn(start, done)
        if done == count:
            return
        points, code = self.points, self.points.code
        first = code.add(start, constant(done, I64))
        last = code.add(start, constant(count, I64))
        with points.loop(self.matrix.k, (), first, last) as inner:
            past = code.subtract(inner.index, start)
            row = code.multiply(past, constant(self.panel.width, I64))
            self._row(self.matrix.right, code.offset(self.target, row, self._kind))
            code.end_loop(inner)

    @property
    def _kind(self) -> str:
        return element(self.matrix.step.dtype)

    def _row(self, view: Scalar, target: Value) -> None:
        """What a view of the operand shows at the current k."""
        points, code, panel = self.points, self.points.code, self.panel
        for number in range(panel.vectors):
            base = code.add(self.column, constant(number * panel.lanes, I64))
            with points.along(self.matrix.n, base, panel.present(number)):
                value = points.vector(view)
            value = code.padded(value, panel.lanes, 0)
            code.store(value, code.offset(target, number * panel.lanes, self._kind))

    def _turn(self, start: Value, count: int) -> None:
        """Some k that lie side by side."""
        code, matrix = self.points.code, self.matrix
        plain = as_plain(matrix.right, matrix.n, matrix)
        assert plain is not None
        first = self.points.indices(plain.start).start
        first = code.add(first, code.multiply(self.column, constant(plain.stride, I64)))
        source = code.offset(self.points.base(plain.buffer), code.add(first, start), self._kind)
        numbers = [constant(number, I64) for number in (plain.stride, self.panel.width, count)]
        self._turn_columns(source, plain.stride, numbers, listed=False)

    def _turn_columns(
        self, source: Value, stride: int, numbers: Sequence[Value], *, listed: bool
    ) -> None:
        """Calls `turn` with the columns of each vector, which begin at the source."""
        code, panel = self.points.code, self.panel
        vector = Type(self._kind, panel.lanes)
        for number in range(panel.vectors):
            turn = _emit_turn(code.module, vector, panel.present(number), listed=listed)
            columns = code.offset(source, number * panel.lanes * stride, self._kind)
            place = code.offset(self.target, number * panel.lanes, self._kind)
            code.call_void(turn, columns, place, *numbers)

    def _pitches(self) -> dict[Axis, int]:
        """How far apart the points of each inner axis are, counted in k."""
        axes = self.matrix.k_axes
        return {
            axis: size_of([later.extent for later in axes[number + 1 :]])
            for number, axis in enumerate(axes)
        }

    def _rows_as_they_lie(self, axes: Sequence[tuple[Axis, int]], row: Value) -> None:
        """Loops over some inner axes; what is packed inside begins at an element of the target."""
        code = self.points.code
        if not axes:
            self._row(self.matrix.right_by_axes, code.offset(self.target, row, self._kind))
            return
        (axis, _), *rest = axes
        with self.points.loop(axis) as loop:
            pitch = constant(self._pitches()[axis] * self.panel.width, I64)
            skipped = code.multiply(loop.index, pitch)
            self._rows_as_they_lie(rest, code.add(row, skipped))
            code.end_loop(loop)

    def _turn_as_it_lies(self) -> None:
        """All k, which are one run of memory; a table has the row of each."""
        code, matrix = self.points.code, self.matrix
        load = matrix.right_by_axes
        assert isinstance(load, Load)
        stride = stride_along(load.index, matrix.n)
        assert stride is not None
        ordered = [(axis, self._pitches()[axis]) for axis, _ in as_it_lies(matrix)]
        rows = [
            sum(place * pitch for place, (_, pitch) in zip(places, ordered, strict=True))
            for places in np.ndindex(*(axis.extent for axis, _ in ordered))
        ]
        # The same for all operands of this form.
        said = "_".join(f"{axis.extent}x{pitch}" for axis, pitch in ordered)
        width = self.panel.width
        table = code.module.table_once(
            f"rows_{said}_{width}", [constant(row * width, I64) for row in rows]
        )
        moving = {axis for axis, _ in ordered} | {matrix.n}
        terms = tuple(term for term in load.index.terms if term[0] not in moving)
        first = self.points.indices(Index(load.index.constant, terms)).start
        first = code.add(first, code.multiply(self.column, constant(stride, I64)))
        source = code.offset(self.points.base(load.buffer), first, self._kind)
        numbers = [constant(stride, I64), table, constant(len(rows), I64)]
        self._turn_columns(source, stride, numbers, listed=True)


def _emit_turn(module: Module, vector: Type, present: int, *, listed: bool) -> str:
    """Writes `turn(source, target, stride, width, count)`, once in a module; gives its name.

    It reads some columns that lie `stride` apart, `count` numbers of each, and writes the first
    numbers of all columns side by side, the second ones `width` further, and so on; if `listed`,
    at the places that a table has for them, which then stands in the place of the width. Columns
    that are not there are zeros.
    """
    name = f"turn_{'to_' if listed else ''}{vector.element}_{vector.lanes}_{present}"
    if module.has(name):
        return name
    numbers = (("stride", I64), ("width", POINTER if listed else I64), ("count", I64))
    code = module.function(name, (("source", POINTER), ("target", POINTER), *numbers))
    source, target, stride, width, count = code.parameters
    loop = code.begin_loop(constant(0, I64), count, vector.lanes)
    start = code.offset(source, loop.index, vector.element)
    columns: list[Value] = []
    for lane in range(present):
        skipped = code.multiply(stride, constant(lane, I64))
        columns.append(code.load(code.offset(start, skipped, vector.element), vector))
    columns += [constant(0, vector)] * (vector.lanes - present)
    for position, turned in enumerate(transposed(code, columns)):
        row = code.add(loop.index, constant(position, I64))
        if listed:
            row = code.load(code.offset(width, row, "i64"), I64)
        else:
            row = code.multiply(row, width)
        code.store(turned, code.offset(target, row, vector.element))
    code.end_loop(loop)
    code.finish()
    return name


def transposed(code: Function, rows: Sequence[Value]) -> list[Value]:
    """The columns of a square of numbers: log2(lanes) rounds of exchanging halves."""
    lanes = len(rows)
    current = list(rows)
    distance = lanes // 2
    while distance:
        following = list(current)
        for first in range(lanes):
            if first & distance:
                continue
            second = first + distance
            low = [
                lane if not lane & distance else lane - distance + lanes for lane in range(lanes)
            ]
            high = [
                lane + distance if not lane & distance else lane + lanes for lane in range(lanes)
            ]
            following[first] = code.shuffle(current[first], current[second], low)
            following[second] = code.shuffle(current[first], current[second], high)
        current = following
        distance //= 2
    return current


def write_pack_left(context: Context, name: str, matrix: Matrix, rows: int) -> Part:
    """A part that packs the left operand: for each tile of rows the numbers of one k together.

    Work items are (batch, tile).
    """
    reads = frozenset(load.buffer for load in loads(matrix.left))
    points = context.begin(name, PART_PARAMETERS, reads)
    code = points.code
    _, _, first, last = code.parameters
    kind = element(matrix.step.dtype)
    full, rest = divmod(matrix.m.extent, rows)
    tiles = full + bool(rest)
    size = matrix.k.extent * rows
    context.need_shared(matrix.batch.extent * tiles * size * matrix.step.dtype.itemsize)
    whole = context.address(code, context.SHARED)
    loop = code.begin_loop(first, last)
    batch = code.binary("udiv", loop.index, constant(tiles, I64))
    number = code.binary("urem", loop.index, constant(tiles, I64))
    row = code.multiply(number, constant(rows, I64))
    start = code.offset(whole, code.multiply(loop.index, constant(size, I64)), kind)
    with points.bound(matrix.batch, batch):
        for condition, present, limit in (("slt", rows, full), ("eq", rest, full)):
            if not present or (condition == "slt" and not full):
                continue
            with (
                code.when(code.compare(condition, number, constant(limit, I64))) as before,
                points.bound(TILE, number, before=before),
                points.loop(matrix.k) as inner,
            ):
                with points.along(matrix.m, row, present):
                    value = points.vector(matrix.left)
                offset = code.multiply(inner.index, constant(rows, I64))
                code.store(value, code.offset(start, offset, kind))
                code.end_loop(inner)
    code.end_loop(loop)
    code.finish()
    return Part(name, reads, frozenset([context.SHARED]))


def panel_address(
    context: Context, code: Function, packed: PackedRight, number: Value, kind: str
) -> Value:
    """Where a panel of a prepacked operand begins; they are numbered through all of the batch."""
    size = constant(packed.inner * packed.panels.width, I64)
    whole = context.address(code, packed.buffer)
    return code.offset(whole, code.multiply(number, size), kind)


class Fill(Protocol):
    """Writes the packing of a panel."""

    def write(self, points: Points, panel: Panel, column: Value, target: Value) -> None:
        """Packs all k of a panel, from a column on, to a place."""
        ...


def write_prepacking(
    context: Context, name: str, packed: PackedRight, matrix: Matrix, fill: Fill
) -> Part:
    """A part that packs a right operand as a whole."""
    reads = frozenset(load.buffer for load in loads(matrix.right))
    points = context.begin(name, PART_PARAMETERS, reads)
    code, kind = points.code, element(matrix.step.dtype)
    _, _, first, last = code.parameters
    loop = code.begin_loop(first, last)
    count = constant(packed.panels.count, I64)
    batch = code.binary("udiv", loop.index, count)
    number = code.binary("urem", loop.index, count)
    column = code.multiply(number, constant(packed.panels.width, I64))
    target = panel_address(context, code, packed, loop.index, kind)
    with points.bound(matrix.batch, batch):
        for _, panel, condition, limit in packed.panels.kinds():
            with (
                code.when(code.compare(condition, number, constant(limit, I64))) as before,
                points.bound(TILE, number, before=before),
            ):
                fill.write(points, panel, column, target)
    code.end_loop(loop)
    code.finish()
    return Part(name, reads, frozenset([packed.buffer]))
