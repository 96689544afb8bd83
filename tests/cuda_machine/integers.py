"""Integer and bit instructions (PTX ISA, Integer Arithmetic; Logic and Shift Instructions)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_machine.syntax import BITS, Immediate, Instruction, Not, Register
from cuda_machine.writer import DTYPES, INTEGERS, Writer, helper, instruction, unknown

_OPERATORS = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^"}


@instruction("add", "sub", forms=INTEGERS)
def _add(writer: Writer, one: Instruction) -> None:
    result, a, b = one.operands
    type = one.modifiers[-1]
    writer.write(result, type, _binary(writer, one, type, a, b))


def _binary(writer: Writer, one: Instruction, type: str, a: Any, b: Any) -> str:
    """The code of an operator; one operand at least is an array."""
    if isinstance(a, Immediate) and isinstance(b, Immediate):
        return f"{writer.array(a, type)} {_OPERATORS[one.name]} {writer.read(b, type)}"
    return f"{_array_of(writer, a, b, type)} {_OPERATORS[one.name]} {writer.read(b, type)}"


def _array_of(writer: Writer, a: Any, b: Any, type: str) -> str:
    arrays = isinstance(b, Register | Not)
    return writer.read(a, type) if arrays else writer.array(a, type)


@instruction("and", "or", "xor", forms="pred|b16|b32|b64")
def _logic(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, a, b = one.operands
    writer.write(result, type, _binary(writer, one, type, a, b))


@instruction("not", forms="pred|b16|b32|b64")
def _not(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, a = one.operands
    writer.write(result, type, f"~{writer.array(a, type)}")


# Products of all bits are twice as wide as their operands.
_PRODUCTS = (f"lo|hi {INTEGERS}", "wide u16|s16|u32|s32")


@instruction("mul", forms=_PRODUCTS)
def _mul(writer: Writer, one: Instruction) -> None:
    result, a, b = one.operands
    type = one.modifiers[-1]
    kind, value = product_code(writer, one.modifiers[0], type, a, b)
    writer.write(result, kind, value)


@instruction("mad", forms=_PRODUCTS)
def _mad(writer: Writer, one: Instruction) -> None:
    result, a, b, c = one.operands
    type = one.modifiers[-1]
    kind, value = product_code(writer, one.modifiers[0], type, a, b)
    writer.write(result, kind, f"({value}) + {writer.read(c, kind)}")


def product_code(writer: Writer, half: str, type: str, a: Any, b: Any) -> tuple[str, str]:
    """The type and code of a product: its low or high bits, or all of them."""
    left, right = _array_of(writer, a, b, type), writer.read(b, type)
    bits = BITS[type]
    twice = f"{type[0]}{2 * bits}"
    if half == "lo":
        return type, f"{left} * {right}"
    if half == "hi" and bits == 64:
        return type, f"high_{type}({left}, {right})"
    product = f"np.multiply({left}, {right}, dtype={writer.type(DTYPES[twice])})"
    if half == "wide":
        return twice, product
    return type, f"({product} >> {bits}).astype({writer.type(DTYPES[type])})"


@helper
def high_u64(a: Any, b: Any) -> Any:
    """The upper 64 bits of products of unsigned integers."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> shift, b & low, b >> shift
    middle = a1 * b0 + (a0 * b0 >> shift)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> shift) + (other >> shift)


@helper
def high_s64(a: Any, b: Any) -> Any:
    """The upper 64 bits of products of signed integers."""
    a, b = np.broadcast_arrays(a, b)
    high = high_u64(a.astype(np.uint64), b.astype(np.uint64)).view(np.int64)
    return high - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)


