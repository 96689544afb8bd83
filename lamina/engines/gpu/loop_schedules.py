"""Schedules of loops: which there are for a loop, and the fastest ones."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lamina.base.shapes import size_of
from lamina.codegen.axes import flattened, merged_axes
from lamina.engines.gpu.launches import Traits
from lamina.engines.gpu.passes import leading_reductions, ordered, split_loop
from lamina.engines.gpu.products import SMALL, contiguous, index_run
from lamina.engines.gpu.schedule import (
    NARROW,
    KernelSchedule,
    LoopSchedule,
    Pass,
    PassesSchedule,
    RowSchedule,
    ScanSchedule,
    SortSchedule,
    WrittenSchedule,
)
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.program.rewrite import Rewrite
from lamina.program.steps import (
    Loop,
    Reduce,
    Scan,
    Sort,
    Write,
    inner_axes,
    stage_stores,
    stage_values,
)

# An axis longer than this is sorted in runs, which are merged; and the length of a run.
LONG_SORT, RUN = 4096, 256
# An axis of this length is scanned in blocks if there are few points.
LONG_SCAN = 1 << 14
# The lanes of vectors of points.
POINT_LANES = 4
# The work items of a compute unit with which it is well occupied, and the most that are worth a
# division of the work.
FULL, FEW = 1024, 256
# Reductions up to this length are left to one work item if there are enough points.
SHORT = 32
# The fewest work items of a group, the width of a wavefront of AMD's older GPUs; and the most that
# a device may be expected to allow.
LEAST_GROUP, MOST_GROUP = 64, 256
# The shortest share of a reduction that is split.
LEAST_SHARE = 16
_LARGEST_ELEMENT_BYTES = 8


def loop_schedules(loop: Loop, bits: int, traits: Traits) -> Iterator[WrittenSchedule]:
    """Schedules of a loop, the one that is expected to be the fastest first."""
    stage = loop.stages[0]
    if isinstance(stage, Sort):
        extent = stage.axis.extent
        yield merge_schedule(extent, RUN if extent > LONG_SORT else max(extent, 1), bits)
        return
    if isinstance(stage, Scan):
        yield from _scan_schedules(loop, stage, bits, traits)
    if is_plain(loop) and traits.largest_group >= LEAST_GROUP:
        yield from _plain_schedules(loop, bits, traits)
    point = point_schedule(loop, bits, traits)
    yield point
    if point.lanes > 1:
        yield LoopSchedule(1, bits)


def merge_schedule(extent: int, run: int, bits: int) -> SortSchedule | PassesSchedule:
    """The schedule that sorts runs and merges pairs of them until one is left."""
    kernels = [SortSchedule(run, False, bits)]
    while run < extent:
        kernels.append(SortSchedule(run, True, bits))
        run *= 2
    return PassesSchedule((Pass(1, 1, tuple(kernels)),)) if len(kernels) > 1 else kernels[0]


def _scan_schedules(loop: Loop, scan: Scan, bits: int, traits: Traits) -> Iterator[WrittenSchedule]:
    """Schedules in which groups scan an axis together."""
    points, extent = points_of(loop), scan.axis.extent
    many = points >= traits.compute_units * FEW
    if not points or many or extent <= SHORT or traits.largest_group < LEAST_GROUP:
        return
    items = _power_at_least(extent, LEAST_GROUP, min(traits.largest_group, MOST_GROUP))
    if points < traits.compute_units and extent >= LONG_SCAN:
        splits = max(traits.compute_units * 4 // points, 1)
        splits = _divisor_near(extent, splits, MOST_GROUP, _most_shares(points, traits))
        if splits > 1:
            reduced = RowSchedule(items, 1, False, bits)
            few = ScanSchedule(LEAST_GROUP, bits)
            kernels = (reduced, few, ScanSchedule(items, bits))
            yield PassesSchedule((Pass(1, splits, kernels),))
    yield ScanSchedule(items, bits)


def _plain_schedules(loop: Loop, bits: int, traits: Traits) -> Iterator[WrittenSchedule]:
    """Schedules that share the inner axes, of a loop that only reduces and writes."""
    points, inner = points_of(loop), longest_inner(loop)
    if not points or inner < 2:
        return
    few = points < traits.compute_units * FEW
    along_points = reads_along_points(loop)
    if points * inner < LEAST_GROUP or (inner <= SHORT and not few):
        return
    # A group for each point leaves compute units idle, or reads with gaps.
    much = points * inner >= traits.compute_units * FEW
    if few and much and (along_points or points < 2 * traits.compute_units):
        yield from _passes(loop, bits, traits)
    if not along_points or few:
        yield row_schedule(loop, bits, traits)


def point_schedule(loop: Loop, bits: int, traits: Traits) -> LoopSchedule:
    """The schedule with a work item for each point or vector of points."""
    merged = merged_axes(loop)
    if not merged.axes or not is_plain(loop):
        return LoopSchedule(1, bits)
    last, lanes = merged.axes[-1], POINT_LANES
    enough = points_of(loop) >= lanes * traits.compute_units * FEW
    stored = [store.index for stage in merged.stages for store in stage_stores(stage)]
    values = [value for stage in merged.stages for value in stage_values(stage)]
    fits = last.extent % lanes == 0 and all(index_run(index, last) >= lanes for index in stored)
    if enough and fits and all(contiguous(value, last, lanes, SMALL) for value in values):
        return LoopSchedule(lanes, bits)
    return LoopSchedule(1, bits)


def row_schedule(loop: Loop, bits: int, traits: Traits) -> RowSchedule:
    """The schedule whose groups share the inner axes of one or several points."""
    inner = longest_inner(loop)
    most = min(traits.largest_group, MOST_GROUP)
    along_points = reads_along_points(loop)
    items = _power_at_least(-(-inner // 4), 4, most)
    if along_points:
        items = min(items, max(most // 32, 1))
    rows, points = 1, points_of(loop)
    group_items = most if along_points else LEAST_GROUP
    while items * rows * 2 <= group_items and points % (rows * 2) == 0:
        rows *= 2
    return RowSchedule(items, rows, along_points, bits)


def _passes(loop: Loop, bits: int, traits: Traits) -> Iterator[PassesSchedule]:
    """Each wave of reductions as a pass that is split, and each write over axes as a pass."""
    stages = ordered(loop).stages
    passes: list[Pass] = []
    begin = 0
    while begin < len(stages):
        # A pass ends before each further wave of reductions, and around writes over axes.
        leading = len(leading_reductions(stages[begin:]))
        end = begin + max(leading, 1)
        alone = not leading and bool(inner_axes(stages[begin]))
        while not alone and end < len(stages) and not inner_axes(stages[end]):
            end += 1
        passes.append(_pass(Loop(loop.name, loop.axes, stages[begin:end]), bits, traits))
        begin = end
    if len(passes) > 1 or passes[0].splits > 1:
        yield PassesSchedule(tuple(passes))


def _pass(loop: Loop, bits: int, traits: Traits) -> Pass:
    points = points_of(loop)
    splits = 1
    if leading_reductions(loop.stages):
        splits = max(traits.compute_units * FULL // points, 1)
        splits = _divisor_near(split_size(loop), splits, LEAST_SHARE, _most_shares(points, traits))
    if splits > 1:
        first, _ = split_loop(loop, splits, StepWorkspaces(loop.name))
        share: KernelSchedule = LoopSchedule(1, bits)
        if reads_along_points(loop):
            share = point_schedule(first, bits, traits)
        elif split_size(loop) // splits >= SHORT:
            share = row_schedule(first, bits, traits)
        return Pass(
            len(loop.stages), splits, (share, combining_schedule(points, splits, bits, traits))
        )
    if len(loop.stages) == 1 and isinstance(loop.stages[0], Write):
        spread = Loop(loop.name, (*loop.axes, *loop.stages[0].axes), loop.stages)
        return Pass(1, 1, (point_schedule(spread, bits, traits),))
    if longest_inner(loop) >= LEAST_GROUP and can_share_rows(loop):
        return Pass(len(loop.stages), 1, (row_schedule(loop, bits, traits),))
    return Pass(len(loop.stages), 1, (LoopSchedule(1, bits),))


def combining_schedule(points: int, shares: int, bits: int, traits: Traits) -> KernelSchedule:
    """The schedule of the kernel that combines the shares of each point."""
    if shares <= 16 or points >= 1 << 16:
        return LoopSchedule(1, bits)
    items, rows = _power_at_least(shares // 4, 4, LEAST_GROUP), 1
    most = min(traits.largest_group, MOST_GROUP)
    while rows < 16 and points % (rows * 2) == 0 and items * rows * 2 <= most:
        rows *= 2
    return RowSchedule(items, rows, True, bits)


def points_of(loop: Loop) -> int:
    """The number of points of a loop."""
    return size_of([axis.extent for axis in loop.axes])


def longest_inner(loop: Loop) -> int:
    """The largest number of inner points of a stage; 1 if there are none."""
    sizes = [size_of([axis.extent for axis in inner_axes(stage)]) for stage in loop.stages]
    return max(sizes, default=1)


def is_plain(loop: Loop) -> bool:
    """Whether a loop only reduces and writes, in any order of the inner axes."""
    return all(
        isinstance(stage, Reduce) or (isinstance(stage, Write) and not stage.sequential)
        for stage in loop.stages
    )


def can_share_rows(loop: Loop) -> bool:
    """Whether the work items of a group may share the work at a point."""
    return is_plain(loop) and any(inner_axes(stage) for stage in loop.stages)


def reads_along_points(loop: Loop) -> bool:
    """Whether neighbouring points read neighbours in the longest stage, and inner points do not."""
    stages = [stage for stage in loop.stages if isinstance(stage, Reduce | Write) and stage.axes]
    if not stages or not loop.axes:
        return False
    longest = max(stages, key=lambda stage: size_of([axis.extent for axis in stage.axes]))
    inner, replaced = flattened(longest.axes, "inner")
    rewrite = Rewrite(replaced)
    last = loop.axes[-1]
    values = [rewrite.scalar(value) for value in stage_values(longest)]
    if all(contiguous(value, inner, 2) for value in values):
        return False
    return last.extent > 1 and all(contiguous(value, last, 2) for value in values)


def split_size(loop: Loop) -> int:
    """A number whose divisors are the possible splits of a loop's first reductions; 1 if none."""
    sizes = [size_of([axis.extent for axis in one.axes]) for one in leading_reductions(loop.stages)]
    return math.gcd(*sizes) if sizes else 1


def _power_at_least(number: int, least: int, most: int) -> int:
    power = least
    while power < number and power * 2 <= most:
        power *= 2
    return power


def _most_shares(points: int, traits: Traits) -> int:
    """The most shares whose workspace, of elements of any dtype, fits into one allocation."""
    return min(NARROW, traits.block_bytes // _LARGEST_ELEMENT_BYTES) // points


def _divisor_near(number: int, splits: int, least_share: int, most: int) -> int:
    """The largest divisor up to `splits` that leaves shares of at least some size; at least 1."""
    limit = min(splits, number // least_share, most)
    return next((divisor for divisor in range(limit, 1, -1) if number % divisor == 0), 1)
