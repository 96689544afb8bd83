"""The axis of a loop nest's vectors, the order of its axes, and what is unrolled.

Vectors run along one of the parallel axes (a point in each lane) or along the last reduced axis
(with the lanes combined at the end). The choice is made by a rough count of cycles for loads,
stores and operations. Workers share one of the parallel axes, so each point is computed by one
worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
from lamina.codegen.axes import merged_axes, stride_along
from lamina.codegen.stages import Style, fitting_lanes, is_window
from lamina.engines.simd.decide.jam import points_together, shortened
from lamina.engines.simd.decide.schedule import LoopSchedule, NestSchedule
from lamina.engines.simd.decide.split_reductions import BLOCKS, long_reductions, split_loop
from lamina.engines.simd.processor import Processor
from lamina.program.index import Axis, Index
from lamina.program.primitive_costs import EXPENSIVE
from lamina.program.scalar import CONVERSIONS, Apply, Load, Scalar, indices_of, postorder, varying
from lamina.program.steps import (
    Loop,
    Reduce,
    SegmentSum,
    Sort,
    Stage,
    Write,
    inner_axes,
    stage_stores,
    stage_values,
)

# The most operations of a short expression.
SHORT_EXPRESSION = 12
# Reductions of at most this many iterations are unrolled.
MOST_UNROLLED = 8
# Windows of at most this many elements are unrolled; the second limit is for loops in which
# neighbouring points share the gathered weights.
LARGEST_WINDOW, LARGEST_SHARED_WINDOW = 9, 32
# A gather does not count if at least this many points share it.
POINTS_PER_GATHER = 32
# An axis with at least this many points has enough work items for all workers.
ENOUGH_TO_SHARE = 16

# Rough costs for comparisons, in cycles for one vector or one scalar.
_UNIFORM, _CONTIGUOUS, _PER_STRIDED_LANE, _PER_GATHERED_LANE = 0.3, 1.0, 1.0, 2.0
_CYCLES_OF_MERGE = 5.0
# The cost of a term of a sum that is computed together with others, as a share of its cost alone.
_TOGETHER = 0.5
_SIMPLE_OPERATION, _EXPENSIVE_OPERATION, _COMBINING_LANES = 0.5, 8.0, 10.0


@frozen_dataclass
class Vectors:
    """The vectors of a loop nest.

    Attributes:
        lane: the parallel axis along the lanes; None if there is none.
        along_inner_axis: whether the last inner axis of each stage runs along the lanes instead.
        lanes: the lanes of a vector.
        within: the axes that run inside the loop over vectors. Loads that do not depend on them are
            done once for all their points. Without such axes the loop over vectors is innermost.
        sums: the most sums of vectors that registers hold, beside operands.
    """

    lane: Axis | None
    along_inner_axis: bool
    lanes: int
    within: tuple[Axis, ...] = ()
    sums: int = 0

    @property
    def is_single(self) -> bool:
        """Whether one vector has all points of the lanes' axis."""
        return self.lane is not None and self.lane.extent <= self.lanes


def schedule_loop(loop: Loop, processor: Processor) -> LoopSchedule:
    """The schedule of a loop step."""
    loop = merged_axes(loop)
    long = long_reductions(loop)
    split = split_loop(loop, long, BLOCKS)
    nests = tuple(nest_of(part, processor) for part in split.loops)
    return LoopSchedule(nests, long, BLOCKS if long else 0)


def nest_of(loop: Loop, processor: Processor, *, is_product: bool = False) -> NestSchedule:
    """The cheapest nest for a loop with neighbouring axes merged.

    Several points of a product are computed together: they share operands. Other sums would only
    read more of the memory at a time.
    """

    def cost(vectors: Vectors) -> float:
        # Whether points are computed together changes no sum, but other vectors would.
        return _cycles(loop, vectors, are_together=False)

    vectors = min(possible_vectors(loop, processor), key=cost)
    joins = is_product or vectors.is_single
    return nest_with(loop, vectors if joins else replace(vectors, sums=0))


def nest_of_column_sums(loop: Loop, width: int) -> NestSchedule:
    """A loop over one axis, in vectors of `width` lanes; each vector is a work item."""
    loop = merged_axes(loop)
    (axis,) = loop.axes
    return nest_with(loop, Vectors(axis, False, width))


