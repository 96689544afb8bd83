"""Parts of the text of languages like C: operators, numbers, indented lines."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from lamina.codegen.builder import BasicBlock
from lamina.codegen.values import Type, single
from lamina.codegen.words import Words

_INDENT = "    "
INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "udiv": "/",
    "urem": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "lshr": ">>",
    "fadd": "+",
    "fsub": "-",
    "fmul": "*",
    "fdiv": "/",
}
SIGNED_INFIX = {"ashr": ">>"}
RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# Relations of floats that are not a single operator.
FLOAT_RELATIONS = {
    "ord": "({0} == {0}) & ({1} == {1})",
    "uno": "({0} != {0}) | ({1} != {1})",
    "one": "({0} < {1}) | ({0} > {1})",
}


def stored_as(element: str) -> str:
    """The integer that holds an element in memory."""
    return f"i{max(Type(element).bits, 8)}"


def is_condition(type: Type) -> bool:
    """Whether the values are conditions."""
    return type.element == "i1"


def number_text(words: Words, number: float, type: Type) -> str:
    """A number as a constant of a scalar type."""
    if type.element == "i1":
        return "true" if number else "false"
    if not type.is_float:
        digits = f"{int(number) % 2**type.bits}{words.integer_suffix[type.element]}"
        return f"({words.unsigned[type.element]}){digits}" if type.bits < 32 else digits
    if type.element == "float":
        number = single(number)
    if not math.isfinite(number):
        code, integer = ("<f", "<I") if type.element == "float" else ("<d", "<Q")
        (bits,) = struct.unpack(integer, struct.pack(code, number))
        whole = number_text(words, bits, Type(stored_as(type.element)))
        return words.bits.format(type=words.unsigned[type.element], value=whole)
    text = f"{number.hex()}{'f' if type.element == 'float' else ''}"
    return f"({text})" if text.startswith("-") else text


def indented(blocks: Sequence[BasicBlock]) -> str:
    """The body of a function: the lines of its blocks in braces."""
    lines = [" {"]
    depth = 1
    for block in blocks:
        for line in block.lines:
            depth -= line.startswith("}")
            lines.append(_INDENT * depth + line)
            depth += line.endswith("{")
    return "\n".join([*lines, "}"])
