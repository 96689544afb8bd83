"""The transforms of Winograd's algorithms, written out: matrices of known numbers times vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lamina.codegen.filtering import Transform
from lamina.codegen.llvm import Function
from lamina.codegen.values import Type, Value, constant
from lamina.records import frozen_dataclass


def _transformed(code: Function, matrix: Transform, values: Sequence[Value]) -> list[Value]:
    """A matrix times a vector; of rows that are each other's mirror, halves are shared."""
    results: list[Value] = []
    for number, row in enumerate(matrix):
        if len(results) > number:
            continue
        following = matrix[number + 1] if number + 1 < len(matrix) else ()
        even = tuple(value if place % 2 == 0 else 0.0 for place, value in enumerate(row))
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


def _combined(code: Function, factors: Sequence[float], values: Sequence[Value]) -> Value:
    """A sum of products with numbers that are known; those that are 1 come first."""
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


def along_both(code: Function, matrix: Transform, square: Square) -> list[list[Value]]:
    """A transform along both axes of a square of numbers; gives its rows."""
    size = range(len(matrix[0]))
    columns = [
        _transformed(code, matrix, [square.number(row, column) for row in size]) for column in size
    ]
    return [_transformed(code, matrix, row) for row in zip(*columns, strict=True)]


class Square(Protocol):
    """A square of numbers, or of vectors of them, which are asked for when they are needed."""

    def number(self, row: int, column: int) -> Value:
        """One of them."""
        ...


@frozen_dataclass
class Listed:
    """Numbers that are there already.

    Attributes:
        numbers: row by row.
        width: of a row.
    """

    numbers: Sequence[Value]
    width: int

    def number(self, row: int, column: int) -> Value:
        """One of them."""
        return self.numbers[row * self.width + column]


@frozen_dataclass
class Stored:
    """Numbers that lie in memory.

    Attributes:
        code: where they are loaded.
        start: an address.
        first: where the first one lies, in elements behind it.
        down, right: how many elements lie between two rows, and between two columns.
        type: of what is loaded.
    """

    code: Function
    start: Value
    first: int
    down: int
    right: int
    type: Type

    def number(self, row: int, column: int) -> Value:
        """One of them."""
        place = self.first + row * self.down + column * self.right
        return self.code.load(self.code.offset(self.start, place, self.type.element), self.type)
