"""Writing languages like C as text, through the protocol of builders.

A table of words (`words.py`) holds the differences between the languages. Each instruction becomes
a `const` variable, so that the text reads like a list of instructions; compilers optimize it well.
Conditions of vectors are integers of 32 bits, all bits set or none.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import final

from lamina.codegen.builder import BasicBlock, OpenLoop
from lamina.codegen.c_text import (
    FLOAT_RELATIONS,
    INFIX,
    RELATIONS,
    SIGNED_INFIX,
    indented,
    is_condition,
    number_text,
    stored_as,
)
from lamina.codegen.instructions import Instructions
from lamina.codegen.iterations import Iterations
from lamina.codegen.values import I1, I64, NUMBERS, POINTER, TABLE, Type, Value, constant
from lamina.codegen.words import GroupWords, VectorWords, Words
from lamina.errors import InternalError

# The type of tables of addresses.
_ADDRESSES = "Addresses"


@final
class Module:
    """A source file: functions, and kernels that the host calls.

    Args:
        words: of the language.
        fused: whether the device multiplies and adds in one rounding.
        doubles: whether it has floats of 64 bits.
        exact_division: whether divisions and square roots of floats of 32 bits are correctly
            rounded. If not, and if the device has floats of 64 bits, they are computed in 64 bits
            and rounded, which gives the correctly rounded result.
        most_iterations: of all loops in a call of a function; None if there is no limit.
    """

    def __init__(
        self,
        words: Words,
        *,
        fused: bool,
        doubles: bool = True,
        exact_division: bool = True,
        most_iterations: int | None = None,
    ) -> None:
        self.words = words
        self.fused = fused
        self.doubles = doubles
        self.widens_division = doubles and not exact_division
        self.most_iterations = most_iterations
        self.has_doubles = False
        # The most addresses of a table that is passed to functions.
        self.addresses = 0
        self.functions: list[Function] = []
        self._arrays: dict[str, str] = {}
        self._names: set[str] = set()

    def function(
        self,
        name: str,
        parameters: Sequence[tuple[str, Type]],
        *,
        result: Type | None = None,
        results: Sequence[Type] = (),
    ) -> Function:
        """Begins a function that other functions call; its pointer parameters point to bytes.

        With several results, `finish_several` ends it and `call_several` calls it.
        """
        words = [f"{self._parameter(type)}{label}" for label, type in parameters]
        words += [f"{self.type(type)} *result{number}" for number, type in enumerate(results)]
        apart = any(type in (POINTER, TABLE) for _, type in parameters)
        qualifiers = " ".join(filter(None, (self.words.function, self.words.apart * apart)))
        head = f"{qualifiers} {self.type(result) if result else 'void'}"
        head = f"{head} {name}({', '.join(words)})"
        return self._added(Function(self, name, parameters, head, is_called=True))

    def kernel(
        self,
        name: str,
        buffers: Sequence[tuple[str, str]],
        numbers: Sequence[tuple[str, Type]],
        *,
        group: int = 0,
    ) -> Function:
        """Begins a function that the host calls.

        Args:
            name: of the function.
            buffers: the name and the element of each buffer.
            numbers: further parameters.
            group: the number of work items in a work group; 0 if it may have any size.
        """
        words = [f"{self.pointer(element)}{label}" for label, element in buffers]
        words += [f"{self.type(type)} {label}" for label, type in numbers]
        parameters = [*((label, POINTER) for label, _ in buffers), *numbers]
        qualifiers = self.groups.kernel.format(size=group) if group else self.words.kernel
        head = f"{qualifiers} {name}({', '.join(words)})"
        made = Function(self, name, parameters, head, is_called=False)
        made.elements.update({label: stored_as(element) for label, element in buffers})
        return self._added(made)

    def _added(self, function: Function) -> Function:
        self.functions.append(function)
        self._names.add(function.name)
        return function

    def _parameter(self, type: Type) -> str:
        """The type of a parameter, with a star or blank at its end."""
        if type == POINTER:
            return self.pointer("i8")
        if type == TABLE:
            return f"const {_ADDRESSES} *"
        return self.words.numbers if type == NUMBERS else f"{self.type(type)} "

    def table_once(self, name: str, values: Sequence[Value]) -> Value:
        """A constant array of 64-bit integers, made once for each name; for `Function.picked`."""
        suffix = self.words.integer_suffix["i64"]
        numbers = ", ".join(f"{one.number}{suffix}" for one in values)
        text = self.words.array.format(name=name, count=len(values), numbers=numbers)
        self._arrays.setdefault(name, text)
        return Value(name, NUMBERS)

    def has(self, name: str) -> bool:
        """Whether a function of that name was begun; shared functions are written once."""
        return name in self._names

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
            known = ", ".join(map(str, vectors.lanes)) if vectors is not None else "none"
            raise InternalError(
                f"{self.words.language} has no vectors of {lanes} lanes",
                facts=(("supported lanes", known),),
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
        """The type of an address of elements or vectors, followed by a blank or star.

        Args:
            element: of a buffer, or of an array in local memory.
            lanes: of vectors; 0 for scalars.
            local: whether it is in local memory.
        """
        word = self._vector(self.words.unsigned[stored_as(element)], lanes)
        return (self.groups if local else self.words).address.format(element=word)

    def text(self) -> str:
        """The whole file.

        Raises:
            EngineError: if a function has more iterations than allowed.
        """
        if self.most_iterations is not None:
            for one in self.functions:
                one.iterations.require(self.most_iterations, one.name)
        functions = [function.text() for function in self.functions]
        head = [*(self.words.double_head if self.has_doubles else ()), *self.words.head]
        head += self._arrays.values()
        if self.addresses:
            buffers = f"{self.pointer('i8')}buffers[{self.addresses}];"
            number = f"{self.words.unsigned['i64']} iteration;"
            head.append(f"typedef struct {{ {buffers} {number} }} {_ADDRESSES};")
        # Prototypes, because a function may be begun while its caller is written.
        head += [f"{one.head};" for one in self.functions if one.is_called]
        return "\n\n".join(["\n".join(head), *functions]) + "\n"


@final
class Function(Instructions):
    """A function being written: instructions go to the current block."""

    def __init__(
        self,
        module: Module,
        name: str,
        parameters: Sequence[tuple[str, Type]],
        head: str,
        *,
        is_called: bool,
    ) -> None:
        given = [Value(label, type) for label, type in parameters]
        super().__init__(name, given, BasicBlock(""))
        self.module = module
        # The element to which each address points; other addresses point to bytes.
        self.elements: dict[str, str] = {}
        # The addresses in local memory.
        self._local: set[str] = set()
        self.head = head
        self.is_called = is_called
        self.iterations = Iterations()

    @property
    def _is_fused(self) -> bool:
        return self.module.fused

    # Structure

    def _new_block(self, *lines: str) -> BasicBlock:
        self.block = BasicBlock("", list(lines))
        self.blocks.append(self.block)
        return self.block

    @contextmanager
    def when(self, condition: Value) -> Generator[BasicBlock]:
        """The instructions inside run only if the condition holds; they return no values.

        Yields the block before them, which always runs.
        """
        before = self.block
        self._new_block(f"if ({self._operand(condition)}) {{")
        self._new_block()
        yield before
        self._new_block("}")
        self._new_block()

    def begin_loop(
        self,
        start: Value | int,
        stop: Value | int,
        step: int = 1,
        carried: Sequence[Value] = (),
        *,
        most: int | None = None,
    ) -> OpenLoop:
        """Begins `for index in range(start, stop, step)`; end it with `end_loop`."""
        first = constant(start, I64) if isinstance(start, int) else start
        last = constant(stop, I64) if isinstance(stop, int) else stop
        self.iterations.begin(first, last, step, most)
        before = self.block
        received: list[Value] = []
        for value in carried:
            received.append(Value(self._name("c"), value.type))
            self._line(
                f"{self.module.type(value.type)} {received[-1].name} = {self._operand(value)}"
            )
        index = Value(self._name("i"), first.type)
        signed = self.module.signed(first.type)
        sums_floats = any(value.type.is_float for value in carried)
        entry = self._new_block(
            *(self.module.words.in_order if sums_floats else ()),
            f"for ({self.module.type(first.type)} {index.name} = {self._operand(first)}; "
            f"({signed}){index.name} < ({signed}){self._operand(last)}; "
            f"{index.name} += {self._operand(constant(step, first.type))}) {{",
        )
        body = self._new_block()
        return OpenLoop(
            index, tuple(received), before, entry, first, last, step, tuple(carried), body, None
        )

    def end_loop(
        self, loop: OpenLoop, carried: Sequence[Value] = (), going: Value | None = None
    ) -> tuple[Value, ...]:
        """Ends the loop; returns the carried values of its last iteration, or the initial ones."""
        names = {value.name for value in loop.carried}
        # Carried values are assigned at the same time: a new value may be the old one of another.
        handed = [
            self._copied(value) if value.name in names and value != own else value
            for own, value in zip(loop.carried, carried, strict=True)
        ]
        for own, value in zip(loop.carried, handed, strict=True):
            if own != value:
                self._line(f"{own.name} = {self._operand(value)}")
        if going is not None:
            self._line(f"if (!{self._operand(going)}) break")
        self._new_block("}")
        self._new_block()
        self.iterations.end()
        return loop.carried

    def finish(self, value: Value | None = None) -> None:
        """Returns from the function."""
        if value is not None:
            self._line(f"return {self._operand(value)}")

    def finish_several(self, values: Sequence[Value]) -> None:
        """Returns several values from the function."""
        for number, value in enumerate(values):
            self._line(f"*result{number} = {self._operand(value)}")

    # Text

    def _line(self, text: str) -> None:
        self.block.lines.append(f"{text};")

    def _made(self, text: str, type: Type) -> Value:
        """The value of an expression."""
        value = Value(self._name("v"), type)
        self._line(f"const {self.module.type(type)} {value.name} = {text}")
        return value

    def _copied(self, value: Value) -> Value:
        return self._made(self._operand(value), value.type)

    def _operand(self, value: Value) -> str:
        """A value as an operand of an expression."""
        if value.number is None:
            # Each lane of an undefined value is set before it is read.
            return (
                self._operand(constant(0, value.type)) if value.name == "undefined" else value.name
            )
        if not value.type.lanes:
            assert not isinstance(value.number, tuple)
            return number_text(self.module.words, value.number, value.type)
        numbers = value.number if isinstance(value.number, tuple) else (value.number,)
        lanes = [self._lane(number, value.type) for number in numbers]
        return f"({self._of_lanes(value.type, lanes)})"

    def _lane(self, number: float, type: Type) -> str:
        if type.element == "i1":
            return "-1" if number else "0"
        return number_text(self.module.words, number, type.scalar)

    def text(self) -> str:
        """The function, indented."""
        return indented(self.head, self.blocks)

    # Words

    def _same_bits(self, word: str, text: str) -> str:
        """The bits of an expression as another type of the language."""
        return self.module.words.bits.format(type=word, value=text)

    def _numbers(self, word: str, text: str, lanes: int) -> str:
        """An expression converted to a type of the language."""
        if not lanes:
            return f"({word})({text})"
        return self.module.vectors(lanes).converted.format(type=word, value=text)

    def _signed(self, value: Value) -> str:
        """An integer converted to its signed type."""
        word, text = self.module.signed(value.type), self._operand(value)
        return self._same_bits(word, text) if value.type.lanes else f"({word}){text}"

    def _unsigned(self, text: str, type: Type) -> str:
        """A signed result converted to its unsigned type."""
        word = self.module.type(type)
        return self._same_bits(word, text) if type.lanes else f"({word})({text})"

    def _mask(self, text: str, type: Type) -> str:
        """The result of a comparison of vectors of a type."""
        if type.bits == 32:
            return text
        return self._numbers(self.module.type(type.of("i1")), text, type.lanes)

    def _of_lanes(self, type: Type, lanes: Sequence[str]) -> str:
        """A vector of these lanes, or with one number in all of them."""
        word = self.module.type(type)
        return self.module.vectors(type.lanes).made.format(type=word, lanes=", ".join(lanes))

    def _lane_of(self, vector: str, type: Type, lane: int) -> str:
        """A lane of a variable."""
        return self.module.vectors(type.lanes).lane.format(vector=vector, lane=lane)

    # Instructions

    def binary(self, operation: str, left: Value, right: Value) -> Value:
        """An operation on two values of one type."""
        if operation == "fdiv" and self._is_widened(left.type):
            wide = (self.convert("fpext", one, "double") for one in (left, right))
            return self.convert("fptrunc", self.binary("fdiv", *wide), "float")
        if operation in SIGNED_INFIX:
            text = f"{self._signed(left)} {SIGNED_INFIX[operation]} {self._signed(right)}"
            return self._made(self._unsigned(text, left.type), left.type)
        text = f"{self._operand(left)} {INFIX[operation]} {self._operand(right)}"
        return self._made(text, left.type)

    def negate(self, value: Value) -> Value:
        return self._made(f"-{self._operand(value)}", value.type)

    def compare(self, relation: str, left: Value, right: Value) -> Value:
        """An i1 for each lane."""
        first, second = self._operand(left), self._operand(right)
        if relation in FLOAT_RELATIONS:
            text = FLOAT_RELATIONS[relation].format(first, second)
        else:
            if relation[0] == "s":
                first, second = self._signed(left), self._signed(right)
            elif relation[0] == "u" and is_condition(left.type):
                # A condition that holds is -1 in vectors, the largest number without a sign.
                integer = self.module.type(left.type.of("i32"))
                convert = self._same_bits if left.type.lanes else "({}){}".format
                first, second = (convert(integer, one) for one in (first, second))
            text = f"{first} {RELATIONS[relation[-2:]]} {second}"
        result = left.type.of("i1")
        if left.type.lanes and not is_condition(left.type):
            text = self._mask(text, left.type)
        return self._made(text, result)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        mask, first, second = (self._operand(value) for value in (condition, yes, no))
        if not condition.type.lanes:
            return self._made(f"{mask} ? {first} : {second}", yes.type)
        if yes.type.element != "i1" and yes.type.bits != 32:
            integers = Type(f"i{yes.type.bits}", yes.type.lanes)
            mask = self._numbers(self.module.signed(integers), mask, yes.type.lanes)
        selected = self.module.vectors(yes.type.lanes).selected
        return self._made(selected.format(yes=first, no=second, mask=mask), yes.type)

    def convert(self, operation: str, value: Value, element: str) -> Value:
        """Converts each lane to another element."""
        type = value.type.of(element)
        made = self._made(self._converted(operation, value, type), type)
        if not operation.endswith(".sat"):
            return made
        # The conversion of NaN is undefined, and drivers of OpenCL differ.
        return self.select(self.compare("oeq", value, value), made, constant(0, type))

    def _converted(self, operation: str, value: Value, type: Type) -> str:
        word, text, element = self.module.type(type), self._operand(value), type.element
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
            # Mesa compares longs wrongly with constants, if they are converted from ints. LLVM
            # makes the same code of this text as of a conversion.
            sign = self._operand(constant(2**31, type))
            return f"({self._numbers(word, text, type.lanes)} ^ {sign}) - {sign}"
        elif operation in ("sext", "sitofp"):
            text = self._signed(value)
        if operation == "sext":
            wide = self.module.signed(type)
            return self._unsigned(self._numbers(wide, text, type.lanes), type)
        return self._numbers(word, text, type.lanes)

    def _nearest(self, value: Value, type: Type, *, signed: bool) -> str:
        """The integer nearest to a float; any integer for NaN."""
        word = self.module.signed(type) if signed else self.module.type(type)
        end = 2 ** (type.bits - signed)
        least = -end if signed else 0
        text = self.module.words.nearest.format(
            type=word,
            value=self._operand(value),
            least=number_text(self.module.words, least, type.scalar),
            most=number_text(self.module.words, end - 1, type.scalar),
            low=number_text(self.module.words, float(least), value.type.scalar),
            high=number_text(self.module.words, float(end), value.type.scalar),
        )
        return self._unsigned(text, type) if signed else text

    def _is_widened(self, type: Type) -> bool:
        """Whether divisions and square roots are computed in 64 bits and then rounded."""
        return self.module.widens_division and type.element == "float"

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """An intrinsic whose operands and result have one type."""
        if name == "sqrt" and self._is_widened(operands[0].type):
            wide = self.intrinsic("sqrt", self.convert("fpext", operands[0], "double"))
            return self.convert("fptrunc", wide, "float")
        type = operands[0].type
        word = self.module.words.float_function[type.element]
        return self.call(word.format(name=name), type, *operands)

    def call(self, name: str, type: Type, *operands: Value) -> Value:
        """Calls a function that returns a value."""
        return self._made(self._called(name, operands), type)

    def call_void(self, name: str, *operands: Value) -> None:
        """Calls a function that returns nothing."""
        self._line(self._called(name, operands))

    def call_several(
        self, name: str, types: Sequence[Type], operands: Sequence[Value]
    ) -> list[Value]:
        """Calls a function with several results."""
        results = [Value(self._name("v"), type) for type in types]
        for one in results:
            self._line(f"{self.module.type(one.type)} {one.name}")
        targets = [f"&{one.name}" for one in results]
        self._line(self._called(name, operands, targets))
        return results

    def _called(self, name: str, operands: Sequence[Value], further: Sequence[str] = ()) -> str:
        texts = [
            self._pointer(one, "i8") if one.type == POINTER else self._operand(one)
            for one in operands
        ]
        return f"{name}({', '.join([*texts, *further])})"

    # Tables of addresses

    def make_addresses(self, buffers: Sequence[Value], iteration: Value | None) -> Value:
        """A table with these addresses, and perhaps the number of an iteration."""
        self.module.addresses = max(self.module.addresses, len(buffers), 1)
        name = self._name("a")
        self._line(f"{_ADDRESSES} {name}")
        for number, buffer in enumerate(buffers):
            self._line(f"{name}.buffers[{number}] = {self._pointer(buffer, 'i8')}")
        if iteration is not None:
            self._line(f"{name}.iteration = {self._operand(iteration)}")
        return Value(f"&{name}", TABLE)

    def address_in(self, table: Value, number: int) -> Value:
        """One of the addresses of a table."""
        self.module.addresses = max(self.module.addresses, number + 1)
        value = Value(self._name("p"), POINTER)
        self._line(f"{self.module.pointer('i8')}{value.name} = {table.name}->buffers[{number}]")
        return value

    def iteration_in(self, table: Value) -> Value:
        """The number of the iteration in a table."""
        return self._made(f"{table.name}->iteration", I64)

    # Lanes

    def splat(self, value: Value, lanes: int) -> Value:
        """The scalar in every lane; itself if lanes is 0."""
        if not lanes:
            return value
        type = value.type.wide(lanes)
        if value.number is not None and not isinstance(value.number, tuple):
            return constant(value.number, type)
        text = self._operand(value)
        if is_condition(value.type):
            text = f"{text} ? -1 : 0"
        return self._made(self._of_lanes(type, [text]), type)

    def shuffle(self, left: Value, right: Value | None, picks: Sequence[int]) -> Value:
        """Lanes of left and right in any order; right's are numbered after left's."""
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
        known = value.number is None and value.name != "undefined"
        return value.name if known else self._copied(value).name

    def extract(self, vector: Value, lane: int) -> Value:
        text = self._lane_of(self._named(vector), vector.type, lane)
        return self._made(text, vector.type.scalar)

    def insert(self, vector: Value, value: Value, lane: int) -> Value:
        named, inserted = self._named(vector), self._operand(value)
        if is_condition(value.type):
            inserted = f"({inserted} ? -1 : 0)"
        lanes = [
            inserted if one == lane else self._lane_of(named, vector.type, one)
            for one in range(vector.type.lanes)
        ]
        return self._made(self._of_lanes(vector.type, lanes), vector.type)

    # Memory

    def table(self, values: Sequence[Value]) -> Value:
        """Values of one type in the work item's private memory, for `picked`."""
        value = Value(self._name("t"), values[0].type)
        numbers = ", ".join(map(self._operand, values))
        word = self.module.type(value.type)
        self._line(f"const {word} {value.name}[{len(values)}] = {{{numbers}}}")
        return value

    def picked(self, table: Value, number: Value) -> Value:
        """One of the values of a table."""
        type = I64 if table.type == NUMBERS else table.type
        return self._made(f"{table.name}[{self._operand(number)}]", type)

    def item(self) -> Value:
        """The number of the work item."""
        return self._made(self.module.words.item, I64)

    # Groups of work items

    def group(self) -> Value:
        """The number of the work group."""
        return self._made(self.module.groups.group, I64)

    def item_in_group(self) -> Value:
        """The number of the work item in its group."""
        return self._made(self.module.groups.item, I64)

    def local(self, element: str, count: int) -> Value:
        """An array in local memory: the address of its first element."""
        value = Value(self._name("l"), POINTER)
        stored = stored_as(element)
        self.elements[value.name] = stored
        self._local.add(value.name)
        word = self.module.words.unsigned[stored]
        text = self.module.groups.declared.format(element=word, name=value.name, count=count)
        self._line(text)
        return value

    def barrier(self, *, everywhere: bool = False) -> None:
        """Waits for all items of the group, which then see each other's stores.

        Args:
            everywhere: whether they also see stores in buffers, not only in local memory.
        """
        words = self.module.groups
        self._line(words.barrier_everywhere if everywhere else words.barrier)

    # Addresses

    def _pointer(self, pointer: Value, element: str, lanes: int = 0) -> str:
        """An address of elements, or of vectors that are aligned to their size."""
        kind = stored_as(element)
        if not lanes and self.elements.get(pointer.name, "i8") == kind:
            return pointer.name
        word = self.module.pointer(element, lanes, local=pointer.name in self._local)
        return f"(({word}){pointer.name})"

    def offset(self, pointer: Value, index: Value | int, element: str) -> Value:
        """The address of an element."""
        position = constant(index, I64) if isinstance(index, int) else index
        if position.is_integer(0):
            return pointer
        value = Value(self._name("p"), POINTER)
        self.elements[value.name] = stored_as(element)
        local = pointer.name in self._local
        if local:
            self._local.add(value.name)
        # An index may be below zero.
        text = f"{self._pointer(pointer, element)} + {self._signed(position)}"
        self._line(f"{self.module.pointer(element, local=local)}{value.name} = {text}")
        return value

    def load(self, pointer: Value, type: Type, align: int = 0) -> Value:
        """Reads a value; by default the address need only be aligned to an element."""
        aligned = align >= type.lanes * type.bytes
        address = self._pointer(pointer, type.element, type.lanes if aligned else 0)
        text = f"*{address}"
        if not aligned:
            loaded = self.module.vectors(type.lanes).loaded
            element = self.module.words.unsigned[stored_as(type.element)]
            text = loaded.format(lanes=type.lanes, address=address, element=element)
        return self._made(self._from_memory(text, type), type)

    def masked_load(self, pointer: Value, mask: Value, type: Type) -> Value:
        """Reads the lanes where the mask is set; others are zero, without a memory access."""
        result = constant(0, type)
        named = self._named(mask)
        for lane in range(type.lanes):
            address = self.offset(pointer, lane, type.element)
            condition = Value(self._lane_of(named, mask.type, lane), I1)
            result = self.insert(result, self.loaded_if(address, condition, type.scalar), lane)
        return result

    def loaded_if(self, pointer: Value, condition: Value, type: Type) -> Value:
        """Reads a scalar if a condition holds; otherwise zero, without a memory access."""
        loaded = self._from_memory(f"*{self._pointer(pointer, type.element)}", type)
        zero = self._operand(constant(0, type))
        return self._made(f"{self._operand(condition)} ? {loaded} : {zero}", type)

    def prefetch(self, pointer: Value, level: int) -> None:
        """Prefetches an address; languages like C choose the cache themselves."""
        self._line(self.module.words.prefetch.format(address=self._pointer(pointer, "i8")))

    def store(self, value: Value, pointer: Value, align: int = 0) -> None:
        """Writes a value; by default the address need only be aligned to an element."""
        type = value.type
        aligned = align >= type.lanes * type.bytes
        address = self._pointer(pointer, type.element, type.lanes if aligned else 0)
        text = self._operand(value)
        if type.is_float:
            integers = self.module.type(type.of(stored_as(type.element)))
            text = self._same_bits(integers, text)
        if not aligned:
            stored = self.module.vectors(type.lanes).stored
            element = self.module.words.unsigned[stored_as(type.element)]
            self._line(
                stored.format(lanes=type.lanes, value=text, address=address, element=element)
            )
        else:
            self._line(f"*{address} = {text}")

    def _from_memory(self, text: str, type: Type) -> str:
        """Integers read from memory as values of a type."""
        return self._same_bits(self.module.type(type), text) if type.is_float else text
