"""The tile instructions of AMX on bfloat16, as functions by their definition.

So code for processors with AMX can be tested on others. The definitions are those of Intel's
Software Developer's Manual, volume 2. The tiles are memory: 64 bytes of configuration, then eight
tiles of 16 rows of 64 bytes. All tiles have rows of 64 bytes here; some have fewer than 16 rows.
"""

from __future__ import annotations

from collections.abc import Callable

from lamina.codegen.builder import Builder, Module
from lamina.codegen.emulated import bfloat16_of_pairs, without_subnormals
from lamina.codegen.values import I8, I32, I64, POINTER, Type, Value, constant

# Of a tile register.
ROWS, ROW_BYTES, TILES = 16, 64, 8
_TILE_BYTES = ROWS * ROW_BYTES
# The memory of emulated tiles.
MEMORY_BYTES = ROW_BYTES + TILES * _TILE_BYTES
# The offset of the tiles' rows in the configuration.
_ROWS_OFFSET = 48
_ROW = Type("i32", ROWS)
_SUMS = Type("float", ROWS)


def emulated_tile_instruction(module: Module, operation: str) -> str:
    """An instruction as a function `(memory, operands...)`; gives its name.

    Tiles are given by their numbers. The operations are those of `Builder.tile_instruction`.
    """
    name = f"emulated_tile_{operation}"
    if module.has(name):
        return name
    types, write = _OPERATIONS[operation]
    parameters = [("memory", POINTER), *((f"x{n}", type) for n, type in enumerate(types))]
    code = module.function(name, parameters)
    write(code, *code.parameters)
    code.finish()
    return name


def _configure(code: Builder, memory: Value, configuration: Value) -> None:
    code.store(code.load(configuration, _ROW), memory)
    loop = code.begin_loop(0, TILES * ROWS)
    tiles = code.offset(memory, ROW_BYTES, "i8")
    code.store(constant(0, _ROW), _row(code, tiles, loop.index))
    code.end_loop(loop)


def _release(code: Builder, memory: Value) -> None:
    code.store(constant(0, _ROW), memory)


def _zero(code: Builder, memory: Value, tile: Value) -> None:
    target = _address(code, memory, tile)
    loop = code.begin_loop(0, ROWS)
    code.store(constant(0, _ROW), _row(code, target, loop.index))
    code.end_loop(loop)


def _load(code: Builder, memory: Value, tile: Value, source: Value, stride: Value) -> None:
    _zero(code, memory, tile)
    target = _address(code, memory, tile)
    loop = code.begin_loop(constant(0, I64), _rows(code, memory, tile))
    row = code.load(code.offset(source, code.multiply(loop.index, stride), "i8"), _ROW, 1)
    code.store(row, _row(code, target, loop.index))
    code.end_loop(loop)


def _store(code: Builder, memory: Value, tile: Value, target: Value, stride: Value) -> None:
    source = _address(code, memory, tile)
    loop = code.begin_loop(constant(0, I64), _rows(code, memory, tile))
    row = code.load(_row(code, source, loop.index), _ROW)
    code.store(row, code.offset(target, code.multiply(loop.index, stride), "i8"), 1)
    code.end_loop(loop)


def _multiply(code: Builder, memory: Value, sums: Value, left: Value, right: Value) -> None:
    """TDPBF16PS: first and second numbers of pairs are summed separately, then both are added."""
    of_sums, of_left, of_right = (_address(code, memory, tile) for tile in (sums, left, right))
    pairs = _rows(code, memory, right)
    rows = code.begin_loop(constant(0, I64), _rows(code, memory, sums))
    row = _row(code, of_left, rows.index)
    zero = constant(0, _SUMS)
    loop = code.begin_loop(constant(0, I64), pairs, 1, [zero, zero])
    one = code.splat(code.load(code.offset(row, loop.index, "i32"), I32), ROWS)
    others = code.load(_row(code, of_right, loop.index), _ROW)
    totals = [
        without_subnormals(
            code,
            code.multiply_add(
                bfloat16_of_pairs(code, one, number),
                bfloat16_of_pairs(code, others, number),
                total,
            ),
        )
        for number, total in enumerate(loop.carried)
    ]
    first, second = code.end_loop(loop, totals)
    added = without_subnormals(code, code.add(first, second))
    target = _row(code, of_sums, rows.index)
    total = code.add(without_subnormals(code, code.load(target, _SUMS)), added)
    code.store(without_subnormals(code, total), target)
    code.end_loop(rows)


def _address(code: Builder, memory: Value, tile: Value) -> Value:
    """Of a tile, in the memory of emulated tiles."""
    number = code.convert("zext", tile, "i64")
    skipped = code.multiply(number, constant(_TILE_BYTES, I64))
    return code.offset(code.offset(memory, ROW_BYTES, "i8"), skipped, "i8")


def _row(code: Builder, tile: Value, number: Value) -> Value:
    return code.offset(tile, code.multiply(number, constant(ROW_BYTES, I64)), "i8")


def _rows(code: Builder, memory: Value, tile: Value) -> Value:
    """The configured number of rows of a tile."""
    all_rows = code.offset(memory, _ROWS_OFFSET, "i8")
    rows = code.load(code.offset(all_rows, code.convert("zext", tile, "i64"), "i8"), I8)
    return code.convert("zext", rows, "i64")


_OPERATIONS: dict[str, tuple[tuple[Type, ...], Callable[..., None]]] = {
    "configure": ((POINTER,), _configure),
    "release": ((), _release),
    "zero": ((I8,), _zero),
    "load": ((I8, POINTER, I64), _load),
    "store": ((I8, POINTER, I64), _store),
    "multiply": ((I8, I8, I8), _multiply),
}


def configuration(rows: list[int]) -> list[int]:
    """The configuration of tiles with these numbers of rows, as eight integers of 64 bits."""
    widths = [ROW_BYTES if count else 0 for count in rows] + [0] * (16 - len(rows))
    palette = bytes([1]) + bytes(15)
    columns = b"".join(width.to_bytes(2, "little") for width in widths)
    raw = palette + columns + bytes(rows) + bytes(16 - len(rows))
    return [int.from_bytes(raw[at : at + 8], "little") for at in range(0, 64, 8)]
