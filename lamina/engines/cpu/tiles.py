"""Micro-kernels of contractions: a tile of sums that stays in registers while k runs.

A tile is some rows by some vectors of columns. For each k one vector of the right operand is
multiplied by one broadcast number of the left one for every row: rows * vectors multiply-adds for
rows + vectors loads (the outer-product form of Goto and van de Geijn, Anatomy of high-performance
matrix multiplication, 2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.engines.cpu.ir import I64, POINTER, Function, Module, Type, Value, constant
from lamina.engines.cpu.processor import Processor


@dataclass(frozen=True)
class Tile:
    """The size of a tile, and how a kernel finds its operands.

    Attributes:
        rows: of the tile.
        vectors: of columns.
        lanes: of a vector.
        element: `"float"` or `"double"`.
        row_stride: elements between two rows of the left operand.
        left_stride: elements between two k of the left operand.
        right_stride: elements between two k of the right operand; its columns are contiguous.
        fetched: how many elements beyond what it reads of the left operand a kernel has the caches
            fetch; 0 if nothing.
    """

    rows: int
    vectors: int
    lanes: int
    element: str
    row_stride: int
    left_stride: int
    right_stride: int
    fetched: int = 0

    @property
    def name(self) -> str:
        strides = f"{self.row_stride}_{self.left_stride}_{self.right_stride}_{self.fetched}"
        return f"tile_{self.element}_{self.rows}x{self.vectors}x{self.lanes}_{strides}"


# What a processor fetches into its caches at a time, in bytes.
_LINE = 64

# Two vectors of columns: with one, numbers would be broadcast for a single multiply-add each, and
# with more there were too few rows.
VECTORS = 2


def most_rows(processor: Processor, vectors: int) -> int:
    """How many rows of a tile fit the registers beside the vectors and one broadcast number."""
    products = 0 if processor.fused else 1
    return (processor.registers - vectors - 1 - products) // vectors


def rows_of_tiles(rows: int, most: int) -> int:
    """How many rows a tile has, so that tiles of equal size cover all rows with little left."""
    if rows <= most:
        return rows
    # Each tile costs its rows and, for its start and end, about half a row more.
    sizes = range(max(most // 2, 1), most + 1)
    return min(sizes, key=lambda size: (-(-rows // size) * (size + 0.5), -size))


@dataclass(frozen=True)
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


def dot_sides(processor: Processor) -> tuple[int, int]:
    """The most rows and columns of such a tile that fit the registers."""
    free = processor.registers - 1 - (0 if processor.fused else 1)
    rows = next(side for side in range(1, free) if (side + 1) * (side + 2) > free)
    columns = (free - rows) // rows
    return max(rows, columns), min(rows, columns)


def emit_dots(module: Module, tile: Dots) -> str:
    """Writes the kernel `(left, right, sums)`, once in a module; gives its name."""
    if module.has(tile.name):
        return tile.name
    code = module.function(tile.name, (("left", POINTER), ("right", POINTER), ("sums", POINTER)))
    left, right, sums = code.parameters
    pairs = [(row, column) for row in range(tile.rows) for column in range(tile.columns)]

    def step(position: Value, lanes: int, totals: Sequence[Value]) -> list[Value]:
        """The sums after some more k."""
        kind = Type(tile.element, lanes)

        def vector(base: Value, offset: int) -> Value:
            place = code.offset(code.offset(base, position, tile.element), offset, tile.element)
            return code.padded(code.load(place, kind), tile.lanes, 0)

        columns = [vector(right, number * tile.column_stride) for number in range(tile.columns)]
        rows = [vector(left, number * tile.row_stride) for number in range(tile.rows)]
        return [
            code.multiply_add(rows[row], columns[column], total)
            for (row, column), total in zip(pairs, totals, strict=True)
        ]

    totals = [constant(0, Type(tile.element, tile.lanes)) for _ in pairs]
    whole = tile.inner - tile.inner % tile.lanes
    if whole:
        loop = code.begin_loop(0, whole, tile.lanes, totals)
        totals = list(code.end_loop(loop, step(loop.index, tile.lanes, loop.carried)))
    if whole < tile.inner:
        totals = step(constant(whole, I64), tile.inner - whole, totals)
    for row in range(tile.rows):
        of_row = totals[row * tile.columns : (row + 1) * tile.columns]
        for first in range(0, tile.columns, tile.lanes):
            place = code.offset(sums, row * tile.width + first, tile.element)
            code.store(_sums_of_lanes(code, of_row[first : first + tile.lanes]), place)
    code.finish()
    return tile.name


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
    """Writes the kernel `(left, right, k, sums)`, once in a module; gives its name.

    It adds the products of k steps to the sums, a row-major array of rows by vectors * lanes.
    """
    if module.has(tile.name):
        return tile.name
    parameters = (("left", POINTER), ("right", POINTER), ("count", I64), ("sums", POINTER))
    code = module.function(tile.name, parameters)
    left, right, count, sums = code.parameters
    vector = Type(tile.element, tile.lanes)
    width = tile.vectors * tile.lanes
    places = [
        code.offset(sums, row * width + number * tile.lanes, tile.element)
        for row in range(tile.rows)
        for number in range(tile.vectors)
    ]
    initial = [code.load(place, vector) for place in places]
    loop = code.begin_loop(0, count, 1, initial)
    offset = code.multiply(loop.index, constant(tile.right_stride, I64))
    start = code.offset(right, offset, tile.element)
    columns = [
        code.load(code.offset(start, number * tile.lanes, tile.element), vector)
        for number in range(tile.vectors)
    ]
    offset = code.multiply(loop.index, constant(tile.left_stride, I64))
    start = code.offset(left, offset, tile.element)
    if tile.fetched:
        _fetch(code, tile, code.offset(start, tile.fetched, tile.element), loop.index)
    received: list[Value] = []
    for row in range(tile.rows):
        place = code.offset(start, row * tile.row_stride, tile.element)
        number = code.splat(code.load(place, vector.scalar), tile.lanes)
        for position, column in enumerate(columns):
            total = loop.carried[row * tile.vectors + position]
            received.append(code.multiply_add(number, column, total))
    results = code.end_loop(loop, received)
    for place, result in zip(places, results, strict=True):
        code.store(result, place)
    code.finish()
    return tile.name


def _fetch(code: Function, tile: Tile, start: Value, k: Value) -> None:
    """Has the caches fetch one k of numbers, or, where rows are contiguous, lines of some rows.

    A line has many k of a row: at each k other rows have their turn.
    """
    line = _LINE // (4 if tile.element == "float" else 8)
    if tile.row_stride == 1:
        code.fetch(start, level=1)
        return
    turn = code.binary("and", k, constant(line - 1, I64))
    for first in range(0, tile.rows, line):
        row = code.add(turn, constant(first, I64))
        skipped = code.multiply(row, constant(tile.row_stride, I64))
        code.fetch(code.offset(start, skipped, tile.element), level=2)
