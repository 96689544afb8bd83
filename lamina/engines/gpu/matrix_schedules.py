"""Schedules of contractions by instructions on matrices."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from lamina.engines.gpu.contraction_costs import rate_of
from lamina.engines.gpu.launches import Traits
from lamina.engines.gpu.products import Operand, Product
from lamina.engines.gpu.schedule import VECTOR_BYTES, MatrixLoad, MatrixSchedule, element_bytes_of

# The tiles that are compared: m and n, and the warps along each.
_TILES = (
    *((128, 256, 2, 4), (256, 128, 4, 2), (128, 128, 2, 4), (128, 128, 2, 2), (128, 64, 2, 2)),
    *((64, 128, 2, 2), (64, 64, 2, 2)),
    *((128, 32, 4, 1), (32, 128, 1, 4), (64, 32, 2, 1), (32, 64, 1, 2), (32, 32, 1, 1)),
    *((128, 16, 4, 1), (16, 128, 1, 4), (64, 16, 2, 1), (16, 64, 1, 2), (32, 32, 2, 2)),
)
# The stretches of K, and the tiles in local memory.
_STRETCHES = ((32, 2), (32, 3), (32, 4), (64, 2), (64, 3), (16, 2))
# The same for warpgroups: stretches of rows of 128 bytes.
_WARPGROUP_TILES = (
    *((128, 256, 8, 1), (256, 128, 16, 1), (128, 128, 8, 1), (256, 64, 16, 1)),
    *((64, 256, 4, 1), (128, 64, 8, 1), (64, 128, 4, 1), (64, 64, 4, 1)),
)
_WARPGROUP_STRETCHES = ((1, 3), (1, 4), (1, 6), (1, 8), (2, 3))

# The most registers of a work item for tiles that are copied. With 128, some kernels need
# more than the 255 that there are.
_MOST_HELD = 64


def matrix_schedules(gemm: Product, bits: int, traits: Traits) -> Iterator[MatrixSchedule]:
    """The schedules of a product; none if the device or the operands do not allow any."""
    if rate_of(gemm, traits) is None or gemm.k < 16:
        return
    stored_m, stored_n = gemm.stored_runs
    swapped = stored_m > stored_n
    choices = [(*pair, False) for pair in product(_TILES, _STRETCHES)]
    if rate_of(gemm, traits, by_warpgroups=True) is not None:
        row = 128 // element_bytes_of(gemm.matrix_kind)
        stretches = [(row * rows, stages) for rows, stages in _WARPGROUP_STRETCHES]
        choices += [(*pair, True) for pair in product(_WARPGROUP_TILES, stretches)]
    gemm = gemm.exchanged if swapped else gemm
    for (tile_m, tile_n, *warps), (tile_k, stages), by_warpgroups in choices:
        least = 64 if by_warpgroups else 16
        if tile_m >= 2 * max(gemm.m, least) or tile_n >= 2 * max(gemm.n, least):
            continue
        if tile_k > 16 and tile_k >= 2 * gemm.k:
            continue
        decided = matrix_schedule(
            *(gemm, (tile_m, tile_n, tile_k), (warps[0], warps[1]), stages, swapped, bits, traits),
            by_warpgroups=by_warpgroups,
        )
        # What is read to registers arrives before the products end; more tiles are of no use.
        is_asynchronous = decided.left.is_asynchronous or decided.right.is_asynchronous
        if stages > 2 + by_warpgroups and not is_asynchronous:
            continue
        if matrices_fit(decided, traits) and registers_suffice(gemm, decided):
            yield decided


def registers_suffice(gemm: Product, decided: MatrixSchedule) -> bool:
    """Whether registers hold a work item's share of the next tiles.

    The product is the one after the exchange of its operands.
    """
    return _held_registers(gemm, decided) <= _MOST_HELD


def _held_registers(gemm: Product, decided: MatrixSchedule) -> int:
    """The registers of 32 bits that hold a work item's share of the next tiles."""
    sides = (gemm.left, decided.left, decided.tile_m), (gemm.right, decided.right, decided.tile_n)
    return sum(
        -(-tile * decided.tile_k // (load.lanes * decided.group))
        * -(-load.lanes * side.loaded_bytes // 4)
        for side, load, tile in sides
        if not load.is_asynchronous
    )


def matrices_fit(decided: MatrixSchedule, traits: Traits) -> bool:
    """Whether a group of the schedule fits on the device."""
    fits = decided.local_bytes <= traits.launched_local_bytes
    return fits and decided.group <= traits.largest_group


def matrix_schedule(
    gemm: Product,
    tile: tuple[int, int, int],
    warps: tuple[int, int],
    stages: int,
    swapped: bool,
    bits: int,
    traits: Traits,
    *,
    by_warpgroups: bool = False,
) -> MatrixSchedule:
    """A schedule that reads the operands of a product along their longest runs.

    The product is the one after the exchange of its operands; it has a `matrix_kind`. The tile is
    of m, n and k, and each of the warps along m and n has multiples of 16.
    """
    assert gemm.matrix_kind is not None
    left, right = (
        matrix_load(side, traits, in_panels=by_warpgroups) for side in (gemm.left, gemm.right)
    )
    return MatrixSchedule(
        *(swapped, 1, *tile, gemm.matrix_kind, *warps, by_warpgroups, left, right, stages, bits)
    )


def matrix_load(side: Operand, traits: Traits, *, in_panels: bool = False) -> MatrixLoad:
    """How a tile of an operand is copied along its longest runs."""
    outer, along_k = side.runs
    is_along_k = side.is_along_k
    # Vectors of up to 16 bytes are read from buffers, and written to local memory.
    lanes = min(along_k if is_along_k else outer, VECTOR_BYTES // side.loaded_bytes)
    copies = traits.copies_asynchronously and lanes * side.loaded_bytes == VECTOR_BYTES
    # Warpgroups multiply TF32 in rows along K.
    copies = copies and (is_along_k or side.half is not None or not in_panels)
    # With it, rows that are read together are in different banks: eight of 16 bytes, or four of 32.
    padding = 0 if in_panels else 4 if is_along_k and side.half is None else 8
    return MatrixLoad(is_along_k, lanes, padding, copies and side.can_copy(is_along_k, lanes))