@instruction("div", "rem", forms=INTEGERS)
def _div(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, a, b = one.operands
    left, right = writer.array(a, type), writer.array(b, type)
    location = writer.location(one)
    writer.emit(f"divisible(m, {right}, {location})")
    name = "quotient" if one.name == "div" else "remainder"
    writer.write(result, type, f"{name}({left}, {right})")


@helper
def divisible(m: Any, b: Any, line: int, idx: Any) -> None:
    """A division by zero yields an unspecified value (PTX ISA, div): it is a fault here."""
    if not b.all():
        m.fault_where("a division by zero", line, b == 0, idx)


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


@helper
def remainder(a: Any, b: Any) -> Any:
    """Remainders with the sign of the dividend."""
    return a - quotient(a, b) * b


@instruction("abs", "neg", forms="s16|s32|s64")
def _abs(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, a = one.operands
    value = writer.array(a, type)
    writer.write(result, type, f"np.abs({value})" if one.name == "abs" else f"-{value}")


@instruction("min", "max", forms=INTEGERS)
def _extreme(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, a, b = one.operands
    left, right = writer.array(a, type), writer.read(b, type)
    writer.write(result, type, f"np.{one.name}imum({left}, {right})")


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


@instruction("shf", forms="l|r clamp|wrap b32")
def _funnel(writer: Writer, one: Instruction) -> None:
    direction, mode, type = one.modifiers
    result, a, b, c = one.operands
    low, high, amount = (writer.array(operand, "u32") for operand in (a, b, c))
    wide, narrow = writer.type("u8"), writer.type("u4")
    both = f"(({high}.astype({wide}) << 32) | {low})"
    bounded = f"np.minimum({amount}, 32)" if mode == "clamp" else f"({amount} & 31)"
    shift = f"({bounded}).astype({wide})"
    shifted = f"(({both} << {shift}) >> 32)" if direction == "l" else f"({both} >> {shift})"
    writer.write(result, type, f"{shifted}.astype({narrow})")


@instruction("popc", "clz", "brev", forms="b32|b64")
def _count(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, a = one.operands
    kind = type if one.name == "brev" else "u32"
    name = {"popc": "ones_in", "clz": "leading_zeros", "brev": "reversed_bits"}[one.name]
    writer.write(result, kind, f"{name}({writer.array(a, type)})")


@helper
def ones_in(value: Any) -> Any:
    """How many bits are set."""
    counted = np.unpackbits(np.ascontiguousarray(value).view(np.uint8))
    return counted.reshape(len(value), -1).sum(1, dtype=np.uint32)


@helper
def leading_zeros(value: Any) -> Any:
    """How many bits above the highest set bit."""
    if value.dtype == np.uint64:
        high = leading_zeros((value >> np.uint64(32)).astype(np.uint32))
        low = leading_zeros(value.astype(np.uint32))
        return np.where(high == 32, low + np.uint32(32), high)
    return np.uint32(32) - np.frexp(value.astype(np.float64))[1].astype(np.uint32)


@helper
def reversed_bits(value: Any) -> Any:
    """The bits in the opposite order."""
    octets = np.ascontiguousarray(value).view(np.uint8)
    bits = np.unpackbits(octets, bitorder="little").reshape(len(value), -1)
    return np.packbits(bits[:, ::-1], axis=1, bitorder="little").view(value.dtype).reshape(-1)


@instruction("bfe", forms="u32|s32|u64|s64")
def _bfe(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, a, b, c = one.operands
    position, length = writer.array(b, "u32"), writer.array(c, "u32")
    value = writer.array(a, f"u{BITS[type]}")
    code = f"extracted({value}, {position}, {length}, {type[0] == 's'})"
    writer.write(result, type, f"{code}.view({writer.type(DTYPES[type])})")


@helper
def low_ones(count: Any, dtype: Any) -> Any:
    """Integers whose lowest `count` bits are set."""
    bits = dtype.itemsize * 8
    ones = dtype.type((1 << bits) - 1)
    return ones >> (bits - np.minimum(count, bits)).astype(dtype)


@helper
def extracted(value: Any, position: Any, length: Any, signed: bool) -> Any:
    """Bit fields: bits above the value, or above the field, are its sign (PTX ISA, bfe)."""
    dtype, bits = value.dtype, value.dtype.itemsize * 8
    position, length = position & np.uint32(255), length & np.uint32(255)
    clamped = np.minimum(position, bits).astype(dtype)
    ones = dtype.type((1 << bits) - 1)
    mask = low_ones(length, dtype) & (ones >> clamped)
    field = (value >> clamped) & mask
    if not signed:
        return field
    last = np.minimum(position.astype(np.int64) + length - 1, bits - 1)
    sign = (value >> np.maximum(last, 0).astype(dtype)) & dtype.type(1)
    return np.where((sign == 1) & (length > 0), field | ~mask, field)


@instruction("bfi", forms="b32|b64")
def _bfi(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, a, b, c, d = one.operands
    values = [writer.array(operand, type) for operand in (a, b)]
    values += [writer.array(operand, "u32") for operand in (c, d)]
    writer.write(result, type, f"inserted({', '.join(values)})")


@helper
def inserted(field: Any, value: Any, position: Any, length: Any) -> Any:
    """Values in which the bits at a position are those of a field."""
    dtype, bits = value.dtype, value.dtype.itemsize * 8
    shift = np.minimum(position & np.uint32(255), bits).astype(dtype)
    mask = low_ones(length & np.uint32(255), dtype) << shift
    return (value & ~mask) | ((field << shift) & mask)


@instruction("prmt", forms="b32")
def _prmt(writer: Writer, one: Instruction) -> None:
    result, a, b, c = one.operands
    values = [writer.array(operand, "u32") for operand in (a, b, c)]
    writer.write(result, "b32", f"permuted_bytes({', '.join(values)})")


@helper
def permuted_bytes(a: Any, b: Any, selectors: Any) -> Any:
    """Bytes of b and a in any order; the upper bit of a selector repeats the byte's sign."""
    both = (b.astype(np.uint64) << np.uint64(32)) | a
    result = np.zeros(a.shape, np.uint32)
    for number in range(4):
        selector = (selectors >> np.uint32(4 * number)).astype(np.uint64)
        one = (both >> ((selector & np.uint64(7)) * np.uint64(8))).astype(np.uint8)
        sign = (one >> 7) * np.uint8(255)
        chosen = np.where(selector & np.uint64(8), sign, one).astype(np.uint32)
        result |= chosen << np.uint32(8 * number)
    return result


@instruction("lop3", forms="b32")
def _lop3(writer: Writer, one: Instruction) -> None:
    result, a, b, c, table = one.operands
    if not isinstance(table, Immediate):
        unknown(one)
    x, y, z = (writer.array(operand, "u32") for operand in (a, b, c))
    terms = [
        " & ".join(
            f"{'' if number >> bit & 1 else '~'}{name}" for bit, name in ((2, x), (1, y), (0, z))
        )
        for number in range(8)
        if table.bits >> number & 1
    ]
    code = " | ".join(f"({term})" for term in terms) or f"np.zeros(n, {writer.type('u4')})"
    writer.write(result, "b32", code)


@instruction("dp4a", forms="u32|s32 u32|s32")
def _dp4a(writer: Writer, one: Instruction) -> None:
    left, right = one.modifiers
    result, a, b, c = one.operands
    kind = "s32" if "s32" in (left, right) else "u32"
    values = [writer.array(operand, "u32") for operand in (a, b)]
    code = f"dot4({values[0]}, {left == 's32'}, {values[1]}, {right == 's32'})"
    writer.write(
        result, kind, f"{code}.astype({writer.type(DTYPES[kind])}) + {writer.read(c, kind)}"
    )


@helper
def dot4(a: Any, a_signed: bool, b: Any, b_signed: bool) -> Any:
    """Sums of products of the four bytes of integers, as int64."""

    def octets(value: Any, signed: bool) -> Any:
        return np.ascontiguousarray(value).view(np.int8 if signed else np.uint8).reshape(-1, 4)

    return (octets(a, a_signed).astype(np.int64) * octets(b, b_signed)).sum(1)


@instruction("dp2a", forms="lo|hi u32|s32 u32|s32")
def _dp2a(writer: Writer, one: Instruction) -> None:
    """Two halves of `a` by the two low or high bytes of `b` (PTX ISA, dp2a)."""
    half, left, right = one.modifiers
    result, a, b, c = one.operands
    kind = "s32" if "s32" in (left, right) else "u32"
    values = [writer.array(operand, "u32") for operand in (a, b)]
    first = 2 if half == "hi" else 0
    code = f"dot2({values[0]}, {left == 's32'}, {values[1]}, {right == 's32'}, {first})"
    writer.write(
        result, kind, f"{code}.astype({writer.type(DTYPES[kind])}) + {writer.read(c, kind)}"
    )


@helper
def dot2(a: Any, a_signed: bool, b: Any, b_signed: bool, first: int) -> Any:
    """Sums of products of the two halves of `a` and two bytes of `b`, as int64."""
    halves = np.ascontiguousarray(a).view(np.int16 if a_signed else np.uint16).reshape(-1, 2)
    octets = np.ascontiguousarray(b).view(np.int8 if b_signed else np.uint8).reshape(-1, 4)
    return (halves.astype(np.int64) * octets[:, first : first + 2]).sum(1)
