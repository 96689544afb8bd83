"""Floating-point instructions of 32 and 64 bits (PTX ISA, Floating Point Instructions).

Approximations (`.approx`, `.full`) are errors: PTX bounds their error and does not say their
results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_machine.rounding import rounded_to_integral as rounded_to_integral
from cuda_machine.syntax import Instruction, Operand
from cuda_machine.writer import DTYPES, Writer, helper, instruction

_MODES = ("rn", "rz", "rm", "rp")


def parts_of(one: Instruction) -> tuple[str, str, set[str]]:
    """The type, the rounding mode ("rn" if there is none) and the flags of an instruction."""
    *rest, type = one.modifiers
    modes = [name for name in rest if name in _MODES]
    return type, (modes or ["rn"])[0], {*rest} - {*modes}


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


@instruction("add", "sub", forms=("rn|rz|rm|rp? ftz? sat? f32", "rn|rz|rm|rp? f64"))
@instruction("mul", forms=("rn|rz|rm|rp? ftz? sat? f32", "rn? f64"))
def _arithmetic(writer: Writer, one: Instruction) -> None:
    type, mode, flags = parts_of(one)
    result, *operands = one.operands
    a, b = inputs(writer, tuple(operands), type, flags)
    operator = {"add": "+", "sub": "-", "mul": "*"}[one.name]
    if mode == "rn":
        value = f"{a} {operator} {b}"
    elif one.name == "mul":
        value = f"directed_product_f4({a}, {b}, {mode!r})"
    else:
        value = f"directed_sum({a}, {'-' if one.name == 'sub' else ''}{b}, {mode!r})"
    write(writer, result, type, value, flags)


@instruction("fma", "mad", forms=("rn|rz|rm|rp ftz? sat? f32", "rn f64"))
def _fma(writer: Writer, one: Instruction) -> None:
    type, mode, flags = parts_of(one)
    result, *operands = one.operands
    # PTX ISA, mad: for sm_20 and higher, mad with a rounding mode is fma.
    a, b, c = inputs(writer, tuple(operands), type, flags)
    if mode == "rn":
        value = f"fma_{DTYPES[type]}({a}, {b}, {c})"
    else:
        value = f"directed_fma_f4({a}, {b}, {c}, {mode!r})"
    write(writer, result, type, value, flags)


@instruction("div", "rcp", "sqrt", forms=("rn ftz? f32", "rn f64"))
def _division(writer: Writer, one: Instruction) -> None:
    type, _, flags = parts_of(one)
    result, *operands = one.operands
    values = inputs(writer, tuple(operands), type, flags)
    if one.name == "div":
        value = f"{values[0]} / {values[1]}"
    elif one.name == "rcp":
        value = f"{writer.constant(np.dtype(DTYPES[type]).type(1))} / {values[0]}"
    else:
        value = f"np.sqrt({values[0]})"
    write(writer, result, type, value, flags)


@instruction("abs", "neg", forms="f16|f16x2")
@instruction("abs", "neg", forms="bf16|bf16x2", since=80)
def _sign_of_halves(writer: Writer, one: Instruction) -> None:
    """Only the sign changes, so the values are their bits."""
    (type,) = one.modifiers
    result, a = one.operands
    bits = "u32" if type.endswith("x2") else "u16"
    sign = 0x80008000 if type.endswith("x2") else 0x8000
    mask = writer.constant(np.dtype(DTYPES[bits]).type(sign))
    value = writer.array(a, bits)
    writer.write(result, bits, f"{value} & ~{mask}" if one.name == "abs" else f"{value} ^ {mask}")


@instruction("abs", "neg", forms=("ftz? f32", "f64"))
def _sign(writer: Writer, one: Instruction) -> None:
    type, _, flags = parts_of(one)
    result, a = one.operands
    (value,) = inputs(writer, (a,), type, flags)
    write(writer, result, type, f"np.abs({value})" if one.name == "abs" else f"-{value}", flags)


@instruction("min", "max", forms=("ftz? f32", "f64"))
@instruction("min", "max", forms="ftz? NaN f32", since=80)
def _extreme(writer: Writer, one: Instruction) -> None:
    type, _, flags = parts_of(one)
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


@instruction("copysign", forms="f32|f64")
def _copysign(writer: Writer, one: Instruction) -> None:
    (type,) = one.modifiers
    result, a, b = one.operands
    # PTX ISA, copysign: the sign of a, the magnitude of b.
    code = f"np.copysign({writer.array(b, type)}, {writer.array(a, type)})"
    writer.write(result, type, code)


@instruction("testp", forms="finite|infinite|number|notanumber|normal|subnormal f32|f64")
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
