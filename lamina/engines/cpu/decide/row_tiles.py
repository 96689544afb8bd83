"""How rows over several axes are cut into tiles."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.engines.cpu.decide.tiles import rows_of_tiles
from lamina.records import frozen_dataclass
from lamina.shapes import size_of


@frozen_dataclass
class RowTiles:
    """Rows over several axes, in tiles.

    A tile is a part of a run along the last axis, or, where runs are short, several whole ones.

    Attributes:
        extents: of the axes.
        most: rows of a tile.
    """

    extents: tuple[int, ...]
    most: int

    @property
    def groups(self) -> bool:
        """Whether a tile has several runs."""
        return len(self.extents) > 1 and 2 * self.extents[-1] <= self.most

    @property
    def size(self) -> tuple[int, int]:
        """Runs and rows of each of a full tile."""
        if self.groups:
            return min(self.most // self.extents[-1], self.extents[-2]), self.extents[-1]
        return 1, rows_of_tiles(self.extents[-1], self.most)

    @property
    def cut(self) -> tuple[int, int]:
        """Which axis is cut, and into pieces of how many."""
        runs, rows = self.size
        return (len(self.extents) - 2, runs) if self.groups else (len(self.extents) - 1, rows)

    @property
    def count(self) -> int:
        axis, piece = self.cut
        return size_of(self.extents[:axis]) * -(-self.extents[axis] // piece)

    def pitches(self, width: int) -> list[int]:
        """How far apart rows lie along each axis, if all lie one after the other."""
        return [size_of(self.extents[number + 1 :]) * width for number in range(len(self.extents))]


def merged(loops: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """(extent, stride) of nested loops, where neighbours that are one loop are made one."""
    merged: list[tuple[int, int]] = []
    for extent, stride in loops:
        if extent == 1:
            continue
        if merged and merged[-1][1] == extent * stride:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return tuple(merged) or ((1, 0),)
