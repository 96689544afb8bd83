"""By which algorithm a contraction is computed, and the tiles, panels and cuts of that.

Most are products of matrices in register tiles: a panel of the right operand is packed, or was
packed before, and the tiles of all rows pass over it. Small ones are loops. Where few columns would
leave lanes empty, tiles are made of dot products. Those over windows have algorithms of their own.
"""

from __future__ import annotations

from math import gcd

from lamina.codegen.matrix import Matrix, Plain, as_loop, as_matrix, as_plain
from lamina.engines.cpu.decide.convolutions import schedule_windows
from lamina.engines.cpu.decide.loops import nest_of
from lamina.engines.cpu.decide.packing import (
    Packing,
    can_be_read_in_vectors,
    packing_of_all,
    packing_of_some,
)
from lamina.engines.cpu.decide.panels import Panels
from lamina.engines.cpu.decide.schedule import (
    DIRECT,
    PACKED,
    PREPACKED,
    GemmSchedule,
    LoopSchedule,
    StepSchedule,
)
from lamina.engines.cpu.decide.tiles import VECTORS, dot_sides, most_rows, rows_of_tiles
from lamina.engines.cpu.decide.vectors import are_short
from lamina.engines.cpu.decide.work import Work
from lamina.engines.cpu.processor import LINE_BYTES, Processor
from lamina.program.steps import Contraction

# Contractions with less work than this, in multiply-adds, are loops: nothing pays for tiles.
SMALLEST_WORK = 8192
# Sums over many K are made in chunks, so that a panel stays in the second cache; of at least so
# many, as each chunk begins and ends with the sums of a tile in memory.
SHORTEST_CHUNK = 512
# In cycles, for the choice between tiles and dots.
_PACKED_VECTOR, _SUM_OF_LANES, _DOTS_MUST_GAIN = 2.5, 5, 0.8
# To pack a number of the left operand.
_PACKED_NUMBER = 1.5 / 8
# A left operand that is read along its rows by at least this many panels of columns is packed.
PANELS_WORTH_PACKING = 6
# Of memory, in bytes.
_PAGE = 4096
# Numbers of the left operand that lie K by K are fetched into the cache so many K ahead.
K_AHEAD = 64


def schedule_contraction(
    step: Contraction, processor: Processor, *, prepacked: bool
) -> StepSchedule:
    """How a contraction is computed.

    Args:
        step: which one.
        processor: for which processor.
        prepacked: whether its right operand may be packed before the step.
    """
    if not _is_worth_tiles(step, processor):
        return LoopSchedule((nest_of(as_loop(step), processor),))
    panels, matrix = panels_of(step, processor), as_matrix(step)
    if not _is_plain(matrix):
        windows = schedule_windows(step, panels, processor)
        if windows is not None:
            return windows
    dots = _prefers_dots(matrix, panels, prepacked=prepacked)
    return _gemm(matrix, panels, processor, dots=dots, prepacked=prepacked and not dots)


def _is_worth_tiles(step: Contraction, processor: Processor) -> bool:
    """Whether there is enough work for tiles."""
    b, m, n, k = step.extents
    lanes = processor.vector_bytes // step.dtype.itemsize
    small = b * m * n * k < SMALLEST_WORK or m < 2 or n < lanes // 4 or k < 2
    return step.dtype.is_float and not small


