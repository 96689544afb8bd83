"""Packed operands of contractions, in the order in which register tiles read them.

The right operand is packed in panels, which are contiguous along N for each k. The left operand is
packed in tiles, which are contiguous along M for each k. Both are read through their views, so
transposes, gathers, casts and padding need no additional pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lamina.codegen.builder import Builder, Module
from lamina.codegen.matrix import Matrix, as_plain
from lamina.codegen.primitives import element
from lamina.codegen.strides import stride_along
from lamina.codegen.values import I64, NUMBERS, POINTER, Type, Value, constant
from lamina.engines.simd.decide.packing import Packing, k_axes_in_memory_order
from lamina.engines.simd.decide.panels import PackedRight, Panel
from lamina.engines.simd.emit.context import ITEM_RANGE_PARAMETERS, Context, Points, WrittenKernel
from lamina.program.index import Axis, Index
from lamina.program.scalar import Load, Scalar, loads
from lamina.records import frozen_dataclass
from lamina.shapes import size_of

# The number of the current tile in a loop over tiles; no expression depends on it.
TILE = Axis("tile", 1 << 40)


@frozen_dataclass
class RightPanel:
    """A panel of a right operand, while its packing is written.

    Attributes:
        points: of the function that packs it.
        matrix: the contraction.
        packing: the order in which the operand is read.
        panel: the vectors of the panel.
        n_start: its first column.
        target: the address of the packed panel.
    """

    points: Points
    matrix: Matrix
    packing: Packing
    panel: Panel
    n_start: Value
    target: Value

    def write_all(self, count: int) -> None:
        """Packs all `count` k."""
        if not self.packing.in_memory_order:
            self.write_some(constant(0, I64), count)
        elif self.packing.transposed:
            self._transpose_in_memory_order()
        else:
            self._pack_in_memory_order(k_axes_in_memory_order(self.matrix), constant(0, I64))

    def write_some(self, start: Value, count: int) -> None:
        """Packs `count` k in the order of K, from `start` on."""
        done = count - count % self.panel.lanes if self.packing.transposed else 0
        if done:
            self._transpose(start, done)
        if done == count:
            return
        points, code = self.points, self.points.code
        first = code.add(start, constant(done, I64))
        last = code.add(start, constant(count, I64))
        with points.loop(self.matrix.k, (), first, last) as loop:
            past = code.subtract(loop.index, start)
            k_offset = code.multiply(past, constant(self.panel.width, I64))
            self._pack_k(self.matrix.right, code.offset(self.target, k_offset, self._kind))
            code.end_loop(loop)

    @property
    def _kind(self) -> str:
        return element(self.matrix.step.dtype)

    def _pack_k(self, view: Scalar, target: Value) -> None:
        """Packs the columns of the panel at the current k, read through a view of the operand."""
        points, code, panel = self.points, self.points.code, self.panel
        for number in range(panel.vectors):
            base = code.add(self.n_start, constant(number * panel.lanes, I64))
            with points.along(self.matrix.n, base, panel.present(number)):
                value = points.vector(view)
            value = code.padded(value, panel.lanes, 0)
            code.store(value, code.offset(target, number * panel.lanes, self._kind))

    def _transpose(self, start: Value, count: int) -> None:
        """Packs `count` contiguous k by register transposes."""
        code, matrix = self.points.code, self.matrix
        plain = as_plain(matrix.right, matrix.n, matrix)
        assert plain is not None
        first = self.points.indices(plain.start).start
        first = code.add(first, code.multiply(self.n_start, constant(plain.stride, I64)))
        source = code.offset(self.points.base(plain.buffer), code.add(first, start), self._kind)
        numbers = [constant(number, I64) for number in (plain.stride, self.panel.width, count)]
        self._transpose_panel(source, plain.stride, numbers, listed=False)

    def _transpose_panel(
        self, source: Value, stride: int, numbers: Sequence[Value], *, listed: bool
    ) -> None:
        """Calls `transpose` for each vector of the panel, whose first n is at `source`."""
        code, panel = self.points.code, self.panel
        vector = Type(self._kind, panel.lanes)
        for number in range(panel.vectors):
            function = _emit_transpose(code.module, vector, panel.present(number), listed=listed)
            start = code.offset(source, number * panel.lanes * stride, self._kind)
            target = code.offset(self.target, number * panel.lanes, self._kind)
            code.call_void(function, start, target, *numbers)

    def _pitches(self) -> dict[Axis, int]:
        """The stride of each axis of K, in k."""
        axes = self.matrix.k_axes
        return {
            axis: size_of([later.extent for later in axes[number + 1 :]])
            for number, axis in enumerate(axes)
        }

    def _pack_in_memory_order(self, axes: Sequence[tuple[Axis, int]], k_offset: Value) -> None:
        """Packs inside loops over some axes of K; `k_offset` is their offset in the target."""
        code = self.points.code
        if not axes:
            self._pack_k(self.matrix.right_by_axes, code.offset(self.target, k_offset, self._kind))
            return
        (axis, _), *rest = axes
        with self.points.loop(axis) as loop:
            pitch = constant(self._pitches()[axis] * self.panel.width, I64)
            skipped = code.multiply(loop.index, pitch)
            self._pack_in_memory_order(rest, code.add(k_offset, skipped))
            code.end_loop(loop)

    def _transpose_in_memory_order(self) -> None:
        """Packs all k, which are one run of memory; a table has the target offset of each."""
        code, matrix = self.points.code, self.matrix
        load = matrix.right_by_axes
        assert isinstance(load, Load)
        stride = stride_along(load.index, matrix.n)
        assert stride is not None
        ordered = [(axis, self._pitches()[axis]) for axis, _ in k_axes_in_memory_order(matrix)]
        order = [
            sum(index * pitch for index, (_, pitch) in zip(indices, ordered, strict=True))
            for indices in np.ndindex(*(axis.extent for axis, _ in ordered))
        ]
        # Operands with equal extents and pitches share the table.
        key = "_".join(f"{axis.extent}x{pitch}" for axis, pitch in ordered)
        width = self.panel.width
        table = code.module.table_once(
            f"k_offsets_{key}_{width}", [constant(k * width, I64) for k in order]
        )
        moving = {axis for axis, _ in ordered} | {matrix.n}
        terms = tuple(term for term in load.index.terms if term[0] not in moving)
        first = self.points.indices(Index(load.index.constant, terms)).start
        first = code.add(first, code.multiply(self.n_start, constant(stride, I64)))
        source = code.offset(self.points.base(load.buffer), first, self._kind)
        numbers = [constant(stride, I64), table, constant(len(order), I64)]
        self._transpose_panel(source, stride, numbers, listed=True)


def _emit_transpose(module: Module, vector: Type, present: int, *, listed: bool) -> str:
    """Writes `transpose(source, target, stride, width, count)`, once in a module; gives its name.

    It reads `present` columns of `count` elements each, at a distance of `stride`. It stores their
    first elements as a vector, their second elements as a vector `width` elements later, and so on.
    With `listed`, the parameter `width` is a table with the offset of each vector instead. Lanes
    without a column are zeros.
    """
    name = f"transpose_{'to_' if listed else ''}{vector.element}_{vector.lanes}_{present}"
    if module.has(name):
        return name
    numbers = (("stride", I64), ("width", NUMBERS if listed else I64), ("count", I64))
    code = module.function(name, (("source", POINTER), ("target", POINTER), *numbers))
    source, target, stride, width, count = code.parameters
    loop = code.begin_loop(constant(0, I64), count, vector.lanes)
    start = code.offset(source, loop.index, vector.element)
    vectors: list[Value] = []
    for lane in range(present):
        skipped = code.multiply(stride, constant(lane, I64))
        vectors.append(code.load(code.offset(start, skipped, vector.element), vector))
    vectors += [constant(0, vector)] * (vector.lanes - present)
    for number, values in enumerate(transposed(code, vectors)):
        k = code.add(loop.index, constant(number, I64))
        offset = code.picked(width, k) if listed else code.multiply(k, width)
        code.store(values, code.offset(target, offset, vector.element))
    code.end_loop(loop)
    code.finish()
    return name


def transposed(code: Builder, vectors: Sequence[Value]) -> list[Value]:
    """The columns of a square block of rows: log2(lanes) rounds of exchanging halves."""
    lanes = len(vectors)
    current = list(vectors)
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


def write_pack_left(context: Context, name: str, matrix: Matrix, tile_m: int) -> WrittenKernel:
    """A kernel that packs the left operand in tiles, contiguous along M for each k.

    Work items are (batch, tile).
    """
    reads = frozenset(load.buffer for load in loads(matrix.left))
    points = context.begin(name, ITEM_RANGE_PARAMETERS, reads)
    code = points.code
    _, _, first, last = code.parameters
    kind = element(matrix.step.dtype)
    full, rest = divmod(matrix.m.extent, tile_m)
    tiles = full + bool(rest)
    size = matrix.k.extent * tile_m
    context.need_shared(matrix.batch.extent * tiles * size * matrix.step.dtype.itemsize)
    whole = context.address(code, context.SHARED)
    loop = code.begin_loop(first, last)
    batch = code.binary("udiv", loop.index, constant(tiles, I64))
    number = code.binary("urem", loop.index, constant(tiles, I64))
    m_start = code.multiply(number, constant(tile_m, I64))
    start = code.offset(whole, code.multiply(loop.index, constant(size, I64)), kind)
    with points.bound(matrix.batch, batch):
        for condition, present, limit in (("slt", tile_m, full), ("eq", rest, full)):
            if not present or (condition == "slt" and not full):
                continue
            with (
                code.when(code.compare(condition, number, constant(limit, I64))) as before,
                points.bound(TILE, number, before=before),
                points.loop(matrix.k) as k_loop,
            ):
                with points.along(matrix.m, m_start, present):
                    value = points.vector(matrix.left)
                offset = code.multiply(k_loop.index, constant(tile_m, I64))
                code.store(value, code.offset(start, offset, kind))
                code.end_loop(k_loop)
    code.end_loop(loop)
    code.finish()
    return WrittenKernel(name, reads, frozenset([context.SHARED]))


def panel_address(
    context: Context, code: Builder, packed: PackedRight, number: Value, kind: str
) -> Value:
    """The address of a panel of a prepacked operand; panels are numbered over the whole batch."""
    size = constant(packed.k * packed.panels.width, I64)
    whole = context.address(code, packed.buffer)
    return code.offset(whole, code.multiply(number, size), kind)


class Fill(Protocol):
    """Writes the packing of a panel."""

    def write(self, points: Points, panel: Panel, n_start: Value, target: Value) -> None:
        """Packs all k of the panel whose first column is `n_start` to the address `target`."""
        ...


def write_prepacking(
    context: Context, name: str, packed: PackedRight, matrix: Matrix, fill: Fill
) -> WrittenKernel:
    """A kernel that packs a right operand as a whole; work items are (batch, panel)."""
    reads = frozenset(load.buffer for load in loads(matrix.right))
    points = context.begin(name, ITEM_RANGE_PARAMETERS, reads)
    code, kind = points.code, element(matrix.step.dtype)
    _, _, first, last = code.parameters
    loop = code.begin_loop(first, last)
    count = constant(packed.panels.count, I64)
    batch = code.binary("udiv", loop.index, count)
    number = code.binary("urem", loop.index, count)
    n_start = code.multiply(number, constant(packed.panels.width, I64))
    target = panel_address(context, code, packed, loop.index, kind)
    with points.bound(matrix.batch, batch):
        for _, panel, condition, limit in packed.panels.kinds():
            with (
                code.when(code.compare(condition, number, constant(limit, I64))) as before,
                points.bound(TILE, number, before=before),
            ):
                fill.write(points, panel, n_start, target)
    code.end_loop(loop)
    code.finish()
    return WrittenKernel(name, reads, frozenset([packed.buffer]))
