"""Packed operands of contractions, in the order in which register tiles read them.

The right operand is packed in panels, which are contiguous along N for each k. The left operand is
packed in tiles, which are contiguous along M for each k, or contiguous along K as a whole. Both are
read through their views, so transposes, gathers, conversions and padding need no additional pass. A
*step* along K is one k, or a pair of them if operands are multiplied in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import bfloat16, float32
from lamina.codegen.axes import row_major_strides, stride_along
from lamina.codegen.builder import BasicBlock, Builder, Module
from lamina.codegen.matrix import Matrix, Stored, as_plain, stored
from lamina.codegen.primitives import conversion, element, from_memory, memory_element
from lamina.codegen.values import I64, NUMBERS, POINTER, Integer, Type, Value
from lamina.engines.simd.decide.packing import PackedRight, Packing, Panel, k_axes_in_memory_order
from lamina.engines.simd.emit import pairs
from lamina.engines.simd.emit.context import ITEM_RANGE_PARAMETERS, Context, Points, vectors_along
from lamina.engines.simd.processor import odd_lines
from lamina.program.index import Axis, Index
from lamina.program.scalar import Scalar, loads


@frozen_dataclass
class RightPanelWriter:
    """Writes the code that packs a panel of a right operand, from column `n_start` on.

    The packed panel is at the address `target`; `packing` is the order in which the operand is
    read.
    """

    points: Points
    matrix: Matrix
    packing: Packing
    panel: Panel
    n_start: Value
    target: Value

    @property
    def _code(self) -> Builder:
        return self.points.code

    def write_all(self, count: int) -> None:
        """Packs all `count` steps."""
        if not self.packing.in_memory_order:
            self.write_some(self._code.constant(0), count)
        elif self.packing.transposed:
            self._transpose_in_memory_order()
        else:
            offset = self._code.constant(0)
            with ExitStack() as stack:
                for axis, _ in k_axes_in_memory_order(self.matrix):
                    loop = stack.enter_context(self.points.loop(axis))
                    offset = offset + loop.index * (self._pitches[axis] * self.panel.width)
                target = self._code.offset(self.target, offset, self.matrix.element)
                self._pack_k(self.matrix.right_by_axes, target)

    def write_some(self, start: Value, count: int) -> None:
        """Packs `count` steps in the order of K, from `start` on, and zeros after the last step."""
        if isinstance(start.number, int):
            present = min(count, self.matrix.k_steps - start.number)
            self.write_zeros(present, count)
            count = present
        # The last pair of an odd K has one number only.
        is_last = start.is_integer(self.matrix.k_steps - count)
        full = count - int(self.matrix.paired and self.matrix.k.extent % 2 == 1 and is_last)
        done = full - full % self.panel.lanes if self.packing.transposed else 0
        if done:
            self._transpose(start, done)
        if done < full:
            with self._code.loop(start + done, start + full) as loop:
                k_offset = (loop.index - start) * self.panel.width
                target = self._code.offset(self.target, k_offset, self.matrix.element)
                if self.matrix.paired:
                    self._pack_pair(loop.index, target, before=loop.before)
                else:
                    with self.points.bound(self.matrix.k, loop.index, before=loop.before):
                        self._pack_k(self.matrix.right, target)
        if full < count:
            number = start + full
            target = self._code.offset(self.target, full * self.panel.width, self.matrix.element)
            self._pack_pair(number, target, single=True)

    def write_zeros(self, first: int, last: int) -> None:
        """Packs zeros from step number `first` of the target up to `last`."""
        width, lanes = self.panel.width, self.panel.lanes
        for offset in range(first * width, last * width, lanes):
            zeros = self._code.constant(0, Type(self.matrix.element, lanes))
            self._code.store(zeros, self._code.offset(self.target, offset, self.matrix.element))

    def _pack_pair(
        self,
        number: Value,
        target: Value,
        *,
        single: bool = False,
        before: BasicBlock | None = None,
    ) -> None:
        """Packs the columns of the panel at a pair of k; a `single` k is paired with zeros."""
        read = partial(pairs.numbers, self.points, self.matrix.right)
        both = pairs.at_both(
            self.points,
            self.matrix.k,
            number,
            lambda: list(self._vectors(read)),
            single=single,
            before=before,
        )
        for vector, halves in enumerate(zip(*both, strict=True)):
            self._store(vector, pairs.zipped(self._code, *halves), target)

    def _pack_k(self, view: Scalar, target: Value) -> None:
        """Packs the columns of the panel at the current k, read through a view of the operand."""
        for number, value in enumerate(self._vectors(partial(self.points.vector, view))):
            self._store(number, value, target)

    def _vectors(self, read: Callable[[], Value]) -> Iterator[Value]:
        return vectors_along(self.points, self.matrix.n, self.n_start, self.panel, read)

    def _store(self, number: int, value: Value, target: Value) -> None:
        """Stores one of the panel's vectors at the current k."""
        value = self._code.padded(value, self.panel.lanes, 0)
        offset = number * self.panel.lanes
        self._code.store(value, self._code.offset(target, offset, self.matrix.element))

    def _transpose(self, start: Value, count: int) -> None:
        """Packs `count` contiguous k by register transposes."""
        matrix = self.matrix
        plain = as_plain(matrix.right, matrix.n, matrix, below_conversions=True)
        assert plain is not None
        first = self._first(plain.start, plain.stride)
        k = start * (2 if matrix.paired else 1)
        self._transpose_panel(plain.buffer, first + k, plain.stride, self.panel.width, count)

    def _transpose_in_memory_order(self) -> None:
        """Packs all k, which are one run of memory; a table has the target offset of each."""
        matrix, width = self.matrix, self.panel.width
        view = stored(matrix.right_by_axes)
        assert view is not None
        load = view.load
        stride = stride_along(load.index, matrix.n)
        assert stride is not None
        ordered = [(axis, self._pitches[axis]) for axis, _ in k_axes_in_memory_order(matrix)]
        order = [
            sum(index * pitch for index, (_, pitch) in zip(indices, ordered, strict=True))
            for indices in np.ndindex(*(axis.extent for axis, _ in ordered))
        ]
        # Operands with equal extents and pitches share the table.
        key = "_".join(f"{axis.extent}x{pitch}" for axis, pitch in ordered)
        table = self._code.module.table_once(f"k_offsets_{key}_{width}", [k * width for k in order])
        moving = {axis for axis, _ in ordered} | {matrix.n}
        terms = tuple(term for term in load.index.terms if term[0] not in moving)
        first = self._first(Index(load.index.constant, terms), stride)
        self._transpose_panel(load.buffer, first, stride, table, len(order))

    def _first(self, start: Index, stride: int) -> Value:
        """The index of the panel's first column, along which elements are `stride` apart."""
        return self.points.indices(start).start + self.n_start * stride

    def _transpose_panel(
        self, buffer: str, first: Value, stride: int, width: Integer, count: int
    ) -> None:
        """Calls `transpose` for each vector of the panel, whose first column begins at `first`."""
        code, matrix, panel = self._code, self.matrix, self.panel
        view = stored(matrix.right)
        assert view is not None
        reading = _Reading(view, panel.lanes, matrix.paired)
        source = code.offset(self.points.base(buffer), first, reading.element)
        for number in range(panel.vectors):
            listed = isinstance(width, Value)
            function = _emit_transpose(code.module, reading, panel.present(number), listed=listed)
            start = code.offset(source, number * panel.lanes * stride, reading.element)
            target = code.offset(self.target, number * panel.lanes, self.matrix.element)
            code.call_void(function, start, target, stride, width, count)

    @property
    def _pitches(self) -> dict[Axis, int]:
        """The stride of each axis of K, in k."""
        axes = self.matrix.k_axes
        return dict(zip(axes, row_major_strides([axis.extent for axis in axes]), strict=True))


