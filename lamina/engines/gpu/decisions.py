"""The schedule of each step on a device that runs kernels. This file makes all decisions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from lamina.codegen.axes import merged_axes
from lamina.engines.gpu.launches import Traits
from lamina.engines.gpu.passes import leading_reductions
from lamina.engines.gpu.products import Product
from lamina.engines.gpu.schedule import (
    NARROW,
    ContractionSchedule,
    LoopSchedule,
    PartSchedule,
    Pass,
    PassesSchedule,
    RowSchedule,
    Schedule,
    SortSchedule,
    StepSchedule,
    TiledSchedule,
    TileLoad,
    TreeSchedule,
)
from lamina.program.index import Axis, Gathered, Index
from lamina.program.program import Program
from lamina.program.scalar import Position, indices
from lamina.program.steps import (
    Contraction,
    Loop,
    Reduce,
    Sort,
    Step,
    Write,
    inner_axes,
    scalars_of,
    stores_of,
)
from lamina.program.target import Target
from lamina.shapes import size_of

# The largest register tile of a contraction without local memory.
MOST_TILE_M, MOST_TILE_N = 4, 4
# Vectors have up to 16 bytes, the widest access of GPUs.
VECTOR_BYTES = 16


def decide(program: Program, target: Target, traits: Traits) -> Schedule:
    """The schedule of a program that was compiled for a target, on a device."""
    known: dict[Step, StepSchedule] = {}
    for step in program.steps:
        if step not in known:
            known[step] = next(candidates(step, target, traits))
    return Schedule(tuple(known[step] for step in program.steps))


def candidates(step: Step, target: Target, traits: Traits) -> Iterator[StepSchedule]:
    """Schedules of a step, the one that is expected to be the fastest first."""
    bits = position_bits(step, target)
    if isinstance(step, Contraction):
        yield _direct(step, bits)
    elif any(isinstance(stage, Sort) for stage in step.stages):
        yield SortSchedule(bits)
    else:
        yield LoopSchedule(1, bits)


def legal_schedules(program: Program, target: Target, traits: Traits) -> Iterator[Schedule]:
    """Other correct schedules of a program: every kind of kernel, for each step that allows it."""
    chosen = decide(program, target, traits)
    kinds = [list(legal(step, position_bits(step, target), traits)) for step in program.steps]
    count = max(map(len, kinds), default=0)
    found: list[Schedule] = []
    for number in range(count):
        found.append(Schedule(tuple(own[number % len(own)] for own in kinds)))
    yield from (one for one in dict.fromkeys(found) if one != chosen)


def legal(step: Step, bits: int, traits: Traits) -> Iterator[StepSchedule]:
    """Correct schedules of a step: some of every kind that it allows."""
    if isinstance(step, Contraction):
        yield from _legal_contractions(step, bits, traits)
    elif any(isinstance(stage, Sort) for stage in step.stages):
        yield SortSchedule(bits)
        yield SortSchedule(64)
    else:
        yield from _legal_loops(step, bits, traits)


# Contractions


def _direct(step: Contraction, bits: int) -> ContractionSchedule:
    m, n = step.extents[1:3]
    return ContractionSchedule(max(min(m, MOST_TILE_M), 1), max(min(n, MOST_TILE_N), 1), bits)


def _legal_contractions(step: Contraction, bits: int, traits: Traits) -> Iterator[StepSchedule]:
    product_ = Product(step)
    yield _direct(step, bits)
    yield ContractionSchedule(1, 1, 64)
    yield ContractionSchedule(3, 2, bits)
    if traits.largest_group < 4:
        return
    parts = list(_legal_groups(product_, bits, traits))
    yield from parts
    for splits in _divisors(product_.k, (2, 3)):
        for part in parts[splits::4]:
            # The parts of K have other runs of neighbours.
            scalar = _without_vectors(part, product_.k // splits)
            yield PassesSchedule((Pass(1, splits, (scalar, LoopSchedule(1, bits))),))


def _legal_groups(one: Product, bits: int, traits: Traits) -> Iterator[PartSchedule]:
    """Schedules with local memory."""
    forms = (
        # tile_b, tile_m, tile_n, tile_k, item_m, item_n, buffers, unrolled, swapped
        (1, 8, 8, 4, 4, 4, 1, 2, False),
        (1, 4, 8, 3, 2, 4, 2, 3, True),
        (2, 4, 4, 8, 2, 2, 2, 8, False),
        (3, 6, 2, 2, 3, 1, 1, 2, True),
        (1, 16, 4, 16, 4, 2, 2, 16, False),
    )
    for tile_b, *rest in forms:
        swapped = bool(rest[-1])
        own = one.exchanged if swapped else one
        while own.batch % tile_b:
            tile_b -= 1
        tiled = tiled_schedule(own, tile_b, *rest[:-1], swapped=swapped, bits=bits)
        if fits(tiled, own.element_bytes, traits):
            yield tiled
    lanes = vector_lanes(one, min(one.left_runs[1], one.right_runs[1]))
    for items, results, item_m, item_n, wide, along_k in (
        *((4, 1, 1, 1, lanes, True), (2, 3, 2, 1, 1, False)),
        *((8, 2, 1, 3, 1, True), (1, 4, 2, 2, lanes, False)),
    ):
        yield TreeSchedule(items, results, item_m, item_n, wide, along_k, bits)


def _without_vectors(part: PartSchedule, k: int) -> PartSchedule:
    """The schedule without vectors along K, and for another size of K."""
    if isinstance(part, TreeSchedule):
        return replace(part, lanes=1)
    if isinstance(part, TiledSchedule):
        loads = (replace(one, lanes=1) if one.along_k else one for one in (part.left, part.right))
        left, right = loads
        return replace(part, left=left, right=right)
    return part


def tiled_schedule(
    one: Product,
    tile_b: int,
    tile_m: int,
    tile_n: int,
    tile_k: int,
    item_m: int,
    item_n: int,
    buffers: int,
    unrolled: int,
    *,
    swapped: bool,
    bits: int,
) -> TiledSchedule:
    """A tiled schedule that reads the operands of a product along their longest runs.

    Args:
        one: the product, after the exchange of its operands.
        tile_b, tile_m, tile_n, tile_k, item_m, item_n, buffers, unrolled, swapped: see
            `TiledSchedule`.
        bits: of positions.
    """
    sides = (
        _tile_load(one, one.left_runs, tile_m, tile_k),
        _tile_load(one, one.right_runs, tile_n, tile_k),
    )
    width = VECTOR_BYTES // one.element_bytes
    return TiledSchedule(
        *(swapped, tile_b, tile_m, tile_n, tile_k, item_m, item_n),
        *(*sides, buffers, unrolled, width, bits),
    )


def _tile_load(one: Product, runs: tuple[int, int], tile: int, tile_k: int) -> TileLoad:
    outer, along_k = runs
    is_along_k = along_k > outer
    run = along_k if is_along_k else outer
    lanes = vector_lanes(one, run)
    while (tile_k if is_along_k else tile) % lanes:
        lanes //= 2
    return TileLoad(is_along_k, lanes, VECTOR_BYTES // one.element_bytes if is_along_k else 0)


def vector_lanes(one: Product, run: int) -> int:
    """The lanes of vectors for runs of neighbours."""
    return min(run, VECTOR_BYTES // one.element_bytes)


def fits(tiled: TiledSchedule, element_bytes: int, traits: Traits) -> bool:
    """Whether a group of the schedule fits on the device."""
    small = tiled.group <= traits.largest_group
    return small and tiled.local_elements * element_bytes <= traits.local_bytes


def _divisors(number: int, wanted: Iterable[int]) -> list[int]:
    return [one for one in wanted if number and number % one == 0]


# Loops


def _legal_loops(loop: Loop, bits: int, traits: Traits) -> Iterator[StepSchedule]:
    yield LoopSchedule(1, bits)
    yield LoopSchedule(1, 64)
    if not all(isinstance(stage, Reduce | Write) for stage in loop.stages):
        return
    parts: list[PartSchedule] = [LoopSchedule(1, bits)]
    for lanes in _divisors(merged_extent(loop), (2, 4)):
        yield LoopSchedule(lanes, bits)
    count = size_of([axis.extent for axis in loop.axes])
    if traits.largest_group >= 8 and can_share_rows(loop):
        for items, rows in product((4, 1), (2, 1)):
            if count and count % rows == 0:
                parts.append(RowSchedule(items, rows, bits))
    yield from parts[1:]
    if not count:
        return
    for splits in _divisors(split_size(loop), (2, 3)):
        for pair in ((parts[-1], parts[0]), (parts[0], parts[-1])):
            yield PassesSchedule((Pass(len(loop.stages), splits, pair),))
    if len(loop.stages) > 1:
        one = Pass(1, 1, (LoopSchedule(1, bits),))
        yield PassesSchedule((one,) * len(loop.stages))


def merged_extent(loop: Loop) -> int:
    """The extent of a loop's last axis, after merging; 1 without axes."""
    axes = merged_axes(loop).axes
    return axes[-1].extent if axes else 1


