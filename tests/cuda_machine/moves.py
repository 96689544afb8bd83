"""Moves, selections and comparisons (PTX ISA, Comparison and Selection; Data Movement)."""

from __future__ import annotations

from cuda_machine.syntax import BITS, Instruction, Operand, Register, Vector
from cuda_machine.writer import FLOATS, INTEGERS, Writer, instruction

_TYPES = f"b16|b32|b64|{INTEGERS}|f32|f64"
_SIGNED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
# The opposite of a comparison of floats that is false for NaN is true for NaN.
_UNORDERED = {"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
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


@instruction("selp", forms=_TYPES)
def _selp(writer: Writer, one: Instruction) -> None:
    (type,) = one.modifiers
    result, a, b, predicate = one.operands
    chosen = writer.array(predicate, "pred")
    code = f"np.where({chosen}, {writer.read(a, type)}, {writer.read(b, type)})"
    writer.write(result, type, code)
