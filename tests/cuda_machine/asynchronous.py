"""Writes asynchronous copies (PTX ISA, cp.async); `Copies` does them."""

from __future__ import annotations

from cuda_machine.memory_access import address_code
from cuda_machine.syntax import Immediate, Instruction
from cuda_machine.writer import Writer, instruction, unknown

_FORMS = ("async commit_group|wait_all|wait_group", "async ca|cg shared|shared::cta global")
_HINTS = ("L2::64B", "L2::128B", "L2::256B")


@instruction("cp", forms=_FORMS, since=80, ignoring=_HINTS)
def _cp(writer: Writer, one: Instruction) -> None:
    location = writer.location(one)
    match one.modifiers[1:]:
        case ("commit_group",):
            writer.emit("m.copies.commit(idx)")
        case ("wait_all",):
            writer.emit("m.copies.commit(idx)")
            writer.emit(f"m.copies.wait(0, {location})")
        case ("wait_group",):
            (count,) = one.operands
            if not isinstance(count, Immediate):
                unknown(one)
            writer.emit(f"m.copies.wait({count.bits}, {location})")
        case (cache, _, _):
            _copy(writer, one, cache)
        case _:
            unknown(one)


def _copy(writer: Writer, one: Instruction, cache: str) -> None:
    to, source, size, *rest = one.operands
    # PTX ISA, cp.async: 4, 8 or 16 bytes; .cg only 16.
    allowed = (16,) if cache == "cg" else (4, 8, 16)
    if not isinstance(size, Immediate) or size.bits not in allowed or len(rest) > 1:
        unknown(one)
    target = address_code(writer, to, "shared")
    begin = address_code(writer, source, "global")
    count = writer.array(rest[0], "u32") if rest else "None"
    writer.emit(f"m.copies.begin({target}, {begin}, {size.bits}, {count}, {writer.location(one)})")
