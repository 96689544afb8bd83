"""Conversions between types (PTX ISA, cvt)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from cuda_machine.rounding import moved, narrowed, rounded_to_integral, to_bfloat16, to_odd
from cuda_machine.syntax import BITS, Instruction
from cuda_machine.writer import DTYPES, INTEGERS, Writer, helper, instruction

_MODES = ("rn", "rz", "rm", "rp", "rna")
_INTEGRAL = ("rni", "rzi", "rmi", "rpi")
_ALL = "u8|s8|u16|s16|u32|s32|u64|s64"


def _saturating() -> list[str]:
    """Conversions of integers whose results may be beyond the type.

    PTX ISA, cvt: .sat is illegal where saturation is not possible.
    """

    def holds(kind: str, type: str) -> bool:
        if kind[0] == "u":
            return type[0] == "u" and BITS[kind] >= BITS[type]
        return BITS[kind] - (type[0] == "u") >= BITS[type]

    pairs = itertools.product(_ALL.split("|"), repeat=2)
    return [f"sat {kind} {type}" for kind, type in pairs if not holds(kind, type)]


def _mode_and_flags(one: Instruction) -> tuple[str, set[str]]:
    """The rounding mode, "" if there is none, and the flags."""
    rest = one.modifiers[:-2]
    modes = [name for name in rest if name in (*_MODES, *_INTEGRAL)]
    return (modes or [""])[0], {*rest} - {*modes}


@instruction("cvt", forms=(f"{_ALL} {_ALL}", *_saturating()))
def _between_integers(writer: Writer, one: Instruction) -> None:
    result, a = one.operands
    *flags, kind, type = one.modifiers
    value = writer.array(a, type)
    dtype = writer.type(DTYPES[kind])
    code = f"clipped({value}, {dtype})" if flags else f"{value}.astype({dtype})"
    writer.write(result, kind, code)


@helper
def clipped(value: Any, dtype: Any) -> Any:
    """Integers limited to the range of another type."""
    own, other = np.iinfo(value.dtype), np.iinfo(dtype)
    low, high = max(own.min, other.min), min(own.max, other.max)
    return np.clip(value, low, high).astype(dtype)


def _value(writer: Writer, operand: Any, type: str, flags: set[str]) -> str:
    """A float as float64, which is exact."""
    value = writer.array(operand, type)
    if type == "bf16":
        value = f"from_bfloat16({value})"
    elif type == "f32" and "ftz" in flags:
        value = f"flushed({value})"
    return value if type == "f64" else f"{value}.astype({writer.type('f8')})"


@instruction("cvt", forms=(f"rni|rzi|rmi|rpi ftz? sat? {_ALL} f32",
                           f"rni|rzi|rmi|rpi sat? {_ALL} f16|f64"))  # fmt: skip
@instruction("cvt", forms=f"rni|rzi|rmi|rpi {INTEGERS} bf16", since=90)
def _to_integer(writer: Writer, one: Instruction) -> None:
    """Results are always limited to the range of the type: .sat changes nothing."""
    result, a = one.operands
    kind, type = one.modifiers[-2:]
    mode, flags = _mode_and_flags(one)
    # PTX ISA, cvt, Integer Notes: NaN becomes zero if the source is not .f64 and the destination
    # is not .s64 or .u64; otherwise only the upper bit is set.
    nan = 0
    if type == "f64" or kind in ("s64", "u64"):
        nan = 1 << (BITS[kind] - 1)
    dtype = writer.type(DTYPES[kind])
    code = f"integers_of({_value(writer, a, type, flags)}, {mode!r}, {dtype}, {nan})"
    writer.write(result, kind, code)


@helper
def integers_of(value: Any, mode: str, dtype: Any, nan: int) -> Any:
    """Float64 rounded to integers, limited to the range of a type."""
    whole = rounded_to_integral(value, mode)
    info = np.iinfo(dtype)
    missing = np.isnan(whole)
    high = whole >= float(info.max)
    low = whole <= float(info.min)
    result = np.where(high | low | missing, 0.0, whole).astype(dtype)
    result[high] = info.max
    result[low] = info.min
    result[missing] = np.array(nan, np.uint64).astype(dtype)
    return result


@instruction("cvt", forms=f"rn|rz|rm|rp f16|f32|f64 {_ALL}")
@instruction("cvt", forms=f"rn|rz|rm|rp bf16 {INTEGERS}", since=90)
def _to_float(writer: Writer, one: Instruction) -> None:
    result, a = one.operands
    mode, kind, type = one.modifiers
    value = writer.array(a, type)
    if mode == "rn" and kind in ("f32", "f64"):
        writer.write(result, kind, f"{value}.astype({writer.type(DTYPES[kind])})")
    else:
        writer.write(result, kind, f"floats_of({value}, {kind!r}, {mode!r})")


@helper
def floats_of(value: Any, kind: str, mode: str) -> Any:
    """Integers as floats, rounded once."""
    wide = value.astype(np.float64)
    # What float64 lacks, modulo 2**64: it is less than 2**11.
    small = wide < 2.0**63
    back = np.where(small, wide, 0.0).astype(np.int64).view(np.uint64)
    back += np.where(small | (wide >= 2.0**64), 0.0, wide).astype(np.uint64)
    error = (value.astype(np.int64).view(np.uint64) - back).view(np.int64).astype(np.float64)
    if kind == "f64":
        return wide if mode == "rn" else moved(wide, error, mode)
    odd = to_odd(wide, error)
    return to_bfloat16(odd, mode) if kind == "bf16" else narrowed(odd, DTYPES[kind], mode)


@instruction("cvt", forms="rn|rz relu? f16x2|bf16x2 f32", since=80)
def _to_pair(writer: Writer, one: Instruction) -> None:
    result, a, b = one.operands
    kind = one.modifiers[-2]
    mode, flags = _mode_and_flags(one)
    high, low = (_value(writer, operand, "f32", flags) for operand in (a, b))
    each = kind.removesuffix("x2")
    relu = "relu" in flags
    parts = [f"half_bits({one}, {each!r}, {mode!r}, {relu}, False)" for one in (high, low)]
    wide = writer.type("u4")
    writer.write(result, "b32", f"({parts[0]}.astype({wide}) << 16) | {parts[1]}")


@helper
def half_bits(value: Any, kind: str, mode: str, relu: bool, sat: bool) -> Any:
    """Float64 as the bits of float16 or bfloat16; NaN is canonical."""
    nan = np.isnan(value)
    if relu:
        value = np.where(np.signbit(value) & ~nan, 0.0, value)
    if sat:
        value = np.where(value > 0, np.minimum(value, 1.0), 0.0)
        nan = np.zeros_like(nan)
    if kind == "bf16":
        return to_bfloat16(value, mode)
    bits = narrowed(value, np.float16, mode).view(np.uint16)
    return np.where(nan, np.uint16(0x7FFF), bits)


@instruction("cvt", forms="rna tf32 f32", since=80)
@instruction("cvt", forms="rn|rz tf32 f32", since=90)
def _to_tf32(writer: Writer, one: Instruction) -> None:
    result, a = one.operands
    writer.write(result, "b32", f"to_tf32({writer.array(a, 'u32')}, {one.modifiers[0]!r})")


@helper
def to_tf32(bits: Any, mode: str) -> Any:
    """float32 rounded to 11 bits: to nearest, ties away from zero or to even, or toward zero.

    NaN is canonical, 0x7fffffff (PTX ISA, cvt).
    """
    finite = (bits & np.uint32(0x7FFFFFFF)) < 0x7F800000
    nan = (bits & np.uint32(0x7FFFFFFF)) > 0x7F800000
    add: Any = np.uint32(0x1000)
    if mode == "rz":
        add = np.uint32(0)
    elif mode == "rn":
        add = np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    rounded = np.where(finite, bits + add, bits) & np.uint32(0xFFFFE000)
    return np.where(nan, np.uint32(0x7FFFFFFF), rounded)


@instruction("cvt", forms=("rni|rzi|rmi|rpi ftz? sat? f32 f32", "rni|rzi|rmi|rpi sat? f16 f16",
                           "rni|rzi|rmi|rpi sat? f64 f64"))  # fmt: skip
@instruction("cvt", forms=("ftz? sat? f32 f16|f32", "ftz? sat? f64 f32", "sat? f64 f16|f64",
                           "sat? f16 f16"))  # fmt: skip
@instruction("cvt", forms=("rn|rz|rm|rp ftz? sat? f32 f64", "rn|rz|rm|rp ftz? sat? f16 f32",
                           "rn|rz|rm|rp sat? f16 f64"))  # fmt: skip
@instruction("cvt", forms=("rn|rz relu f16|bf16 f32", "rn|rz bf16 f32", "f32 bf16"), since=80)
@instruction("cvt", forms=("rm|rp bf16 f32", "rn|rz|rm|rp bf16 f64", "f64|bf16 bf16",
                           "ftz f32 bf16"), since=90)  # fmt: skip
def _between_floats(writer: Writer, one: Instruction) -> None:
    result, a = one.operands
    kind, type = one.modifiers[-2:]
    mode, flags = _mode_and_flags(one)
    value = _value(writer, a, type, flags)
    if mode in _INTEGRAL:
        value = f"rounded_to_integral({value}, {mode!r})"
    if kind in ("f16", "bf16"):
        code = (
            f"half_bits({value}, {kind!r}, {mode or 'rn'!r}, {'relu' in flags}, {'sat' in flags})"
        )
        writer.write(result, "u16", code)
        return
    code = f"narrowed_to({value}, {writer.type(DTYPES[kind])}, {mode!r})"
    if "ftz" in flags and kind == "f32":
        code = f"flushed({code})"
    if "sat" in flags:
        code = f"saturated({code})"
    writer.write(result, kind, code)


@helper
def narrowed_to(value: Any, dtype: Any, mode: str) -> Any:
    """Float64 as another type, by mode if that is not exact."""
    return narrowed(value, dtype, mode if mode in ("rz", "rm", "rp") else "rn")
