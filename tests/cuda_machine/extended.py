"""Integers of more bits: sums with a carry (PTX ISA, Extended-Precision Integer Arithmetic)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_machine.blocks import CARRY
from cuda_machine.integers import product_code
from cuda_machine.syntax import BITS, Instruction
from cuda_machine.writer import Writer, helper, instruction

_TYPES = "u32|s32|u64|s64"


@instruction("add", "sub", forms=f"cc {_TYPES}")
@instruction("addc", "subc", forms=f"cc? {_TYPES}")
def _add(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    _, a, b = one.operands
    values = [writer.array(operand, f"u{BITS[type]}") for operand in (a, b)]
    carry = writer.read(CARRY, "pred") if one.name in ("addc", "subc") else "False"
    name = "sum_with_carry" if one.name.startswith("add") else "difference_with_borrow"
    _finish(writer, one, f"{name}({values[0]}, {values[1]}, {carry})")


def _finish(writer: Writer, one: Instruction, code: str) -> None:
    both = writer.temporary(code)
    writer.write(one.operands[0], f"u{BITS[one.modifiers[-1]]}", f"{both}[0]")
    if "cc" in one.modifiers:
        writer.write(CARRY, "pred", f"{both}[1]")


@helper
def sum_with_carry(a: Any, b: Any, carry: Any) -> tuple[Any, Any]:
    """Sums, and whether they are beyond the type."""
    total = a + b
    result = total + np.asarray(carry).astype(a.dtype)
    return result, (total < a) | (result < total)


@helper
def difference_with_borrow(a: Any, b: Any, borrow: Any) -> tuple[Any, Any]:
    """Differences, and whether they are below zero."""
    difference = a - b
    result = difference - np.asarray(borrow).astype(a.dtype)
    return result, (a < b) | (difference < result)


@instruction("mad", forms=f"lo|hi cc {_TYPES}")
@instruction("madc", forms=f"lo|hi cc? {_TYPES}")
def _mad(writer: Writer, one: Instruction) -> None:
    half, type = one.modifiers[0], one.modifiers[-1]
    _, a, b, c = one.operands
    _, code = product_code(writer, half, type, a, b)
    product = writer.temporary(f"({code}).view({writer.type(f'u{BITS[type] // 8}')})")
    added = writer.array(c, f"u{BITS[type]}")
    carry = writer.read(CARRY, "pred") if one.name == "madc" else "False"
    _finish(writer, one, f"sum_with_carry({product}, {added}, {carry})")