def panels_of(step: Contraction, processor: Processor) -> Panels:
    """How the columns of a contraction are cut."""
    lanes = processor.vector_bytes // step.dtype.itemsize
    columns = step.extents[2]
    return Panels(lanes, min(VECTORS, -(-columns // lanes)), columns)


def _is_plain(matrix: Matrix) -> bool:
    """Whether the left operand lies side by side along its rows or along K."""
    plain = as_plain(matrix.left, matrix.m, matrix)
    return plain is not None and 1 in (plain.stride, plain.k_stride)


def _prefers_dots(matrix: Matrix, panels: Panels, *, prepacked: bool) -> bool:
    """Whether sums are made along K, in lanes that are added up at the end, without packing.

    That is better where few columns would leave lanes empty, or few rows would use what was
    packed for them; both operands must lie contiguous along K.
    """
    if not can_be_dots(matrix):
        return False
    m, n, k = matrix.m.extent, matrix.n.extent, matrix.k.extent
    # Rough cycles: a multiply-add takes one, K of a packed vector some more, a sum of lanes a few.
    vectors = -(-n // panels.lanes)
    tiles = m * vectors * k + (0 if prepacked else _PACKED_VECTOR * vectors * k)
    dots = m * n * (-(-k // panels.lanes) + _SUM_OF_LANES)
    return dots < _DOTS_MUST_GAIN * tiles


def can_be_dots(matrix: Matrix) -> bool:
    """Whether both operands lie contiguous along K, and nowhere else."""
    for view, outer in ((matrix.left, matrix.m), (matrix.right, matrix.n)):
        plain = as_plain(view, outer, matrix)
        if plain is None or plain.k_stride != 1 or plain.stride == 1:
            return False
    return True


def _gemm(
    matrix: Matrix, panels: Panels, processor: Processor, *, dots: bool, prepacked: bool
) -> GemmSchedule:
    """Tiles as large as the registers and caches have them."""
    left = _direct_left(matrix, panels, processor)
    if dots:
        most, columns = dot_sides(processor)
    else:
        most, columns = _most_rows(matrix, left, panels, processor), panels.width
    rows = rows_of_tiles(matrix.m.extent, most)
    right = PREPACKED if prepacked else PACKED
    if dots or (not prepacked and matrix.m.extent <= rows and can_be_read_in_vectors(matrix)):
        # Dots read it along K; tiles do not pack what is used but once.
        right = DIRECT
    return gemm_schedule(
        matrix,
        panels,
        processor,
        algorithm="dots" if dots else "tiles",
        tile=(rows, columns),
        chunk=matrix.k.extent if dots else _longest_chunk(matrix, panels, processor),
        row_cuts=_row_cuts(matrix, panels, rows, processor),
        left=PACKED if left is None else DIRECT,
        right=right,
        prefetch=0 if dots else _prefetch(matrix, left, rows, processor),
    )


def gemm_schedule(
    matrix: Matrix,
    panels: Panels,
    processor: Processor,
    *,
    algorithm: str,
    tile: tuple[int, int],
    chunk: int,
    row_cuts: int,
    left: str,
    right: str,
    prefetch: int,
    packing: Packing | None = None,
) -> GemmSchedule:
    """A schedule of what was decided, with the work that follows from it.

    By default the right operand is packed in the order that costs least.
    """
    b, m, n, k = extents = matrix.step.extents
    cycles = float(-(-n // panels.lanes) * b * m * k) * (1.0 if processor.fused else 2.0)
    packing_left = Work(b * -(-m // tile[0]), _PACKED_NUMBER * b * m * k)
    if packing is None and algorithm != "dots":
        whole = right == PREPACKED
        packing = packing_of_all(matrix, panels.lanes) if whole else packing_of_some(matrix)
    return GemmSchedule(
        algorithm,
        extents,
        panels,
        *tile,
        chunk,
        row_cuts,
        left,
        right,
        packing,
        prefetch,
        are_short(store.value for store in matrix.step.stores),
        Work(b * panels.count * row_cuts, cycles),
        packing_left if left == PACKED else None,
    )


def _longest_chunk(matrix: Matrix, panels: Panels, processor: Processor) -> int:
    """How many K are summed up in one pass: so many that a panel takes half of the cache.

    The chunks of a sum are about equally long.
    """
    k = matrix.k.extent
    row_bytes = panels.width * matrix.step.dtype.itemsize
    most = max(processor.level2_bytes // 2 // row_bytes, SHORTEST_CHUNK)
    each = -(-k // -(-k // most))
    return min(k, -(-each // panels.lanes) * panels.lanes)


def _row_cuts(matrix: Matrix, panels: Panels, rows: int, processor: Processor) -> int:
    """Into how many work items the rows are cut, so that all workers have a share."""
    threads = processor.threads
    items = matrix.batch.extent * panels.count
    if items >= 4 * threads or items % threads == 0:
        return 1
    return min(-(-matrix.m.extent // rows), -(-4 * threads // items))


def _direct_left(matrix: Matrix, panels: Panels, processor: Processor) -> Plain | None:
    """The left operand as it is read where it lies; None if it is packed."""
    plain = as_plain(matrix.left, matrix.m, matrix)
    if plain is None or 1 not in (plain.stride, plain.k_stride):
        return None
    fits = _left_bytes(matrix) <= processor.level1_bytes // 2
    if plain.k_stride == 1 or fits or panels.count < PANELS_WORTH_PACKING:
        return plain
    return None


def _most_rows(matrix: Matrix, left: Plain | None, panels: Panels, processor: Processor) -> int:
    """How many rows a tile may have: registers are one limit, the first cache another."""
    most = most_rows(processor, panels.vectors)
    if left is None:
        return most
    itemsize = matrix.step.dtype.itemsize
    if left.stride == 1 and left.k_stride * itemsize % LINE_BYTES == 0:
        # A power of two: no tile has a part of one line of the cache and a part of another.
        return 1 << (most.bit_length() - 1)
    # Rows a page multiple apart map to the same sets of the first cache. Some of the room is the
    # right operand's.
    apart = gcd(left.stride * itemsize, _PAGE)
    return min(most, max(3 * processor.level1_bytes // (4 * apart), 4))


def _prefetch(matrix: Matrix, left: Plain | None, rows: int, processor: Processor) -> int:
    """How far ahead the left operand is fetched: some K, or what the next tile reads."""
    row_stride, inner_stride = (1, rows) if left is None else (left.stride, left.k_stride)
    if row_stride == 1:
        is_far = _left_bytes(matrix) > processor.level1_bytes
        return K_AHEAD * inner_stride if is_far else 0
    is_far = _left_bytes(matrix) > processor.level2_bytes // 2
    return rows * row_stride if is_far else 0


def _left_bytes(matrix: Matrix) -> int:
    """The size of one matrix of the left operand."""
    return matrix.m.extent * matrix.k.extent * matrix.step.dtype.itemsize
