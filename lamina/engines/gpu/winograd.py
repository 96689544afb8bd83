"""Convolutions by Winograd's algorithm F(2x2, 3x3), as four steps with workspaces.

The transforms are those of `codegen/filtering.py`. The first two steps transform the weights and
the tiles of 4x4 elements of the data, the third one is a batch of 16 contractions over channels,
and the last one transforms its results to tiles of 2x2 and runs the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
from lamina.codegen.filtering import FILTERINGS, Transform
from lamina.codegen.matrix import exchanged
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.program.index import Axis, Index, axis_index, row_major
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Literal, Load, Local, Scalar
from lamina.program.steps import Contraction, Loop, Store, Write
from lamina.program.windows import Sliding

_FILTERING = FILTERINGS[3]
_TILE = _FILTERING.input_tile
# The results of a tile along an axis.
_RESULTS = _FILTERING.results
# The elements of a transformed tile.
PRODUCTS = _FILTERING.products
# (row, column) of a tile -> value.
_Tile = Mapping[tuple[int, int], Scalar]


@frozen_dataclass
class Convolution:
    """A contraction over windows of 3x3, which are in its left operand, along both dimensions."""

    step: Contraction
    windows: tuple[Sliding, Sliding]

    @property
    def positions(self) -> tuple[Axis, Axis]:
        """The axes of the output positions."""
        return _both(one.position for one in self.windows)

    @property
    def elements(self) -> tuple[Axis, Axis]:
        """The axes of the kernel elements."""
        return _both(one.element for one in self.windows)

    @property
    def channels(self) -> tuple[Axis, ...]:
        """The axes that are summed up besides the kernel elements."""
        return tuple(axis for axis in self.step.k if axis not in self.elements)

    @property
    def tiles(self) -> tuple[Axis, ...]:
        """The axes of m, where tiles are counted instead of positions."""
        counted = {one: _tiles_along(one) for one in self.positions}
        return tuple(counted.get(axis, axis) for axis in self.step.m)


def _both(axes: Iterable[Axis | None]) -> tuple[Axis, Axis]:
    first, second = axes
    assert first is not None
    assert second is not None
    return first, second


def _tiles_along(position: Axis) -> Axis:
    return Axis(f"{position.name}_tile", position.extent // _RESULTS)


def convolution_of(step: Contraction) -> Convolution | None:
    """The contraction as a convolution to which the algorithm applies; None if it does not."""
    if not step.left_windows:
        step = exchanged(step)
    windows = step.left_windows
    if step.right_windows or len(windows) != 2 or not step.dtype.is_float:
        return None
    if not all(_fits(one) and one.position in step.m for one in windows):
        return None
    found = Convolution(step, (windows[0], windows[1]))
    return found if found.channels and 0 not in step.extents else None


def _fits(window: Sliding) -> bool:
    """Whether windows have three neighbouring elements at an even number of positions."""
    position, element = window.position, window.element
    return (
        position is not None
        and element is not None
        and position.extent % _RESULTS == 0
        and element.extent == _FILTERING.window
        and (window.stride, abs(window.dilation), window.divisor) == (1, 1, 1)
    )


def winograd_steps(
    step: Contraction, workspaces: StepWorkspaces
) -> tuple[Loop, Loop, Contraction, Loop]:
    """The steps that transform weights and data, multiply them, and transform the results.

    `convolution_of` is not None for the contraction.
    """
    found = convolution_of(step)
    assert found is not None
    own, element = found.step, Axis("element", PRODUCTS)
    sides = (
        (*own.batch, *found.channels, *own.n),
        (*own.batch, *found.tiles, *found.channels),
        (*own.batch, *found.tiles, *own.n),
    )
    names = [workspaces.add(PRODUCTS * _size(axes), own.dtype) for axes in sides]

    def at(side: int, element: Index) -> Index:
        """The index in workspace `side` of an element of the transformed tile at a point."""
        return element * _size(sides[side]) + row_major(sides[side])

    weights = _transformed(_weights(found), _FILTERING.weight_transform)
    data = _transformed(_data(found), _FILTERING.data_transform)
    first, second = (
        Loop(f"{own.name}.{name}", sides[side], (_stores(values, names[side], side, at),))
        for side, name, values in ((0, "weights", weights), (1, "data", data))
    )
    number = axis_index(element)
    left, right = (Load(names[side], at(side, number), own.dtype) for side in (1, 0))
    total = Store(names[2], at(2, number), Local(own.result, own.dtype))
    products = Contraction(
        *(f"{own.name}.products", (element, *own.batch), found.tiles, own.n, found.channels),
        *(left, right, own.result, own.dtype, (total,)),
    )
    summed = {
        (row, column): Load(names[2], at(2, Index(row * _TILE + column)), own.dtype)
        for row, column in product(range(_TILE), range(_TILE))
    }
    results = _transformed(summed, _FILTERING.output_transform)
    stores = [one for tile, value in results.items() for one in _epilogue(found, tile, value)]
    return first, second, products, Loop(own.name, sides[2], (Write((), tuple(stores)),))


def _size(axes: Sequence[Axis]) -> int:
    return size_of([axis.extent for axis in axes])


def _weights(found: Convolution) -> _Tile:
    """The weights of 3x3, in the order in which the data is read."""
    tile: dict[tuple[int, int], Scalar] = {}
    for coordinates in product(range(_FILTERING.window), range(_FILTERING.window)):
        rows = zip(found.elements, found.windows, coordinates, strict=True)
        axes = {axis: Index(_element(window, number)) for axis, window, number in rows}
        tile[coordinates] = Rewrite(axes).scalar(found.step.right)
    return tile


def _element(window: Sliding, number: int) -> int:
    """The kernel element that reads the element of this number after the first one."""
    return number if window.dilation > 0 else _FILTERING.window - 1 - number


def _data(found: Convolution) -> _Tile:
    """The tile of 4x4 elements of the data: positions and kernel elements that read them."""
    tile: dict[tuple[int, int], Scalar] = {}
    for coordinates in product(range(_TILE), range(_TILE)):
        axes: dict[Axis, Index] = {}
        for window, position, element, number in zip(
            found.windows, found.positions, found.elements, coordinates, strict=True
        ):
            first = min(number, _FILTERING.window - 1)
            axes[element] = Index(_element(window, first))
            axes[position] = axis_index(_tiles_along(position)) * _RESULTS + (number - first)
        tile[coordinates] = Rewrite(axes).scalar(found.step.left)
    return tile


def _transformed(tile: _Tile, transform: Transform) -> _Tile:
    """A transform of the rows, then of the columns of a tile."""
    size, count = range(len(transform[0])), range(len(transform))
    rows = {
        (row, column): _combined(transform[row], [tile[one, column] for one in size])
        for row, column in product(count, size)
    }
    return {
        (row, column): _combined(transform[column], [rows[row, one] for one in size])
        for row, column in product(count, count)
    }


def _combined(factors: Sequence[float], values: Sequence[Scalar]) -> Scalar:
    total: Scalar | None = None
    for factor, value in zip(factors, values, strict=True):
        if not factor:
            continue
        if abs(factor) != 1:
            value = Apply("multiply", (value, Literal(abs(factor), value.dtype)), value.dtype)
        if total is None:
            total = value if factor > 0 else Apply("negative", (value,), value.dtype)
        else:
            primitive = "add" if factor > 0 else "subtract"
            total = Apply(primitive, (total, value), value.dtype)
    assert total is not None
    return total


def _stores(tile: _Tile, name: str, side: int, at: Callable[[int, Index], Index]) -> Write:
    stores = (
        Store(name, at(side, Index(row * _TILE + column)), value)
        for (row, column), value in tile.items()
    )
    return Write((), tuple(stores))


def _epilogue(found: Convolution, coordinates: tuple[int, int], total: Scalar) -> Sequence[Store]:
    axes = {
        position: axis_index(_tiles_along(position)) * _RESULTS + number
        for position, number in zip(found.positions, coordinates, strict=True)
    }
    return Rewrite(axes, {found.step.result: total}).records(found.step.stores)
