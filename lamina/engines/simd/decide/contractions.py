"""The algorithm of a contraction, its register tiles, panels, chunks of K, and split of M.

Most contractions are matrix products in register tiles: a panel of the right operand is packed, or
was packed before the step, and the tiles of all M pass over it. Small contractions are loops. If N
is too small to fill lanes, tiles are made of dot products. Large products of bfloat16 use the tile
registers of AMX, if there are any. Contractions over windows have other algorithms
(`convolutions.py`).
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from lamina.codegen.axes import stride_along
from lamina.codegen.matrix import Matrix, Plain, as_loop, as_matrix, as_plain, can_be_paired
from lamina.engines.simd.decide.convolutions import schedule_windows
from lamina.engines.simd.decide.loops import are_wide, nest_of
from lamina.engines.simd.decide.packing import (
    Panels,
    can_be_read_in_vectors,
    packing_of_all,
    packing_of_some,
)
from lamina.engines.simd.decide.schedule import (
    ALONG_K,
    AMX,
    DIRECT,
    PACKED,
    PREPACKED,
    GemmChoices,
    GemmSchedule,
    LoopSchedule,
    StepSchedule,
    choices_of,
)
from lamina.engines.simd.decide.tiles import (
    AMX_M,
    AMX_M_CYCLES,
    AMX_N,
    AMX_STEPS,
    VECTORS,
    balanced_tile_m,
    dot_tile,
    largest_tile_m,
)
from lamina.engines.simd.decide.work import Work
from lamina.engines.simd.processor import LINE_BYTES, Processor
from lamina.program.steps import Contraction

# Contractions with less work than this, in multiply-adds, are loops: tiles would not pay.
SMALLEST_WORK = 8192
# A long K is summed in chunks, so that a panel stays in the L2 cache. A chunk has at least so many
# k, because it loads and stores the sums of each tile.
SHORTEST_CHUNK = 512
# For the choice between tiles and dots: cycles to pack a vector and to add up its lanes, and the
# largest ratio of cycles, dots to tiles.
_PACKED_VECTOR, _SUM_OF_LANES, _DOTS_MUST_GAIN = 2.5, 5, 0.8
# Cycles to pack an element of the left operand.
_PACKED_ELEMENT = 1.5 / 8
# A left operand that is contiguous along M is packed if at least this many panels read it.
PANELS_WORTH_PACKING = 6
# The least M, N and K for tile registers, which would be half empty otherwise.
_LEAST_AMX = (16, 16, 32)
# Of memory, in bytes.
_PAGE = 4096
# The prefetch distance, in k, for a left operand whose tiles read contiguous rows for each k.
PREFETCH_DISTANCE = 64


def schedule_contraction(
    step: Contraction, processor: Processor, *, prepacked: bool, is_rounded: bool
) -> StepSchedule:
    """The schedule of a contraction.

    With `prepacked`, its right operand may be packed before the step. If `is_rounded`, an operand
    was rounded to 16 bits.
    """
    b, m, n, k = step.extents
    lanes = processor.vector_bytes // step.dtype.itemsize
    is_small = b * m * n * k < SMALLEST_WORK or m < 2 or n < lanes // 4 or k < 2
    if is_small or not step.dtype.is_float:
        return LoopSchedule((nest_of(as_loop(step), processor, is_product=True),))
    paired = processor.bfloat16_pairs and can_be_paired(step)
    panels, matrix = panels_of(step, processor), as_matrix(step, paired=paired)
    plain = as_plain(matrix.left, matrix.m, matrix, below_conversions=True)
    # A left operand that is contiguous along M or along K needs no windows.
    if plain is None or 1 not in (plain.stride, plain.k_stride):
        windows = schedule_windows(step, panels, processor, paired=paired, is_rounded=is_rounded)
        if windows is not None:
            return windows
    if _is_contiguous_along_batch(step, lanes):
        return LoopSchedule((nest_of(as_loop(step), processor, is_product=True),))
    dots = _prefers_dots(matrix, panels, prepacked=prepacked)
    return product_schedule(matrix, panels, processor, dots=dots, prepacked=prepacked and not dots)


def _is_contiguous_along_batch(step: Contraction, lanes: int) -> bool:
    """Whether the elements of neighbouring products are neighbours: lanes then run along these.

    Tiles would gather them for each product.
    """
    if not step.batch or step.batch[-1].extent < lanes:
        return False
    indices = [load.index for load in step.loads] + [store.index for store in step.stores]
    return all(stride_along(index, step.batch[-1]) in (0, 1) for index in indices)


def panels_of(step: Contraction, processor: Processor) -> Panels:
    """The panels into which N is split."""
    lanes = processor.vector_bytes // step.dtype.itemsize
    n = step.extents[2]
    return Panels(lanes, min(VECTORS, -(-n // lanes)), n)


def _prefers_dots(matrix: Matrix, panels: Panels, *, prepacked: bool) -> bool:
    """Whether lanes run along K, to be added up at the end, without packing.

    That is better if a small N would leave lanes empty, or a small M would use a packed panel too
    rarely. Both operands must be contiguous along K.
    """
    if not can_be_dots(matrix):
        return False
    m, n, k = matrix.m.extent, matrix.n.extent, matrix.k.extent
    # Rough cycles: one for a multiply-add, more for packing a vector and for a sum of lanes.
    vectors = -(-n // panels.lanes)
    tiles = m * vectors * k + (0 if prepacked else _PACKED_VECTOR * vectors * k)
    dots = m * n * (-(-k // panels.lanes) + _SUM_OF_LANES)
    return dots < _DOTS_MUST_GAIN * tiles


def can_be_dots(matrix: Matrix) -> bool:
    """Whether both operands are contiguous along K alone."""
    for view, outer in ((matrix.left, matrix.m), (matrix.right, matrix.n)):
        plain = as_plain(view, outer, matrix)
        if plain is None or plain.k_stride != 1 or plain.stride == 1:
            return False
    return not matrix.paired or matrix.k.extent % 2 == 0


def can_be_direct(matrix: Matrix) -> bool:
    """Whether tiles can read the left operand in its buffer: pairs must be contiguous."""
    plain = as_plain(matrix.left, matrix.m, matrix)
    if plain is None or not matrix.paired:
        return plain is not None
    return plain.k_stride == 1 and matrix.k.extent % 2 == 0


def packed_left(matrix: Matrix) -> str:
    """How a left operand is packed: along K if it is contiguous there, otherwise in tiles."""
    plain = as_plain(matrix.left, matrix.m, matrix, below_conversions=True)
    return ALONG_K if plain is not None and plain.k_stride == 1 else PACKED


def product_schedule(
    matrix: Matrix, panels: Panels, processor: Processor, *, dots: bool, prepacked: bool
) -> GemmSchedule:
    """A matrix product with tiles and chunks for the processor's registers and caches."""
    extents = matrix.m.extent, matrix.n.extent, matrix.k.extent
    is_large = matrix.paired and all(map(int.__ge__, extents, _LEAST_AMX))
    algorithm = "dots" if dots else AMX if processor.bfloat16_tiles and is_large else "tiles"
    k_steps, direct = matrix.k_steps, _direct_left(matrix, panels, processor)
    left = packed_left(matrix) if direct is None else DIRECT
    if algorithm == AMX:
        largest, tile_n, left = AMX_M, AMX_N, amx_left(matrix)
        k_steps = -(-k_steps // AMX_STEPS) * AMX_STEPS
    elif dots:
        largest, tile_n = dot_tile(processor)
    else:
        largest, tile_n = _largest_tile_m(matrix, direct, panels, processor), panels.width
    tile_m = balanced_tile_m(matrix.m.extent, largest)
    right = PREPACKED if prepacked else PACKED
    if dots or (not prepacked and matrix.m.extent <= tile_m and can_be_read_in_vectors(matrix)):
        # Dots read the right operand along K. A panel that one tile reads is not packed.
        right = DIRECT
    choices = GemmChoices(
        algorithm=algorithm,
        tile_m=tile_m,
        tile_n=tile_n,
        chunk=k_steps if dots else _longest_chunk(k_steps, matrix, panels, processor),
        split_m=_split_m(matrix, panels, tile_m, processor),
        left=left,
        right=right,
        packing=None,
        prefetch=_prefetch(matrix, direct, tile_m, processor) if algorithm == "tiles" else 0,
    )
    return gemm_schedule(matrix, panels, processor, choices)


def amx_left(matrix: Matrix) -> str:
    """Where tile registers read a left operand: in its buffer if no zeros are needed along K."""
    is_whole = matrix.k_steps % AMX_STEPS == 0
    return DIRECT if is_whole and can_be_direct(matrix) else ALONG_K


def gemm_schedule(
    matrix: Matrix, panels: Panels, processor: Processor, choices: GemmChoices
) -> GemmSchedule:
    """The schedule with these choices, and the work that follows from them."""
    b, m, n, k = extents = matrix.step.extents
    steps = -(-n // panels.lanes) * b * m * matrix.k_steps
    cycles = float(steps) * (1.0 if processor.fused else 2.0)
    if choices.algorithm == AMX:
        cycles = steps / AMX_STEPS * AMX_M_CYCLES
    packing_left = None
    if choices.left != DIRECT:
        items = b * (m if choices.left == ALONG_K else -(-m // choices.tile_m))
        packing_left = Work(items, _PACKED_ELEMENT * b * m * k)
    if choices.packing is None and choices.algorithm != "dots":
        # Pairs of an odd K are packed in its order.
        in_k_order = matrix.paired and matrix.k.extent % 2 == 1
        packs_all = choices.right == PREPACKED and not in_k_order
        packing = packing_of_all(matrix, panels.lanes) if packs_all else packing_of_some(matrix)
        choices = replace(choices, packing=packing)
    return GemmSchedule(
        **choices_of(GemmChoices, choices),
        extents=extents,
        panels=panels,
        wide_epilogue=are_wide((store.value for store in matrix.step.stores), processor),
        work=Work(b * panels.count * choices.split_m, cycles),
        packing_left=packing_left,
        paired=matrix.paired,
    )


def _longest_chunk(k: int, matrix: Matrix, panels: Panels, processor: Processor) -> int:
    """The steps, of `k`, that are summed in one pass: a panel of them takes half of the L2 cache.

    The chunks of a sum are about equally long.
    """
    k_bytes = panels.width * matrix.step.dtype.itemsize
    most = max(processor.level2_bytes // 2 // k_bytes, SHORTEST_CHUNK)
    length = -(-k // -(-k // most))
    return min(k, -(-length // panels.lanes) * panels.lanes)


def _split_m(matrix: Matrix, panels: Panels, tile_m: int, processor: Processor) -> int:
    """The work items into which M is split for each panel, so that all workers have a share."""
    threads = processor.threads
    items = matrix.batch.extent * panels.count
    if items >= 4 * threads or items % threads == 0:
        return 1
    return min(-(-matrix.m.extent // tile_m), -(-4 * threads // items))


def _direct_left(matrix: Matrix, panels: Panels, processor: Processor) -> Plain | None:
    """The left operand as an address and strides; None if it is packed."""
    plain = as_plain(matrix.left, matrix.m, matrix) if can_be_direct(matrix) else None
    if plain is None or 1 not in (plain.stride, plain.k_stride):
        return None
    fits = _left_bytes(matrix) <= processor.level1_bytes // 2
    if plain.k_stride == 1 or fits or panels.count < PANELS_WORTH_PACKING:
        return plain
    return None


def _largest_tile_m(
    matrix: Matrix, left: Plain | None, panels: Panels, processor: Processor
) -> int:
    """The most rows of a tile: limited by registers and by the L1 cache."""
    largest = largest_tile_m(processor, panels.vectors)
    if left is None:
        return largest
    itemsize = _itemsize(matrix)
    if left.stride == 1 and left.k_stride * itemsize % LINE_BYTES == 0:
        # A power of two: tiles do not share cache lines.
        return 1 << (largest.bit_length() - 1)
    # Rows a page multiple apart map to the same sets of the L1 cache. The right operand needs some
    # sets, too.
    stride = gcd(left.stride * itemsize, _PAGE)
    return min(largest, max(3 * processor.level1_bytes // (4 * stride), 4))


def _prefetch(matrix: Matrix, left: Plain | None, tile_m: int, processor: Processor) -> int:
    """The prefetch distance of the left operand in elements: some k, or the next tile; or 0."""
    per_step = 2 if matrix.paired else 1
    if left is not None:
        m_stride, step_stride = left.stride, per_step * left.k_stride
    elif packed_left(matrix) == ALONG_K:
        m_stride, step_stride = per_step * matrix.k_steps, per_step
    else:
        m_stride, step_stride = per_step, per_step * tile_m
    if m_stride == per_step:
        is_far = _left_bytes(matrix) > processor.level1_bytes
        return PREFETCH_DISTANCE * step_stride if is_far else 0
    is_far = _left_bytes(matrix) > processor.level2_bytes // 2
    return tile_m * m_stride if is_far else 0


def _left_bytes(matrix: Matrix) -> int:
    """The bytes of one matrix of the left operand."""
    return matrix.m.extent * matrix.k.extent * _itemsize(matrix)


def _itemsize(matrix: Matrix) -> int:
    """The bytes of an element that tiles read."""
    return 2 if matrix.paired else matrix.step.dtype.itemsize
