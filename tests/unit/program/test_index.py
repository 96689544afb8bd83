"""Index expressions equal integer arithmetic at every point; their ranges contain all values."""

import random

import numpy as np
import pytest
from index_values import points_of, value_at

from lamina.program.index import Axis, Index, axis_index, flatten, unflatten
from lamina.program.ranges import range_of
from lamina.program.scalar import Bound

pytestmark = pytest.mark.each_case


def shapes_of(size, generator):
    """A random shape with that many elements, ones included."""
    shape = []
    while size > 1:
        divisors = [d for d in range(2, size + 1) if size % d == 0]
        extent = int(generator.choice(divisors))
        shape.append(extent)
        size //= extent
    for _ in range(int(generator.integers(0, 3))):
        shape.insert(int(generator.integers(0, len(shape) + 1)), 1)
    return tuple(int(extent) for extent in generator.permutation(shape))


@pytest.mark.parametrize("seed", range(60))
def test_arithmetic_equals_that_of_integers(seed):
    generator = np.random.default_rng(seed)
    axes = [Axis(f"i{n}", int(generator.integers(1, 7))) for n in range(3)]
    every = list(points_of(axes))
    index = Index(int(generator.integers(-3, 4)))
    expected = [index.constant] * len(every)
    for _ in range(8):
        operation = generator.choice(["axis", "*", "+", "//", "%", "-self", "self"])
        number = int(generator.integers(1, 9))
        if operation == "axis":
            axis, factor = axes[int(generator.integers(3))], int(generator.integers(-6, 7))
            index = index + axis_index(axis) * factor
            expected = [e + point[axis] * factor for e, point in zip(expected, every, strict=True)]
        elif operation == "*":
            index, expected = index * (number - 4), [e * (number - 4) for e in expected]
        elif operation == "+":
            index, expected = index + (number - 4), [e + number - 4 for e in expected]
        elif operation == "//":
            index, expected = index // number, [e // number for e in expected]
        elif operation == "%":
            index, expected = index % number, [e % number for e in expected]
        elif operation == "-self":
            index, expected = index - (index % number), [e - e % number for e in expected]
        else:
            index = (index // number) * number + index % number
        computed = [value_at(index, point) for point in every]
        assert computed == expected, f"after {operation} {number}: {index}"
        low, high = index.bounds
        assert low <= min(expected)
        assert max(expected) <= high


@pytest.mark.parametrize("seed", range(60))
def test_reshapes_and_transposes_equal_numpy(seed):
    generator = np.random.default_rng(seed)
    size = int(generator.choice([6, 12, 24, 36, 60]))
    shape = shapes_of(size, generator)
    array = np.arange(size).reshape(shape)
    last = shapes_of(size, generator)
    axes = [Axis(f"i{n}", extent) for n, extent in enumerate(last)]
    # Coordinates are pulled from the result back to the source, so the movements are undone.
    movements = []
    for _ in range(3):
        if generator.random() < 0.5:
            order = tuple(int(axis) for axis in generator.permutation(array.ndim))
            movements.append(("transpose", order))
            array = array.transpose(order)
        else:
            movements.append(("reshape", array.shape))
            array = array.reshape(shapes_of(size, generator))
    movements.append(("reshape", array.shape))
    array = array.reshape(last)
    coordinates, here = tuple(axis_index(axis) for axis in axes), last
    for kind, argument in reversed(movements):
        if kind == "reshape":
            coordinates, here = unflatten(flatten(coordinates, here), argument), argument
        else:
            back = tuple(argument.index(axis) for axis in range(len(argument)))
            coordinates = tuple(coordinates[axis] for axis in back)
            here = tuple(here[axis] for axis in back)
    offset = flatten(coordinates, shape)
    if all(kind == "reshape" for kind, _ in movements):
        assert offset == flatten([axis_index(axis) for axis in axes], last)
    assert [value_at(offset, point) for point in points_of(axes)] == list(array.reshape(-1))


def test_equal_indices_compare_equal():
    i, j = axis_index(Axis("i", 6)), axis_index(Axis("j", 4))
    flat = i * 4 + j
    assert flat // 4 == i
    assert flat % 4 == j
    assert flat // 8 == i // 2
    assert (flat // 2) // 2 == i
    assert (flat % 8) % 4 == j
    assert (i // 2) * 2 + i % 2 == i
    assert i + j == j + i
    assert i - i == Index()
    assert (i * 4 + j + 8) // 4 == i + 2
    assert (flat + 24 * 5) % 24 == flat


def test_axes_of_extents_0_and_1_and_the_bounds_of_plain_sums():
    i, j, alone, empty = (axis_index(Axis(f"i{extent}", extent)) for extent in (5, 3, 1, 0))
    assert alone == Index()
    assert len(unflatten(flatten([empty, j], (0, 3)), (3, 0, 2))) == 3
    assert (i * 2 - j * 4 + 1).bounds == (-7, 9)


def values(index, bounds, axes):
    return [
        value_at(index, point)
        for point in points_of(axes)
        if all(one.low <= value_at(one.index, point) < one.high for one in bounds)
    ]


def some_index(drawn, axes):
    index = Index(drawn.randint(-4, 4))
    for axis in drawn.sample(axes, drawn.randint(1, len(axes))):
        index += axis_index(axis) * drawn.choice([-2, -1, 1, 1, 2, 3])
    kind, divisor = drawn.random(), drawn.choice([2, 3])
    return index // divisor if kind < 0.3 else index % divisor if kind < 0.4 else index


@pytest.mark.parametrize("seed", range(10))
def test_no_value_is_outside_the_range(seed):
    drawn = random.Random(seed)
    narrowed = 0
    for _ in range(60):
        axes = [Axis(f"a{number}", drawn.randint(2, 6)) for number in range(drawn.randint(1, 3))]
        bounds = []
        index = some_index(drawn, axes)
        for _ in range(drawn.randint(1, 3)):
            bounded, low = some_index(drawn, axes), drawn.randint(-5, 5)
            bounds.append(Bound(bounded, low, low + drawn.randint(1, 6)))
            index += bounded * drawn.choice([0, -2, 1, 3])
            index += bounded // drawn.choice([2, 3]) * drawn.choice([0, 0, -1, 1])
        limits, expected = range_of(index, tuple(bounds)), values(index, bounds, axes)
        if expected:
            assert limits[0] <= min(expected) <= max(expected) <= limits[1]
        narrowed += limits != index.bounds
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
def test_ranges_of_windows_are_exact(index, bounds):
    found = values(index, bounds, [P, W])
    assert range_of(index, tuple(bounds)) == (min(found), max(found))


def test_bounds_of_different_axes_narrow_an_index_independently():
    axes = [Axis(f"a{number}", 3) for number in range(30)]
    index = Index()
    for axis in axes:
        index = index * 3 + axis_index(axis)
    bounds = [Bound(axis_index(axis) - 1, 0, 1) for axis in axes]
    # Every axis can only be 1. To try all orders of 30 bounds would never end.
    middle = sum(3**number for number in range(30))
    assert range_of(index, tuple(bounds)) == (middle, middle)


@pytest.mark.parametrize("count", [10, 30])
def test_a_range_is_found_where_many_bounds_share_an_axis(count):
    shared, axes = Axis("s", 9), [Axis(f"a{number}", 9) for number in range(count)]
    sums = [axis_index(shared) + axis_index(axis) for axis in axes]
    index = Index()
    for summed in sums:
        index = index + summed
    low, high = range_of(index, tuple(Bound(summed, 3, 6) for summed in sums))
    if count == 10:
        assert (low, high) == (30, 50)
    # Nobody tries all of the 2 ** 30 sets of bounds: it may be wider than it could be.
    assert 0 <= low <= count * 3
    assert count * 5 <= high <= count * 16
