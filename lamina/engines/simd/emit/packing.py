"""Packed operands of contractions, in the order in which register tiles read them.

The right operand is packed in panels, which are contiguous along N for each k. The left operand is
packed in tiles, which are contiguous along M for each k, or contiguous along K as a whole. Both are
read through their views, so transposes, gathers, conversions and padding need no additional pass. A
*step* along K is one k, or a pair of them if operands are multiplied in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import bfloat16, float32, size_of
from lamina.codegen.builder import BasicBlock, Builder, Module
from lamina.codegen.matrix import Matrix, Stored, as_plain, stored
from lamina.codegen.primitives import conversion, element, from_memory, memory_element
from lamina.codegen.strides import stride_along
from lamina.codegen.values import I64, NUMBERS, POINTER, Type, Value, constant
from lamina.engines.simd.decide.packing import Packing, k_axes_in_memory_order
from lamina.engines.simd.decide.panels import PackedRight, Panel
from lamina.engines.simd.emit import pairs
from lamina.engines.simd.emit.context import ITEM_RANGE_PARAMETERS, Context, Points, WrittenKernel
from lamina.engines.simd.processor import LINE_BYTES
from lamina.program.index import Axis, Index
from lamina.program.scalar import Scalar, loads

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
        """Packs all `count` steps."""
        if not self.packing.in_memory_order:
            self.write_some(constant(0, I64), count)
        elif self.packing.transposed:
            self._transpose_in_memory_order()
        else:
            self._pack_in_memory_order(k_axes_in_memory_order(self.matrix), constant(0, I64))

    def write_some(self, start: Value, count: int) -> None:
        """Packs `count` steps in the order of K, from `start` on, and zeros after the last step."""
        if isinstance(start.number, int):
            present = min(count, self.matrix.k_steps - start.number)
            self.write_zeros(present, count)
            count = present
        # The last pair of an odd K has one number only.
        is_last = start.is_integer(self.matrix.k_steps - count)
        whole = count - int(self.matrix.paired and self.matrix.k.extent % 2 == 1 and is_last)
        done = whole - whole % self.panel.lanes if self.packing.transposed else 0
        if done:
            self._transpose(start, done)
        code = self.points.code
        if done < whole:
            self._pack_steps(start, done, whole)
        if whole < count:
            k_offset = constant(whole * self.panel.width, I64)
            number = code.add(start, constant(whole, I64))
            self._pack_pair(number, code.offset(self.target, k_offset, self._kind), single=True)

    def write_zeros(self, first: int, last: int) -> None:
        """Packs zeros from step number `first` of the target up to `last`."""
        code, width, lanes = self.points.code, self.panel.width, self.panel.lanes
        for offset in range(first * width, last * width, lanes):
            zeros = constant(0, Type(self._kind, lanes))
            code.store(zeros, code.offset(self.target, offset, self._kind))

    def _pack_steps(self, start: Value, done: int, count: int) -> None:
        """Packs the steps from number `done` up to `count`, counted from `start`."""
        points, code = self.points, self.points.code
        first = code.add(start, constant(done, I64))
        last = code.add(start, constant(count, I64))
        loop = code.begin_loop(first, last)
        past = code.subtract(loop.index, start)
        k_offset = code.multiply(past, constant(self.panel.width, I64))
        target = code.offset(self.target, k_offset, self._kind)
        if self.matrix.paired:
            self._pack_pair(loop.index, target, before=loop.before)
        else:
            with points.bound(self.matrix.k, loop.index, before=loop.before):
                self._pack_k(self.matrix.right, target)
        code.end_loop(loop)

    def _pack_pair(
        self,
        number: Value,
        target: Value,
        *,
        single: bool = False,
        before: BasicBlock | None = None,
    ) -> None:
        """Packs the columns of the panel at a pair of k; a `single` k is paired with zeros."""
        points, code, panel = self.points, self.points.code, self.panel
        k = code.multiply(number, constant(2, I64))
        found: list[list[Value]] = []
        for offset in (0,) if single else (0, 1):
            with points.bound(self.matrix.k, code.add(k, constant(offset, I64)), before=before):
                found.append(self._vectors(self.matrix.right))
        for vector, first in enumerate(found[0]):
            pair = pairs.zipped(code, first, None if single else found[1][vector])
            pair = code.padded(pair, panel.lanes, 0)
            code.store(pair, code.offset(target, vector * panel.lanes, self._kind))

    def _vectors(self, view: Scalar) -> list[Value]:
        """The vectors of the panel at the current k, as bfloat16 or floats to be rounded."""
        points, code, panel = self.points, self.points.code, self.panel
        found: list[Value] = []
        for vector in range(panel.vectors):
            base = code.add(self.n_start, constant(vector * panel.lanes, I64))
            with points.along(self.matrix.n, base, panel.present(vector)):
                found.append(pairs.numbers(points, view))
        return found

    @property
    def _kind(self) -> str:
        return self.matrix.element

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
        plain = as_plain(matrix.right, matrix.n, matrix, below_conversions=True)
        assert plain is not None
        first = self.points.indices(plain.start).start
        first = code.add(first, code.multiply(self.n_start, constant(plain.stride, I64)))
        k = code.multiply(start, constant(2 if matrix.paired else 1, I64))
        base = self.points.base(plain.buffer)
        source = code.offset(base, code.add(first, k), self._reading.element)
        numbers = [constant(number, I64) for number in (plain.stride, self.panel.width, count)]
        self._transpose_panel(source, plain.stride, numbers, listed=False)

    @property
    def _reading(self) -> Reading:
        """How vectors along K are read."""
        view = stored(self.matrix.right)
        assert view is not None
        return Reading(view, self.panel.lanes, self.matrix.paired)

    def _transpose_panel(
        self, source: Value, stride: int, numbers: Sequence[Value], *, listed: bool
    ) -> None:
        """Calls `transpose` for each vector of the panel, whose first n is at `source`."""
        code, panel, reading = self.points.code, self.panel, self._reading
        for number in range(panel.vectors):
            function = _emit_transpose(code.module, reading, panel.present(number), listed=listed)
            start = code.offset(source, number * panel.lanes * stride, reading.element)
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
        view = stored(matrix.right_by_axes)
        assert view is not None
        load = view.load
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
        source = code.offset(self.points.base(load.buffer), first, self._reading.element)
        numbers = [constant(stride, I64), table, constant(len(order), I64)]
        self._transpose_panel(source, stride, numbers, listed=True)


@frozen_dataclass
class Reading:
    """How a vector along K is read.

    Attributes:
        view: the elements in memory, and their conversions.
        lanes: of the vector; with `paired`, pairs.
        paired: whether neighbouring elements become pairs of bfloat16.
    """

    view: Stored
    lanes: int
    paired: bool

    @property
    def element(self) -> str:
        """The element in memory."""
        return memory_element(self.view.dtypes[0])

    @property
    def name(self) -> str:
        """The name in functions that read so."""
        names = (
            one.dtype.short if one.primitive == "cast" else one.primitive
            for one in self.view.conversions
        )
        texts = [self.view.dtypes[0].short, *names]
        return "_".join([*texts, str(self.lanes), *(["pairs"] if self.paired else [])])

    @property
    def type(self) -> Type:
        """The type of the vector."""
        return Type("i32" if self.paired else element(self.view.dtypes[-1]), self.lanes)

    def read(self, code: Builder, address: Value) -> Value:
        """The vector at an address."""
        vector = Type(self.element, self.lanes * (2 if self.paired else 1))
        value = code.load(address, vector)
        value = from_memory(code, value, self.view.dtypes[0])
        if self.paired and self.view.dtypes == (float32, bfloat16):
            return pairs.neighbours(code, value)
        for one in self.view.conversions:
            value = conversion(code, one, value)
        return pairs.neighbours(code, value) if self.paired else value


def _emit_transpose(module: Module, reading: Reading, present: int, *, listed: bool) -> str:
    """Writes `transpose(source, target, stride, width, count)`, once in a module; gives its name.

    It reads `present` columns of `count` steps each, at a distance of `stride` elements. It stores
    their first steps as a vector, their second steps as a vector `width` elements later, and so on.
    With `listed`, the parameter `width` is a table with the offset of each vector instead. Lanes
    without a column are zeros.
    """
    name = f"transpose_{'to_' if listed else ''}{reading.name}_{present}"
    if module.has(name):
        return name
    numbers = (("stride", I64), ("width", NUMBERS if listed else I64), ("count", I64))
    code = module.function(name, (("source", POINTER), ("target", POINTER), *numbers))
    source, target, stride, width, count = code.parameters
    loop = code.begin_loop(constant(0, I64), count, reading.lanes)
    first = code.multiply(loop.index, constant(2 if reading.paired else 1, I64))
    start = code.offset(source, first, reading.element)
    vectors: list[Value] = []
    for lane in range(present):
        skipped = code.multiply(stride, constant(lane, I64))
        vectors.append(reading.read(code, code.offset(start, skipped, reading.element)))
    vectors += [constant(0, reading.type)] * (reading.lanes - present)
    for number, values in enumerate(transposed(code, vectors)):
        k = code.add(loop.index, constant(number, I64))
        offset = code.picked(width, k) if listed else code.multiply(k, width)
        code.store(values, code.offset(target, offset, reading.type.element))
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
    """A kernel that packs the left operand in tiles, contiguous along M for each step.

    Work items are (batch, tile).
    """
    reads = frozenset(load.buffer for load in loads(matrix.left))
    points = context.begin(name, ITEM_RANGE_PARAMETERS, reads)
    code = points.code
    _, _, first, last = code.parameters
    full, rest = divmod(matrix.m.extent, tile_m)
    tiles = full + bool(rest)
    size = matrix.k_steps * tile_m
    context.need_shared(matrix.batch.extent * tiles * size * Type(matrix.element).bytes)
    whole = context.address(code, context.SHARED)
    loop = code.begin_loop(first, last)
    batch = code.binary("udiv", loop.index, constant(tiles, I64))
    number = code.binary("urem", loop.index, constant(tiles, I64))
    m_start = code.multiply(number, constant(tile_m, I64))
    target = code.offset(whole, code.multiply(loop.index, constant(size, I64)), matrix.element)
    with points.bound(matrix.batch, batch):
        for condition, present, limit in (("slt", tile_m, full), ("eq", rest, full)):
            if not present or (condition == "slt" and not full):
                continue
            with (
                code.when(code.compare(condition, number, constant(limit, I64))) as before,
                points.bound(TILE, number, before=before),
            ):
                one = _LeftTile(points, matrix, m_start, present, tile_m, target)
                one.write()
    code.end_loop(loop)
    code.finish()
    return WrittenKernel(name, reads, frozenset([context.SHARED]))


@frozen_dataclass
class _LeftTile:
    """A tile of a left operand, while its packing is written.

    Attributes:
        points: of the function that packs it.
        matrix: the contraction.
        m_start: its first row.
        present: its rows.
        tile_m: the rows of a full tile.
        target: the address of the packed tile.
    """

    points: Points
    matrix: Matrix
    m_start: Value
    present: int
    tile_m: int
    target: Value

    def write(self) -> None:
        """Packs all steps."""
        points, code, matrix = self.points, self.points.code, self.matrix
        if not matrix.paired:
            with points.loop(matrix.k) as loop:
                self._store(self._vector(), loop.index)
                code.end_loop(loop)
            return
        whole, single = divmod(matrix.k.extent, 2)
        if whole:
            loop = code.begin_loop(0, whole)
            k = code.multiply(loop.index, constant(2, I64))
            vectors: list[Value] = []
            for offset in (0, 1):
                position = code.add(k, constant(offset, I64))
                with points.bound(matrix.k, position, before=loop.before):
                    vectors.append(self._vector())
            self._store(pairs.zipped(code, *vectors), loop.index)
            code.end_loop(loop)
        if single:
            with points.bound(matrix.k, constant(2 * whole, I64)):
                vector = self._vector()
            self._store(pairs.zipped(code, vector, None), constant(whole, I64))

    def _vector(self) -> Value:
        """All m of the tile at the current k."""
        points, matrix = self.points, self.matrix
        with points.along(matrix.m, self.m_start, self.present):
            if matrix.paired:
                return pairs.numbers(points, matrix.left)
            return points.vector(matrix.left)

    def _store(self, vector: Value, step: Value) -> None:
        code = self.points.code
        offset = code.multiply(step, constant(self.tile_m, I64))
        code.store(vector, code.offset(self.target, offset, self.matrix.element))


def write_left_along_k(
    context: Context, name: str, matrix: Matrix, lanes: int, *, filled: bool
) -> WrittenKernel:
    """A kernel that packs the left operand contiguously along K.

    Work items are (batch, m). Vectors along K have `lanes` steps. With `filled`, the last one is
    stored with zeros in place of missing steps.
    """
    reads = frozenset(load.buffer for load in loads(matrix.left))
    points = context.begin(name, ITEM_RANGE_PARAMETERS, reads)
    code = points.code
    _, _, first, last = code.parameters
    count, stride = matrix.m.extent, m_stride_along_k(matrix)
    context.need_shared(matrix.batch.extent * count * stride * Type(matrix.element).bytes)
    whole = context.address(code, context.SHARED)
    loop = code.begin_loop(first, last)
    batch = code.binary("udiv", loop.index, constant(count, I64))
    m = code.binary("urem", loop.index, constant(count, I64))
    target = code.offset(whole, code.multiply(loop.index, constant(stride, I64)), matrix.element)
    with points.bound(matrix.batch, batch), points.bound(matrix.m, m):
        _AlongK(points, matrix, lanes, target, filled).write()
    code.end_loop(loop)
    code.finish()
    return WrittenKernel(name, reads, frozenset([context.SHARED]))


def m_stride_along_k(matrix: Matrix) -> int:
    """The steps between two m of such a copy: an odd number of cache lines.

    So neighbouring m map to different sets of the L1 cache.
    """
    line = LINE_BYTES // Type(matrix.element).bytes
    return (-(-matrix.k_steps // line) | 1) * line


@frozen_dataclass
class _AlongK:
    """All k of one m of a left operand, while their packing is written.

    Attributes:
        points: of the function that packs them; m is bound.
        matrix: the contraction.
        lanes: the steps of a vector.
        target: the address to which they are packed.
        filled: whether the last vector is stored with zeros in place of missing steps.
    """

    points: Points
    matrix: Matrix
    lanes: int
    target: Value
    filled: bool

    def write(self) -> None:
        """Packs all steps."""
        points, code, matrix = self.points, self.points.code, self.matrix
        count = self.lanes * (2 if matrix.paired else 1)
        full, rest = divmod(matrix.k.extent, count)
        if full:
            with points.vectors(matrix.k, count) as loop:
                self._store(self._vector(), code.multiply(loop.index, constant(self.lanes, I64)))
                code.end_loop(loop)
        if rest:
            start = constant(full * count, I64)
            with points.along(matrix.k, start, rest, multiple=count):
                vector = self._vector()
                if self.filled:
                    vector = points.code.padded(vector, self.lanes, 0)
                self._store(vector, constant(full * self.lanes, I64))

    def _vector(self) -> Value:
        points, matrix = self.points, self.matrix
        if not matrix.paired:
            return points.vector(matrix.left)
        numbers = pairs.numbers(points, matrix.left)
        lanes = numbers.type.lanes
        return pairs.neighbours(points.code, points.code.padded(numbers, lanes + lanes % 2, 0))

    def _store(self, vector: Value, step: Value) -> None:
        code = self.points.code
        code.store(vector, code.offset(self.target, step, self.matrix.element))


def panel_address(
    context: Context, code: Builder, packed: PackedRight, number: Value, kind: str
) -> Value:
    """The address of a panel of a prepacked operand; panels are numbered over the whole batch."""
    size = constant(packed.panel_size, I64)
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
    code = points.code
    _, _, first, last = code.parameters
    loop = code.begin_loop(first, last)
    count = constant(packed.panels.count, I64)
    batch = code.binary("udiv", loop.index, count)
    number = code.binary("urem", loop.index, count)
    n_start = code.multiply(number, constant(packed.panels.width, I64))
    target = panel_address(context, code, packed, loop.index, matrix.element)
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
