"""Writing LLVM IR as text: typed values, and functions built block by block.

No more than what the engine needs: instructions on scalars and vectors, structured loops, and
emission into an earlier block, so that what does not change in a loop is computed before it.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final


@dataclass(frozen=True, slots=True)
class Type:
    """An LLVM type: a scalar, or a vector of `lanes` of them.

    Attributes:
        element: `"float"`, `"double"`, `"i1"`, `"i8"`, `"i32"`, `"i64"` or `"ptr"`.
        lanes: 0 for a scalar.
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
        return {"float": 32, "double": 64, "ptr": 64}.get(self.element) or int(self.element[1:])

    def of(self, element: str) -> Type:
        """The type with as many lanes of another element."""
        return Type(element, self.lanes)

    def wide(self, lanes: int) -> Type:
        """The type with another number of lanes."""
        return Type(self.element, lanes)

    @property
    def suffix(self) -> str:
        """The type as it stands in the names of intrinsics."""
        letter = {"float": "f32", "double": "f64", "ptr": "p0"}.get(self.element, self.element)
        return f"v{self.lanes}{letter}" if self.lanes else letter

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.element}>" if self.lanes else self.element


I1, I8, I32, I64 = Type("i1"), Type("i8"), Type("i32"), Type("i64")
FLOAT, DOUBLE, POINTER = Type("float"), Type("double"), Type("ptr")


@dataclass(frozen=True, slots=True)
class Value:
    """An operand: a register, a parameter or a constant."""

    text: str
    type: Type

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


def float_text(value: float, element: str) -> str:
    """A floating constant, exact; for `"float"` rounded to float32."""
    if element == "float":
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def constant(value: float, type: Type) -> Value:
    """A constant; for a vector type the same number in every lane."""
    if type.is_float:
        text = float_text(float(value), type.element)
    elif type.element == "i1":
        text = "true" if value else "false"
    else:
        text = str(int(value))
    if type.lanes:
        text = f"splat ({type.element} {text})"
    return Value(text, type)


def constants(values: Sequence[float], element: str) -> Value:
    """A vector constant with a number for each lane."""
    parts = [str(constant(value, Type(element))) for value in values]
    return Value("<" + ", ".join(parts) + ">", Type(element, len(parts)))


@dataclass(slots=True)
class Block:
    """A straight run of instructions and the jump at its end."""

    label: str
    lines: list[str] = field(default_factory=list[str])
    jump: str = ""


@dataclass(slots=True)
class OpenLoop:
    """A loop whose body is being written.

    Attributes:
        index: counts from the start in steps.
        carried: values that one iteration hands to the next, as this iteration receives them.
        before: the block in front of the loop, where what does not change in it may be computed;
            it is run even where the loop is not.
    """

    index: Value
    carried: tuple[Value, ...]
    before: Block
    entry: Block
    start: Value
    stop: Value
    step: int
    initial: tuple[Value, ...]
    body: Block
    guarded: Block | None


@final
class Module:
    """A unit of compilation: functions, and the intrinsics that they call.

    Args:
        fused: whether the processor multiplies and adds in one rounding.
    """

    def __init__(self, *, fused: bool) -> None:
        self.fused = fused
        self.functions: list[Function] = []
        self._names: set[str] = set()
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
        """Begins a function; its body is written through the returned object."""
        made = Function(self, name, parameters, result, internal=internal, attributes=attributes)
        self.functions.append(made)
        self._names.add(name)
        return made

    def has(self, name: str) -> bool:
        """Whether a function of that name was begun; what several steps call is written once."""
        return name in self._names

    def declare(self, name: str, result: str, parameters: Sequence[Type]) -> None:
        """Declares an external function, once."""
        text = f"declare {result} @{name}({', '.join(map(str, parameters))})"
        self._declared.setdefault(name, text)

    def table(self, name: str, values: Sequence[Value]) -> Value:
        """A constant array in the module; gives a pointer to it."""
        parts = ", ".join(map(str, values))
        self._globals.append(
            f"@{name} = internal unnamed_addr constant [{len(values)} x {values[0].type}] "
            f"[{parts}], align 64"
        )
        return Value(f"@{name}", POINTER)

    def export_functions(self, name: str, functions: Sequence[str]) -> None:
        """A table of the addresses of functions, which others find by its name."""
        entries = ", ".join(f"ptr @{function}" for function in functions)
        self._globals.append(f"@{name} = constant [{len(functions)} x ptr] [{entries}], align 64")

    def table_once(self, name: str, values: Sequence[Value]) -> Value:
        """The same, of that name only once; the name says what is in it."""
        if name not in self._tables:
            self._tables[name] = self.table(name, values)
        return self._tables[name]

    def text(self) -> str:
        """The module in LLVM's assembly language."""
        parts = [*self._globals, *self._declared.values()]
        parts += [function.text() for function in self.functions]
        return "\n".join(parts) + "\n"


