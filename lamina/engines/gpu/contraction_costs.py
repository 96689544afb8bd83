"""The expected time of a contraction on a GPU, for comparing its schedules.

It is in clocks of a compute unit, by the rates of the device (`Rates`). The figures
below are a typical GPU's: they need only rank schedules.
"""

from __future__ import annotations

import math

from lamina.base.shapes import float16
from lamina.engines.gpu.launches import Traits
from lamina.engines.gpu.products import Operand, Product
from lamina.engines.gpu.schedule import (
    HALF_BYTES,
    ContractionSchedule,
    KernelSchedule,
    MatrixSchedule,
    PassesSchedule,
    TiledSchedule,
    TileSchedule,
    TreeSchedule,
)

# The integer operations that compute the address and the bounds of a load, and how many of them a
# compute unit does in a clock.
OPERATIONS_OF_LOAD, INTEGER_LANES = 12, 64
# The latency of a load from memory.
LOAD_LATENCY = 500
# The latency of copies of whole tiles that all compute units begin at the same time: on an H100, a
# stretch takes 1200 to 2400 clocks if only the next one is copied meanwhile.
COPY_LATENCY = 1500
# The latency of a barrier, with what is read and written around it.
BARRIER = 60
# The work items that older GPUs run in step.
WAVEFRONT = 64
# Bytes that are read together: shorter runs of neighbours waste a share of them.
SECTOR_BYTES = 32
# Of a compute unit; and the work items that use its lanes, as each computes several sums.
REGISTERS, BUSY_ITEMS = 1 << 16, 256


def contraction_cost(
    gemm: Product, decided: KernelSchedule | PassesSchedule, traits: Traits
) -> float:
    """The expected clocks of a schedule."""
    if isinstance(decided, PassesSchedule):
        (cut,) = decided.passes
        moved = 2 * cut.splits * gemm.element_bytes + gemm.wasted_bytes[1]
        moved *= gemm.batch * gemm.m * gemm.n / bytes_in_a_clock(traits)
        return _kernel_cost(gemm, cut.kernels[0], traits, cut.splits) + moved + traits.rates.launch
    return _kernel_cost(gemm, decided, traits, 1)


def packed_cost(
    gemm: Product,
    operand: str,
    packed: Product,
    decided: KernelSchedule | PassesSchedule,
    traits: Traits,
) -> float:
    """The expected clocks of a contraction with a packed operand, its loop and launch included.

    `packed` is the contraction that reads the `operand` packed, with the schedule `decided`.
    """
    side, outer = (gemm.left, gemm.m) if operand == "left" else (gemm.right, gemm.n)
    count = gemm.batch * gemm.k * outer
    written = count * side.loaded_bytes / traits.rates.memory_bytes
    read = count * _moved_bytes(side, along_k=True) / traits.rates.cache_bytes
    packing = (read + 2 * written) / traits.compute_units + traits.rates.launch
    return packing + contraction_cost(packed, decided, traits)


def bytes_in_a_clock(traits: Traits) -> float:
    """The bytes that all compute units together move from or to the device's memory in a clock."""
    return traits.rates.memory_bytes * traits.compute_units


