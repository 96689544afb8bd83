"""The sizes of register tiles, also of AMX, and how M, which may have several axes, is split."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
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


@frozen_dataclass
class MTiles:
    """The register tiles of M over several axes.

    A run is all rows that differ along the last axis only. A tile is a piece of a run or, if runs
    are short, several whole runs.

    Attributes:
        extents: the extents of the axes of M.
        largest: the most rows of a tile.
        pitch: the rows from the first of a run to the first of the next run, if the rows of a tile
            have one stride; 0 if they need not. Rows between runs are no rows of M.
        multiple: the runs of a tile begin at a multiple of it along the last axis but one.
    """

    extents: tuple[int, ...]
    largest: int
    pitch: int = 0
    multiple: int = 1

    @property
    def has_several_runs(self) -> bool:
        fits = len(self.extents) > 1 and self.run_pitch + self.extents[-1] <= self.largest
        return fits and self._runs > 0

    @property
    def _runs(self) -> int:
        """The runs of a full tile, if several fit."""
        fitting = (self.largest - self.extents[-1]) // self.run_pitch + 1
        all_ = self.extents[-2]
        return all_ if fitting >= all_ else fitting - fitting % self.multiple

    @property
    def size(self) -> tuple[int, int]:
        """The runs of a full tile, and the rows of each."""
        if self.has_several_runs:
            return self._runs, self.extents[-1]
        return 1, balanced_tile_m(self.extents[-1], self.largest)

    @property
    def split(self) -> tuple[int, int]:
        """The number of the axis that is split, and the length of its pieces."""
        runs, length = self.size
        if self.has_several_runs:
            return len(self.extents) - 2, runs
        return len(self.extents) - 1, length

    @property
    def count(self) -> int:
        axis, piece = self.split
        return size_of(self.extents[:axis]) * -(-self.extents[axis] // piece)

    @property
    def sizes(self) -> list[tuple[tuple[int, int], range]]:
        """The sizes of tiles, as runs and the rows of each, and the numbers of their pieces."""
        axis, piece = self.split
        full, rest = divmod(self.extents[axis], piece)
        runs, length = self.size
        return [
            ((extent, length) if self.has_several_runs else (runs, extent), numbers)
            for extent, numbers in ((piece, range(full)), (rest, range(full, full + bool(rest))))
            if numbers
        ]

    def height(self, size: tuple[int, int]) -> int:
        """The rows of a tile of a size, with those between runs."""
        runs, length = size
        return (runs - 1) * self.run_pitch + length

    @property
    def run_pitch(self) -> int:
        """The rows of a tile from the first of a run to the first of the next run."""
        return self.pitch or self.extents[-1]


def merged(loops: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """(extent, stride) of nested loops; neighbours are merged if one loop can replace them."""
    merged: list[tuple[int, int]] = []
    for extent, stride in loops:
        if extent == 1:
            continue
        if merged and merged[-1][1] == extent * stride:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return tuple(merged) or ((1, 0),)
