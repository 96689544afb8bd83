"""Right operands that are packed before the contractions that use them."""

from __future__ import annotations

from lamina.codegen.matrix import Matrix
from lamina.codegen.values import Value
from lamina.engines.cpu.decide.panels import PackedRight, Panel
from lamina.engines.cpu.decide.winograd import PackedWeights
from lamina.engines.cpu.emit.context import Context, Part, Points
from lamina.engines.cpu.emit.packing import pack_whole, write_prepacking
from lamina.engines.cpu.emit.winograd_weights import fill_with_weights


def emit_prepacking(context: Context, name: str, packed: PackedRight, matrix: Matrix) -> Part:
    """Writes the part that packs a right operand as a whole."""
    if isinstance(packed, PackedWeights):
        fill = fill_with_weights(context, packed, matrix)
        return write_prepacking(context, name, packed, matrix, fill)

    def fill_panel(points: Points, panel: Panel, column: Value, target: Value) -> None:
        pack_whole(points, matrix, panel, target, column, packed.inner)

    return write_prepacking(context, name, packed, matrix, fill_panel)
