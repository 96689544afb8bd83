"""Exact zeros in the results of Winograd's algorithm for convolutions; see `zeros.py`.

Terms are examined only if some weight is zero: they then cancel, and rounding errors of the
transform can leave a small number. Without zero weights, a result has only zero terms if its window
is zero. In tiles of 2x2 a result depends on no input outside its window, so such results are
already exactly zero. In larger tiles, windows of zeros are looked for.
"""

from __future__ import annotations

from itertools import product

from lamina.codegen.builder import Builder, Module
from lamina.codegen.filtering import Filtering
from lamina.codegen.values import I32, Type, Value
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.emit.context import parameters
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.zeros import clear, nonzero_n, panel_vectors


def emit_exact_zeros(
    module: Module, filtering: Filtering, panel: Panel, kind: str, lanes: int, rest: int
) -> str:
    """Writes a function that sets exact zeros in a row of tiles, once in a module; gives its name.

    Its parameters are `(inputs, words, results, down, right, positions, channels)`: addresses of
    the copied inputs, of the words of the weights, and of the results; the elements between the
    inputs of two positions, down and to the right; the positions of a row of results; the number of
    channels in vectors of `lanes`, which `rest` further ones follow.
    """
    name = f"winograd_zeros_{filtering.label}_{kind}_{panel.label}_{lanes}_{rest}"
    if module.has(name):
        return name
    names = parameters("inputs words results", "down right positions channels")
    code = module.function(name, names)
    inputs, words, results, down, right, positions, channels = code.parameters

    def narrowed(zeros: Value, start: Value, factors: Value, present: int) -> Value:
        """The bits of each lane that are left after some channels, with the addresses of both."""
        is_set = code.load(start, Type(kind, present))
        weights = code.load(factors, Type("i32", present))
        others = code.select(is_set.differs(0), weights, 0) ^ -1
        return zeros & code.padded(others, lanes, -1)

    def zeros_of_window(window: Value, word: Value) -> Value:
        """The bits of a word that belong to results whose terms all have a zero factor."""
        all_channels = channels + rest
        rows = code.begin_loop(0, filtering.window, 1, [code.splat(word, lanes)])
        columns = code.begin_loop(0, filtering.window, 1, rows.carried)
        start = address(code, window, [(rows.index, down), (columns.index, right)], kind)
        element = rows.index * filtering.window + columns.index
        factors = code.offset(words, element * all_channels, "i32")
        loop = code.begin_loop(0, channels, lanes, columns.carried)
        here = code.offset(start, loop.index, kind)
        there = code.offset(factors, loop.index, "i32")
        (zeros,) = code.end_loop(loop, [narrowed(loop.carried[0], here, there, lanes)])
        if rest:
            here = code.offset(start, channels, kind)
            zeros = narrowed(zeros, here, code.offset(factors, channels, "i32"), rest)
        for loop in (columns, rows):
            going = code.all_bits(zeros).differs(0)
            (zeros,) = code.end_loop(loop, [zeros], going)
        return code.all_bits(zeros)

    with code.loop(0, filtering.results) as row, code.loop(0, positions) as column:
        position = row.index * positions + column.index
        result = code.offset(results, position * panel.width, kind)
        sums = panel_vectors(code, panel, kind, result)
        word = nonzero_n(code, panel, sums)
        with code.when(word.differs(0)):
            start = address(code, inputs, [(row.index, down), (column.index, right)], kind)
            word = zeros_of_window(start, word)
            with code.when(word.differs(0)):
                clear(code, panel, result, sums, word)
    return name


