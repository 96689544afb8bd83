"""The kernel whose work items are members of a population: each runs the jobs of one program.

A thread has a place: jobs of its own, which it runs alone, on its own part of the arena. For each
item it directs its jobs to the item's members and runs them. If an item is one member, the table of
addresses gets those of the member's parameters and states. If it is several, they lie in the lanes
of vectors: their parameters and states are copied to the place, where the elements of all members
lie between each other, and back.
"""

from __future__ import annotations

from lamina.codegen.llvm import Function, Module
from lamina.codegen.values import I64, POINTER, Value
from lamina.engines.cpu.native import jobs
from lamina.engines.cpu.native.jobs import KERNEL_PARAMETERS, record_of, word_of

# The words of the kernel's section: the places, and the numbers of the members of all items.
PLACES, NUMBERS = range(2)
SECTION_WORDS = 2
# The words of a place: the jobs, of which the first may be absent (0), and the list of what is
# outside of the program.
LOAD, PROGRAM, OUTSIDE, OUTSIDE_COUNT = range(4)
PLACE_WORDS = 4
# The words of an entry of that list: the memory of the first member and the bytes from there to
# that of the next; the address of the word of the table for it, or of its copy in the place; the
# bytes of a member, those of an element, and whether the program writes it.
MEMORY, MEMBER_BYTES, PLACE, BYTES, ELEMENT_BYTES, WRITTEN = range(6)
OUTSIDE_WORDS = 6


def emit_run_members(module: Module) -> None:
    """`run_members(section, thread, first, last)`, after the functions of jobs and `run_job`."""
    code = module.function("run_members", KERNEL_PARAMETERS, internal=False)
    section, thread, first, last = code.parameters
    place = record_of(code, word_of(code, section, PLACES, POINTER), thread, PLACE_WORDS)
    load, program = (word_of(code, place, n, POINTER) for n in (LOAD, PROGRAM))
    lanes = word_of(code, program, jobs.LANES)
    with code.loop(first, last) as items:
        numbers = word_of(code, section, NUMBERS, POINTER)
        members = code.offset(numbers, items.index * lanes, "i64")
        code.store(members, code.offset(program, jobs.MEMBERS, "i64"))
        _emit_outside(code, place, members, lanes, back=False)
        # Jobs that are run alone need no state of claims.
        with code.when(word_of(code, place, LOAD).differs(0)):
            code.call_void("run_job", load, load)
        code.call_void("run_job", program, program)
        _emit_outside(code, place, members, lanes, back=True)


def _emit_outside(
    code: Function, place: Value, members: Value, lanes: Value, *, back: bool
) -> None:
    """Directs a place to the memories of members, or copies them to the place, or back."""
    entries = word_of(code, place, OUTSIDE, POINTER)
    with code.loop(0, word_of(code, place, OUTSIDE_COUNT)) as outside:
        entry = record_of(code, entries, outside.index, OUTSIDE_WORDS)
        memory, target = (word_of(code, entry, n, POINTER) for n in (MEMORY, PLACE))
        size, width = (word_of(code, entry, n) for n in (BYTES, ELEMENT_BYTES))
        several = lanes.differs(1)
        if back:
            several = several & word_of(code, entry, WRITTEN).differs(0)
        with code.loop(0, code.select(several, lanes, 0)) as lane:
            alone = _memory_of(code, entry, memory, members, lane.index)
            at = code.offset(target, lane.index * width, "i8")
            code.call_void("collect" if back else "spread", at, alone, size, width, lanes)
        if not back:
            with code.when(several ^ True):
                code.store(_memory_of(code, entry, memory, members, code.constant(0)), target)


def _memory_of(code: Function, entry: Value, memory: Value, members: Value, lane: Value) -> Value:
    number = code.load(code.offset(members, lane, "i64"), I64)
    return code.offset(memory, number * word_of(code, entry, MEMBER_BYTES), "i8")
