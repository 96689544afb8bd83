"""A builder for languages whose vectors have few sizes: wider and odd vectors are several values.

OpenCL C has vectors of 2, 4, 8 and 16 lanes. A vector of 10 lanes becomes one of 8 and one of 2, a
vector of 32 lanes two of 16, and each instruction an instruction for each piece. The pieces are
written by the builder in `c.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial, reduce
from typing import final

from lamina.codegen import c
from lamina.codegen.builder import BasicBlock, Builder, Module, OpenLoop
from lamina.codegen.values import I64, Integer, Operand, Type, Value, alike, as_value

# The lanes of pieces, the widest first; a piece of one lane is a scalar.
_SIZES = (16, 8, 4, 2, 1)


@cache
def pieces_of(type: Type) -> tuple[Type, ...]:
    """The types of a value's pieces; the type itself if the language has it."""
    if not type.lanes:
        return (type,)
    pieces: list[Type] = []
    left = type.lanes
    for size in _SIZES:
        count, left = divmod(left, size)
        pieces += [type.wide(size if size > 1 else 0)] * count
    return tuple(pieces)


def _placed(type: Type) -> Iterator[tuple[int, Type]]:
    """The number of the first lane, and the type, of each piece."""
    first = 0
    for piece in pieces_of(type):
        yield first, piece
        first += max(piece.lanes, 1)


@cache
def _is_whole(type: Type) -> bool:
    """Whether the language has the type."""
    return pieces_of(type) == (type,)


@final
class PieceModule(Module):
    """A unit of compilation whose functions may have vectors of any number of lanes.

    The functions are written in `inner`.
    """

    def __init__(self, inner: c.Module) -> None:
        self.inner, self.names = inner, inner.names
        self.fused, self.doubles = inner.fused, inner.doubles
        self.halves, self.half_arithmetic = inner.halves, inner.half_arithmetic
        self.bfloat16 = inner.bfloat16

    def function(
        self, name: str, parameters: Sequence[tuple[str, Type]], *, result: Type | None = None
    ) -> PieceFunction:
        split = [
            (f"{label}_{number}" if not _is_whole(type) else label, piece)
            for label, type in parameters
            for number, piece in enumerate(pieces_of(type))
        ]
        if result is None or _is_whole(result):
            inner = self.inner.function(name, split, result=result)
        else:
            inner = self.inner.function(name, split, results=pieces_of(result))
        return PieceFunction(self, inner, parameters)

    def table_once(self, name: str, values: Sequence[int]) -> Value:
        return self.inner.table_once(name, values)


