"""Micro-kernels of contractions: a register tile of sums, updated for each k.

A tile is `tile_m` rows by some vectors along N. For each k every vector of the right operand is
multiplied by a broadcast element of the left operand for every row: tile_m * vectors multiply-adds
for tile_m + vectors loads (the outer-product form of Goto and van de Geijn, Anatomy of
high-performance matrix multiplication, 2008).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
from lamina.codegen.blocks import Bound, Carried, blocks_of, write_sums
from lamina.codegen.builder import Builder, Module
from lamina.codegen.points import Points
from lamina.codegen.values import Type, Value
from lamina.engines.simd.emit.context import parameters
from lamina.engines.simd.processor import LINE_BYTES

# The most products that a tile adds up before it adds them to its sums.
MOST_TERMS = 2048
# With fewer products it begins with the sums, which saves an addition.
_FEW_TERMS = 32


@frozen_dataclass
class Tile:
    """A register tile, and the layout of its operands; all strides are in elements.

    Attributes:
        left: the offset of each row of the left operand.
        sums: the offset of each row of the sums, which are contiguous along N.
        vectors: the vectors of a row.
        lanes: the lanes of a vector.
        last_lanes: the lanes of the last vector; fewer lanes are faster on processors that split
            wide vectors into narrow ones.
        element: the type `"float"` or `"double"`.
        loops: the loops over k, outermost first, as (extent, stride in the left operand). With
            extent 0 the caller passes the extent. In the right operand all k are one run.
        right_stride: the stride along K of the right operand, which is contiguous along N.
        unrolled: the largest extent of an innermost loop that is unrolled, if the extent is known.
        fresh: whether sums begin at zero; otherwise the products are added to the sums in memory.
        prefetch: the prefetch distance of the left operand; 0 for no prefetch.
        paired: whether operands are pairs of bfloat16 along k. A pair counts as one k, and in the
            right operand as one element; the strides of the left operand count bfloat16.
    """

    left: tuple[int, ...]
    sums: tuple[int, ...]
    vectors: int
    lanes: int
    last_lanes: int
    element: str
    loops: tuple[tuple[int, int], ...]
    right_stride: int
    unrolled: int = 0
    fresh: bool = False
    prefetch: int = 0
    paired: bool = False

    @property
    def operand(self) -> str:
        """The element of the right operand, and what is broadcast of the left one."""
        return "i32" if self.paired else self.element

    @property
    def of_left(self) -> str:
        """The element of the left operand."""
        return "i16" if self.paired else self.element

    @property
    def name(self) -> str:
        """The function's name: the same for equal tiles, with a hash of all fields."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:12]
        return f"tile_{self.element}_{len(self.left)}x{self.vectors}x{self.lanes}_{digest}"

    @property
    def is_long(self) -> bool:
        """Whether so many products are added up that they should not begin with the sums."""
        extents = [extent for extent, _ in self.loops]
        return 0 in extents or size_of(extents) >= _FEW_TERMS

    def vector(self, number: int) -> Type:
        """The type of one of the vectors of sums."""
        return Type(self.element, self.last_lanes if number == self.vectors - 1 else self.lanes)


@frozen_dataclass
class Dots:
    """A register tile of dot products along K, for operands that are contiguous along K.

    Attributes:
        m, n: the rows and columns of the tile.
        lanes: the lanes of a vector, which runs along K.
        element: the type `"float"` or `"double"`.
        k: the extent of K.
        m_stride, n_stride: the elements between two rows of the left operand, and between two
            columns of the right one.
        width: the elements between two rows of the sums.
        paired: whether operands are bfloat16, multiplied in pairs along K. `k` counts pairs then,
            and the strides count bfloat16.
    """

    m: int
    n: int
    lanes: int
    element: str
    k: int
    m_stride: int
    n_stride: int
    width: int
    paired: bool = False

    @property
    def name(self) -> str:
        size = f"{self.m}x{self.n}x{self.lanes}_{self.k}"
        kind = "pairs" if self.paired else self.element
        return f"dots_{kind}_{size}_{self.m_stride}_{self.n_stride}_{self.width}"