@frozen_dataclass
class _Reading:
    """How a vector along K is read from memory; its lanes may be pairs of bfloat16."""

    view: Stored
    lanes: int
    paired: bool

    @property
    def element(self) -> str:
        return memory_element(self.view.dtypes[0])

    @property
    def name(self) -> str:
        """The name in functions that read so."""
        names = (
            apply.dtype.short if apply.primitive == "cast" else apply.primitive
            for apply in self.view.conversions
        )
        ending = ["pairs"] if self.paired else []
        return "_".join([self.view.dtypes[0].short, *names, str(self.lanes), *ending])

    @property
    def type(self) -> Type:
        return Type("i32" if self.paired else element(self.view.dtypes[-1]), self.lanes)

    def read(self, code: Builder, address: Value) -> Value:
        vector = Type(self.element, self.lanes * (2 if self.paired else 1))
        value = from_memory(code, code.load(address, vector), self.view.dtypes[0])
        if self.paired and self.view.dtypes == (float32, bfloat16):
            return pairs.neighbours(code, value)
        for operation in self.view.conversions:
            value = conversion(code, operation, value)
        return pairs.neighbours(code, value) if self.paired else value


def _emit_transpose(module: Module, reading: _Reading, present: int, *, listed: bool) -> str:
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
    with code.loop(0, count, reading.lanes) as loop:
        first = loop.index * (2 if reading.paired else 1)
        start = code.offset(source, first, reading.element)
        vectors = [
            reading.read(code, code.offset(start, stride * lane, reading.element))
            for lane in range(present)
        ]
        vectors += [code.constant(0, reading.type)] * (reading.lanes - present)
        for number, values in enumerate(transposed(code, vectors)):
            k = loop.index + number
            offset = code.picked(width, k) if listed else k * width
            code.store(values, code.offset(target, offset, reading.type.element))
    return name


