"""Loops over the register tiles of M, and the offsets of their rows."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager

from lamina.base.shapes import size_of
from lamina.codegen.builder import Builder
from lamina.codegen.values import I64, Integer, Value, as_value
from lamina.engines.simd.decide.packing import Panels
from lamina.engines.simd.decide.tiles import MTiles


def m_start_of(tiles: MTiles, tile: Value) -> Value:
    """The number of the first row of a tile, if rows are numbered in row-major order."""
    axis, piece = tiles.split
    piece_count = -(-tiles.extents[axis] // piece)
    past = size_of(tiles.extents[axis + 1 :])
    return tile // piece_count * (tiles.extents[axis] * past) + tile % piece_count * (piece * past)


def over_tiles(
    code: Builder, tiles: MTiles, begin: Integer, end: Value
) -> Iterator[tuple[tuple[int, int], list[Value]]]:
    """Opens a loop over tiles; yields each size of a tile with its first coordinates."""
    sizes = tiles.sizes
    _, full_tiles = sizes[0]
    with code.loop(begin, end) as loop:
        pieces = range(sum(len(numbers) for _, numbers in sizes))
        number, firsts = _firsts(code, tiles, loop.index, pieces)
        if len(sizes) == 1:
            yield sizes[0][0], firsts
        else:
            for (size, _), condition in zip(sizes, ("slt", "eq"), strict=True):
                with code.when(code.compare(condition, number, full_tiles.stop)):
                    yield size, firsts


@contextmanager
def over_pieces(code: Builder, tiles: MTiles, pieces: range) -> Generator[list[Value]]:
    """A loop over the tiles of one size, given by their pieces; gives their first coordinates."""
    axis, _ = tiles.split
    with code.loop(0, size_of(tiles.extents[:axis]) * len(pieces)) as loop:
        _, firsts = _firsts(code, tiles, loop.index, pieces)
        yield firsts


def _firsts(code: Builder, tiles: MTiles, index: Value, pieces: range) -> tuple[Value, list[Value]]:
    """The number of the piece, and the first coordinates, of a tile with one of these pieces."""
    axis, piece = tiles.split
    number, remaining = index % len(pieces), index // len(pieces)
    before: list[Value] = []
    for extent in reversed(tiles.extents[:axis]):
        before.insert(0, remaining % extent)
        remaining = remaining // extent
    if pieces.start:
        number = number + pieces.start
    start = number * piece
    return number, [*before, start, *[code.constant(0)] * (len(tiles.extents) - 1 - axis)]


def address(
    code: Builder, base: Value, moves: Iterable[tuple[Integer, Integer]], kind: str
) -> Value:
    """The address `base` plus the sum of index * stride, in elements, over all moves."""
    for index, stride in moves:
        base = code.offset(base, code.multiply(index, as_value(stride, I64)), kind)
    return base


def over_kinds(code: Builder, panels: Panels, number: Value) -> Iterator[str]:
    """Branches by the kind of a panel, given by its number; yields its name."""
    for kind, _, condition, limit in panels.kinds():
        with code.when(code.compare(condition, number, limit)):
            yield kind


def offsets(size: tuple[int, int], strides: Sequence[int]) -> tuple[int, ...]:
    """The offsets of the rows of a tile, by the strides of the axes of M."""
    along = strides[-1]
    across = strides[-2] if len(strides) > 1 else 0
    runs, length = size
    return tuple(run * across + m * along for run in range(runs) for m in range(length))
