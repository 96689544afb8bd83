"""Right operands that are packed before the contractions that use them."""

from __future__ import annotations

from lamina.base.records import frozen_dataclass
from lamina.codegen.matrix import Matrix, as_matrix
from lamina.codegen.values import I64, Type, Value, constant
from lamina.engines.simd.decide.panels import PackedRight, Panel
from lamina.engines.simd.decide.winograd import PackedWeights
from lamina.engines.simd.emit import pairs
from lamina.engines.simd.emit.context import Context, Points, WrittenKernel
from lamina.engines.simd.emit.packing import Fill, RightPanel, write_prepacking
from lamina.engines.simd.emit.winograd_weights import WeightsFill
from lamina.program.steps import Contraction


def emit_prepacking(
    context: Context, name: str, packed: PackedRight, step: Contraction
) -> WrittenKernel:
    """Writes the kernel that packs a right operand as a whole."""
    matrix = as_matrix(step, paired=packed.paired)
    fill: Fill = PlainFill(packed, matrix)
    if packed.paired and packed.packing.in_memory_order:
        fill = PairedFill(context, packed, as_matrix(step))
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


@frozen_dataclass
class PairedFill:
    """Packs a panel in the order of memory as floats, and rounds them to pairs of bfloat16.

    Attributes:
        context: of the step.
        packed: the layout of the operand.
        matrix: the contraction, with the casts to floats.
    """

    context: Context
    packed: PackedRight
    matrix: Matrix

    def write(self, points: Points, panel: Panel, n_start: Value, target: Value) -> None:
        """Packs all k of the panel whose first column is `n_start` to the address `target`."""
        code, width = points.code, panel.width
        table, thread, *_ = code.parameters
        own = self.context.addresses.own(code, table, thread)
        k = self.matrix.k.extent
        self.context.workspaces.need_own(k * width * Type("float").bytes)
        RightPanel(points, self.matrix, self.packed.packing, panel, n_start, own).write_all(k)
        loop = code.begin_loop(0, k // 2)
        vector = Type("float", panel.lanes)
        source = code.offset(own, code.multiply(loop.index, constant(2 * width, I64)), "float")
        to = code.offset(target, code.multiply(loop.index, constant(width, I64)), "i32")
        for first in range(0, width, panel.lanes):
            found = [
                code.load(code.offset(source, number * width + first, "float"), vector)
                for number in (0, 1)
            ]
            code.store(pairs.zipped(code, *found), code.offset(to, first, "i32"))
        code.end_loop(loop)
        whole = RightPanel(points, self.matrix, self.packed.packing, panel, n_start, target)
        whole.write_zeros(k // 2, self.packed.k)
