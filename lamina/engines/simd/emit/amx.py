"""Micro-kernels of AMX: up to 2x2 tiles of sums, in the processor's tile registers.

A tile of sums has 16 rows and 16 columns. A tile of the left operand has 16 rows of 32 bfloat16; a
tile of the right one has the same 32 k as 16 rows of pairs, 16 columns wide. That is the layout of
packed panels of pairs. So K is packed with zeros up to a multiple of 32.
"""

from __future__ import annotations

from contextlib import ExitStack

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
from lamina.codegen.builder import Builder, Module
from lamina.engines.simd.decide.tiles import AMX_STEPS
from lamina.engines.simd.emit.tiles import begun_kernel

# The rows of a tile register, their bytes, and their columns of floats or pairs.
_ROWS, _ROW_BYTES, _COLUMNS = 16, 64, 16
# The numbers of the first tiles of the left and of the right operand; those before hold sums.
_LEFT, _RIGHT = 4, 6
# The k of a tile of an operand, and the loop over all k of a left operand that is contiguous along
# K.
_EACH = 2 * AMX_STEPS
_ALONG_K = ((0, _EACH),)


@frozen_dataclass
class AmxTile:
    """Up to 2x2 tiles of sums, and the layout of the operands.

    Attributes:
        m: the rows, at most 32.
        vectors: the tiles of a row, at most 2; the right operand and the sums are as wide.
        m_stride: the bfloat16 between two rows of the left operand.
        fresh: whether sums begin at zero; otherwise they begin with the sums in memory.
        loops: the loops over 32 k at a time, outermost first, as (extent, bfloat16 between two
            iterations in the left operand). With extent 0 the caller passes the extent. In the
            right operand all k are one run.
    """

    m: int
    vectors: int
    m_stride: int
    fresh: bool
    loops: tuple[tuple[int, int], ...] = _ALONG_K

    @property
    def name(self) -> str:
        loops = "_".join(f"{extent or 'k'}x{stride}" for extent, stride in self.loops)
        over = loops.replace("-", "minus")
        start = "zero" if self.fresh else "sums"
        return f"amx_{self.m}x{self.vectors}_{self.m_stride}_over_{over}_from_{start}"

    @property
    def width(self) -> int:
        """The columns of the right operand and of the sums."""
        return self.vectors * _COLUMNS


def begin_tiles(code: Builder, m: int) -> None:
    """Configures the thread's tiles for micro-kernels of `m` rows."""
    upper, lower = min(m, _ROWS), max(m - _ROWS, 0)
    rows = [upper, upper, lower, lower, upper, lower, _ROWS, _ROWS]
    # A configuration: the palette, the bytes of the rows of each tile, and its rows.
    widths = [_ROW_BYTES if count else 0 for count in rows] + [0] * (16 - len(rows))
    columns = b"".join(width.to_bytes(2, "little") for width in widths)
    raw = bytes([1]) + bytes(15) + columns + bytes(rows) + bytes(16 - len(rows))
    words = [int.from_bytes(raw[at : at + 8], "little") for at in range(0, 64, 8)]
    code.tile_instruction("configure", code.module.table_once(f"tile_rows_{upper}_{lower}", words))


def end_tiles(code: Builder) -> None:
    """Releases the thread's tiles: then the system need not keep them when it switches threads."""
    code.tile_instruction("release")


def emit_amx_tile(module: Module, tile: AmxTile) -> str:
    """Writes the kernel `(left, right, sums, counts...)`, once in a module; gives its name.

    It adds the products of all k to the sums. It has a count for each loop without an extent. The
    tiles are configured for its rows.
    """
    if module.has(tile.name):
        return tile.name
    code, counts = begun_kernel(module, tile.name, tile.loops)
    left, right, sums, *_ = code.parameters
    tiles_m = range(-(-tile.m // _ROWS))
    # A tile register's number, and the address of its sums.
    targets = [
        (2 * m + n, code.offset(sums, m * _ROWS * tile.width + n * _COLUMNS, "float"))
        for m in tiles_m
        for n in range(tile.vectors)
    ]
    for number, target in targets:
        if tile.fresh:
            code.tile_instruction("zero", number)
        else:
            code.tile_instruction("load", number, target, tile.width * 4)
    with ExitStack() as stack:
        for depth, (extent, stride) in enumerate(tile.loops):
            loop = stack.enter_context(code.loop(0, counts.get(depth) or code.constant(extent)))
            skipped = loop.index * stride
            # In the right operand, pairs.
            inner = size_of([iterations or 1 for iterations, _ in tile.loops[depth + 1 :]])
            step = code.constant(inner * AMX_STEPS * tile.width)
            for number in counts:
                if number > depth:
                    step = step * counts[number]
            right = code.offset(right, loop.index * step, "i32")
            left = code.offset(left, skipped, "i16")
        for n in range(tile.vectors):
            source = code.offset(right, n * _COLUMNS, "i32")
            code.tile_instruction("load", _RIGHT + n, source, tile.width * 4)
        for m in tiles_m:
            source = code.offset(left, m * _ROWS * tile.m_stride, "i16")
            code.tile_instruction("load", _LEFT + m, source, tile.m_stride * 2)
            for n in range(tile.vectors):
                code.tile_instruction("multiply", 2 * m + n, _LEFT + m, _RIGHT + n)
    for number, target in targets:
        code.tile_instruction("store", number, target, tile.width * 4)
    return tile.name
