"""How large register tiles are."""

from __future__ import annotations

from lamina.engines.cpu.processor import Processor

# Two vectors of columns: with one, numbers would be broadcast for a single multiply-add each, and
# with more there were too few rows.
VECTORS = 2
# Innermost loops of a tile over so few K are written out.
UNROLLED = 6


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


def dot_sides(processor: Processor) -> tuple[int, int]:
    """The most rows and columns of a tile of dot products that fit the registers."""
    free = processor.registers - 1 - (0 if processor.fused else 1)
    rows = next(side for side in range(1, free) if (side + 1) * (side + 2) > free)
    columns = (free - rows) // rows
    return max(rows, columns), min(rows, columns)
