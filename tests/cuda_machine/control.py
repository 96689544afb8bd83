"""Barriers and instructions without a result (PTX ISA, Parallel Synchronization; Miscellaneous)."""

from __future__ import annotations

from cuda_machine.syntax import Instruction, Register
from cuda_machine.writer import Writer, instruction, unknown

_BARRIERS = ("sync", "red popc u32", "red and|or pred")


@instruction("bar", forms=(*_BARRIERS, "warp sync"), ignoring=("cta",))
@instruction("barrier", forms=_BARRIERS, ignoring=("cta", "aligned"))
def _bar(writer: Writer, one: Instruction) -> None:
    """Writes the code of (name, threads, reduction); `Schedule` does the waiting."""
    modifiers = list(one.modifiers)
    if modifiers == ["warp", "sync"]:
        (mask,) = one.operands
        writer.emit(f"m.pass_warp_barrier({writer.array(mask, 'u32')}, {writer.location(one)})")
        return
    operands = list(one.operands)
    reduction = "None"
    if modifiers[:1] == ["red"]:
        operation = modifiers[1]
        result, predicate = operands.pop(0), operands.pop()
        if not isinstance(result, Register):
            unknown(one)
        number = writer.numbers[result.name]
        reduction = f"({operation!r}, {number}, {writer.array(predicate, 'pred')})"
    if not 1 <= len(operands) <= 2:
        unknown(one)
    name = writer.read(operands[0], "u32")
    threads = writer.read(operands[1], "u32") if len(operands) > 1 else "None"
    writer.emit(f"{name}, {threads}, {reduction}")


@instruction("nanosleep", forms="u32")
def _nothing(writer: Writer, one: Instruction) -> None:
    """Waits, and changes no result."""