@final
class PieceFunction(Builder):
    """A function being written; vectors have any number of lanes, and `inner` writes the pieces."""

    def __init__(
        self, module: PieceModule, inner: c.Function, parameters: Sequence[tuple[str, Type]]
    ) -> None:
        self._module = module
        self.inner = inner
        self.name = inner.name
        # The pieces of each value that has several, by its name.
        self._pieces: dict[str, list[Value]] = {}
        self._count = 0
        self._open: list[OpenLoop] = []
        pieces = list(inner.parameters)
        self.parameters = tuple(
            self._joined([pieces.pop(0) for _ in pieces_of(type)], type) for _, type in parameters
        )

    @property
    def module(self) -> PieceModule:
        return self._module

    # Pieces

    def _joined(self, pieces: Sequence[Value], type: Type) -> Value:
        """The value that consists of pieces."""
        if _is_whole(type):
            (piece,) = pieces
            return piece
        self._count += 1
        value = Value(f"w{self._count}", type, code=self)
        self._pieces[value.name] = list(pieces)
        return value

    def _split(self, value: Value) -> list[Value]:
        """The pieces of a value."""
        if _is_whole(value.type):
            return [value]
        if value.number is None and value.name != "undefined":
            return self._pieces[value.name]
        pieces: list[Value] = []
        for first, type in _placed(value.type):
            number = value.number
            if isinstance(number, tuple):
                number = number[first : first + type.lanes] if type.lanes else number[first]
            name = "undefined" if number is None else repr(number)
            pieces.append(Value(name, type, number))
        return pieces

    def _flat(self, values: Sequence[Integer]) -> list[Value]:
        return [piece for value in values for piece in self._split(as_value(value, I64))]

    def _lane(self, value: Value, lane: int) -> tuple[Value, int]:
        """The piece that holds a lane, and the lane's number in it."""
        for piece in self._split(value):
            size = max(piece.type.lanes, 1)
            if lane < size:
                return piece, lane
            lane -= size
        raise AssertionError(f"{value} has no such lane")

    # Structure

    def at(self, block: BasicBlock) -> AbstractContextManager[None]:
        return self.inner.at(block)

    def when(self, condition: Value) -> AbstractContextManager[BasicBlock]:
        return self.inner.when(condition)

    def begin_loop(
        self,
        start: Integer,
        stop: Integer,
        step: int = 1,
        carried: Sequence[Value] = (),
        *,
        most: int | None = None,
    ) -> OpenLoop:
        opened = self.inner.begin_loop(start, stop, step, self._flat(carried), most=most)
        self._open.append(opened)
        received = list(opened.carried)
        values = tuple(
            self._joined([received.pop(0) for _ in pieces_of(value.type)], value.type)
            for value in carried
        )
        return replace(opened, carried=values, initial=tuple(carried))

    def end_loop(
        self, loop: OpenLoop, carried: Sequence[Value] = (), going: Value | None = None
    ) -> tuple[Value, ...]:
        self.inner.end_loop(self._open.pop(), self._flat(carried), going)
        return loop.carried

    def finish(self, value: Value) -> None:
        if _is_whole(value.type):
            self.inner.finish(value)
        else:
            self.inner.finish_several(self._split(value))

    # Instructions

    def _each(self, operands: Sequence[Value], type: Type, write: Callable[..., Value]) -> Value:
        """An instruction on each piece of operands with equal lanes."""
        pieces = [write(*parts) for parts in zip(*map(self._split, operands), strict=True)]
        return self._joined(pieces, type)

    def binary(self, operation: str, left: Operand, right: Operand) -> Value:
        operands = alike(left, right)
        return self._each(operands, operands[0].type, partial(self.inner.binary, operation))

    def negate(self, value: Value) -> Value:
        return self._each([value], value.type, self.inner.negate)

    def compare(self, relation: str, left: Operand, right: Operand) -> Value:
        operands = alike(left, right)
        type = operands[0].type.of("i1")
        return self._each(operands, type, partial(self.inner.compare, relation))

    def select(self, condition: Value, yes: Operand, no: Operand) -> Value:
        yes, no = alike(yes, no)
        if condition.type.lanes:
            return self._each([condition, yes, no], yes.type, self.inner.select)
        return self._each([yes, no], yes.type, partial(self.inner.select, condition))

    def convert(self, operation: str, value: Value, element: str) -> Value:
        type = value.type.of(element)
        pieces = [self.inner.convert(operation, piece, element) for piece in self._split(value)]
        return self._joined(pieces, type)

    def from_half(self, value: Value) -> Value:
        return self._each([value], value.type.of("float"), self.inner.from_half)

    def to_half(self, value: Value) -> Value:
        return self._each([value], value.type.of("i16"), self.inner.to_half)

    def half_binary(self, operation: str, left: Value, right: Value) -> Value:
        return self._each([left, right], left.type, partial(self.inner.half_binary, operation))

    def intrinsic(self, name: str, *operands: Value) -> Value:
        return self._each(operands, operands[0].type, partial(self.inner.intrinsic, name))

    def call(self, name: str, type: Type, *operands: Integer) -> Value:
        flat = self._flat(operands)
        if _is_whole(type):
            return self.inner.call(name, type, *flat)
        return self._joined(self.inner.call_several(name, pieces_of(type), flat), type)

    def call_void(self, name: str, *operands: Integer) -> None:
        self.inner.call_void(name, *self._flat(operands))

    # Lanes

    def splat(self, value: Value, lanes: int) -> Value:
        type = value.type.wide(lanes)
        return self._joined(
            [self.inner.splat(value, piece.lanes) for piece in pieces_of(type)], type
        )

    def shuffle(self, left: Value, right: Value | None, picks: Sequence[int]) -> Value:
        lanes = left.type.lanes
        sources = (left, right if right is not None else left)
        picked = [self._lane(sources[pick >= lanes], pick % lanes) for pick in picks]
        type = left.type.wide(len(picks))
        pieces = [
            self._assembled(piece, picked[first : first + piece.lanes])
            if piece.lanes
            else self._scalar(*picked[first])
            for first, piece in _placed(type)
        ]
        return self._joined(pieces, type)

    def _assembled(self, type: Type, lanes: Sequence[tuple[Value, int]]) -> Value:
        """A vector of lanes of pieces; a piece itself, if it has just these lanes."""
        value = lanes[0][0]
        if value.type == type and list(lanes) == [(value, lane) for lane in range(type.lanes)]:
            return value
        return self.inner.assembled(lanes)

    def _scalar(self, piece: Value, lane: int) -> Value:
        return self.inner.extract(piece, lane) if piece.type.lanes else piece

    def extract(self, vector: Value, lane: int) -> Value:
        return self._scalar(*self._lane(vector, lane))

    def insert(self, vector: Value, value: Value, lane: int) -> Value:
        kept: list[Value] = []
        for piece, (first, type) in zip(self._split(vector), _placed(vector.type), strict=True):
            if first <= lane < first + max(type.lanes, 1):
                piece = self.inner.insert(piece, value, lane - first) if type.lanes else value
            kept.append(piece)
        return self._joined(kept, vector.type)

    def bits(self, lanes: Value, element: str) -> Value:
        word: Value | None = None
        for piece, (first, type) in zip(self._split(lanes), _placed(lanes.type), strict=True):
            if type.lanes:
                piece_bits = self.inner.bits(piece, element)
            else:
                piece_bits = self.inner.convert("zext", piece, element)
            piece_bits = piece_bits << first if first else piece_bits
            word = piece_bits if word is None else word | piece_bits
        assert word is not None
        return word

    def lanes_of(self, bits: Value, lanes: int) -> Value:
        type = Type("i1", lanes)
        pieces: list[Value] = []
        for first, piece in _placed(type):
            piece_bits = bits >> first if first else bits
            if piece.lanes:
                pieces.append(self.inner.lanes_of(piece_bits, piece.lanes))
            else:
                pieces.append(self.inner.convert("trunc", piece_bits, "i1"))
        return self._joined(pieces, type)

    def reduced(self, operation: str, vector: Value) -> Value:
        pieces = (
            self.inner.reduced(operation, piece) if piece.type.lanes else piece
            for piece in self._split(vector)
        )
        return reduce(partial(self.inner.binary, operation), pieces)

    # Memory

    def offset(self, pointer: Value, index: Integer, element: str) -> Value:
        return self.inner.offset(pointer, index, element)

    def _addresses(self, pointer: Value, type: Type) -> list[tuple[Value, Type]]:
        """The address and type of each piece of a value in memory."""
        return [
            (self.inner.offset(pointer, first, type.element), piece)
            for first, piece in _placed(type)
        ]

    def load(self, pointer: Value, type: Type, align: int = 0) -> Value:
        if _is_whole(type):
            return self.inner.load(pointer, type, align)
        pieces = [self.inner.load(*address) for address in self._addresses(pointer, type)]
        return self._joined(pieces, type)

    def masked_load(self, pointer: Value, mask: Value, type: Type) -> Value:
        pieces: list[Value] = []
        for (address, piece), piece_mask in zip(
            self._addresses(pointer, type), self._split(mask), strict=True
        ):
            if piece.lanes:
                pieces.append(self.inner.masked_load(address, piece_mask, piece))
            else:
                pieces.append(self.inner.loaded_if(address, piece_mask, piece))
        return self._joined(pieces, type)

    def store(self, value: Integer, pointer: Value, align: int = 0) -> None:
        value = as_value(value, I64)
        if _is_whole(value.type):
            self.inner.store(value, pointer, align)
            return
        addresses = self._addresses(pointer, value.type)
        for (address, _), piece in zip(addresses, self._split(value), strict=True):
            self.inner.store(piece, address)

    def picked(self, table: Value, number: Value) -> Value:
        return self.inner.picked(table, number)

    def prefetch(self, pointer: Value, level: int) -> None:
        self.inner.prefetch(pointer, level)