def emit_dots(module: Module, tile: Dots) -> str:
    """Writes the kernel `(left, right, sums)`, once in a module; gives its name."""
    if module.has(tile.name):
        return tile.name
    code = module.function(tile.name, parameters("left right sums"))
    left, right, sums = code.parameters
    element, step = ("i32", "i16") if tile.paired else (tile.element, tile.element)
    multiply = code.multiply_add_pairs if tile.paired else code.multiply_add

    def vectors(base: Value, count: int, stride: int, k_start: Value, lanes: int) -> list[Value]:
        """`lanes` k of each row of the left operand, or of each column of the right one."""
        loaded: list[Value] = []
        for number in range(count):
            source = code.offset(code.offset(base, k_start, element), number * stride, step)
            vector = code.load(source, Type(element, lanes), Type(step).bytes)
            loaded.append(code.padded(vector, tile.lanes, 0))
        return loaded

    def added(k_start: Value, lanes: int, totals: Carried) -> Carried:
        """The sums with the products of `lanes` more k."""
        of_right = vectors(right, tile.n, tile.n_stride, k_start, lanes)
        of_left = vectors(left, tile.m, tile.m_stride, k_start, lanes)
        factors = product(of_left, of_right)
        return tuple(multiply(a, b, total) for (a, b), total in zip(factors, totals, strict=True))

    def loop(start: Bound, stop: Bound, most: int, received: Carried) -> Carried:
        opened = code.begin_loop(start, stop, tile.lanes, received, most=most)
        return code.end_loop(opened, added(opened.index, tile.lanes, opened.carried))

    totals = (code.constant(0, Type(tile.element, tile.lanes)),) * (tile.m * tile.n)
    full, rest = divmod(tile.k, tile.lanes)
    if full:
        blocks = blocks_of(full, 2 if tile.paired else 1)
        totals = write_sums(Points(code, {}, {}), blocks, full, totals, loop, tile.lanes)
    if rest:
        totals = added(code.constant(full * tile.lanes), rest, totals)
    for m in range(tile.m):
        of_m = totals[m * tile.n : (m + 1) * tile.n]
        for first in range(0, tile.n, tile.lanes):
            target = code.offset(sums, m * tile.width + first, tile.element)
            code.store(_sums_of_lanes(code, of_m[first : first + tile.lanes]), target)
    return tile.name


def _sums_of_lanes(code: Builder, vectors: Sequence[Value]) -> Value:
    """One vector with the sum of the lanes of each of the vectors.

    Neighbouring lanes of two vectors are added at once. There are at most as many vectors as lanes.
    """
    count, current = len(vectors), list(vectors)
    lanes = remaining = current[0].type.lanes
    evens, odds = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
    while remaining > 1:
        if len(current) % 2:
            current.append(current[-1])
        current = [
            code.shuffle(first, second, evens) + code.shuffle(first, second, odds)
            for first, second in zip(current[::2], current[1::2], strict=True)
        ]
        remaining //= 2
    return code.shuffle(current[0], None, range(count))


