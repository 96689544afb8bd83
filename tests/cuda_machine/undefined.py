"""Registers that no instruction writes, where NVRTC reads them although their value is no matter.

NVRTC stores vectors with such elements if it stores these elements a second time, with their
values. And it computes with such integers of 16 bits to fill the bytes of a word that the
instruction which takes the word ignores, for example `dp2a.lo`. The values are undefined; here they
are a conspicuous one, so that a result that depends on it is wrong.
"""

from __future__ import annotations

from dataclasses import replace

from cuda_machine.blocks import read_and_written
from cuda_machine.calls import Flat
from cuda_machine.syntax import BITS, Immediate, Instruction, Operand, Register, Vector

_BYTE = 0xA5
_SHORT_INTEGERS = ("b16", "u16", "s16")


def with_undefined_values(flattened: Flat) -> Flat:
    """The kernel with constants for registers that are never written, where the above allows it."""
    written = {
        register.name
        for one in flattened.body
        if isinstance(one, Instruction)
        for register in read_and_written(one)[1]
    }

    def value(one: Operand, type: str) -> Operand:
        if not isinstance(one, Register) or one.name in written:
            return one
        kind = type if type in ("f32", "f64") else "integer"
        return Immediate(int.from_bytes(bytes([_BYTE] * (BITS[type] // 8))), kind)

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
        if type in _SHORT_INTEGERS:
            operands = (one.operands[0], *(value(each, type) for each in one.operands[1:]))
            return replace(one, operands=operands)
        return one

    body = [defined(one) if isinstance(one, Instruction) else one for one in flattened.body]
    return replace(flattened, body=body)
