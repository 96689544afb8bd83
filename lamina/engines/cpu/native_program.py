"""A program as one native function that all threads run together.

Every step becomes one or more parts; the threads share the units of a part and meet at a barrier
only where a part needs what others have done since the last one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lamina.engines.cpu.clock import emit_ticks
from lamina.engines.cpu.ir import I64, Function, OpenLoop, Value, constant
from lamina.engines.cpu.loops import Part
from lamina.engines.cpu.native_loop import PROGRAM_PARAMETERS, emit_barrier, waiting_for
from lamina.engines.cpu.parts import Parts, RepeatedParts, write_parts
from lamina.engines.cpu.processor import Processor
from lamina.engines.cpu.sharing import emit_shared
from lamina.engines.cpu.workspaces import SLOTS, Workspaces
from lamina.program.program import Plan, Program

# Threads are worth waking for parts of so many cycles each; once they are awake, they take their
# share of smaller parts as well.
CYCLES_WORTH_WAKING, CYCLES_WORTH_SHARING = 4000.0, 1500.0


@dataclass(frozen=True)
class Layout:
    """How a native program is to be run: threads, and memory beside the program's buffers.

    Attributes:
        threads: how many threads `program` is worth.
        load_threads: the same of `load`, which is run once after the parameters were changed; 0 if
            there is none.
        barriers: how often the threads meet in `program`.
        thread_bytes: a workspace of every thread.
        placed_bytes: operands that are packed ahead, and what steps asked for. Packed parameters
            stay from run to run; all else takes the place of what was used before.
        counter_bytes: counters, which are zero between runs.
        placed_offsets: where each of them begins.
        places: what stands at each place of the table of addresses: a number among the program's
            buffers, in its order, then what was placed; or below zero, counted from the end, one
            of the places of the workspaces.
        steps: for each part of `program` the number of its step.
    """

    threads: int
    load_threads: int
    barriers: int
    thread_bytes: int
    placed_bytes: int
    counter_bytes: int
    placed_offsets: tuple[int, ...]
    places: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        """What all of the memory takes."""
        return self.thread_bytes * self.threads + self.placed_bytes + self.counter_bytes


@dataclass(frozen=True)
class NativeProgram:
    """The text of a program, and how it is to be run.

    Attributes:
        text: the module in LLVM's assembly language; it exports `program`, and `load` if there is
            something to be done once after the parameters were changed.
        layout: what it needs to run.
    """

    text: str
    layout: Layout


def write_program(program: Program, processor: Processor, *, timed: bool = False) -> NativeProgram:
    """Writes the text of a program for one processor.

    Args:
        program: what to write.
        processor: what it is written for.
        timed: whether the threads meet after every part and add the ticks of the processor's
            counter that it took to the part's place in the counters.
    """
    written = write_parts(program, processor, _meeting(program.plan))
    emit_barrier(written.module, waiting_for(processor.triple.partition("-")[0]))
    load_threads = 0
    if written.load:
        shares = _shares(written.load, (), processor)
        _write_entry(written, "load", written.load, shares, [False] * len(shares), ())
        load_threads = max(shares)
    used = [number for number, part in enumerate(written.parts) if part.units]
    parts = [written.parts[number] for number in used]
    loops = [
        RepeatedParts(bisect_left(used, loop.first), bisect_left(used, loop.last), loop.turns)
        for loop in written.loops
    ]
    loops = [loop for loop in loops if loop.first < loop.last]
    shares = _shares(parts, loops, processor)
    barriers = _barriers(program.plan, written.workspaces, parts, shares, loops)
    _write_entry(written, "program", parts, shares, barriers, loops, timed=timed)
    workspaces = written.workspaces
    layout = Layout(
        threads=max(shares, default=1),
        load_threads=load_threads,
        barriers=sum(barriers),
        thread_bytes=workspaces.thread_bytes,
        placed_bytes=workspaces.placed_bytes,
        counter_bytes=workspaces.counter_bytes,
        placed_offsets=tuple(written.placed.values()),
        places=_places(program, written),
        steps=tuple(written.steps[number] for number in used),
    )
    return NativeProgram(written.module.text(), layout)


def text_of_step(program: Program, number: int, processor: Processor) -> str:
    """What is written for one step of a program, as a module of its own."""
    written = write_parts(program, processor, _meeting(program.plan), only=number)
    return written.module.text()


def _places(program: Program, written: Parts) -> tuple[int, ...]:
    """What stands at each place of the table of addresses, in numbers."""
    names = (*program.buffers, *written.placed)
    numbers = {name: number for number, name in enumerate(names)}
    places: list[int] = []
    for section in written.sections:
        places += range(-len(SLOTS), 0)
        places += (numbers[name] for name in section)
    return tuple(places)


def _shares(
    parts: Sequence[Part], loops: Sequence[RepeatedParts], processor: Processor
) -> list[int]:
    """How many threads take part in each part."""

    def threads_for(part: Part, cycles: float) -> int:
        return max(1, min(processor.threads, part.units, int(part.cycles / cycles)))

    turns = {n: loop.turns for loop in loops for n in range(loop.first, loop.last)}
    most = max(
        (
            threads_for(part, CYCLES_WORTH_WAKING / turns.get(number, 1))
            for number, part in enumerate(parts)
        ),
        default=1,
    )
    return [min(most, threads_for(part, CYCLES_WORTH_SHARING)) for part in parts]


def _meeting(plan: Plan) -> Callable[[str, str], bool]:
    """Whether two buffers share memory."""
    places = {
        allocation.buffer: (allocation.offset, allocation.offset + allocation.bytes)
        for allocation in plan.allocations
    }

    def meet(one: str, other: str) -> bool:
        if one in places and other in places:
            (start, end), (first, last) = places[one], places[other]
            return start < last and first < end
        return one == other

    return meet


def _barriers(
    plan: Plan,
    workspaces: Workspaces,
    parts: Sequence[Part],
    shares: Sequence[int],
    loops: Sequence[RepeatedParts],
) -> list[bool]:
    """Whether the threads must meet before each part."""
    in_arena = _meeting(plan)
    # At the beginning of each turn, and behind the last one.
    edges = {edge for loop in loops for edge in (loop.first, loop.last)}

    def meet(one: str, other: str) -> bool:
        return in_arena(one, other) or workspaces.shares_place(one, other)

    def conflict(one: Part, other: Part) -> bool:
        pairs = ((one.writes, other.reads | other.writes), (one.reads, other.writes))
        return any(meet(a, b) for left, right in pairs for a in left for b in right)

    result: list[bool] = []
    since: list[int] = []
    for number, part in enumerate(parts):
        needed = any(
            (shares[number] > 1 or shares[earlier] > 1) and conflict(parts[earlier], part)
            for earlier in since
        )
        needed = needed or number in edges
        if needed:
            since.clear()
        since.append(number)
        result.append(needed)
    return result


def _write_entry(
    written: Parts,
    name: str,
    parts: Sequence[Part],
    shares: Sequence[int],
    barriers: Sequence[bool],
    loops: Sequence[RepeatedParts],
    *,
    timed: bool = False,
) -> None:
    """The function that each thread runs: its share of every part, in order."""
    code = written.module.function(name, PROGRAM_PARAMETERS, internal=False)
    table, thread, threads, barrier = code.parameters
    workspaces = written.workspaces
    if loops:
        table = _own_table(code, table, written.words)
    everyone = max(shares, default=1)
    first = {loop.first: loop for loop in loops}
    last = {loop.last: loop for loop in loops}
    opened: OpenLoop | None = None
    before = emit_ticks(code) if timed else None
    for number, (part, share, meet) in enumerate(zip(parts, shares, barriers, strict=True)):
        if number in first:
            opened = code.begin_loop(0, first[number].turns)
            repeated = parts[first[number].first : first[number].last]
            for section in sorted({part.section for part in repeated}):
                workspaces.begin_turn(code, code.offset(table, section, "ptr"), opened.index)
            before = emit_ticks(code) if timed else None
        if meet and not timed:
            code.call_void("barrier", barrier, threads)
        if share == everyone:
            emit_shared(code, part, share, workspaces, table, thread)
        else:
            with code.when(code.compare("slt", thread, constant(share, I64))):
                emit_shared(code, part, share, workspaces, table, thread)
        if before is not None:
            code.call_void("barrier", barrier, threads)
            now = emit_ticks(code)
            with code.when(code.compare("eq", thread, constant(0, I64))):
                counters = workspaces.ticks(code, table)
                place = code.offset(counters, number, "i64")
                spent = code.subtract(now, before)
                code.store(code.add(code.load(place, I64), spent), place)
            before = now
        if number + 1 in last and opened is not None:
            code.end_loop(opened)
            opened = None
            before = emit_ticks(code) if timed else None
    code.finish()


def _own_table(code: Function, table: Value, words: int) -> Value:
    """A copy of the table for one thread, in which it says what turn it is at."""
    own = code.allocate(words, "i64")
    loop = code.begin_loop(0, words)
    entry = code.load(code.offset(table, loop.index, "i64"), I64)
    code.store(entry, code.offset(own, loop.index, "i64"))
    code.end_loop(loop)
    return own
