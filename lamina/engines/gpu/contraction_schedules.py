"""Schedules of contractions: which there are for a contraction, and the fastest ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product

from lamina.engines.gpu.contraction_costs import bytes_in_a_clock, contraction_cost, packed_cost
from lamina.engines.gpu.launches import Traits
from lamina.engines.gpu.loop_schedules import (
    LEAST_GROUP,
    MOST_GROUP,
    combining_schedule,
    point_schedule,
)
from lamina.engines.gpu.matrix_schedules import matrix_schedules, registers_suffice
from lamina.engines.gpu.packed_operands import gains_by_packing, packed_steps
from lamina.engines.gpu.products import Operand, Product
from lamina.engines.gpu.schedule import (
    HALF_BYTES,
    NARROW,
    PACKED,
    VECTOR_BYTES,
    WINOGRAD,
    ContractionSchedule,
    KernelSchedule,
    MatrixLoad,
    MatrixSchedule,
    Pass,
    PassesSchedule,
    StepsSchedule,
    TiledSchedule,
    TileLoad,
    TreeSchedule,
    WrittenSchedule,
)
from lamina.engines.gpu.winograd import convolution_of, winograd_steps
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.program.steps import Contraction

# The largest register tile of a contraction without local memory.
MOST_TILE_M, MOST_TILE_N = 4, 4
# The tiles that are compared: m, n, and a work item's block.
TILES = (
    *((128, 128, 8, 8), (256, 64, 8, 8), (64, 256, 8, 8), (128, 64, 8, 8), (64, 128, 8, 8)),
    *((256, 32, 8, 8), (32, 256, 8, 8), (128, 32, 8, 8), (32, 128, 8, 8), (64, 64, 8, 8)),
    *((128, 64, 8, 4), (64, 128, 4, 8), (64, 64, 4, 4)),
    *((128, 32, 8, 4), (32, 128, 4, 8), (64, 32, 4, 4), (32, 64, 4, 4), (32, 32, 4, 4)),
    *((128, 16, 4, 4), (16, 128, 4, 4), (64, 16, 4, 4), (16, 64, 4, 4), (32, 32, 2, 4)),
    *((16, 32, 2, 4), (32, 16, 2, 4), (16, 16, 2, 4), (16, 16, 1, 4), (8, 32, 1, 4)),
    *((8, 8, 1, 4), (128, 8, 4, 4), (8, 128, 4, 4)),
)
# The shortest share of K that is worth a work group of its own, and the most shares.
LEAST_SHARE, MOST_SHARES = 64, 128
# The most multiplications of a work item that are written out; and of how many of k. AMD's compiler
# keeps the operands of all that are written out in registers, until it spills them.
MOST_WRITTEN_OUT, UNROLLED = 512, 4


def contraction_schedules(
    step: Contraction, bits: int, traits: Traits
) -> Iterator[WrittenSchedule]:
    """Schedules of a contraction, the one that is expected to be the fastest first."""
    costs = costs_of_schedules(step, bits, traits)
    yield from sorted(costs, key=lambda schedule: costs[schedule])


def costs_of_schedules(
    step: Contraction, bits: int, traits: Traits
) -> Mapping[WrittenSchedule, float]:
    """The expected clocks of each schedule of a contraction."""
    gemm = Product(step)
    if not gemm.batch * gemm.m * gemm.n * gemm.k or traits.largest_group < LEAST_GROUP:
        return {direct_schedule(gemm, bits): 0.0}
    costs: dict[WrittenSchedule, float] = {
        schedule: contraction_cost(gemm, schedule, traits)
        for schedule in _unpacked(gemm, bits, traits)
    }
    costs |= winograd_schedules(step, bits, traits)
    return {**costs, **_packed(step, bits, traits)}


def _unpacked(gemm: Product, bits: int, traits: Traits) -> list[KernelSchedule | PassesSchedule]:
    """The schedules that read both operands where they are."""
    schedules: list[KernelSchedule | PassesSchedule] = [direct_schedule(gemm, bits)]
    schedules += _trees(gemm, bits, traits)
    schedules += _tiles(gemm, bits, traits)
    schedules += matrix_schedules(gemm, bits, traits)
    schedules += _split(gemm, bits, traits, schedules)
    return schedules


def _packed(step: Contraction, bits: int, traits: Traits) -> Mapping[WrittenSchedule, float]:
    """The best schedule with each operand packed, where that makes runs; and its cost.

    The caches of a processor keep the other elements of a line until they are read.
    """
    best_costs: dict[WrittenSchedule, float] = {}
    gemm = Product(step)
    for operand, way in PACKED.items():
        if traits.is_processor or not gains_by_packing(step, operand):
            continue
        packing, products = packed_steps(operand, step, StepWorkspaces(step.name))
        loop, packed = point_schedule(packing, bits, traits), Product(products)
        costs = {
            StepsSchedule(way, (loop, kernels)): packed_cost(gemm, operand, packed, kernels, traits)
            for kernels in _unpacked(packed, bits, traits)
        }
        best = min(costs, key=lambda schedule: costs[schedule])
        best_costs[best] = costs[best]
    return best_costs


def winograd_schedules(
    step: Contraction, bits: int, traits: Traits
) -> Mapping[WrittenSchedule, float]:
    """The schedule by Winograd's algorithm, and its cost; none if positions do not fit."""
    if convolution_of(step) is None:
        return {}
    workspaces = StepWorkspaces(step.name)
    weights, data, products, results = winograd_steps(step, workspaces)
    sizes = [workspace.size for workspace in workspaces.made]
    if max(sizes) > NARROW:
        return {}
    loops = [point_schedule(loop, bits, traits) for loop in (weights, data, results)]
    schedules = contraction_schedules(products, bits, traits)
    first = next(schedule for schedule in schedules if isinstance(schedule, KernelSchedule))
    # The transformed data and results are written, and read by the next kernel.
    moved = 2 * sum(sizes) * step.dtype.itemsize / bytes_in_a_clock(traits)
    cost = contraction_cost(Product(products), first, traits) + moved + 3 * traits.rates.launch
    return {StepsSchedule(WINOGRAD, (*loops[:2], first, loops[2])): cost}


