"""Where the vectors of a loop nest lie, in which order its axes run, and what is unrolled.

The vectors run along one of the parallel axes (a point in each lane) or along the last reduced axis
(a row over the lanes, combined at the end). Which one is chosen by counting what the loads and
stores cost. Nothing but the shared axis has to do with the number of workers: each point is one
worker's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lamina.codegen.axes import merged_axes
from lamina.codegen.stages import Style, fitting_lanes, is_window
from lamina.codegen.strides import stride_along
from lamina.engines.cpu.decide.schedule import LoopSchedule, Nest
from lamina.engines.cpu.decide.split_reductions import BLOCKS, long_reductions, split_loop
from lamina.engines.cpu.decide.vectors import lanes_for, widened
from lamina.engines.cpu.processor import Processor
from lamina.program.index import Axis, Index
from lamina.program.scalar import Apply, Load, Scalar, indices_of, postorder
from lamina.program.steps import (
    Loop,
    Reduce,
    Stage,
    Write,
    inner_axes,
    stage_stores,
    stage_values,
)
from lamina.program.target import EXPENSIVE
from lamina.records import frozen_dataclass
from lamina.shapes import size_of

# Reductions of so few steps are written one after the other.
MOST_UNROLLED = 8
# So are windows of so many elements; larger ones where points share what belongs to each element.
LARGEST_WINDOW, LARGEST_SHARED_WINDOW = 9, 32
# Points that share what is gathered, at least, so that gathering does not count.
POINTS_PER_GATHER = 32
# An axis of so many points has enough for all workers.
ENOUGH_TO_SHARE = 16

# What things cost, in cycles for one vector or one scalar; rough, for comparisons only.
_UNIFORM, _CONTIGUOUS, _PER_STRIDED_LANE, _PER_GATHERED_LANE = 0.3, 1.0, 1.0, 2.0
_SIMPLE_OPERATION, _EXPENSIVE_OPERATION, _COMBINING_LANES = 0.5, 8.0, 10.0


@frozen_dataclass
class Vectors:
    """Where the vectors of a loop nest lie.

    Attributes:
        lane: the parallel axis along the lanes, if one is.
        inner: whether instead the last inner axis of each stage lies along the lanes.
        lanes: how many.
        within: the axes whose points follow one another for each vector, where vectors otherwise
            come innermost; what these points share is then loaded once.
    """

    lane: Axis | None
    inner: bool
    lanes: int
    within: tuple[Axis, ...] = ()


def schedule_loop(loop: Loop, processor: Processor) -> LoopSchedule:
    """How a loop step is run."""
    loop = merged_axes(loop)
    cut = long_reductions(loop)
    split = split_loop(loop, cut, BLOCKS)
    nests = tuple(nest_of(one, processor) for one in split.loops)
    return LoopSchedule(nests, cut, BLOCKS if cut else 0)


def nest_of(loop: Loop, processor: Processor) -> Nest:
    """How a loop nest, with neighbouring axes merged, is run at the least cost."""
    nests = (nest_with(loop, vectors) for vectors in possible_vectors(loop, processor))
    return min(nests, key=lambda nest: nest.cycles)


def nest_of_columns(loop: Loop, columns: int) -> Nest:
    """A loop over one axis, so many points of which are a vector and a work item."""
    loop = merged_axes(loop)
    (axis,) = loop.axes
    return nest_with(loop, Vectors(axis, False, columns))


def nest_with(loop: Loop, vectors: Vectors) -> Nest:
    """A loop, neighbouring axes merged, with its vectors lying so."""
    lane, within = vectors.lane, vectors.within
    # Vectors lie innermost, so that the points that follow one another in memory do in time.
    order = [axis for axis in loop.axes if axis != lane and axis not in within]
    order += [lane] if lane is not None else []
    order += within
    return Nest(
        tuple(order),
        lane,
        vectors.lanes,
        _shared_axis(loop.axes, lane) if loop.axes else None,
        style_of(vectors),
        _cycles(loop, vectors),
    )


def style_of(vectors: Vectors) -> Style:
    """How the stages at a point, or a vector of points, are written."""
    window = LARGEST_SHARED_WINDOW if vectors.within else LARGEST_WINDOW
    return Style(vectors.lanes if vectors.inner else 0, MOST_UNROLLED, window)


def _is_across(stage: Stage, vectors: Vectors) -> bool:
    """Whether the vectors of a stage lie along its last inner axis."""
    if not vectors.inner or not isinstance(stage, Reduce | Write) or not stage.axes:
        return False
    return not (isinstance(stage, Write) and stage.sequential)


def _shared_axis(axes: Sequence[Axis], lane: Axis | None) -> Axis:
    """The axis that is cut into work items: the outermost that has enough for all workers."""
    enough = [axis for axis in axes if axis != lane and axis.extent >= ENOUGH_TO_SHARE]
    return enough[0] if enough else max(axes, key=lambda axis: (axis.extent, axis == lane))


# Windows ------------------------------------------------------------------------------------------


def _axes_within(loop: Loop, lane: Axis) -> tuple[Axis, ...]:
    """The axes whose points share what has to be gathered along the lanes; enough of them to pay.

    Each channel of a depthwise convolution has its weights, which do not lie side by side: they
    are brought together once for the places of a row, or of several.
    """
    others = [axis for axis in loop.axes if axis != lane]
    shared = set(others)
    gathered = False
    for stage in filter(_is_in_one_place, loop.stages):
        for part in postorder(*stage_values(stage)):
            if isinstance(part, Load) and stride_along(part.index, lane) not in (-1, 0, 1):
                gathered = True
                shared -= {axis for axis in others if _moves(part, axis)}
    within: list[Axis] = []
    for axis in reversed(others if gathered else []):
        if axis in shared and size_of([one.extent for one in within]) < POINTS_PER_GATHER:
            within.insert(0, axis)
    return tuple(within)


def _is_in_one_place(stage: Stage) -> bool:
    """Whether the stage is written out at each point, without loops of its own."""
    return is_window(stage, LARGEST_SHARED_WINDOW) or (isinstance(stage, Write) and not stage.axes)


def _moves(load: Load, axis: Axis) -> bool:
    """Whether what is loaded depends on the axis."""
    return any(stride_along(index, axis) != 0 for index in indices_of(load))


# Vectors ------------------------------------------------------------------------------------------


def possible_vectors(loop: Loop, processor: Processor) -> Iterator[Vectors]:
    """Along which axes the vectors of a loop, neighbouring axes merged, may lie."""
    base = lanes_for(_results(loop), processor)
    yield Vectors(None, False, 0)
    for axis in loop.axes:
        if axis.extent > 1:
            within = _axes_within(loop, axis)
            wide = base if within else widened(_results(loop), base, axis.extent)
            yield Vectors(axis, False, fitting_lanes(wide, axis.extent), within)
    ends = [
        stage.axes[-1].extent
        for stage in loop.stages
        if isinstance(stage, Reduce | Write) and stage.axes
    ]
    if ends:
        yield Vectors(None, True, widened(_results(loop), base, max(ends)))


def _results(loop: Loop) -> list[Scalar]:
    return [value for stage in loop.stages for value in stage_values(stage)]


# Costs --------------------------------------------------------------------------------------------


def _cycles(loop: Loop, vectors: Vectors) -> float:
    """What a loop costs, in cycles of one worker."""
    outer = 1.0
    for axis in loop.axes:
        outer *= _iterations(axis, vectors.lanes if axis == vectors.lane else 0)
    cycles = 0.0
    for stage in loop.stages:
        lane = vectors.lane
        across = _is_across(stage, vectors)
        iterations = outer
        for axis in inner_axes(stage):
            along = across and axis == inner_axes(stage)[-1]
            iterations *= _iterations(axis, vectors.lanes if along else 0)
            lane = axis if along else lane
        cycles += iterations * _cost_of_point(stage, lane, vectors)
        if across and isinstance(stage, Reduce):
            cycles += outer * _COMBINING_LANES
    return cycles


def _iterations(axis: Axis, lanes: int) -> float:
    if not lanes:
        return axis.extent
    # A wide vector is several registers; a part of one costs as much as a whole.
    registers = max(lanes / 16, 1.0)
    return -(-axis.extent // lanes) * registers


def _cost_of_point(stage: Stage, lane: Axis | None, vectors: Vectors) -> float:
    cost, lanes = 0.5, vectors.lanes
    for part in postorder(*stage_values(stage)):
        if isinstance(part, Apply):
            cost += _EXPENSIVE_OPERATION if part.primitive in EXPENSIVE else _SIMPLE_OPERATION
        elif isinstance(part, Load):
            access = _cost_of_access(part.index, lane, lanes)
            if _is_in_one_place(stage) and not any(_moves(part, axis) for axis in vectors.within):
                access /= max(size_of([axis.extent for axis in vectors.within]), 1)
            cost += access
    indices = [store.index for store in stage_stores(stage)]
    return cost + sum(_cost_of_access(index, lane, lanes) for index in indices)


def _cost_of_access(index: Index, lane: Axis | None, lanes: int) -> float:
    if lane is None or not lanes:
        return _CONTIGUOUS
    stride = stride_along(index, lane)
    if stride is None:
        return _PER_GATHERED_LANE * lanes
    if stride == 0:
        return _UNIFORM
    return _CONTIGUOUS if abs(stride) == 1 else _PER_STRIDED_LANE * lanes
