"""Registers that are read although no instruction writes them.

NVRTC stores vectors with such elements if it stores these elements a second time, with their
values. And it computes with such integers of 16 bits to fill the bytes of a word that the
instruction which takes the word ignores, for example `dp2a.lo`. The values do not affect the
results of a correct kernel. Here they are NaN as floats, so that results that they do affect are
wrong.
"""

from __future__ import annotations

from dataclasses import replace

from cuda_machine.blocks import read_and_written
from cuda_machine.syntax import BITS, Immediate, Instruction, Kernel, Operand, Register, Vector

# Repeated, it is NaN in floats of 16 and of 32 bits.
_BITS = 0xFFA5
_SHORT_INTEGERS = ("b16", "u16", "s16")


def with_undefined_values(kernel: Kernel) -> Kernel:
    """The kernel with constants for registers that are never written, where NVRTC reads them."""
    written = {
        register.name
        for one in kernel.body
        if isinstance(one, Instruction)
        for register in read_and_written(one)[1]
    }

    def value(one: Operand, type: str) -> Operand:
        if not isinstance(one, Register) or one.name in written:
            return one
        bits = int.from_bytes(_BITS.to_bytes(2, "little") * (BITS[type] // 16), "little")
        return Immediate(bits, type if type in ("f32", "f64") else "integer")

    def short(one: Operand, type: str) -> Operand:
        is_short = isinstance(one, Register) and one.type in _SHORT_INTEGERS
        return value(one, type) if is_short else one

    def defined(one: Instruction) -> Instruction:
        type = one.modifiers[-1] if one.modifiers else ""
        if one.name == "st":
            operands = tuple(
                Vector(tuple(value(element, type) for element in each.elements))
                if isinstance(each, Vector)
                else each
                for each in one.operands
            )
            return replace(one, operands=operands)
        if type in _SHORT_INTEGERS and one.name != "setp":
            operands = (one.operands[0], *(short(each, type) for each in one.operands[1:]))
            return replace(one, operands=operands)
        return one

    body = [defined(one) if isinstance(one, Instruction) else one for one in kernel.body]
    return replace(kernel, body=body)
