"""Writing LLVM IR as text: typed values, and functions built block by block.

It has instructions on scalars and vectors, structured loops, and emission into an earlier block,
which hoists loop-invariant code.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import final

from lamina.codegen import builder
from lamina.codegen.builder import BasicBlock, BlockBuilder, OpenLoop
from lamina.codegen.values import (
    I8,
    I32,
    I64,
    NUMBERS,
    POINTER,
    TABLE,
    Integer,
    Operand,
    Type,
    Value,
    alike,
    as_value,
    constant,
    constants,
    single,
    undefined,
)


def type_text(type: Type) -> str:
    """A type as LLVM writes it."""
    if type in (TABLE, NUMBERS):
        return "ptr"
    return f"<{type.lanes} x {type.element}>" if type.lanes else type.element


def operand(value: Value) -> str:
    """A value without its type."""
    if value.number is None:
        return "poison" if value.name == "undefined" else value.name
    scalar = value.type.scalar
    if isinstance(value.number, tuple):
        lanes = ", ".join(f"{scalar.element} {_number(n, scalar)}" for n in value.number)
        return f"<{lanes}>"
    number = _number(value.number, scalar)
    return f"splat ({scalar.element} {number})" if value.type.lanes else number


def typed(value: Value) -> str:
    """A value after its type."""
    return f"{type_text(value.type)} {operand(value)}"


def _listed(operands: Sequence[Integer]) -> str:
    """The operands of a call."""
    return ", ".join(typed(as_value(value, I64)) for value in operands)


def _number(value: float, type: Type) -> str:
    """An exact number; for `"float"` rounded to float32."""
    if type.element == "i1":
        return "true" if value else "false"
    if not type.is_float:
        return str(value)
    if type.element == "float":
        value = single(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _shuffled(left: Value, right: Value | None, picks: Sequence[int]) -> str:
    """The instruction that takes lanes of left and right."""
    mask = ", ".join(f"i32 {pick}" for pick in picks)
    other = typed(undefined(left.type) if right is None else right)
    return f"shufflevector {typed(left)}, {other}, <{len(picks)} x i32> <{mask}>"


# LLVM's names of the instructions on tiles, and the types of their operands.
_TILE_INSTRUCTIONS: Mapping[str, tuple[str, tuple[Type, ...]]] = {
    "configure": ("ldtilecfg", (POINTER,)),
    "release": ("tilerelease", ()),
    "zero": ("tilezero", (I8,)),
    "load": ("tileloadd64", (I8, POINTER, I64)),
    "store": ("tilestored64", (I8, POINTER, I64)),
    "multiply": ("tdpbf16ps", (I8, I8, I8)),
}
# The least and the most lanes of instructions on pairs of bfloat16.
_LEAST_PAIRS, _MOST_PAIRS = 4, 16


@final
class Module(builder.Module):
    """A unit of compilation: functions, and the intrinsics that they call.

    Args:
        fused: whether the processor multiplies and adds in one rounding.
        doubles: whether functions may compute in floats of 64 bits.
        halves: whether the processor converts floats of 16 bits.
    """

    def __init__(self, *, fused: bool, doubles: bool = True, halves: bool = False) -> None:
        self.fused = fused
        self.doubles = doubles
        self.halves = halves
        self.half_arithmetic, self.bfloat16 = False, ""
        self.functions: list[Function] = []
        self.names = set()
        self._declared: dict[str, str] = {}
        self._globals: list[str] = []
        self._tables: dict[str, Value] = {}

    def function(
        self,
        name: str,
        parameters: Sequence[tuple[str, Type]],
        *,
        result: Type | None = None,
        internal: bool = True,
        attributes: str = "nounwind",
    ) -> Function:
        return Function(self, name, parameters, result, internal=internal, attributes=attributes)

    def declare(self, name: str, result: str, parameters: Sequence[Type]) -> None:
        """Declares an external function, once."""
        text = f"declare {result} @{name}({', '.join(map(type_text, parameters))})"
        self._declared.setdefault(name, text)

    def export_functions(self, name: str, functions: Sequence[str]) -> None:
        """An exported table, of this name, of the addresses of functions."""
        entries = ", ".join(f"ptr @{function}" for function in functions)
        self._globals.append(f"@{name} = constant [{len(functions)} x ptr] [{entries}], align 64")

    def table_once(self, name: str, values: Sequence[int]) -> Value:
        if name not in self._tables:
            kind, listed = f"[{len(values)} x i64]", ", ".join(f"i64 {value}" for value in values)
            text = f"@{name} = internal unnamed_addr constant {kind} [{listed}], align 64"
            self._globals.append(text)
            self._tables[name] = Value(f"@{name}", NUMBERS)
        return self._tables[name]

    def text(self) -> str:
        """The module in LLVM's assembly language."""
        texts = [*self._globals, *self._declared.values()]
        texts += [function.text() for function in self.functions]
        return "\n".join(texts) + "\n"


