"""Floating-point instructions (PTX ISA, Floating Point Instructions).

Approximations (`.approx`, `.full`) are errors: PTX bounds their error and does not say their
results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_machine import rounding as rounding
from cuda_machine.syntax import Instruction
from cuda_machine.writer import DTYPES, Writer, helper, instruction

_OPERATORS = {"add": "+", "sub": "-", "mul": "*"}


@instruction("add", "sub", "mul", forms="rn? f32|f64")
def _arithmetic(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, *operands = one.operands
    a, b = (writer.array(operand, type) for operand in operands)
    writer.write(result, type, f"{a} {_OPERATORS[one.name]} {b}")


@instruction("add", "sub", "mul", forms="rn f16")
def _arithmetic_of_halves(writer: Writer, one: Instruction) -> None:
    """In float64, where the results are exact."""
    result, *operands = one.operands
    wide = writer.type("f8")
    a, b = (f"{writer.array(operand, 'f16')}.astype({wide})" for operand in operands)
    writer.write(result, "u16", f"half_bits({a} {_OPERATORS[one.name]} {b})")


@instruction("fma", "mad", forms="rn f32|f64")
def _fma(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, *operands = one.operands
    # PTX ISA, mad: for sm_20 and higher, mad with a rounding mode is fma.
    values = ", ".join(writer.array(operand, type) for operand in operands)
    writer.write(result, type, f"fma_{DTYPES[type]}({values})")


@instruction("div", "rcp", "sqrt", forms="rn f32|f64")
def _division(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, *operands = one.operands
    values = [writer.array(operand, type) for operand in operands]
    if one.name == "div":
        value = f"{values[0]} / {values[1]}"
    elif one.name == "rcp":
        value = f"{writer.constant(np.dtype(DTYPES[type]).type(1))} / {values[0]}"
    else:
        value = f"np.sqrt({values[0]})"
    writer.write(result, type, value)


@instruction("abs", "neg", forms="f32|f64")
def _sign(writer: Writer, one: Instruction) -> None:
    (type,) = one.modifiers
    result, a = one.operands
    value = writer.array(a, type)
    writer.write(result, type, f"np.abs({value})" if one.name == "abs" else f"-{value}")


@instruction("min", "max", forms="f32|f64")
@instruction("min", "max", forms="NaN f32", since=80)
def _extreme(writer: Writer, one: Instruction) -> None:
    type = one.modifiers[-1]
    result, a, b = one.operands
    left, right = (writer.array(operand, type) for operand in (a, b))
    code = f"{one.name}imum_of({left}, {right}, {'NaN' in one.modifiers})"
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
    canonical = {4: 0x7FFFFFFF, 8: 0x7FFFFFFFFFFFFFFF}[chosen.dtype.itemsize]
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


@instruction("testp", forms="infinite f32|f64")
def _testp(writer: Writer, one: Instruction) -> None:
    result, a = one.operands
    writer.write(result, "pred", f"np.isinf({writer.array(a, one.modifiers[-1])})")
