"""Barriers (PTX ISA, Parallel Synchronization)."""

from __future__ import annotations

from cuda_machine.syntax import Immediate, Instruction
from cuda_machine.writer import Writer, instruction, unknown


@instruction("bar", forms="sync")
@instruction("barrier", forms="sync", ignoring=("aligned",))
def _barrier(writer: Writer, one: Instruction) -> None:
    """Of all threads of the block; `Schedule` does the waiting."""
    if one.operands != (Immediate(0, "integer"),):
        unknown(one)
    writer.emit("None")
