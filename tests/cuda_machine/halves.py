"""Arithmetic of float16, bfloat16, and pairs of them (PTX ISA, Half Precision Instructions).

Values are computed in float64 and rounded once. Sums and products of two of them are exact there;
a * b + c is rounded to odd.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_machine.moves import from_bfloat16
from cuda_machine.rounding import fused, to_bfloat16
from cuda_machine.syntax import Instruction
from cuda_machine.writer import Writer, helper, instruction

_BFLOATS = "bf16|bf16x2"
_FLOATS = "f16|f16x2"


@instruction("add", "sub", "mul", forms=f"rn? {_BFLOATS}", since=90)
@instruction("add", "sub", "mul", forms=f"rn? ftz? sat? {_FLOATS}")
@instruction("fma", forms=f"rn relu? {_BFLOATS}", since=80)
@instruction("fma", forms=f"rn ftz? relu {_FLOATS}", since=80)
@instruction("fma", forms=f"rn ftz? sat? {_FLOATS}")
@instruction("min", "max", forms=(f"NaN? {_BFLOATS}", f"ftz? NaN? {_FLOATS}"), since=80)
def _half(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    flags = set(one.modifiers[:-1])
    result, *operands = one.operands
    bits = "u32" if type.endswith("x2") else "u16"
    values = ", ".join(writer.array(operand, bits) for operand in operands)
    bfloat = type.startswith("bf16")
    code = f"half_result({one.name!r}, {bfloat}, {sorted(flags)!r}, {values})"
    writer.write(result, bits, code)


@helper
def half_result(name: str, bfloat: bool, flags: list[str], *operands: Any) -> Any:
    """The bits of results of an instruction, of one or two halves for each lane."""
    kept = operands[0].dtype
    bits = [np.ascontiguousarray(one).view(np.uint16) for one in operands]
    values = [_wide(one, bfloat) for one in bits]
    if "ftz" in flags:
        values = [_flushed(one) for one in values]
    if name in ("min", "max"):
        result = _extreme(name, values, bits, "NaN" in flags)
        if "ftz" in flags:
            result = _flushed_bits(result)
        return result.view(kept)
    exact = {
        "add": lambda: values[0] + values[1],
        "sub": lambda: values[0] - values[1],
        "mul": lambda: values[0] * values[1],
        "fma": lambda: fused(*values),
    }[name]()
    if name in ("add", "sub") and bfloat:
        # Exponents of bfloat16 differ by more than the bits of float64.
        second = -values[1] if name == "sub" else values[1]
        exact = fused(values[0], np.ones(1), second)
    result = to_bfloat16(exact) if bfloat else exact.astype(np.float16).view(np.uint16)
    if not bfloat:
        result = np.where(np.isnan(exact), np.uint16(0x7FFF), result)
    if "ftz" in flags:
        result = _flushed_bits(result)
    if "sat" in flags:
        value = result.view(np.float16)
        limited = np.where(value > 0, np.minimum(value, np.float16(1)), np.float16(0))
        result = limited.view(np.uint16)
    if "relu" in flags:
        # PTX ISA, fma: negative results become 0, NaN becomes canonical NaN.
        negative = (result & np.uint16(0x8000)) != 0
        result = np.where(negative & ~np.isnan(exact), np.uint16(0), result)
    return result.view(kept)


def _wide(bits: Any, bfloat: bool) -> Any:
    value = from_bfloat16(bits) if bfloat else bits.view(np.float16)
    return value.astype(np.float64)


def _flushed(value: Any) -> Any:
    tiny = np.abs(value) < 2.0**-14
    return np.where(tiny, np.copysign(0.0, value), value)


def _flushed_bits(bits: Any) -> Any:
    subnormal = (bits & np.uint16(0x7C00)) == 0
    return np.where(subnormal, bits & np.uint16(0x8000), bits)


def _extreme(name: str, values: list[Any], bits: list[Any], nan: bool) -> Any:
    a, b = values
    minus = np.signbit(a)
    first = (a < b) | ((a == b) & minus) if name == "min" else (a > b) | ((a == b) & ~minus)
    chosen = np.where(first, bits[0], bits[1])
    one, other = np.isnan(a), np.isnan(b)
    canonical = np.uint16(0x7FFF)
    if nan:
        return np.where(one | other, canonical, chosen)
    lone = np.where(one, bits[1], np.where(other, bits[0], chosen))
    return np.where(one & other, canonical, lone)
