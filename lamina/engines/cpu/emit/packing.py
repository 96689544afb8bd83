"""Operands of contractions in the order in which tiles read them.

The right operand is packed in panels: some vectors of columns, for each k side by side. The left
one is packed in tiles of rows. Both are read through their views, so that transposes, gathers,
casts and padding cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lamina.codegen.llvm import Function, Module
from lamina.codegen.matrix import Matrix, Plain, as_plain
from lamina.codegen.primitives import element
from lamina.codegen.strides import stride_along
from lamina.codegen.values import I64, POINTER, Type, Value, constant
from lamina.engines.cpu.decide.panels import PackedRight, Panel
from lamina.engines.cpu.decide.work import Work
from lamina.engines.cpu.emit.context import PART_PARAMETERS, Context, Part, Points
from lamina.program.index import Axis, Index
from lamina.program.scalar import Load, Scalar, loads
from lamina.shapes import size_of

# The tile that a loop over tiles is at; no expression depends on it.
TILE = Axis("tile", 1 << 40)


def pack_panel(
    points: Points,
    matrix: Matrix,
    panel: Panel,
    target: Value,
    column: Value,
    start: Value,
    count: int,
) -> None:
    """Writes the packing of the panel from a column on, for some k from `start` on."""
    plain = as_plain(matrix.right, matrix.column, matrix)
    done = 0
    code, name = points.code, element(matrix.step.dtype)
    if plain is not None and plain.inner_stride == 1 and plain.stride != 1:
        done = count - count % panel.lanes
        if done:
            _transpose(points, matrix, plain, panel, target, column, start, done)
    if done == count:
        return
    first = code.add(start, constant(done, I64))
    last = code.add(start, constant(count, I64))
    with points.loop(matrix.inner, (), first, last) as inner:
        past = code.subtract(inner.index, start)
        row = code.offset(target, code.multiply(past, constant(panel.width, I64)), name)
        _pack_row(points, matrix, panel, matrix.right, column, row)
        code.end_loop(inner)


def _pack_row(
    points: Points, matrix: Matrix, panel: Panel, view: Scalar, column: Value, row: Value
) -> None:
    """Writes what a view of the right operand shows at the current k, from a column on."""
    code, name = points.code, element(matrix.step.dtype)
    for number in range(panel.vectors):
        lanes = panel.present(number)
        base = code.add(column, constant(number * panel.lanes, I64))
        with points.along(matrix.column, base, lanes):
            value = points.vector(view)
        value = code.padded(value, panel.lanes, 0)
        code.store(value, code.offset(row, number * panel.lanes, name))


def _transpose(
    points: Points,
    matrix: Matrix,
    plain: Plain,
    panel: Panel,
    target: Value,
    column: Value,
    start: Value,
    count: int,
) -> None:
    """The same where k lies contiguous: squares of numbers are turned in registers."""
    code, lanes, name = points.code, panel.lanes, element(matrix.step.dtype)
    first = points.place(plain.start).start
    first = code.add(first, code.multiply(column, constant(plain.stride, I64)))
    first = code.add(first, start)
    source = code.offset(points.base(plain.buffer), first, name)
    numbers = [constant(number, I64) for number in (plain.stride, panel.width, count)]
    for number in range(panel.vectors):
        turn = _emit_turn(code.module, Type(name, lanes), panel.present(number))
        columns = code.offset(source, number * lanes * plain.stride, name)
        place = code.offset(target, number * lanes, name)
        code.call_void(turn, columns, place, *numbers)


def pack_whole(
    points: Points, matrix: Matrix, panel: Panel, target: Value, column: Value, count: int
) -> None:
    """Writes the packing of all k, of which there are `count`, from a column on."""
    if _lies_otherwise(matrix):
        _pack_as_it_lies(points, matrix, panel, target, column)
    else:
        pack_panel(points, matrix, panel, target, column, constant(0, I64), count)


def _in_order(matrix: Matrix) -> list[tuple[Axis, int]]:
    """The inner axes as they lie in the right operand, the widest strides first, with these."""
    load = matrix.right_by_axes
    steps = dict(load.index.terms) if isinstance(load, Load) else {}
    pairs = [(axis, steps.get(axis, 0)) for axis in matrix.inner_axes]
    return sorted(pairs, key=lambda pair: -abs(pair[1]))


def _lies_otherwise(matrix: Matrix) -> bool:
    """Whether the inner axes lie in another order in the right operand than k has them."""
    return tuple(axis for axis, _ in _in_order(matrix)) != matrix.inner_axes


def _pack_as_it_lies(
    points: Points, matrix: Matrix, panel: Panel, target: Value, column: Value
) -> None:
    """Writes the packing of a whole panel, in the order in which the right operand lies.

    Weights of convolutions have the window's elements side by side, and k its channels: in the
    order of k every line of the cache would be fetched once for each element.
    """
    code, kind = points.code, element(matrix.step.dtype)
    ordered = _in_order(matrix)
    extents = [axis.extent for axis in matrix.inner_axes]
    pitches = {
        axis: size_of(extents[number + 1 :]) for number, axis in enumerate(matrix.inner_axes)
    }
    load = matrix.right_by_axes
    size = size_of(extents)
    stride = stride_along(load.index, matrix.column) if isinstance(load, Load) else None
    is_run = all(
        step == size_of([axis.extent for axis, _ in ordered[number + 1 :]])
        for number, (_, step) in enumerate(ordered)
    )
    whole = is_run and size % panel.lanes == 0 and stride != 1
    if isinstance(load, Load) and not load.bounds and stride is not None and whole:
        rows = [
            sum(place * pitches[axis] for place, (axis, _) in zip(places, ordered, strict=True))
            for places in np.ndindex(*(axis.extent for axis, _ in ordered))
        ]
        # The same for all operands of this form.
        said = "_".join(f"{axis.extent}x{pitches[axis]}" for axis, _ in ordered)
        table = code.module.table_once(
            f"rows_{said}_{panel.width}",
            [constant(row * panel.width, I64) for row in rows],
        )
        moving = {axis for axis, _ in ordered} | {matrix.column}
        terms = tuple(term for term in load.index.terms if term[0] not in moving)
        first = points.place(Index(load.index.constant, terms)).start
        first = code.add(first, code.multiply(column, constant(stride, I64)))
        source = code.offset(points.base(load.buffer), first, kind)
        numbers = [constant(stride, I64), table, constant(size, I64)]
        for number in range(panel.vectors):
            turn = _emit_turn(code.module, Type(kind, panel.lanes), panel.present(number), True)
            columns = code.offset(source, number * panel.lanes * stride, kind)
            code.call_void(turn, columns, code.offset(target, number * panel.lanes, kind), *numbers)
        return

    def nest(depth: int, row: Value) -> None:
        if depth < len(ordered):
            axis, _ = ordered[depth]
            with points.loop(axis) as loop:
                skipped = code.multiply(loop.index, constant(pitches[axis] * panel.width, I64))
                nest(depth + 1, code.add(row, skipped))
                code.end_loop(loop)
            return
        at = code.offset(target, row, kind)
        _pack_row(points, matrix, panel, matrix.right_by_axes, column, at)

    nest(0, constant(0, I64))


def _emit_turn(module: Module, vector: Type, present: int, listed: bool = False) -> str:
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


def write_pack_left(context: Context, name: str, matrix: Matrix, rows: int, work: Work) -> Part:
    """A part that packs the left operand: for each tile of rows the numbers of one k together."""
    reads = frozenset(load.buffer for load in loads(matrix.left))
    points = context.begin(name, PART_PARAMETERS, reads)
    code = points.code
    _, _, first, last = code.parameters
    kind = element(matrix.step.dtype)
    full, rest = divmod(matrix.row.extent, rows)
    tiles = full + bool(rest)
    size = matrix.inner.extent * rows
    context.need_shared(work.items * size * matrix.step.dtype.itemsize)
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
                points.loop(matrix.inner) as inner,
            ):
                with points.along(matrix.row, row, present):
                    value = points.vector(matrix.left)
                offset = code.multiply(inner.index, constant(rows, I64))
                code.store(value, code.offset(start, offset, kind))
                code.end_loop(inner)
    code.end_loop(loop)
    code.finish()
    return Part(name, work, reads, frozenset([context.SHARED]))


def panel_address(
    context: Context, code: Function, packed: PackedRight, number: Value, kind: str
) -> Value:
    """Where a panel of a prepacked operand begins; they are numbered through all of the batch."""
    size = constant(packed.inner * packed.panels.width, I64)
    whole = context.address(code, packed.buffer)
    return code.offset(whole, code.multiply(number, size), kind)


# Writes the packing of a panel, from a column on, to a place.
Fill = Callable[[Points, Panel, Value, Value], None]


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
                fill(points, panel, column, target)
    code.end_loop(loop)
    code.finish()
    return Part(name, packed.work(matrix.batch.extent), reads, frozenset([packed.buffer]))
