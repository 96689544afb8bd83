"""The transforms of Winograd's algorithms, unrolled: constant matrices times vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder
from lamina.codegen.filtering import Transform
from lamina.codegen.values import I64, Type, Value, constant
from lamina.engines.simd.emit.m_tiles import address


def _transformed(code: Builder, matrix: Transform, values: Sequence[Value]) -> list[Value]:
    """A matrix times a vector. Rows that differ only in the sign of one half share both halves."""
    results: list[Value] = []
    for number, row in enumerate(matrix):
        if len(results) > number:
            continue
        following = matrix[number + 1] if number + 1 < len(matrix) else ()
        even = tuple(value if index % 2 == 0 else 0.0 for index, value in enumerate(row))
        odd = tuple(value - half for value, half in zip(row, even, strict=True))
        mirrored = tuple(half - other for half, other in zip(even, odd, strict=True))
        swapped = tuple(-value for value in mirrored)
        if any(even) and any(odd) and following in (mirrored, swapped):
            left, right = _combined(code, even, values), _combined(code, odd, values)
            results.append(code.add(left, right))
            ordered = (left, right) if following == mirrored else (right, left)
            results.append(code.subtract(*ordered))
        else:
            results.append(_combined(code, row, values))
    return results


def _combined(code: Builder, factors: Sequence[float], values: Sequence[Value]) -> Value:
    """A sum of products with constant factors; terms with factor 1 come first."""
    terms = [term for term in zip(factors, values, strict=True) if term[0]]
    terms.sort(key=lambda term: term[0] != 1)
    (factor, total), *rest = terms
    if factor != 1:
        total = code.multiply(total, constant(factor, total.type))
    for factor, value in rest:
        if factor == 1:
            total = code.add(total, value)
        elif factor == -1:
            total = code.subtract(total, value)
        else:
            total = code.multiply_add(value, constant(factor, value.type), total)
    return total


def along_both(code: Builder, matrix: Transform, square: Square) -> list[list[Value]]:
    """A transform along both axes of a square; gives the rows of the result."""
    size = range(len(matrix[0]))
    columns = [
        _transformed(code, matrix, [square.number(row, column) for row in size]) for column in size
    ]
    return [_transformed(code, matrix, row) for row in zip(*columns, strict=True)]


class Square(Protocol):
    """A square of values or vectors, which are loaded or computed when they are needed."""

    def number(self, row: int, column: int) -> Value:
        """The value in a row and a column."""
        ...


@frozen_dataclass
class ListedSquare:
    """A square of values that exist already.

    Attributes:
        numbers: the values, row by row.
        width: the values of a row.
    """

    numbers: Sequence[Value]
    width: int

    def number(self, row: int, column: int) -> Value:
        """The value in a row and a column."""
        return self.numbers[row * self.width + column]


@frozen_dataclass
class StoredSquare:
    """A square of values in memory.

    Attributes:
        code: of the function that loads them.
        start: the address of the first value.
        down, right: the elements between two rows, and between two columns.
        type: of a value.
    """

    code: Builder
    start: Value
    down: Value
    right: Value
    type: Type

    def number(self, row: int, column: int) -> Value:
        """The value in a row and a column."""
        moves = [(constant(row, I64), self.down), (constant(column, I64), self.right)]
        return self.code.load(address(self.code, self.start, moves, self.type.element), self.type)
