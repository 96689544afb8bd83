"""A program as one native function that all threads run together.

Every step becomes one or more parts; the threads share the units of a part and meet at a barrier
only where a part needs what others have done since the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.engines.cpu.contractions import emit_contraction
from lamina.engines.cpu.ir import I64, POINTER, Function, Module, Value, constant
from lamina.engines.cpu.loops import Part, emit_loop
from lamina.engines.cpu.native_loop import emit_barrier, waiting_for
from lamina.engines.cpu.processor import Processor
from lamina.engines.cpu.workspaces import Workspaces
from lamina.program.program import Plan, Program
from lamina.program.steps import Loop

# A thread is worth waking for this many cycles of work.
CYCLES_WORTH_A_THREAD = 4000.0


@dataclass(frozen=True)
class NativeProgram:
    """The text of a program, and how it is to be run.

    Attributes:
        text: the module in LLVM's assembly language; it exports `program`.
        table: the number of each buffer in the table of addresses; after them stand what
            `Workspaces` says.
        shared_bytes: the size of the workspace that all threads see.
        thread_bytes: the size of the memory of each thread's own.
        threads: how many threads it is worth.
        barriers: how often they meet.
        steps: for each part the number of its step in the program.
    """

    text: str
    table: dict[str, int]
    shared_bytes: int
    thread_bytes: int
    threads: int
    barriers: int
    steps: tuple[int, ...]


def write_program(
    program: Program, processor: Processor, *, counted: bool = False
) -> NativeProgram:
    """Writes the machine-independent text of a program for one processor.

    Args:
        program: what to write.
        processor: what it is written for.
        counted: whether the threads meet after every part and add the ticks of the processor's
            counter that it took to the part's place in the counters.
    """
    module = Module(fused=processor.fused)
    emit_barrier(module, waiting_for(processor.triple.partition("-")[0]))
    table = {name: number for number, name in enumerate(program.buffers)}
    buffers = program.buffers
    workspaces = Workspaces(len(table))
    parts: list[Part] = []
    steps: list[int] = []
    for number, step in enumerate(program.steps):
        name = f"step{number}"
        if isinstance(step, Loop):
            parts.append(emit_loop(module, name, step, buffers, table, processor))
        else:
            parts += emit_contraction(module, name, step, buffers, table, processor, workspaces)
        steps += [number] * (len(parts) - len(steps))
    steps = [number for number, part in zip(steps, parts, strict=True) if part.units]
    parts = [part for part in parts if part.units]
    shares = [_threads_for(part, processor.threads) for part in parts]
    barriers = _barriers(program.plan, parts, shares)
    _write_entry(module, parts, shares, barriers, len(table) + 3 if counted else None)
    return NativeProgram(
        module.text(),
        table,
        workspaces.shared_bytes,
        workspaces.thread_bytes,
        max(shares, default=1),
        sum(barriers),
        tuple(steps),
    )


def _threads_for(part: Part, threads: int) -> int:
    return max(1, min(threads, part.units, int(part.cycles / CYCLES_WORTH_A_THREAD)))


def _barriers(plan: Plan, parts: Sequence[Part], shares: Sequence[int]) -> list[bool]:
    """Whether the threads must meet before each part."""
    places = {
        allocation.buffer: (allocation.offset, allocation.offset + allocation.bytes)
        for allocation in plan.allocations
    }

    def meet(one: str, other: str) -> bool:
        if one in places and other in places:
            (start, end), (first, last) = places[one], places[other]
            return start < last and first < end
        return one == other

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
        if needed:
            since.clear()
        since.append(number)
        result.append(needed)
    return result


def _write_entry(
    module: Module,
    parts: Sequence[Part],
    shares: Sequence[int],
    barriers: Sequence[bool],
    counters: int | None,
) -> None:
    """The function that each thread runs: its slice of every part, in order.

    `counters` is the place of their address in the table, if time is to be counted.
    """
    parameters = (("table", POINTER), ("thread", I64), ("threads", I64), ("barrier", POINTER))
    code = module.function("program", parameters, internal=False)
    table, thread, threads, barrier = code.parameters
    before = _ticks(code) if counters is not None else None
    for number, (part, share, meet) in enumerate(zip(parts, shares, barriers, strict=True)):
        if meet and counters is None:
            code.call_void("barrier", barrier, threads)
        takes_part = code.compare("slt", thread, constant(share, I64))
        with code.when(takes_part):
            first = _cut(code, part.units, thread, share)
            following = code.add(thread, constant(1, I64))
            last = _cut(code, part.units, following, share)
            code.call_void(part.function, table, thread, first, last)
        if counters is not None and before is not None:
            code.call_void("barrier", barrier, threads)
            now = _ticks(code)
            with code.when(code.compare("eq", thread, constant(0, I64))):
                base = code.load(code.offset(table, counters, "ptr"), POINTER)
                place = code.offset(base, number, "i64")
                spent = code.subtract(now, before)
                code.store(code.add(code.load(place, I64), spent), place)
            before = now
    code.finish()


def _ticks(code: Function) -> Value:
    """The processor's counter, which runs evenly."""
    code.module.declare("llvm.readcyclecounter", "i64", [])
    return code.call("llvm.readcyclecounter", I64)


def _cut(code: Function, units: int, thread: Value, share: int) -> Value:
    """Where the slice of a thread begins: units * thread / share."""
    scaled = code.multiply(thread, constant(units, I64))
    return code.binary("udiv", scaled, constant(share, I64))
