"""Writes asynchronous copies (PTX ISA, cp.async); `Copies` does them."""

from __future__ import annotations

from cuda_machine.memory_access import address_code
from cuda_machine.syntax import Immediate, Instruction
from cuda_machine.writer import Writer, instruction, unknown


@instruction("cp", forms=("async commit_group|wait_group", "async cg shared global"), since=80)
def _cp(writer: Writer, one: Instruction) -> None:
    location = writer.location(one)
    match one.modifiers[1], one.operands:
        case "commit_group", ():
            writer.emit("m.copies.commit(idx)")
        case "wait_group", (Immediate(count, _),):
            writer.emit(f"m.copies.wait({count}, {location})")
        case "cg", (to, source, Immediate(16, _), read):
            target = address_code(writer, to, "shared")
            begin = address_code(writer, source, "global")
            count = writer.array(read, "u32")
            writer.emit(f"m.copies.begin({target}, {begin}, 16, {count}, {location})")
        case _:
            unknown(one)
