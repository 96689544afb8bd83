"""Right operands that are packed before the contractions that use them."""

from __future__ import annotations

from lamina.codegen.matrix import Matrix
from lamina.codegen.values import Value
from lamina.engines.cpu.decide.panels import PackedRight, Panel
from lamina.engines.cpu.decide.winograd import PackedWeights
from lamina.engines.cpu.emit.context import Context, Points, WrittenKernel
from lamina.engines.cpu.emit.packing import Fill, RightPanel, write_prepacking
from lamina.engines.cpu.emit.winograd_weights import WeightsFill
from lamina.records import frozen_dataclass


def emit_prepacking(
    context: Context, name: str, packed: PackedRight, matrix: Matrix
) -> WrittenKernel:
    """Writes the part that packs a right operand as a whole."""
    fill: Fill = PlainFill(packed, matrix)
    if isinstance(packed, PackedWeights):
        fill = WeightsFill(context, packed, matrix)
    return write_prepacking(context, name, packed, matrix, fill)


@frozen_dataclass
class PlainFill:
    """Packs a panel as it is.

    Attributes:
        packed: the operand.
        matrix: whose it is.
    """

    packed: PackedRight
    matrix: Matrix

    def write(self, points: Points, panel: Panel, column: Value, target: Value) -> None:
        """Packs all k of a panel, from a column on, to a place."""
        right = RightPanel(points, self.matrix, self.packed.packing, panel, column, target)
        right.write_all(self.packed.k)
