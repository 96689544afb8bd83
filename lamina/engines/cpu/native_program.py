"""A program as one native function that all threads run together.

Every step becomes one or more parts; the threads share the units of a part and meet at a barrier
only where a part needs what others have done since the last one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lamina.engines.cpu.ahead import Ahead, packed_ahead
from lamina.engines.cpu.clock import emit_ticks
from lamina.engines.cpu.context import Context
from lamina.engines.cpu.contractions import emit_contraction, panels_of
from lamina.engines.cpu.ir import I64, Function, Module, OpenLoop, Value, constant
from lamina.engines.cpu.loops import Part, emit_loop
from lamina.engines.cpu.native_loop import PROGRAM_PARAMETERS, emit_barrier, waiting_for
from lamina.engines.cpu.processor import Processor
from lamina.engines.cpu.riders import riders_of
from lamina.engines.cpu.sharing import emit_shared
from lamina.engines.cpu.split import split_reductions
from lamina.engines.cpu.workspaces import Workspaces
from lamina.program.index import Axis
from lamina.program.program import Plan, Program
from lamina.program.steps import Loop, Step

# Threads are worth waking for parts of so many cycles each; once they are awake, they take their
# share of smaller parts as well.
CYCLES_WORTH_WAKING, CYCLES_WORTH_SHARING = 4000.0, 1500.0


@dataclass(frozen=True)
class Layout:
    """How a native program is to be run: threads, and memory beside the program's buffers.

    In the table of addresses the program's buffers stand first, in its order, then the
    workspaces, then what steps asked for.

    Attributes:
        threads: how many threads `program` is worth.
        load_threads: the same of `load`, which is run once after the parameters were changed; 0 if
            there is none.
        barriers: how often the threads meet in `program`.
        shared_bytes: a workspace that all threads see.
        thread_bytes: one for every thread.
        packed_bytes: what is packed ahead: parameters stay from run to run, what is packed in each
            run takes the place of what was used before.
        counter_bytes: counters, which are zero between runs.
        extra_bytes: buffers that steps asked for.
        steps: for each part of `program` the number of its step.
    """

    threads: int
    load_threads: int
    barriers: int
    shared_bytes: int
    thread_bytes: int
    packed_bytes: int
    counter_bytes: int
    extra_bytes: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        """What all of the memory takes."""
        own = self.thread_bytes * self.threads
        kept = self.packed_bytes + self.counter_bytes + sum(self.extra_bytes)
        return self.shared_bytes + own + kept


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


@dataclass(frozen=True)
class _Loop:
    """Parts that are run for every turn of an axis.

    Attributes:
        first, last: the first part, and the one behind the last.
        turns: how many there are.
    """

    first: int
    last: int
    turns: int


@dataclass
class _Parts:
    """What was written of a program.

    Attributes:
        load: the parts that are run once after the parameters were changed.
        parts: those that are run each time.
        steps: for each of them the number of its step.
        loops: which of them are repeated.
    """

    load: list[Part] = field(default_factory=list[Part])
    parts: list[Part] = field(default_factory=list[Part])
    steps: list[int] = field(default_factory=list[int])
    loops: list[_Loop] = field(default_factory=list[_Loop])


def write_program(program: Program, processor: Processor, *, timed: bool = False) -> NativeProgram:
    """Writes the text of a program for one processor.

    Args:
        program: what to write.
        processor: what it is written for.
        timed: whether the threads meet after every part and add the ticks of the processor's
            counter that it took to the part's place in the counters.
    """
    context = _context(program, processor)
    written = _write_parts(program, context)
    emit_barrier(context.module, waiting_for(processor.triple.partition("-")[0]))
    load_threads = 0
    if written.load:
        shares = _shares(written.load, (), processor)
        _write_entry(context, "load", written.load, shares, [False] * len(shares), ())
        load_threads = max(shares)
    used = [number for number, part in enumerate(written.parts) if part.units]
    parts = [written.parts[number] for number in used]
    loops = [
        _Loop(bisect_left(used, loop.first), bisect_left(used, loop.last), loop.turns)
        for loop in written.loops
    ]
    loops = [loop for loop in loops if loop.first < loop.last]
    shares = _shares(parts, loops, processor)
    barriers = _barriers(program.plan, context.workspaces, parts, shares, loops)
    _write_entry(context, "program", parts, shares, barriers, loops, timed=timed)
    workspaces = context.workspaces
    extra = [b.bytes for name, b in context.buffers.items() if name not in program.buffers]
    layout = Layout(
        threads=max(shares, default=1),
        load_threads=load_threads,
        barriers=sum(barriers),
        shared_bytes=workspaces.shared_bytes,
        thread_bytes=workspaces.thread_bytes,
        packed_bytes=workspaces.packed_bytes,
        counter_bytes=workspaces.counter_bytes,
        extra_bytes=tuple(extra),
        steps=tuple(written.steps[number] for number in used),
    )
    return NativeProgram(context.module.text(), layout)


def text_of_step(program: Program, number: int, processor: Processor) -> str:
    """What is written for one step of a program, as a module of its own."""
    context = _context(program, processor)
    _write_parts(program, context, only=number)
    return context.module.text()


def _context(program: Program, processor: Processor) -> Context:
    table = {name: number for number, name in enumerate(program.buffers)}
    module, workspaces = Module(fused=processor.fused), Workspaces(len(table))
    return Context(module, dict(program.buffers), table, processor, workspaces)


def _write_parts(program: Program, context: Context, only: int | None = None) -> _Parts:
    """Writes all steps, or one and what it needs."""
    steps, meet = program.steps, _meeting(program.plan)
    written = _Parts()
    riders = riders_of(program, meet, context.processor)
    ahead = packed_ahead(program, context, meet)
    if only in riders:
        only = riders[only][0]
    first_part = 0
    for number, step in enumerate(steps):
        repeat = program.repeated(number)
        if only in (None, number):
            for operand in _packed_before(ahead, number, None):
                _write_packing(operand, context, written)
        written.steps += [number] * (len(written.parts) - len(written.steps))
        if repeat is not None and repeat.first == number:
            first_part = len(written.parts)
        context.turn = repeat.axis if repeat is not None else None
        if number not in riders and only in (None, number):
            if repeat is not None:
                for operand in _packed_before(ahead, number, repeat.axis):
                    _write_packing(operand, context, written)
            _write_step(number, step, context, written, riders, ahead.get(number))
            written.steps += [number] * (len(written.parts) - len(written.steps))
        if repeat is not None and repeat.last == number + 1:
            written.loops.append(_Loop(first_part, len(written.parts), repeat.axis.extent))
        context.turn = None
    return written


def _write_step(
    number: int,
    step: Step,
    context: Context,
    written: _Parts,
    riders: Mapping[int, tuple[int, Loop]],
    operand: Ahead | None,
) -> None:
    """Writes the parts of one step."""
    name = f"step{number}"
    if isinstance(step, Loop):
        *before, last = split_reductions(context, name, step)
        written.parts += [emit_loop(context, loop.name, loop) for loop in before]
        written.parts.append(emit_loop(context, name, last))
        return
    width = panels_of(step, context.processor).width
    along = [
        emit_loop(context, f"step{rider}", loop, columns=width)
        for rider, (carrier, loop) in riders.items()
        if carrier == number
    ]
    packed = operand.packed if operand is not None else None
    written.parts += emit_contraction(context, name, step, packed, along)


def _packed_before(ahead: Mapping[int, Ahead], step: int, turn: Axis | None) -> list[Ahead]:
    """What is packed in front of a step: once, or in each turn of an axis."""
    found = {id(one): one for one in ahead.values() if one.before == step and one.turn == turn}
    return list(found.values())


def _write_packing(operand: Ahead, context: Context, written: _Parts) -> None:
    part = operand.packed.write(context, operand.matrix)
    (written.load if operand.at_load else written.parts).append(part)


def _shares(parts: Sequence[Part], loops: Sequence[_Loop], processor: Processor) -> list[int]:
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
    loops: Sequence[_Loop],
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
    context: Context,
    name: str,
    parts: Sequence[Part],
    shares: Sequence[int],
    barriers: Sequence[bool],
    loops: Sequence[_Loop],
    *,
    timed: bool = False,
) -> None:
    """The function that each thread runs: its share of every part, in order."""
    code = context.module.function(name, PROGRAM_PARAMETERS, internal=False)
    table, thread, threads, barrier = code.parameters
    workspaces = context.workspaces
    if loops:
        table = _own_table(code, table, workspaces.slots)
    first = {loop.first: loop for loop in loops}
    last = {loop.last: loop for loop in loops}
    opened: OpenLoop | None = None
    before = emit_ticks(code) if timed else None
    for number, (part, share, meet) in enumerate(zip(parts, shares, barriers, strict=True)):
        if number in first:
            opened = code.begin_loop(0, first[number].turns)
            workspaces.begin_turn(code, table, opened.index)
            before = emit_ticks(code) if timed else None
        if meet and not timed:
            code.call_void("barrier", barrier, threads)
        takes_part = code.compare("slt", thread, constant(share, I64))
        with code.when(takes_part):
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


def _own_table(code: Function, table: Value, slots: int) -> Value:
    """A copy of the table for one thread, in which it says what turn it is at."""
    own = code.allocate(slots, "i64")
    loop = code.begin_loop(0, slots)
    entry = code.load(code.offset(table, loop.index, "i64"), I64)
    code.store(entry, code.offset(own, loop.index, "i64"))
    code.end_loop(loop)
    return own