@final
class Function:
    """A function being written: instructions go to the current block."""

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
        self.module = module
        self.name = name
        self._result = result
        self._internal = internal
        self._attributes = attributes
        self.parameters = tuple(Value(f"%{label}", type) for label, type in parameters)
        self._count = 0
        self.blocks = [Block("entry")]
        self.block = self.blocks[0]

    # Blocks

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def new_block(self) -> Block:
        """Adds a block and makes it the current one."""
        self.block = Block(self._name("b"))
        self.blocks.append(self.block)
        return self.block

    @contextmanager
    def at(self, block: Block) -> Generator[None]:
        """Instructions go to the end of that block, in front of its jump, for a while."""
        current, self.block = self.block, block
        try:
            yield
        finally:
            self.block = current

    def jump(self, target: Block) -> None:
        self.block.jump = f"br label %{target.label}"

    def branch(self, condition: Value, yes: Block, no: Block) -> None:
        self.block.jump = f"br {condition}, label %{yes.label}, label %{no.label}"

    @contextmanager
    def when(self, condition: Value) -> Generator[Block]:
        """The instructions inside run only where the condition holds; they give no values.

        Gives the block in front, which is always run.
        """
        before = self.block
        inside = self.new_block()
        yield before
        last = self.block
        after = self.new_block()
        before.jump = f"br {condition}, label %{inside.label}, label %{after.label}"
        last.jump = f"br label %{after.label}"

    @contextmanager
    def forever(self) -> Generator[Block]:
        """The instructions inside run again and again, until `leave_when` leaves them.

        Gives the block behind, for `leave_when`.
        """
        before = self.block
        again = self.new_block()
        before.jump = f"br label %{again.label}"
        behind = Block(self._name("b"))
        yield behind
        self.block.jump = f"br label %{again.label}"
        self.blocks.append(behind)
        self.block = behind

    def leave_when(self, condition: Value, behind: Block) -> None:
        """Leaves a loop of `forever` where the condition holds, and goes on where it does not."""
        before = self.block
        following = self.new_block()
        before.jump = f"br {condition}, label %{behind.label}, label %{following.label}"

    def begin_loop(
        self,
        start: Value | int,
        stop: Value | int,
        step: int = 1,
        carried: Sequence[Value] = (),
    ) -> OpenLoop:
        """Begins `for index in range(start, stop, step)`; end it with `end_loop`.

        A loop whose bounds are numbers must run at least once.
        """
        first = constant(start, I64) if isinstance(start, int) else start
        last = constant(stop, I64) if isinstance(stop, int) else stop
        guarded: Block | None = None
        before = self.block
        if not (isinstance(start, int) and isinstance(stop, int)):
            inside = self.compare("slt", first, last)
            guarded = self.block
            # The jump past the loop is known when the loop ends.
            guarded.jump = f"br {inside}, label %{self.new_block().label}, label "
        entry = self.block
        body = self.new_block()
        entry.jump = f"br label %{body.label}"
        index = Value(self._name("%i"), I64)
        received = tuple(Value(self._name("%c"), value.type) for value in carried)
        return OpenLoop(
            index, received, before, entry, first, last, step, tuple(carried), body, guarded
        )

    def end_loop(
        self, loop: OpenLoop, carried: Sequence[Value] = (), going: Value | None = None
    ) -> tuple[Value, ...]:
        """Ends the loop; gives what its last iteration handed on, or the initial values.

        Where there is a condition `going`, the first iteration that finds it false is the last.
        """
        following = self.binary("add", loop.index, constant(loop.step, I64))
        again = self.compare("slt", following, loop.stop)
        if going is not None:
            again = self.binary("and", again, going)
        end = self.block
        after = self.new_block()
        end.jump = f"br {again}, label %{loop.body.label}, label %{after.label}"
        pairs = [(loop.index, loop.start, following)]
        pairs += zip(loop.carried, loop.initial, carried, strict=True)
        phis = [
            f"{received.text} = phi {received.type} [ {initial.text}, %{loop.entry.label} ], "
            f"[ {handed.text}, %{end.label} ]"
            for received, initial, handed in pairs
        ]
        loop.body.lines[:0] = phis
        if loop.guarded is None:
            return tuple(carried)
        loop.guarded.jump += f"%{after.label}"
        results: list[Value] = []
        for initial, handed in zip(loop.initial, carried, strict=True):
            results.append(
                self.instruction(
                    f"phi {handed.type} [ {initial.text}, %{loop.guarded.label} ], "
                    f"[ {handed.text}, %{end.label} ]",
                    handed.type,
                )
            )
        return tuple(results)

    def finish(self, value: Value | None = None) -> None:
        """Returns from the function."""
        self.block.jump = f"ret {value}" if value else "ret void"

    # Instructions

    def instruction(self, text: str, type: Type) -> Value:
        """Any instruction that gives a value."""
        value = Value(self._name("%v"), type)
        self.block.lines.append(f"{value.text} = {text}")
        return value

    def line(self, text: str) -> None:
        """Any instruction that gives none."""
        self.block.lines.append(text)

    def binary(self, operation: str, left: Value, right: Value) -> Value:
        """An operation on two values of one type: `"fadd"`, `"mul"`, `"and"`, `"lshr"`, ..."""
        return self.instruction(f"{operation} {left}, {right.text}", left.type)

    def add(self, left: Value, right: Value) -> Value:
        # Integers alone are written as these numbers.
        if "0" in (left.text, right.text):
            return left if right.text == "0" else right
        return self.binary("fadd" if left.type.is_float else "add", left, right)

    def subtract(self, left: Value, right: Value) -> Value:
        return self.binary("fsub" if left.type.is_float else "sub", left, right)

    def multiply(self, left: Value, right: Value) -> Value:
        if "1" in (left.text, right.text):
            return left if right.text == "1" else right
        return self.binary("fmul" if left.type.is_float else "mul", left, right)

    def divide(self, left: Value, right: Value) -> Value:
        return self.binary("fdiv", left, right)

    def negate(self, value: Value) -> Value:
        if value.type.is_float:
            return self.instruction(f"fneg {value}", value.type)
        return self.binary("sub", constant(0, value.type), value)

    def multiply_add(self, left: Value, right: Value, added: Value) -> Value:
        """Left * right + added, in one rounding where the processor can, in two elsewhere."""
        if self.module.fused:
            return self.intrinsic("fma", left, right, added)
        return self.add(self.multiply(left, right), added)

    def compare(self, relation: str, left: Value, right: Value) -> Value:
        """An i1 for each lane; `relation` as in LLVM: `"slt"`, `"eq"`, `"olt"`, `"uno"`, ..."""
        word = "fcmp" if left.type.is_float else "icmp"
        return self.instruction(f"{word} {relation} {left}, {right.text}", left.type.of("i1"))

    def minimum(self, left: Value, right: Value) -> Value:
        """The smaller of two integers."""
        return self.select(self.compare("slt", left, right), left, right)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        return self.instruction(f"select {condition}, {yes}, {no}", yes.type)

    def convert(self, operation: str, value: Value, element: str) -> Value:
        """`"sitofp"`, `"zext"`, `"bitcast"`, ...: to as many lanes of another element."""
        type = value.type.of(element)
        return self.instruction(f"{operation} {value} to {type}", type)

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """An intrinsic on values of one type that gives that type: `"fma"`, `"sqrt"`, ..."""
        type = operands[0].type
        full = f"llvm.{name}.{type.suffix}"
        self.module.declare(full, str(type), [operand.type for operand in operands])
        return self.call(full, type, *operands)

    def call(self, name: str, type: Type, *operands: Value) -> Value:
        """Calls a function that gives a value; declared or defined in the module."""
        return self.instruction(f"call {type} @{name}({', '.join(map(str, operands))})", type)

    def call_void(self, name: str, *operands: Value) -> None:
        self.line(f"call void @{name}({', '.join(map(str, operands))})")

    def splat(self, value: Value, lanes: int) -> Value:
        """The scalar in every lane; itself if lanes is 0."""
        if not lanes:
            return value
        vector = value.type.wide(lanes)
        if not value.text.startswith(("%", "@")):
            parts = ", ".join([str(value)] * lanes)
            return Value(f"<{parts}>", vector)
        first = self.instruction(f"insertelement {vector} poison, {value}, i64 0", vector)
        return self.shuffle(first, None, [0] * lanes)

    def shuffle(self, left: Value, right: Value | None, picks: Sequence[int]) -> Value:
        """Lanes of left and right (counted on after left's), in any order."""
        mask = ", ".join(f"i32 {pick}" for pick in picks)
        other = f"{left.type} poison" if right is None else str(right)
        mask_text = f"<{len(picks)} x i32> <{mask}>"
        return self.instruction(
            f"shufflevector {left}, {other}, {mask_text}", left.type.wide(len(picks))
        )

    def padded(self, vector: Value, lanes: int, filler: float) -> Value:
        """The vector with so many lanes; those that it does not have hold the filler."""
        own = vector.type.lanes
        if own == lanes:
            return vector
        picks = [min(lane, own) for lane in range(lanes)]
        return self.shuffle(vector, constant(filler, vector.type), picks)

    def bits(self, lanes: Value, element: str) -> Value:
        """An i1 for each lane as the lowest bits of an integer that has no fewer, the rest zero."""
        type = Type(f"i{lanes.type.lanes}")
        packed = self.instruction(f"bitcast {lanes} to {type}", type)
        return packed if type.element == element else self.convert("zext", packed, element)

    def lanes_of(self, bits: Value, lanes: int) -> Value:
        """The lowest bits of an integer that has no fewer, as an i1 for each lane."""
        type = Type(f"i{lanes}")
        low = bits if bits.type == type else self.convert("trunc", bits, type.element)
        return self.instruction(f"bitcast {low} to {Type('i1', lanes)}", Type("i1", lanes))

    def any_of(self, lanes: Value) -> Value:
        """Whether the integer in any of the lanes is not zero."""
        packed = self.bits(self.compare("ne", lanes, constant(0, lanes.type)), "i64")
        return self.compare("ne", packed, constant(0, I64))

    def all_bits(self, lanes: Value) -> Value:
        """The bits that are set in the integers of all lanes."""
        name, scalar = f"llvm.vector.reduce.and.{lanes.type.suffix}", lanes.type.scalar
        self.module.declare(name, str(scalar), [lanes.type])
        return self.call(name, scalar, lanes)

    def extract(self, vector: Value, lane: int) -> Value:
        return self.instruction(f"extractelement {vector}, i64 {lane}", vector.type.scalar)

    def insert(self, vector: Value, value: Value, lane: int) -> Value:
        return self.instruction(f"insertelement {vector}, {value}, i64 {lane}", vector.type)

    # Memory

    def allocate(self, count: int, element: str) -> Value:
        """Room for some elements, until the function returns; at its beginning only."""
        return self.instruction(f"alloca [{count} x {element}], align 64", POINTER)

    def offset(self, pointer: Value, index: Value | int, element: str) -> Value:
        """The address of an element."""
        position = constant(index, I64) if isinstance(index, int) else index
        if position.text == "0":
            return pointer
        return self.instruction(f"getelementptr {element}, {pointer}, {position}", POINTER)

    def load(self, pointer: Value, type: Type, align: int = 0) -> Value:
        """Reads a value; by default it need be aligned no more than its elements are."""
        return self.instruction(f"load {type}, {pointer}, align {align or _bytes(type)}", type)

    def store(self, value: Value, pointer: Value, align: int = 0) -> None:
        self.line(f"store {value}, {pointer}, align {align or _bytes(value.type)}")

    def fetch(self, pointer: Value, level: int) -> None:
        """Has a cache fetch what lies there, the first or the second one; anywhere is allowed."""
        self.module.declare("llvm.prefetch.p0", "void", [POINTER, I32, I32, I32])
        read, data = constant(0, I32), constant(1, I32)
        self.call_void("llvm.prefetch.p0", pointer, read, constant(4 - level, I32), data)

    def text(self) -> str:
        """The function in LLVM's assembly language."""
        parameters = ", ".join(map(str, self.parameters))
        scope = "internal " if self._internal else ""
        head = f"define {scope}{self._result or 'void'} @{self.name}({parameters})"
        lines = [f"{head} {self._attributes} {{"]
        for block in self.blocks:
            lines.append(f"{block.label}:")
            lines += ["  " + line for line in block.lines]
            lines.append("  " + block.jump)
        lines.append("}")
        return "\n".join(lines)


def _bytes(type: Type) -> int:
    """The natural alignment of an element."""
    return max(type.bits // 8, 1)