def nest_with(loop: Loop, vectors: Vectors) -> NestSchedule:
    """How a loop, neighbouring axes merged, is run with these vectors."""
    lane, within, axes = vectors.lane, vectors.within, loop.axes
    # The loop over vectors is innermost, so that memory is read in its order.
    outer = [axis for axis in axes if axis != lane and axis not in within]
    unrolled = -1 if vectors.is_single else MOST_UNROLLED
    together = points_together(loop, reversed(outer), vectors.sums, unrolled)
    if together is not None:
        joined, count = together
        axes = tuple(shortened(axis, count) if axis == joined else axis for axis in axes)
        outer = [axis for axis in axes if axis != lane and axis not in within]
    inner = [] if lane is None else [lane]
    # Of a single vector, what depends on no other axis is loaded once.
    order = [*inner, *outer, *within] if vectors.is_single else [*outer, *inner, *within]
    # Workers share the outermost axis with enough points for all of them.
    enough = [axis for axis in axes if axis != lane and axis.extent >= ENOUGH_TO_SHARE]
    longest = max(axes, key=lambda axis: (axis.extent, axis == lane), default=None)
    window = LARGEST_SHARED_WINDOW if within else LARGEST_WINDOW
    inner_lanes = vectors.lanes if vectors.along_inner_axis else 0
    style = Style(
        inner_lanes, MOST_UNROLLED, window, joins=vectors.is_single or together is not None
    )
    shared = enough[0] if enough else longest
    cycles = _cycles(loop, vectors, are_together=together is not None)
    return NestSchedule(tuple(order), lane, vectors.lanes, shared, style, cycles, together)


# A sort begins with runs of at most this many keys, which are sorted in registers.
LONGEST_RUN = 8


def runs_of_sort(extent: int) -> tuple[int, int]:
    """The length of the runs with which a sort begins, and the number of passes that merge them."""
    merges = 0
    while LONGEST_RUN << merges < extent:
        merges += 1
    return max(-(-extent >> merges), 1), merges


def _axes_within(loop: Loop, lane: Axis) -> tuple[Axis, ...]:
    """Innermost axes on which no gathered load depends, with enough points to share the gathers.

    The weights of a depthwise convolution are not contiguous along the channels. So they are
    gathered once for the output positions of a row, or of several rows.
    """
    others = [axis for axis in loop.axes if axis != lane]
    shared = set(others)
    gathered = False
    for stage in filter(_is_unrolled, loop.stages):
        for scalar in postorder(*stage_values(stage)):
            if isinstance(scalar, Load) and stride_along(scalar.index, lane) not in (-1, 0, 1):
                gathered = True
                shared -= {axis for axis in others if _moves(scalar, axis)}
    within: list[Axis] = []
    for axis in reversed(others if gathered else []):
        if axis in shared and size_of([inner.extent for inner in within]) < POINTS_PER_GATHER:
            within.insert(0, axis)
    return tuple(within)


def _is_unrolled(stage: Stage) -> bool:
    """Whether the stage needs no loops at a point."""
    return is_window(stage, LARGEST_SHARED_WINDOW) or (isinstance(stage, Write) and not stage.axes)


def _moves(load: Load, axis: Axis) -> bool:
    """Whether the load's indices depend on the axis."""
    return any(stride_along(index, axis) != 0 for index in indices_of(load))


def possible_vectors(loop: Loop, processor: Processor) -> Iterator[Vectors]:
    """The axes along which the vectors of a loop, neighbouring axes merged, may run."""
    if any(isinstance(stage, Sort | SegmentSum) for stage in loop.stages):
        yield Vectors(None, False, 0)
        return
    results = [value for stage in loop.stages for value in stage_values(stage)]
    floats = [value.dtype.itemsize for value in results if value.dtype.is_float]
    widest = max(floats or [value.dtype.itemsize for value in results])
    # The lanes of a register for the widest float, or the widest integer.
    base = processor.vector_bytes // max(widest, 4)
    yield Vectors(None, False, 0)
    for axis in loop.axes:
        if axis.extent > 1:
            within = _axes_within(loop, axis)
            wide = base if within else widened(results, base, axis.extent, processor)
            lanes = fitting_lanes(wide, axis.extent)
            sums = processor.registers // 2 // -(-lanes // base)
            yield Vectors(axis, False, lanes, within, sums)
    ends = [
        stage.axes[-1].extent
        for stage in loop.stages
        if isinstance(stage, Reduce | Write) and stage.axes
    ]
    if ends:
        yield Vectors(None, True, widened(results, base, max(ends), processor))


