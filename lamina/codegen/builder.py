"""The base of builders: structured code, instruction by instruction, in some language.

Code generation through a builder is written once for all languages: scalar expressions,
elementary functions, random numbers, reductions. Builders write LLVM IR (`llvm.py`) or C (`c.py`).

Operations have LLVM's names; these sets are closed:

- `binary`: add, sub, mul, udiv, urem, and, or, xor, shl, lshr, ashr of integers;
  fadd, fsub, fmul, fdiv of floats, each rounded by itself.
- `compare`: eq, ne, slt, sle, sgt, sge, ult, ule, ugt, uge of integers; oeq, one, olt, ole, ogt,
  oge, ord, une, uno of floats (o: false for NaN, u: true).
- `convert`: trunc, zext, sext, fptrunc, fpext, sitofp, uitofp, fptosi.sat, fptoui.sat (saturating,
  0 for NaN), bitcast.
- `intrinsic`: fma (rounded once), sqrt, fabs, copysign.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from lamina.codegen.values import (
    I64,
    Integer,
    Operand,
    Type,
    Value,
    alike,
    as_value,
    constant,
    constants,
)
from lamina.errors import InternalError


@dataclass(slots=True)
class BasicBlock:
    """A basic block: a straight run of instructions, and the jump at its end in LLVM IR."""

    label: str
    lines: list[str] = field(default_factory=list[str])
    jump: str = ""


@dataclass(slots=True)
class OpenLoop:
    """A loop whose body is being written.

    Attributes:
        index: the induction variable.
        carried: the loop-carried values that an iteration receives.
        before: the block before the loop, for loop-invariant code; it runs even if the loop has
            no iterations.
        entry: the block from which the loop is entered.
        start, stop, step: the range of the index.
        initial: the loop-carried values that the first iteration receives.
        body: the first block of the body.
        guarded: the block that jumps past the loop if it has no iterations; None if it always has
            iterations.
    """

    index: Value
    carried: tuple[Value, ...]
    before: BasicBlock
    entry: BasicBlock
    start: Value
    stop: Value
    step: int
    initial: tuple[Value, ...]
    body: BasicBlock
    guarded: BasicBlock | None


class Module(ABC):
    """A unit of compilation: functions that call each other.

    Attributes:
        fused: whether `multiply_add` rounds once.
        doubles: whether there are floats of 64 bits.
        halves: whether `from_half` and `to_half` can be used.
        half_arithmetic: whether `half_binary` can be used.
        bfloat16: the function that rounds floats to bfloat16, as i16; "" if there is none.
        names: the names of the functions that were begun.
    """

    fused: bool
    doubles: bool
    halves: bool
    half_arithmetic: bool
    bfloat16: str
    names: set[str]

    @abstractmethod
    def function(
        self, name: str, parameters: Sequence[tuple[str, Type]], *, result: Type | None = None
    ) -> Builder:
        """Begins a function; its body is written through the returned object."""

    def has(self, name: str) -> bool:
        """Whether a function of that name was begun; shared functions are written once."""
        return name in self.names

    @abstractmethod
    def table_once(self, name: str, values: Sequence[int]) -> Value:
        """A constant array of 64-bit integers, made once for each name; for `Builder.picked`.

        Tables of one name must have the same values.
        """


class Builder(ABC):
    """A function being written: instructions go to the current block.

    Attributes:
        name: the name of the function.
        parameters: the parameters of the function.
    """

    name: str
    parameters: tuple[Value, ...]

    @property
    @abstractmethod
    def module(self) -> Module:
        """The module of the function."""

    # Structure

    @abstractmethod
    def at(self, block: BasicBlock) -> AbstractContextManager[None]:
        """Inside, instructions go to the end of that block, before its jump."""

    @abstractmethod
    def when(self, condition: Value) -> AbstractContextManager[BasicBlock]:
        """The instructions inside run only if the condition holds; they return no values.

        Yields the block before them, which always runs.
        """

    @abstractmethod
    def begin_loop(
        self,
        start: Integer,
        stop: Integer,
        step: int = 1,
        carried: Sequence[Value] = (),
        *,
        most: int | None = None,
    ) -> OpenLoop:
        """Begins `for index in range(start, stop, step)`; end it with `end_loop`.

        A loop whose bounds are numbers must run at least once. For other loops, `most` is the
        largest number of iterations, if it is known.
        """

    @abstractmethod
    def end_loop(
        self, loop: OpenLoop, carried: Sequence[Value] = (), going: Value | None = None
    ) -> tuple[Value, ...]:
        """Ends the loop; returns the carried values of its last iteration, or the initial ones.

        With a condition `going`, the loop ends after the first iteration where it is false.
        """

    @contextmanager
    def loop(
        self, start: Integer, stop: Integer, step: int = 1, *, most: int | None = None
    ) -> Generator[OpenLoop]:
        """A loop without loop-carried values, as `begin_loop` begins it."""
        opened = self.begin_loop(start, stop, step, most=most)
        yield opened
        self.end_loop(opened)

    @abstractmethod
    def finish(self, value: Value) -> None:
        """Returns a value from the function, at its end; other functions return nothing."""

    # Instructions

    def constant(self, number: float, type: Type = I64) -> Value:
        """A constant, for operators; for a vector type the same number in every lane."""
        return constant(number, type, self)

    @abstractmethod
    def binary(self, operation: str, left: Operand, right: Operand) -> Value:
        """An operation on two values of one type."""

    @abstractmethod
    def negate(self, value: Value) -> Value:
        """The value with the opposite sign."""

    @abstractmethod
    def compare(self, relation: str, left: Operand, right: Operand) -> Value:
        """An i1 for each lane."""

    @abstractmethod
    def select(self, condition: Value, yes: Operand, no: Operand) -> Value:
        """One of two values, in each lane."""

    @abstractmethod
    def convert(self, operation: str, value: Value, element: str) -> Value:
        """Converts each lane to another element."""

    @abstractmethod
    def from_half(self, value: Value) -> Value:
        """The float with the value of a float16, whose bits are an i16."""

    @abstractmethod
    def to_half(self, value: Value) -> Value:
        """The bits of the float16 that is nearest to a float, as an i16."""

    def half_binary(self, operation: str, left: Value, right: Value) -> Value:
        """The bits of `"fadd"`, `"fsub"` or `"fmul"` of two float16, rounded once: all are i16."""
        raise InternalError("this language does not compute with float16")

    # Pairs of bfloat16, for processors that have instructions for them. A pair is an i32; the first
    # number is in the lower half.

    def multiply_add_pairs(self, left: Value, right: Value, added: Value) -> Value:
        """For each lane, a float plus the products of both numbers of two pairs.

        Each product may be rounded with the sum. Subnormal numbers count as zero.
        """
        raise _without_pairs()

    def rounded_to_bfloat16(self, first: Value, second: Value) -> Value:
        """Floats as bfloat16, i16: the lanes of `first`, then of `second`.

        Subnormal numbers become zero.
        """
        raise _without_pairs()

    def as_pairs(self, numbers: Value) -> Value:
        """Neighbouring lanes of i16 as pairs, i32."""
        raise _without_pairs()

    # Tile registers, for processors with AMX.

    def tile_instruction(self, operation: str, *operands: Integer) -> None:
        """An instruction on tile registers.

        `"configure"` (address), `"release"`, `"zero"` (tile), `"load"` and `"store"` (tile,
        address, bytes between rows), `"multiply"` (tile of sums, left tile, right tile).
        """
        raise InternalError("this language has no instructions on tiles")

    @abstractmethod
    def intrinsic(self, name: str, *operands: Value) -> Value:
        """An intrinsic whose operands and result have one type."""

    def applied(self, function: Callable[..., Value], *operands: Value) -> Value:
        """The result of a function that writes instructions.

        Its operands and its result have one type. A language may write the function once.
        """
        return function(self, *operands)

    @abstractmethod
    def call(self, name: str, type: Type, *operands: Integer) -> Value:
        """Calls a function of the module that returns a value; a number is an i64."""

    @abstractmethod
    def call_void(self, name: str, *operands: Integer) -> None:
        """Calls a function of the module that returns nothing; a number is an i64."""

    # Lanes

    @abstractmethod
    def splat(self, value: Value, lanes: int) -> Value:
        """The scalar in every lane; itself if lanes is 0."""

    @abstractmethod
    def shuffle(self, left: Value, right: Value | None, picks: Sequence[int]) -> Value:
        """Lanes of left and right in any order; right's are numbered after left's."""

    @abstractmethod
    def extract(self, vector: Value, lane: int) -> Value:
        """One lane."""

    @abstractmethod
    def insert(self, vector: Value, value: Value, lane: int) -> Value:
        """The vector with another value in one lane."""

    # Memory

    @abstractmethod
    def offset(self, pointer: Value, index: Integer, element: str) -> Value:
        """The address of an element."""

    @abstractmethod
    def load(self, pointer: Value, type: Type, align: int = 0) -> Value:
        """Reads a value; by default the address need only be aligned to an element."""

    @abstractmethod
    def masked_load(self, pointer: Value, mask: Value, type: Type) -> Value:
        """Reads the lanes where the mask is set; others are zero, without a memory access."""

    @abstractmethod
    def store(self, value: Integer, pointer: Value, align: int = 0) -> None:
        """Writes a value; by default the address need only be aligned to an element.

        A number is an i64.
        """

    @abstractmethod
    def picked(self, table: Value, number: Value) -> Value:
        """One of the values of a constant array of 64-bit integers."""

    @abstractmethod
    def prefetch(self, pointer: Value, level: int) -> None:
        """Prefetches an address into the cache of level 1 or 2; any address is allowed."""

    # Instructions composed of these; a language may have shorter ones.

    def add(self, left: Operand, right: Operand) -> Value:
        left, right = alike(left, right)
        if left.is_integer(0) or right.is_integer(0):
            return left if right.is_integer(0) else right
        return self.binary("fadd" if left.type.is_float else "add", left, right)

    def subtract(self, left: Operand, right: Operand) -> Value:
        left, right = alike(left, right)
        return self.binary("fsub" if left.type.is_float else "sub", left, right)

    def multiply(self, left: Operand, right: Operand) -> Value:
        left, right = alike(left, right)
        if left.is_integer(1) or right.is_integer(1):
            return left if right.is_integer(1) else right
        return self.binary("fmul" if left.type.is_float else "mul", left, right)

    def divide(self, left: Operand, right: Operand) -> Value:
        return self.binary("fdiv", left, right)

    def multiply_add(self, left: Value, right: Operand, added: Operand) -> Value:
        """Left * right + added, in one rounding if the module is fused, otherwise in two."""
        if self.module.fused:
            right, added = as_value(right, left.type), as_value(added, left.type)
            return self.intrinsic("fma", left, right, added)
        return self.add(self.multiply(left, right), added)

    def minimum(self, left: Value, right: Operand) -> Value:
        """The smaller of two integers."""
        return self.select(self.compare("slt", left, right), left, right)

    def padded(self, vector: Value, lanes: int, filler: float) -> Value:
        """The vector with `lanes` lanes; the added ones hold the filler."""
        count = vector.type.lanes
        if count == lanes:
            return vector
        picks = [min(lane, count) for lane in range(lanes)]
        return self.shuffle(vector, constant(filler, vector.type), picks)

    def bits(self, lanes: Value, element: str) -> Value:
        """The i1 lanes as the lowest bits of an integer of at least as many bits, others zero."""
        count = lanes.type.lanes
        masks = constants([1 << lane for lane in range(count)], "i32")
        word = self.reduced("or", self.select(lanes, masks, constant(0, masks.type)))
        return word if element == "i32" else self.convert("zext", word, element)

    def lanes_of(self, bits: Value, lanes: int) -> Value:
        """The lowest bits of an integer of at least `lanes` bits, as i1 lanes."""
        word = bits if bits.type.bits == 32 else self.convert("trunc", bits, "i32")
        masks = constants([1 << lane for lane in range(lanes)], "i32")
        kept = self.binary("and", self.splat(word, lanes), masks)
        return self.compare("ne", kept, constant(0, masks.type))

    def any_of(self, lanes: Value) -> Value:
        """Whether the integer in any of the lanes is not zero."""
        return self.compare("ne", self.reduced("or", lanes), constant(0, lanes.type.scalar))

    def all_bits(self, lanes: Value) -> Value:
        """The bitwise and of the integers in all lanes."""
        return self.reduced("and", lanes)

    def reduced(self, operation: str, vector: Value) -> Value:
        """All lanes combined, of a vector whose number of lanes is a power of two."""
        lanes = vector.type.lanes
        while lanes > 2:
            lanes //= 2
            low = self.shuffle(vector, None, range(lanes))
            high = self.shuffle(vector, None, range(lanes, 2 * lanes))
            vector = self.binary(operation, low, high)
        return self.binary(operation, self.extract(vector, 0), self.extract(vector, 1))


def _without_pairs() -> InternalError:
    return InternalError("this language has no instructions on pairs of bfloat16")


class BlockBuilder(Builder):
    """A builder that writes lines into blocks, from `entry` on."""

    def __init__(self, name: str, parameters: Sequence[Value], entry: BasicBlock) -> None:
        self.name = name
        self.parameters = tuple(Value(value.name, value.type, code=self) for value in parameters)
        self.blocks = [entry]
        self.block = entry
        self._count = 0

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _value(self, prefix: str, type: Type) -> Value:
        """A new value of this function."""
        return Value(self._name(prefix), type, code=self)

    @contextmanager
    def at(self, block: BasicBlock) -> Generator[None]:
        current, self.block = self.block, block
        try:
            yield
        finally:
            self.block = current