def call_tile(
    code: Builder, tile: Tile, left: Value, right: Value, sums: Value, iterations: int = 0
) -> None:
    """Calls the micro-kernel of a tile; a long K is added up in pieces.

    `iterations` counts the outermost loop; by default it is the loop's extent, a constant in the
    micro-kernel.
    """
    (extent, left_step), *deeper = tile.loops
    k = size_of([inner_extent for inner_extent, _ in deeper])
    most = max(MOST_TERMS // (2 * k if tile.paired else k), 1)
    iterations = iterations or extent
    if extent > most:
        tile = replace(tile, loops=((0, left_step), *deeper))
    counts = () if tile.loops[0][0] else (min(most, iterations),)
    code.call_void(emit_tile(code.module, tile), left, right, sums, *counts)
    if iterations > most:
        kernel = emit_tile(code.module, replace(tile, fresh=False))
        with code.loop(most, iterations, most) as loop:
            left = code.offset(left, loop.index * left_step, tile.of_left)
            right = code.offset(right, loop.index * (k * tile.right_stride), tile.operand)
            count = iterations - loop.index
            code.call_void(kernel, left, right, sums, code.minimum(count, most))


def emit_tile(module: Module, tile: Tile) -> str:
    """Writes the kernel `(left, right, sums, counts...)`, once in a module; gives its name.

    It adds the products of all k to the sums. It has a count for each loop without an extent.
    """
    if module.has(tile.name):
        return tile.name
    code, counts = begun_kernel(module, tile.name, tile.loops)
    left, right, sums, *_ = code.parameters
    targets = [
        (code.offset(sums, m_offset + number * tile.lanes, tile.element), tile.vector(number))
        for m_offset in tile.sums
        for number in range(tile.vectors)
    ]
    added_later = tile.is_long and not tile.fresh
    starts = [
        code.constant(0, vector) if tile.fresh or added_later else code.load(target, vector)
        for target, vector in targets
    ]

    def advanced(start: Value, iteration: Value, step: Value) -> Value:
        """The address in the right operand at an iteration of a loop."""
        if iteration.is_integer(0):
            return start
        return code.offset(start, iteration * step, tile.element)

    def over(depth: int, left: Value, right: Value, totals: Sequence[Value]) -> Sequence[Value]:
        """The totals after all iterations of the loops from some depth on."""
        if depth == len(tile.loops):
            return _products(code, tile, left, right, totals)
        extent, left_step = tile.loops[depth]
        right_step = code.constant(tile.right_stride)
        for number in range(depth + 1, len(tile.loops)):
            right_step = right_step * (tile.loops[number][0] or counts[number])
        if 0 < extent <= tile.unrolled and depth == len(tile.loops) - 1:
            for iteration in range(extent):
                left_here = code.offset(left, iteration * left_step, tile.of_left)
                right_here = advanced(right, code.constant(iteration), right_step)
                totals = over(depth + 1, left_here, right_here, totals)
            return totals
        loop = code.begin_loop(0, counts.get(depth) or code.constant(extent), 1, totals)
        left_here = code.offset(left, loop.index * left_step, tile.of_left)
        if tile.prefetch and depth == len(tile.loops) - 1:
            _prefetch(code, tile, code.offset(left_here, tile.prefetch, tile.of_left), loop.index)
        right_here = advanced(right, loop.index, right_step)
        return code.end_loop(loop, over(depth + 1, left_here, right_here, loop.carried))

    totals = over(0, left, right, starts)
    for (target, vector), total in zip(targets, totals, strict=True):
        if added_later:
            total = code.load(target, vector) + total
        code.store(total, target)
    return tile.name


def begun_kernel(
    module: Module, name: str, loops: Sequence[tuple[int, int]]
) -> tuple[Builder, dict[int, Value]]:
    """A kernel `(left, right, sums, counts...)`, with a count for each loop without an extent."""
    open_loops = [number for number, (extent, _) in enumerate(loops) if not extent]
    counts = " ".join(f"count{number}" for number in open_loops)
    code = module.function(name, parameters("left right sums", counts))
    return code, dict(zip(open_loops, code.parameters[3:], strict=True))


def _products(
    code: Builder, tile: Tile, left: Value, right: Value, totals: Sequence[Value]
) -> list[Value]:
    """The totals after one k."""
    vectors: list[Value] = []
    for number in range(tile.vectors):
        source = code.offset(right, number * tile.lanes, tile.operand)
        vectors.append(code.load(source, tile.vector(number).of(tile.operand)))
    multiply = code.multiply_add_pairs if tile.paired else code.multiply_add
    received: list[Value] = []
    for m, skipped in enumerate(tile.left):
        source = code.offset(left, skipped, tile.of_left)
        # Pairs in the operand's own buffer are aligned to bfloat16.
        scalar = code.load(source, Type(tile.operand), 2 if tile.paired else 0)
        sizes = (tile.lanes, tile.last_lanes)
        broadcast = {lanes: code.splat(scalar, lanes) for lanes in sizes}
        for number, vector in enumerate(vectors):
            total = totals[m * tile.vectors + number]
            received.append(multiply(broadcast[vector.type.lanes], vector, total))
    return received


def _prefetch(code: Builder, tile: Tile, start: Value, k: Value) -> None:
    """Prefetches the left operand.

    Along M that is one k of all rows. Along K a cache line holds many k of a row, so each k
    prefetches the lines of other rows.
    """
    line = LINE_BYTES // (4 if tile.element == "float" else 8)
    step = 2 if tile.paired else 1
    m_stride = tile.left[1] - tile.left[0] if len(tile.left) > 1 else step
    if m_stride == step:
        code.prefetch(start, level=1)
        return
    within_line = k & (line - 1)
    for first in range(0, len(tile.left), line):
        skipped = (within_line + first) * m_stride
        code.prefetch(code.offset(start, skipped, tile.of_left), level=2)
