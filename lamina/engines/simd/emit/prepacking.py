"""Right operands that are packed before the contractions that use them."""

from __future__ import annotations

from lamina.codegen.matrix import Matrix
from lamina.codegen.values import Value
from lamina.engines.simd.decide.panels import PackedRight, Panel
from lamina.engines.simd.decide.winograd import PackedWeights
from lamina.engines.simd.emit.context import Context, Points, WrittenKernel
from lamina.engines.simd.emit.packing import Fill, RightPanel, write_prepacking
from lamina.engines.simd.emit.winograd_weights import WeightsFill
from lamina.records import frozen_dataclass


def emit_prepacking(
    context: Context, name: str, packed: PackedRight, matrix: Matrix
) -> WrittenKernel:
    """Writes the kernel that packs a right operand as a whole."""
    fill: Fill = PlainFill(packed, matrix)
    if isinstance(packed, PackedWeights):
        fill = WeightsFill(context, packed, matrix)
    return write_prepacking(context, name, packed, matrix, fill)


@frozen_dataclass
class PlainFill:
    """Packs a panel without a transform.

    Attributes:
        packed: the layout of the operand.
        matrix: the contraction.
    """

    packed: PackedRight
    matrix: Matrix

    def write(self, points: Points, panel: Panel, n_start: Value, target: Value) -> None:
        """Packs all k of the panel whose first column is `n_start` to the address `target`."""
        right = RightPanel(points, self.matrix, self.packed.packing, panel, n_start, target)
        right.write_all(self.packed.k)
