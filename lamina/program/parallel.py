"""The axes along which workers may split a step, given what it reads and overwrites.

Two accesses overlap if they may touch the same bytes: of one buffer, or of two buffers that share
memory in the arena. Addresses are compared, not names. `lamina.program.steps` states the rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lamina.base.records import frozen_dataclass
from lamina.program.distinct import never_meet
from lamina.program.index import Axis, Index
from lamina.program.program import Program
from lamina.program.ranges import range_of
from lamina.program.scalar import Load, loads
from lamina.program.steps import (
    Chain,
    Loop,
    Scan,
    Sort,
    Step,
    Store,
    Write,
    gathering_positions,
    inner_axes,
    stage_stores,
    stores_of,
)

# For each buffer: its address, the bytes of an element, and the number of elements.
Memory = Mapping[str, tuple[int, int, int]]


def memory_of(program: Program) -> dict[str, tuple[int, int, int]]:
    """An address space of the arena, with contiguous blocks, followed by all other buffers."""
    positions = program.plan.positions()
    free = program.plan.arena_bytes
    memory: dict[str, tuple[int, int, int]] = {}
    for name, buffer in program.buffers.items():
        start = positions.get(name)
        if start is None:
            start, free = free, free + buffer.bytes
        memory[name] = start, buffer.dtype.itemsize, buffer.size
    return memory


@frozen_dataclass
class Overlap:
    """A load and a store of one step that may touch the same bytes.

    Attributes:
        load, store: the accesses.
        reading, writing: the numbers of their stages.
        at_one_point: whether each element is loaded only at the index that stores it, by the
            storing stage or an earlier one.
    """

    load: Load
    store: Store
    reading: int
    writing: int
    at_one_point: bool


def overlaps(step: Step, memory: Memory, repeated: Axis | None = None) -> Iterator[Overlap]:
    """The loads and stores of a step, maybe repeated, that may touch the same bytes."""
    stages = list(_accesses(step))
    for writing, (_, stores) in enumerate(stages):
        for store in stores:
            for reading, (read, _) in enumerate(stages):
                for load in read:
                    if may_overlap(load, store, memory, repeated):
                        one_element = (
                            memory[load.buffer][:2] == memory[store.buffer][:2]
                            and load.index == store.index
                            and all(bound.always for bound in load.bounds)
                            and not store.accumulate
                        )
                        earlier = reading < writing and isinstance(step, Loop)
                        # A sort reads all of its points before it stores any.
                        sorts = isinstance(step, Loop) and isinstance(step.stages[writing], Sort)
                        itself = reading == writing and not sorts
                        at_one_point = one_element and (earlier or itself)
                        yield Overlap(load, store, reading, writing, at_one_point)


def parallel_axes(program: Program, number: int) -> tuple[Axis, ...]:
    """The axes along which the workers of a step may be split without a barrier.

    A worker runs all stages for its range of these axes, one after the other. If a stage lacks one
    of the axes, one worker runs it if it stores; if it is a reduction, each worker that needs its
    result runs it. One worker runs all other axes for each point of these.

    They are the step's own axes, followed by inner axes of its writes: those along which no point
    reads an element that another point overwrites.
    """
    step = program.steps[number]
    if not isinstance(step, Loop):
        return step.axes
    repeated = program.iteration(number)
    memory = memory_of(program)
    parallel = [s for s in step.stages if isinstance(s, Write) and not s.sequential]
    ordered = {
        axis
        for stage in step.stages
        if isinstance(stage, Scan | Sort) or (isinstance(stage, Write) and stage.sequential)
        for axis in inner_axes(stage)
    }
    shared = [
        (step.stages[overlap.reading], step.stages[overlap.writing])
        for overlap in overlaps(step, memory, repeated)
        if overlap.reading != overlap.writing
    ]
    stored = [(stage, store) for stage in step.stages for store in stage_stores(stage)]
    shared += [
        (first, second)
        for number, (second, store) in enumerate(stored)
        for first, earlier in stored[:number]
        if first is not second and may_overlap(earlier, store, memory, repeated)
    ]
    sharing = [stage for pair in shared for stage in pair]
    candidates = dict.fromkeys(axis for stage in parallel for axis in stage.axes)
    inner = (
        axis
        for axis in candidates
        if axis not in ordered
        and all(stage in parallel and axis in inner_axes(stage) for stage in sharing)
    )
    return (*step.axes, *inner)


def _accesses(step: Step) -> Iterator[tuple[tuple[Load, ...], tuple[Store, ...]]]:
    """The loads and stores of each stage; for a contraction, of its operands and its epilogue."""
    if isinstance(step, Chain):
        # Its points store at no particular time, so that they read nothing that one overwrites.
        yield step.loads, ()
        yield (), stores_of(step)
        return
    for nest in step.nests:
        yield loads(*nest.values, *gathering_positions(nest.stores)), nest.stores


def may_overlap(
    access: Load | Store, other: Load | Store, memory: Memory, repeated: Axis | None = None
) -> bool:
    """Whether two accesses of one step may touch the same bytes, in one iteration of a repeat."""
    start, size, count = memory[access.buffer]
    other_start, other_size, other_count = memory[other.buffer]
    apart = start + count * size <= other_start or other_start + other_count * other_size <= start
    if apart or not count or not other_count:
        return False
    index, other_index = access.index, other.index
    if repeated is not None:
        # If the iteration shifts both addresses equally, the shift does not separate them.
        stride, rest = _without(index, repeated)
        other_stride, other_rest = _without(other_index, repeated)
        if stride * size == other_stride * other_size:
            index, other_index = rest, other_rest
    low, high = range_of(index, access.bounds if isinstance(access, Load) else ())
    other_low, other_high = range_of(other_index, other.bounds if isinstance(other, Load) else ())
    in_range = (
        start + low * size < other_start + (other_high + 1) * other_size
        and other_start + other_low * other_size < start + (high + 1) * size
    )
    # Proofs take longer than ranges.
    return in_range and not (access.buffer == other.buffer and never_meet(index, other_index))


def _without(index: Index, axis: Axis) -> tuple[int, Index]:
    """The coefficient of an axis in an index, and the index without it."""
    terms = dict(index.terms)
    stride = terms.pop(axis, 0)
    return stride, Index(index.constant, tuple(terms.items()))