def transposed(code: Builder, vectors: Sequence[Value]) -> list[Value]:
    """The columns of a square block of rows: log2(lanes) rounds of exchanging halves."""
    current, lanes = list(vectors), range(len(vectors))
    distance = len(lanes) // 2
    while distance:
        low = [lane + len(lanes) - distance if lane & distance else lane for lane in lanes]
        high = [lane + len(lanes) if lane & distance else lane + distance for lane in lanes]
        for first in lanes:
            if not first & distance:
                rows = current[first], current[first + distance]
                current[first] = code.shuffle(*rows, low)
                current[first + distance] = code.shuffle(*rows, high)
        distance //= 2
    return current


def write_pack_left(context: Context, name: str, matrix: Matrix, tile_m: int) -> None:
    """Writes a kernel that packs the left operand in tiles, contiguous along M for each step.

    Work items are (batch, tile).
    """
    full, rest = divmod(matrix.m.extent, tile_m)
    count, size = full + bool(rest), matrix.k_steps * tile_m
    with _left_parts(context, name, matrix, count, size) as (points, packed, item, number):
        code = points.code
        m_start = number * tile_m
        target = code.offset(packed, item * size, matrix.element)
        for condition, present in (("slt", tile_m * bool(full)), ("eq", rest)):
            if present:
                with (
                    code.when(code.compare(condition, number, full)) as before,
                    points.inside(before),
                ):
                    _write_left_tile(points, matrix, m_start, present, tile_m, target)


@contextmanager
def _left_parts(
    context: Context, name: str, matrix: Matrix, count: int, size: int
) -> Generator[tuple[Points, Value, Value, Value]]:
    """The loop of a kernel that packs `count` parts of `size` elements for each matrix of a batch.

    Gives the address of all parts, the number of the work item, and the number of the part.
    """
    used = {load.buffer for load in loads(matrix.left)}
    points = context.begin(name, ITEM_RANGE_PARAMETERS, used)
    *_, first, last = points.code.parameters
    context.need_shared(matrix.batch.extent * count * size * Type(matrix.element).bytes)
    packed = context.address(points.code, context.SHARED)
    with points.code.loop(first, last) as loop:
        batch, number = loop.index // count, loop.index % count
        with points.bound(matrix.batch, batch):
            yield points, packed, loop.index, number


def _write_left_tile(
    points: Points, matrix: Matrix, m_start: Value, present: int, tile_m: int, target: Value
) -> None:
    """Packs all steps of `present` rows from `m_start` on, in a tile of `tile_m` rows."""
    code = points.code

    def vector() -> Value:
        with points.along(matrix.m, m_start, present):
            return pairs.numbers(points, matrix.left, paired=matrix.paired)

    def store(value: Value, step: Value) -> None:
        code.store(value, code.offset(target, step * tile_m, matrix.element))

    if not matrix.paired:
        with points.loop(matrix.k) as loop:
            store(vector(), loop.index)
        return
    full_pairs, single = divmod(matrix.k.extent, 2)
    if full_pairs:
        with code.loop(0, full_pairs) as loop:
            both = pairs.at_both(points, matrix.k, loop.index, vector, before=loop.before)
            store(pairs.zipped(code, *both), loop.index)
    if single:
        last = code.constant(full_pairs)
        store(pairs.zipped(code, *pairs.at_both(points, matrix.k, last, vector, single=True)), last)


def write_left_along_k(
    context: Context, name: str, matrix: Matrix, lanes: int, *, filled: bool
) -> None:
    """Writes a kernel that packs the left operand contiguously along K.

    Work items are (batch, m). Vectors along K have `lanes` steps. With `filled`, the last one is
    stored with zeros in place of missing steps.
    """
    stride = m_stride_along_k(matrix)
    length = lanes * (2 if matrix.paired else 1)
    full, rest = divmod(matrix.k.extent, length)
    count = matrix.m.extent
    with _left_parts(context, name, matrix, count, stride) as (points, packed, item, m):
        code = points.code

        def vector() -> Value:
            value = pairs.numbers(points, matrix.left, paired=matrix.paired)
            if not matrix.paired:
                return value
            wide = value.type.lanes + value.type.lanes % 2
            return pairs.neighbours(code, code.padded(value, wide, 0))

        target = code.offset(packed, item * stride, matrix.element)
        with points.bound(matrix.m, m):
            if full:
                with points.loop(matrix.k, lanes=length) as loop:
                    value = vector()
                    code.store(value, code.offset(target, loop.index * lanes, matrix.element))
            if rest:
                start = code.constant(full * length)
                with points.along(matrix.k, start, rest, multiple=length):
                    value = vector()
                value = code.padded(value, lanes, 0) if filled else value
                code.store(value, code.offset(target, full * lanes, matrix.element))


def m_stride_along_k(matrix: Matrix) -> int:
    """The steps between two m of such a copy, which map to different sets of the L1 cache."""
    return odd_lines(matrix.k_steps, Type(matrix.element).bytes)


def panel_address(
    context: Context, code: Builder, packed: PackedRight, number: Value, kind: str
) -> Value:
    """The address of a panel of a prepacked operand; panels are numbered over the whole batch."""
    base = context.address(code, packed.buffer)
    return code.offset(base, number * packed.panel_size, kind)
