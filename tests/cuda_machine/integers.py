"""Integer and bit instructions (PTX ISA, Integer Arithmetic; Logic and Shift Instructions)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_machine.syntax import BITS, Immediate, Instruction
from cuda_machine.writer import DTYPES, INTEGERS, Writer, expressions, helper, instruction

_SIGNED = "s16|s32|s64"
_LOGIC = "pred|b16|b32|b64"

expressions("add", INTEGERS, "{0} + {1}")
expressions("sub", INTEGERS, "{0} - {1}")
expressions("min", INTEGERS, "np.minimum({0}, {1})")
expressions("max", INTEGERS, "np.maximum({0}, {1})")
expressions("abs", _SIGNED, "np.abs({0})")
expressions("neg", _SIGNED, "-{0}")
expressions("and", _LOGIC, "{0} & {1}")
expressions("or", _LOGIC, "{0} | {1}")
expressions("xor", _LOGIC, "{0} ^ {1}")
expressions("not", _LOGIC, "~{0}")
expressions("bfi", "b32|b64", "inserted({0}, {1}, {2}, {3})", others=("", "u32", "u32"))
expressions("prmt", "b32", "permuted_bytes({0}, {1}, {2})")


@instruction("mul", "mad", forms=(f"lo|hi {INTEGERS}", "wide u16|s16|u32|s32"))
def _mul(writer: Writer, one: Instruction) -> None:
    """Products, or their upper bits, or all bits, which are twice as wide as the operands."""
    half, type = one.modifiers
    result, a, b, *added = one.operands
    left, right = writer.several((a, b), (type, type))
    bits = BITS[type]
    twice = f"{type[0]}{2 * bits}"
    if half == "lo":
        value = f"{left} * {right}"
    elif half == "hi" and bits == 64:
        value = f"high({left}, {right})"
    else:
        value = f"np.multiply({left}, {right}, dtype={writer.type(DTYPES[twice])})"
        if half == "hi":
            value = f"({value} >> {bits}).astype({writer.type(DTYPES[type])})"
    kind = twice if half == "wide" else type
    writer.write(result, kind, " + ".join([value, *(writer.read(c, kind) for c in added)]))


@helper
def high(a: Any, b: Any) -> Any:
    """The upper 64 bits of products."""
    product = np.multiply(a, b, dtype=object) >> 64
    return product.astype((a if np.ndim(a) else b).dtype)


@instruction("div", "rem", forms=INTEGERS)
def _div(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, a, b = one.operands
    left, right = writer.array(a, type), writer.array(b, type)
    writer.emit(f"divisible(m, {right}, {writer.located(one)})")
    quotient = f"quotient({left}, {right})"
    value = quotient if one.name == "div" else f"{left} - {quotient} * {right}"
    writer.write(result, type, value)


@helper
def divisible(m: Any, b: Any, idx: Any) -> None:
    """A division by zero yields an unspecified value (PTX ISA, div): it is a fault here."""
    if not b.all():
        m.fault_where("a division by zero", b == 0, idx)


@helper
def quotient(a: Any, b: Any) -> Any:
    """Quotients that are rounded toward zero; the smallest integer by -1 wraps."""
    if a.dtype.kind == "u":
        return a // b
    minus = b == -1
    divisor = np.where(minus, a.dtype.type(1), b)
    floor = a // divisor
    inexact = floor * divisor != a
    floor += inexact & ((a < 0) != (divisor < 0))
    return np.where(minus, -a, floor)


@instruction("shl", forms="b16|b32|b64")
@instruction("shr", forms=f"b16|b32|b64|{INTEGERS}")
def _shift(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, a, b = one.operands
    dtype = DTYPES[type]
    # PTX ISA, shl and shr: amounts above the width are clamped to it. NumPy's shifts by the width
    # give 0 or the sign.
    if isinstance(b, Immediate):
        amount = writer.constant(np.dtype(dtype).type(min(b.bits % (1 << 32), BITS[type])))
    else:
        bound = writer.constant(np.uint32(BITS[type]))
        amount = f"np.minimum({writer.read(b, 'u32')}, {bound}).astype({writer.type(dtype)})"
    operator = "<<" if one.name == "shl" else ">>"
    writer.write(result, type, f"{writer.array(a, type)} {operator} {amount}")


@helper
def inserted(field: Any, value: Any, position: Any, length: Any) -> Any:
    """Values in which the bits at a position are those of a field."""
    dtype, bits = value.dtype, value.dtype.itemsize * 8
    shift, least = (
        np.minimum(one & np.uint32(255), bits).astype(dtype) for one in (position, length)
    )
    # A shift by all bits gives zeros.
    mask = ~(~dtype.type(0) << least) << shift
    return (value & ~mask) | ((field << shift) & mask)


@helper
def permuted_bytes(a: Any, b: Any, selectors: Any) -> Any:
    """Bytes of b and a in any order; the upper bit of a selector repeats the byte's sign."""
    both = (b.astype(np.uint64) << np.uint64(32)) | a
    result = np.uint32(0)
    for number in range(4):
        selector = (selectors >> np.uint32(4 * number)).astype(np.uint64)
        octet = (both >> ((selector & np.uint64(7)) * np.uint64(8))).astype(np.uint8)
        chosen = np.where(selector & np.uint64(8), (octet >> 7) * np.uint8(255), octet)
        result = result | chosen.astype(np.uint32) << np.uint32(8 * number)
    return result


@instruction("dp4a", forms="u32|s32 u32|s32")
@instruction("dp2a", forms="lo|hi u32|s32 u32|s32")
def _dot(writer: Writer, one: Instruction) -> None:
    """Four bytes by four, or two halves by the two low or high bytes (PTX ISA, dp4a and dp2a)."""
    *half, left, right = one.modifiers
    result, a, b, c = one.operands
    kind = "s32" if "s32" in (left, right) else "u32"
    first = f"{left[0].replace('s', 'i')}{2 if half else 1}"
    code = f"dot({writer.array(a, 'u32')}, {first!r}, {writer.array(b, 'u32')}, "
    code += f"{right[0].replace('s', 'i') + '1'!r}, {2 if half == ['hi'] else 0})"
    value = f"{code}.astype({writer.type(DTYPES[kind])}) + {writer.read(c, kind)}"
    writer.write(result, kind, value)


@helper
def dot(a: Any, a_type: str, b: Any, b_type: str, first: int) -> Any:
    """Sums of products of the parts of two integers, from a byte of `b` on, as int64."""
    left, right = (
        np.ascontiguousarray(one).view(type).reshape(len(one), -1).astype(np.int64)
        for one, type in ((a, a_type), (b, b_type))
    )
    return (left * right[:, first : first + left.shape[1]]).sum(1)
