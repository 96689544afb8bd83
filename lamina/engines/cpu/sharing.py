"""How threads share the units of a part: slices, and helping each other with what is left of them.

Every thread begins with a slice of its own, the same in every run, so that its core's caches keep
what lies there. Long parts are taken a few units at a time: who is done with its own slice goes on
with those of others, as cores are not equally fast while other processes use them, too. Which
thread does a unit changes nothing about what it gives.
"""

from __future__ import annotations

from lamina.engines.cpu.ir import I64, POINTER, Function, Module, Value, constant
from lamina.engines.cpu.loops import Part
from lamina.engines.cpu.workspaces import Workspaces

# From so many cycles for each thread on, threads help each other; they take about so many at once.
CYCLES_WORTH_HELPING, CYCLES_AT_ONCE = 50_000.0, 10_000.0
# A counter of units has a cache line for itself.
_LINE = 64

_HELP = "share_units"


def emit_shared(
    code: Function, part: Part, share: int, workspaces: Workspaces, table: Value, thread: Value
) -> None:
    """Calls a part's function for what a thread does of it.

    Args:
        code: where to write.
        part: which one; it has units.
        share: how many threads take part.
        workspaces: of the program.
        table: of addresses.
        thread: the number of the thread, less than `share`.
    """
    section = code.offset(table, part.section, "ptr")
    if share == 1:
        everything = (constant(0, I64), constant(part.units, I64))
        code.call_void(part.function, section, thread, *everything)
        return
    if part.units == share or part.cycles < share * CYCLES_WORTH_HELPING:
        units = constant(part.units, I64)
        first, last = _slice(code, units, thread, constant(share, I64))
        code.call_void(part.function, section, thread, first, last)
        return
    _emit_help(code.module)
    counters = code.offset(workspaces.counters(code, table), workspaces.count(share * _LINE), "i8")
    at_once = max(1, int(part.units * CYCLES_AT_ONCE / part.cycles))
    numbers = (constant(number, I64) for number in (share, part.units, at_once))
    work = Value(f"@{part.function}", POINTER)
    code.call_void(_HELP, work, counters, section, thread, *numbers)


def _slice(code: Function, units: Value, number: Value, share: Value) -> tuple[Value, Value]:
    """Where a slice begins and ends: units * number / share."""
    following = code.add(number, constant(1, I64))
    first = code.binary("udiv", code.multiply(number, units), share)
    return first, code.binary("udiv", code.multiply(following, units), share)


def _emit_help(module: Module) -> None:
    """Writes `share_units(work, counters, section, thread, share, units, at_once)`, once.

    Every slice has a counter of how often somebody took units of it. Each thread comes to each
    slice until nothing is left; the last of them to find that out sets the counter back to zero.
    """
    if module.has(_HELP):
        return
    parameters = (
        *(("work", POINTER), ("counters", POINTER), ("section", POINTER)),
        *((name, I64) for name in ("thread", "share", "units", "at_once")),
    )
    code = module.function(_HELP, parameters)
    work, counters, section, thread, share, units, at_once = code.parameters
    slices = code.begin_loop(constant(0, I64), share)
    number = code.binary("urem", code.add(thread, slices.index), share)
    first, last = _slice(code, units, number, share)
    counter = code.offset(counters, code.multiply(number, constant(_LINE, I64)), "i8")
    entry = code.block
    taking = code.new_block()
    entry.jump = f"br label %{taking.label}"
    taken = code.instruction(f"atomicrmw add {counter}, i64 1 monotonic", I64)
    start = code.add(first, code.multiply(taken, at_once))
    left = code.compare("slt", start, last)
    working = code.new_block()
    stop = code.minimum(code.add(start, at_once), last)
    arguments = ", ".join(map(str, (section, thread, start, stop)))
    code.line(f"call void {work.text}({arguments})")
    working.jump = f"br label %{taking.label}"
    done = code.new_block()
    taking.jump = f"br {left}, label %{working.label}, label %{done.label}"
    one = constant(1, I64)
    size = code.subtract(last, first)
    turns = code.binary("udiv", code.subtract(code.add(size, at_once), one), at_once)
    final = code.subtract(code.add(turns, share), one)
    with code.when(code.compare("eq", taken, final)):
        code.line(f"store atomic i64 0, {counter} monotonic, align 8")
    code.end_loop(slices)
    code.finish()
