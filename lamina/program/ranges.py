"""Between which numbers an index lies where bounds hold: what a guarded load reads of its buffer.

What is found is never too narrow. It is exact for views that the compiler makes: padding, windows
with strides and gaps, joins, and slices of all that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import final

from lamina.program.index import Atom, Axis, Gathered, Index, Quotient, Remainder
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Bound, Load, Position, parts

# The smallest and the largest value; there is none if the first is larger.
Range = tuple[int, int]
NOTHING: Range = (0, -1)

# How often all bounds narrow the ranges of atoms, each by what the others left.
_ROUNDS = 3
# In so many ways is an index written. Where there are more, its range may be found too wide.
_MOST_REWRITTEN = 1 << 11


@lru_cache(maxsize=1 << 12)
def range_of(index: Index, bounds: tuple[Bound, ...]) -> Range:
    """The smallest and the largest value of an index where all bounds hold.

    Returns:
        Both; `NOTHING` where the bounds are seen to hold nowhere.
    """
    if not bounds:
        return index.bounds
    low = high = index.constant
    # Bounds of different atoms say nothing about each other: each group is looked at by itself.
    for part, own in _apart(index, map(_reduced, bounds)):
        group = _Group(part, own)
        if not group.may_hold:
            return NOTHING
        one, other = group.range(part)
        low, high = low + one, high + other
    return low, high


def unguarded(load: Load) -> Load:
    """A load as it is where its bounds hold: loads inside its places need no such bounds."""
    known: set[Bound] = set()

    def free(index: Index) -> Index:
        def kept(inner: Load) -> Load:
            return replace(inner, bounds=tuple(one for one in inner.bounds if one not in known))

        return Rewrite(load=kept).index(index)

    # The bounds that others are under come before these.
    for bound in sorted(load.bounds, key=lambda bound: len([*parts(Position(bound.index))])):
        known.add(replace(bound, index=free(bound.index)))
    return replace(load, index=free(load.index), bounds=tuple(known))


def _reduced(bound: Bound) -> Bound:
    """The same in the smallest numbers."""
    index = bound.index
    step = gcd(*(step for _, step in index.terms))
    if not step:
        return bound
    low, high = (-(-(end - index.constant) // step) for end in (bound.low, bound.high))
    return Bound(Index(0, tuple((atom, factor // step) for atom, factor in index.terms)), low, high)


def _apart(index: Index, bounds: Iterable[Bound]) -> Iterator[tuple[Index, tuple[Bound, ...]]]:
    """The terms of an index in groups that have no bound in common, and the bounds of each."""
    groups: list[tuple[set[Atom], tuple[Bound, ...]]] = []
    alone = [(set(_inside(Index(0, (term,)))), ()) for term in index.terms]
    for atoms, own in (*alone, *((set(_inside(bound.index)), (bound,)) for bound in bounds)):
        for group in [group for group in groups if not atoms.isdisjoint(group[0])]:
            atoms |= group[0]
            own = group[1] + own
            groups.remove(group)
        groups.append((atoms, own))
    for atoms, own in groups:
        yield Index(0, tuple(term for term in index.terms if term[0] in atoms)), own


def _inside(index: Index) -> Iterator[Atom]:
    """The atoms of an index, and of what is divided in it."""
    for atom, _ in index.terms:
        yield atom
        if not isinstance(atom, Axis | Gathered):
            yield from _inside(atom.index)


@final
class _Group:
    """Bounds that may say something about each other.

    Args:
        index: its quotients are those that bounds are asked about.
        bounds: in the smallest numbers.

    Attributes:
        may_hold: whether all bounds may hold at once.
    """

    def __init__(self, index: Index, bounds: tuple[Bound, ...]) -> None:
        # What is known of atoms beside the ranges that they have anywhere.
        self._ranges: dict[Atom, Range] = {}
        self._bounds: tuple[Bound, ...] = ()
        # The ranges of indices, with the bounds that were not used for them.
        self._known: dict[tuple[Index, tuple[Bound, ...]], Range] = {}
        self.may_hold = all(self._narrow(bound) for _ in range(_ROUNDS) for bound in bounds)
        divided = tuple(self._of_divided())
        self.may_hold = self.may_hold and all(map(self._narrow, divided))
        self._bounds = (*bounds, *divided, *_of_quotients(index, bounds))
        self._known.clear()

    def range(self, index: Index) -> Range:
        """The smallest and the largest value of an index where the bounds hold."""
        return self._range(index, self._bounds)

    def _narrow(self, bound: Bound) -> bool:
        """Narrows the ranges of a bound's atoms; False if no values are left."""
        low, high = self._plain(bound.index)
        if high < bound.low or low >= bound.high:
            return False
        for atom, step in bound.index.terms:
            first, last = _ends(step, self._of_atom(atom))
            # What the other terms leave of the bound.
            least = max(first, bound.low - (high - last))
            most = min(last, bound.high - 1 - (low - first))
            if step < 0:
                least, most = -most, -least
            narrowed = -(-least // abs(step)), most // abs(step)
            if narrowed[0] > narrowed[1]:
                return False
            if narrowed != atom.bounds():
                self._ranges[atom] = narrowed
        return True

    def _of_divided(self) -> Iterator[Bound]:
        """What the ranges of quotients say of what is divided."""
        for atom, (low, high) in self._ranges.items():
            if isinstance(atom, Quotient):
                yield Bound(atom.index, low * atom.divisor, (high + 1) * atom.divisor)

    def _plain(self, index: Index) -> Range:
        """The range of an index as its atoms alone tell."""
        low = high = index.constant
        for atom, step in index.terms:
            first, last = _ends(step, self._of_atom(atom))
            low, high = low + first, high + last
        return low, high

    def _of_atom(self, atom: Atom) -> Range:
        low, high = self._ranges.get(atom, atom.bounds())
        if isinstance(atom, Quotient):
            first, last = self._range(atom.index, self._bounds)
            low, high = max(low, first // atom.divisor), min(high, last // atom.divisor)
        return low, high

    def _range(self, index: Index, bounds: tuple[Bound, ...]) -> Range:
        """The range of an index, with some bounds that may be used for it.

        Each of them is used first, then those that are left. The same are left whatever the order
        of those before.
        """
        key = index, bounds
        if key not in self._known:
            self._known[key] = low, high = self._plain(index)
            if len(self._known) > _MOST_REWRITTEN:
                return low, high
            for rest, others, added, divisor in self._rewritten(index, bounds):
                first, last = self._range(rest, others)
                low = max(low, -(-(first + added[0]) // divisor))
                high = min(high, (last + added[1]) // divisor)
            self._known[key] = low, high
        return self._known[key]

    def _rewritten(
        self, index: Index, bounds: tuple[Bound, ...]
    ) -> Iterator[tuple[Index, tuple[Bound, ...], Range, int]]:
        """What an index is by using a bound, or by writing out a quotient.

        Yields:
            Another index, the bounds that may be used for it, the range of what is to be added to
            it, and by what both are to be divided.
        """
        used = [
            (index - bound.index * factor, number, factor)
            for number, bound in enumerate(bounds)
            for factor in _factors(index, bound.index)
        ]
        # What leaves the fewest terms says most.
        for rest, number, factor in sorted(used, key=lambda one: len(one[0].terms)):
            bound, others = bounds[number], (*bounds[:number], *bounds[number + 1 :])
            yield rest, others, _ends(factor, (bound.low, bound.high - 1)), 1
        for atom, step in index.terms:
            if isinstance(atom, Quotient):
                # divisor * (e // divisor) is e - e % divisor.
                rest = index - Index(0, ((atom, step),))
                added = _ends(-step, self._of_atom(Remainder(atom.index, atom.divisor)))
                yield rest * atom.divisor + atom.index * step, bounds, added, atom.divisor


def _of_quotients(index: Index, bounds: Iterable[Bound]) -> Iterator[Bound]:
    """What bounds say of the quotients in an index, and of what is a quotient with one of them."""
    quotients = [atom for atom in _inside(index) if isinstance(atom, Quotient)]
    for bound in bounds if quotients else ():
        for atom in quotients:
            added, divisor = atom.index.constant, atom.divisor
            whole = (bound.index + added) // divisor
            if atom in dict(whole.terms):
                low, high = (bound.low + added) // divisor, (bound.high - 1 + added) // divisor
                yield _reduced(Bound(whole, low, high + 1))


def _factors(index: Index, part: Index) -> set[int]:
    """How many times one index may be taken out of another, so that a term of it vanishes."""
    steps = dict(index.terms)
    found = [divmod(steps.get(atom, 0), step) for atom, step in part.terms]
    return {factor for factor, rest in found if factor and not rest}


def _ends(factor: int, one: Range) -> Range:
    """The range of a multiple."""
    low, high = factor * one[0], factor * one[1]
    return (low, high) if factor > 0 else (high, low)
