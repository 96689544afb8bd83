"""Schedules of chains: which there are for a chain, and the fastest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from lamina.codegen.matrix import half_of
from lamina.engines.gpu.chain_rows import rows_of, single_chain
from lamina.engines.gpu.contraction_costs import (
    BARRIER,
    INTEGER_LANES,
    LOAD_LATENCY,
    OPERATIONS_OF_LOAD,
    REGISTERS,
    WAVEFRONT,
)
from lamina.engines.gpu.contraction_schedules import tile_load
from lamina.engines.gpu.launches import Rates, Traits
from lamina.engines.gpu.matrix_schedules import matrix_load
from lamina.engines.gpu.passes import stored_steps
from lamina.engines.gpu.products import Operand
from lamina.engines.gpu.schedule import (
    STEP,
    STORED,
    VECTOR_BYTES,
    WARP,
    ChainSchedule,
    MatrixLoad,
    OperandLoad,
    StepsSchedule,
    TileLoad,
    WrittenSchedule,
    element_bytes_of,
    whole_steps,
)
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.program.scalar import Apply
from lamina.program.steps import Chain, Step
from lamina.program.tf32 import ROUNDED

# The tiles that are compared: rows, columns, and a work item's block.
TILES = (
    *((64, 64, 8, 4), (64, 64, 4, 4), (64, 32, 4, 4), (32, 64, 4, 4), (128, 32, 8, 4)),
    *((32, 32, 4, 4), (32, 32, 2, 4), (32, 16, 2, 2), (16, 16, 1, 4)),
)
# The same for instructions on matrices: rows, columns, and warps.
MATRIX_TILES = ((128, 64, 8), (64, 64, 4), (64, 32, 4), (32, 64, 2), (32, 32, 2), (16, 64, 1))
# The longest columns whose products may be stored.
LONGEST_STORED = 256
# The operations that compute a weight; the registers of a work item besides its blocks, and the
# most that it can have.
OPERATIONS_OF_WEIGHT, OTHER_REGISTERS, MOST_REGISTERS = 30, 75, 255
# The registers that take as long as all arithmetic if they are in memory.
SPILL = 8

Decide = Callable[[Step], WrittenSchedule]


def chain_schedules(
    chain: Chain, bits: int, traits: Traits, decide: Decide
) -> Iterator[WrittenSchedule]:
    """Schedules of a chain, the one that is expected to be the fastest first.

    `decide` gives the best schedule of the steps that store the chain's products and weights.
    """
    tiled = [tiled_chain(chain, tile, bits, traits) for tile in TILES]
    tiled += [matrix_chain(chain, tile, bits, traits) for tile in MATRIX_TILES]
    costs: dict[WrittenSchedule, float] = {
        schedule: _cost(chain, schedule, traits) for schedule in tiled if schedule is not None
    }
    yield from sorted(costs, key=lambda schedule: costs[schedule])
    if not costs or chain.extents[2] <= LONGEST_STORED:
        steps = stored_steps(chain, StepWorkspaces(chain.name))
        yield StepsSchedule(STORED, tuple(decide(step) for step in steps))


def _cost(chain: Chain, decided: ChainSchedule, traits: Traits) -> float:
    """The expected clocks of a schedule."""
    single, rates, group = single_chain(chain), traits.rates, decided.group
    if decided.kind:
        busy, registers = _work_of_warps(decided, traits)
    else:
        busy, registers = _work_of_items(decided, single.products[0].dtype.itemsize, rates)
    b, m, k = single.extents
    # Registers that do not fit are in memory.
    busy *= 1 + max(registers - MOST_REGISTERS, 0) / SPILL
    resident = min(rates.resident_items, REGISTERS // registers) // group
    shared = traits.compute_unit_local_bytes or traits.local_bytes
    resident = max(min(resident, shared // decided.local_bytes), 1)
    tiles, groups = -(-k // decided.tile_k), b * -(-m // decided.tile_m)
    rounds = -(-groups // traits.compute_units)
    waits = len(decided.lengths) + len(decided.tiles)
    waiting = waits * (LOAD_LATENCY + 2 * BARRIER) / min(resident, rounds)
    return rounds * tiles * (busy + waiting)


def _work_of_warps(decided: ChainSchedule, traits: Traits) -> tuple[float, int]:
    """The clocks of a tile, and a work item's registers, if warps multiply matrices."""
    rates, bytes_, warps = traits.rates, element_bytes_of(decided.kind), decided.group // WARP
    copied, weights = decided.copied, decided.tile_m * decided.tile_k * len(decided.tiles)
    # Each warp reads all columns, and its rows.
    local = copied * (warps + 1) + decided.tile_m * sum(decided.lengths) + 2 * weights
    lanes = weights * OPERATIONS_OF_WEIGHT / rates.lanes + _loading(decided)
    other = max(lanes, local * bytes_ / rates.local_bytes, copied * bytes_ / rates.cache_bytes)
    # Each row of a tile is multiplied with all copied elements.
    busy = decided.tile_m * copied / dict(traits.matrices)[decided.kind] + other
    # Products, the weights that are computed from them, and sums.
    values = 2 * decided.tile_k * len(decided.lengths) + sum(decided.tiles)
    return busy, decided.tile_m // warps * values // WARP + OTHER_REGISTERS


