"""Index expressions: the element of a buffer that is read or written at a point of a loop nest.

An `Index` is a sum `constant + coefficient * atom + ...`. Atoms are loop axes, quotients and
remainders by a constant (from reshapes), and values read from a buffer (gather). The constructors
keep every index in one normal form, so that equal indices compare equal. Fusion, in-place reuse
and views rely on that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING

from lamina.base.records import frozen_dataclass

if TYPE_CHECKING:
    from lamina.program.scalar import Scalar


@frozen_dataclass
class Axis:
    """A loop variable that runs from 0 to extent - 1."""

    name: str
    extent: int

    def bounds(self) -> tuple[int, int]:
        return 0, max(self.extent - 1, 0)

    def __str__(self) -> str:
        return self.name


@frozen_dataclass
class Quotient:
    """floor(index / divisor)."""

    index: Index
    divisor: int

    def bounds(self) -> tuple[int, int]:
        low, high = self.index.bounds
        return low // self.divisor, high // self.divisor

    def __str__(self) -> str:
        return f"({self.index}) // {self.divisor}"


@frozen_dataclass
class Remainder:
    """index - divisor * floor(index / divisor)."""

    index: Index
    divisor: int

    def bounds(self) -> tuple[int, int]:
        return 0, self.divisor - 1

    def __str__(self) -> str:
        return f"({self.index}) % {self.divisor}"


@frozen_dataclass
class Gathered:
    """An index read from data, known to be in 0 .. extent - 1."""

    value: Scalar
    extent: int

    def bounds(self) -> tuple[int, int]:
        return 0, max(self.extent - 1, 0)

    def __str__(self) -> str:
        return f"@({self.value})"


Atom = Axis | Quotient | Remainder | Gathered


@frozen_dataclass
class Index:
    """`constant + sum of coefficient * atom`, in normal form.

    Build with `axis_index` and the operators; the constructor expects terms that are merged,
    sorted and free of zero coefficients.
    """

    constant: int = 0
    terms: tuple[tuple[Atom, int], ...] = ()
    bounds: tuple[int, int] = field(init=False, compare=False, repr=False)
    values: tuple[Scalar, ...] = field(init=False, compare=False, repr=False)
    nesting: int = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        low = high = self.constant
        values: tuple[Scalar, ...] = ()
        nesting = 0
        for atom, coefficient in self.terms:
            first, last = atom.bounds()
            if coefficient < 0:
                first, last = last, first
            low, high = low + coefficient * first, high + coefficient * last
            if isinstance(atom, Gathered):
                values += (atom.value,)
            elif not isinstance(atom, Axis):
                values += atom.index.values
                nesting = max(nesting, atom.index.nesting + 1)
        object.__setattr__(self, "bounds", (low, high))
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "nesting", nesting)
        object.__setattr__(self, "_hash", hash((self.constant, self.terms)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Index], tuple[int, tuple[tuple[Atom, int], ...]]]:
        # Hashes of strings differ from process to process.
        return Index, (self.constant, self.terms)

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.constant + other, self.terms) if other else self
        # In most sums one side is a constant, so no terms have to be merged.
        if not other.terms:
            return self + other.constant
        if not self.terms:
            return other + self.constant
        return _sum(self.constant + other.constant, (*self.terms, *other.terms))

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return Index()
        if factor == 1 or not (self.constant or self.terms):
            return self
        return Index(self.constant * factor, tuple((a, c * factor) for a, c in self.terms))

    def __floordiv__(self, divisor: int) -> Index:
        low, high = self.bounds
        if divisor == 1:
            return self
        if low // divisor == high // divisor:
            return Index(low // divisor)
        quotient, rest = self._split(divisor)
        if not rest.terms:
            return quotient + rest.constant // divisor
        if rest.bounds[0] >= 0 and rest.bounds[1] < divisor:
            return quotient
        for factor in rest._common_factors(divisor):
            coarse, fine = rest._split(factor)
            if fine.bounds[0] >= 0 and fine.bounds[1] < factor:
                return quotient + coarse // (divisor // factor)
        for atom, coefficient in rest.terms:
            if isinstance(atom, Quotient) and coefficient == 1:
                # (o + e // a) // d is (a * o + e) // (a * d).
                others = rest - Index(0, ((atom, 1),))
                return quotient + (others * atom.divisor + atom.index) // (atom.divisor * divisor)
        return quotient + Index(0, ((Quotient(rest, divisor), 1),))

    def __mod__(self, divisor: int) -> Index:
        if divisor == 1:
            return Index()
        _, rest = self._split(divisor)
        low, high = rest.bounds
        if low // divisor == high // divisor:
            return rest - (low // divisor) * divisor
        for factor in rest._common_factors(divisor):
            coarse, fine = rest._split(factor)
            if fine.bounds[0] >= 0 and fine.bounds[1] < factor:
                return coarse % (divisor // factor) * factor + fine
        if len(rest.terms) == 1 and rest.constant == 0 and rest.terms[0][1] == 1:
            atom = rest.terms[0][0]
            if isinstance(atom, Remainder) and atom.divisor % divisor == 0:
                return atom.index % divisor
        return Index(0, ((Remainder(rest, divisor), 1),))

    def _common_factors(self, divisor: int) -> tuple[int, ...]:
        """Common factors of the divisor and a coefficient, the largest first."""
        shared = {math.gcd(c, divisor) for _, c in self.terms} - {1, divisor}
        return tuple(sorted(shared, reverse=True))

    def _split(self, divisor: int) -> tuple[Index, Index]:
        """(q, r) with self = q * divisor + r; all multiples of the divisor are in q."""
        quotient = Index(
            self.constant // divisor,
            tuple((a, c // divisor) for a, c in self.terms if c % divisor == 0),
        )
        rest = Index(self.constant % divisor, tuple((a, c) for a, c in self.terms if c % divisor))
        return quotient, rest

    def __str__(self) -> str:
        terms = [str(a) if c == 1 else f"{c}*{a}" for a, c in self.terms]
        if self.constant or not terms:
            terms.append(str(self.constant))
        return " + ".join(terms)


def _sum(constant: int, terms: Iterable[tuple[Atom, int]]) -> Index:
    merged: dict[Atom, int] = {}
    for atom, coefficient in terms:
        merged[atom] = merged.get(atom, 0) + coefficient
    merged = {atom: c for atom, c in merged.items() if c}
    for atom, coefficient in list(merged.items()):
        # d * c * (e // d) + c * (e % d) is c * e.
        if isinstance(atom, Remainder):
            match = _only_atom(atom.index // atom.divisor)
            if match is not None and merged.get(match) == coefficient * atom.divisor:
                rest = {a: c for a, c in merged.items() if a != atom and a != match}
                multiple = atom.index * coefficient
                return _sum(constant + multiple.constant, (*rest.items(), *multiple.terms))
    ordered = sorted(merged.items(), key=lambda term: (type(term[0]).__name__, str(term[0])))
    return Index(constant, tuple(ordered))


def _only_atom(index: Index) -> Atom | None:
    """The atom, if the index is a single atom with the coefficient 1; otherwise None."""
    alone = not index.constant and len(index.terms) == 1 and index.terms[0][1] == 1
    return index.terms[0][0] if alone else None


def axis_index(axis: Axis) -> Index:
    """The axis itself; the constant 0 for an axis of extent 1."""
    return Index() if axis.extent == 1 else Index(0, ((axis, 1),))


def gathered_index(value: Scalar, extent: int) -> Index:
    """An index that is read from data and is in 0 .. extent - 1."""
    return Index(0, ((Gathered(value, extent), 1),))


def flatten(coordinates: Sequence[Index], shape: Sequence[int]) -> Index:
    """The offset of an element in a contiguous (row-major) buffer."""
    return _flattened(tuple(coordinates), tuple(shape))


def row_major(axes: Sequence[Axis]) -> Index:
    """The offset of a point of some axes in a contiguous buffer with their extents."""
    return flatten([axis_index(axis) for axis in axes], [axis.extent for axis in axes])


# Fusion flattens the same coordinates many times while it tries different groups of tensors.
@lru_cache(maxsize=1 << 14)
def _flattened(coordinates: tuple[Index, ...], shape: tuple[int, ...]) -> Index:
    offset = Index()
    for coordinate, extent in zip(coordinates, shape, strict=True):
        offset = offset * extent + coordinate
    return offset


def unflatten(offset: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The coordinates of an element, given its offset in a contiguous buffer."""
    return _unflattened(offset, tuple(shape))


@lru_cache(maxsize=1 << 14)
def _unflattened(offset: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    coordinates: list[Index] = []
    stride = 1
    for number in range(len(shape) - 1, -1, -1):
        extent = max(shape[number], 1)
        coordinate = offset // stride
        coordinates.append(coordinate if number == 0 else coordinate % extent)
        stride *= extent
    return tuple(reversed(coordinates))


def axes_of(index: Index) -> set[Axis]:
    """The axes that the index depends on, except those inside gathered values."""
    axes: set[Axis] = set()
    for atom, _ in index.terms:
        if isinstance(atom, Axis):
            axes.add(atom)
        elif isinstance(atom, Quotient | Remainder):
            axes |= axes_of(atom.index)
    return axes
