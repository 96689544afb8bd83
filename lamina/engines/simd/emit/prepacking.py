"""Right operands that are packed before the contractions that use them."""

from __future__ import annotations

from dataclasses import replace

from lamina.codegen.matrix import Matrix, as_matrix
from lamina.codegen.values import Type
from lamina.engines.simd.decide.panels import PackedRight
from lamina.engines.simd.decide.winograd import PackedWeights
from lamina.engines.simd.emit import pairs
from lamina.engines.simd.emit.context import ITEM_RANGE_PARAMETERS, Context, WrittenKernel
from lamina.engines.simd.emit.packing import RightPanelWriter, panel_address
from lamina.engines.simd.emit.winograd_weights import pack_weights
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
                        pack_weights(context, packed, right)
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
    own, k, width = context.own(code), floats.k.extent, panel.width
    context.workspaces.need_own(k * width * Type("float").bytes)
    of_floats = replace(right, matrix=floats)
    replace(of_floats, target=own).write_all(k)
    with code.loop(0, k // 2) as loop:
        vector = Type("float", panel.lanes)
        source = code.offset(own, loop.index * (2 * width), "float")
        to = code.offset(right.target, loop.index * width, "i32")
        for first in range(0, width, panel.lanes):
            found = [
                code.load(code.offset(source, number * width + first, "float"), vector)
                for number in (0, 1)
            ]
            code.store(pairs.zipped(code, *found), code.offset(to, first, "i32"))
    of_floats.write_zeros(k // 2, packed.k)