def _work_of_items(decided: ChainSchedule, bytes_: int, rates: Rates) -> tuple[float, int]:
    """The clocks and registers if work items multiply alone; elements have `bytes_` bytes."""
    copied, weights = decided.copied, decided.tile_m * decided.tile_k * len(decided.tiles)
    group, items, item_m = decided.group, decided.items_k, decided.item_m
    item_k = decided.tile_k // items
    local = group * sum(decided.lengths) * (item_m + item_k)
    local += group * decided.tile_k * sum(item_m + n // items for n in decided.tiles)
    operations = decided.tile_m * copied + weights * OPERATIONS_OF_WEIGHT
    lanes = operations / rates.lanes + _loading(decided)
    # A wavefront that is not full takes as long as a full one.
    unused = -(-group // WAVEFRONT) * WAVEFRONT / group
    busy = unused * max(lanes, local * bytes_ / rates.local_bytes)
    kept = len(decided.lengths) * item_m * item_k + item_m * (sum(decided.tiles) // items)
    registers = (kept + item_m + item_k) * bytes_ // 4 + OTHER_REGISTERS
    return max(busy, copied * bytes_ / rates.cache_bytes), registers


def _loading(decided: ChainSchedule) -> float:
    """The clocks of the operations that load a tile of columns."""
    extents, loads = (*decided.lengths, *decided.tiles), (*decided.rights, *decided.sums)
    reads = decided.tile_k * sum(n / load.lanes for n, load in zip(extents, loads, strict=True))
    return reads * OPERATIONS_OF_LOAD / INTEGER_LANES


def tiled_chain(
    chain: Chain, tile: tuple[int, int, int, int], bits: int, traits: Traits
) -> ChainSchedule | None:
    """The schedule with tiles of rows, columns, and a block of both; None if it does not fit."""
    single, (tile_m, tile_k, item_m, item_k) = single_chain(chain), tile
    dtypes = {total.dtype for total in (*single.products, *single.sums)}
    if len(dtypes) > 1 or not all(dtype.is_float for dtype in dtypes):
        return None
    bytes_, items = single.products[0].dtype.itemsize, tile_k // item_k
    width = VECTOR_BYTES // bytes_

    def tile_of_sum(n: int) -> int:
        return whole_steps(n, (width if n >= width * items else 1) * items)

    load = partial(tile_load, element_bytes=bytes_)
    # Rows of weights are padded, so that columns are in banks apart.
    weights = TileLoad(False, 1, width)
    shape = tile_m, tile_k, item_m, items, width
    return _scheduled(single, "", *shape, 1, tile_of_sum, load, weights, bits, traits)


def matrix_chain(
    chain: Chain, tile: tuple[int, int, int], bits: int, traits: Traits
) -> ChainSchedule | None:
    """The schedule with tiles of rows, columns, and some warps; None if it is not possible."""
    single, (tile_m, tile_k, warps) = single_chain(chain), tile
    kind = _kind(single)
    if kind not in dict(traits.matrices):
        return None

    def load(side: Operand, outer: int, k: int) -> MatrixLoad:
        return replace(matrix_load(side, traits), is_asynchronous=False)

    step_k = 2 * VECTOR_BYTES // element_bytes_of(kind)
    weights = MatrixLoad(True, 1, step_k // 2, False)
    # Work items have every eighth row, and four share each row.
    shape = tile_m, tile_k, tile_m // warps // 8, 4, 2
    tile_of_sum = partial(whole_steps, step=STEP)
    return _scheduled(single, kind, *shape, step_k, tile_of_sum, load, weights, bits, traits)


def _scheduled(
    single: Chain,
    kind: str,
    tile_m: int,
    tile_k: int,
    item_m: int,
    items_k: int,
    width: int,
    step: int,
    tile_of_sum: Callable[[int], int],
    load: Callable[[Operand, int, int], OperandLoad],
    weights: OperandLoad,
    bits: int,
    traits: Traits,
) -> ChainSchedule | None:
    """The schedule of a kind and shape; None if it does not fit.

    The lengths of products are multiples of `step` in local memory; `tile_of_sum` is the extent of
    a tile for the n of a sum.
    """
    if not all(single.extents) or (single.reductions and rows_of(single) is None):
        return None
    (m,), (k,), dtype = single.m, single.k, single.products[0].dtype
    lengths = tuple(whole_steps(product.axes[0].extent, step) for product in single.products)
    tiles = tuple(tile_of_sum(total.n[0].extent) for total in single.sums)
    pairs = zip(single.products, lengths, strict=True)
    triples = [(product, *product.axes, d) for product, d in pairs]
    lefts = tuple(load(Operand(product.left, m, axis), tile_m, d) for product, axis, d in triples)
    rights = tuple(load(Operand(product.right, k, axis), tile_k, d) for product, axis, d in triples)
    sums = tuple(
        load(Operand(total.right, total.n[0], k), tile, tile_k)
        for total, tile in zip(single.sums, tiles, strict=True)
    )
    counts = [left.size(tile_m, d) for left, d in zip(lefts, lengths, strict=True)]
    # One operand of columns after the other is at one place.
    columns = [right.size(tile_k, d) for right, d in zip(rights, lengths, strict=True)]
    columns += [operand.size(tile, tile_k) for operand, tile in zip(sums, tiles, strict=True)]
    counts += [max(columns), weights.size(tile_m, tile_k)]
    bytes_ = element_bytes_of(kind) if kind else dtype.itemsize
    sizes = [count * bytes_ for count in counts]
    if single.reductions:
        sizes.append(items_k * tile_m * dtype.itemsize)
    local_bytes = sum(whole_steps(size, VECTOR_BYTES) for size in sizes)
    is_launched = traits.launched_local_bytes > 0
    decided = ChainSchedule(
        *(kind, tile_m, tile_k, item_m, items_k, width),
        *(lengths, tiles, lefts, rights, sums, weights, local_bytes, is_launched, bits),
    )
    most = traits.launched_local_bytes if is_launched else traits.local_bytes
    return decided if local_bytes <= most and decided.group <= traits.largest_group else None


def _kind(single: Chain) -> str:
    """The elements that instructions on matrices multiply; "" if there are no such ones."""
    views = [side for product in single.products for side in (product.left, product.right)]
    views += [side for total in single.sums for side in (total.weight, total.right)]
    kinds: set[str] = set()
    for view in views:
        half = half_of(view)
        is_rounded = isinstance(view, Apply) and view.primitive in ROUNDED
        kinds.add("tf32" if is_rounded else half.dtype.name if half is not None else "")
    return kinds.pop() if len(kinds) == 1 else ""
