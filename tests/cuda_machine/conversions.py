"""Conversions between types (PTX ISA, cvt)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_machine.syntax import BITS, Instruction
from cuda_machine.writer import DTYPES, Writer, helper, instruction

_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_TO_INTEGRAL = "rni|rzi|rmi|rpi"
_ALL = "u8|s8|u16|s16|u32|s32|u64|s64"


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


@helper
def half_bits(value: Any) -> Any:
    """Floats as the bits of float16; NaN is canonical."""
    bits = value.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(value), np.uint16(0x7FFF), bits)
