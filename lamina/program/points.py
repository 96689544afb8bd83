"""Index expressions computed at points, to find a point at which a program breaks a rule.

If ranges and digits do not prove that a rule is kept, a program is refused only if a point breaks
the rule. If there are few points, all of them are computed. If there are many, only the points at
both ends of the longest axes are computed, and a fault at other points is not found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import final

import numpy as np
from numpy.typing import NDArray

from lamina.program.index import Axis, Gathered, Index, Quotient, axes_of
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Bound, Load, Position, postorder

# The most points that are computed.
MOST_POINTS = 1 << 16


@lru_cache(maxsize=1 << 10)
def find_point_outside(load: Load, size: int) -> str:
    """A point at which bounds hold, and a load is outside a buffer of a size; "" for none."""
    if load.index.values:
        load = _unguarded(load)
    indices = (load.index, *(bound.index for bound in load.bounds))
    axes = {axis for index in indices for axis in axes_of(index)}
    points = _Points(sorted(axes, key=lambda axis: axis.name))
    offsets = points.values(load.index)
    wrong = (offsets < 0) | (offsets >= size)
    for bound in load.bounds:
        checked = points.values(bound.index)
        wrong = wrong & (bound.low <= checked) & (checked < bound.high)
    wrong = np.flatnonzero(wrong)
    return f"element {offsets[wrong[0]]} at {points.text(int(wrong[0]))}" if wrong.size else ""


@lru_cache(maxsize=1 << 10)
def find_meeting_points(
    index: Index,
    axes: tuple[Axis, ...],
    other_index: Index,
    other_axes: tuple[Axis, ...],
    apart: tuple[Axis, ...] | None,
    fixed: Axis | None = None,
) -> str:
    """Two points at which two indices into one buffer are equal; "" if none are found.

    The points must differ along one of the axes `apart`; None allows any points. `fixed` is an axis
    that has one value in both: the axis of a repeat.
    """
    around = () if fixed is None else (fixed,)
    first, second = _Points((*around, *axes)), _Points((*around, *other_axes))
    offsets, other_offsets = first.values(index), second.values(other_index)
    if fixed is not None:
        span = max(offsets.max(), other_offsets.max()) - min(offsets.min(), other_offsets.min()) + 1
        offsets = offsets + first.keys(around) * span
        other_offsets = other_offsets + second.keys(around) * span
    keys, other_keys = first.keys(apart or ()), second.keys(apart or ())
    # At equal offsets, the points with the smallest and the largest keys differ most.
    distinct, low, high = _ends(offsets, keys)
    other_distinct, other_low, other_high = _ends(other_offsets, other_keys)
    _, at, other_at = np.intersect1d(distinct, other_distinct, return_indices=True)
    for pair in ((low[at], other_high[other_at]), (high[at], other_low[other_at])):
        differ = np.flatnonzero((keys[pair[0]] != other_keys[pair[1]]) | (apart is None))
        if differ.size:
            mine, others = (int(numbers[differ[0]]) for numbers in pair)
            return f"at {first.text(mine)} and at {second.text(others)}"
    return ""


Integers = NDArray[np.int64]


def _ends(offsets: Integers, keys: Integers) -> tuple[Integers, Integers, Integers]:
    """The distinct offsets; for each, the numbers of the points of the smallest and largest key."""
    order = np.lexsort((keys, offsets))
    distinct, starts = np.unique(offsets[order], return_index=True)
    return distinct, order[starts], order[np.append(starts[1:], len(order)) - 1]


@final
class _Points:
    """A numbered list of points of some axes; gathered indices are drawn from their range."""

    def __init__(self, axes: Iterable[Axis]) -> None:
        self._axes = tuple(dict.fromkeys(axes))
        kept = [axis.extent for axis in self._axes]
        while prod(kept) > MOST_POINTS:
            longest = kept.index(max(kept))
            kept[longest] = (kept[longest] + 1) // 2
        self._count = prod(kept)
        grid = np.indices(kept, np.int64).reshape(len(kept), self._count)
        self._values: dict[Axis | Gathered, Integers] = {}
        for axis, count, numbers in zip(self._axes, kept, grid, strict=True):
            left_out = axis.extent - count
            self._values[axis] = numbers + left_out * (numbers >= (count + 1) // 2)
        self._random = np.random.Generator(np.random.PCG64(0))

    def values(self, index: Index) -> Integers:
        """An index at each point."""
        total = np.full(self._count, index.constant, np.int64)
        for atom, coefficient in index.terms:
            if isinstance(atom, Axis):
                value = self._values[atom]
            elif isinstance(atom, Gathered):
                value = self._drawn(atom)
            else:
                quotient, rest = np.divmod(self.values(atom.index), atom.divisor)
                value = quotient if isinstance(atom, Quotient) else rest
            total += coefficient * value
        return total

    def _drawn(self, atom: Gathered) -> Integers:
        if atom not in self._values:
            low, high = atom.bounds()
            drawn = self._random.integers(low, high + 1, self._count)
            # The ends come first, because faults are most likely there.
            ends = self._random.choice([low, high], self._count)
            self._values[atom] = np.where(self._random.random(self._count) < 0.5, drawn, ends)
        return self._values[atom]

    def keys(self, axes: tuple[Axis, ...]) -> Integers:
        """A key of each point; keys are equal where all of `axes` have equal values."""
        total = np.zeros(self._count, np.int64)
        for axis in axes:
            total = total * axis.extent + self._values[axis]
        return total

    def text(self, number: int) -> str:
        """A point as text."""
        values = [f"{axis.name} = {self._values[axis][number]}" for axis in self._axes]
        return ", ".join(values) or "its only point"


def _unguarded(load: Load) -> Load:
    """The load at points where its bounds hold, so that loads inside its index need no bounds."""
    holding: set[Bound] = set()

    def free(index: Index) -> Index:
        def kept(inner: Load) -> Load:
            return replace(inner, bounds=tuple(one for one in inner.bounds if one not in holding))

        return Rewrite(load=kept).index(index)

    # In this order each bound follows the bounds that it depends on.
    for bound in sorted(load.bounds, key=lambda bound: len([*postorder(Position(bound.index))])):
        holding.add(replace(bound, index=free(bound.index)))
    return replace(load, index=free(load.index), bounds=tuple(holding))
