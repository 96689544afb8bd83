"""Other right ways to run the steps of a program: what tests force, whatever the sizes are.

They are few for each step, and odd on purpose: every algorithm that can compute it, with small
tiles, uneven chunks and cuts, operands packed and read where they lie, narrow vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lamina.codegen.axes import merged_axes
from lamina.codegen.filtering import RESULTS
from lamina.codegen.matrix import Matrix, as_loop, as_matrix, as_plain
from lamina.codegen.signatures import Signatures
from lamina.codegen.stages import Style, fitting_lanes
from lamina.engines.cpu.decide.contractions import (
    can_be_dots,
    gemm_schedule,
)
from lamina.engines.cpu.decide.convolutions import can_have_images, row_tiles_of, window_schedule
from lamina.engines.cpu.decide.loops import nest_of, nest_with, possible_vectors
from lamina.engines.cpu.decide.packing import Packing, can_be_read_in_vectors
from lamina.engines.cpu.decide.panels import Panels
from lamina.engines.cpu.decide.program import decide
from lamina.engines.cpu.decide.schedule import (
    DIRECT,
    PACKED,
    PREPACKED,
    GemmSchedule,
    LoopSchedule,
    Nest,
    Schedule,
    StepSchedule,
    WindowSchedule,
)
from lamina.engines.cpu.decide.split_reductions import can_be_cut, split_loop
from lamina.engines.cpu.decide.windows import (
    COL2IM,
    WEIGHT_GRADIENT,
    WINOGRAD_WEIGHT_GRADIENT,
    Windowed,
    readings,
)
from lamina.engines.cpu.decide.winograd import is_winograd
from lamina.engines.cpu.processor import Processor
from lamina.program.program import Program
from lamina.program.steps import Contraction, Loop, Reduce, Step

# Stages without anything unrolled, and with all windows.
_LOOPS, _UNROLLED = Style(0, 0, 0), Style(0, 8, 32)
# Reductions are cut into so many blocks, which leaves something over.
_BLOCKS = 3
# Any operand can be packed in these orders.
_K_BY_K, _AS_IT_LIES = Packing(False, as_it_lies=False), Packing(False, as_it_lies=True)


def legal_schedules(program: Program, processor: Processor) -> Iterator[Schedule]:
    """Schedules that together run each step in all of its ways."""
    signatures = Signatures(program)
    known: dict[Step, Sequence[StepSchedule | None]] = {}
    found: list[Sequence[StepSchedule | None]] = []
    for step in program.steps:
        (numbered,), _ = signatures.numbered(step)
        if numbered not in known:
            # Without a way of its own it is run, or fused behind another one, as it is decided.
            known[numbered] = (None, *alternatives_of(numbered, processor))
        found.append(known[numbered])
    for turn in range(max(map(len, found), default=0)):
        chosen = {number: ways[turn % len(ways)] for number, ways in enumerate(found)}
        forced = {number: way for number, way in chosen.items() if way is not None}
        if forced:
            yield decide(program, processor, forced, signatures=signatures)


def alternatives_of(step: Step, processor: Processor) -> Iterator[StepSchedule]:
    """Ways to run one step."""
    if isinstance(step, Loop):
        yield from _of_loop(step, processor)
        return
    yield LoopSchedule((next(_nests(as_loop(step), processor)),))
    if step.dtype.is_float and all(step.extents):
        yield from _of_product(as_matrix(step), processor)
        yield from _of_windows(step, processor)


# Loops --------------------------------------------------------------------------------------------


def _of_loop(loop: Loop, processor: Processor) -> Iterator[LoopSchedule]:
    loop = merged_axes(loop)
    for nest in _nests(loop, processor):
        yield LoopSchedule((nest,))
    stages = (stage for stage in loop.stages if isinstance(stage, Reduce))
    cut = tuple(stage.local for stage in stages if can_be_cut(stage, _BLOCKS))
    if cut:
        split = split_loop(loop, cut, _BLOCKS)
        yield LoopSchedule(tuple(nest_of(one, processor) for one in split.loops), cut, _BLOCKS)


def _nests(loop: Loop, processor: Processor) -> Iterator[Nest]:
    """Vectors along each axis, as wide as they are chosen and with two lanes."""
    for number, vectors in enumerate(possible_vectors(loop, processor)):
        nest = nest_with(loop, vectors)
        order, lanes = nest.order, vectors.lanes
        if vectors.lane is not None:
            # Vectors of the axis are work items, in a nest the wrong way round.
            yield replace(nest, order=order[::-1], shared=vectors.lane, style=_UNROLLED)
            lanes = fitting_lanes(2, vectors.lane.extent)
        style = replace(_LOOPS, inner_lanes=2 if vectors.inner else 0)
        shared = order[number % len(order)] if order else None
        yield replace(nest, lanes=lanes, shared=shared, style=style)


# Products of matrices -----------------------------------------------------------------------------


def _of_product(matrix: Matrix, processor: Processor) -> Iterator[GemmSchedule]:
    _, m, _, k = matrix.step.extents
    full = processor.vector_bytes // matrix.step.dtype.itemsize
    plain = as_plain(matrix.left, matrix.m, matrix) is not None
    direct = DIRECT if plain else PACKED
    yield _product(matrix, processor, (2, 1), 1, -(-k // 2), PACKED, PACKED, _K_BY_K)
    yield _product(matrix, processor, (max(full // 2, 2), 2), 3, k, direct, PACKED)
    yield _product(matrix, processor, (full, 3), 2, -(-k // 3), PACKED, PREPACKED, _AS_IT_LIES)
    yield _product(matrix, processor, (full, 2), min(m, 5), k, direct, PREPACKED)
    if can_be_read_in_vectors(matrix):
        yield _product(matrix, processor, (2, 2), 4, max(k - 1, 1), direct, DIRECT)
    if can_be_dots(matrix):
        panels = Panels(max(full // 2, 2), 2, matrix.n.extent)
        yield gemm_schedule(
            matrix,
            panels,
            processor,
            algorithm="dots",
            tile=(2, 3),
            chunk=k,
            row_cuts=min(-(-m // 2), 2),
            left=DIRECT,
            right=DIRECT,
            prefetch=0,
        )


def _product(
    matrix: Matrix,
    processor: Processor,
    vectors: tuple[int, int],
    rows: int,
    chunk: int,
    left: str,
    right: str,
    packing: Packing | None = None,
) -> GemmSchedule:
    """Tiles of so many rows, in panels of some vectors of so many lanes."""
    lanes, count = vectors
    panels = Panels(lanes, count, matrix.n.extent)
    rows = min(rows, matrix.m.extent)
    return gemm_schedule(
        matrix,
        panels,
        processor,
        algorithm="tiles",
        tile=(rows, panels.width),
        chunk=chunk,
        row_cuts=min(-(-matrix.m.extent // rows), 2),
        left=left,
        right=right,
        prefetch=0 if left == DIRECT else rows,
        packing=packing,
    )


# Contractions over windows ------------------------------------------------------------------------


def _of_windows(step: Contraction, processor: Processor) -> Iterator[WindowSchedule]:
    """Each algorithm that can compute it, in small blocks and in whole images."""
    full = processor.vector_bytes // step.dtype.itemsize
    columns = step.extents[2]
    for algorithm, how in readings(step).items():
        narrow, wide = Panels(max(full // 2, 2), 1, columns), Panels(full, 2, columns)
        for panels, rows, is_small in ((narrow, 3, True), (wide, 5, False)):
            yield _over_windows(how, algorithm, panels, processor, rows, is_small=is_small)


def _over_windows(
    how: Windowed,
    algorithm: str,
    panels: Panels,
    processor: Processor,
    rows: int,
    *,
    is_small: bool,
) -> WindowSchedule:
    positions = how.image.places[0].extent
    if is_winograd(algorithm):
        positions //= RESULTS
    block, images = positions, 1
    if is_small and algorithm != COL2IM:
        block = -(-positions // 2)
    elif algorithm != COL2IM and can_have_images(how):
        images = how.outer.extent
    row_cuts = partial_sums = 1
    channels = how.image.sides[-1].axis.extent if is_winograd(algorithm) else 0
    if algorithm == WEIGHT_GRADIENT:
        row_cuts = min(row_tiles_of(how, block, rows).count, 2)
    if algorithm in (WEIGHT_GRADIENT, *WINOGRAD_WEIGHT_GRADIENT.values()):
        partial_sums = min(how.outer.extent // images, 3)
    if algorithm in WINOGRAD_WEIGHT_GRADIENT.values() and channels % panels.lanes == 0:
        channels = panels.lanes if is_small else channels
    made = window_schedule(
        how,
        algorithm,
        panels,
        processor,
        rows=rows,
        block=block,
        images=images,
        row_cuts=row_cuts,
        partial_sums=partial_sums,
        channels=channels,
    )
    return _packed_otherwise(made) if is_small else made


def _packed_otherwise(made: WindowSchedule) -> WindowSchedule:
    """The schedule with nothing unrolled, read directly or turned that need not be."""
    return replace(
        made,
        copied=None if made.copied is None else 0,
        right=PACKED if made.right == DIRECT else made.right,
        packing=None if made.packing is None else _K_BY_K,
        prepacked=None if made.prepacked is None else replace(made.prepacked, packing=_AS_IT_LIES),
        unrolled=0,
    )
