"""Loops over the register tiles of M, and the offsets of their rows."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from lamina.base.shapes import size_of
from lamina.codegen.builder import Builder
from lamina.codegen.values import I64, Value, constant
from lamina.engines.simd.decide.m_tiles import MTiles


def m_start_of(code: Builder, tiles: MTiles, tile: Value) -> Value:
    """The number of the first row of a tile, if rows are numbered in row-major order."""
    axis, piece = tiles.split
    each = constant(-(-tiles.extents[axis] // piece), I64)
    past = size_of(tiles.extents[axis + 1 :])
    runs = code.multiply(code.binary("udiv", tile, each), constant(tiles.extents[axis] * past, I64))
    within = code.multiply(code.binary("urem", tile, each), constant(piece * past, I64))
    return code.add(runs, within)


def over_tiles(
    code: Builder, tiles: MTiles, begin: Value, end: Value
) -> Iterator[tuple[tuple[int, int], list[Value]]]:
    """Opens a loop over tiles; yields each size of a tile with its first coordinates."""
    sizes = tiles.sizes
    _, whole = sizes[0]
    loop = code.begin_loop(begin, end)
    number, firsts = _firsts(code, tiles, loop.index, range(sum(len(one) for _, one in sizes)))
    if len(sizes) == 1:
        yield sizes[0][0], firsts
    else:
        for (size, _), condition in zip(sizes, ("slt", "eq"), strict=True):
            with code.when(code.compare(condition, number, constant(whole.stop, I64))):
                yield size, firsts
    code.end_loop(loop)


@contextmanager
def over_pieces(code: Builder, tiles: MTiles, pieces: range) -> Generator[list[Value]]:
    """A loop over the tiles of one size, given by their pieces; gives their first coordinates."""
    axis, _ = tiles.split
    loop = code.begin_loop(0, size_of(tiles.extents[:axis]) * len(pieces))
    _, firsts = _firsts(code, tiles, loop.index, pieces)
    yield firsts
    code.end_loop(loop)


def _firsts(code: Builder, tiles: MTiles, index: Value, pieces: range) -> tuple[Value, list[Value]]:
    """The number of the piece, and the first coordinates, of a tile with one of these pieces."""
    axis, piece = tiles.split
    each = constant(len(pieces), I64)
    number = code.binary("urem", index, each)
    remaining = code.binary("udiv", index, each)
    before: list[Value] = []
    for extent in reversed(tiles.extents[:axis]):
        before.insert(0, code.binary("urem", remaining, constant(extent, I64)))
        remaining = code.binary("udiv", remaining, constant(extent, I64))
    if pieces.start:
        number = code.add(number, constant(pieces.start, I64))
    start = code.multiply(number, constant(piece, I64))
    return number, [*before, start, *[constant(0, I64)] * (len(tiles.extents) - 1 - axis)]


def start_of_piece(code: Builder, number: Value, whole: int, pieces: int) -> Value:
    """The start of piece `number` if `whole` is split into pieces of about equal length."""
    of_all = code.multiply(number, constant(whole, I64))
    return code.binary("udiv", of_all, constant(pieces, I64))


def address(
    code: Builder, base: Value, moves: Sequence[tuple[Value, int | Value]], kind: str
) -> Value:
    """The address `base` plus the sum of index * stride, in elements, over all moves."""
    for value, stride in moves:
        by = constant(stride, I64) if isinstance(stride, int) else stride
        base = code.offset(base, code.multiply(value, by), kind)
    return base


def offsets(size: tuple[int, int], strides: Sequence[int]) -> tuple[int, ...]:
    """The offsets of the rows of a tile, by the strides of the axes of M."""
    along, across = strides[-1], strides[-2] if len(strides) > 1 else 0
    runs, length = size
    return tuple(run * across + m * along for run in range(runs) for m in range(length))
