"""Exact zeros in the results of Winograd's algorithm for convolutions; see `zeros.py`.

Terms are examined only if some weight is zero: they then cancel, and rounding errors of the
transform can leave a small number. Without zero weights, a result has only zero terms if its window
is zero. In tiles of 2x2 a result depends on no input outside its window, so such results are
already exactly zero. In larger tiles, windows of zeros are looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder, Module
from lamina.codegen.filtering import Filtering
from lamina.codegen.values import I32, I64, POINTER, Type, Value, constant
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.zeros import cleared, nonzero_n, panel_vectors


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
    name = f"winograd_zeros_{filtering.label}_{kind}_{_size(panel)}_{lanes}_{rest}"
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
    sums = panel_vectors(code, panel, kind, result)
    word = nonzero_n(code, panel, sums)
    with code.when(code.compare("ne", word, constant(0, I32))):
        start = address(code, inputs, [(row.index, down), (column.index, right)], kind)
        one = _Window(
            *(code, kind, filtering.window, start, words, (down, right), channels, lanes, rest)
        )
        word = one.zeros(word)
        with code.when(code.compare("ne", word, constant(0, I32))):
            _clear(code, panel, kind, result, sums, word)
    code.end_loop(column)
    code.end_loop(row)
    code.finish()
    return name


def emit_zero_windows(
    module: Module, kind: str, filtering: Filtering, lanes: int, rest: int
) -> str:
    """Writes a function that looks for windows of zeros, once in a module; gives its name.

    Its parameters are `(inputs, seen, windows, found, rows, columns, channels)`: addresses of the
    copied inputs; of an i32 for each input position, and for each result position, which become
    nonzero if the position, or its window, has a nonzero input; and of an i32 for each row of
    tiles, which becomes zero if none of its windows is zero; the rows and columns of results; and
    the number of channels without the rest. The first two i32 arrays are a vector longer.

    Args:
        module: receives the function.
        kind: of an element.
        filtering: the transforms.
        lanes: of a vector.
        rest: the channels that follow the whole vectors.
    """
    name = f"winograd_zero_windows_{filtering.label}_{kind}_{lanes}_{rest}"
    if module.has(name):
        return name
    addresses, numbers = ("inputs", "seen", "windows", "found"), ("rows", "columns", "channels")
    parameters = [*((one, POINTER) for one in addresses), *((one, I64) for one in numbers)]
    code = module.function(name, parameters)
    inputs, seen, windows, found, rows, columns, channels = code.parameters
    margin = constant(filtering.window - 1, I64)
    pitch = code.add(columns, margin)
    count = code.multiply(code.add(rows, margin), pitch)
    all_channels = code.add(channels, constant(rest, I64))
    position = code.begin_loop(constant(0, I64), count)
    start = address(code, inputs, [(position.index, all_channels)], kind)
    nonzero = _nonzero_input(code, start, kind, channels, lanes, rest)
    code.store(nonzero, code.offset(seen, position.index, "i32"))
    code.end_loop(position)
    # Vectors of windows may reach past the last row. They find no zeros there.
    vector = Type("i32", lanes)
    code.store(constant(1, vector), code.offset(seen, count, "i32"))
    each = filtering.results
    tiles = code.begin_loop(constant(0, I64), code.binary("udiv", rows, constant(each, I64)))
    within = code.begin_loop(0, each, 1, [constant(0, I32)])
    row = code.add(code.multiply(tiles.index, constant(each, I64)), within.index)
    column = code.begin_loop(constant(0, I64), columns, lanes, within.carried)
    first = address(code, seen, [(row, pitch), (column.index, 1)], "i32")
    window = constant(0, vector)
    for down, right in product(range(filtering.window), repeat=2):
        moves = [(constant(down, I64), pitch), (constant(right, I64), 1)]
        window = code.binary("or", window, code.load(address(code, first, moves, "i32"), vector))
    code.store(window, address(code, windows, [(row, columns), (column.index, 1)], "i32"))
    are_zero = code.bits(code.compare("eq", window, constant(0, vector)), "i32")
    (some,) = code.end_loop(column, [code.binary("or", column.carried[0], are_zero)])
    (some,) = code.end_loop(within, [some])
    code.store(some, code.offset(found, tiles.index, "i32"))
    code.end_loop(tiles)
    code.finish()
    return name


def _nonzero_input(
    code: Builder, start: Value, kind: str, channels: Value, lanes: int, rest: int
) -> Value:
    """Whether an input at a position is not zero in some channel: 1 or 0, an i32."""
    vector = Type(f"i{Type(kind).bits}", lanes)
    loop = code.begin_loop(constant(0, I64), channels, lanes, [constant(0, vector)])
    loaded = code.load(code.offset(start, loop.index, kind), vector)
    (bits,) = code.end_loop(loop, [code.binary("or", loop.carried[0], loaded)])
    found = [bits]
    if rest:
        found.append(code.load(code.offset(start, channels, kind), vector.wide(rest)))
    words: list[Value] = []
    for one in found:
        # A sign bit alone does not count.
        magnitude = constant((1 << (one.type.bits - 1)) - 1, one.type)
        is_set = code.any_of(code.binary("and", one, magnitude))
        words.append(code.convert("zext", is_set, "i32"))
    return words[0] if len(words) == 1 else code.binary("or", *words)


def emit_cleared_windows(module: Module, panel: Panel, kind: str, filtering: Filtering) -> str:
    """Writes a function that clears results of windows of zeros, once in a module; gives its name.

    Its parameters are `(windows, results, count)`: the addresses of an i32 for each result
    position, which is zero if its window is, and of the results of a panel, and the number of
    positions.
    """
    name = f"winograd_cleared_{filtering.label}_{kind}_{_size(panel)}"
    if module.has(name):
        return name
    code = module.function(name, [("windows", POINTER), ("results", POINTER), ("count", I64)])
    windows, results, count = code.parameters
    loop = code.begin_loop(constant(0, I64), count)
    window = code.load(code.offset(windows, loop.index, "i32"), I32)
    with code.when(code.compare("eq", window, constant(0, I32))):
        result = address(code, results, [(loop.index, panel.width)], kind)
        _clear(
            code, panel, kind, result, panel_vectors(code, panel, kind, result), constant(-1, I32)
        )
    code.end_loop(loop)
    code.finish()
    return name


def _size(panel: Panel) -> str:
    return f"{panel.vectors}x{panel.lanes}_{panel.last_lanes}"


def _clear(
    code: Builder, panel: Panel, kind: str, result: Value, sums: Sequence[Value], word: Value
) -> None:
    """Stores zeros at an address in the columns of the word."""
    for number, value in enumerate(sums):
        target = code.offset(result, number * panel.lanes, kind)
        code.store(cleared(code, panel, number, value, word), target)


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
