"""What builders share: where instructions go, and those that are made of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from lamina.codegen.builder import Block
from lamina.codegen.values import Value, constant


class Instructions(ABC):
    """A function being written: instructions go to the current block.

    Args:
        name: of the function.
        parameters: its parameters.
        entry: its first block.
    """

    def __init__(self, name: str, parameters: Sequence[Value], entry: Block) -> None:
        self.name = name
        self.parameters = tuple(parameters)
        self.blocks = [entry]
        self.block = entry
        self._count = 0

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    @contextmanager
    def at(self, block: Block) -> Generator[None]:
        """Instructions go to the end of that block, in front of its jump, for a while."""
        current, self.block = self.block, block
        try:
            yield
        finally:
            self.block = current

    # What a language writes in its own way

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
        """A function of values of one type that gives that type."""

    @abstractmethod
    def shuffle(self, left: Value, right: Value | None, picks: Sequence[int]) -> Value:
        """Lanes of left and right (counted on after left's), in any order."""

    # What is made of that

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
        """Left * right + added, in one rounding where the module is fused, in two elsewhere."""
        if self._is_fused:
            return self.intrinsic("fma", left, right, added)
        return self.add(self.multiply(left, right), added)

    def minimum(self, left: Value, right: Value) -> Value:
        """The smaller of two integers."""
        return self.select(self.compare("slt", left, right), left, right)

    def padded(self, vector: Value, lanes: int, filler: float) -> Value:
        """The vector with so many lanes; those that it does not have hold the filler."""
        own = vector.type.lanes
        if own == lanes:
            return vector
        picks = [min(lane, own) for lane in range(lanes)]
        return self.shuffle(vector, constant(filler, vector.type), picks)
