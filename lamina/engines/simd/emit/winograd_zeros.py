"""Exact zeros in the results of Winograd's algorithm for convolutions; see `zeros.py`.

They are looked for only if some weight is zero: the terms then cancel, and rounding errors of the
transform can leave a small number. Without zero weights a result depends on no input outside its
window, so results whose terms are all zero are already exactly zero.
"""

from __future__ import annotations

from lamina.codegen.builder import Builder, Module
from lamina.codegen.filtering import Filtering
from lamina.codegen.values import I32, I64, POINTER, Type, Value, constant
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.zeros import cleared, nonzero_n
from lamina.records import frozen_dataclass


def emit_exact_zeros(
    module: Module, panel: Panel, kind: str, filtering: Filtering, lanes: int, rest: int
) -> str:
    """Writes a function that sets exact zeros in a row of tiles, once in a module; gives its name.

    Its parameters are `(inputs, words, results, down, right, positions, channels)`: addresses of
    the copied inputs, of the words of the weights, and of the results; the elements between the
    inputs of two positions, down and to the right; the positions of a row of results; the number of
    channels without the rest.

    Args:
        module: receives the function.
        panel: the vectors of the panel.
        kind: of an element.
        filtering: the transforms.
        lanes: of a vector of channels.
        rest: the channels that follow the whole vectors.
    """
    size = f"{panel.vectors}x{panel.lanes}_{panel.last_lanes}"
    name = f"winograd_zeros_{filtering.label}_{kind}_{size}_{lanes}_{rest}"
    if module.has(name):
        return name
    numbers = ("down", "right", "positions", "channels")
    addresses = ("inputs", "words", "results")
    parameters = [*((one, POINTER) for one in addresses), *((one, I64) for one in numbers)]
    code = module.function(name, parameters)
    inputs, words, results, down, right, positions, channels = code.parameters
    row = code.begin_loop(0, filtering.results)
    column = code.begin_loop(constant(0, I64), positions)
    position = code.add(code.multiply(row.index, positions), column.index)
    result = address(code, results, [(position, panel.width)], kind)
    sums: list[Value] = []
    for number in range(panel.vectors):
        last = number == panel.vectors - 1
        vector = Type(kind, panel.last_lanes if last else panel.lanes)
        sums.append(code.load(code.offset(result, number * panel.lanes, kind), vector))
    word = nonzero_n(code, panel, sums)
    with code.when(code.compare("ne", word, constant(0, I32))):
        start = address(code, inputs, [(row.index, down), (column.index, right)], kind)
        one = _Window(
            *(code, kind, filtering.window, start, words, (down, right), channels, lanes, rest)
        )
        word = one.zeros(word)
        with code.when(code.compare("ne", word, constant(0, I32))):
            for number, value in enumerate(sums):
                target = code.offset(result, number * panel.lanes, kind)
                code.store(cleared(code, panel, number, value, word), target)
    code.end_loop(column)
    code.end_loop(row)
    code.finish()
    return name


@frozen_dataclass
class _Window:
    """The window of a position, while the loops that examine its terms are written.

    Attributes:
        code: of the function.
        kind: of an element.
        window: the elements of a window along an axis.
        start: the address of its first input.
        words: the address of a word for each weight, with a bit for each column in which it is not
            zero.
        steps: the elements between two inputs, down and to the right.
        channels: the number of channels in whole vectors.
        lanes: of a vector of channels.
        rest: the channels that follow.
    """

    code: Builder
    kind: str
    window: int
    start: Value
    words: Value
    steps: tuple[Value, Value]
    channels: Value
    lanes: int
    rest: int

    def zeros(self, word: Value) -> Value:
        """The bits of a word that belong to results whose terms all have a zero factor."""
        code, lanes = self.code, self.lanes
        all_channels = code.add(self.channels, constant(self.rest, I64))
        down = code.begin_loop(0, self.window, 1, [code.splat(word, lanes)])
        right = code.begin_loop(0, self.window, 1, down.carried)
        moves = list(zip((down.index, right.index), self.steps, strict=True))
        start = address(code, self.start, moves, self.kind)
        element = code.add(code.multiply(down.index, constant(self.window, I64)), right.index)
        factors = address(code, self.words, [(element, all_channels)], "i32")
        loop = code.begin_loop(constant(0, I64), self.channels, lanes, right.carried)
        here = code.offset(start, loop.index, self.kind)
        there = code.offset(factors, loop.index, "i32")
        (zeros,) = code.end_loop(loop, [self._zeros_of(loop.carried[0], here, there, lanes)])
        if self.rest:
            here = code.offset(start, self.channels, self.kind)
            there = code.offset(factors, self.channels, "i32")
            zeros = self._zeros_of(zeros, here, there, self.rest)
        for loop in (right, down):
            going = code.compare("ne", code.all_bits(zeros), constant(0, I32))
            (zeros,) = code.end_loop(loop, [zeros], going)
        return code.all_bits(zeros)

    def _zeros_of(self, zeros: Value, start: Value, factors: Value, present: int) -> Value:
        """The bits that belong to results whose terms of some channels all have a zero factor.

        Args:
            zeros: the bits for each lane.
            start: the address of the inputs.
            factors: the address of their words.
            present: the number of channels.
        """
        code = self.code
        number = code.load(start, Type(self.kind, present))
        weights = code.load(factors, Type("i32", present))
        is_set = code.compare("une", number, constant(0, number.type))
        weights = code.select(is_set, weights, constant(0, weights.type))
        others = code.binary("xor", weights, constant(-1, weights.type))
        return code.binary("and", zeros, code.padded(others, self.lanes, -1))
