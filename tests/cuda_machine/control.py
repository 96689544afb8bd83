"""Barriers and instructions without a result (PTX ISA, Parallel Synchronization; Miscellaneous)."""

from __future__ import annotations

from cuda_machine.syntax import Instruction, Register
from cuda_machine.writer import Writer, instruction, unknown


@instruction("bar", "barrier")
def _bar(writer: Writer, one: Instruction) -> None:
    """Writes the code of (name, threads, reduction); `Schedule` does the waiting."""
    modifiers = [name for name in one.modifiers if name not in ("cta", "aligned")]
    if modifiers == ["warp", "sync"]:
        (mask,) = one.operands
        writer.emit(f"m.pass_warp_barrier({writer.array(mask, 'u32')}, {writer.location(one)})")
        return
    operands = list(one.operands)
    reduction = "None"
    if modifiers[:1] == ["red"]:
        operation, type = modifiers[1:]
        if (operation, type) not in (("popc", "u32"), ("and", "pred"), ("or", "pred")):
            unknown(one)
        result, predicate = operands.pop(0), operands.pop()
        if not isinstance(result, Register):
            unknown(one)
        number = writer.numbers[result.name]
        reduction = f"({operation!r}, {number}, {writer.array(predicate, 'pred')})"
    elif modifiers != ["sync"]:
        unknown(one)
    if not 1 <= len(operands) <= 2:
        unknown(one)
    name = writer.read(operands[0], "u32")
    threads = writer.read(operands[1], "u32") if len(operands) > 1 else "None"
    writer.emit(f"{name}, {threads}, {reduction}")


@instruction("nanosleep", "griddepcontrol")
def _nothing(writer: Writer, one: Instruction) -> None:
    """Changes no result.

    nanosleep waits. griddepcontrol lets the next kernel begin early, or waits for the last one: on
    this machine each kernel ends before the next one begins.
    """
