"""Floating-point instructions of 32 and 64 bits (PTX ISA, Floating Point Instructions).

Approximations (`.approx`, `.full`, ex2, lg2, sin, cos, tanh) are errors: PTX bounds their error and
does not say their results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_machine.halves import write_half
from cuda_machine.rounding import rounded_to_integral as rounded_to_integral
from cuda_machine.syntax import Instruction, Operand
from cuda_machine.writer import DTYPES, Writer, helper, instruction, unknown

_MODES = ("rn", "rz", "rm", "rp")
_HALVES = ("f16", "bf16", "f16x2", "bf16x2")


def parts_of(one: Instruction, *flags: str) -> tuple[str, str, set[str]]:
    """The type, the rounding mode ("rn" if there is none) and the flags of an instruction."""
    type = one.modifiers[-1]
    modes = [name for name in one.modifiers[:-1] if name in _MODES]
    rest = {name for name in one.modifiers[:-1] if name not in modes}
    if len(modes) > 1 or rest - {*flags}:
        unknown(one)
    if "ftz" in rest and type == "f64":
        unknown(one)
    return type, (modes or ["rn"])[0], rest


def inputs(writer: Writer, operands: tuple[Operand, ...], type: str, flags: set[str]) -> list[str]:
    """The values of operands; with .ftz subnormal ones are zero."""
    values = [writer.array(operand, type) for operand in operands]
    return [writer.temporary(f"flushed({one})") for one in values] if "ftz" in flags else values


def write(writer: Writer, operand: Operand, type: str, value: str, flags: set[str]) -> None:
    """Writes a result: with .ftz subnormal ones become zero, .sat limits them to 0 to 1."""
    if "ftz" in flags:
        value = f"flushed({value})"
    if "sat" in flags:
        value = f"saturated({value})"
    writer.write(operand, type, value)


@helper
def saturated(value: Any) -> Any:
    """Values limited to 0 to 1; NaN is +0 (PTX ISA, .sat)."""
    zero, one = value.dtype.type(0), value.dtype.type(1)
    return np.where(value > zero, np.minimum(value, one), zero)


@instruction("add", "sub", "mul", float=True)
def _arithmetic(writer: Writer, one: Instruction) -> None:
    if one.modifiers[-1] in _HALVES:
        write_half(writer, one)
        return
    type, mode, flags = parts_of(one, "ftz", "sat")
    result, *operands = one.operands
    a, b = inputs(writer, tuple(operands), type, flags)
    operator = {"add": "+", "sub": "-", "mul": "*"}[one.name]
    if mode == "rn":
        value = f"{a} {operator} {b}"
    elif one.name == "mul":
        if type == "f64":
            unknown(one, "products of .f64 are only known with .rn")
        value = f"directed_product_f4({a}, {b}, {mode!r})"
    else:
        value = f"directed_sum({a}, {'-' if one.name == 'sub' else ''}{b}, {mode!r})"
    write(writer, result, type, value, flags)


@instruction("fma", "mad", float=True)
def _fma(writer: Writer, one: Instruction) -> None:
    if one.modifiers[-1] in _HALVES:
        write_half(writer, one)
        return
    type, mode, flags = parts_of(one, "ftz", "sat")
    result, *operands = one.operands
    # PTX ISA, mad: for sm_20 and higher, mad with a rounding mode is fma.
    a, b, c = inputs(writer, tuple(operands), type, flags)
    if mode == "rn":
        value = f"fma_{DTYPES[type]}({a}, {b}, {c})"
    elif type == "f32":
        value = f"directed_fma_f4({a}, {b}, {c}, {mode!r})"
    else:
        unknown(one, "fma of .f64 is only known with .rn")
    write(writer, result, type, value, flags)


@instruction("div", "rcp", "sqrt", "rsqrt", float=True)
def _division(writer: Writer, one: Instruction) -> None:
    if not set(one.modifiers) & set(_MODES):
        unknown(one, "an approximation, of which PTX does not say the result")
    type, mode, flags = parts_of(one, "ftz")
    if mode != "rn" or type not in ("f32", "f64") or one.name == "rsqrt":
        unknown(one, "only .rn is known")
    result, *operands = one.operands
    values = inputs(writer, tuple(operands), type, flags)
    if one.name == "div":
        value = f"{values[0]} / {values[1]}"
    elif one.name == "rcp":
        value = f"{writer.constant(np.dtype(DTYPES[type]).type(1))} / {values[0]}"
    else:
        value = f"np.sqrt({values[0]})"
    write(writer, result, type, value, flags)


@instruction("ex2", "lg2", "sin", "cos", "tanh", float=True)
def _approximation(writer: Writer, one: Instruction) -> None:
    unknown(one, "an approximation, of which PTX does not say the result")


@instruction("abs", "neg", float=True)
def _sign(writer: Writer, one: Instruction) -> None:
    type, _, flags = parts_of(one, "ftz")
    result, a = one.operands
    if type in _HALVES:
        # Only the sign changes, so packed types are their bits.
        if flags:
            unknown(one)
        bits = "u32" if type.endswith("x2") else "u16"
        sign = 0x80008000 if type.endswith("x2") else 0x8000
        mask = writer.constant(np.dtype(DTYPES[bits]).type(sign))
        value = writer.array(a, bits)
        code = f"{value} & ~{mask}" if one.name == "abs" else f"{value} ^ {mask}"
        writer.write(result, bits, code)
        return
    (value,) = inputs(writer, (a,), type, flags)
    write(writer, result, type, f"np.abs({value})" if one.name == "abs" else f"-{value}", flags)


@instruction("min", "max", float=True)
def _extreme(writer: Writer, one: Instruction) -> None:
    if one.modifiers[-1] in _HALVES:
        write_half(writer, one)
        return
    type, _, flags = parts_of(one, "ftz", "NaN")
    result, a, b = one.operands
    left, right = inputs(writer, (a, b), type, flags)
    code = f"{one.name}imum_of({left}, {right}, {'NaN' in flags})"
    writer.write(result, type, code)


@helper
def minimum_of(a: Any, b: Any, nan: bool) -> Any:
    """The smaller values: -0 is below +0 (PTX ISA, min).

    Without .NaN, NaN is returned only if both are NaN; the result NaN is canonical.
    """
    smaller = np.where((a < b) | ((a == b) & np.signbit(a)), a, b)
    return _with_nan(smaller, a, b, nan)


@helper
def maximum_of(a: Any, b: Any, nan: bool) -> Any:
    """The larger values, as `minimum_of`."""
    larger = np.where((a > b) | ((a == b) & ~np.signbit(a)), a, b)
    return _with_nan(larger, a, b, nan)


def _with_nan(chosen: Any, a: Any, b: Any, nan: bool) -> Any:
    one, other = a != a, b != b
    if not (one.any() or other.any()):
        return chosen
    canonical = {2: 0x7FFF, 4: 0x7FFFFFFF, 8: 0x7FFFFFFFFFFFFFFF}[chosen.dtype.itemsize]
    value = np.array([canonical], f"u{chosen.dtype.itemsize}").view(chosen.dtype)
    if nan:
        return np.where(one | other, value, chosen)
    return np.where(one & other, value, np.where(one, b, np.where(other, a, chosen)))


@instruction("copysign", float=True)
def _copysign(writer: Writer, one: Instruction) -> None:
    (type,) = one.modifiers
    result, a, b = one.operands
    # PTX ISA, copysign: the sign of a, the magnitude of b.
    code = f"np.copysign({writer.array(b, type)}, {writer.array(a, type)})"
    writer.write(result, type, code)


@instruction("testp", float=True)
def _testp(writer: Writer, one: Instruction) -> None:
    name, type = one.modifiers
    result, a = one.operands
    value = writer.array(a, type)
    tiny = writer.constant(np.finfo(DTYPES[type]).tiny)
    tests = {
        "finite": f"np.isfinite({value})",
        "infinite": f"np.isinf({value})",
        "number": f"~np.isnan({value})",
        "notanumber": f"np.isnan({value})",
        # PTX ISA, testp: zero is normal.
        "normal": f"np.isfinite({value}) & ((np.abs({value}) >= {tiny}) | ({value} == 0))",
        "subnormal": f"(np.abs({value}) < {tiny}) & ({value} != 0)",
    }
    writer.write(result, "pred", tests[name])
