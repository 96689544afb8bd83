"""Micro-kernels of contractions: a tile of sums that stays in registers while k runs.

A tile is some rows by some vectors of columns. For each k one vector of the right operand is
multiplied by one broadcast number of the left one for every row: rows * vectors multiply-adds for
rows + vectors loads (the outer-product form of Goto and van de Geijn, Anatomy of high-performance
matrix multiplication, 2008).
"""

from __future__ import annotations

from dataclasses import dataclass

from lamina.engines.cpu.ir import I64, POINTER, Module, Type, Value, constant
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
    """

    rows: int
    vectors: int
    lanes: int
    element: str
    row_stride: int
    left_stride: int
    right_stride: int

    @property
    def name(self) -> str:
        strides = f"{self.row_stride}_{self.left_stride}_{self.right_stride}"
        return f"tile_{self.element}_{self.rows}x{self.vectors}x{self.lanes}_{strides}"


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


def emit_tile(module: Module, tile: Tile) -> str:
    """Writes the kernel `(left, right, k, sums)`, once in a module; gives its name.

    It adds the products of k steps to the sums, a row-major array of rows by vectors * lanes.
    """
    if any(function.name == tile.name for function in module.functions):
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
