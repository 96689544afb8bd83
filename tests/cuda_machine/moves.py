"""Moves, selections and comparisons (PTX ISA, Comparison and Selection; Data Movement)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_machine.syntax import BITS, Immediate, Instruction, Not, Operand, Pair, Register, Vector
from cuda_machine.writer import DTYPES, FLOATS, Writer, helper, instruction, unknown

_MOVED = ("pred", *(f"{kind}{bits}" for kind in "bus" for bits in (16, 32, 64)), "f32", "f64")
_SIGNED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
# The opposite of a comparison of floats that is false for NaN is true for NaN.
_UNORDERED = {"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}


@instruction("mov")
def _mov(writer: Writer, one: Instruction) -> None:
    (type,) = one.modifiers
    result, value = one.operands
    if type not in _MOVED:
        unknown(one)
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
        left, right = (
            float_array(writer, operand, type, "ftz" in one.modifiers) for operand in (a, b)
        )
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
    if name in _UNSIGNED and type[0] != "u":
        unknown(one)
    operator = _UNSIGNED.get(name) or _SIGNED[name]
    if type[0] == "b" and name not in ("eq", "ne"):
        unknown(one)
    return f"{writer.array(a, type)} {operator} {writer.read(b, type)}"


def float_array(writer: Writer, operand: Operand, type: str, ftz: bool = False) -> str:
    """The values of floats, in a type that NumPy computes in: bfloat16 as float32."""
    if type == "bf16":
        value = writer.temporary(f"from_bfloat16({writer.array(operand, type)})")
    elif type in ("f16", "f32", "f64"):
        value = writer.array(operand, type)
    else:
        raise ValueError(f"a comparison of .{type}")
    if ftz and type == "f32":
        value = writer.temporary(f"flushed({value})")
    return value


@helper
def from_bfloat16(bits: Any) -> Any:
    """bfloat16 as float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


@helper
def flushed(value: Any) -> Any:
    """The values with zeros, of their sign, for subnormal ones."""
    tiny = np.finfo(value.dtype).tiny
    return np.where(np.abs(value) < tiny, np.copysign(value.dtype.type(0), value), value)


def _combined(writer: Writer, one: Instruction, value: str, operands: tuple[Operand, ...]) -> str:
    """A comparison combined with a predicate by .and, .or or .xor."""
    names = [name for name in one.modifiers if name in ("and", "or", "xor")]
    if len(names) != len(operands):
        unknown(one)
    if not names:
        return value
    operator = {"and": "&", "or": "|", "xor": "^"}[names[0]]
    return f"({value}) {operator} {writer.array(operands[0], 'pred')}"


def _check_comparison(one: Instruction, types: int) -> None:
    others = one.modifiers[1:-types]
    if any(name not in ("and", "or", "xor", "ftz") for name in others) or len(others) > 2:
        unknown(one)


@instruction("setp")
def _setp(writer: Writer, one: Instruction) -> None:
    result, a, b, *rest = one.operands
    _check_comparison(one, 1)
    value = writer.temporary(compared(writer, one, one.modifiers[-1], a, b))
    true = writer.temporary(_combined(writer, one, value, tuple(rest)))
    if isinstance(result, Pair):
        false = writer.temporary(_combined(writer, one, f"~{value}", tuple(rest)))
        writer.write(result.first, "pred", true)
        writer.write(result.second, "pred", false)
    else:
        writer.write(result, "pred", true)


@instruction("set")
def _set(writer: Writer, one: Instruction) -> None:
    result, a, b, *rest = one.operands
    _check_comparison(one, 2)
    kind, type = one.modifiers[-2:]
    if kind not in ("u32", "s32", "f32"):
        unknown(one)
    value = _combined(writer, one, compared(writer, one, type, a, b), tuple(rest))
    true: Any = np.float32(1) if kind == "f32" else np.array(0xFFFFFFFF).astype(DTYPES[kind])[()]
    zero = np.dtype(DTYPES[kind]).type(0)
    code = f"np.where({value}, {writer.constant(true)}, {writer.constant(zero)})"
    writer.write(result, kind, code)


@instruction("selp")
def _selp(writer: Writer, one: Instruction) -> None:
    (type,) = one.modifiers
    result, a, b, predicate = one.operands
    if type not in _MOVED[1:]:
        unknown(one)
    chosen = writer.array(predicate, "pred")
    code = f"np.where({chosen}, {writer.read(a, type)}, {writer.read(b, type)})"
    writer.write(result, type, code)


@instruction("slct")
def _slct(writer: Writer, one: Instruction) -> None:
    *ftz, type, kind = one.modifiers
    result, a, b, c = one.operands
    if kind not in ("s32", "f32") or type not in _MOVED[1:] or ftz not in ([], ["ftz"]):
        unknown(one)
    value = writer.array(c, kind)
    # A flushed value is a zero, which is not below zero either.
    chosen = f"flushed({value}) >= 0" if ftz else f"{value} >= 0"
    code = f"np.where({chosen}, {writer.read(a, type)}, {writer.read(b, type)})"
    writer.write(result, type, code)


__all__ = ["Immediate", "Not", "compared", "float_array", "flushed", "from_bfloat16"]
