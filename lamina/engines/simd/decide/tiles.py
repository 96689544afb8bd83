"""The sizes of register tiles, and of those of AMX."""

from __future__ import annotations

from lamina.engines.simd.processor import Processor

# The vectors of a tile along N. With one, each broadcast would feed a single multiply-add; with
# more than two, too few rows fit the registers.
VECTORS = 2
# Innermost loops of a tile over at most this many k are unrolled.
UNROLLED = 6
# Two by two tile registers of AMX: the rows and columns of their sums.
AMX_M, AMX_N = 32, 32
# The pairs along K of a tile register with operands. Packed operands have a multiple of it.
AMX_STEPS = 16
# The cycles of a product of tile registers for each row, with loads and a share of the epilogue: a
# guess that was never measured.
AMX_M_CYCLES = 2


def largest_tile_m(processor: Processor, vectors: int) -> int:
    """The most rows of a tile that fit the registers with `vectors` of B and one broadcast of A."""
    products = 0 if processor.fused else 1
    return (processor.registers - vectors - 1 - products) // vectors


def balanced_tile_m(m: int, largest: int) -> int:
    """The rows of a tile, at most `largest`, so that equal tiles cover `m` rows closely."""
    if m <= largest:
        return m
    # A tile costs as much as its rows, and about half a row more for its prologue and epilogue.
    sizes = range(max(largest // 2, 1), largest + 1)
    return min(sizes, key=lambda size: (-(-m // size) * (size + 0.5), -size))


def dot_tile(processor: Processor) -> tuple[int, int]:
    """The rows and columns of the largest tile of dot products that fits the registers."""
    free = processor.registers - 1 - (0 if processor.fused else 1)
    m = next(side for side in range(1, free) if (side + 1) * (side + 2) > free)
    n = (free - m) // m
    return max(m, n), min(m, n)