@final
class Function(BlockBuilder):
    """A function of a module being written: instructions go to the current block."""

    def __init__(
        self,
        module: Module,
        name: str,
        parameters: Sequence[tuple[str, Type]],
        result: Type | None,
        *,
        internal: bool,
        attributes: str,
    ) -> None:
        arguments = [Value(f"%{label}", type) for label, type in parameters]
        super().__init__(name, arguments, BasicBlock("entry"))
        self._module = module
        module.functions.append(self)
        module.names.add(name)
        self._result = result
        self._internal = internal
        self._attributes = attributes

    @property
    def module(self) -> Module:
        return self._module

    # Blocks

    def new_block(self) -> BasicBlock:
        """Adds a block and makes it the current one."""
        self.block = BasicBlock(self._name("b"))
        self.blocks.append(self.block)
        return self.block

    def jump(self, target: BasicBlock) -> None:
        self.block.jump = f"br label %{target.label}"

    @contextmanager
    def when(self, condition: Value) -> Generator[BasicBlock]:
        before = self.block
        inside = self.new_block()
        yield before
        last = self.block
        after = self.new_block()
        before.jump = f"br {typed(condition)}, label %{inside.label}, label %{after.label}"
        last.jump = f"br label %{after.label}"

    @contextmanager
    def forever(self) -> Generator[BasicBlock]:
        """The instructions inside repeat until `leave_when` leaves them.

        Yields the block after the loop, for `leave_when`.
        """
        before = self.block
        again = self.new_block()
        before.jump = f"br label %{again.label}"
        after = BasicBlock(self._name("b"))
        yield after
        self.block.jump = f"br label %{again.label}"
        self.blocks.append(after)
        self.block = after

    def leave_when(self, condition: Value, after: BasicBlock) -> None:
        """Leaves a loop of `forever` if the condition holds; otherwise code continues here."""
        before = self.block
        following = self.new_block()
        before.jump = f"br {typed(condition)}, label %{after.label}, label %{following.label}"

    def begin_loop(
        self,
        start: Integer,
        stop: Integer,
        step: int = 1,
        carried: Sequence[Value] = (),
        *,
        most: int | None = None,
    ) -> OpenLoop:
        first, last = (as_value(edge, I64, self) for edge in (start, stop))
        guarded: BasicBlock | None = None
        before = self.block
        if not (isinstance(start, int) and isinstance(stop, int)):
            inside = self.compare("slt", first, last)
            guarded = self.block
            # The target of the jump past the loop is known when the loop ends.
            guarded.jump = f"br {typed(inside)}, label %{self.new_block().label}, label "
        entry = self.block
        body = self.new_block()
        entry.jump = f"br label %{body.label}"
        index = self._value("%i", first.type)
        received = tuple(self._value("%c", value.type) for value in carried)
        return OpenLoop(
            index, received, before, entry, first, last, step, tuple(carried), body, guarded
        )

    def end_loop(
        self, loop: OpenLoop, carried: Sequence[Value] = (), going: Value | None = None
    ) -> tuple[Value, ...]:
        following = self.binary("add", loop.index, constant(loop.step, loop.index.type))
        again = self.compare("slt", following, loop.stop)
        if going is not None:
            again = self.binary("and", again, going)
        end = self.block
        after = self.new_block()
        end.jump = f"br {typed(again)}, label %{loop.body.label}, label %{after.label}"
        received = (loop.index, *loop.carried)
        first, later = (loop.start, *loop.initial), (following, *carried)
        self._receive(loop.body, received, (loop.entry, first), (end, later))
        if loop.guarded is None:
            return tuple(carried)
        loop.guarded.jump += f"%{after.label}"
        results = tuple(self._value("%v", value.type) for value in carried)
        self._receive(after, results, (loop.guarded, loop.initial), (end, carried))
        return results

    def _receive(
        self,
        block: BasicBlock,
        received: Sequence[Value],
        *sources: tuple[BasicBlock, Sequence[Value]],
    ) -> None:
        """Names the values with which a block begins, for each block from which it is entered.

        Vectors are padded to a power of two of lanes. LLVM 22.1 passes others of several registers
        from block to block lane by lane.
        """
        phis: list[str] = []
        narrowed: list[str] = []
        for value, *handed in zip(received, *(values for _, values in sources), strict=True):
            lanes = value.type.lanes
            wide = value
            if lanes & (lanes - 1):
                wide = self._value("%w", value.type.wide(1 << lanes.bit_length()))
                narrowed.append(f"{value.name} = {_shuffled(wide, None, range(lanes))}")
            operands: list[str] = []
            for (source, _), incoming in zip(sources, handed, strict=True):
                with self.at(source):
                    padded = self.padded(incoming, wide.type.lanes, 0)
                operands.append(f"[ {operand(padded)}, %{source.label} ]")
            phis.append(f"{wide.name} = phi {type_text(wide.type)} {', '.join(operands)}")
        block.lines[:0] = phis + narrowed

    def finish(self, value: Value) -> None:
        self.block.jump = f"ret {typed(value)}"

    # Instructions

    def instruction(self, text: str, type: Type) -> Value:
        """Any instruction with a result."""
        value = self._value("%v", type)
        self.block.lines.append(f"{value.name} = {text}")
        return value

    def line(self, text: str) -> None:
        """Any instruction without a result."""
        self.block.lines.append(text)

    def binary(self, operation: str, left: Operand, right: Operand) -> Value:
        left, right = alike(left, right)
        return self.instruction(f"{operation} {typed(left)}, {operand(right)}", left.type)

    def negate(self, value: Value) -> Value:
        if value.type.is_float:
            return self.instruction(f"fneg {typed(value)}", value.type)
        return self.binary("sub", constant(0, value.type), value)

    def compare(self, relation: str, left: Operand, right: Operand) -> Value:
        left, right = alike(left, right)
        word = "fcmp" if left.type.is_float else "icmp"
        return self.instruction(
            f"{word} {relation} {typed(left)}, {operand(right)}", left.type.of("i1")
        )

    def select(self, condition: Value, yes: Operand, no: Operand) -> Value:
        yes, no = alike(yes, no)
        return self.instruction(f"select {typed(condition)}, {typed(yes)}, {typed(no)}", yes.type)

    def convert(self, operation: str, value: Value, element: str) -> Value:
        type = value.type.of(element)
        if operation.endswith(".sat"):
            return self._called(f"{operation}.{type.suffix}.{value.type.suffix}", type, value)
        return self.instruction(f"{operation} {typed(value)} to {type_text(type)}", type)

    def from_half(self, value: Value) -> Value:
        return self.convert("fpext", self.convert("bitcast", value, "half"), "float")

    def to_half(self, value: Value) -> Value:
        return self.convert("bitcast", self.convert("fptrunc", value, "half"), "i16")

    def multiply_add_pairs(self, left: Value, right: Value, added: Value) -> Value:
        lanes = added.type.lanes
        wide = max(lanes, _LEAST_PAIRS)
        if lanes < wide:
            left, right, added = (self.padded(vector, wide, 0) for vector in (left, right, added))
        operands = [self._bitcast(vector, Type("bfloat", 2 * wide)) for vector in (right, left)]
        sums = self._called(f"x86.avx512bf16.dpbf16ps.{32 * wide}", added.type, added, *operands)
        return sums if lanes == wide else self.shuffle(sums, None, range(lanes))

    def rounded_to_bfloat16(self, first: Value, second: Value) -> Value:
        lanes = first.type.lanes
        if lanes > _MOST_PAIRS:
            first, second = (self._rounded_in_two_parts(value) for value in (first, second))
            return self.shuffle(first, second, range(2 * lanes))
        wide = max(1 << (lanes - 1).bit_length(), _LEAST_PAIRS)
        first, second = (self.padded(value, wide, 0) for value in (first, second))
        bits = Type("i16", 2 * wide)
        name = f"x86.avx512bf16.cvtne2ps2bf16.{32 * wide}"
        halves = self._bitcast(self._called(name, bits.of("bfloat"), second, first), bits)
        if lanes == wide:
            return halves
        return self.shuffle(halves, None, [*range(lanes), *range(wide, wide + lanes)])

    def _rounded_in_two_parts(self, value: Value) -> Value:
        """Floats of up to twice as many lanes as an instruction takes, as bfloat16."""
        lanes = value.type.lanes
        padded = self.padded(value, 2 * _MOST_PAIRS, 0)
        low = self.shuffle(padded, None, range(_MOST_PAIRS))
        high = self.shuffle(padded, None, range(_MOST_PAIRS, 2 * _MOST_PAIRS))
        return self.shuffle(self.rounded_to_bfloat16(low, high), None, range(lanes))

    def as_pairs(self, numbers: Value) -> Value:
        return self._bitcast(numbers, Type("i32", numbers.type.lanes // 2))

    def tile_instruction(self, operation: str, *operands: Integer) -> None:
        instruction, types = _TILE_INSTRUCTIONS[operation]
        name = f"llvm.x86.{instruction}"
        self.module.declare(name, "void", types)
        self.call_void(name, *map(as_value, operands, types))

    def _bitcast(self, value: Value, type: Type) -> Value:
        return self.instruction(f"bitcast {typed(value)} to {type_text(type)}", type)

    def intrinsic(self, name: str, *operands: Value) -> Value:
        type = operands[0].type
        return self._called(f"{name}.{type.suffix}", type, *operands)

    def _called(self, name: str, type: Type, *operands: Value) -> Value:
        """The result of a function of LLVM itself."""
        self.module.declare(f"llvm.{name}", type_text(type), [value.type for value in operands])
        return self.call(f"llvm.{name}", type, *operands)

    def call(self, name: str, type: Type, *operands: Integer) -> Value:
        return self.instruction(f"call {type_text(type)} @{name}({_listed(operands)})", type)

    def call_void(self, name: str, *operands: Integer) -> None:
        self.line(f"call void @{name}({_listed(operands)})")

    def splat(self, value: Value, lanes: int) -> Value:
        if not lanes:
            return value
        vector = value.type.wide(lanes)
        if value.number is not None and not isinstance(value.number, tuple):
            return replace(constants([value.number] * lanes, value.type.element), code=self)
        first = self.instruction(
            f"insertelement {type_text(vector)} poison, {typed(value)}, i64 0", vector
        )
        return self.shuffle(first, None, [0] * lanes)

    def shuffle(self, left: Value, right: Value | None, picks: Sequence[int]) -> Value:
        return self.instruction(_shuffled(left, right, picks), left.type.wide(len(picks)))

    def bits(self, lanes: Value, element: str) -> Value:
        type = Type(f"i{lanes.type.lanes}")
        packed = self._bitcast(lanes, type)
        return packed if type.element == element else self.convert("zext", packed, element)

    def lanes_of(self, bits: Value, lanes: int) -> Value:
        type = Type(f"i{lanes}")
        low = bits if bits.type == type else self.convert("trunc", bits, type.element)
        return self._bitcast(low, Type("i1", lanes))

    def any_of(self, lanes: Value) -> Value:
        packed = self.bits(self.compare("ne", lanes, constant(0, lanes.type)), "i64")
        return self.compare("ne", packed, constant(0, I64))

    def all_bits(self, lanes: Value) -> Value:
        return self._called(f"vector.reduce.and.{lanes.type.suffix}", lanes.type.scalar, lanes)

    def extract(self, vector: Value, lane: int) -> Value:
        return self.instruction(f"extractelement {typed(vector)}, i64 {lane}", vector.type.scalar)

    def insert(self, vector: Value, value: Value, lane: int) -> Value:
        return self.instruction(
            f"insertelement {typed(vector)}, {typed(value)}, i64 {lane}", vector.type
        )

    # Memory

    def allocate(self, count: int, element: str) -> Value:
        """Stack memory for some elements; allowed only at the beginning of the function."""
        return self.instruction(f"alloca [{count} x {element}], align 64", POINTER)

    def offset(self, pointer: Value, index: Integer, element: str) -> Value:
        position = constant(index, I64) if isinstance(index, int) else index
        if position.is_integer(0):
            return pointer
        return self.instruction(
            f"getelementptr {element}, {typed(pointer)}, {typed(position)}", POINTER
        )

    def load(self, pointer: Value, type: Type, align: int = 0) -> Value:
        return self.instruction(
            f"load {type_text(type)}, {typed(pointer)}, align {align or type.bytes}", type
        )

    def masked_load(self, pointer: Value, mask: Value, type: Type) -> Value:
        operands = (pointer, constant(type.bytes, I32), mask, constant(0, type))
        return self._called(f"masked.load.{type.suffix}.p0", type, *operands)

    def store(self, value: Integer, pointer: Value, align: int = 0) -> None:
        value = as_value(value, I64)
        self.line(f"store {typed(value)}, {typed(pointer)}, align {align or value.type.bytes}")

    def picked(self, table: Value, number: Value) -> Value:
        return self.load(self.offset(table, number, "i64"), I64)

    def prefetch(self, pointer: Value, level: int) -> None:
        self.module.declare("llvm.prefetch.p0", "void", [POINTER, I32, I32, I32])
        read, data = constant(0, I32), constant(1, I32)
        self.call_void("llvm.prefetch.p0", pointer, read, constant(4 - level, I32), data)

    def text(self) -> str:
        """The function in LLVM's assembly language."""
        parameters = ", ".join(map(typed, self.parameters))
        scope = "internal " if self._internal else ""
        result = type_text(self._result) if self._result else "void"
        head = f"define {scope}{result} @{self.name}({parameters})"
        lines = [f"{head} {self._attributes} {{"]
        for block in self.blocks:
            lines.append(f"{block.label}:")
            lines += ["  " + line for line in block.lines]
            lines.append("  " + (block.jump or "ret void"))
        lines.append("}")
        return "\n".join(lines)
