"""Loop steps: explicit vectors along the axis where that pays most.

The vectors run along one of the parallel axes (a point in each lane) or along the innermost
reduced axis (a row over the lanes, combined at the end). Which one is chosen by counting what the
loads and stores cost. Nothing depends on the number of threads: each point is one thread's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lamina.codegen.axes import merged_axes
from lamina.codegen.stages import Stages, Style, fitting_lanes, is_window, whole, write_nest
from lamina.codegen.values import I64, POINTER
from lamina.engines.cpu.emit.context import Context, Points
from lamina.engines.cpu.processor import Processor
from lamina.engines.cpu.target import EXPENSIVE
from lamina.program.index import Axis, Index, Quotient, Remainder
from lamina.program.scalar import Apply, Load, Scalar, indices_of, parts
from lamina.program.steps import (
    Loop,
    Reduce,
    Stage,
    Write,
    inner_axes,
    reads_of,
    stage_stores,
    stage_values,
    writes_of,
)
from lamina.records import frozen_dataclass
from lamina.shapes import size_of

# Vectors are this many registers wide where expressions are short: that hides latencies.
REGISTERS_AT_ONCE = 4
SHORT_EXPRESSION = 12
# Reductions of so few steps are written one after the other.
MOST_UNROLLED = 8
# So are windows of so many elements; larger ones where points share what belongs to each element.
LARGEST_WINDOW, LARGEST_SHARED_WINDOW = 9, 32
# Points that share what is gathered, at least, so that gathering does not count.
POINTS_PER_GATHER = 32

# What things cost, in cycles for one vector or one scalar; rough, for comparisons only.
_UNIFORM, _CONTIGUOUS, _PER_STRIDED_LANE, _PER_GATHERED_LANE = 0.3, 1.0, 1.0, 2.0
_SIMPLE_OPERATION, _EXPENSIVE_OPERATION, _COMBINING_LANES = 0.5, 8.0, 10.0


@frozen_dataclass
class Part:
    """A function that the threads share: each runs it for some of its units.

    Attributes:
        function: its name; it takes the step's section of the table of addresses, the number of the
            thread, and the first and last unit.
        units: how many there are.
        cycles: what all of them cost, roughly.
        reads, writes: the buffers it uses.
        section: where the addresses of its step begin in the table, in words.
    """

    function: str
    units: int
    cycles: float
    reads: frozenset[str]
    writes: frozenset[str]
    section: int = 0


@frozen_dataclass
class _Choice:
    """How a loop is run.

    Attributes:
        lane: the parallel axis along the lanes, if one is.
        inner: whether instead the last inner axis of each stage lies along the lanes.
        lanes: how many.
        cycles: what it costs, roughly.
        within: the axes whose points follow one another for each vector, where vectors otherwise
            come innermost; what these points share is then loaded once.
    """

    lane: Axis | None
    inner: bool
    lanes: int
    cycles: float
    within: tuple[Axis, ...] = ()


# What the function of a part is called with.
PART_PARAMETERS = (("table", POINTER), ("thread", I64), ("first", I64), ("last", I64))


def emit_loop(context: Context, name: str, loop: Loop, *, columns: int = 0) -> Part:
    """Writes the function of a loop step.

    Args:
        context: of the program.
        name: of the function.
        loop: the step.
        columns: how many points of its one axis shall be a unit; by default that is chosen.
    """
    loop = merged_axes(loop)
    if columns:
        (axis,) = loop.axes
        choice = _costed(loop, _Choice(axis, False, columns, 0.0))
    else:
        choice = min(_choices(loop, context.processor), key=lambda one: one.cycles)
    reads, writes = reads_of(loop), writes_of(loop)
    points = context.begin(name, PART_PARAMETERS, reads | writes)
    units = _write_nest(points, loop, choice)
    points.code.finish()
    return Part(name, units, choice.cycles, reads, writes)


def _write_nest(points: Points, loop: Loop, choice: _Choice) -> int:
    """Writes the nest; gives the number of units that threads share."""
    axes = loop.axes
    if any(axis.extent == 0 for axis in axes):
        return 0
    *_, first, last = points.code.parameters
    window = LARGEST_SHARED_WINDOW if choice.within else LARGEST_WINDOW
    style = Style(choice.lanes if choice.inner else 0, MOST_UNROLLED, window)
    stages = Stages(points, style)
    if not axes:
        stages.write(loop.stages)
        return 1
    shared = _shared_axis(axes, choice.lane)
    # Vectors lie innermost, so that the points that follow one another in memory do in time.
    within = choice.within
    order = [axis for axis in axes if axis != choice.lane and axis not in within]
    if choice.lane is not None:
        order.append(choice.lane)
    order += within
    runs = [whole(axis, choice.lanes if axis == choice.lane else 0) for axis in order]
    runs = [replace(run, start=first, stop=last) if run.axis == shared else run for run in runs]
    write_nest(points, runs, lambda: stages.write(loop.stages))
    if shared == choice.lane:
        return -(-shared.extent // choice.lanes)
    return shared.extent


def _shared_axis(axes: Sequence[Axis], lane: Axis | None) -> Axis:
    """The axis that is cut into slices: the outermost that has enough points for all threads."""
    enough = [axis for axis in axes if axis != lane and axis.extent >= 16]
    return enough[0] if enough else max(axes, key=lambda axis: (axis.extent, axis == lane))


# Windows


def _axes_within(loop: Loop, lane: Axis) -> tuple[Axis, ...]:
    """The axes whose points share what has to be gathered along the lanes; enough of them to pay.

    Each channel of a depthwise convolution has its weights, which do not lie side by side: they
    are brought together once for the places of a row, or of several.
    """
    others = [axis for axis in loop.axes if axis != lane]
    shared = set(others)
    gathered = False
    for stage in filter(_is_in_one_place, loop.stages):
        for part in parts(*stage_values(stage)):
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


# Choosing where the vectors lie


def _choices(loop: Loop, processor: Processor) -> list[_Choice]:
    base = lanes_for(_results(loop), processor)
    choices = [_costed(loop, _Choice(None, False, 0, 0.0))]
    for axis in loop.axes:
        if axis.extent > 1:
            within = _axes_within(loop, axis)
            wide = base if within else _widened(loop, base, axis.extent)
            lanes = fitting_lanes(wide, axis.extent)
            choices.append(_costed(loop, _Choice(axis, False, lanes, 0.0, within)))
    ends = [
        stage.axes[-1].extent
        for stage in loop.stages
        if isinstance(stage, Reduce | Write) and stage.axes
    ]
    if ends:
        lanes = _widened(loop, base, max(ends))
        choices.append(_costed(loop, _Choice(None, True, lanes, 0.0)))
    return choices


def _results(loop: Loop) -> list[Scalar]:
    return [value for stage in loop.stages for value in stage_values(stage)]


def lanes_for(values: Iterable[Scalar], processor: Processor) -> int:
    """How many of the widest floats that are computed (or integers, without any) fill a vector."""
    values = list(values)
    floats = [value.dtype.itemsize for value in values if value.dtype.is_float]
    widest = max(floats or [value.dtype.itemsize for value in values])
    return processor.vector_bytes // max(widest, 4)


def _widened(loop: Loop, lanes: int, extent: int) -> int:
    """Several registers at once, where there are points for them and expressions are short."""
    if not are_short(_results(loop)):
        return lanes
    wide = lanes
    while 2 * wide <= min(extent, lanes * REGISTERS_AT_ONCE):
        wide *= 2
    return wide


def are_short(values: Iterable[Scalar]) -> bool:
    """Whether expressions are so short that several registers are computed at once."""
    operations = [part for part in parts(*values) if isinstance(part, Apply)]
    expensive = any(part.primitive in EXPENSIVE for part in operations)
    return len(operations) <= SHORT_EXPRESSION and not expensive


def _costed(loop: Loop, choice: _Choice) -> _Choice:
    outer = 1.0
    for axis in loop.axes:
        outer *= _turns(axis, choice.lanes if axis == choice.lane else 0)
    cycles = 0.0
    for stage in loop.stages:
        stage_axes = inner_axes(stage)
        lane = choice.lane
        within = choice.inner and isinstance(stage, Reduce | Write) and bool(stage_axes)
        if within and isinstance(stage, Write) and stage.sequential:
            within = False
        turns = outer
        for axis in stage_axes:
            along = within and axis == stage_axes[-1]
            turns *= _turns(axis, choice.lanes if along else 0)
            lane = axis if along else lane
        cycles += turns * _cost_of_point(stage, lane, choice.lanes, choice.within)
        if within and isinstance(stage, Reduce):
            cycles += outer * _COMBINING_LANES
    return replace(choice, cycles=cycles)


def _turns(axis: Axis, lanes: int) -> float:
    if not lanes:
        return axis.extent
    # A wide vector is several registers; a part of one costs as much as a whole.
    registers = max(lanes / 16, 1.0)
    return -(-axis.extent // lanes) * registers


def _cost_of_point(
    stage: Stage, lane: Axis | None, lanes: int, within: Sequence[Axis] = ()
) -> float:
    cost = 0.5
    for part in parts(*stage_values(stage)):
        if isinstance(part, Apply):
            cost += _EXPENSIVE_OPERATION if part.primitive in EXPENSIVE else _SIMPLE_OPERATION
        elif isinstance(part, Load):
            access = _cost_of_access(part.index, lane, lanes)
            if _is_in_one_place(stage) and not any(_moves(part, axis) for axis in within):
                access /= max(size_of([axis.extent for axis in within]), 1)
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


def stride_along(index: Index, axis: Axis) -> int | None:
    """By how much the index grows with the axis; None where it does not grow evenly."""
    stride = 0
    for atom, coefficient in index.terms:
        if atom == axis:
            stride = coefficient
        elif isinstance(atom, Quotient | Remainder):
            if stride_along(atom.index, axis) != 0:
                return None
        elif not isinstance(atom, Axis):
            positions = (i for part in parts(atom.value) for i in indices_of(part))
            if any(stride_along(position, axis) != 0 for position in positions):
                return None
    return stride
