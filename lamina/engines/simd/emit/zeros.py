"""Exact zeros in results of Winograd's algorithms.

A result is zero by its terms if each of its products has a zero factor. Sums of such products are
zero in any order. Winograd's algorithms multiply transformed values instead. These should cancel,
but leave rounding errors, and optimizers that divide by the size of a gradient would take the
errors for gradients. No threshold separates such errors from small results, because they grow with
terms that have cancelled. So the factors are examined. Each result has a bit. A word has the bits
of a panel's columns, and is combined with a vector of rows at once. A single term with two nonzero
factors decides a result, so the first few terms decide nearly all results.

NaN and infinity count as nonzero factors, and results that are not finite do not change.

In convolutions, terms are examined only if some weight is zero: they then cancel, and rounding
errors of the transform can leave a small number. Without zero weights, a result has only zero terms
if its window is zero. In tiles of 2x2 a result depends on no input outside its window, so such
results are already exactly zero. In larger tiles, windows of zeros are looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from itertools import product

from lamina.codegen.builder import Builder, Module
from lamina.codegen.filtering import Filtering
from lamina.codegen.values import I32, TABLE, Type, Value
from lamina.engines.simd.decide.packing import Panel
from lamina.engines.simd.emit.context import Context, parameters, vectors_along
from lamina.engines.simd.emit.m_tiles import address
from lamina.program.index import Axis, Index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import loads
from lamina.program.steps import Contraction


def panel_vectors(code: Builder, panel: Panel, kind: str, start: Value) -> list[Value]:
    """Loads the vectors of a row of a panel at an address."""
    return [
        code.load(code.offset(start, n * panel.lanes, kind), Type(kind, panel.lanes_of(n)))
        for n in range(panel.vectors)
    ]


def nonzero_n(code: Builder, panel: Panel, vectors: Sequence[Value]) -> Value:
    """A word with a bit for each column of a panel in which the vectors are not zero."""
    word: Value | None = None
    for number, vector in enumerate(vectors):
        bits = code.bits(vector.differs(0), "i32")
        if number:
            bits = bits << number * panel.lanes
        word = bits if word is None else word | bits
    assert word is not None
    return word


def clear(code: Builder, panel: Panel, start: Value, vectors: Sequence[Value], word: Value) -> None:
    """Stores a panel's vectors with zeros in the columns of the word in which they are finite."""
    for number, vector in enumerate(vectors):
        target = code.offset(start, number * panel.lanes, vector.type.element)
        bits = word >> number * panel.lanes
        # NaN and infinity times zero are NaN. The sum has no negative zeros.
        nothing = vector * 0 + 0
        lanes = code.lanes_of(bits, vector.type.lanes)
        code.store(code.select(lanes, nothing, vector), target)


def nonzero_n_of_any(code: Builder, panel: Panel, several: Sequence[Sequence[Value]]) -> Value:
    """A word with a bit for each column of a panel: whether any of several rows is not zero."""
    vectors: list[Value] = []
    for vectors_of_n in zip(*several, strict=True):
        kind = vectors_of_n[0].type
        bits = [code.convert("bitcast", vector, f"i{kind.bits}") for vector in vectors_of_n]
        # Infinity and NaN have bits too. A sign bit alone does not count.
        vectors.append(reduce(Value.__or__, bits) & ((1 << (kind.bits - 1)) - 1))
    return nonzero_n(code, panel, vectors)


def write_narrowing(
    context: Context,
    name: str,
    step: Contraction,
    along: tuple[Axis, int],
    panel: Panel,
    positions: Sequence[Axis],
) -> None:
    """Writes `name(table, batch, first, n_start, words)`: keeps the bits of exact zeros.

    The step has one batch axis and one N axis. The function has a word for each of some rows, from
    `first` on, along an axis of M: the pair `along` is that axis and their number, which is the
    number of lanes. It has such words for all points of the other axes of M. It clears the bits of
    results with a nonzero term, and ends when no bit is left. Loops over the axes of K along which
    windows move, the `positions`, begin in the middle.
    """
    axis_along, lanes = along
    others = [axis for axis in step.m if axis != axis_along]
    used = {load.buffer for view in (step.left, step.right) for load in loads(view)}
    declared = (("table", TABLE), *parameters("", "batch first n_start"), *parameters("words"))
    points = context.begin(name, declared, used)
    code = points.code
    _, batch, first, n_start, words = code.parameters
    # With constant coordinates, index terms without the innermost axis of K are hoisted from its
    # loop.
    lefts = [
        Rewrite(dict(zip(others, map(Index, indices), strict=True))).scalar(step.left)
        for indices in product(*(range(axis.extent) for axis in others))
    ]

    def narrowed(zeros: Sequence[Value]) -> list[Value]:
        """The bits that are left after the current k."""
        of_right = vectors_along(
            points, step.n[0], n_start, panel, partial(points.vector, step.right)
        )
        kept = code.splat(nonzero_n(code, panel, list(of_right)) ^ -1, lanes)
        results: list[Value] = []
        for view, word in zip(lefts, zeros, strict=True):
            with points.along(axis_along, first, lanes):
                left = points.vector(view)
            is_set = left.differs(0)
            results.append(code.select(is_set, word & kept, word))
        return results

    def over(axes: Sequence[Axis], zeros: Sequence[Value]) -> Sequence[Value]:
        """The bits that are left after loops over some axes of K."""
        if not axes:
            return narrowed(zeros)
        axis, *rest = axes
        loop = code.begin_loop(0, axis.extent, 1, zeros)
        index = loop.index
        if axis in positions:
            index = (index + axis.extent // 2) % axis.extent
        with points.bound(axis, index):
            following = over(rest, loop.carried)
            return code.end_loop(loop, following, code.any_of(reduce(Value.__or__, following)))

    with points.bound(step.batch[0], batch):
        starts = [code.offset(words, number * lanes, "i32") for number in range(len(lefts))]
        zeros = [code.load(start, Type("i32", lanes)) for start in starts]
        for start, value in zip(starts, over(step.k, zeros), strict=True):
            code.store(value, start)


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
    code = module.function(name, parameters("inputs seen windows found", "rows columns channels"))
    inputs, seen, windows, rows_with_zeros, rows, columns, channels = code.parameters
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
    tile = filtering.results
    with code.loop(0, rows // tile) as tiles:
        within = code.begin_loop(0, tile, 1, [code.constant(0, I32)])
        row = tiles.index * tile + within.index
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
        code.store(some, code.offset(rows_with_zeros, tiles.index, "i32"))
    return name


def _nonzero_input(
    code: Builder, start: Value, kind: str, channels: Value, lanes: int, rest: int
) -> Value:
    """Whether an input at a position is not zero in some channel: 1 or 0, an i32."""
    vector = Type(f"i{Type(kind).bits}", lanes)
    loop = code.begin_loop(0, channels, lanes, [code.constant(0, vector)])
    loaded = code.load(code.offset(start, loop.index, kind), vector)
    (bits,) = code.end_loop(loop, [loop.carried[0] | loaded])
    vectors = [bits]
    if rest:
        vectors.append(code.load(code.offset(start, channels, kind), vector.wide(rest)))
    words: list[Value] = []
    for lane_bits in vectors:
        # A sign bit alone does not count.
        is_set = code.any_of(lane_bits & ((1 << (lane_bits.type.bits - 1)) - 1))
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
