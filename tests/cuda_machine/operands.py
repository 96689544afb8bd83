"""Reads operands of instructions; knows which names are registers in which scope."""

from __future__ import annotations

import re
from typing import Final

from cuda_machine.faults import Fault
from cuda_machine.syntax import (
    BITS,
    Address,
    Immediate,
    Not,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

_TOKEN: Final = re.compile(
    r"\s*(0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?"
    r"|\d+\.\d*(?:[eE][+-]?\d+)?|\d+U?|[A-Za-z_$%][\w$]*(?:\.[xyzw])?|[\[\]{}()+,|!<>-])"
)
# Special registers with a value that PTX defines.
SPECIALS: Final = (
    *(f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"),
    "%laneid",
)


def number(text: str) -> Immediate | None:
    """The constant of a text; None if it is none."""
    negative = text.startswith("-")
    digits = text.removeprefix("-").strip()
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", digits):
        return Immediate(int(digits[2:], 16) ^ (negative << 31), "f32")
    if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", digits):
        return Immediate(int(digits[2:], 16) ^ (negative << 63), "f64")
    if found := re.fullmatch(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?", digits):
        octal = re.fullmatch(r"0[0-7]+", found[1])
        value = int(found[1], 8 if octal else 0)
        return Immediate(-value if negative else value, "integer")
    return None


class Scopes:
    """The names that are declared at a position of a function, innermost scope last.

    A name that is declared again in an inner scope becomes another register.
    """

    def __init__(self) -> None:
        self._names: list[dict[str, Register | str]] = [{}]
        self._opened = 0

    def open(self) -> None:
        self._opened += 1
        self._names.append({})

    def close(self) -> None:
        self._names.pop()

    def _unique(self, name: str) -> str:
        return name if len(self._names) == 1 else f"{name}@{self._opened}"

    def declare_registers(self, text: str) -> None:
        """Registers of `.b32 %r<9>`, which are %r0 to %r8, or of `.pred p, q`."""
        type, _, names = text.partition(" ")
        type = type.removeprefix(".")
        if type not in BITS or BITS[type] == 8:
            raise Fault(f"unknown type of registers .{type}")
        for name in names.split(","):
            found = re.fullmatch(r"([\w$%]+)(?:<(\d+)>)?", name.strip())
            if not found:
                raise Fault("unknown syntax of registers")
            for number in range(int(found[2])) if found[2] else ("",):
                own = f"{found[1]}{number}"
                self._names[-1][own] = Register(self._unique(own), type)

    def declare_variable(self, name: str) -> str:
        """The unique name of a shared or local variable."""
        unique = self._names[-1][name] = self._unique(name)
        return unique

    def find(self, name: str) -> Register | str:
        """The register or the variable of a name, or the name of something outside."""
        return next((names[name] for names in reversed(self._names) if name in names), name)


def read_operands(scopes: Scopes, text: str) -> tuple[Operand, ...]:
    reader = _Reader(scopes, text)
    operands: list[Operand] = []
    while reader.tokens:
        operands.append(reader.operand())
        if reader.tokens:
            reader.take(",")
    return tuple(operands)


class _Reader:
    def __init__(self, scopes: Scopes, text: str) -> None:
        self.scopes = scopes
        self.tokens: list[str] = []
        position = 0
        text = text.strip()
        while position < len(text):
            found = _TOKEN.match(text, position)
            if not found:
                raise Fault(f"unknown syntax of an operand: {text[position:]}")
            self.tokens.append(found[1])
            position = found.end()
        self.tokens.reverse()

    def take(self, token: str) -> None:
        if not self.tokens or self.tokens.pop() != token:
            raise Fault(f"unknown syntax of operands: no {token} where there must be one")

    def _next(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    def operand(self) -> Operand:
        if not self.tokens:
            raise Fault("an operand is missing")
        token = self.tokens.pop()
        if token == "{":
            return Vector(self._list("}"))
        if token == "[":
            return self._address()
        if token == "!":
            register = self.operand()
            if not isinstance(register, Register):
                raise Fault("! before something that is no predicate")
            return Not(register)
        return self._single(token)

    def _list(self, end: str) -> tuple[Operand, ...]:
        elements: list[Operand] = []
        while self._next() != end:
            elements.append(self.operand())
            if self._next() != end:
                self.take(",")
        self.take(end)
        return tuple(elements)

    def _single(self, token: str) -> Operand:
        if token == "-":
            token += self.tokens.pop()
        if (value := number(token)) is not None:
            return value
        if token == "_":
            return Sink()
        known = self.scopes.find(token)
        if isinstance(known, Register):
            return known
        if token.startswith("%"):
            if token not in SPECIALS:
                raise Fault(f"unknown register {token}")
            return Special(token)
        if not re.fullmatch(r"[A-Za-z_$][\w$]*", token):
            raise Fault(f"unknown syntax of an operand: {token}")
        offset = 0
        if self._next() in ("+", "-"):
            offset = self._offset()
        return Symbol(known, offset)

    def _offset(self) -> int:
        sign = -1 if self.tokens.pop() == "-" else 1
        if self._next() == "-":
            self.tokens.pop()
            sign = -sign
        value = number(self.tokens.pop() if self.tokens else "")
        if value is None or value.kind != "integer":
            raise Fault("unknown syntax of an offset")
        return sign * value.bits

    def _address(self) -> Address:
        base = self._single(self.tokens.pop() if self.tokens else "")
        if not isinstance(base, Register | Symbol | Immediate):
            raise Fault("unknown syntax of an address")
        offset = 0
        if self._next() in ("+", "-"):
            offset = self._offset()
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), base.offset + offset
        self.take("]")
        return Address(base, offset)
