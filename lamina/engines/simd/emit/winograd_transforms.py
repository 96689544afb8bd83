"""The transforms of Winograd's algorithms: constant matrices times vectors, unrolled.

Each is a function that is written once in a module. They are long, and convolutions differ only in
the distances between elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from lamina.codegen.builder import Builder, Module
from lamina.codegen.filtering import Filtering, Transform
from lamina.codegen.values import Type, Value
from lamina.engines.simd.decide.packing import Panel
from lamina.engines.simd.emit.context import parameters
from lamina.engines.simd.emit.m_tiles import address

# (row, column) -> a value of a square, which is loaded or computed when it is needed.
_Square = Callable[[int, int], Value]


def emit_data_transform(module: Module, filtering: Filtering, vector: Type) -> str:
    """Writes the transform of an input tile; gives its name.

    Its parameters are `(source, target, down, right, stride, channels)`: the addresses of the tile
    and of the first matrix, the elements between two rows and two columns of the tile and between
    two matrices, and the number of channels, a multiple of the vector's lanes.
    """
    name = f"winograd_data_{filtering.label}_{vector.suffix}"
    if module.has(name):
        return name
    code = module.function(name, parameters("source target", "down right stride channels"))
    source, target, down, right, stride, channels = code.parameters
    with code.loop(0, channels, vector.lanes) as loop:
        here, there = (code.offset(base, loop.index, vector.element) for base in (source, target))
        square = _stored(code, here, down, right, vector)
        store_square(code, along_both(code, filtering.data_transform, square), there, stride)
    return name


def emit_factor_transform(module: Module, filtering: Filtering, vector: Type) -> str:
    """Writes the transform of a tile of output gradients; gives its name.

    Its parameters are `(values..., target, stride)`: the vectors of the tile, row by row, the
    address of the first matrix, and the elements between two matrices.
    """
    name = f"winograd_factors_{filtering.label}_{vector.suffix}"
    if module.has(name):
        return name
    values = [(f"value{number}", vector) for number in range(filtering.results**2)]
    code = module.function(name, (*values, *parameters("target", "stride")))
    *tile, target, stride = code.parameters
    square = listed(tile, filtering.results)
    store_square(code, along_both(code, filtering.gradient_transform, square), target, stride)
    return name


def emit_result_transform(module: Module, filtering: Filtering, panel: Panel, kind: str) -> str:
    """Writes the transform of the products of a row of tiles to rows of sums; gives its name.

    Its parameters are `(products, results, stride, columns)`: the addresses of the first matrix
    and of the sums, the elements between two matrices, and the number of tiles.
    """
    name = f"winograd_results_{filtering.label}_{kind}_{panel.label}"
    if module.has(name):
        return name
    code = module.function(name, parameters("source target", "stride columns"))
    products, results, stride, columns = code.parameters
    down = stride * filtering.input_tile
    pitch = columns * (filtering.results * panel.width)
    with code.loop(0, columns) as loop:
        source = code.offset(products, loop.index * panel.width, kind)
        target = code.offset(results, loop.index * (filtering.results * panel.width), kind)
        for number in range(panel.vectors):
            skipped, vector = number * panel.lanes, Type(kind, panel.lanes_of(number))
            square = _stored(code, code.offset(source, skipped, kind), down, stride, vector)
            rows = along_both(code, filtering.output_transform, square)
            for row, values in enumerate(rows):
                start = address(code, target, [(row, pitch)], kind)
                for column, value in enumerate(values):
                    code.store(value, code.offset(start, column * panel.width + skipped, kind))
    return name


def emit_gradient_transform(
    module: Module, filtering: Filtering, panel: Panel, kind: str, mirrored: tuple[bool, bool]
) -> str:
    """Writes the transform of sums to gradients of a window's weights; gives its name.

    Its parameters are `(sums, gradients, stride, blocks, size)`: the addresses of the first matrix
    and of the gradients, the elements between two matrices, and the number of blocks whose sums
    are added up, each of `size` elements. If windows are mirrored along an axis, so are their
    gradients.
    """
    signs = "_".join("mirrored" if is_mirrored else "plain" for is_mirrored in mirrored)
    name = f"winograd_gradients_{filtering.label}_{kind}_{panel.vectors}x{panel.lanes}_{signs}"
    if module.has(name):
        return name
    code = module.function(name, parameters("source target", "stride blocks size"))
    sums, gradients, stride, blocks, size = code.parameters
    vector = Type(kind, panel.lanes)
    down, right = (range(filtering.window)[:: -1 if is_mirrored else 1] for is_mirrored in mirrored)
    for number in range(panel.vectors):
        skipped = number * panel.lanes
        zeros = [code.constant(0, vector)] * filtering.products
        loop = code.begin_loop(0, blocks, 1, zeros)
        block = code.offset(code.offset(sums, skipped, kind), loop.index * size, kind)
        added = [
            total + code.load(address(code, block, [(element, stride)], kind), vector)
            for element, total in enumerate(loop.carried)
        ]
        square = listed(code.end_loop(loop, added), filtering.input_tile)
        rows = along_both(code, filtering.weight_gradient_transform, square)
        for (row, column), value in zip(
            product(down, right), (value for values in rows for value in values), strict=True
        ):
            offset = (row * filtering.window + column) * panel.width + skipped
            code.store(value, code.offset(gradients, offset, kind))
    return name


def along_both(code: Builder, matrix: Transform, square: _Square) -> list[list[Value]]:
    """A transform along both axes of a square; gives the rows of the result."""
    size = range(len(matrix[0]))
    columns = [_transformed(code, matrix, [square(row, column) for row in size]) for column in size]
    return [_transformed(code, matrix, row) for row in zip(*columns, strict=True)]


def listed(values: Sequence[Value], width: int) -> _Square:
    """A square of values that exist already, row by row."""
    return lambda row, column: values[row * width + column]


def _stored(code: Builder, start: Value, down: Value, right: Value, type: Type) -> _Square:
    """A square of values in memory, `down` and `right` elements apart."""

    def load(row: int, column: int) -> Value:
        moves = [(row, down), (column, right)]
        return code.load(address(code, start, moves, type.element), type)

    return load


def store_square(
    code: Builder, rows: Sequence[Sequence[Value]], target: Value, stride: Value, skipped: int = 0
) -> None:
    """Stores a transformed tile, each value in its matrix, after some elements of that."""
    for number, value in enumerate(value for row in rows for value in row):
        kind = value.type.element
        matrix = address(code, target, [(number, stride)], kind)
        code.store(value, code.offset(matrix, skipped, kind))


def _transformed(code: Builder, matrix: Transform, values: Sequence[Value]) -> list[Value]:
    """A matrix times a vector. Rows that differ only in the sign of one half share both halves."""
    results: list[Value] = []
    for number, row in enumerate(matrix):
        if len(results) > number:
            continue
        following = matrix[number + 1] if number + 1 < len(matrix) else ()
        even = tuple(value if index % 2 == 0 else 0.0 for index, value in enumerate(row))
        odd = tuple(value - half for value, half in zip(row, even, strict=True))
        mirrored = tuple(half - other for half, other in zip(even, odd, strict=True))
        swapped = tuple(-value for value in mirrored)
        if any(even) and any(odd) and following in (mirrored, swapped):
            left, right = _combined(code, even, values), _combined(code, odd, values)
            results.append(left + right)
            ordered = (left, right) if following == mirrored else (right, left)
            results.append(code.subtract(*ordered))
        else:
            results.append(_combined(code, row, values))
    return results


def _combined(code: Builder, factors: Sequence[float], values: Sequence[Value]) -> Value:
    """A sum of products with constant factors; terms with factor 1 come first."""
    terms = [term for term in zip(factors, values, strict=True) if term[0]]
    terms.sort(key=lambda term: term[0] != 1)
    (factor, total), *rest = terms
    if factor != 1:
        total = total * factor
    for factor, value in rest:
        if factor == 1:
            total = total + value
        elif factor == -1:
            total = total - value
        else:
            total = code.multiply_add(value, factor, total)
    return total
