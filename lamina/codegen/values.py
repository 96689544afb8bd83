"""Typed values, common to all target languages: scalars, vectors, addresses."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lamina.codegen.builder import Builder

# The bits of elements that are no integers; addresses count as 64.
_BITS = {"float": 32, "double": 64, "ptr": 64, "table": 64, "numbers": 64}


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value: a scalar, or a vector of `lanes` of them.

    Integers have no sign: operations treat them as signed or unsigned, as in LLVM.

    Attributes:
        element: `"float"`, `"double"`, `"i1"`, `"i8"`, `"i16"`, `"i32"`, `"i64"`, `"ptr"`,
            `"table"` (the addresses of a kernel's buffers), or `"numbers"` (a constant array of
            i64).
        lanes: the number of lanes; 0 for a scalar.
    """

    element: str
    lanes: int = 0

    @property
    def scalar(self) -> Type:
        return Type(self.element)

    @property
    def is_float(self) -> bool:
        return self.element in ("float", "double")

    @property
    def bits(self) -> int:
        """The size of an element; a pointer counts as 64."""
        return _BITS.get(self.element) or int(self.element[1:])

    @property
    def bytes(self) -> int:
        """The size of an element in bytes, at least one; also its alignment."""
        return max(self.bits // 8, 1)

    def of(self, element: str) -> Type:
        """The type with the same number of lanes of another element."""
        return Type(element, self.lanes)

    def wide(self, lanes: int) -> Type:
        """The type with another number of lanes."""
        return Type(self.element, lanes)

    @property
    def suffix(self) -> str:
        """The type in names of functions: `"f32"`, `"v16f32"`."""
        letter = {"float": "f32", "double": "f64", "ptr": "p0"}.get(self.element, self.element)
        return f"v{self.lanes}{letter}" if self.lanes else letter


I1, I8, I16, I32, I64 = (Type(f"i{bits}") for bits in (1, 8, 16, 32, 64))
FLOAT, DOUBLE, POINTER = Type("float"), Type("double"), Type("ptr")
TABLE, NUMBERS = Type("table"), Type("numbers")

# An operator of values, and the same one with a number on the left.
_Operators = tuple[Callable[["Value", "Operand"], "Value"], Callable[["Value", float], "Value"]]


def _operators(write: Callable[[Builder, Value, Value], Value]) -> _Operators:

    def operator(left: Value, right: Operand) -> Value:
        code = left.code or (right.code if isinstance(right, Value) else None)
        assert code is not None, "an operator needs an operand that is no constant"
        return write(code, *alike(left, right))

    return operator, lambda right, left: operator(constant(left, right.type, right.code), right)


def _integer(operation: str) -> _Operators:
    """An operator of integers."""
    return _operators(lambda code, left, right: code.binary(operation, left, right))


def _comparison(of_integers: str, of_floats: str) -> Callable[[Value, Operand], Value]:
    """An operator that compares values."""

    def write(code: Builder, left: Value, right: Value) -> Value:
        return code.compare(of_floats if left.type.is_float else of_integers, left, right)

    return _operators(write)[0]


@dataclass(frozen=True, slots=True)
class Value:
    """An operand: a register, a parameter or a constant.

    Its operators write instructions; a number beside a value becomes a constant of its type. `//`,
    `%` and `>>` read integers without a sign, `<`, `<=`, `>` and `>=` with a sign. Comparisons with
    NaN are false, except `differs`.

    Attributes:
        name: the name in the language. A constant is named by its exact number, because values of
            equal names are equal: 0.0 and -0.0 have different names.
        type: the type of the value.
        number: the number of a constant: one for all lanes, or one for each lane.
        code: the function in which it is an operand; None for some constants.
    """

    name: str
    type: Type
    number: float | tuple[float, ...] | None = None
    code: Builder | None = field(default=None, compare=False, repr=False)

    __add__, __radd__ = _operators(lambda code, left, right: code.add(left, right))
    __sub__, __rsub__ = _operators(lambda code, left, right: code.subtract(left, right))
    __mul__, __rmul__ = _operators(lambda code, left, right: code.multiply(left, right))
    __truediv__, __rtruediv__ = _operators(lambda code, left, right: code.divide(left, right))
    __floordiv__, __rfloordiv__ = _integer("udiv")
    __mod__, __rmod__ = _integer("urem")
    __and__, __rand__ = _integer("and")
    __or__, __ror__ = _integer("or")
    __xor__, __rxor__ = _integer("xor")
    __lshift__, __rlshift__ = _integer("shl")
    __rshift__, __rrshift__ = _integer("lshr")
    __lt__, __le__ = _comparison("slt", "olt"), _comparison("sle", "ole")
    __gt__, __ge__ = _comparison("sgt", "ogt"), _comparison("sge", "oge")
    equals, differs = _comparison("eq", "oeq"), _comparison("ne", "une")

    def __neg__(self) -> Value:
        assert self.code is not None, "an operator needs an operand that is no constant"
        return self.code.negate(self)

    @property
    def is_number(self) -> bool:
        """Whether it is a constant without NaN in any lane."""
        if self.number is None:
            return False
        numbers = self.number if isinstance(self.number, tuple) else (self.number,)
        return not any(math.isnan(number) for number in numbers)

    def is_integer(self, number: int) -> bool:
        """Whether it is this constant, a scalar integer."""
        return self.number == number and not self.type.is_float and not self.type.lanes


# A value, or a number that becomes a constant: of the type of a value beside it, or an i64.
Operand = Value | float
Integer = Value | int


def as_value(operand: Operand, type: Type, code: Builder | None = None) -> Value:
    """The operand; a number as a constant of a type."""
    return operand if isinstance(operand, Value) else constant(operand, type, code)


def alike(left: Operand, right: Operand) -> tuple[Value, Value]:
    """Two operands of one type; at most one of them is a number."""
    if isinstance(left, Value):
        return left, as_value(right, left.type, left.code)
    assert isinstance(right, Value)
    return constant(left, right.type, right.code), right


def constant(value: float, type: Type, code: Builder | None = None) -> Value:
    """A constant; for a vector type the same number in every lane."""
    number = float(value) if type.is_float else int(value)
    return Value(repr(number), type, number, code)


def constants(values: Sequence[float], element: str) -> Value:
    """A vector constant with a number for each lane."""
    numbers = tuple(float(v) if Type(element).is_float else int(v) for v in values)
    return Value(repr(numbers), Type(element, len(numbers)), numbers)


def undefined(type: Type) -> Value:
    """A value without contents; each lane must be set before it is read."""
    return Value("undefined", type)


def single(number: float) -> float:
    """A number rounded to float32; infinite if it is too large."""
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.inf if number > 0 else -math.inf
