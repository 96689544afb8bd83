"""A program as native code: kernels in phases, which threads share, or one function.

Every step becomes one or more parts. A part is a kernel; parts that do not need each other form a
phase. What is worth one thread only is one function that calls all parts in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from lamina.codegen.builder import OpenLoop
from lamina.codegen.values import I64, constant
from lamina.engines.cpu.decide.overlap import Extents, LastTouched, extents_of
from lamina.engines.cpu.decide.schedule import Schedule
from lamina.engines.cpu.emit.kernels import KernelCall, RepeatedCalls, WrittenProgram, write_kernels
from lamina.engines.cpu.emit.workspaces import SLOTS
from lamina.engines.cpu.processor import Processor
from lamina.engines.cpu.run.jobs import KERNEL_PARAMETERS, Kernel, Phase
from lamina.engines.cpu.run.native_layout import Entry, Layout, exported_name
from lamina.program.program import Program
from lamina.records import frozen_dataclass


@frozen_dataclass
class NativeProgram:
    """The text of a program, and how it is to be run.

    Attributes:
        text: the module in LLVM's assembly language; it exports a table of functions for each
            entry that has kernels.
        layout: what it needs to run.
    """

    text: str
    layout: Layout


def write_program(
    program: Program,
    processor: Processor,
    schedule: Schedule | None = None,
    *,
    timed: bool = False,
) -> NativeProgram:
    """Writes the text of a program for one processor.

    Args:
        program: what to write.
        processor: what it is written for.
        schedule: how its steps are run; by default that is decided.
        timed: whether each part is a phase of its own, so that its time can be taken.
    """
    written = write_kernels(program, processor, schedule)
    schedule = written.schedule
    extents = extents_of(program, written.workspaces.extents)
    load = Entry(0, 0, (), ())
    if written.load:
        load = _entry(written, "load", written.load, (), extents, schedule.load_workers)
    used = [number for number, part in enumerate(written.parts) if part.slices.work.items]
    loops = [
        RepeatedCalls(bisect_left(used, loop.first), bisect_left(used, loop.last), loop.turns)
        for loop in written.loops
    ]
    entry = _entry(
        written,
        "program",
        [written.parts[number] for number in used],
        [loop for loop in loops if loop.first < loop.last],
        extents,
        schedule.workers,
        timed=timed,
    )
    workspaces = written.workspaces
    layout = Layout(
        program=entry,
        load=load,
        thread_bytes=workspaces.thread_bytes,
        placed_bytes=workspaces.placed_bytes,
        placed_offsets=tuple(written.placed.values()),
        places=_places(program, written),
        steps=tuple(written.steps[number] for number in used),
    )
    return NativeProgram(written.module.text(), layout)


def text_of(program: Program, step: int | None, processor: Processor) -> str:
    """What is written for one step of a program, or for all of them, as a module of its own."""
    written = write_kernels(program, processor, only=step)
    return written.module.text()


def _places(program: Program, written: WrittenProgram) -> tuple[int, ...]:
    """What stands at each place of the table of addresses, in numbers."""
    names = (*program.buffers, *written.placed)
    numbers = {name: number for number, name in enumerate(names)}
    places: list[int] = []
    for section in written.sections:
        places += range(-len(SLOTS), 0)
        places += (numbers[name] for name in section)
    return tuple(places)


def _entry(
    written: WrittenProgram,
    name: str,
    parts: Sequence[KernelCall],
    loops: Sequence[RepeatedCalls],
    extents: Extents,
    threads: int,
    *,
    timed: bool = False,
) -> Entry:
    """Kernels and phases for parts, and the table of their functions in the module."""
    if not parts or (threads == 1 and not timed):
        _write_sequence(written, name, parts, loops)
        written.module.export_functions(exported_name(name), [name])
        return Entry(1, 1, (Kernel(0, 0, 1, 1, 1, 0),), (Phase(0, 1, False),))
    numbers = {part.function: 0 for part in parts}
    numbers = {function: number for number, function in enumerate(numbers)}
    written.module.export_functions(exported_name(name), list(numbers))
    begins = [True] * len(parts) if timed else _begins(extents, parts, loops)
    kernels: list[Kernel] = []
    phases: list[Phase] = []
    # Which phase begins with a part.
    phase_of: dict[int, int] = {}
    ends = {loop.last: loop for loop in loops}
    edges = [number for number, begin in enumerate(begins) if begin]
    for first, last in zip(edges, [*edges[1:], len(parts)], strict=True):
        phase_of[first] = len(phases)
        offset = 0
        for part in parts[first:last]:
            number, cut = numbers[part.function], part.slices
            items, share = cut.work.items, cut.count
            # What all threads share, each finds in the same slot all the time.
            where = offset if share < threads else 0
            kernels.append(Kernel(number, part.section, items, cut.at_once, share, where))
            offset = (offset + share) % threads
        cycles = sum(part.slices.work.cycles for part in parts[first:last])
        several = last - first > 1 or kernels[-1].share > 1
        shared = several and cycles >= written.schedule.least_shared_cycles
        loop = ends.get(last)
        back, iterations = (phase_of[loop.first], loop.turns) if loop is not None else (0, 0)
        phases.append(Phase(first, last, shared, back, iterations))
    return Entry(threads, len(numbers), tuple(kernels), tuple(phases))


def _begins(
    extents: Extents, parts: Sequence[KernelCall], loops: Sequence[RepeatedCalls]
) -> list[bool]:
    """Whether a phase begins with each part: it needs what others of the last phase have done."""
    # At the beginning of each iteration, and behind the last one.
    edges = {edge for loop in loops for edge in (loop.first, loop.last)}
    read, written = LastTouched(extents), LastTouched(extents)
    result: list[bool] = []
    phase = 0
    for number, part in enumerate(parts):
        used = max(written.last(part.reads), written.last(part.writes), read.last(part.writes))
        begins = number == 0 or number in edges or used >= phase
        phase = number if begins else phase
        read.touch(part.reads, number)
        written.touch(part.writes, number)
        result.append(begins)
    return result


def _write_sequence(
    written: WrittenProgram, name: str, parts: Sequence[KernelCall], loops: Sequence[RepeatedCalls]
) -> None:
    """A function that calls all parts in order."""
    code = written.module.function(name, KERNEL_PARAMETERS)
    table, thread, *_ = code.parameters
    first = {loop.first: loop for loop in loops}
    last = {loop.last for loop in loops}
    opened: OpenLoop | None = None
    for number, part in enumerate(parts):
        if number in first:
            opened = code.begin_loop(0, first[number].turns)
            code.store(opened.index, written.workspaces.iteration_address(code, table))
        section = code.offset(table, part.section, "ptr")
        code.call_void(
            part.function,
            *(section, thread, constant(0, I64), constant(part.slices.work.items, I64)),
        )
        if number + 1 in last and opened is not None:
            code.end_loop(opened)
            opened = None
    code.finish()
