"""Index expressions equal integer arithmetic, at every point, however they were simplified."""

from __future__ import annotations

import numpy as np
import pytest
from index_values import points_of, value_at

from lamina.program.index import (
    Axis,
    Index,
    axes_of,
    axis_index,
    constant_index,
    flatten,
    unflatten,
)
from lamina.program.rewrite import Rewrite

pytestmark = pytest.mark.each_case


def shapes_of(size: int, generator: np.random.Generator) -> tuple[int, ...]:
    """A random shape with that many elements, ones included."""
    shape: list[int] = []
    while size > 1:
        divisors = [d for d in range(2, size + 1) if size % d == 0]
        extent = int(generator.choice(divisors))
        shape.append(extent)
        size //= extent
    for _ in range(int(generator.integers(0, 3))):
        shape.insert(int(generator.integers(0, len(shape) + 1)), 1)
    return tuple(int(extent) for extent in generator.permutation(shape))


@pytest.mark.parametrize("seed", range(60))
def test_arithmetic_equals_that_of_integers(seed: int) -> None:
    generator = np.random.default_rng(seed)
    axes = [Axis(f"i{n}", int(generator.integers(1, 7))) for n in range(3)]
    every = list(points_of(axes))
    index = constant_index(int(generator.integers(-3, 4)))
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
        found = [value_at(index, point) for point in every]
        assert found == expected, f"after {operation} {number}: {index}"
        low, high = index.bounds
        assert low <= min(expected)
        assert max(expected) <= high


@pytest.mark.parametrize("seed", range(60))
def test_reshapes_and_transposes_equal_numpy(seed: int) -> None:
    generator = np.random.default_rng(seed)
    size = int(generator.choice([6, 12, 24, 36, 60]))
    shape = shapes_of(size, generator)
    array = np.arange(size).reshape(shape)
    last = shapes_of(size, generator)
    axes = [Axis(f"i{n}", extent) for n, extent in enumerate(last)]
    # Coordinates are pulled from the result back to the source, so the movements are undone.
    movements: list[tuple[str, tuple[int, ...]]] = []
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


def test_equal_indices_compare_equal() -> None:
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


def test_an_axis_of_extent_1_is_the_constant_0() -> None:
    assert axis_index(Axis("i", 1)) == Index()


def test_negative_indices_round_down() -> None:
    axis = Axis("i", 5)
    i = axis_index(axis) - 3
    assert [value_at(i // 2, {axis: n}) for n in range(5)] == [-2, -1, -1, 0, 0]
    assert [value_at(i % 2, {axis: n}) for n in range(5)] == [1, 0, 1, 0, 1]


def test_unflatten_of_an_empty_shape_does_not_divide_by_zero() -> None:
    axes = [Axis("i", 0), Axis("j", 3)]
    assert len(unflatten(flatten([axis_index(a) for a in axes], (0, 3)), (3, 0, 2))) == 3


def test_rewriting_replaces_axes_inside_quotients() -> None:
    i, j = Axis("i", 12), Axis("j", 4)
    index = axis_index(i) // 3 * 5 + axis_index(i) % 3
    replaced = Rewrite({i: axis_index(j) * 3}).index(index)
    assert replaced == axis_index(j) * 5
    assert axes_of(index) == {i}
    assert axes_of(replaced) == {j}


def test_bounds_are_tight_for_plain_sums() -> None:
    i, j = axis_index(Axis("i", 5)), axis_index(Axis("j", 3))
    assert (i * 2 - j * 4 + 1).bounds == (-7, 9)