def is_plain(loop: Loop) -> bool:
    """Whether a loop only reduces and writes, in any order of the inner axes."""
    return all(
        isinstance(stage, Reduce) or (isinstance(stage, Write) and not stage.sequential)
        for stage in loop.stages
    )


def can_share_rows(loop: Loop) -> bool:
    """Whether the work items of a group may share the work at a point."""
    return is_plain(loop) and any(inner_axes(stage) for stage in loop.stages)


def split_size(loop: Loop) -> int:
    """A number whose divisors are the possible splits of a loop's first reductions; 1 if none."""
    sizes = [size_of([axis.extent for axis in one.axes]) for one in leading_reductions(loop.stages)]
    return math.gcd(*sizes) if sizes else 1


# Positions


def position_bits(step: Step, target: Target) -> int:
    """The bits in which the positions of a step are computed."""
    return 32 if target.narrow_positions and _is_narrow(step) else 64


def _is_narrow(step: Step) -> bool:
    """Whether all positions of a step fit into 32 bits."""
    axes: Iterable[Axis]
    if isinstance(step, Contraction):
        axes = (*step.batch, *step.m, *step.n, *step.k)
    else:
        axes = (*step.axes, *(axis for stage in step.stages for axis in inner_axes(stage)))
    if size_of([max(axis.extent, 1) for axis in {*axes}]) > NARROW:
        return False
    stored = (Position(store.index) for store in stores_of(step))
    return all(map(_fits, indices(*stored, *scalars_of(step))))


def _fits(index: Index) -> bool:
    if max(map(abs, index.bounds)) > NARROW:
        return False
    inner = (atom for atom, _ in index.terms if not isinstance(atom, Axis | Gathered))
    return all(atom.divisor <= NARROW and _fits(atom.index) for atom in inner)
