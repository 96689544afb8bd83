"""Moves, selections and comparisons (PTX ISA, Comparison and Selection; Data Movement)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_machine.syntax import BITS, Instruction, Operand, Pair, Register, Vector
from cuda_machine.writer import DTYPES, FLOATS, INTEGERS, Writer, helper, instruction, unknown

_TYPES = f"b16|b32|b64|{INTEGERS}|f32|f64"
_SIGNED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
# The opposite of a comparison of floats that is false for NaN is true for NaN.
_UNORDERED = {"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
_COMBINED = "and|or|xor?"
_OF_FLOATS = "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"


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
    operator = _UNSIGNED.get(name) or _SIGNED[name]
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


def _comparisons(results: str) -> tuple[str, ...]:
    """The forms of comparisons, with modifiers for the results before the type."""
    return (
        f"eq|ne {_COMBINED} {results} b16|b32|b64",
        f"eq|ne|lt|le|gt|ge {_COMBINED} {results} {INTEGERS}",
        f"lo|ls|hi|hs {_COMBINED} {results} u16|u32|u64",
        f"{_OF_FLOATS} {_COMBINED} ftz? {results} f32",
        f"{_OF_FLOATS} {_COMBINED} {results} f64",
    )


@instruction("setp", forms=(*_comparisons(""), f"{_OF_FLOATS} {_COMBINED} f16"))
@instruction("setp", forms=f"{_OF_FLOATS} {_COMBINED} bf16", since=90)
def _setp(writer: Writer, one: Instruction) -> None:
    result, a, b, *rest = one.operands
    value = writer.temporary(compared(writer, one, one.modifiers[-1], a, b))
    true = writer.temporary(_combined(writer, one, value, tuple(rest)))
    if isinstance(result, Pair):
        if one.modifiers[-1] in ("f16", "bf16"):
            unknown(one)
        false = writer.temporary(_combined(writer, one, f"~{value}", tuple(rest)))
        writer.write(result.first, "pred", true)
        writer.write(result.second, "pred", false)
    else:
        writer.write(result, "pred", true)


@instruction("set", forms=_comparisons("u32|s32|f32"))
def _set(writer: Writer, one: Instruction) -> None:
    result, a, b, *rest = one.operands
    kind, type = one.modifiers[-2:]
    value = _combined(writer, one, compared(writer, one, type, a, b), tuple(rest))
    true: Any = np.float32(1) if kind == "f32" else np.array(0xFFFFFFFF).astype(DTYPES[kind])[()]
    zero = np.dtype(DTYPES[kind]).type(0)
    code = f"np.where({value}, {writer.constant(true)}, {writer.constant(zero)})"
    writer.write(result, kind, code)


@instruction("selp", forms=_TYPES)
def _selp(writer: Writer, one: Instruction) -> None:
    (type,) = one.modifiers
    result, a, b, predicate = one.operands
    chosen = writer.array(predicate, "pred")
    code = f"np.where({chosen}, {writer.read(a, type)}, {writer.read(b, type)})"
    writer.write(result, type, code)


@instruction("slct", forms=(f"{_TYPES} s32", f"ftz? {_TYPES} f32"))
def _slct(writer: Writer, one: Instruction) -> None:
    *ftz, type, kind = one.modifiers
    result, a, b, c = one.operands
    value = writer.array(c, kind)
    # A flushed value is a zero, which is not below zero either.
    chosen = f"flushed({value}) >= 0" if ftz else f"{value} >= 0"
    code = f"np.where({chosen}, {writer.read(a, type)}, {writer.read(b, type)})"
    writer.write(result, type, code)
