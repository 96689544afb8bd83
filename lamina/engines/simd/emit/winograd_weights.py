"""Weights for Winograd's algorithm, which are transformed when they are packed."""

from __future__ import annotations

from lamina.codegen.builder import Builder
from lamina.codegen.filtering import FILTERINGS
from lamina.codegen.matrix import Matrix
from lamina.codegen.primitives import element
from lamina.codegen.values import I64, Type, Value, constant
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.decide.winograd import PackedWeights, Taps
from lamina.engines.simd.emit.context import Context, Points
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.packing import RightPanel
from lamina.engines.simd.emit.transforms import ListedSquare, along_both
from lamina.engines.simd.emit.zeros import nonzero_n
from lamina.records import frozen_dataclass


@frozen_dataclass
class WeightsFill:
    """Packs a panel of transformed weights.

    Attributes:
        context: of the step.
        packed: the layout of the operand.
        matrix: the contraction.
    """

    context: Context
    packed: PackedWeights
    matrix: Matrix

    def write(self, points: Points, panel: Panel, n_start: Value, target: Value) -> None:
        """Packs all k of the panel whose first column is `n_start` to the address `target`."""
        code, packed, matrix = points.code, self.packed, self.matrix
        kind, taps = element(matrix.step.dtype), packed.taps
        table, thread, *_ = code.parameters
        size = packed.unpacked * packed.panels.width * matrix.step.dtype.itemsize
        self.context.workspaces.need_own(size)
        own = self.context.addresses.own(code, table, thread)
        RightPanel(points, matrix, packed.packing, panel, n_start, own).write_all(packed.unpacked)
        vector = Type(kind, panel.lanes)
        with_zeros = _transform(taps, code, panel, own, target, vector)
        # Padding columns are zeros and do not count.
        present = constant((1 << panel.n) - 1, I64)
        word = code.convert("zext", nonzero_n(code, panel, with_zeros), "i64")
        word = code.binary("and", word, present)
        at = code.offset(target, packed.has_zeros * panel.width, kind)
        code.store(code.convert("trunc", word, "i32"), at)
        with code.when(code.compare("ne", word, constant(0, I64))):
            _write_words(taps, code, panel, own, code.offset(at, panel.width, kind), vector)


def _transform(
    taps: Taps, code: Builder, panel: Panel, weights: Value, target: Value, vector: Type
) -> list[Value]:
    """Transforms the weights of all channels.

    Returns:
        For each vector of the panel, a vector with 1 in columns with a zero weight, otherwise 0.
    """
    kind = vector.element
    matrix_stride = taps.channels * panel.width
    none, one = constant(0, vector), constant(1, vector)
    loop = code.begin_loop(0, taps.channels, 1, [none] * panel.vectors)
    source = address(code, weights, [(loop.index, taps.pitch * panel.width)], kind)
    here = address(code, target, [(loop.index, panel.width)], kind)
    with_zeros: list[Value] = []
    for number, found in enumerate(loop.carried):
        skipped = number * panel.lanes
        loaded: list[Value] = []
        for tap in taps.first:
            weight = code.offset(source, tap * panel.width + skipped, kind)
            loaded.append(code.load(weight, vector))
            found = code.select(code.compare("oeq", loaded[-1], none), one, found)
        with_zeros.append(found)
        square = ListedSquare(loaded, taps.window)
        rows = along_both(code, FILTERINGS[taps.window].weight_transform, square)
        for index, value in enumerate(value for row in rows for value in row):
            code.store(value, code.offset(here, index * matrix_stride + skipped, kind))
    return list(code.end_loop(loop, with_zeros))


def _write_words(
    taps: Taps, code: Builder, panel: Panel, weights: Value, words: Value, vector: Type
) -> None:
    """Writes a word for each weight, with a bit for each column in which it is not zero."""
    first, window, width = taps.first, taps.window, panel.width
    row, column, channel = (
        code.begin_loop(0, extent) for extent in (window, window, taps.channels)
    )
    moves = [(row.index, (first[window] - first[0]) * width)]
    moves += [(column.index, (first[1] - first[0]) * width)]
    moves += [(channel.index, taps.pitch * width)]
    source = code.offset(weights, first[0] * width, vector.element)
    source = address(code, source, moves, vector.element)
    loaded = [
        code.load(code.offset(source, number * panel.lanes, vector.element), vector)
        for number in range(panel.vectors)
    ]
    strides = [window * taps.channels, taps.channels, 1]
    indices = [loop.index for loop in (row, column, channel)]
    target = address(code, words, list(zip(indices, strides, strict=True)), "i32")
    code.store(nonzero_n(code, panel, loaded), target)
    for loop in (channel, column, row):
        code.end_loop(loop)
