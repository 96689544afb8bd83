"""Moves, conversions, selections and comparisons (PTX ISA, sections of these names)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_machine.syntax import BITS, Instruction, Register, Vector
from cuda_machine.writer import DTYPES, INTEGERS, Writer, expressions, helper, instruction

_TYPES = f"b16|b32|b64|{INTEGERS}|f32|f64"
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


# Comparisons by an operator and by its opposite. Those of floats that hold for NaN end with u.
for _name, _operator, _opposite in (
    *(("lt", "<", ">="), ("le", "<=", ">"), ("gt", ">", "<="), ("ge", ">=", "<")),
):
    _code = f"{{0}} {_operator} {{1}}"
    expressions("setp", f"{_name} {INTEGERS}|f32|f64", _code, result="pred")
    expressions("setp", f"{_name}u f32|f64", f"~({{0}} {_opposite} {{1}})", result="pred")
_DIFFERENT = "({0} < {1}) | ({0} > {1})"
for _form, _code in (
    (f"eq b16|b32|b64|{INTEGERS}|f32|f64", "{0} == {1}"),
    (f"ne b16|b32|b64|{INTEGERS}", "{0} != {1}"),
    ("ne f32|f64", _DIFFERENT),
    ("neu f32|f64", "{0} != {1}"),
    ("equ f32|f64", f"~({_DIFFERENT})"),
    ("num f32|f64", "({0} == {0}) & ({1} == {1})"),
    ("nan f32|f64", "({0} != {0}) | ({1} != {1})"),
):
    expressions("setp", _form, _code, result="pred")
expressions("selp", _TYPES, "np.where({2}, {0}, {1})", others=("", "pred"))

# Conversions
for _kind in _ALL.split("|"):
    expressions("cvt", f"{_kind} {_ALL}", f"{{0}}.astype({DTYPES[_kind]!r})", result=_kind)
    for _type in ("f32", "f64"):
        # PTX ISA, cvt, Integer Notes: NaN becomes zero if the source is not .f64 and the
        # destination is not .s64 or .u64; otherwise only the upper bit is set.
        _nan = 1 << BITS[_kind] - 1 if _type == "f64" or _kind in ("s64", "u64") else 0
        _code = f"integers_of({{0}}, {DTYPES[_kind]!r}, {_nan})"
        expressions("cvt", f"rzi {_kind} {_type}", _code, result=_kind)
for _kind, _form in (
    *(("f32", f"rn f32 {_ALL}|f64"), ("f64", f"rn f64 {_ALL}")),
    *(("f64", "f64 f32"), ("f32", "f32 f16")),
):
    expressions("cvt", _form, f"{{0}}.astype({DTYPES[_kind]!r})", result=_kind)
# PTX ISA, cvt: of two floats the first one is in the upper half of the result.
for _name, _bits, _since in (("f16", "half_bits", 75), ("bf16", "bfloat16_bits", 80)):
    expressions("cvt", f"rn {_name} f32", f"{_bits}({{0}})", result="u16", since=_since)
    _code = f"{_bits}({{1}}) | {_bits}({{0}}).astype(np.uint32) << 16"
    expressions("cvt", f"rn {_name}x2 f32", _code, result="u32", since=80)


@helper
def integers_of(value: Any, dtype: str, nan: int) -> Any:
    """Floats that are rounded toward zero to integers, limited to the range of a type."""
    whole, info = np.trunc(value.astype(np.float64)), np.iinfo(dtype)
    missing, high, low = np.isnan(whole), whole >= float(info.max), whole <= float(info.min)
    result = np.where(high | low | missing, 0.0, whole).astype(dtype)
    result[high] = info.max
    result[low] = info.min
    result[missing] = np.array(nan, np.uint64).astype(dtype)
    return result


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
