"""The values of index expressions, by the definition of their atoms."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from lamina.program.index import Axis, Gathered, Index, Quotient

Point = Mapping[Axis, int]


def value_at(index: Index, point: Point) -> int:
    """The index at a point; gathered indices are 0."""
    total = index.constant
    for atom, coefficient in index.terms:
        if isinstance(atom, Axis):
            number = point[atom]
        elif isinstance(atom, Gathered):
            number = 0
        else:
            quotient, remainder = divmod(value_at(atom.index, point), atom.divisor)
            number = quotient if isinstance(atom, Quotient) else remainder
        total += coefficient * number
    return total


def points_of(axes: Sequence[Axis]) -> Iterator[Point]:
    """All points of axes."""
    for numbers in product(*(range(axis.extent) for axis in axes)):
        yield dict(zip(axes, numbers, strict=True))
