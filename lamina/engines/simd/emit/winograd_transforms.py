"""The transforms of Winograd's algorithms, each a function that is written once in a module.

They are long, and convolutions differ only in the distances between elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from lamina.codegen.builder import Builder, Module
from lamina.codegen.filtering import Filtering
from lamina.codegen.values import I64, POINTER, Type, Value, constant
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.transforms import ListedSquare, StoredSquare, along_both


def emit_data_transform(module: Module, filtering: Filtering, vector: Type) -> str:
    """Writes the transform of an input tile; gives its name.

    Its parameters are `(source, target, down, right, stride, channels)`: the addresses of the tile
    and of the first matrix, the elements between two rows and two columns of the tile and between
    two matrices, and the number of channels, a multiple of the vector's lanes.
    """
    name = f"winograd_data_{filtering.label}_{vector.suffix}"
    if module.has(name):
        return name
    code = _begun(module, name, ("down", "right", "stride", "channels"))
    source, target, down, right, stride, channels = code.parameters
    loop = code.begin_loop(constant(0, I64), channels, vector.lanes)
    here, there = (code.offset(one, loop.index, vector.element) for one in (source, target))
    square = StoredSquare(code, here, down, right, vector)
    _store(code, along_both(code, filtering.data_transform, square), there, stride)
    code.end_loop(loop)
    code.finish()
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
    code = module.function(name, (*values, ("target", POINTER), ("stride", I64)))
    *given, target, stride = code.parameters
    square = ListedSquare(given, filtering.results)
    _store(code, along_both(code, filtering.gradient_transform, square), target, stride)
    code.finish()
    return name


def emit_result_transform(module: Module, filtering: Filtering, panel: Panel, kind: str) -> str:
    """Writes the transform of the products of a row of tiles to rows of sums; gives its name.

    Its parameters are `(products, results, stride, columns)`: the addresses of the first matrix
    and of the sums, the elements between two matrices, and the number of tiles.
    """
    size = f"{panel.vectors}x{panel.lanes}_{panel.last_lanes}"
    name = f"winograd_results_{filtering.label}_{kind}_{size}"
    if module.has(name):
        return name
    code = _begun(module, name, ("stride", "columns"))
    products, results, stride, columns = code.parameters
    down = code.multiply(stride, constant(filtering.input_tile, I64))
    pitch = code.multiply(columns, constant(filtering.results * panel.width, I64))
    loop = code.begin_loop(constant(0, I64), columns)
    source = address(code, products, [(loop.index, panel.width)], kind)
    target = address(code, results, [(loop.index, filtering.results * panel.width)], kind)
    for number in range(panel.vectors):
        last = number == panel.vectors - 1
        skipped = number * panel.lanes
        vector = Type(kind, panel.last_lanes if last else panel.lanes)
        square = StoredSquare(code, code.offset(source, skipped, kind), down, stride, vector)
        rows = along_both(code, filtering.output_transform, square)
        for row, values in enumerate(rows):
            start = address(code, target, [(constant(row, I64), pitch)], kind)
            for column, value in enumerate(values):
                code.store(value, code.offset(start, column * panel.width + skipped, kind))
    code.end_loop(loop)
    code.finish()
    return name


def emit_gradient_transform(
    module: Module, filtering: Filtering, panel: Panel, kind: str, mirrored: tuple[bool, bool]
) -> str:
    """Writes the transform of sums to gradients of a window's weights; gives its name.

    Its parameters are `(sums, gradients, stride, blocks, size)`: the addresses of the first matrix
    and of the gradients, the elements between two matrices, and the number of blocks whose sums
    are added up, each of `size` elements.

    Args:
        module: receives the function.
        filtering: the transforms.
        panel: the vectors of the columns.
        kind: of an element.
        mirrored: for both axes, whether the windows are mirrored; so are their gradients.
    """
    signs = "_".join("mirrored" if one else "plain" for one in mirrored)
    name = f"winograd_gradients_{filtering.label}_{kind}_{panel.vectors}x{panel.lanes}_{signs}"
    if module.has(name):
        return name
    code = _begun(module, name, ("stride", "blocks", "size"))
    sums, gradients, stride, blocks, size = code.parameters
    vector = Type(kind, panel.lanes)
    down, right = (range(filtering.window)[:: -1 if one else 1] for one in mirrored)
    for number in range(panel.vectors):
        skipped = number * panel.lanes
        zeros = [constant(0, vector)] * filtering.products
        loop = code.begin_loop(constant(0, I64), blocks, 1, zeros)
        block = address(code, code.offset(sums, skipped, kind), [(loop.index, size)], kind)
        added: list[Value] = []
        for element, total in enumerate(loop.carried):
            at = address(code, block, [(constant(element, I64), stride)], kind)
            added.append(code.add(total, code.load(at, vector)))
        square = ListedSquare(code.end_loop(loop, added), filtering.input_tile)
        rows = along_both(code, filtering.weight_gradient_transform, square)
        for (row, column), value in zip(
            product(down, right), (value for values in rows for value in values), strict=True
        ):
            offset = (row * filtering.window + column) * panel.width + skipped
            code.store(value, code.offset(gradients, offset, kind))
    code.finish()
    return name


def _begun(module: Module, name: str, numbers: Sequence[str]) -> Builder:
    """Begins a function of two addresses and some numbers."""
    addresses = (("source", POINTER), ("target", POINTER))
    return module.function(name, (*addresses, *((one, I64) for one in numbers)))


def _store(code: Builder, tile: Sequence[Sequence[Value]], target: Value, stride: Value) -> None:
    """Stores a transformed tile, each element in its matrix."""
    for number, value in enumerate(value for row in tile for value in row):
        at = address(code, target, [(constant(number, I64), stride)], value.type.element)
        code.store(value, at)
