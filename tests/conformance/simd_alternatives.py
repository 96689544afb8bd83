"""Other correct schedules for the steps of a program, which tests force for all sizes.

There are a few for each step, odd on purpose: every algorithm that can compute it, with small
tiles, uneven chunks and splits, packed and direct operands, narrow vectors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lamina.codegen.axes import merged_axes
from lamina.codegen.matrix import Matrix, as_loop, as_matrix, can_be_paired
from lamina.codegen.signatures import Signatures
from lamina.codegen.stages import Style, fitting_lanes
from lamina.engines.simd.decide.amx import can_be_amx
from lamina.engines.simd.decide.contractions import (
    amx_left,
    can_be_direct,
    can_be_dots,
    gemm_schedule,
)
from lamina.engines.simd.decide.convolutions import can_have_images, m_tiles_of, window_schedule
from lamina.engines.simd.decide.loops import nest_of, nest_with, possible_vectors
from lamina.engines.simd.decide.packing import Packing, Panels, can_be_read_in_vectors
from lamina.engines.simd.decide.program import decide
from lamina.engines.simd.decide.schedule import (
    ALONG_K,
    AMX,
    DIRECT,
    PACKED,
    PREPACKED,
    GemmChoices,
    GemmSchedule,
    LoopSchedule,
    NestSchedule,
    ProgramSchedule,
    StepSchedule,
    WindowChoices,
    WindowSchedule,
)
from lamina.engines.simd.decide.split_reductions import split_loop
from lamina.engines.simd.decide.tiles import AMX_STEPS
from lamina.engines.simd.decide.windows import (
    COL2IM,
    IMPLICIT_GEMM,
    WEIGHT_GRADIENT,
    WINOGRAD_WEIGHT_GRADIENT,
    Windowed,
    paired_readings,
    readings,
)
from lamina.engines.simd.processor import Processor
from lamina.program.program import Program
from lamina.program.steps import COMBINING, Contraction, Loop, Reduce, Step

# Stages with nothing unrolled, and with all windows unrolled.
_LOOPS, _UNROLLED = Style(0, 0, 0), Style(0, 8, 32)
# The blocks of reductions: an odd number, so that it does not divide most extents.
_BLOCKS = 3
# Any operand can be packed in these two orders.
_K_BY_K, _MEMORY_ORDER = Packing(False, in_memory_order=False), Packing(False, in_memory_order=True)


def legal_schedules(program: Program, processor: Processor) -> Iterator[ProgramSchedule]:
    """Schedules that together cover all alternatives of each step."""
    signatures = Signatures(program)
    alternatives: dict[Step, Sequence[StepSchedule | None]] = {}
    choices: list[Sequence[StepSchedule | None]] = []
    for step in program.steps:
        (numbered,), _ = signatures.numbered(step)
        if numbered not in alternatives:
            # None: the step is run, or fused after another one, as `decide` chooses.
            alternatives[numbered] = (None, *alternatives_of(numbered, processor))
        choices.append(alternatives[numbered])
    for forced in combinations(choices):
        yield decide(program, processor, forced, signatures=signatures)


def combinations(steps: Sequence[Sequence[Any]]) -> Iterator[dict[int, Any]]:
    """Alternatives by the numbers of their steps, so that together they have all of every step.

    A step has no alternative where it is None.
    """
    for index in range(max(map(len, steps), default=0)):
        chosen = {number: choices[index % len(choices)] for number, choices in enumerate(steps)}
        if forced := {number: choice for number, choice in chosen.items() if choice is not None}:
            yield forced


def alternatives_of(step: Step, processor: Processor) -> Iterator[StepSchedule]:
    """Correct schedules for one step."""
    if isinstance(step, Loop):
        yield from _of_loop(step, processor)
        return
    yield LoopSchedule((next(_nests(as_loop(step), processor)),))
    if step.dtype.is_float and all(step.extents):
        yield from _of_matrix(as_matrix(step), processor)
        if processor.bfloat16_pairs and can_be_paired(step):
            yield from _of_matrix(as_matrix(step, paired=True), processor)
        if processor.bfloat16_tiles and can_be_paired(step):
            yield from _of_amx(as_matrix(step, paired=True), processor)
        yield from _of_windows(step, processor)


# Loops --------------------------------------------------------------------------------------------


def _of_loop(loop: Loop, processor: Processor) -> Iterator[LoopSchedule]:
    loop = merged_axes(loop)
    for nest in _nests(loop, processor):
        yield LoopSchedule((nest,))
    stages = (stage for stage in loop.stages if isinstance(stage, Reduce))
    locals_ = tuple(stage.local for stage in stages if _can_be_split(stage))
    if locals_:
        split = split_loop(loop, locals_, _BLOCKS)
        nests = tuple(nest_of(part, processor) for part in split.loops)
        yield LoopSchedule(nests, locals_, _BLOCKS)


def _can_be_split(stage: Reduce) -> bool:
    return stage.combine in COMBINING and bool(stage.axes) and stage.axes[0].extent >= _BLOCKS


def _nests(loop: Loop, processor: Processor) -> Iterator[NestSchedule]:
    """Vectors along each axis, of the usual width and of two lanes."""
    for number, vectors in enumerate(possible_vectors(loop, processor)):
        nest = nest_with(loop, vectors)
        order, lanes = nest.order, vectors.lanes
        if vectors.lane is not None:
            # Vectors of the axis are work items, in a nest with the axes reversed.
            yield replace(nest, order=order[::-1], shared=vectors.lane, style=_UNROLLED)
            lanes = fitting_lanes(2, vectors.lane.extent)
        style = replace(_LOOPS, inner_lanes=2 if vectors.along_inner_axis else 0)
        shared = order[number % len(order)] if order else None
        yield replace(nest, lanes=lanes, shared=shared, style=style)


# Matrix products ----------------------------------------------------------------------------------


def _of_matrix(matrix: Matrix, processor: Processor) -> Iterator[GemmSchedule]:
    m, k = matrix.m.extent, matrix.k_steps
    full = processor.vector_bytes // matrix.step.dtype.itemsize
    # Pairs are packed in the order of K.
    order = _K_BY_K if matrix.paired else _MEMORY_ORDER
    direct = DIRECT if can_be_direct(matrix) else ALONG_K
    yield _product(matrix, processor, (2, 1), 1, -(-k // 2), PACKED, PACKED, _K_BY_K)
    yield _product(matrix, processor, (max(full // 2, 2), 2), 3, k, direct, PACKED)
    yield _product(matrix, processor, (full, 3), 2, -(-k // 3), PACKED, PREPACKED, order)
    yield _product(matrix, processor, (full, 2), min(m, 5), k, direct, PREPACKED)
    if can_be_read_in_vectors(matrix):
        yield _product(matrix, processor, (2, 2), 4, max(k - 1, 1), direct, DIRECT)
    if can_be_dots(matrix):
        vectors = (max(full // 2, 2), 2)
        yield _product(matrix, processor, vectors, 2, k, DIRECT, DIRECT, algorithm="dots")


def _of_amx(matrix: Matrix, processor: Processor) -> Iterator[GemmSchedule]:
    """Tile registers that are not full, chunks of one register, copies of the left operand."""
    k_steps = -(-matrix.k_steps // AMX_STEPS) * AMX_STEPS
    for vectors, tile_m, steps, left, right, packing in (
        (1, 5, AMX_STEPS, ALONG_K, PACKED, _K_BY_K),
        (2, 19, 2 * AMX_STEPS, amx_left(matrix), PREPACKED, None),
        (2, 32, k_steps, amx_left(matrix), PACKED, None),
    ):
        how = ((AMX_STEPS, vectors), tile_m, min(steps, k_steps), left, right, packing)
        yield _product(matrix, processor, *how, algorithm=AMX)


def _product(
    matrix: Matrix,
    processor: Processor,
    vectors: tuple[int, int],
    tile_m: int,
    chunk: int,
    left: str,
    right: str,
    packing: Packing | None = None,
    *,
    algorithm: str = "tiles",
) -> GemmSchedule:
    """Tiles of up to `tile_m` rows; `vectors` is (lanes of a vector, vectors of a panel)."""
    panels = Panels(*vectors, matrix.n.extent)
    tile_m, tile_n = min(tile_m, matrix.m.extent), 3 if algorithm == "dots" else panels.width
    split_m = min(-(-matrix.m.extent // tile_m), 2)
    prefetch = tile_m if algorithm == "tiles" and left != DIRECT else 0
    sizes = (tile_m, tile_n, chunk, split_m)
    choices = GemmChoices(algorithm, *sizes, left, right, packing, prefetch)
    return gemm_schedule(matrix, panels, processor, choices)


# Contractions over windows ------------------------------------------------------------------------


def _of_windows(step: Contraction, processor: Processor) -> Iterator[WindowSchedule]:
    """Each algorithm that can compute it, in small blocks and in whole images."""
    full = processor.vector_bytes // step.dtype.itemsize
    n = step.extents[2]
    pairs = processor.bfloat16_pairs and can_be_paired(step)
    for windowed in (*readings(step).values(), *(paired_readings(step).values() if pairs else ())):
        narrow, wide = Panels(max(full // 2, 2), 1, n), Panels(full, 2, n)
        for panels, tile_m, is_small in ((narrow, 3, True), (wide, 5, False)):
            yield _over_windows(windowed, panels, processor, tile_m, is_small=is_small)
        is_implicit = windowed.algorithm == IMPLICIT_GEMM
        if processor.bfloat16_tiles and is_implicit and can_be_amx(windowed, wide):
            yield from _amx_windows(windowed, processor)


def _amx_windows(windowed: Windowed, processor: Processor) -> Iterator[WindowSchedule]:
    """Tile registers that are not full, in small blocks; and large tiles in whole images."""
    n = windowed.step.extents[2]
    for vectors, tile_m, is_small in ((1, 5, True), (2, 21, False)):
        panels = Panels(AMX_STEPS, vectors, n)
        yield _over_windows(windowed, panels, processor, tile_m, is_small=is_small, amx=True)


def _over_windows(
    windowed: Windowed,
    panels: Panels,
    processor: Processor,
    tile_m: int,
    *,
    is_small: bool,
    amx: bool = False,
) -> WindowSchedule:
    algorithm, positions = windowed.algorithm, windowed.tiles[0]
    block, images = positions, 1
    if is_small and algorithm != COL2IM:
        block = -(-positions // 2)
    elif algorithm != COL2IM and can_have_images(windowed):
        images = windowed.outer.extent
    split_m = partial_sums = 1
    channels = windowed.channels if windowed.filtering else 0
    if algorithm == WEIGHT_GRADIENT:
        split_m = min(m_tiles_of(windowed, block, tile_m).count, 2)
    if algorithm in (WEIGHT_GRADIENT, *WINOGRAD_WEIGHT_GRADIENT.values()):
        partial_sums = min(windowed.outer.extent // images, 3)
    panels_at_once = 1
    if algorithm in WINOGRAD_WEIGHT_GRADIENT.values():
        if is_small and channels % panels.lanes == 0:
            channels = panels.lanes
        elif not is_small:
            partial_sums, panels_at_once = 1, min(2, panels.count)
    choices = WindowChoices(
        *(tile_m, block, images, split_m, partial_sums, channels, panels_at_once, amx)
    )
    schedule = window_schedule(windowed, panels, processor, choices)
    return _packed_otherwise(schedule) if is_small else schedule


def _packed_otherwise(schedule: WindowSchedule) -> WindowSchedule:
    """The schedule with nothing unrolled, no operand read directly, and no register transposes."""
    prepacked = schedule.prepacked
    return replace(
        schedule,
        copied=None if schedule.copied is None else 0,
        transposed=False,
        right=PACKED if schedule.right == DIRECT else schedule.right,
        packing=None if schedule.packing is None else _K_BY_K,
        prepacked=None if prepacked is None else replace(prepacked, packing=_MEMORY_ORDER),
        unrolled=0,
    )
