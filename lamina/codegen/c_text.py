"""Parts of the text of languages like C: operators, numbers, types, indented lines."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from lamina.codegen.builder import BasicBlock
from lamina.codegen.values import Type, single
from lamina.codegen.words import GroupWords, VectorWords, Words
from lamina.errors import InternalError

_INDENT = "    "
INFIX = (
    {"add": "+", "sub": "-", "mul": "*", "udiv": "/", "urem": "%"}
    | {"and": "&", "or": "|", "xor": "^", "shl": "<<", "lshr": ">>"}
    | {"fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/"}
)
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
        integer_text = number_text(words, bits, Type(stored_as(type.element)))
        return words.bits.format(type=words.unsigned[type.element], value=integer_text)
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


class Types:
    """Types as a language writes them.

    Args:
        words: the words of the language.
        fused: whether the device multiplies and adds in one rounding.
        widens_division: whether divisions and square roots of floats of 32 bits are computed in 64
            bits and then rounded.

    Attributes:
        has_doubles: whether a type of 64 bits was written.
        has_halves: whether float16 was converted, or computed with.
    """

    def __init__(self, words: Words, *, fused: bool, widens_division: bool) -> None:
        self.words = words
        self.fused = fused
        self.widens_division = widens_division
        self.has_doubles = self.has_halves = False

    def type(self, type: Type) -> str:
        """A type as the language writes it."""
        if type.element == "double":
            self.has_doubles = True
        words = self.words
        if type.lanes and type.element == "i1":
            return self._vector(words.signed["i32"], type.lanes)
        return self._vector(words.unsigned[type.element], type.lanes)

    def signed(self, type: Type) -> str:
        """The signed type of integers."""
        return self._vector(self.words.signed[type.element], type.lanes)

    def _vector(self, element: str, lanes: int) -> str:
        return self.vectors(lanes).type.format(element=element, lanes=lanes) if lanes else element

    def vectors(self, lanes: int) -> VectorWords:
        """How vectors of this number of lanes are written."""
        vectors = self.words.vectors
        if vectors is None or lanes not in vectors.lanes:
            supported = ", ".join(map(str, vectors.lanes)) if vectors is not None else "none"
            raise InternalError(
                f"{self.words.language} has no vectors of {lanes} lanes",
                facts=(("supported lanes", supported),),
                advice="Write scalars, or vectors of supported lanes.",
            )
        return vectors

    @property
    def groups(self) -> GroupWords:
        """How groups of work items are written."""
        if self.words.groups is None:
            raise InternalError(
                f"{self.words.language} has no groups of work items",
                advice="Choose schedules whose work items are independent of each other.",
            )
        return self.words.groups

    def pointer(self, element: str, lanes: int = 0, *, local: bool = False) -> str:
        """The type of an address of elements, or of vectors, followed by a blank or star.

        It is in a buffer or in local memory.
        """
        word = self._vector(self.words.unsigned[stored_as(element)], lanes)
        return (self.groups if local else self.words).address.format(element=word)
