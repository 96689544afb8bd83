"""The range of an index expression at the points where bounds hold.

A range is never too narrow, and may be too wide. It is exact for padding, windows and joins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from lamina.program.index import Atom, Index, Quotient
from lamina.program.scalar import Bound

# The most sets of bounds that are tried. If there are more, the range may be too wide.
_MOST_RANGES = 1 << 12


@lru_cache(maxsize=1 << 12)
def range_of(index: Index, bounds: tuple[Bound, ...]) -> tuple[int, int]:
    """The smallest and the largest value of an index where all bounds hold."""
    if not bounds:
        return index.bounds
    low = high = index.constant
    # Bounds of different atoms are independent, so each group has its own range.
    for terms, group_bounds in _independent(index, bounds):
        least, most = _range_together(terms, group_bounds, {})
        low, high = low + least, high + most
    return low, high


def _independent(
    index: Index, bounds: Sequence[Bound]
) -> Iterator[tuple[Index, tuple[Bound, ...]]]:
    """The terms of an index in groups that have no bound in common, and the bounds of each."""
    groups: list[tuple[set[Atom], list[Bound]]] = [({atom}, []) for atom, _ in index.terms]
    for bound in bounds:
        atoms = {atom for atom, _ in bound.index.terms}
        atoms |= {a for a, _ in index.terms if isinstance(a, Quotient) and a.index == bound.index}
        joined: tuple[set[Atom], list[Bound]] = atoms, []
        for group in [group for group in groups if not atoms.isdisjoint(group[0])]:
            joined[0].update(group[0])
            joined[1].extend(group[1])
            groups.remove(group)
        groups.append((joined[0], [*joined[1], bound]))
    for atoms, group_bounds in groups:
        terms = tuple(term for term in index.terms if term[0] in atoms)
        if terms:
            yield Index(0, terms), tuple(group_bounds)


def _range_together(
    index: Index,
    bounds: tuple[Bound, ...],
    ranges: dict[tuple[Index, tuple[Bound, ...]], tuple[int, int]],
) -> tuple[int, int]:
    """The range of an index under bounds that share atoms.

    Each bound is tried first. The range of the rest of the index does not depend on the order of
    the bounds that were tried before, so it is kept in `ranges`.
    """
    key = index, bounds
    if key not in ranges:
        if len(ranges) >= _MOST_RANGES:
            return index.bounds
        low, high = index.bounds
        for number, bound in enumerate(bounds):
            others = (*bounds[:number], *bounds[number + 1 :])
            for factor, limits in _multiples(index, bound):
                ends = sorted((factor * limits.low, factor * (limits.high - 1)))
                rest = _range_together(index - limits.index * factor, others, ranges)
                low, high = max(low, rest[0] + ends[0]), min(high, rest[1] + ends[1])
        ranges[key] = low, high
    return ranges[key]


def _multiples(index: Index, bound: Bound) -> Iterator[tuple[int, Bound]]:
    """(factor, bound) for each term of the index that is the bounded index or its quotient."""
    for atom, coefficient in bound.index.terms[:1]:
        factor, rest = divmod(dict(index.terms).get(atom, 0), coefficient)
        if factor and not rest:
            yield factor, bound
    for atom, coefficient in index.terms:
        if isinstance(atom, Quotient) and atom.index == bound.index:
            low, high = bound.low // atom.divisor, (bound.high - 1) // atom.divisor
            yield coefficient, Bound(Index(0, ((atom, 1),)), low, high + 1)