def widened(values: Iterable[Scalar], lanes: int, extent: int, processor: Processor) -> int:
    """The lanes of several registers, if expressions are short and the axis is long enough."""
    if not are_wide(values, processor):
        return lanes
    wide = lanes
    while 2 * wide <= min(extent, lanes * processor.registers_at_once):
        wide *= 2
    return wide


def are_wide(values: Iterable[Scalar], processor: Processor) -> bool:
    """Whether expressions are short enough for vectors of several registers."""
    if processor.registers_at_once == 1:
        return False
    # Conversions are not counted: most convert floats of 16 bits, after a load or before a
    # store.
    operations = [
        scalar
        for scalar in varying(*values)
        if isinstance(scalar, Apply) and scalar.primitive not in CONVERSIONS
    ]
    expensive = any(scalar.primitive in EXPENSIVE for scalar in operations)
    return len(operations) <= SHORT_EXPRESSION and not expensive


def _cycles(loop: Loop, vectors: Vectors, *, are_together: bool) -> float:
    """The rough cost of a loop, in cycles of one worker.

    Args:
        are_together: whether sums of several points are computed together.
    """
    outer = 1.0
    for axis in loop.axes:
        outer *= _iterations(axis, vectors.lanes if axis == vectors.lane else 0)
    cycles = 0.0
    for stage in loop.stages:
        lane = vectors.lane
        # Whether its vectors run along its last inner axis.
        across = vectors.along_inner_axis and isinstance(stage, Reduce | Write) and stage.axes
        across = across and not (isinstance(stage, Write) and stage.sequential)
        iterations = outer
        for axis in inner_axes(stage):
            along = across and axis == inner_axes(stage)[-1]
            iterations *= _iterations(axis, vectors.lanes if along else 0)
            lane = axis if along else lane
        if isinstance(stage, Sort):
            run, merges = runs_of_sort(stage.axis.extent)
            iterations *= run + _CYCLES_OF_MERGE * merges
        once, at_point = _costs(stage, lane, vectors)
        if are_together and isinstance(stage, Reduce) and stage.axes:
            at_point *= _TOGETHER
        cycles += once + iterations * at_point
        if across and isinstance(stage, Reduce):
            cycles += outer * _COMBINING_LANES
    return cycles


def _iterations(axis: Axis, lanes: int) -> float:
    if not lanes:
        return axis.extent
    # A wide vector is several registers; a partial register costs as much as a full one.
    registers = max(lanes / 16, 1.0)
    return -(-axis.extent // lanes) * registers


def _costs(stage: Stage, lane: Axis | None, vectors: Vectors) -> tuple[float, float]:
    """The costs of what is computed once, before the loops, and of each point."""
    once, cost, lanes = 0.0, 0.5, vectors.lanes
    values = stage_values(stage)
    at_points = set(varying(*values))
    for scalar in postorder(*values):
        operation = 0.0
        if isinstance(scalar, Apply):
            is_expensive = scalar.primitive in EXPENSIVE
            operation = _EXPENSIVE_OPERATION if is_expensive else _SIMPLE_OPERATION
        elif isinstance(scalar, Load):
            operation = _cost_of_access(scalar.index, lane, lanes)
            if _is_unrolled(stage) and not any(_moves(scalar, axis) for axis in vectors.within):
                operation /= max(size_of([axis.extent for axis in vectors.within]), 1)
        if scalar in at_points:
            cost += operation
        else:
            once += operation
    indices = [store.index for store in stage_stores(stage)]
    return once, cost + sum(_cost_of_access(index, lane, lanes) for index in indices)


def _cost_of_access(index: Index, lane: Axis | None, lanes: int) -> float:
    if lane is None or not lanes:
        return _CONTIGUOUS
    stride = stride_along(index, lane)
    if stride is None:
        return _PER_GATHERED_LANE * lanes
    if stride == 0:
        return _UNIFORM
    return _CONTIGUOUS if abs(stride) == 1 else _PER_STRIDED_LANE * lanes
