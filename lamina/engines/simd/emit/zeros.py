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
from itertools import product

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder
from lamina.codegen.values import I32, I64, POINTER, TABLE, Type, Value, constant
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.emit.context import Context, Points
from lamina.program.index import Axis, Index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Scalar, loads
from lamina.program.steps import Contraction


def panel_vectors(code: Builder, panel: Panel, kind: str, start: Value) -> list[Value]:
    """Loads the vectors of a row of a panel at an address."""
    lanes = [panel.lanes] * (panel.vectors - 1) + [panel.last_lanes]
    return [
        code.load(code.offset(start, number * panel.lanes, kind), Type(kind, present))
        for number, present in enumerate(lanes)
    ]


def nonzero_n(code: Builder, panel: Panel, vectors: Sequence[Value]) -> Value:
    """A word with a bit for each column of a panel in which the vectors are not zero."""
    word: Value | None = None
    for number, vector in enumerate(vectors):
        relation = "une" if vector.type.is_float else "ne"
        is_set = code.compare(relation, vector, constant(0, vector.type))
        bits = code.bits(is_set, "i32")
        if number:
            bits = code.binary("shl", bits, constant(number * panel.lanes, I32))
        word = bits if word is None else code.binary("or", word, bits)
    assert word is not None
    return word


def cleared(code: Builder, panel: Panel, number: int, vector: Value, word: Value) -> Value:
    """One of a panel's vectors, with zeros in the columns of the word in which it is finite."""
    bits = code.binary("lshr", word, constant(number * panel.lanes, I32))
    zero = constant(0, vector.type)
    # NaN and infinity times zero are NaN. The sum has no negative zeros.
    nothing = code.add(code.multiply(vector, zero), zero)
    return code.select(code.lanes_of(bits, vector.type.lanes), nothing, vector)


def nonzero_n_of_any(code: Builder, panel: Panel, several: Sequence[Sequence[Value]]) -> Value:
    """A word with a bit for each column of a panel in which one of several rows is not zero."""
    vectors: list[Value] = []
    for vectors_of_n in zip(*several, strict=True):
        kind = vectors_of_n[0].type
        integer = f"i{kind.bits}"
        first, *others = [code.convert("bitcast", one, integer) for one in vectors_of_n]
        for other in others:
            first = code.binary("or", first, other)
        # Infinity and NaN have bits too. A sign bit alone does not count.
        magnitude = constant((1 << (kind.bits - 1)) - 1, first.type)
        vectors.append(code.binary("and", first, magnitude))
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

    The function has a word for each of `lanes` rows, from `first` on, along one axis of M, and for
    all points of the other axes of M. It clears the bits of results with a nonzero term, and ends
    when no bit is left.

    Args:
        context: of the step.
        name: of the function.
        step: the contraction, with one batch axis and one N axis.
        along: the axis of M along the lanes, and the number of lanes.
        panel: the vectors of the panel.
        positions: the axes of K along which windows move; their loops begin in the middle.
    """
    axis_along, lanes = along
    others = [axis for axis in step.m if axis != axis_along]
    numbers = [("batch", I64), ("first", I64), ("n_start", I64)]
    used = {load.buffer for view in (step.left, step.right) for load in loads(view)}
    points = context.begin(name, (("table", TABLE), *numbers, ("words", POINTER)), used)
    code = points.code
    _, batch, first, n_start, words = code.parameters
    # With constant coordinates, index terms without the innermost axis of K are hoisted from its
    # loop.
    lefts = [
        Rewrite(dict(zip(others, map(Index, indices), strict=True))).scalar(step.left)
        for indices in product(*(range(axis.extent) for axis in others))
    ]
    terms = _Terms(points, step, along, first, panel, n_start, positions, lefts)
    with points.bound(step.batch[0], batch):
        starts = [code.offset(words, number * lanes, "i32") for number in range(len(lefts))]
        zeros = [code.load(start, Type("i32", lanes)) for start in starts]
        for start, value in zip(starts, terms.over(step.k, zeros), strict=True):
            code.store(value, start)
    code.finish()


@frozen_dataclass
class _Terms:
    """The terms of some results, while the loops over k that examine them are written.

    Attributes:
        points: of the function, inside the batch.
        step: the contraction.
        along: the axis of M along the lanes, and the number of lanes.
        first: the first row.
        panel: the vectors of the panel.
        n_start: its first column.
        positions: the axes of K along which windows move; their loops begin in the middle.
        lefts: the left operand at all points of the other axes of M.
    """

    points: Points
    step: Contraction
    along: tuple[Axis, int]
    first: Value
    panel: Panel
    n_start: Value
    positions: Sequence[Axis]
    lefts: Sequence[Scalar]

    def over(self, axes: Sequence[Axis], zeros: Sequence[Value]) -> Sequence[Value]:
        """The bits that are left after loops over some axes of K."""
        if not axes:
            return self._narrowed(zeros)
        code, (axis, *rest) = self.points.code, axes
        loop = code.begin_loop(0, axis.extent, 1, zeros)
        index = loop.index
        if axis in self.positions:
            index = code.add(index, constant(axis.extent // 2, I64))
            index = code.binary("urem", index, constant(axis.extent, I64))
        with self.points.bound(axis, index):
            following = self.over(rest, loop.carried)
            left = following[0]
            for one in following[1:]:
                left = code.binary("or", left, one)
            return code.end_loop(loop, following, code.any_of(left))

    def _narrowed(self, zeros: Sequence[Value]) -> list[Value]:
        """The bits that are left after the current k."""
        code, (axis, lanes) = self.points.code, self.along
        kept = code.splat(code.binary("xor", self._nonzero_n(), constant(-1, I32)), lanes)
        results: list[Value] = []
        for view, one in zip(self.lefts, zeros, strict=True):
            with self.points.along(axis, self.first, lanes):
                left = self.points.vector(view)
            is_set = code.compare("une", left, constant(0, left.type))
            results.append(code.select(is_set, code.binary("and", one, kept), one))
        return results

    def _nonzero_n(self) -> Value:
        """A word with a bit for each column in which the right operand is not zero, at this k."""
        code, panel, axis = self.points.code, self.panel, self.step.n[0]
        vectors: list[Value] = []
        for number in range(panel.vectors):
            base = code.add(self.n_start, constant(number * panel.lanes, I64))
            with self.points.along(axis, base, panel.present(number)):
                vectors.append(self.points.vector(self.step.right))
        return nonzero_n(code, panel, vectors)
