"""Weights for Winograd's algorithm, which are transformed when they are packed."""

from __future__ import annotations

from itertools import product

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder, Module
from lamina.codegen.filtering import Filtering
from lamina.codegen.matrix import Matrix
from lamina.codegen.primitives import element
from lamina.codegen.values import I64, POINTER, Type, Value, constant
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.decide.winograd import PackedWeights
from lamina.engines.simd.emit.context import Context, Points
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.packing import RightPanel
from lamina.engines.simd.emit.transforms import ListedSquare, along_both
from lamina.engines.simd.emit.zeros import nonzero_n


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
        first, width = taps.first[0], panel.width
        strides = (taps.first[taps.filtering.window] - first, taps.first[1] - first, taps.pitch)
        code.call_void(
            _emit_transform(self.context.module, panel, taps.filtering, kind),
            code.offset(own, first * width, kind),
            target,
            *(constant(stride * width, I64) for stride in strides),
            constant(taps.channels, I64),
            # Padding columns are zeros and do not count.
            constant((1 << panel.n) - 1, I64),
        )


def _emit_transform(module: Module, panel: Panel, filtering: Filtering, kind: str) -> str:
    """Writes the transform of weights, once in a module; gives its name.

    Its parameters are `(weights, target, down, right, pitch, channels, present)`: the addresses of
    the first weight and of the result, the elements between two rows of a window, two columns, and
    two channels, the number of channels, and a word with a bit for each column.
    """
    name = f"winograd_weights_{filtering.label}_{kind}_{panel.vectors}x{panel.lanes}"
    if module.has(name):
        return name
    numbers = ("down", "right", "pitch", "channels", "present")
    parameters = [("weights", POINTER), ("target", POINTER), *((one, I64) for one in numbers)]
    code = module.function(name, parameters)
    weights, target, down, right, pitch, channels, present = code.parameters
    one = _Weights(code, panel, filtering, kind, weights, (down, right, pitch), channels)
    with_zeros = one.transform(target)
    word = code.convert("zext", nonzero_n(code, panel, with_zeros), "i64")
    word = code.binary("and", word, present)
    products = constant(filtering.products, I64)
    at = address(code, target, [(code.multiply(channels, products), panel.width)], kind)
    code.store(code.convert("trunc", word, "i32"), at)
    with code.when(code.compare("ne", word, constant(0, I64))):
        one.write_words(code.offset(at, panel.width, kind))
    code.finish()
    return name


@frozen_dataclass
class _Weights:
    """The weights of a panel, while their transform is written.

    Attributes:
        code: of the function.
        panel: the vectors of the panel.
        filtering: the transforms.
        kind: of an element.
        start: the address of the first weight.
        strides: the elements between two rows of a window, two columns, and two channels.
        channels: the number of channels.
    """

    code: Builder
    panel: Panel
    filtering: Filtering
    kind: str
    start: Value
    strides: tuple[Value, Value, Value]
    channels: Value

    def transform(self, target: Value) -> list[Value]:
        """Transforms the weights of all channels.

        Returns:
            For each vector of the panel, a vector with 1 in columns with a zero weight, otherwise
            0.
        """
        code, panel, kind = self.code, self.panel, self.kind
        vector = Type(kind, panel.lanes)
        none, one = constant(0, vector), constant(1, vector)
        down, right, pitch = self.strides
        matrix = code.multiply(self.channels, constant(panel.width, I64))
        loop = code.begin_loop(constant(0, I64), self.channels, 1, [none] * panel.vectors)
        source = address(code, self.start, [(loop.index, pitch)], kind)
        here = address(code, target, [(loop.index, panel.width)], kind)
        with_zeros: list[Value] = []
        elements = range(self.filtering.window)
        for number, found in enumerate(loop.carried):
            skipped = number * panel.lanes
            loaded: list[Value] = []
            for row, column in product(elements, elements):
                moves = [(constant(row, I64), down), (constant(column, I64), right)]
                weight = code.offset(address(code, source, moves, kind), skipped, kind)
                loaded.append(code.load(weight, vector))
                found = code.select(code.compare("oeq", loaded[-1], none), one, found)
            with_zeros.append(found)
            square = ListedSquare(loaded, self.filtering.window)
            rows = along_both(code, self.filtering.weight_transform, square)
            for index, value in enumerate(value for row in rows for value in row):
                to = address(code, here, [(constant(index, I64), matrix)], kind)
                code.store(value, code.offset(to, skipped, kind))
        return list(code.end_loop(loop, with_zeros))

    def write_words(self, words: Value) -> None:
        """Writes a word for each weight, with a bit for each column in which it is not zero."""
        code, panel, kind = self.code, self.panel, self.kind
        row, column = (code.begin_loop(0, self.filtering.window) for _ in range(2))
        channel = code.begin_loop(constant(0, I64), self.channels)
        indices = [loop.index for loop in (row, column, channel)]
        source = address(code, self.start, list(zip(indices, self.strides, strict=True)), kind)
        loaded = [
            code.load(code.offset(source, number * panel.lanes, kind), Type(kind, panel.lanes))
            for number in range(panel.vectors)
        ]
        position = code.add(
            code.multiply(row.index, constant(self.filtering.window, I64)), column.index
        )
        target = address(code, words, [(position, self.channels), (channel.index, 1)], "i32")
        code.store(nonzero_n(code, panel, loaded), target)
        for loop in (channel, column, row):
            code.end_loop(loop)
