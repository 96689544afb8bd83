"""A program as native code: kernels in phases, which threads share, or one function.

Every step becomes one or more kernels. Calls of kernels that do not depend on each other form a
phase. A program that one thread runs is one function that calls all kernels in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import OpenLoop
from lamina.codegen.llvm import Module
from lamina.engines.cpu.native.jobs import (
    KERNEL_PARAMETERS,
    Entry,
    Kernel,
    Layout,
    Phase,
    exported_name,
)
from lamina.engines.cpu.processor import HostProcessor
from lamina.engines.simd.decide.overlap import Extents, extents_of
from lamina.engines.simd.decide.schedule import ProgramSchedule
from lamina.engines.simd.emit.addresses import HEADER, AddressesInMemory
from lamina.engines.simd.emit.kernels import (
    KernelCall,
    RepeatedCalls,
    WrittenProgram,
    phase_starts,
    write_kernels,
)
from lamina.program.program import Program

# The kernels of a program in LLVM IR.
Written = WrittenProgram[Module]


@frozen_dataclass
class NativeProgram:
    """A program in LLVM's assembly language, and its kernels, phases and memory.

    The text exports a table of functions for each entry of the layout that has kernels.
    """

    text: str
    layout: Layout


def write_program(
    program: Program,
    processor: HostProcessor,
    schedule: ProgramSchedule | None = None,
    *,
    timed: bool = False,
) -> NativeProgram:
    """Writes the text of a program for one processor; `decide` makes its schedule by default.

    If it is `timed`, each kernel is a separate phase, so that its time can be measured.
    """
    written = write_llvm(program, processor, schedule)
    schedule = written.schedule
    extents = extents_of(program, written.workspaces.extents)
    load = Entry(0, 0, (), ())
    if written.load:
        load = _entry(written, "load", written.load, (), extents, schedule.load_workers)
    used = [number for number, call in enumerate(written.calls) if call.slices.work.items]
    loops = [
        RepeatedCalls(bisect_left(used, loop.first), bisect_left(used, loop.last), loop.iterations)
        for loop in written.loops
    ]
    entry = _entry(
        written,
        "program",
        [written.calls[number] for number in used],
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
        shared_bytes=workspaces.shared_bytes,
        shared_offsets=tuple(written.workspace_offsets.values()),
        table=_table(program, written),
        steps=tuple(written.calls[number].step for number in used),
    )
    return NativeProgram(written.module.text(), layout)


def write_llvm(
    program: Program,
    processor: HostProcessor,
    schedule: ProgramSchedule | None = None,
    *,
    only: int | None = None,
) -> Written:
    """The kernels of a program, or of one step, as LLVM IR, with their calls."""
    module = Module(fused=processor.fused, halves=processor.halves)
    return write_kernels(program, processor, module, AddressesInMemory(), schedule, only=only)


def _table(program: Program, written: Written) -> tuple[int, ...]:
    """The entries of the table of addresses: numbers of buffers, or of workspaces if negative."""
    names = (*program.buffers, *written.workspace_offsets)
    numbers = {name: number for number, name in enumerate(names)}
    # The first section, without buffers, is for kernels that belong to no step.
    entries = [*range(-len(HEADER), 0)]
    for section in written.sections:
        entries += range(-len(HEADER), 0)
        entries += (numbers[name] for name in section)
    return tuple(entries)


def _section_offsets(written: Written) -> list[int]:
    """The offset of each section in the table of addresses, in words."""
    sizes = (len(HEADER) + len(section) for section in written.sections)
    return list(accumulate(sizes, initial=len(HEADER)))


def _entry(
    written: Written,
    name: str,
    calls: Sequence[KernelCall],
    loops: Sequence[RepeatedCalls],
    extents: Extents,
    threads: int,
    *,
    timed: bool = False,
) -> Entry:
    """Kernels and phases for calls, and the table of their functions in the module."""
    if not calls or (threads == 1 and not timed):
        _write_sequence(written, name, calls, loops)
        written.module.export_functions(exported_name(name), [name])
        return Entry(1, 1, (Kernel(0, 0, 1, 1, 1, 0),), (Phase(0, 1, False),))
    numbers = {call.function: 0 for call in calls}
    numbers = {function: number for number, function in enumerate(numbers)}
    written.module.export_functions(exported_name(name), list(numbers))
    begins = [True] * len(calls) if timed else phase_starts(extents, calls, loops)
    sections = _section_offsets(written)
    kernels: list[Kernel] = []
    phases: list[Phase] = []
    # The number of the phase that begins with a call.
    phase_of: dict[int, int] = {}
    ends = {loop.last: loop for loop in loops}
    edges = [number for number, begin in enumerate(begins) if begin]
    for first, last in zip(edges, [*edges[1:], len(calls)], strict=True):
        phase_of[first] = len(phases)
        offset = 0
        for call in calls[first:last]:
            number, slices = numbers[call.function], call.slices
            items, share = slices.work.items, slices.count
            # If all threads share a kernel, each slot gets the same slice in every run.
            slot = offset if share < threads else 0
            kernels.append(
                Kernel(number, sections[call.section], items, slices.at_once, share, slot)
            )
            offset = (offset + share) % threads
        cycles = sum(call.slices.work.cycles for call in calls[first:last])
        several = last - first > 1 or kernels[-1].slice_count > 1
        shared = several and cycles >= written.schedule.least_shared_cycles
        loop = ends.get(last)
        back, iterations = (phase_of[loop.first], loop.iterations) if loop is not None else (0, 0)
        phases.append(Phase(first, last, shared, back, iterations))
    return Entry(threads, len(numbers), tuple(kernels), tuple(phases))


def _write_sequence(
    written: Written, name: str, calls: Sequence[KernelCall], loops: Sequence[RepeatedCalls]
) -> None:
    """Writes a function that calls all kernels in order."""
    code = written.module.function(name, KERNEL_PARAMETERS)
    table, thread, *_ = code.parameters
    sections = _section_offsets(written)
    first = {loop.first: loop for loop in loops}
    last = {loop.last for loop in loops}
    opened: OpenLoop | None = None
    for number, call in enumerate(calls):
        if number in first:
            opened = code.begin_loop(0, first[number].iterations)
            code.store(opened.index, AddressesInMemory().iteration_address(code, table))
        section = code.offset(table, sections[call.section], "ptr")
        code.call_void(call.function, section, thread, 0, call.slices.work.items)
        if number + 1 in last and opened is not None:
            code.end_loop(opened)
            opened = None