def _kernel_cost(gemm: Product, decided: KernelSchedule, traits: Traits, splits: int) -> float:
    k, rates = max(gemm.k // splits, 1), traits.rates
    if isinstance(decided, TiledSchedule):
        return _tiled_cost(gemm.exchanged if decided.swapped else gemm, decided, traits, splits)
    if isinstance(decided, MatrixSchedule):
        return _matrix_cost(gemm.exchanged if decided.swapped else gemm, decided, traits, splits)
    if isinstance(decided, TreeSchedule):
        block, items = (decided.item_m, decided.item_n), decided.items
        lanes, group = decided.lanes, decided.group
    else:
        assert isinstance(decided, ContractionSchedule)
        block, items, lanes, group = (decided.tile_m, decided.tile_n), 1, 1, 64
    blocks = splits * gemm.batch * math.ceil(gemm.m / block[0]) * math.ceil(gemm.n / block[1])
    loads = sum(block) * k
    arithmetic = block[0] * block[1] * k / rates.lanes
    arithmetic += loads * OPERATIONS_OF_LOAD / lanes / INTEGER_LANES
    along_k = isinstance(decided, TreeSchedule) and decided.along_k
    bytes_ = block[0] * k * _moved_bytes(gemm.left, along_k=along_k)
    bytes_ += block[1] * k * _moved_bytes(gemm.right, along_k=along_k)
    sums = block[0] * block[1] * gemm.element_bytes
    # A tree writes each sum, and reads and writes it again on half of the levels' items.
    combined = sums * items * 4 / rates.local_bytes if items > 1 else 0.0
    clocks = max(arithmetic, bytes_ / rates.cache_bytes) + combined + sums / rates.memory_bytes
    groups = math.ceil(blocks * items / group)
    rounds = math.ceil(groups / traits.compute_units)
    levels = math.log2(items) * BARRIER
    # Several groups of a compute unit wait at the same time.
    waiting = math.ceil(k / (items * lanes)) * LOAD_LATENCY / 4 + levels
    resident = max(rates.resident_items // 2 // group, 1)
    return max(rounds * group / items * clocks, waiting) + rounds * levels / resident


def _work(
    gemm: Product, decided: TileSchedule, traits: Traits, splits: int
) -> tuple[int, int, int, int]:
    """The stretches, K, and results of a group, and the groups of a compute unit."""
    stretches = math.ceil(max(gemm.k // splits, 1) / decided.tile_k)
    results = decided.tile_b * decided.tile_m * decided.tile_n
    groups = splits * (gemm.batch // decided.tile_b)
    groups *= math.ceil(gemm.m / decided.tile_m) * math.ceil(gemm.n / decided.tile_n)
    rounds = math.ceil(groups / traits.compute_units)
    return stretches, stretches * decided.tile_k, results, rounds


def _tiled_cost(gemm: Product, tiled: TiledSchedule, traits: Traits, splits: int) -> float:
    stretches, padded, results, rounds = _work(gemm, tiled, traits, splits)
    rates = traits.rates
    arithmetic = results * padded / rates.lanes
    local = moved = loads = 0.0
    for side, load, tile, item in (
        (gemm.left, tiled.left, tiled.tile_m, tiled.item_m),
        (gemm.right, tiled.right, tiled.tile_n, tiled.item_n),
    ):
        count = tiled.tile_b * tile * padded
        moved += count * _moved_bytes(side, along_k=load.along_k)
        loads += count / load.lanes
        read = tiled.group * item * padded
        local += read * (HALF_BYTES if load.is_half else gemm.element_bytes) / rates.local_bytes
        # Devices with float16 multiply two of them, and add the product to a float32. Other floats
        # of 16 bits are converted first.
        is_multiplied = traits.has_float16 and side.half is not None and side.half.dtype == float16
        if load.is_half and not is_multiplied:
            arithmetic += read / rates.lanes
    arithmetic += loads * OPERATIONS_OF_LOAD / INTEGER_LANES
    stored = results * _stored_bytes(gemm, splits) / rates.memory_bytes
    # A wavefront that is not full takes as long as a full one.
    unused = math.ceil(tiled.group / WAVEFRONT) * WAVEFRONT / tiled.group
    busy = max(unused * arithmetic, unused * local, moved / rates.cache_bytes) + stored
    resident = min(_resident(tiled, gemm.element_bytes, traits), rounds)
    waiting = (stretches + 1) * LOAD_LATENCY / (resident * (1 + (tiled.buffers > 1)))
    # A group alone uses the lanes of a compute unit only if it has enough work items.
    idle = min(1.0, tiled.group * resident / BUSY_ITEMS)
    return rounds * (busy / idle + waiting)


def _matrix_cost(gemm: Product, decided: MatrixSchedule, traits: Traits, splits: int) -> float:
    rate = rate_of(gemm, traits, by_warpgroups=decided.by_warpgroups)
    assert rate is not None
    stretches, padded, results, rounds = _work(gemm, decided, traits, splits)
    rates = traits.rates
    arithmetic = results * padded / rate
    local = moved = loads = 0.0
    for side, load, tile, warps in (
        (gemm.left, decided.left, decided.tile_m, decided.warps_n),
        (gemm.right, decided.right, decided.tile_n, decided.warps_m),
    ):
        count = tile * padded
        moved += count * _moved_bytes(side, along_k=load.along_k)
        loads += count / load.lanes / (4 if load.is_asynchronous else 1)
        # Each warp along the other axis reads the tile, or each four of them.
        readers = math.ceil(warps / 4) if decided.by_warpgroups else warps
        local += count * (readers + 1) * decided.element_bytes / rates.local_bytes
    other = loads * OPERATIONS_OF_LOAD / INTEGER_LANES
    stored = results * _stored_bytes(gemm, splits) / rates.memory_bytes
    busy = max(arithmetic, other, local, moved / rates.cache_bytes) + stored
    registers = results // decided.group + 64
    resident = min(rates.resident_items, REGISTERS // registers) // decided.group
    resident = min(resident, traits.compute_unit_local_bytes // decided.local_bytes, rounds)
    resident = max(resident, 1)
    latency = (stretches / decided.ahead + 1) * LOAD_LATENCY
    barriers = stretches * BARRIER
    if decided.by_warpgroups:
        # Products go on meanwhile.
        latency = max(stretches / decided.ahead * COPY_LATENCY - busy, 0) + COPY_LATENCY
        barriers = 0
    return rounds * (busy + (latency + barriers) / resident)


def _resident(tiled: TiledSchedule, element_bytes: int, traits: Traits) -> int:
    """The number of groups that a compute unit runs at the same time."""
    words = element_bytes // 4
    loaded = tiled.tile_k * (tiled.tile_m + tiled.tile_n) * tiled.tile_b // tiled.group
    registers = (tiled.item_m * tiled.item_n + 2 * (tiled.item_m + tiled.item_n) + loaded) * words
    registers += 32
    items = min(traits.rates.resident_items, REGISTERS // registers)
    shared = traits.compute_unit_local_bytes or traits.local_bytes
    local = shared // max(tiled.local_bytes(element_bytes), 1)
    return max(min(items // tiled.group, local), 1)


def rate_of(gemm: Product, traits: Traits, *, by_warpgroups: bool = False) -> int | None:
    """The multiply-adds of a compute unit in a clock, if it multiplies matrices of the operands."""
    rates = traits.warpgroup_matrices if by_warpgroups else traits.matrices
    return dict(rates).get(gemm.matrix_kind or "")


def _stored_bytes(gemm: Product, splits: int) -> float:
    """The bytes that are moved for a result at the end; shares are stored as neighbours."""
    return gemm.element_bytes + (gemm.wasted_bytes[0] if splits == 1 else 0)


def _moved_bytes(side: Operand, *, along_k: bool) -> float:
    """The bytes that are read for an element, in runs of neighbours."""
    return max(SECTOR_BYTES / side.runs[along_k], side.loaded_bytes)
