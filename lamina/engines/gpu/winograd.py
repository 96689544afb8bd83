"""Convolutions by Winograd's algorithm F(2x2, 3x3), as four steps with workspaces.

The transforms are in `codegen/filtering.py`. The first two steps transform the weights and
the tiles of 4x4 elements of the data, the third one is a batch of 16 contractions over channels,
and the last one transforms its results to tiles of 2x2 and runs the epilogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType, size_of
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
# (row, column) of a tile -> value.
_Tile = Mapping[tuple[int, int], Scalar]


def convolution_of(step: Contraction) -> Contraction | None:
    """The contraction with windows of 3x3 in its left operand, if the algorithm applies to it."""
    if not step.left_windows:
        step = exchanged(step)
    windows = step.left_windows
    if step.right_windows or len(windows) != 2 or not step.dtype.is_float or 0 in step.extents:
        return None
    elements = [window.element for window in windows]
    has_channels = any(axis not in elements for axis in step.k)
    fits = all(_fits(window) and window.position in step.m for window in windows)
    return step if fits and has_channels else None


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
    contraction: Contraction, workspaces: StepWorkspaces
) -> tuple[Loop, Loop, Contraction, Loop]:
    """The steps that transform weights and data, multiply them, and transform the results.

    `convolution_of` is not None for the contraction.
    """
    step = convolution_of(contraction)
    assert step is not None
    element, batch, n = Axis("element", _FILTERING.products), step.batch, step.n
    # For each position, an axis that counts tiles.
    tiles = {window.position: _tiles_along(window) for window in step.left_windows}
    m = tuple(tiles.get(axis, axis) for axis in step.m)
    elements = [window.element for window in step.left_windows]
    channels = tuple(axis for axis in step.k if axis not in elements)
    sides = (*batch, *channels, *n), (*batch, *m, *channels), (*batch, *m, *n)
    weights, data, sums = (
        _Transformed(workspaces.add(element.extent * _size(axes), step.dtype), axes, step.dtype)
        for axes in sides
    )
    first = _loop(f"{step.name}.weights", weights, _weights(step), _FILTERING.weight_transform)
    second = _loop(f"{step.name}.data", data, _data(step), _FILTERING.data_transform)
    at = axis_index(element)
    products = Contraction(
        *(f"{step.name}.products", (element, *batch), m, n, channels),
        *(data.load(at), weights.load(at), step.result, step.dtype),
        (sums.store(at, Local(step.result, step.dtype)),),
    )
    summed = {
        (row, column): sums.load(Index(row * _TILE + column))
        for row, column in product(range(_TILE), range(_TILE))
    }
    results = _transformed(summed, _FILTERING.output_transform)
    stores = [store for tile, value in results.items() for store in _epilogue(step, tile, value)]
    return first, second, products, Loop(step.name, sums.axes, (Write((), tuple(stores)),))


@frozen_dataclass
class _Transformed:
    """A workspace with the elements of the transformed tile at each point of some axes."""

    name: str
    axes: tuple[Axis, ...]
    dtype: DType

    def _at(self, element: Index) -> Index:
        return element * _size(self.axes) + row_major(self.axes)

    def load(self, element: Index) -> Load:
        return Load(self.name, self._at(element), self.dtype)

    def store(self, element: Index, value: Scalar) -> Store:
        return Store(self.name, self._at(element), value)


def _tiles_along(window: Sliding) -> Axis:
    position = window.position
    assert position is not None
    return Axis(f"{position.name}_tile", position.extent // _RESULTS)


def _loop(name: str, target: _Transformed, tile: _Tile, transform: Transform) -> Loop:
    """The loop that stores the transform of a tile at each point."""
    stores = (
        target.store(Index(row * _TILE + column), value)
        for (row, column), value in _transformed(tile, transform).items()
    )
    return Loop(name, target.axes, (Write((), tuple(stores)),))


def _size(axes: Sequence[Axis]) -> int:
    return size_of([axis.extent for axis in axes])


def _weights(step: Contraction) -> _Tile:
    """The weights of 3x3, in the order in which the data is read."""
    tile: dict[tuple[int, int], Scalar] = {}
    for coordinates in product(range(_FILTERING.window), range(_FILTERING.window)):
        axes: dict[Axis, Index] = {}
        for window, number in zip(step.left_windows, coordinates, strict=True):
            axes |= _element(window, number)
        tile[coordinates] = Rewrite(axes).scalar(step.right)
    return tile


def _element(window: Sliding, number: int) -> dict[Axis, Index]:
    """The kernel element that reads the element of this number after the first one."""
    assert window.element is not None
    last = _FILTERING.window - 1
    return {window.element: Index(number if window.dilation > 0 else last - number)}


def _position(window: Sliding, beyond: int) -> dict[Axis, Index]:
    """The position of a number beyond the first one of a tile."""
    assert window.position is not None
    return {window.position: axis_index(_tiles_along(window)) * _RESULTS + beyond}


def _data(step: Contraction) -> _Tile:
    """The tile of 4x4 elements of the data: positions and kernel elements that read them."""
    tile: dict[tuple[int, int], Scalar] = {}
    for coordinates in product(range(_TILE), range(_TILE)):
        axes: dict[Axis, Index] = {}
        for window, number in zip(step.left_windows, coordinates, strict=True):
            first = min(number, _FILTERING.window - 1)
            axes |= _element(window, first) | _position(window, number - first)
        tile[coordinates] = Rewrite(axes).scalar(step.left)
    return tile


def _transformed(tile: _Tile, transform: Transform) -> _Tile:
    """A transform of the rows, then of the columns of a tile."""
    size, count = range(len(transform[0])), range(len(transform))
    rows = {
        (row, column): _combined(transform[row], [tile[k, column] for k in size])
        for row, column in product(count, size)
    }
    return {
        (row, column): _combined(transform[column], [rows[row, k] for k in size])
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


def _epilogue(step: Contraction, coordinates: tuple[int, int], total: Scalar) -> Sequence[Store]:
    axes: dict[Axis, Index] = {}
    for window, number in zip(step.left_windows, coordinates, strict=True):
        axes |= _position(window, number)
    return Rewrite(axes, {step.result: total}).records(step.stores)
