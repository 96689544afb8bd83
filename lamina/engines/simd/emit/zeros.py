"""Exact zeros in results of Winograd's algorithms.

A result is zero by its terms if each of its products has a zero factor. Sums of such products are
zero in any order. Winograd's algorithms multiply transformed values instead. These should cancel,
but leave rounding errors, and optimizers that divide by the size of a gradient would take the
errors for gradients. No threshold separates such errors from small results, because they grow with
terms that have cancelled. So the factors are examined. Each result has a bit. A word has the bits
of a panel's columns, and is combined with a vector of rows at once. A single term with two nonzero
factors decides a result, so the first few terms decide nearly all results.

NaN and infinity count as nonzero factors, and results that are not finite do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from itertools import product

from lamina.codegen.builder import Builder
from lamina.codegen.values import TABLE, Type, Value
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.emit.context import Context, parameters, vectors_along
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
    """A word with a bit for each column of a panel in which one of several rows is not zero."""
    vectors: list[Value] = []
    for vectors_of_n in zip(*several, strict=True):
        kind = vectors_of_n[0].type
        bits = [code.convert("bitcast", one, f"i{kind.bits}") for one in vectors_of_n]
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
    given = (("table", TABLE), *parameters("", "batch first n_start"), *parameters("words"))
    points = context.begin(name, given, used)
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
