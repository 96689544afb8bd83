"""A few schedules of a step that may be the fastest: they are timed on the device.

The cost model decides by the sizes of caches and registers, and OpenCL does not report all of
them. So the candidates differ in the choices that depend on these: the algorithm, the height and
width of register tiles, how operands are packed, and the axis of vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from lamina.codegen.axes import merged_axes
from lamina.codegen.matrix import as_matrix
from lamina.engines.simd.decide.contractions import (
    can_be_dots,
    gemm_schedule,
    panels_of,
    product_schedule,
)
from lamina.engines.simd.decide.convolutions import k_runs_outermost, schedule_by, window_schedule
from lamina.engines.simd.decide.loops import nest_with, possible_vectors
from lamina.engines.simd.decide.schedule import (
    PACKED,
    PREPACKED,
    GemmSchedule,
    LoopSchedule,
    StepSchedule,
    WindowSchedule,
)
from lamina.engines.simd.decide.tiles import balanced_tile_m
from lamina.engines.simd.decide.windows import IMPLICIT_GEMM, WEIGHT_GRADIENT, readings
from lamina.engines.simd.processor import Processor
from lamina.program.steps import Contraction, Loop, Step

# The most candidates besides the one that was decided on: drivers take a third of a second to
# compile one.
MOST = 2
# Nests that cost this many times as much as the cheapest one are slower on every processor.
_HOPELESS = 3.0


def candidates(step: Step, decided: StepSchedule, processor: Processor) -> tuple[StepSchedule, ...]:
    """The schedules of a step that are timed: the one that was decided on, then others."""
    others: Iterator[StepSchedule] = iter(())
    if isinstance(step, Loop):
        others = _of_loop(step, decided, processor)
    elif isinstance(step, Contraction) and isinstance(decided, GemmSchedule):
        others = _of_matrix(step, decided, processor)
    elif isinstance(step, Contraction) and isinstance(decided, WindowSchedule):
        others = _of_windows(step, decided, processor)
    return tuple(islice(dict.fromkeys((decided, *others)), 1 + MOST))


def _of_loop(loop: Loop, decided: StepSchedule, processor: Processor) -> Iterator[LoopSchedule]:
    """The nests with the next cheapest vectors, unless reductions are split."""
    if len(decided.works) > 1:
        return
    loop = merged_axes(loop)
    nests = [nest_with(loop, vectors) for vectors in possible_vectors(loop, processor)]
    nests.sort(key=lambda nest: nest.cycles)
    for nest in nests[1:]:
        if nest.cycles <= _HOPELESS * nests[0].cycles:
            yield LoopSchedule((nest,))


def _of_matrix(
    step: Contraction, decided: GemmSchedule, processor: Processor
) -> Iterator[GemmSchedule]:
    """Dots or tiles, the right operand in other memory, lower tiles."""
    matrix, panels = as_matrix(step), panels_of(step, processor)
    if decided.algorithm == "dots":
        for prepacked in (False, True):
            yield product_schedule(matrix, panels, processor, dots=False, prepacked=prepacked)
        return
    if can_be_dots(matrix):
        yield product_schedule(matrix, panels, processor, dots=True, prepacked=False)

    tile_m = balanced_tile_m(matrix.m.extent, -(-decided.tile_m // 2))
    right = PACKED if decided.right == PREPACKED else PREPACKED
    changed = {"algorithm": "tiles", "tile_n": panels.width, "packing": None}
    for changes in ({"right": right}, {"tile_m": tile_m}):
        choices = replace(decided, **changed, **changes)
        yield gemm_schedule(matrix, panels, processor, choices)


def _of_windows(
    step: Contraction, decided: WindowSchedule, processor: Processor
) -> Iterator[WindowSchedule]:
    """Winograd's algorithm or another one, other splits of the work, lower tiles."""
    algorithms = readings(step)
    # Of the two that read windows directly, the other one would read with gaps.
    unsuitable = IMPLICIT_GEMM if k_runs_outermost(step) else WEIGHT_GRADIENT
    others = [name for name in algorithms if name not in (decided.algorithm, unsuitable)]
    others.sort(key=lambda name: algorithms[name].filtering is None)
    for algorithm in others[:1]:
        yield schedule_by(algorithms[algorithm], decided.panels, processor)
    windowed = algorithms[decided.algorithm]
    if windowed.filtering:
        # Its kernels take a second to compile, and other chunks saved nothing.
        return
    changes: list[dict[str, int]] = []
    if decided.algorithm == WEIGHT_GRADIENT:
        outer = windowed.outer.extent // decided.images
        changes.append({"split_m": 1, "partial_sums": min(outer, 2 * processor.threads)})
    if decided.images > 1:
        changes.append({"images": 1})
    if decided.algorithm == IMPLICIT_GEMM and decided.block > 1:
        changes.append({"block": -(-decided.block // 2), "images": 1})
    changes.append({"tile_m": max(decided.tile_m // 2, 1)})
    for change in changes:
        choices = replace(decided, **change)
        yield window_schedule(windowed, decided.panels, processor, choices)
