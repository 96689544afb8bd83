"""Writing languages like C as text, through the protocol of builders.

A table of words (`words.py`) holds the differences between the languages. Each instruction becomes
a `const` variable, so that the text reads like a list of instructions; compilers optimize it well.
Conditions of vectors are integers of 32 bits, all bits set or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import final

from lamina.codegen import builder
from lamina.codegen.builder import BasicBlock, OpenLoop
from lamina.codegen.c_expressions import Expressions
from lamina.codegen.c_sharing import FunctionText, with_shared
from lamina.codegen.c_text import Types, indented, stored_as
from lamina.codegen.iterations import Iterations
from lamina.codegen.values import (
    I1,
    I32,
    I64,
    NUMBERS,
    POINTER,
    TABLE,
    Integer,
    Type,
    Value,
    as_value,
    constant,
    undefined,
)
from lamina.codegen.words import Words

# The type of tables of addresses.
_ADDRESSES = "Addresses"
# The last parameters of a phase.
_GROUP, _ITEM, _LOCAL = "group", "item", "local"
# Arrays in local memory are aligned to the largest vector.
_LOCAL_ALIGNMENT = 16


@final
class Module(Types, builder.Module):
    """A source file: functions, and kernels that the host calls.

    Args:
        words: the words of the language.
        fused: whether the device multiplies and adds in one rounding.
        doubles: whether it has floats of 64 bits.
        exact_division: whether divisions and square roots of floats of 32 bits are correctly
            rounded. If not, and if the device has floats of 64 bits, they are computed in 64 bits
            and rounded, which gives the correctly rounded result.
        rounds_to_bfloat16: whether the device does that, if the language has a word for it.
        most_iterations: the limit of iterations in a call of a function; None if there is none.
    """

    def __init__(
        self,
        words: Words,
        *,
        fused: bool,
        doubles: bool = True,
        exact_division: bool = True,
        rounds_to_bfloat16: bool = False,
        most_iterations: int | None = None,
    ) -> None:
        super().__init__(words, fused=fused, widens_division=doubles and not exact_division)
        self.doubles = doubles
        self.halves = words.half is not None
        self.half_arithmetic = words.half is not None and words.half.operated is not None
        self.bfloat16 = words.bfloat16 if rounds_to_bfloat16 else ""
        self.most_iterations = most_iterations
        # The most addresses of a table that is passed to functions.
        self.addresses = 0
        self.functions: list[Function] = []
        self._arrays: dict[str, str] = {}
        self.names = set()

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
        head = FunctionText(qualifiers, self.type(result) if result else "void", name, tuple(words))
        return Function(self, parameters, head, is_called=True)

    def kernel(
        self,
        name: str,
        buffers: Sequence[tuple[str, str]],
        numbers: Sequence[tuple[str, Type]],
        *,
        group: int = 0,
        many_registers: bool = False,
    ) -> Function:
        """Begins a function that the host calls.

        Its buffers are pairs of a name and an element, and come before the numbers. A group has
        `group` work items; 0 if it may have any size. With `many_registers` these keep many values
        in registers.
        """
        addresses = [(self.pointer(element), label) for label, element in buffers]
        is_placed = bool(self.words.placed)
        suffix = "_block" if is_placed else ""
        words = [f"{address}{label}{suffix}" for address, label in addresses]
        offset = self.type(I32)
        words += [f"{offset} {label}_offset" for _, label in addresses if is_placed]
        words += [f"{self.type(type)} {label}" for label, type in numbers]
        parameters = [*((label, POINTER) for label, _ in buffers), *numbers]
        kernel = self.words.kernel
        if group:
            is_large = many_registers and bool(self.groups.large_kernel)
            kernel = self.groups.large_kernel if is_large else self.groups.kernel
            kernel = kernel.format(size=group)
        qualifiers, _, result = kernel.rpartition(" ")
        head = FunctionText(qualifiers, result, name, tuple(words))
        made = Function(self, parameters, head, is_called=False)
        made.elements.update({label: stored_as(element) for label, element in buffers})
        for address, label in addresses if is_placed else ():
            made.block.lines.append(f"{self.words.placed.format(address=address, name=label)};")
        if self.words.begun:
            made.call_void(self.words.begun)
        return made

    def phase(
        self, name: str, buffers: Sequence[tuple[str, str]], numbers: Sequence[tuple[str, Type]]
    ) -> Function:
        """Begins a function like a kernel, with which a group of another kernel does its work.

        After the buffers and the numbers it takes the number of the group, the number of the item
        in it, and the group's share of the local memory.
        """
        group_parameters = ((_GROUP, I64), (_ITEM, I64), (_LOCAL, POINTER))
        parameters = [*((label, POINTER) for label, _ in buffers), *numbers, *group_parameters]
        words = tuple(f"{self._parameter(type)}{label}" for label, type in parameters)
        head = FunctionText(self.groups.phase, "void", name, words)
        return Function(self, parameters, head, is_called=True, is_phase=True)

    def keep_kernels(self, names: Collection[str]) -> None:
        """Removes the kernels with other names."""
        self.functions = [code for code in self.functions if code.is_called or code.name in names]

    def inlined(self, function: Callable[..., Value], type: Type, count: int) -> str:
        """Writes a function of some operands of one type, once; returns its name."""
        name = f"{function.__name__}_{type.suffix}"
        if not self.has(name):
            parameters = [(f"x{number}", type) for number in range(count)]
            words = tuple(f"{self.type(type)} {label}" for label, _ in parameters)
            head = FunctionText(self.words.inlined, self.type(type), name, words)
            code = Function(self, parameters, head, is_called=True)
            code.finish(function(code, *code.parameters))
        return name

    def _parameter(self, type: Type) -> str:
        """The type of a parameter, with a star or blank at its end."""
        if type == POINTER:
            return self.pointer("i8")
        if type == TABLE:
            return f"const {_ADDRESSES} *"
        return self.words.numbers if type == NUMBERS else f"{self.type(type)} "

    def table_once(self, name: str, values: Sequence[int]) -> Value:
        suffix = self.words.integer_suffix["i64"]
        numbers = ", ".join(f"{value}{suffix}" for value in values)
        text = self.words.array.format(name=name, count=len(values), numbers=numbers)
        self._arrays.setdefault(name, text)
        return Value(name, NUMBERS)

    def text(self) -> str:
        """The whole file.

        Raises:
            EngineError: if a function has more iterations than allowed.
        """
        if self.most_iterations is not None:
            for function in self.functions:
                function.iterations.require(self.most_iterations, function.name)
        called = [callee.written() for callee in self.functions if callee.is_called]
        if self.words.apart:
            called = with_shared(called, self.words)
        kernels = [kernel.written() for kernel in self.functions if not kernel.is_called]
        head = [*(self.words.double_head if self.has_doubles else ())]
        if self.has_halves and self.words.half is not None:
            head += self.words.half.head
        head += [*self.words.head, *self._arrays.values()]
        if self.addresses:
            buffers = f"{self.pointer('i8')}buffers[{self.addresses}];"
            number = f"{self.words.unsigned['i64']} iteration;"
            head.append(f"typedef struct {{ {buffers} {number} }} {_ADDRESSES};")
        # Prototypes, because a function may be begun while its caller is written.
        head += [f"{callee.head};" for callee in called]
        texts = [f"{text.head}{text.body}" for text in (*called, *kernels)]
        return "\n\n".join(["\n".join(head), *texts]) + "\n"


@final
class Function(Expressions):
    """A function of a module being written: instructions go to the current block.

    Attributes:
        local_bytes: the local memory that a phase needs for each group.
    """

    def __init__(
        self,
        module: Module,
        parameters: Sequence[tuple[str, Type]],
        head: FunctionText,
        *,
        is_called: bool,
        is_phase: bool = False,
    ) -> None:
        arguments = [Value(label, type) for label, type in parameters]
        super().__init__(module, head.name, arguments)
        self._module = module
        module.functions.append(self)
        module.names.add(self.name)
        # The element to which each address points; other addresses point to bytes.
        self.elements: dict[str, str] = {}
        # The addresses in local memory.
        self._local: set[str] = set()
        self.head = head
        self.is_called = is_called
        self.iterations = Iterations()
        self._is_phase = is_phase
        self.local_bytes = 0

    @property
    def module(self) -> Module:
        return self._module

    def applied(self, function: Callable[..., Value], *operands: Value) -> Value:
        if not self.module.words.inlined:
            return super().applied(function, *operands)
        type = operands[0].type
        return self.call(self.module.inlined(function, type, len(operands)), type, *operands)

    # Structure

    def _new_block(self, *lines: str) -> BasicBlock:
        self.block = BasicBlock("", list(lines))
        self.blocks.append(self.block)
        return self.block

    @contextmanager
    def _braces(self, head: str) -> Generator[BasicBlock]:
        before = self.block
        self._new_block(f"{head} {{")
        self._new_block()
        yield before
        self._new_block("}")
        self._new_block()

    def when(self, condition: Value) -> AbstractContextManager[BasicBlock]:
        return self._braces(f"if ({self._operand(condition)})")

    def otherwise(self) -> AbstractContextManager[BasicBlock]:
        """Begins code that is run if the condition of the `when` that ends here does not hold."""
        return self._braces("else")

    def begin_loop(
        self,
        start: Integer,
        stop: Integer,
        step: int = 1,
        carried: Sequence[Value] = (),
        *,
        most: int | None = None,
        rolled: bool = False,
    ) -> OpenLoop:
        """Begins a loop as `Builder.begin_loop`.

        Compilers must not unroll a `rolled` one, whose body is long already.
        """
        first, last = (as_value(edge, I64, self) for edge in (start, stop))
        self.iterations.begin(first, last, step, most)
        before = self.block
        received: list[Value] = []
        for value in carried:
            received.append(self._value("c", value.type))
            self._line(
                f"{self.module.type(value.type)} {received[-1].name} = {self._operand(value)}"
            )
        index = self._value("i", first.type)
        signed = self.module.signed(first.type)
        sums_floats = any(value.type.is_float for value in carried)
        entry = self._new_block(
            *(self.module.words.in_order if sums_floats else ()),
            *(self.module.words.rolled if rolled else ()),
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
        names = {value.name for value in loop.carried}
        # Carried values are assigned at the same time: a new value may be the old one of another.
        handed = [
            self._copied(value) if value.name in names and value != variable else value
            for variable, value in zip(loop.carried, carried, strict=True)
        ]
        for variable, value in zip(loop.carried, handed, strict=True):
            if variable != value:
                self._line(f"{variable.name} = {self._operand(value)}")
        if going is not None:
            self._line(f"if (!{self._operand(going)}) break")
        self._new_block("}")
        self._new_block()
        self.iterations.end()
        return loop.carried

    def finish(self, value: Value) -> None:
        self._line(f"return {self._operand(value)}")

    def finish_several(self, values: Sequence[Value]) -> None:
        """Returns several values from the function."""
        for number, value in enumerate(values):
            self._line(f"*result{number} = {self._operand(value)}")

    def written(self) -> FunctionText:
        """The text of this function, after its last instruction."""
        return replace(self.head, body=indented(self.blocks))

    # Tables of addresses

    def declare_addresses(self) -> Value:
        """A table of addresses, for `set_addresses`."""
        name = self._name("a")
        self._line(f"{_ADDRESSES} {name}")
        return Value(f"&{name}", TABLE)

    def set_addresses(self, table: Value, buffers: Sequence[Value], iteration: Value) -> None:
        """Sets the addresses of a table, and the number of its iteration."""
        self.module.addresses = max(self.module.addresses, len(buffers), 1)
        name = table.name.removeprefix("&")
        for number, buffer in enumerate(buffers):
            self._line(f"{name}.buffers[{number}] = {self._pointer(buffer, 'i8')}")
        self._line(f"{name}.iteration = {self._operand(iteration)}")

    def address_in(self, table: Value, number: int) -> Value:
        """One of the addresses of a table."""
        self.module.addresses = max(self.module.addresses, number + 1)
        value = self._value("p", POINTER)
        self._line(f"{self.module.pointer('i8')}{value.name} = {table.name}->buffers[{number}]")
        return value

    def iteration_in(self, table: Value) -> Value:
        """The number of the iteration in a table."""
        return self._made(f"{table.name}->iteration", I64)

    # Memory

    def picked(self, table: Value, number: Value) -> Value:
        """One of the values of a table."""
        type = I64 if table.type == NUMBERS else table.type
        return self._made(f"{table.name}[{self._operand(number)}]", type)

    def item(self) -> Value:
        """The number of the work item; in a phase without groups, the number of the group."""
        return self._made(_GROUP if self._is_phase else self.module.words.item, I64)

    # Groups of work items

    def group(self) -> Value:
        """The number of the work group."""
        return self._made(_GROUP if self._is_phase else self.module.groups.group, I64)

    def item_in_group(self) -> Value:
        """The number of the work item in its group."""
        return self._made(_ITEM if self._is_phase else self.module.groups.item, I64)

    def local(self, element: str, count: int) -> Value:
        """An array in local memory: the address of its first element."""
        if self._is_phase:
            offset = -(-self.local_bytes // _LOCAL_ALIGNMENT) * _LOCAL_ALIGNMENT
            self.local_bytes = offset + count * Type(element).bytes
            return self.launched(element, offset, _LOCAL)
        return self._local_array(self.module.groups.declared, element, count=count)

    def launched(self, element: str, offset: int, memory: str = "") -> Value:
        """A local array, `offset` bytes into `memory`, by default the memory that launches add."""
        groups = self.module.groups
        memory = memory or groups.memory
        return self._local_array(groups.launched, element, memory=memory, offset=offset)

    def _local_array(self, declaration: str, element: str, **fields: int | str) -> Value:
        value = self._value("l", POINTER)
        stored = stored_as(element)
        self.elements[value.name] = stored
        self._local.add(value.name)
        word = self.module.words.unsigned[stored]
        self._line(declaration.format(element=word, name=value.name, **fields))
        return value

    def barrier(self, *, everywhere: bool = False) -> None:
        """Waits for all items of the group, which then see each other's stores in local memory.

        With `everywhere` they also see stores in buffers.
        """
        words = self.module.groups
        self.iterations.add_barrier()
        if self._is_phase:
            self.phase_barrier()
        else:
            self._line(words.barrier_everywhere if everywhere else words.barrier)

    def phase_barrier(self) -> None:
        """Waits for all items of a group that runs phases, in whatever place each of them is."""
        self._line(self.module.groups.phase_barrier)

    # Addresses

    def is_given(self, buffer: Value) -> Value:
        """Whether a parameter is the address of a buffer; otherwise it is a null pointer."""
        return self._made(f"{buffer.name} != 0", I1)

    def _pointer(self, pointer: Value, element: str, lanes: int = 0) -> str:
        """An address of elements, or of vectors that are aligned to their size."""
        kind = stored_as(element)
        if not lanes and self.elements.get(pointer.name, "i8") == kind:
            return pointer.name
        word = self.module.pointer(element, lanes, local=pointer.name in self._local)
        return f"(({word}){pointer.name})"

    def offset(self, pointer: Value, index: Integer, element: str) -> Value:
        position = constant(index, I64) if isinstance(index, int) else index
        if position.is_integer(0):
            return pointer
        value = self._value("p", POINTER)
        self.elements[value.name] = stored_as(element)
        local = pointer.name in self._local
        if local:
            self._local.add(value.name)
        # An index may be below zero.
        text = f"{self._pointer(pointer, element)} + {self._signed(position)}"
        self._line(f"{self.module.pointer(element, local=local)}{value.name} = {text}")
        return value

    def load(self, pointer: Value, type: Type, align: int = 0) -> Value:
        aligned = align >= type.lanes * type.bytes
        address = self._pointer(pointer, type.element, type.lanes if aligned else 0)
        text = f"*{address}"
        if not aligned:
            loaded = self.module.vectors(type.lanes).loaded
            element = self.module.words.unsigned[stored_as(type.element)]
            text = loaded.format(lanes=type.lanes, address=address, element=element)
        return self._made(self._from_memory(text, type), type)

    def masked_load(self, pointer: Value, mask: Value, type: Type) -> Value:
        result = undefined(type)
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
        self._line(self.module.words.prefetch.format(address=self._pointer(pointer, "i8")))

    def store(self, value: Integer, pointer: Value, align: int = 0) -> None:
        value = as_value(value, I64)
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