def emit_zero_windows(
    module: Module, filtering: Filtering, kind: str, lanes: int, rest: int
) -> str:
    """Writes a function that looks for windows of zeros, once in a module; gives its name.

    Its parameters are `(inputs, seen, windows, found, rows, columns, channels)`: addresses of the
    copied inputs; of an i32 for each input position, and for each result position, which become
    nonzero if the position, or its window, has a nonzero input; and of an i32 for each row of
    tiles, which becomes zero if none of its windows is zero; the rows and columns of results; and
    the number of channels in vectors of `lanes`, which `rest` further ones follow. The first two
    i32 arrays are a vector longer.
    """
    name = f"winograd_zero_windows_{filtering.label}_{kind}_{lanes}_{rest}"
    if module.has(name):
        return name
    names = parameters("inputs seen windows found", "rows columns channels")
    code = module.function(name, names)
    inputs, seen, windows, found, rows, columns, channels = code.parameters
    margin = filtering.window - 1
    pitch = columns + margin
    count = (rows + margin) * pitch
    all_channels = channels + rest
    with code.loop(0, count) as position:
        start = code.offset(inputs, position.index * all_channels, kind)
        nonzero = _nonzero_input(code, start, kind, channels, lanes, rest)
        code.store(nonzero, code.offset(seen, position.index, "i32"))
    # Vectors of windows may reach past the last row. They find no zeros there.
    vector = Type("i32", lanes)
    code.store(code.constant(1, vector), code.offset(seen, count, "i32"))
    each = filtering.results
    with code.loop(0, rows // each) as tiles:
        within = code.begin_loop(0, each, 1, [code.constant(0, I32)])
        row = tiles.index * each + within.index
        column = code.begin_loop(0, columns, lanes, within.carried)
        first = address(code, seen, [(row, pitch), (column.index, 1)], "i32")
        window = code.constant(0, vector)
        for down, right in product(range(filtering.window), repeat=2):
            moves = [(down, pitch), (right, 1)]
            window = window | code.load(address(code, first, moves, "i32"), vector)
        code.store(window, address(code, windows, [(row, columns), (column.index, 1)], "i32"))
        are_zero = code.bits(window.equals(0), "i32")
        (some,) = code.end_loop(column, [column.carried[0] | are_zero])
        (some,) = code.end_loop(within, [some])
        code.store(some, code.offset(found, tiles.index, "i32"))
    return name


def _nonzero_input(
    code: Builder, start: Value, kind: str, channels: Value, lanes: int, rest: int
) -> Value:
    """Whether an input at a position is not zero in some channel: 1 or 0, an i32."""
    vector = Type(f"i{Type(kind).bits}", lanes)
    loop = code.begin_loop(0, channels, lanes, [code.constant(0, vector)])
    loaded = code.load(code.offset(start, loop.index, kind), vector)
    (bits,) = code.end_loop(loop, [loop.carried[0] | loaded])
    found = [bits]
    if rest:
        found.append(code.load(code.offset(start, channels, kind), vector.wide(rest)))
    words: list[Value] = []
    for one in found:
        # A sign bit alone does not count.
        is_set = code.any_of(one & ((1 << (one.type.bits - 1)) - 1))
        words.append(code.convert("zext", is_set, "i32"))
    return words[0] if len(words) == 1 else words[0] | words[1]


def emit_cleared_windows(module: Module, filtering: Filtering, panel: Panel, kind: str) -> str:
    """Writes a function that clears results of windows of zeros, once in a module; gives its name.

    Its parameters are `(windows, results, count)`: the addresses of an i32 for each result
    position, which is zero if its window is, and of the results of a panel, and the number of
    positions.
    """
    name = f"winograd_cleared_{filtering.label}_{kind}_{panel.label}"
    if module.has(name):
        return name
    code = module.function(name, parameters("windows results", "count"))
    windows, results, count = code.parameters
    with code.loop(0, count) as loop:
        window = code.load(code.offset(windows, loop.index, "i32"), I32)
        with code.when(window.equals(0)):
            result = code.offset(results, loop.index * panel.width, kind)
            sums = panel_vectors(code, panel, kind, result)
            clear(code, panel, result, sums, code.constant(-1, I32))
    return name
