"""The range of an index where bounds hold: compared with all of its values, and found quickly."""

from __future__ import annotations

import random

import pytest
from index_values import points_of, value_at

from lamina.program.index import Axis, Index, axis_index
from lamina.program.ranges import range_of
from lamina.program.scalar import Bound


def values(index: Index, bounds: list[Bound], axes: list[Axis]) -> list[int]:
    """The values of an index at all points where bounds hold."""
    return [
        value_at(index, point)
        for point in points_of(axes)
        if all(one.low <= value_at(one.index, point) < one.high for one in bounds)
    ]


def some_index(drawn: random.Random, axes: list[Axis]) -> Index:
    index = Index(drawn.randint(-4, 4))
    for axis in drawn.sample(axes, drawn.randint(1, len(axes))):
        index += axis_index(axis) * drawn.choice([-2, -1, 1, 1, 2, 3])
    kind, divisor = drawn.random(), drawn.choice([2, 3])
    return index // divisor if kind < 0.3 else index % divisor if kind < 0.4 else index


@pytest.mark.parametrize("seed", range(10))
def test_no_value_is_outside_the_range(seed: int) -> None:
    drawn = random.Random(seed)
    narrowed = 0
    for _ in range(60):
        axes = [Axis(f"a{number}", drawn.randint(2, 6)) for number in range(drawn.randint(1, 3))]
        bounds: list[Bound] = []
        index = some_index(drawn, axes)
        for _ in range(drawn.randint(1, 3)):
            bounded, low = some_index(drawn, axes), drawn.randint(-5, 5)
            bounds.append(Bound(bounded, low, low + drawn.randint(1, 6)))
            index += bounded * drawn.choice([0, -2, 1, 3])
            index += bounded // drawn.choice([2, 3]) * drawn.choice([0, 0, -1, 1])
        found, expected = range_of(index, tuple(bounds)), values(index, bounds, axes)
        if expected:
            assert found[0] <= min(expected) <= max(expected) <= found[1]
        narrowed += found != index.bounds
    assert narrowed > 20


P, W = Axis("p", 7), Axis("w", 5)
POSITION, ELEMENT = axis_index(P), axis_index(W)
SUM, STRIDED = POSITION + ELEMENT, POSITION * 2 + ELEMENT
WINDOWED = {
    "windows": (SUM - 2, [Bound(SUM - 2, 0, 7)]),
    "strides": (STRIDED * 3, [Bound(STRIDED - 1, 0, 9)]),
    "gaps": ((SUM + 1) // 2, [Bound(SUM + 1, 1, 10)]),
    "whole rows": (SUM // 3, [Bound(SUM // 3, 1, 3)]),
}


@pytest.mark.parametrize(("index", "bounds"), WINDOWED.values(), ids=WINDOWED)
def test_ranges_of_windows_are_exact(index: Index, bounds: list[Bound]) -> None:
    found = values(index, bounds, [P, W])
    assert range_of(index, tuple(bounds)) == (min(found), max(found))


def test_bounds_of_different_axes_narrow_an_index_independently() -> None:
    axes = [Axis(f"a{number}", 3) for number in range(30)]
    index = Index()
    for axis in axes:
        index = index * 3 + axis_index(axis)
    bounds = [Bound(axis_index(axis) - 1, 0, 1) for axis in axes]
    # Every axis can only be 1. To try all orders of 30 bounds would never end.
    middle = sum(3**number for number in range(30))
    assert range_of(index, tuple(bounds)) == (middle, middle)


@pytest.mark.parametrize("count", [10, 30])
def test_a_range_is_found_where_many_bounds_share_an_axis(count: int) -> None:
    shared, axes = Axis("s", 9), [Axis(f"a{number}", 9) for number in range(count)]
    sums = [axis_index(shared) + axis_index(axis) for axis in axes]
    index = Index()
    for one in sums:
        index = index + one
    low, high = range_of(index, tuple(Bound(one, 3, 6) for one in sums))
    if count == 10:
        assert (low, high) == (30, 50)
    # Nobody tries all of the 2 ** 30 sets of bounds: it may be wider than it could be.
    assert 0 <= low <= count * 3
    assert count * 5 <= high <= count * 16
