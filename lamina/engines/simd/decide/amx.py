"""Convolutions in the tile registers of AMX: whether they are possible, and worth it.

Implicit GEMM multiplies 32 channels of 16 output positions at once. A tile load has one stride for
its rows, so the positions of a tile must have one in the image. A tile is a piece of a row of
positions, or several short rows and the positions between them, whose sums are not used.
"""

from __future__ import annotations

from lamina.base.shapes import size_of
from lamina.engines.simd.decide.packing import Panels
from lamina.engines.simd.decide.tiles import AMX_M, AMX_M_CYCLES, AMX_STEPS, MTiles
from lamina.engines.simd.decide.windows import Windowed

# The m and the n of a tile register of sums.
_EDGE = 16
# The throughput of multiply-adds in tile registers over the throughput in vectors of pairs. It
# follows from the instructions, and was never measured: a `tdpbf16ps` does 16 x 16 x 32 in 16
# cycles, and two `vdpbf16ps` do 16 x 2 each in one cycle.
GAIN_OVER_PAIRS = 8
# Tile registers are taken if their work is at most this share of the other algorithm's, because
# loads and the epilogue are not counted.
MUST_GAIN = 0.5


def can_be_amx(windowed: Windowed, panels: Panels) -> bool:
    """Whether implicit GEMM can multiply in tile registers."""
    # Pairs are neighbours along K; other contractions may have no K.
    if not windowed.paired or panels.lanes != _EDGE:
        return False
    return windowed.step.k[-1].extent % (2 * AMX_STEPS) == 0


def amx_work(windowed: Windowed, panels: Panels, others: float) -> float | None:
    """The work of implicit GEMM in tile registers, as a number of multiplications of float32.

    It is None if it is not possible, or not worth it: `others` is the work of the best algorithm
    without tile registers, except Winograd's.
    """
    if not can_be_amx(windowed, panels) or panels.n < _EDGE:
        return None
    b, _, n, k = windowed.step.extents
    whole_n = -(-n // _EDGE) * _EDGE
    work = b * _m_of_registers(windowed) * whole_n * k / 2 / GAIN_OVER_PAIRS
    return work if work <= MUST_GAIN * others else None


def amx_cycles(windowed: Windowed, panels: Panels) -> float:
    """The rough cycles of implicit GEMM in tile registers."""
    b, _, n, k = windowed.step.extents
    products = b * -(-n // panels.lanes) * (k // (2 * AMX_STEPS))
    return float(products * _m_of_registers(windowed) * AMX_M_CYCLES)


def amx_tiles(windowed: Windowed, block: int, largest: int) -> MTiles:
    """The tiles, of at most `largest` rows, of a block of output positions."""
    extents = (block, *(axis.extent for axis in windowed.image.positions[1:]))
    return MTiles(extents, largest, _pitch(windowed, largest))


def _pitch(windowed: Windowed, largest: int) -> int:
    """The rows of a tile from one row of positions to the next.

    It is the image's stride, if that is possible and takes no more tile registers than `largest`.
    """
    image = windowed.image
    if len(image.positions) == 1:
        return largest
    strides, _ = image.layout(image.positions[0].extent)
    across, along = (strides[axis] for axis in image.positions[-2:])
    extents = tuple(axis.extent for axis in image.positions)
    if along < 1 or across % along or across // along < extents[-1]:
        return largest
    candidates = across // along, largest
    return min(candidates, key=lambda pitch: _registers(MTiles(extents, largest, pitch)))


def _registers(tiles: MTiles) -> int:
    """The tile registers along M, for all tiles; some are not full."""
    axis, _ = tiles.split
    registers = sum(-(-tiles.height(size) // _EDGE) * len(pieces) for size, pieces in tiles.sizes)
    return size_of(tiles.extents[:axis]) * registers


def _m_of_registers(windowed: Windowed) -> int:
    """The rows of all tile registers along M, those without a position included."""
    block = windowed.image.positions[0].extent
    return windowed.outer.extent * _registers(amx_tiles(windowed, block, AMX_M)) * _EDGE