def direct_schedule(gemm: Product, bits: int) -> ContractionSchedule:
    """The schedule without local memory."""
    return ContractionSchedule(
        max(min(gemm.m, MOST_TILE_M), 1), max(min(gemm.n, MOST_TILE_N), 1), bits
    )


def _tiles(gemm: Product, bits: int, traits: Traits) -> Iterator[TiledSchedule]:
    stored_m, stored_n = gemm.stored_runs
    swapped = stored_m > stored_n
    gemm = gemm.exchanged if swapped else gemm
    has_halves = gemm.left.half is not None or gemm.right.half is not None
    kept = (False, True) if has_halves else (False,)
    seen: set[TiledSchedule] = set()
    for tile_m, tile_n, item_m, item_n in TILES:
        if tile_m >= 2 * max(gemm.m, 8) or tile_n >= 2 * max(gemm.n, 8):
            continue
        group = (tile_m // item_m) * (tile_n // item_n)
        tile_b = math.gcd(LEAST_GROUP // group, gemm.batch) if group < LEAST_GROUP else 1
        stretches = ((8, 1), (8, 2), (16, 1), (16, 2), (32, 1))
        for (tile_k, buffers), halves in product(stretches, kept):
            # PoCL 3.1 keeps wrong values over a loop between barriers, in some large kernels.
            unrolled = tile_k if traits.is_processor else UNROLLED
            if item_m * item_n * unrolled > MOST_WRITTEN_OUT:
                continue
            tiled = tiled_schedule(
                *(gemm, (tile_b, tile_m, tile_n, tile_k), (item_m, item_n)),
                *(buffers, unrolled, swapped, bits),
                halves=halves,
            )
            if tiled not in seen and fits(tiled, gemm.element_bytes, traits):
                seen.add(tiled)
                yield tiled


def _trees(gemm: Product, bits: int, traits: Traits) -> Iterator[TreeSchedule]:
    along_k = min(gemm.left.runs[1], gemm.right.runs[1])
    lanes = vector_lanes(gemm, along_k)
    most = min(traits.largest_group, MOST_GROUP)
    for item_m, item_n in ((1, 1), (1, 4), (4, 1), (2, 2), (4, 4)):
        if item_m >= 2 * gemm.m or item_n >= 2 * gemm.n:
            continue
        for items in (4, 16, 64, 256):
            if items > most or (items > 4 and items > gemm.k):
                continue
            fewest = max(LEAST_GROUP // items, 1)
            for results, width, is_along_k in ((fewest, lanes, True), (16, 1, False)):
                group = items * results
                local = (group + 1) * item_m * item_n * gemm.element_bytes
                if group <= most and local <= traits.local_bytes:
                    yield TreeSchedule(items, results, item_m, item_n, width, is_along_k, bits)


def _split(
    gemm: Product, bits: int, traits: Traits, unsplit: Iterable[KernelSchedule | PassesSchedule]
) -> Iterator[PassesSchedule]:
    """The schedules that have groups, with K split."""
    results = gemm.batch * gemm.m * gemm.n
    # The shares are in one workspace, which is at most as large as one allocation may be.
    most = min(MOST_SHARES, min(NARROW, traits.block_bytes // gemm.element_bytes) // results)
    chosen: list[int] = []
    for shares in range(2, min(most, gemm.k // LEAST_SHARE) + 1):
        # Each about twice as many as the one before.
        if gemm.k % shares == 0 and (not chosen or shares >= 2 * chosen[-1]):
            chosen.append(shares)
    for decided in unsplit:
        if not isinstance(decided, TiledSchedule | TreeSchedule | MatrixSchedule):
            continue
        if decided.group > MOST_GROUP:
            continue
        for shares in chosen:
            share = for_share(decided, gemm.k // shares)
            # Its vectors may be shorter, so more registers hold them.
            if isinstance(share, MatrixSchedule):
                exchanged = gemm.exchanged if share.swapped else gemm
                if not registers_suffice(exchanged, share):
                    continue
            total = combining_schedule(results, shares, bits, traits)
            yield PassesSchedule((Pass(1, shares, (share, total)),))


def for_share(decided: KernelSchedule, k: int) -> KernelSchedule:
    """The schedule for a share of K: its vectors along K must fit into the share."""
    if isinstance(decided, TreeSchedule):
        return replace(decided, lanes=math.gcd(decided.lanes, k))
    if isinstance(decided, TiledSchedule | MatrixSchedule):
        left, right = (_load_of_share(load, k) for load in (decided.left, decided.right))
        return replace(decided, left=left, right=right)
    return decided


def _load_of_share(load: TileLoad | MatrixLoad, k: int) -> TileLoad | MatrixLoad:
    lanes = math.gcd(load.lanes, k) if load.along_k else load.lanes
    if isinstance(load, TileLoad):
        return replace(load, lanes=lanes)
    return replace(load, lanes=lanes, is_asynchronous=load.is_asynchronous and lanes == load.lanes)


def tiled_schedule(
    gemm: Product,
    tile: tuple[int, int, int, int],
    block: tuple[int, int],
    buffers: int,
    unrolled: int,
    swapped: bool,
    bits: int,
    *,
    halves: bool = False,
) -> TiledSchedule:
    """A tiled schedule that reads the operands of a product along their longest runs.

    The product is the one after the exchange of its operands. Its tile is of batch, m, n and k,
    the block of a work item of m and n. If `halves`, floats of 16 bits are kept in local memory.
    """
    _, tile_m, tile_n, tile_k = tile
    left, right = (
        tile_load(side, outer, tile_k, gemm.element_bytes, halves=halves)
        for side, outer in ((gemm.left, tile_m), (gemm.right, tile_n))
    )
    width = VECTOR_BYTES // gemm.element_bytes
    return TiledSchedule(swapped, *tile, *block, left, right, buffers, unrolled, width, bits)


def tile_load(
    side: Operand, tile: int, tile_k: int, element_bytes: int, *, halves: bool = False
) -> TileLoad:
    """How a tile of an operand is copied along its longest runs."""
    outer, along_k = side.runs
    is_along_k = side.is_along_k
    is_half = halves and side.half is not None
    # Vectors of up to 16 bytes are read from buffers, and written to local memory.
    widest = max(side.loaded_bytes, HALF_BYTES) if is_half else element_bytes
    lanes = min(along_k if is_along_k else outer, VECTOR_BYTES // widest)
    lanes = math.gcd(lanes, tile_k if is_along_k else tile)
    padding = VECTOR_BYTES // element_bytes if is_along_k else 0
    return TileLoad(is_along_k, lanes, padding, is_half)


def vector_lanes(gemm: Product, run: int) -> int:
    """The lanes of vectors for runs of neighbours."""
    return min(run, VECTOR_BYTES // gemm.element_bytes)


def fits(tiled: TiledSchedule, element_bytes: int, traits: Traits) -> bool:
    """Whether a group of the schedule fits on the device."""
    small = tiled.group <= traits.largest_group
    return small and tiled.local_bytes(element_bytes) <= traits.local_bytes
