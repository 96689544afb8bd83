"""Instructions in languages like C: expressions of scalars and vectors, and calls."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from lamina.codegen.builder import BasicBlock, BlockBuilder
from lamina.codegen.c_text import (
    FLOAT_RELATIONS,
    INFIX,
    RELATIONS,
    SIGNED_INFIX,
    Types,
    is_condition,
    number_text,
)
from lamina.codegen.values import (
    I64,
    POINTER,
    Integer,
    Operand,
    Type,
    Value,
    alike,
    as_value,
    constant,
)
from lamina.codegen.words import CHOSEN, HalfWords
from lamina.errors import InternalError


class Expressions(BlockBuilder):
    """Instructions on values; each becomes a statement."""

    def __init__(self, types: Types, name: str, parameters: Sequence[Value]) -> None:
        super().__init__(name, parameters, BasicBlock(""))
        self._types = types
        # The lanes of vectors that are being made, by their names.
        self._begun: dict[str, list[str | None]] = {}

    @abstractmethod
    def _pointer(self, pointer: Value, element: str, lanes: int = 0) -> str:
        """An address of elements or vectors."""

    # Text

    def _line(self, text: str) -> None:
        self.block.lines.append(f"{text};")

    def _made(self, text: str, type: Type) -> Value:
        """The value of an expression."""
        value = self._value("v", type)
        self._line(f"const {self._types.type(type)} {value.name} = {text}")
        return value

    def _copied(self, value: Value) -> Value:
        return self._made(self._operand(value), value.type)

    def _operand(self, value: Value) -> str:
        """A value as an operand of an expression."""
        if value.name in self._begun:
            raise InternalError("a vector is used before all of its lanes are set", where=self.name)
        if value.number is None:
            # Each lane of an undefined value is set before it is read.
            return (
                self._operand(constant(0, value.type)) if value.name == "undefined" else value.name
            )
        if not value.type.lanes:
            assert not isinstance(value.number, tuple)
            return number_text(self._types.words, value.number, value.type)
        numbers = value.number if isinstance(value.number, tuple) else (value.number,)
        lanes = [self._lane(number, value.type) for number in numbers]
        return f"({self._of_lanes(value.type, lanes)})"

    def _lane(self, number: float, type: Type) -> str:
        if type.element == "i1":
            return "-1" if number else "0"
        return number_text(self._types.words, number, type.scalar)

    # Words

    def _same_bits(self, word: str, text: str) -> str:
        """The bits of an expression as another type of the language."""
        return self._types.words.bits.format(type=word, value=text)

    def _numbers(self, word: str, text: str, lanes: int) -> str:
        """An expression converted to a type of the language."""
        if not lanes:
            return f"({word})({text})"
        return self._types.vectors(lanes).converted.format(type=word, value=text)

    def _signed(self, value: Value) -> str:
        """An integer converted to its signed type."""
        word, text = self._types.signed(value.type), self._operand(value)
        return self._same_bits(word, text) if value.type.lanes else f"({word}){text}"

    def _unsigned(self, text: str, type: Type) -> str:
        """A signed result converted to its unsigned type."""
        word = self._types.type(type)
        return self._same_bits(word, text) if type.lanes else f"({word})({text})"

    def _mask(self, text: str, type: Type) -> str:
        """The result of a comparison of vectors of a type."""
        if type.bits == 32:
            return text
        return self._numbers(self._types.type(type.of("i1")), text, type.lanes)

    def _of_lanes(self, type: Type, lanes: Sequence[str]) -> str:
        """A vector of these lanes, or with one number in all of them."""
        word = self._types.type(type)
        return self._types.vectors(type.lanes).made.format(type=word, lanes=", ".join(lanes))

    def _lane_of(self, vector: str, type: Type, lane: int) -> str:
        """A lane of a variable."""
        return self._types.vectors(type.lanes).lane.format(vector=vector, lane=lane)

    # Instructions

    def binary(self, operation: str, left: Operand, right: Operand) -> Value:
        left, right = alike(left, right)
        if operation == "fdiv" and self._is_widened(left.type):
            wide = (self.convert("fpext", operand, "double") for operand in (left, right))
            return self.convert("fptrunc", self.binary("fdiv", *wide), "float")
        if operation in SIGNED_INFIX:
            text = f"{self._signed(left)} {SIGNED_INFIX[operation]} {self._signed(right)}"
            return self._made(self._unsigned(text, left.type), left.type)
        text = f"{self._operand(left)} {INFIX[operation]} {self._operand(right)}"
        return self._made(text, left.type)

    def negate(self, value: Value) -> Value:
        return self._made(f"-{self._operand(value)}", value.type)

    def compare(self, relation: str, left: Operand, right: Operand) -> Value:
        left, right = alike(left, right)
        first, second = self._operand(left), self._operand(right)
        if relation in FLOAT_RELATIONS:
            text = FLOAT_RELATIONS[relation].format(first, second)
        else:
            if relation[0] == "s":
                first, second = self._signed(left), self._signed(right)
            elif relation[0] == "u" and is_condition(left.type):
                # A condition that holds is -1 in vectors, the largest number without a sign.
                integer = self._types.type(left.type.of("i32"))
                convert = self._same_bits if left.type.lanes else "({}){}".format
                first, second = (convert(integer, operand) for operand in (first, second))
            text = f"{first} {RELATIONS[relation[-2:]]} {second}"
        result = left.type.of("i1")
        if left.type.lanes and not is_condition(left.type):
            text = self._mask(text, left.type)
        return self._made(text, result)

    def select(self, condition: Value, yes: Operand, no: Operand) -> Value:
        yes, no = alike(yes, no)
        mask, first, second = (self._operand(value) for value in (condition, yes, no))
        if not condition.type.lanes:
            text = self._types.vectors(yes.type.lanes).chosen if yes.type.lanes else CHOSEN
            return self._made(text.format(condition=mask, yes=first, no=second), yes.type)
        if yes.type.element != "i1" and yes.type.bits != 32:
            integers = Type(f"i{yes.type.bits}", yes.type.lanes)
            signed = self._types.signed(integers)
            if integers.bits == 64:
                # A selection compares its mask with zero.
                unsigned = self._same_bits(self._types.type(integers.of("i32")), mask)
                mask = self._same_bits(signed, self._sign_extended(unsigned, integers))
            else:
                mask = self._numbers(signed, mask, integers.lanes)
        selected = self._types.vectors(yes.type.lanes).selected
        return self._made(selected.format(yes=first, no=second, mask=mask), yes.type)

    def convert(self, operation: str, value: Value, element: str) -> Value:
        type = value.type.of(element)
        made = self._made(self._converted(operation, value, type), type)
        if not operation.endswith(".sat"):
            return made
        # The conversion of NaN is undefined, and drivers of OpenCL differ.
        return self.select(self.compare("oeq", value, value), made, constant(0, type))

    def _converted(self, operation: str, value: Value, type: Type) -> str:
        word, text, element = self._types.type(type), self._operand(value), type.element
        if operation == "bitcast":
            return self._same_bits(word, text)
        if operation.endswith(".sat"):
            return self._nearest(value, type, signed=operation == "fptosi.sat")
        if is_condition(type):
            lowest = f"({text} & 1) != 0"
            return self._mask(lowest, value.type) if type.lanes else lowest
        if value.type.lanes and is_condition(value.type):
            text = f"({text} & 1)"
        elif operation == "sext" and (value.type.element, element) == ("i32", "i64"):
            return self._sign_extended(text, type)
        elif operation in ("sext", "sitofp"):
            text = self._signed(value)
        if operation == "sext":
            wide = self._types.signed(type)
            return self._unsigned(self._numbers(wide, text, type.lanes), type)
        return self._numbers(word, text, type.lanes)

    def _sign_extended(self, text: str, type: Type) -> str:
        """Signed integers of 32 bits, given as unsigned ones, extended to a type of 64 bits.

        Mesa compares longs wrongly with constants, if they are converted from ints. LLVM makes the
        same code of this text as of a conversion.
        """
        sign = self._operand(constant(2**31, type))
        wide = self._numbers(self._types.type(type), text, type.lanes)
        return f"({wide} ^ {sign}) - {sign}"

    def _nearest(self, value: Value, type: Type, *, signed: bool) -> str:
        """The integer nearest to a float; any integer for NaN."""
        word = self._types.signed(type) if signed else self._types.type(type)
        end = 2 ** (type.bits - signed)
        least = -end if signed else 0
        text = self._types.words.nearest.format(
            type=word,
            value=self._operand(value),
            least=number_text(self._types.words, least, type.scalar),
            most=number_text(self._types.words, end - 1, type.scalar),
            low=number_text(self._types.words, float(least), value.type.scalar),
            high=number_text(self._types.words, float(end), value.type.scalar),
        )
        return self._unsigned(text, type) if signed else text

    def from_half(self, value: Value) -> Value:
        named = self._named(value)
        return self._made(
            self._halves.loaded.format(lanes=value.type.lanes or "", name=named),
            value.type.of("float"),
        )

    def to_half(self, value: Value) -> Value:
        result = self._value("v", value.type.of("i16"))
        self._line(f"{self._types.type(result.type)} {result.name}")
        text, lanes = self._operand(value), value.type.lanes or ""
        self._line(self._halves.stored.format(lanes=lanes, value=text, name=result.name))
        return result

    def half_binary(self, operation: str, left: Value, right: Value) -> Value:
        text = self._halves.operated
        if text is None:
            return super().half_binary(operation, left, right)
        operands = {"left": self._operand(left), "right": self._operand(right)}
        lanes, operator = left.type.lanes or "", INFIX[operation]
        return self._made(text.format(**operands, lanes=lanes, operator=operator), left.type)

    @property
    def _halves(self) -> HalfWords:
        """How float16 is converted, and computed with."""
        words = self._types.words
        if words.half is None:
            raise InternalError(f"{words.language} does not convert floats of 16 bits")
        self._types.has_halves = True
        return words.half

    def _is_widened(self, type: Type) -> bool:
        """Whether divisions and square roots are computed in 64 bits and then rounded."""
        return self._types.widens_division and type.element == "float"

    def intrinsic(self, name: str, *operands: Value) -> Value:
        if name == "sqrt" and self._is_widened(operands[0].type):
            wide = self.intrinsic("sqrt", self.convert("fpext", operands[0], "double"))
            return self.convert("fptrunc", wide, "float")
        type = operands[0].type
        word = self._types.words.float_function if type.element == "float" else "{name}"
        return self.call(word.format(name=name), type, *operands)

    def call(self, name: str, type: Type, *operands: Integer) -> Value:
        return self._made(self._called(name, operands), type)

    def call_void(self, name: str, *operands: Integer) -> None:
        self._line(self._called(name, operands))

    def call_several(
        self, name: str, types: Sequence[Type], operands: Sequence[Value]
    ) -> list[Value]:
        """Calls a function with several results."""
        results = [self._value("v", type) for type in types]
        for result in results:
            self._line(f"{self._types.type(result.type)} {result.name}")
        targets = [f"&{result.name}" for result in results]
        self._line(self._called(name, operands, targets))
        return results

    def _called(self, name: str, operands: Sequence[Integer], further: Sequence[str] = ()) -> str:
        texts = [
            self._pointer(value, "i8") if value.type == POINTER else self._operand(value)
            for value in (as_value(operand, I64) for operand in operands)
        ]
        return f"{name}({', '.join([*texts, *further])})"

    # Lanes

    def splat(self, value: Value, lanes: int) -> Value:
        if not lanes:
            return value
        type = value.type.wide(lanes)
        if value.number is not None and not isinstance(value.number, tuple):
            return self.constant(value.number, type)
        text = self._operand(value)
        if is_condition(value.type):
            text = f"{text} ? -1 : 0"
        return self._made(self._of_lanes(type, [text]), type)

    def shuffle(self, left: Value, right: Value | None, picks: Sequence[int]) -> Value:
        lanes = left.type.lanes
        sources = (left, right if right is not None else left)
        return self.assembled([(sources[pick >= lanes], pick % lanes) for pick in picks])

    def assembled(self, lanes: Sequence[tuple[Value, int]]) -> Value:
        """A vector of lanes of other vectors, or of scalars, whose number is ignored."""
        names = {value: self._named(value) for value, _ in lanes}
        type = lanes[0][0].type.wide(len(lanes))
        picked = [
            self._lane_of(names[value], value.type, lane) if value.type.lanes else names[value]
            for value, lane in lanes
        ]
        return self._made(self._of_lanes(type, picked), type)

    def _named(self, value: Value) -> str:
        """The name of a variable that holds a value, for access to its lanes."""
        is_variable = value.number is None and value.name != "undefined"
        return value.name if is_variable else self._copied(value).name

    def extract(self, vector: Value, lane: int) -> Value:
        text = self._lane_of(self._named(vector), vector.type, lane)
        return self._made(text, vector.type.scalar)

    def insert(self, vector: Value, value: Value, lane: int) -> Value:
        inserted = self._operand(value)
        if is_condition(value.type):
            inserted = f"({inserted} ? -1 : 0)"
        count = vector.type.lanes
        lanes: list[str | None] = [None] * count
        if vector.name in self._begun:
            lanes = self._begun.pop(vector.name)
        elif vector.name != "undefined":
            named = self._named(vector)
            lanes = [self._lane_of(named, vector.type, i) for i in range(count)]
        lanes[lane] = inserted
        texts = [text for text in lanes if text is not None]
        if len(texts) == count:
            return self._made(self._of_lanes(vector.type, texts), vector.type)
        # One expression makes the vector when all of its lanes are known.
        begun = self._value("u", vector.type)
        self._begun[begun.name] = lanes
        return begun
