"""Weights for Winograd's algorithm, which are transformed when they are packed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder, Module
from lamina.codegen.filtering import Filtering
from lamina.codegen.primitives import element
from lamina.codegen.values import Type, Value
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.decide.winograd import PackedWeights
from lamina.engines.simd.emit.context import Context, parameters
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.packing import RightPanelWriter
from lamina.engines.simd.emit.winograd_transforms import along_both, listed, store_square
from lamina.engines.simd.emit.zeros import nonzero_n


def pack_weights(context: Context, packed: PackedWeights, right: RightPanelWriter) -> None:
    """Packs a panel of transformed weights."""
    code, panel, taps = right.points.code, right.panel, packed.taps
    dtype = right.matrix.step.dtype
    context.workspaces.need_own(packed.unpacked * packed.panels.width * dtype.itemsize)
    own = context.own(code)
    replace(right, target=own).write_all(packed.unpacked)
    first, width = taps.first[0], panel.width
    strides = (taps.first[taps.filtering.window] - first, taps.first[1] - first, taps.pitch)
    # Padding columns are zeros and do not count.
    numbers = (*(stride * width for stride in strides), taps.channels, (1 << panel.n) - 1)
    transform = _emit_transform(context.module, panel, taps.filtering, element(dtype))
    source = code.offset(own, first * width, element(dtype))
    code.call_void(transform, source, right.target, *numbers)


def _emit_transform(module: Module, panel: Panel, filtering: Filtering, kind: str) -> str:
    """Writes the transform of weights, once in a module; gives its name.

    Its parameters are `(weights, target, down, right, pitch, channels, present)`: the addresses of
    the first weight and of the result, the elements between two rows of a window, two columns, and
    two channels, the number of channels, and a word with a bit for each column.
    """
    name = f"winograd_weights_{filtering.label}_{kind}_{panel.vectors}x{panel.lanes}"
    if module.has(name):
        return name
    names = parameters("weights target", "down right pitch channels present")
    code = module.function(name, names)
    weights, target, down, right, pitch, channels, present = code.parameters
    one = _Weights(code, panel, filtering, kind, weights, (down, right, pitch), channels)
    word = code.convert("zext", nonzero_n(code, panel, one.transform(target)), "i64")
    word = word & present
    at = code.offset(target, channels * filtering.products * panel.width, kind)
    code.store(code.convert("trunc", word, "i32"), at)
    with code.when(word.differs(0)):
        one.write_words(code.offset(at, panel.width, kind))
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
        code, panel, kind, window = self.code, self.panel, self.kind, self.filtering.window
        vector = Type(kind, panel.lanes)
        none = code.constant(0, vector)
        down, right, pitch = self.strides
        matrix = self.channels * panel.width
        loop = code.begin_loop(0, self.channels, 1, [none] * panel.vectors)
        source = code.offset(self.start, loop.index * pitch, kind)
        here = code.offset(target, loop.index * panel.width, kind)
        with_zeros: list[Value] = []
        for number, found in enumerate(loop.carried):
            skipped = number * panel.lanes
            loaded: list[Value] = []
            for row, column in product(range(window), repeat=2):
                weight = address(code, source, [(row, down), (column, right)], kind)
                loaded.append(code.load(code.offset(weight, skipped, kind), vector))
                found = code.select(loaded[-1].equals(none), 1, found)
            with_zeros.append(found)
            rows = along_both(code, self.filtering.weight_transform, listed(loaded, window))
            store_square(code, rows, here, matrix, skipped)
        return list(code.end_loop(loop, with_zeros))

    def write_words(self, words: Value) -> None:
        """Writes a word for each weight, with a bit for each column in which it is not zero."""
        code, panel, kind, window = self.code, self.panel, self.kind, self.filtering.window
        with (
            code.loop(0, window) as row,
            code.loop(0, window) as column,
            code.loop(0, self.channels) as channel,
        ):
            indices = (loop.index for loop in (row, column, channel))
            source = address(code, self.start, zip(indices, self.strides, strict=True), kind)
            loaded = [
                code.load(code.offset(source, number * panel.lanes, kind), Type(kind, panel.lanes))
                for number in range(panel.vectors)
            ]
            position = row.index * window + column.index
            target = address(code, words, [(position, self.channels), (channel.index, 1)], "i32")
            code.store(nonzero_n(code, panel, loaded), target)
