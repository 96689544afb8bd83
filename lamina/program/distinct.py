"""Whether different points reach different elements, told from their index expressions.

An index is a number in mixed radix: its atoms are digits, their coefficients the steps. Where each
step is larger than all that the digits below it can add up to, equal numbers have equal digits.
Quotients and remainders of one expression give that expression, and so on, until axes are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd

from lamina.program.index import Atom, Axis, Gathered, Index
from lamina.records import frozen_dataclass

Terms = tuple[tuple[Atom, int], ...]


@lru_cache(maxsize=1 << 12)
def meet_at_one_point(
    one: Index, other: Index, axes: tuple[Axis, ...], fixed: Axis | None = None
) -> bool:
    """Whether two indices are equal only where each of the axes has one value in both, if ever.

    Args:
        one, other: places in one buffer.
        axes: what tells points apart.
        fixed: an axis that has one value in both in any case, that of a repeat.
    """
    digits = _digits(one, other, fixed)
    if any(digit.never_equal for digit in digits):
        return True
    atoms = {digit.atom for digit in digits if digit.atom is not None}
    return atoms.issuperset(axes) or _with_divided(atoms, fixed).issuperset(axes)


def never_meet(one: Index, other: Index, fixed: Axis | None = None) -> bool:
    """Whether two indices are equal at no points, be they the same or not."""
    return any(digit.never_equal for digit in _digits(one, other, fixed))


@frozen_dataclass
class _Digit:
    """A part of two indices; where these are equal, so are the parts.

    Attributes:
        step: divides all differences between values of one index.
        terms: of the first index, and of the other.
        low, high: the smallest and the largest value in the first index.
        other_low, other_high: in the other one.
        is_shifted: whether a part of the constant of the other index stands here.
    """

    step: int
    terms: tuple[Terms, Terms]
    low: int
    high: int
    other_low: int
    other_high: int
    is_shifted: bool

    @property
    def reach(self) -> int:
        """How far apart the values of both indices can be."""
        return max(self.high, self.other_high) - min(self.low, self.other_low)

    @property
    def never_equal(self) -> bool:
        return self.high < self.other_low or self.other_high < self.low

    @property
    def atom(self) -> Atom | None:
        """What has one value in both indices; None if that is not a single atom."""
        one, other = self.terms
        alone = one == other and len(one) == 1 and not self.is_shifted
        return one[0][0] if alone else None

    def joined(self, above: _Digit) -> _Digit:
        """With the digit above it."""
        return _Digit(
            gcd(self.step, above.step),
            (self.terms[0] + above.terms[0], self.terms[1] + above.terms[1]),
            self.low + above.low,
            self.high + above.high,
            self.other_low + above.other_low,
            self.other_high + above.other_high,
            self.is_shifted or above.is_shifted,
        )


def _digits(one: Index, other: Index, fixed: Axis | None) -> list[_Digit]:
    """The digits of two indices in one system of steps, the lowest first."""
    mine, others = _moving(one), _moving(other)
    if fixed is not None and mine.get(fixed) == others.get(fixed):
        mine.pop(fixed, None)
        others.pop(fixed, None)
    steps = sorted({abs(step) for step in (*mine.values(), *others.values())})
    # What the constants differ by is made of steps, too, the largest first.
    shifts: dict[int, int] = {}
    difference = other.constant - one.constant
    for step in reversed(steps):
        sign = -1 if difference < 0 else 1
        shifts[step] = sign * (abs(difference) // step) * step
        difference -= shifts[step]
    digits: list[_Digit] = []
    reach = 0
    if difference:
        digits.append(_Digit(1, ((), ()), 0, 0, difference, difference, True))
        reach = abs(difference)
    for step in steps:
        terms = _of_step(mine, step), _of_step(others, step)
        ends, (low, high) = Index(0, terms[0]).bounds, Index(0, terms[1]).bounds
        shift = shifts[step]
        digits.append(_Digit(step, terms, *ends, low + shift, high + shift, bool(shift)))
        # What does not stand out from all below it is one digit with them.
        while len(digits) > 1 and digits[-1].step <= reach:
            above, below = digits.pop(), digits.pop()
            reach -= below.reach
            digits.append(below.joined(above))
        reach += digits[-1].reach
    return digits


def _moving(index: Index) -> dict[Atom, int]:
    """The terms of an index that are not always zero."""
    return {atom: step for atom, step in index.terms if atom.bounds() != (0, 0)}


def _of_step(terms: dict[Atom, int], wanted: int) -> Terms:
    return tuple((atom, step) for atom, step in terms.items() if abs(step) == wanted)


def _with_divided(atoms: set[Atom], fixed: Axis | None) -> set[Atom]:
    """Atoms of one value, with those that follow from quotients and remainders among them."""
    known = atoms if fixed is None else {*atoms, fixed}
    found: set[Index] = set()
    while True:
        new = {
            whole
            for whole, divisor in {part for atom in known for part in _divided(atom)}
            if whole not in found
            and all(
                atom in known
                for part in (whole // divisor, whole % divisor)
                for atom, _ in part.terms
            )
        }
        if not new:
            return known
        found |= new
        digits = [digit for whole in new for digit in _digits(whole, whole, fixed)]
        known |= {digit.atom for digit in digits if digit.atom is not None}


def _divided(atom: Atom) -> Iterator[tuple[Index, int]]:
    """The expressions of which an atom is a quotient or a remainder, and by what."""
    while not isinstance(atom, Axis | Gathered):
        yield atom.index, atom.divisor
        if len(atom.index.terms) != 1:
            return
        atom = atom.index.terms[0][0]
