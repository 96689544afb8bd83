"""The check of a program: it is well-formed, and keeps the rules on which engines rely."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import combinations

from lamina.errors import InternalError
from lamina.program.distinct import meet_at_one_point, never_meet
from lamina.program.dtypes import check_scalars
from lamina.program.index import Axis, Gathered, Index
from lamina.program.parallel import may_overlap, memory_of, overlaps
from lamina.program.points import find_meeting_points, find_point_outside
from lamina.program.program import KINDS, Allocation, Program
from lamina.program.ranges import range_of
from lamina.program.scalar import Load, Position, indices
from lamina.program.steps import (
    Chain,
    Contraction,
    Loop,
    SegmentSum,
    Sort,
    Step,
    Store,
    reads_of,
    stores_of,
    writes_of,
)
from lamina.program.windows import check_window


def verify(program: Program) -> None:
    """Checks that a program keeps the rules of `lamina.program.steps`, and stays in its memory.

    A buffer counts as written if any of its elements is written. If a step might store twice in one
    element, or load outside a buffer, at most `points.MOST_POINTS` of its points are computed.

    Raises:
        InternalError: naming the step and the rule it breaks.
    """
    for name, buffer in program.buffers.items():
        if buffer.kind not in KINDS:
            raise InternalError(f"there is no kind of buffer {buffer.kind!r}", where=buffer.name)
        if buffer.name != name:
            raise InternalError(f"is listed under the name {name}", where=buffer.name)
        for extent in buffer.shape:
            _check_number("an extent", extent, 0, buffer.name)
    _check_constants(program)
    _check_repeats(program)
    written = {b.name for b in program.buffers.values() if b.kind != "temporary"}
    names: dict[str, int] = {}
    for number, step in enumerate(program.steps):
        where = f"step {number}, {step.name}"
        same = names.setdefault(step.name, number)
        if same != number:
            raise InternalError(f"step {same} has the same name", where=where)
        iteration = program.iteration(number)
        _check_axes(step, iteration, where)
        for store in stores_of(step):
            _check_access(program, store, where)
        for load in step.loads:
            _check_access(program, load, where)
        check_scalars(step, where)
        stages = step.stages if isinstance(step, Loop) else ()
        if len(stages) > 1 and any(isinstance(stage, Sort) for stage in stages):
            # Special kernels run it.
            raise InternalError("a sort must be the only stage of its loop", where=where)
        _check_stores(program, step, iteration, where)
        writes = writes_of(step)
        missing = _read_before(step) - written
        if missing:
            raise InternalError(f"reads {sorted(missing)} before it is written", where=where)
        for name in writes:
            if program.buffers[name].kind in ("input", "constant"):
                raise InternalError(f"writes the {program.buffers[name].kind} {name}", where=where)
        written |= writes
    for name, buffer in program.outputs:
        if buffer not in written:
            raise InternalError(f"the output {name} is never written")
    _check_prepared(program)
    _check_plan(program)
    _check_alive(program)
    _check_overwriting(program)


# Numbers in steps, and all values of index expressions, fit into 64 bits.
_LARGEST = 2**63 - 1


def _check_number(what: str, value: object, least: int, where: str) -> None:
    if type(value) is not int or not least <= value <= _LARGEST:
        raise InternalError(f"{what} cannot be {value!r}", where=where)


def _check_constants(program: Program) -> None:
    """Each constant buffer has a value of its dtype and shape, and nothing else has."""
    for name in program.constants:
        if name not in program.buffers or program.buffers[name].kind != "constant":
            raise InternalError("has a value, but is not a constant buffer", where=name)
    for buffer in program.of_kind("constant"):
        value = program.constants.get(buffer.name)
        if value is None:
            raise InternalError("this constant has no value", where=buffer.name)
        if (value.dtype, value.shape) != (buffer.dtype.numpy, buffer.shape):
            value_type = f"{value.dtype}{list(value.shape)}"
            raise InternalError(f"{buffer} has the value of a {value_type}", where=buffer.name)


def _check_repeats(program: Program) -> None:
    end = 0
    for repeat in program.repeats:
        _check_number("an extent", repeat.axis.extent, 0, repeat.axis.name)
        if not end <= repeat.first < repeat.last <= len(program.steps):
            raise InternalError(
                f"steps {repeat.first} to {repeat.last} cannot be repeated", where=repeat.axis.name
            )
        end = repeat.last


def _check_prepared(program: Program) -> None:
    """The steps that a run may omit: they fill temporaries that live on after the last step."""
    _check_number("prepared", program.prepared, 0, program.name)
    ends = {allocation.buffer: allocation.last for allocation in program.plan.allocations}
    for step in program.steps[: program.prepared]:
        read = {program.buffers[name].kind for name in reads_of(step)}
        if not read <= {"parameter", "state"}:
            raise InternalError(f"prepares a copy of a buffer of {sorted(read)}", where=step.name)
        for name in writes_of(step):
            if ends.get(name) != len(program.steps):
                raise InternalError(f"prepares {name}, which does not outlive it", where=step.name)


def _check_axes(step: Step, iteration: Axis | None, where: str) -> None:
    """Checks that each axis is iterated once, and that indices depend on iterated axes only."""
    around = () if iteration is None else (iteration,)
    if isinstance(step, Contraction):
        for windows, view, axes in (
            (step.left_windows, step.left, step.m),
            (step.right_windows, step.right, step.n),
        ):
            for window in windows:
                check_window(window, view, (*step.batch, *axes, *step.k), step.k, where)
    elif isinstance(step, Chain):
        for stage in step.reductions:
            if stage.axes not in ((), step.k):
                raise InternalError(f"reduces over other axes than k: {stage}", where=where)
    else:
        for stage in step.stages:
            if isinstance(stage, SegmentSum):
                _check_nest((*around, *step.axes), indices(Position(stage.segment)), where)
    for nest in step.nests:
        stored = [store.index for store in nest.stores]
        _check_nest((*around, *nest.axes), (*stored, *indices(*nest.values)), where)


def _check_nest(axes: Sequence[Axis], within: Iterable[Index], where: str) -> None:
    """Checks the axes around some indices, and the indices."""
    names: set[str] = set()
    for axis in axes:
        _check_number(f"the extent of axis {axis.name}", axis.extent, 0, where)
        if axis.name in names:
            raise InternalError(f"iterates axis {axis.name} twice", where=where)
        names.add(axis.name)
    _check_indices(within, set(axes), where)


def _check_indices(checked: Iterable[Index], axes: set[Axis], where: str) -> None:
    for index in checked:
        _check_number("a constant", index.constant, -_LARGEST, where)
        for atom, coefficient in index.terms:
            _check_number("a coefficient", coefficient, -_LARGEST, where)
            if isinstance(atom, Axis):
                if atom not in axes:
                    raise InternalError(f"nothing iterates axis {atom.name}", where=where)
            elif isinstance(atom, Gathered):
                _check_number("an extent", atom.extent, 0, where)
            else:
                _check_number("a divisor", atom.divisor, 1, where)
                _check_indices((atom.index,), axes, where)
        if max(map(abs, index.bounds)) > _LARGEST:
            raise InternalError(f"reaches beyond 64 bits: {index}", where=where)


def _read_before(step: Step) -> set[str]:
    """The buffers whose contents from before the step it reads."""
    read = {load.buffer for load in step.loads}
    cleared: set[str] = set()
    for store in stores_of(step):
        if not store.accumulate:
            cleared.add(store.buffer)
        elif store.buffer not in cleared:
            read.add(store.buffer)
    return read


def _check_stores(program: Program, step: Step, iteration: Axis | None, where: str) -> None:
    """Checks that no two points store in one element, except by additions in order."""
    earlier: list[tuple[Store, tuple[Axis, ...]]] = []
    for nest in step.nests:
        axes, stores = nest.axes, nest.stores
        # A nest without points stores nothing.
        if not all(axis.extent for axis in (*axes, *([iteration] if iteration else ()))):
            continue
        for number, store in enumerate(stores):
            if not program.buffers[store.buffer].size:
                raise InternalError(f"stores in {store.buffer}, which is empty", where=where)
            apart = step.axes if nest.in_order and store.accumulate else axes
            _check_apart_at(iteration, where, (store, axes), (store, axes), apart)
            for other in stores[:number]:
                both_add = store.accumulate and other.accumulate
                differing = apart if both_add else None
                _check_apart_at(iteration, where, (other, axes), (store, axes), differing)
            for other, other_axes in earlier:
                _check_apart_at(iteration, where, (other, other_axes), (store, axes), step.axes)
        earlier += [(store, axes) for store in stores]


def _check_apart_at(
    iteration: Axis | None,
    where: str,
    left: tuple[Store, tuple[Axis, ...]],
    right: tuple[Store, tuple[Axis, ...]],
    apart: tuple[Axis, ...] | None,
) -> None:
    """Checks that two stores share no element at points that differ along the axes `apart`.

    If `apart` is None, they must not share any element. Each store comes with the axes around it.
    """
    (first, first_axes), (second, second_axes) = left, right
    if first.buffer != second.buffer:
        return
    if apart is None:
        proved = never_meet(first.index, second.index, iteration)
    else:
        several = tuple(axis for axis in apart if axis.extent > 1)
        proved = meet_at_one_point(first.index, second.index, several, iteration)
    if proved:
        return
    points = find_meeting_points(
        *(first.index, first_axes, second.index, second_axes, apart, iteration)
    )
    if points:
        elements = dict.fromkeys(f"{store.buffer}[{store.index}]" for store in (first, second))
        problem = f"stores {' and '.join(elements)} in one element, {points}"
        raise InternalError(problem, where=where)


def _check_access(program: Program, access: Load | Store, where: str) -> None:
    buffer = program.buffers.get(access.buffer)
    if buffer is None:
        raise InternalError(f"uses the unknown buffer {access.buffer}", where=where)
    dtype = access.dtype if isinstance(access, Load) else access.value.dtype
    if dtype != buffer.dtype:
        raise InternalError(f"accesses {buffer} as {dtype}", where=where)
    low, high = access.index.bounds
    if not buffer.size or (low >= 0 and high < buffer.size):
        return
    if isinstance(access, Store) or not access.bounds:
        raise InternalError(f"reaches outside {buffer}: {access.index}", where=where)
    low, high = range_of(access.index, access.bounds)
    if low <= high and (low < 0 or high >= buffer.size):
        reached = find_point_outside(access, buffer.size)
        if reached:
            raise InternalError(f"reaches outside {buffer}: {access}, {reached}", where=where)


def _check_plan(program: Program) -> None:
    """Checks the allocations of temporaries, each by itself and against each other."""
    plan = program.plan
    for bytes_ in plan.blocks:
        _check_number("the size of a block", bytes_, 0, "the arena")
    for allocation in plan.allocations:
        for what in ("bytes", "first", "last"):
            _check_number(what, getattr(allocation, what), 0, allocation.buffer)
        _check_number("offset", allocation.offset, -_LARGEST, allocation.buffer)
        _check_number("block", allocation.block, 0, allocation.buffer)
        size = plan.blocks[allocation.block] if allocation.block < len(plan.blocks) else -1
        if allocation.offset < 0 or allocation.offset + allocation.bytes > size:
            raise InternalError(f"{allocation.buffer} is outside the arena")
        if allocation.last < allocation.first:
            raise InternalError(f"{allocation.buffer} ends before it begins")
    positions = plan.positions()
    if len(positions) < len(plan.allocations):
        raise InternalError("a buffer has several allocations in the arena")
    _check_apart(plan.allocations, positions)
    allocated = {allocation.buffer: allocation.bytes for allocation in plan.allocations}
    for buffer in program.of_kind("temporary"):
        if buffer.bytes > allocated.get(buffer.name, 0):
            raise InternalError(f"there is no room in the arena for {buffer}")
        if positions.get(buffer.name, 0) % buffer.dtype.itemsize:
            raise InternalError(f"elements of {buffer} are not aligned")


def _check_alive(program: Program) -> None:
    """Checks that buffers are allocated in the arena whenever they are used."""
    allocations = {allocation.buffer: allocation for allocation in program.plan.allocations}

    def check(name: str, first: int, last: int, where: str) -> None:
        allocation = allocations.get(name)
        if allocation is not None and not allocation.first <= first <= last <= allocation.last:
            raise InternalError(f"{name} is allocated in the arena at other times", where=where)

    for number, step in enumerate(program.steps):
        for name in reads_of(step) | writes_of(step):
            check(name, number, number, f"step {number}, {step.name}")
    for name, buffer in program.outputs:
        check(buffer, len(program.steps), len(program.steps), f"the output {name}")
    for repeat in program.repeats:
        steps = program.steps[repeat.first : repeat.last]
        for name in {name for step in steps for name in reads_of(step) | writes_of(step)}:
            allocation = allocations.get(name)
            # A buffer that another iteration, or a later step, reads must live in all of them.
            if allocation and (allocation.first < repeat.first or allocation.last >= repeat.last):
                check(name, repeat.first, repeat.last - 1, repeat.axis.name)


def _check_overwriting(program: Program) -> None:
    """Checks that steps load an element that they overwrite only at the index that stores it."""
    memory = memory_of(program)
    for number, step in enumerate(program.steps):
        where = f"step {number}, {step.name}"
        axis = program.iteration(number)
        for overlap in overlaps(step, memory, axis):
            if not overlap.at_one_point:
                raise InternalError(
                    f"loads {overlap.load}, which may overlap what another point or an earlier "
                    f"stage stores in {overlap.store.buffer}[{overlap.store.index}]",
                    where=where,
                )
        for first, second in combinations(stores_of(step), 2):
            if first.buffer != second.buffer and may_overlap(first, second, memory, axis):
                raise InternalError(
                    f"stores {first.buffer} and {second.buffer} in the same memory", where=where
                )


def _check_apart(allocations: Sequence[Allocation], positions: Mapping[str, int]) -> None:
    """Sweeps over the steps with the live allocations, sorted by position."""
    alive: list[tuple[int, int, int]] = []
    ending: list[tuple[int, tuple[int, int, int]]] = []
    numbers = {allocation.buffer: number for number, allocation in enumerate(allocations)}

    def extent(number: int) -> tuple[int, int, int]:
        start = positions[allocations[number].buffer]
        return start, start + allocations[number].bytes, number

    def end(span: tuple[int, int, int]) -> None:
        position = bisect_left(alive, span)
        if alive[position : position + 1] == [span]:
            del alive[position]

    # At each step, allocations that take over another's memory come after all others.
    order = sorted(
        range(len(allocations)),
        key=lambda n: (allocations[n].first, bool(allocations[n].in_place_of)),
    )
    for number in order:
        allocation, span = allocations[number], extent(number)
        while ending and ending[0][0] < allocation.first:
            end(heappop(ending)[1])
        before = numbers.get(allocation.in_place_of, number)
        if allocations[before].last == allocation.first and extent(before)[:2] == span[:2]:
            end(extent(before))
        if not allocation.bytes:
            continue
        position = bisect_left(alive, span)
        for start, stop, other in alive[max(position - 1, 0) : position + 1]:
            if start < span[1] and span[0] < stop:
                first, second = sorted((number, other))
                names = f"{allocations[first].buffer} and {allocations[second].buffer}"
                raise InternalError(f"{names} share bytes while alive")
        alive.insert(position, span)
        heappush(ending, (allocation.last, span))
