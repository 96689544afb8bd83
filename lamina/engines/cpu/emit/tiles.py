"""Micro-kernels of contractions: a tile of sums that stays in registers while k runs.

A tile is some rows by some vectors of columns. For each k one vector of the right operand is
multiplied by one broadcast number of the left one for every row: rows * vectors multiply-adds for
rows + vectors loads (the outer-product form of Goto and van de Geijn, Anatomy of high-performance
matrix multiplication, 2008).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from lamina.codegen.llvm import Function, Module
from lamina.codegen.values import I64, POINTER, Type, Value, constant
from lamina.engines.cpu.processor import LINE_BYTES
from lamina.records import frozen_dataclass


@frozen_dataclass
class Tile:
    """A tile of sums, and how a kernel finds its operands.

    Attributes:
        rows: where each row of the left operand begins, in elements.
        sums: the same of the sums, whose columns are contiguous.
        vectors: of columns.
        lanes: of a vector.
        last: of the last one, which may have fewer: processors that make wide vectors of narrow
            ones are then done sooner.
        element: `"float"` or `"double"`.
        loops: over k, outermost first: how often, and elements between two k of the left operand.
            0 says that the caller gives the number; k is contiguous in the right operand.
        right_stride: elements between two k of the right operand; its columns are contiguous.
        unrolled: the innermost loop is written out if it has so few k, and their number is known.
        fresh: whether sums begin at zero, and not with what is there.
        fetched: how many elements beyond what it reads of the left operand a kernel has the caches
            fetch; 0 if nothing.
    """

    rows: tuple[int, ...]
    sums: tuple[int, ...]
    vectors: int
    lanes: int
    last: int
    element: str
    loops: tuple[tuple[int, int], ...]
    right_stride: int
    unrolled: int = 0
    fresh: bool = False
    fetched: int = 0

    @property
    def name(self) -> str:
        """The same for equal tiles; nobody reads all that there is to say."""
        said = hashlib.sha256(repr(self).encode()).hexdigest()[:12]
        return f"tile_{self.element}_{len(self.rows)}x{self.vectors}x{self.lanes}_{said}"

    def vector(self, number: int) -> Type:
        """The type of one of the vectors."""
        return Type(self.element, self.last if number == self.vectors - 1 else self.lanes)


@frozen_dataclass
class Dots:
    """A tile whose sums run along k in the lanes, for operands that lie contiguous along k.

    Attributes:
        rows, columns: of the tile.
        lanes: of a vector.
        element: `"float"` or `"double"`.
        inner: the extent of k.
        row_stride, column_stride: elements between two rows and two columns of the operands.
        width: elements between two rows of the sums.
    """

    rows: int
    columns: int
    lanes: int
    element: str
    inner: int
    row_stride: int
    column_stride: int
    width: int

    @property
    def name(self) -> str:
        size = f"{self.rows}x{self.columns}x{self.lanes}_{self.inner}"
        return f"dots_{self.element}_{size}_{self.row_stride}_{self.column_stride}_{self.width}"


def emit_dots(module: Module, tile: Dots) -> str:
    """Writes the kernel `(left, right, sums)`, once in a module; gives its name."""
    if module.has(tile.name):
        return tile.name
    code = module.function(tile.name, (("left", POINTER), ("right", POINTER), ("sums", POINTER)))
    left, right, sums = code.parameters
    dots = _DotKernel(code, tile, left, right)
    totals = [constant(0, Type(tile.element, tile.lanes)) for _ in range(tile.rows * tile.columns)]
    whole = tile.inner - tile.inner % tile.lanes
    if whole:
        loop = code.begin_loop(0, whole, tile.lanes, totals)
        totals = list(code.end_loop(loop, dots.added(loop.index, tile.lanes, loop.carried)))
    if whole < tile.inner:
        totals = dots.added(constant(whole, I64), tile.inner - whole, totals)
    for row in range(tile.rows):
        of_row = totals[row * tile.columns : (row + 1) * tile.columns]
        for first in range(0, tile.columns, tile.lanes):
            place = code.offset(sums, row * tile.width + first, tile.element)
            code.store(_sums_of_lanes(code, of_row[first : first + tile.lanes]), place)
    code.finish()
    return tile.name


@frozen_dataclass
class _DotKernel:
    """A tile of dot products, while its kernel is written.

    Attributes:
        code: of the kernel.
        tile: which one.
        left, right: where the operands begin.
    """

    code: Function
    tile: Dots
    left: Value
    right: Value

    def added(self, position: Value, lanes: int, totals: Sequence[Value]) -> list[Value]:
        """The sums after some more k, from a position on."""
        tile = self.tile
        columns = self._vectors(self.right, tile.columns, tile.column_stride, position, lanes)
        rows = self._vectors(self.left, tile.rows, tile.row_stride, position, lanes)
        pairs = ((row, column) for row in rows for column in columns)
        return [
            self.code.multiply_add(row, column, total)
            for (row, column), total in zip(pairs, totals, strict=True)
        ]

    def _vectors(
        self, base: Value, count: int, stride: int, position: Value, lanes: int
    ) -> list[Value]:
        """Some k of each row of the left operand, or of each column of the right one."""
        code, tile = self.code, self.tile
        found: list[Value] = []
        for number in range(count):
            place = code.offset(base, position, tile.element)
            place = code.offset(place, number * stride, tile.element)
            vector = code.load(place, Type(tile.element, lanes))
            found.append(code.padded(vector, tile.lanes, 0))
        return found


def _sums_of_lanes(code: Function, vectors: Sequence[Value]) -> Value:
    """One vector with the sum of the lanes of each: neighbours are added, of two at once.

    There are at most as many vectors as lanes.
    """
    count, current = len(vectors), list(vectors)
    lanes = current[0].type.lanes
    evens, odds = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
    remaining = lanes
    while remaining > 1:
        if len(current) % 2:
            current.append(current[-1])
        current = [
            code.add(code.shuffle(one, other, evens), code.shuffle(one, other, odds))
            for one, other in zip(current[::2], current[1::2], strict=True)
        ]
        remaining //= 2
    return code.shuffle(current[0], None, range(count))


def emit_tile(module: Module, tile: Tile) -> str:
    """Writes the kernel `(left, right, sums, counts...)`, once in a module; gives its name.

    It adds the products of all k to the sums. There is a count for each loop that has none itself.
    """
    if module.has(tile.name):
        return tile.name
    open_loops = [number for number, (extent, _) in enumerate(tile.loops) if not extent]
    code = module.function(
        tile.name,
        (
            *(("left", POINTER), ("right", POINTER), ("sums", POINTER)),
            *((f"count{number}", I64) for number in open_loops),
        ),
    )
    left, right, sums, *given = code.parameters
    counts = dict(zip(open_loops, given, strict=True))
    places = [
        (code.offset(sums, row + number * tile.lanes, tile.element), tile.vector(number))
        for row in tile.sums
        for number in range(tile.vectors)
    ]
    totals: Sequence[Value] = [
        constant(0, vector) if tile.fresh else code.load(place, vector) for place, vector in places
    ]
    kernel = _Kernel(code, tile, counts)
    totals = kernel.over(0, left, right, totals)
    for (place, _), total in zip(places, totals, strict=True):
        code.store(total, place)
    code.finish()
    return tile.name


class _Kernel:
    """Writes the loops over k."""

    def __init__(self, code: Function, tile: Tile, counts: Mapping[int, Value]) -> None:
        self._code = code
        self._tile = tile
        self._counts = counts

    def over(
        self, depth: int, left: Value, right: Value, totals: Sequence[Value]
    ) -> Sequence[Value]:
        """The totals after all turns of the loops from some depth on."""
        code, tile = self._code, self._tile
        if depth == len(tile.loops):
            return self._products(left, right, totals)
        extent, left_step = tile.loops[depth]
        right_step = self._right_step(depth)
        if 0 < extent <= tile.unrolled and depth == len(tile.loops) - 1:
            for turn in range(extent):
                one = code.offset(left, turn * left_step, tile.element)
                another = self._ahead(right, constant(turn, I64), right_step)
                totals = self.over(depth + 1, one, another, totals)
            return totals
        count = self._counts.get(depth) or constant(extent, I64)
        loop = code.begin_loop(constant(0, I64), count, 1, totals)
        skipped = code.multiply(loop.index, constant(left_step, I64))
        one = code.offset(left, skipped, tile.element)
        if tile.fetched and depth == len(tile.loops) - 1:
            _fetch(code, tile, code.offset(one, tile.fetched, tile.element), loop.index)
        another = self._ahead(right, loop.index, right_step)
        return code.end_loop(loop, self.over(depth + 1, one, another, loop.carried))

    def _right_step(self, depth: int) -> Value:
        """Elements between two turns of a loop in the right operand."""
        step = constant(self._tile.right_stride, I64)
        for number in range(depth + 1, len(self._tile.loops)):
            extent = self._tile.loops[number][0]
            turns = constant(extent, I64) if extent else self._counts[number]
            step = self._code.multiply(step, turns)
        return step

    def _ahead(self, right: Value, turn: Value, step: Value) -> Value:
        if turn.is_integer(0):
            return right
        return self._code.offset(right, self._code.multiply(turn, step), self._tile.element)

    def _products(self, left: Value, right: Value, totals: Sequence[Value]) -> list[Value]:
        """The totals after one k."""
        code, tile = self._code, self._tile
        columns = [
            code.load(code.offset(right, number * tile.lanes, tile.element), tile.vector(number))
            for number in range(tile.vectors)
        ]
        received: list[Value] = []
        for row, skipped in enumerate(tile.rows):
            place = code.offset(left, skipped, tile.element)
            number = code.load(place, Type(tile.element))
            spread = {lanes: code.splat(number, lanes) for lanes in (tile.lanes, tile.last)}
            for position, column in enumerate(columns):
                total = totals[row * tile.vectors + position]
                factor = spread[column.type.lanes]
                received.append(code.multiply_add(factor, column, total))
        return received


def _fetch(code: Function, tile: Tile, start: Value, k: Value) -> None:
    """Has the caches fetch one k of numbers, or, where rows are contiguous, lines of some rows.

    A line has many k of a row: at each k other rows have their turn.
    """
    line = LINE_BYTES // (4 if tile.element == "float" else 8)
    row_stride = tile.rows[1] - tile.rows[0] if len(tile.rows) > 1 else 1
    if row_stride == 1:
        code.prefetch(start, level=1)
        return
    turn = code.binary("and", k, constant(line - 1, I64))
    for first in range(0, len(tile.rows), line):
        row = code.add(turn, constant(first, I64))
        skipped = code.multiply(row, constant(row_stride, I64))
        code.prefetch(code.offset(start, skipped, tile.element), level=2)
