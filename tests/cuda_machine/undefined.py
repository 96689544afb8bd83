"""Registers that no instruction writes, in vectors that are stored.

NVRTC stores such vectors if it stores an element a second time, with its value. What they leave in
memory is undefined; here it is a conspicuous value, so that results with it are wrong.
"""

from __future__ import annotations

from dataclasses import replace

from cuda_machine.blocks import read_and_written
from cuda_machine.calls import Flat
from cuda_machine.syntax import BITS, Immediate, Instruction, Operand, Register, Vector

_BYTE = 0xA5


def with_undefined_elements(flattened: Flat) -> Flat:
    """The kernel with constants in place of the elements of stored vectors that nobody writes."""
    written = {
        register.name
        for one in flattened.body
        if isinstance(one, Instruction)
        for register in read_and_written(one)[1]
    }

    def element(one: Operand, type: str) -> Operand:
        if not isinstance(one, Register) or one.name in written:
            return one
        kind = type if type in ("f32", "f64") else "integer"
        return Immediate(int.from_bytes(bytes([_BYTE] * (BITS[type] // 8))), kind)

    body = [
        replace(
            one,
            operands=tuple(
                Vector(tuple(element(part, one.modifiers[-1]) for part in operand.elements))
                if isinstance(operand, Vector)
                else operand
                for operand in one.operands
            ),
        )
        if isinstance(one, Instruction) and one.name == "st"
        else one
        for one in flattened.body
    ]
    return replace(flattened, body=body)
