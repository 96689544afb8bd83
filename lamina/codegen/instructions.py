"""The base of builders: the current block, and instructions composed of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from lamina.codegen.builder import BasicBlock
from lamina.codegen.values import Value, constant, constants
from lamina.errors import InternalError


class Composed(ABC):
    """Instructions that are composed of others, the same for all languages."""

    # Instructions that each language implements

    @property
    @abstractmethod
    def _is_fused(self) -> bool:
        """Whether a multiplication and an addition are rounded once."""

    @abstractmethod
    def binary(self, operation: str, left: Value, right: Value) -> Value:
        """An operation on two values of one type."""

    @abstractmethod
    def compare(self, relation: str, left: Value, right: Value) -> Value:
        """An i1 for each lane."""

    @abstractmethod
    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """One of two values, in each lane."""

    @abstractmethod
    def intrinsic(self, name: str, *operands: Value) -> Value:
        """An intrinsic whose operands and result have one type."""

    @abstractmethod
    def shuffle(self, left: Value, right: Value | None, picks: Sequence[int]) -> Value:
        """Lanes of left and right in any order; right's are numbered after left's."""

    @abstractmethod
    def convert(self, operation: str, value: Value, element: str) -> Value:
        """Converts each lane to another element."""

    @abstractmethod
    def splat(self, value: Value, lanes: int) -> Value:
        """The scalar in every lane; itself if lanes is 0."""

    @abstractmethod
    def extract(self, vector: Value, lane: int) -> Value:
        """One lane."""

    # Instructions composed of these

    def add(self, left: Value, right: Value) -> Value:
        if left.is_integer(0) or right.is_integer(0):
            return left if right.is_integer(0) else right
        return self.binary("fadd" if left.type.is_float else "add", left, right)

    def subtract(self, left: Value, right: Value) -> Value:
        return self.binary("fsub" if left.type.is_float else "sub", left, right)

    def multiply(self, left: Value, right: Value) -> Value:
        if left.is_integer(1) or right.is_integer(1):
            return left if right.is_integer(1) else right
        return self.binary("fmul" if left.type.is_float else "mul", left, right)

    def divide(self, left: Value, right: Value) -> Value:
        return self.binary("fdiv", left, right)

    def multiply_add(self, left: Value, right: Value, added: Value) -> Value:
        """Left * right + added, in one rounding if the module is fused, otherwise in two."""
        if self._is_fused:
            return self.intrinsic("fma", left, right, added)
        return self.add(self.multiply(left, right), added)

    def multiply_add_pairs(self, left: Value, right: Value, added: Value) -> Value:
        """For each lane, a float plus the products of both numbers of two pairs."""
        raise _without_pairs()

    def rounded_to_bfloat16(self, first: Value, second: Value) -> Value:
        """Floats as bfloat16, i16: the lanes of `first`, then those of `second`."""
        raise _without_pairs()

    def as_pairs(self, numbers: Value) -> Value:
        """Neighbouring lanes of i16 as pairs, i32."""
        raise _without_pairs()

    def half_binary(self, operation: str, left: Value, right: Value) -> Value:
        """The bits of a sum, difference or product of two float16, rounded once."""
        raise InternalError("this language does not compute with float16")

    def tile_instruction(self, operation: str, *operands: Value) -> None:
        """An instruction on tile registers, for processors with AMX."""
        raise _without_tiles()

    def minimum(self, left: Value, right: Value) -> Value:
        """The smaller of two integers."""
        return self.select(self.compare("slt", left, right), left, right)

    def padded(self, vector: Value, lanes: int, filler: float) -> Value:
        """The vector with `lanes` lanes; the added ones hold the filler."""
        own = vector.type.lanes
        if own == lanes:
            return vector
        picks = [min(lane, own) for lane in range(lanes)]
        return self.shuffle(vector, constant(filler, vector.type), picks)

    def bits(self, lanes: Value, element: str) -> Value:
        """The i1 lanes as the lowest bits of an integer of at least as many bits, others zero."""
        count = lanes.type.lanes
        own = constants([1 << lane for lane in range(count)], "i32")
        word = self.reduced("or", self.select(lanes, own, constant(0, own.type)))
        return word if element == "i32" else self.convert("zext", word, element)

    def lanes_of(self, bits: Value, lanes: int) -> Value:
        """The lowest bits of an integer of at least `lanes` bits, as i1 lanes."""
        word = bits if bits.type.bits == 32 else self.convert("trunc", bits, "i32")
        own = constants([1 << lane for lane in range(lanes)], "i32")
        kept = self.binary("and", self.splat(word, lanes), own)
        return self.compare("ne", kept, constant(0, own.type))

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


def _without_tiles() -> InternalError:
    return InternalError("this language has no instructions on tiles")


class Instructions(Composed):
    """A function being written: instructions go to the current block.

    Args:
        name: of the function.
        parameters: its parameters.
        entry: its first block.
    """

    def __init__(self, name: str, parameters: Sequence[Value], entry: BasicBlock) -> None:
        self.name = name
        self.parameters = tuple(parameters)
        self.blocks = [entry]
        self.block = entry
        self._count = 0

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    @contextmanager
    def at(self, block: BasicBlock) -> Generator[None]:
        """Inside, instructions go to the end of that block, before its jump."""
        current, self.block = self.block, block
        try:
            yield
        finally:
            self.block = current
