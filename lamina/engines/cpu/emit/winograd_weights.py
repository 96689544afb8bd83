"""Weights for Winograd's algorithm, transformed as they are packed."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.codegen.filtering import FILTERINGS
from lamina.codegen.llvm import Function
from lamina.codegen.matrix import Matrix
from lamina.codegen.primitives import element
from lamina.codegen.values import I64, Type, Value, constant
from lamina.engines.cpu.decide.panels import Panel
from lamina.engines.cpu.decide.winograd import PackedWeights, Taps
from lamina.engines.cpu.emit.context import Context, Points
from lamina.engines.cpu.emit.packing import Fill, pack_whole
from lamina.engines.cpu.emit.row_tiles import address
from lamina.engines.cpu.emit.transforms import along_both
from lamina.engines.cpu.emit.zeros import columns_set


def fill_with_weights(context: Context, packed: PackedWeights, matrix: Matrix) -> Fill:
    """Writes the transforming of the weights of a panel."""
    size = packed.unpacked * packed.panels.width * matrix.step.dtype.itemsize
    context.workspaces.need_own(size)
    taps = packed.taps

    def fill(points: Points, panel: Panel, column: Value, target: Value) -> None:
        code, kind = points.code, element(matrix.step.dtype)
        table, thread, *_ = code.parameters
        own = context.workspaces.own(code, table, thread)
        pack_whole(points, matrix, panel, own, column, packed.unpacked)
        vector = Type(kind, panel.lanes)
        apart = taps.channels * panel.width
        none, one = constant(0, vector), constant(1, vector)
        loop = code.begin_loop(0, taps.channels, 1, [none] * panel.vectors)
        source = address(code, own, [(loop.index, taps.pitch * panel.width)], kind)
        here = address(code, target, [(loop.index, panel.width)], kind)
        with_zeros: list[Value] = []
        for number, found in enumerate(loop.carried):
            skipped = number * panel.lanes
            weights: list[Value] = []
            for tap in taps.first:
                place = code.offset(source, tap * panel.width + skipped, kind)
                weights.append(code.load(place, vector))
                found = code.select(code.compare("oeq", weights[-1], none), one, found)
            with_zeros.append(found)

            def weight(row: int, column: int, weights: Sequence[Value] = weights) -> Value:
                return weights[row * taps.window + column]

            rows = along_both(code, FILTERINGS[taps.window].of_weights, weight)
            for place, value in enumerate(value for row in rows for value in row):
                code.store(value, code.offset(here, place * apart + skipped, kind))
        with_zeros = list(code.end_loop(loop, with_zeros))
        # Columns that are not there are zeros.
        present = constant((1 << panel.columns) - 1, I64)
        word = code.convert("zext", columns_set(code, panel, with_zeros), "i64")
        word = code.binary("and", word, present)
        at = code.offset(target, packed.has_zeros * panel.width, kind)
        code.store(code.convert("trunc", word, "i32"), at)
        with code.when(code.compare("ne", word, constant(0, I64))):
            _write_words(taps, code, panel, own, code.offset(at, panel.width, kind), vector)

    return fill


def _write_words(
    taps: Taps, code: Function, panel: Panel, weights: Value, words: Value, vector: Type
) -> None:
    """Which weights are not zero."""
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
    code.store(columns_set(code, panel, loaded), target)
    for loop in (channel, column, row):
        code.end_loop(loop)
