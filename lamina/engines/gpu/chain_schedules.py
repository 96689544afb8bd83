"""Schedules of chains: which there are for a chain, and the fastest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from lamina.codegen.matrix import half_of
from lamina.engines.gpu.chain_rows import rows_of, single_chain, sum_tile, weight_load, whole_steps
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
from lamina.engines.gpu.matrix_schedules import matrix_load
from lamina.engines.gpu.passes import stored_steps
from lamina.engines.gpu.products import Operand
from lamina.engines.gpu.schedule import (
    STEP,
    VECTOR_BYTES,
    WARP,
    ChainSchedule,
    MatrixChainSchedule,
    MatrixLoad,
    PartSchedule,
    StepSchedule,
    StoredSchedule,
    TileLoad,
)
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.program.index import Axis
from lamina.program.scalar import Apply, Scalar
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
    costs: dict[StepSchedule, float] = {
        one: _cost(chain, one, traits) for one in tiled if one is not None
    }
    matrices = [matrix_chain(chain, tile, bits, traits) for tile in MATRIX_TILES]
    costs |= {one: _matrix_cost(chain, one, traits) for one in matrices if one is not None}
    yield from sorted(costs, key=lambda one: costs[one])
    if not costs or chain.extents[2] <= LONGEST_STORED:
        steps = stored_steps(chain, StepWorkspaces(chain.name))
        yield StoredSchedule(tuple(decide(one) for one in steps))


def _cost(chain: Chain, decided: ChainSchedule, traits: Traits) -> float:
    """The expected clocks of a schedule."""
    single = single_chain(chain)
    bytes_, rates = single.products[0].dtype.itemsize, traits.rates
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
    return _in_rounds(single, decided, busy, registers, traits)


def _matrix_cost(chain: Chain, decided: MatrixChainSchedule, traits: Traits) -> float:
    """The expected clocks of a schedule with instructions on matrices."""
    single, rates = single_chain(chain), traits.rates
    products = [whole_steps(one.axes[0].extent, decided.step_k) for one in single.products]
    sums = [whole_steps(one.n[0].extent, STEP) for one in single.sums]
    points, bytes_ = decided.tile_m * decided.tile_k, decided.element_bytes
    arithmetic = points * sum((*products, *sums)) / dict(traits.matrices)[decided.kind]
    other = points * len(sums) * OPERATIONS_OF_WEIGHT / rates.lanes
    loads = [(d, one.lanes) for d, one in zip(products, decided.rights, strict=True)]
    loads += [(n, one.lanes) for n, one in zip(sums, decided.sums, strict=True)]
    reads = decided.tile_k * sum(extent / lanes for extent, lanes in loads)
    other += reads * OPERATIONS_OF_LOAD / INTEGER_LANES
    # Each warp reads all columns, and its rows.
    copied = decided.tile_k * sum((*products, *sums))
    local = copied * (decided.warps + 1) + decided.tile_m * sum(products)
    local += 2 * points * len(sums)
    moved = copied * bytes_ / rates.cache_bytes
    busy = arithmetic + max(other, local * bytes_ / rates.local_bytes, moved)
    # Products, the weights that are computed from them, and sums.
    values = 2 * decided.tile_k * len(products) + sum(sums)
    registers = decided.warp_m * values // WARP + OTHER_REGISTERS
    return _in_rounds(single, decided, busy, registers, traits)


def _in_rounds(
    single: Chain,
    decided: ChainSchedule | MatrixChainSchedule,
    busy: float,
    registers: int,
    traits: Traits,
) -> float:
    """The clocks of all groups, each of which is busy for some clocks at a tile of columns."""
    b, m, k = single.extents
    # Those that do not fit are in memory.
    busy *= 1 + max(registers - MOST_REGISTERS, 0) / SPILL
    resident = min(traits.rates.resident_items, REGISTERS // registers) // decided.group
    shared = traits.compute_unit_local_bytes or traits.local_bytes
    resident = max(min(resident, shared // decided.local_bytes), 1)
    tiles, groups = -(-k // decided.tile_k), b * -(-m // decided.tile_m)
    resident = min(resident, -(-groups // traits.compute_units))
    waits = len(single.products) + len(single.sums)
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


def matrix_chain(
    chain: Chain, tile: tuple[int, int, int], bits: int, traits: Traits
) -> MatrixChainSchedule | None:
    """The schedule with tiles of rows, columns, and some warps; None if it is not possible."""
    single, (tile_m, tile_k, warps) = single_chain(chain), tile
    kind = _kind(single)
    if kind not in dict(traits.matrices) or not all(single.extents):
        return None
    if single.reductions and rows_of(single) is None:
        return None
    (m,), (k,) = single.m, single.k

    def load(view: Scalar, outer: Axis, inner: Axis) -> MatrixLoad:
        return replace(matrix_load(Operand(view, outer, inner), traits), is_asynchronous=False)

    lengths = [one.axes[0] for one in single.products]
    lefts = tuple(load(one.left, m, d) for one, d in zip(single.products, lengths, strict=True))
    rights = tuple(load(one.right, k, d) for one, d in zip(single.products, lengths, strict=True))
    sums = tuple(load(one.right, one.n[0], k) for one in single.sums)
    weights = MatrixLoad(True, 1, 4 if kind == "tf32" else 8, False)
    empty = MatrixChainSchedule(
        *(kind, tile_m, tile_k, warps, lefts, rights, sums, weights, 0, 0, bits)
    )
    inner = [whole_steps(d.extent, empty.step_k) for d in lengths]
    counts = [one.size(tile_k, d) for one, d in zip(rights, inner, strict=True)]
    counts += [
        one.size(whole_steps(total.n[0].extent, STEP), tile_k)
        for one, total in zip(sums, single.sums, strict=True)
    ]
    kept = [one.size(tile_m, d) for one, d in zip(lefts, inner, strict=True)]
    kept += [max(counts), weights.size(tile_m, tile_k)]
    local = sum(_pieces(count, empty.element_bytes) for count in kept)
    if single.reductions:
        local += _pieces(STEP // 4 * tile_m, single.products[0].dtype.itemsize)
    decided = replace(empty, right_count=max(counts), local_bytes=local)
    fits_ = local <= traits.launched_local_bytes and decided.group <= traits.largest_group
    return decided if fits_ else None


def _kind(single: Chain) -> str:
    """The elements that instructions on matrices multiply; "" if there are no such ones."""
    views = [side for one in single.products for side in (one.left, one.right)]
    views += [side for one in single.sums for side in (one.weight, one.right)]
    kinds: set[str] = set()
    for view in views:
        half = half_of(view)
        is_rounded = isinstance(view, Apply) and view.primitive in ROUNDED
        kinds.add("tf32" if is_rounded else half.dtype.name if half is not None else "")
    return kinds.pop() if len(kinds) == 1 else ""


def _pieces(count: int, element_bytes: int) -> int:
    return -(-count * element_bytes // _PIECE) * _PIECE
