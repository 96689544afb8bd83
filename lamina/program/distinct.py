"""Proofs, from index expressions, that different points access different elements.

An index is a number in mixed radix: its atoms are digits, their coefficients the strides. If each
stride is larger than the largest sum of the lower digits, equal numbers have equal digits. Equal
quotients and remainders of an expression then imply that the expressions are equal, and so on down
to the axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd

from lamina.base.records import frozen_dataclass
from lamina.program.index import Atom, Axis, Gathered, Index

Terms = tuple[tuple[Atom, int], ...]


@lru_cache(maxsize=1 << 12)
def meet_at_one_point(
    first: Index, second: Index, axes: tuple[Axis, ...], fixed: Axis | None = None
) -> bool:
    """Whether two indices into one buffer can only be equal where each axis has equal values.

    `fixed` is an axis that always has one value in both: the axis of a repeat.
    """
    digits = _digits(first, second, fixed)
    if any(digit.never_equal for digit in digits):
        return True
    atoms = {digit.atom for digit in digits if digit.atom is not None}
    return atoms.issuperset(axes) or _with_divided(atoms, fixed).issuperset(axes)


def never_meet(first: Index, second: Index, fixed: Axis | None = None) -> bool:
    """Whether two indices are different at any two points, even at the same one."""
    return any(digit.never_equal for digit in _digits(first, second, fixed))


@frozen_dataclass
class _Digit:
    """Corresponding terms of two indices. Where the indices are equal, the terms are equal too.

    Attributes:
        stride: a divisor of all differences between values of one index.
        terms: the terms of the first index, and of the other.
        low, high: the smallest and the largest value in the first index.
        other_low, other_high: the smallest and the largest value in the other index.
        is_shifted: whether it contains a share of the constant of the other index.
    """

    stride: int
    terms: tuple[Terms, Terms]
    low: int
    high: int
    other_low: int
    other_high: int
    is_shifted: bool

    @property
    def reach(self) -> int:
        """The largest difference between the values of both indices."""
        return max(self.high, self.other_high) - min(self.low, self.other_low)

    @property
    def never_equal(self) -> bool:
        return self.high < self.other_low or self.other_high < self.low

    @property
    def atom(self) -> Atom | None:
        """The atom whose value is the same in both indices; None if it is not a single atom."""
        left, right = self.terms
        alone = left == right and len(left) == 1 and not self.is_shifted
        return left[0][0] if alone else None

    def joined(self, above: _Digit) -> _Digit:
        """The digit joined with the one above it."""
        return _Digit(
            gcd(self.stride, above.stride),
            (self.terms[0] + above.terms[0], self.terms[1] + above.terms[1]),
            self.low + above.low,
            self.high + above.high,
            self.other_low + above.other_low,
            self.other_high + above.other_high,
            self.is_shifted or above.is_shifted,
        )


def _digits(index: Index, other: Index, fixed: Axis | None) -> list[_Digit]:
    """The digits of two indices with common strides, the lowest first."""
    mine, others = _moving(index), _moving(other)
    if fixed is not None and mine.get(fixed) == others.get(fixed):
        mine.pop(fixed, None)
        others.pop(fixed, None)
    strides = sorted({abs(stride) for stride in (*mine.values(), *others.values())})
    # The difference of the constants is split into multiples of the strides, the largest first.
    shifts: dict[int, int] = {}
    difference = other.constant - index.constant
    for stride in reversed(strides):
        sign = -1 if difference < 0 else 1
        shifts[stride] = sign * (abs(difference) // stride) * stride
        difference -= shifts[stride]
    digits: list[_Digit] = []
    reach = 0
    if difference:
        digits.append(_Digit(1, ((), ()), 0, 0, difference, difference, True))
        reach = abs(difference)
    for stride in strides:
        terms = _of_stride(mine, stride), _of_stride(others, stride)
        ends, (low, high) = Index(0, terms[0]).bounds, Index(0, terms[1]).bounds
        shift = shifts[stride]
        digits.append(_Digit(stride, terms, *ends, low + shift, high + shift, bool(shift)))
        # A stride no larger than the reach of the digits below is joined with the one below.
        while len(digits) > 1 and digits[-1].stride <= reach:
            above, below = digits.pop(), digits.pop()
            reach -= below.reach
            digits.append(below.joined(above))
        reach += digits[-1].reach
    return digits


def _moving(index: Index) -> dict[Atom, int]:
    """The terms of an index that are not always zero."""
    return {atom: stride for atom, stride in index.terms if atom.bounds() != (0, 0)}


def _of_stride(terms: dict[Atom, int], size: int) -> Terms:
    return tuple((atom, stride) for atom, stride in terms.items() if abs(stride) == size)


def _with_divided(atoms: set[Atom], fixed: Axis | None) -> set[Atom]:
    """Atoms with equal values, and those that follow from quotients and remainders among them."""
    equal = atoms if fixed is None else {*atoms, fixed}
    dividends: set[Index] = set()
    while True:
        new = {
            dividend
            for dividend, divisor in {division for atom in equal for division in _divided(atom)}
            if dividend not in dividends
            and all(
                atom in equal
                for divided in (dividend // divisor, dividend % divisor)
                for atom, _ in divided.terms
            )
        }
        if not new:
            return equal
        dividends |= new
        digits = [digit for dividend in new for digit in _digits(dividend, dividend, fixed)]
        equal |= {digit.atom for digit in digits if digit.atom is not None}


def _divided(atom: Atom) -> Iterator[tuple[Index, int]]:
    """(expression, divisor) of each division in an atom, the outermost first."""
    while not isinstance(atom, Axis | Gathered):
        yield atom.index, atom.divisor
        if len(atom.index.terms) != 1:
            return
        atom = atom.index.terms[0][0]
