"""Right operands that are packed before the contractions that use them.

Weights for Winograd's algorithm are transformed when they are packed.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from lamina.codegen.builder import Module
from lamina.codegen.filtering import Filtering
from lamina.codegen.matrix import Matrix, as_matrix
from lamina.codegen.primitives import element
from lamina.codegen.values import Type, Value
from lamina.engines.simd.decide.packing import PackedRight, Panel
from lamina.engines.simd.decide.winograd import PackedWeights
from lamina.engines.simd.emit import pairs
from lamina.engines.simd.emit.context import (
    ITEM_RANGE_PARAMETERS,
    Context,
    WrittenKernel,
    parameters,
)
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.packing import RightPanelWriter, panel_address
from lamina.engines.simd.emit.winograd_transforms import along_both, listed, store_square
from lamina.engines.simd.emit.zeros import nonzero_n
from lamina.program.scalar import loads
from lamina.program.steps import Contraction


def emit_prepacking(
    context: Context, name: str, packed: PackedRight, step: Contraction
) -> WrittenKernel:
    """Writes the kernel that packs a right operand as a whole; work items are (batch, panel)."""
    matrix, panels = as_matrix(step, paired=packed.paired), packed.panels
    reads = frozenset(load.buffer for load in loads(matrix.right))
    points = context.begin(name, ITEM_RANGE_PARAMETERS, reads)
    code = points.code
    *_, first, last = code.parameters
    with code.loop(first, last) as loop:
        batch, number = loop.index // panels.count, loop.index % panels.count
        n_start = number * panels.width
        target = panel_address(context, code, packed, loop.index, matrix.element)
        with points.bound(matrix.batch, batch):
            for _, panel, condition, limit in panels.kinds():
                with (
                    code.when(code.compare(condition, number, limit)) as before,
                    points.inside(before),
                ):
                    right = RightPanelWriter(points, matrix, packed.packing, panel, n_start, target)
                    if isinstance(packed, PackedWeights):
                        _pack_transformed(context, packed, right)
                    elif packed.paired and packed.packing.in_memory_order:
                        _pack_rounded(context, packed, right, as_matrix(step))
                    else:
                        right.write_all(packed.k)
    return WrittenKernel(name, reads, frozenset([packed.buffer]))


def _pack_rounded(
    context: Context, packed: PackedRight, right: RightPanelWriter, floats: Matrix
) -> None:
    """Packs a panel in the order of memory as floats, and rounds them to pairs of bfloat16."""
    code, panel = right.points.code, right.panel
    memory, k, width = context.thread_memory(code), floats.k.extent, panel.width
    context.workspaces.need_thread_memory(k * width * Type("float").bytes)
    of_floats = replace(right, matrix=floats)
    replace(of_floats, target=memory).write_all(k)
    with code.loop(0, k // 2) as loop:
        vector = Type("float", panel.lanes)
        source = code.offset(memory, loop.index * (2 * width), "float")
        to = code.offset(right.target, loop.index * width, "i32")
        for first in range(0, width, panel.lanes):
            both = [
                code.load(code.offset(source, number * width + first, "float"), vector)
                for number in (0, 1)
            ]
            code.store(pairs.zipped(code, *both), code.offset(to, first, "i32"))
    of_floats.write_zeros(k // 2, packed.k)


def _pack_transformed(context: Context, packed: PackedWeights, right: RightPanelWriter) -> None:
    """Packs a panel of weights for Winograd's algorithm."""
    code, panel, taps = right.points.code, right.panel, packed.taps
    dtype = right.matrix.step.dtype
    context.workspaces.need_thread_memory(packed.unpacked * packed.panels.width * dtype.itemsize)
    memory = context.thread_memory(code)
    replace(right, target=memory).write_all(packed.unpacked)
    first, width = taps[0], panel.width
    strides = (taps[packed.filtering.window] - first, taps[1] - first, packed.pitch)
    # Padding columns are zeros and do not count.
    numbers = (*(stride * width for stride in strides), packed.channels, (1 << panel.n) - 1)
    transform = _emit_transform(context.module, panel, packed.filtering, element(dtype))
    source = code.offset(memory, first * width, element(dtype))
    code.call_void(transform, source, right.target, *numbers)


def _emit_transform(module: Module, panel: Panel, filtering: Filtering, kind: str) -> str:
    """Writes the transform of weights, once in a module; gives its name.

    Its parameters are `(weights, target, down, right, pitch, channels, present)`: the addresses of
    the first weight and of the result, the elements between two rows of a window, two columns, and
    two channels, the number of channels, and a word with a bit for each column. After the
    transformed weights it stores the words of `PackedWeights`.
    """
    name = f"winograd_weights_{filtering.label}_{kind}_{panel.vectors}x{panel.lanes}"
    if module.has(name):
        return name
    names = parameters("weights target", "down right pitch channels present")
    code = module.function(name, names)
    weights, target, down, right, pitch, channels, present = code.parameters
    window, vector = filtering.window, Type(kind, panel.lanes)
    none = code.constant(0, vector)
    matrix = channels * panel.width
    loop = code.begin_loop(0, channels, 1, [none] * panel.vectors)
    source = code.offset(weights, loop.index * pitch, kind)
    here = code.offset(target, loop.index * panel.width, kind)
    # For each vector of the panel, a vector with 1 in columns with a zero weight, otherwise 0.
    with_zeros: list[Value] = []
    for number, has_zero in enumerate(loop.carried):
        skipped = number * panel.lanes
        loaded: list[Value] = []
        for row, column in product(range(window), repeat=2):
            weight = address(code, source, [(row, down), (column, right)], kind)
            loaded.append(code.load(code.offset(weight, skipped, kind), vector))
            has_zero = code.select(loaded[-1].equals(none), 1, has_zero)
        with_zeros.append(has_zero)
        rows = along_both(code, filtering.weight_transform, listed(loaded, window))
        store_square(code, rows, here, matrix, skipped)
    some = nonzero_n(code, panel, code.end_loop(loop, with_zeros))
    word = code.convert("zext", some, "i64")
    word = word & present
    flag = code.offset(target, channels * filtering.products * panel.width, kind)
    code.store(code.convert("trunc", word, "i32"), flag)
    with code.when(word.differs(0)):
        words = code.offset(flag, panel.width, kind)
        with (
            code.loop(0, window) as row,
            code.loop(0, window) as column,
            code.loop(0, channels) as channel,
        ):
            moves = [(row.index, down), (column.index, right), (channel.index, pitch)]
            source = address(code, weights, moves, kind)
            loaded = [
                code.load(code.offset(source, number * panel.lanes, kind), vector)
                for number in range(panel.vectors)
            ]
            position = row.index * window + column.index
            to = address(code, words, [(position, channels), (channel.index, 1)], "i32")
            code.store(nonzero_n(code, panel, loaded), to)
    return name
