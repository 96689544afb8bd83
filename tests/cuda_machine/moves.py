"""Moves, conversions, selections and comparisons (PTX ISA, sections of these names)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_machine.syntax import BITS, Instruction, Operand, Register, Vector
from cuda_machine.writer import DTYPES, FLOATS, INTEGERS, Writer, expressions, helper, instruction

_TYPES = f"b16|b32|b64|{INTEGERS}|f32|f64"
_SIGNED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
# The opposite of a comparison of floats that is false for NaN is true for NaN.
_UNORDERED = {"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
_OF_FLOATS = "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"

_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_TO_INTEGRAL = "rni|rzi|rmi|rpi"
_ALL = "u8|s8|u16|s16|u32|s32|u64|s64"


@instruction("mov", forms=f"pred|{_TYPES}")
def _mov(writer: Writer, one: Instruction) -> None:
    (type,) = one.modifiers
    result, value = one.operands
    if isinstance(result, Vector):
        _unpack(writer, result, writer.array(value, f"u{BITS[type]}"), BITS[type])
    elif isinstance(value, Vector):
        writer.write(result, f"b{BITS[type]}", _packed(writer, value, BITS[type]))
    elif isinstance(value, Register):
        # A copy: the arrays of two registers are never the same.
        writer.write(result, type, f"{writer.read(value, type)}.copy()")
    else:
        writer.write(result, type, f"np.full(n, {writer.read(value, type)})")


def _unpack(writer: Writer, result: Vector, value: str, bits: int) -> None:
    each = bits // len(result.elements)
    if each not in (16, 32):
        raise ValueError(f"elements of {each} bits")
    elements = f"{value}.view({writer.type(f'u{each // 8}')})"
    count = len(result.elements)
    values = [writer.temporary(f"{elements}[{number}::{count}].copy()") for number in range(count)]
    for element, one in zip(result.elements, values, strict=True):
        writer.write(element, f"b{each}", one)


def _packed(writer: Writer, value: Vector, bits: int) -> str:
    count = len(value.elements)
    each = bits // count
    if each not in (16, 32):
        raise ValueError(f"elements of {each} bits")
    packed = writer.temporary(f"np.empty((n, {count}), {writer.type(f'u{each // 8}')})")
    for number, element in enumerate(value.elements):
        writer.emit(f"{packed}[:, {number}] = {writer.read(element, f'b{each}')}")
    return f"{packed}.view({writer.type(f'u{bits // 8}')}).reshape(-1)"


def compared(writer: Writer, one: Instruction, type: str, a: Operand, b: Operand) -> str:
    """The code of a comparison, by the first modifier."""
    name = one.modifiers[0]
    if type in FLOATS:
        left, right = (writer.array(operand, type) for operand in (a, b))
        if name in _SIGNED and name != "ne":
            return f"{left} {_SIGNED[name]} {right}"
        if name in _UNORDERED:
            return f"~({left} {_UNORDERED[name]} {right})"
        other = {
            "ne": f"({left} < {right}) | ({left} > {right})",
            "equ": f"~(({left} < {right}) | ({left} > {right}))",
            "neu": f"{left} != {right}",
            "num": f"({left} == {left}) & ({right} == {right})",
            "nan": f"({left} != {left}) | ({right} != {right})",
        }
        return other[name]
    operator = _UNSIGNED.get(name) or _SIGNED[name]
    return f"{writer.array(a, type)} {operator} {writer.read(b, type)}"


@instruction(
    "setp",
    forms=(
        "eq|ne b16|b32|b64",
        f"eq|ne|lt|le|gt|ge {INTEGERS}",
        "lo|ls|hi|hs u16|u32|u64",
        f"{_OF_FLOATS} f32|f64",
    ),
)
def _setp(writer: Writer, one: Instruction) -> None:
    result, a, b = one.operands
    writer.write(result, "pred", compared(writer, one, one.modifiers[-1], a, b))


expressions("selp", _TYPES, "np.where({2}, {0}, {1})", others=("", "pred"))


# Conversions


@instruction("cvt", forms=f"{_ALL} {_ALL}")
@instruction("cvt", forms=f"rn f32|f64 {_ALL}")
def _of_integers(writer: Writer, one: Instruction) -> None:
    result, a = one.operands
    kind, type = one.modifiers[-2:]
    writer.write(result, kind, f"{writer.array(a, type)}.astype({writer.type(DTYPES[kind])})")


@instruction("cvt", forms=f"{_TO_INTEGRAL} {_ALL} f32|f64")
def _to_integer(writer: Writer, one: Instruction) -> None:
    """Results are limited to the range of the type."""
    result, a = one.operands
    mode, kind, type = one.modifiers
    # PTX ISA, cvt, Integer Notes: NaN becomes zero if the source is not .f64 and the destination
    # is not .s64 or .u64; otherwise only the upper bit is set.
    nan = 0
    if type == "f64" or kind in ("s64", "u64"):
        nan = 1 << (BITS[kind] - 1)
    value = f"{writer.array(a, type)}.astype({writer.type('f8')})"
    code = f"integers_of({value}, {mode!r}, {writer.type(DTYPES[kind])}, {nan})"
    writer.write(result, kind, code)


@helper
def integers_of(value: Any, mode: str, dtype: Any, nan: int) -> Any:
    """Float64 rounded to integers, limited to the range of a type."""
    whole = _INTEGRAL[mode](value)
    info = np.iinfo(dtype)
    missing = np.isnan(whole)
    high = whole >= float(info.max)
    low = whole <= float(info.min)
    result = np.where(high | low | missing, 0.0, whole).astype(dtype)
    result[high] = info.max
    result[low] = info.min
    result[missing] = np.array(nan, np.uint64).astype(dtype)
    return result


@instruction("cvt", forms=(f"{_TO_INTEGRAL} f32 f32", f"{_TO_INTEGRAL} f64 f64"))
@instruction("cvt", forms=("f64 f32", "f32 f16", "rn f32 f64", "rn f16 f32"))
def _between_floats(writer: Writer, one: Instruction) -> None:
    result, a = one.operands
    kind, type = one.modifiers[-2:]
    value = writer.array(a, type)
    if one.modifiers[0] in _INTEGRAL:
        writer.write(result, kind, f"np.{_INTEGRAL[one.modifiers[0]].__name__}({value})")
    elif kind == "f16":
        writer.write(result, "u16", f"half_bits({value})")
    else:
        writer.write(result, kind, f"{value}.astype({writer.type(DTYPES[kind])})")


# PTX ISA, cvt: of two floats the first one is in the upper half of the result.
expressions("cvt", "rn bf16 f32", "bfloat16_bits({0})", result="u16", since=80)
for _name, _bits in (("f16x2", "half_bits"), ("bf16x2", "bfloat16_bits")):
    _code = f"{_bits}({{1}}) | {_bits}({{0}}).astype(np.uint32) << 16"
    expressions("cvt", f"rn {_name} f32", _code, result="u32", since=80)


@helper
def bfloat16_bits(value: Any) -> Any:
    """Float32 as the bits of bfloat16, to even if two are equally near; NaN is canonical."""
    bits = value.view(np.uint32)
    nearest = bits + (bits >> 16 & 1) + np.uint32(0x7FFF) >> 16
    return np.where(np.isnan(value), 0x7FFF, nearest).astype(np.uint16)


@helper
def half_bits(value: Any) -> Any:
    """Floats as the bits of float16; NaN is canonical."""
    bits = value.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(value), np.uint16(0x7FFF), bits)
