"""Micro-kernels of AMX: up to 2x2 tiles of sums, in the processor's tile registers.

A tile of sums has 16 rows and 16 columns. A tile of the left operand has 16 rows of 32 bfloat16; a
tile of the right one has the same 32 k as 16 rows of pairs, 16 columns wide. That is the layout of
packed panels of pairs. So K is packed with zeros up to a multiple of 32.
"""

from __future__ import annotations

from lamina.codegen.builder import Builder, Module
from lamina.codegen.emulated_tiles import ROWS, configuration
from lamina.codegen.values import I8, I64, POINTER, Value, constant
from lamina.engines.simd.decide.tiles import AMX_STEPS
from lamina.records import frozen_dataclass

# Columns of floats or pairs of a tile register.
_COLUMNS = 16
# The numbers of the first tiles of the left and of the right operand; those before hold sums.
_LEFT, _RIGHT = 4, 6


@frozen_dataclass
class AmxTile:
    """Up to 2x2 tiles of sums, and the layout of the operands.

    Attributes:
        m: the rows, at most 32.
        vectors: the tiles of a row, at most 2; the right operand and the sums are as wide.
        m_stride: bfloat16 between two rows of the left operand, which is contiguous along K.
        fresh: whether sums begin at zero; otherwise they begin with the sums in memory.
    """

    m: int
    vectors: int
    m_stride: int
    fresh: bool

    @property
    def name(self) -> str:
        start = "zero" if self.fresh else "sums"
        return f"amx_{self.m}x{self.vectors}_{self.m_stride}_from_{start}"

    @property
    def rows(self) -> list[int]:
        """The rows of the tiles of sums along M."""
        return _rows(self.m)


def _rows(m: int) -> list[int]:
    return [min(m - first, ROWS) for first in range(0, m, ROWS)]


def begin_tiles(code: Builder, m: int, memory: Value) -> None:
    """Configures the thread's tiles for micro-kernels of `m` rows.

    `memory` is for emulated tiles.
    """
    each = [*_rows(m), 0][:2]
    rows = [each[0], each[0], each[1], each[1], *each, ROWS, ROWS]
    numbers = [constant(number, I64) for number in configuration(rows)]
    table = code.module.table_once(f"tile_rows_{each[0]}_{each[1]}", numbers)
    code.tile_instruction("configure", memory, table)


def end_tiles(code: Builder, memory: Value) -> None:
    """Releases the thread's tiles: then the system need not keep them when it switches threads."""
    code.tile_instruction("release", memory)


def emit_amx_tile(module: Module, tile: AmxTile) -> str:
    """Writes the kernel `(left, right, sums, count, memory)`, once in a module; gives its name.

    It adds the products of `count` times 32 k to the sums. The tiles are configured for its rows.
    """
    if module.has(tile.name):
        return tile.name
    pointers = [(name, POINTER) for name in ("left", "right", "sums")]
    code = module.function(tile.name, (*pointers, ("count", I64), ("memory", POINTER)))
    left, right, sums, count, memory = code.parameters
    width = tile.vectors * _COLUMNS
    row_stride = constant(width * 4, I64)
    left_stride = constant(tile.m_stride * 2, I64)
    # A tile register's number, and the address of its sums.
    targets = [
        (constant(2 * m + n, I8), code.offset(sums, m * ROWS * width + n * _COLUMNS, "float"))
        for m in range(len(tile.rows))
        for n in range(tile.vectors)
    ]
    for number, target in targets:
        if tile.fresh:
            code.tile_instruction("zero", memory, number)
        else:
            code.tile_instruction("load", memory, number, target, row_stride)
    loop = code.begin_loop(constant(0, I64), count)
    skipped = code.multiply(loop.index, constant(AMX_STEPS, I64))
    of_left = code.offset(left, skipped, "i32")
    of_right = code.offset(right, code.multiply(skipped, constant(width, I64)), "i32")
    for n in range(tile.vectors):
        source = code.offset(of_right, n * _COLUMNS, "i32")
        code.tile_instruction("load", memory, constant(_RIGHT + n, I8), source, row_stride)
    for m in range(len(tile.rows)):
        source = code.offset(of_left, m * ROWS * tile.m_stride, "i16")
        one = constant(_LEFT + m, I8)
        code.tile_instruction("load", memory, one, source, left_stride)
        for n in range(tile.vectors):
            operands = constant(2 * m + n, I8), one, constant(_RIGHT + n, I8)
            code.tile_instruction("multiply", memory, *operands)
    code.end_loop(loop)
    for number, target in targets:
        code.tile_instruction("store", memory, number, target, row_stride)
    code.finish()
    return tile.name
