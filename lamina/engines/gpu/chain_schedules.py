"""Schedules of chains: which there are for a chain, and the fastest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lamina.engines.gpu.chain_rows import rows_of, single_chain, sum_tile, weight_load
from lamina.engines.gpu.contraction_costs import (
    BARRIER,
    INTEGER_LANES,
    LOAD_LATENCY,
    OPERATIONS_OF_LOAD,
    REGISTERS,
    WAVEFRONT,
)
from lamina.engines.gpu.contraction_schedules import tile_load
from lamina.engines.gpu.launches import Traits
from lamina.engines.gpu.passes import stored_steps
from lamina.engines.gpu.products import Operand
from lamina.engines.gpu.schedule import (
    VECTOR_BYTES,
    ChainSchedule,
    MatrixSchedule,
    PartSchedule,
    StepSchedule,
    StoredSchedule,
    TileLoad,
)
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.program.steps import Chain, Step

# The tiles that are compared: rows, columns, and a work item's block.
TILES = (
    *((64, 64, 8, 4), (64, 64, 4, 4), (64, 32, 4, 4), (32, 64, 4, 4), (128, 32, 8, 4)),
    *((32, 32, 4, 4), (32, 32, 2, 4), (32, 16, 2, 2), (16, 16, 1, 4)),
)
# The longest columns whose products may be stored.
LONGEST_STORED = 256
# The operations that compute a weight; the registers of a work item besides its blocks, and the
# most that it can have.
OPERATIONS_OF_WEIGHT, OTHER_REGISTERS, MOST_REGISTERS = 30, 64, 255
# Local memory is divided into pieces of so many bytes.
_PIECE = 16

Decide = Callable[[Step], PartSchedule]


def chain_schedules(
    chain: Chain, bits: int, traits: Traits, decide: Decide
) -> Iterator[StepSchedule]:
    """Schedules of a chain, the one that is expected to be the fastest first.

    `decide` gives the best schedule of the steps that store the chain's products and weights.
    """
    tiled = [tiled_chain(chain, tile, bits, traits) for tile in TILES]
    costs = {one: _cost(chain, one, traits) for one in tiled if one is not None}
    ranked: list[StepSchedule] = sorted(costs, key=lambda one: costs[one])
    if not costs or chain.extents[2] <= LONGEST_STORED:
        steps = stored_steps(chain, StepWorkspaces(chain.name))
        stored = StoredSchedule(tuple(decide(one) for one in steps))
        # Kernels of chains have no instructions on matrices.
        has_matrices = any(isinstance(one, MatrixSchedule) for one in stored.steps)
        ranked.insert(0 if has_matrices else len(ranked), stored)
    yield from ranked


def _cost(chain: Chain, decided: ChainSchedule, traits: Traits) -> float:
    """The expected clocks of a schedule."""
    single = single_chain(chain)
    (b, m, k), bytes_ = single.extents, single.products[0].dtype.itemsize
    rates = traits.rates
    products = [one.axes[0].extent for one in single.products]
    items_k = decided.tile_k // decided.item_k
    sums = [sum_tile(one.n[0].extent, decided.width, items_k) for one in single.sums]
    points, group = decided.tile_m * decided.tile_k, decided.group
    arithmetic = points * (sum(products) + sum(sums) + len(sums) * OPERATIONS_OF_WEIGHT)
    local = group * sum(products) * (decided.item_m + decided.item_k)
    local += group * decided.tile_k * sum(decided.item_m + n // items_k for n in sums)
    copied = decided.tile_k * (sum(products) + sum(sums))
    loads = [(d, one.lanes) for d, one in zip(products, decided.rights, strict=True)]
    loads += [(n, one.lanes) for n, one in zip(sums, decided.sums, strict=True)]
    reads = decided.tile_k * sum(extent / lanes for extent, lanes in loads)
    # A wavefront that is not full takes as long as a full one.
    unused = -(-group // WAVEFRONT) * WAVEFRONT / group
    lanes = arithmetic / rates.lanes + reads * OPERATIONS_OF_LOAD / INTEGER_LANES
    moved = copied * bytes_ / rates.cache_bytes
    busy = max(unused * lanes, unused * local * bytes_ / rates.local_bytes, moved)
    kept = len(products) * decided.item_m * decided.item_k
    kept += decided.item_m * (sum(sums) // items_k)
    registers = (kept + decided.item_m + decided.item_k) * bytes_ // 4 + OTHER_REGISTERS
    if registers > MOST_REGISTERS:
        # Those that do not fit are in memory.
        busy *= 4
    resident = min(rates.resident_items, REGISTERS // registers) // group
    shared = traits.compute_unit_local_bytes or traits.local_bytes
    resident = max(min(resident, shared // decided.local_bytes), 1)
    tiles, groups = -(-k // decided.tile_k), b * -(-m // decided.tile_m)
    resident = min(resident, -(-groups // traits.compute_units))
    waits = len(products) + len(sums)
    waiting = waits * (LOAD_LATENCY + 2 * BARRIER) / resident
    rounds = -(-groups // traits.compute_units)
    return rounds * tiles * (busy + waiting)


def tiled_chain(
    chain: Chain, tile: tuple[int, int, int, int], bits: int, traits: Traits
) -> ChainSchedule | None:
    """The schedule with tiles of rows, columns, and a block of both; None if it does not fit."""
    single = single_chain(chain)
    if not all(single.extents) or (single.reductions and rows_of(single) is None):
        return None
    dtypes = {one.dtype for one in (*single.products, *single.sums)}
    if len(dtypes) > 1 or not all(dtype.is_float for dtype in dtypes):
        return None
    (dtype,) = dtypes
    (m,), (k,), bytes_ = single.m, single.k, dtype.itemsize
    tile_m, tile_k, item_m, item_k = tile
    items_k, width = tile_k // item_k, VECTOR_BYTES // bytes_
    group = tile_m // item_m * items_k
    lefts: list[TileLoad] = []
    rights: list[TileLoad] = []
    kept = rows = 0
    for product in single.products:
        (d,) = product.axes
        for view, outer, extent, loads in (
            (product.left, m, tile_m, lefts),
            (product.right, k, tile_k, rights),
        ):
            loads.append(tile_load(Operand(view, outer, d), extent, d.extent, bytes_))
        kept += _pieces(d.extent * (tile_m + lefts[-1].padding), bytes_)
        rows = max(rows, d.extent * (tile_k + rights[-1].padding))
    sums: list[TileLoad] = []
    for one in single.sums:
        (n,) = one.n
        extent = sum_tile(n.extent, width, items_k)
        sums.append(tile_load(Operand(one.right, n, k), extent, tile_k, bytes_))
        rows = max(rows, tile_k * (extent + sums[-1].padding))
    kept += _pieces(rows, bytes_)
    kept += _pieces(tile_k * (tile_m + weight_load(dtype).padding), bytes_)
    if single.reductions:
        kept += _pieces(items_k * tile_m, bytes_)
    is_launched = traits.launched_local_bytes > 0
    most = traits.launched_local_bytes if is_launched else traits.local_bytes
    if kept > most or group > traits.largest_group:
        return None
    loads_ = tuple(lefts), tuple(rights), tuple(sums)
    return ChainSchedule(*tile, *loads_, width, kept, is_launched, bits)


def _pieces(count: int, element_bytes: int) -> int:
    return -(-count * element_bytes // _PIECE) * _PIECE
