"""Exact zeros in results of minimal filtering.

A result is zero by its terms if at least one factor of each is zero. Sums of products are then
zero, whatever their order. Minimal filtering multiplies sums of numbers, and what should cancel
leaves a rounding error, which optimizers that divide by a gradient's own size take for a gradient.
No threshold tells such errors from small results: they grow with terms that are no longer seen.
So the factors themselves are looked at. One bit stands for a result: a word has the bits of a
panel's columns, and it is combined with the numbers of a vector of rows at once. The first terms
decide nearly always, as a term with two factors is enough to keep a result.

NaN and infinity count as factors that are not zero, and a result that is not finite stays so.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from lamina.codegen.llvm import Function
from lamina.codegen.values import I32, I64, POINTER, Type, Value, constant
from lamina.engines.cpu.decide.panels import Panel
from lamina.engines.cpu.emit.context import Context, Points
from lamina.program.index import Axis, Index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Scalar, loads
from lamina.program.steps import Contraction
from lamina.records import frozen_dataclass


def columns_set(code: Function, panel: Panel, vectors: Sequence[Value]) -> Value:
    """A word whose bits say which numbers of a panel's vectors are not zero."""
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


def cleared(code: Function, panel: Panel, number: int, vector: Value, word: Value) -> Value:
    """One of a panel's vectors, with zeros for the columns in the word, if they are finite."""
    bits = code.binary("lshr", word, constant(number * panel.lanes, I32))
    zero = constant(0, vector.type)
    # NaN and infinity times zero are NaN. The sum has no negative zeros.
    nothing = code.add(code.multiply(vector, zero), zero)
    return code.select(code.lanes_of(bits, vector.type.lanes), nothing, vector)


def columns_seen(code: Function, panel: Panel, rows: Sequence[Sequence[Value]]) -> Value:
    """A word whose bits say in which columns some row of a panel has a number but zero."""
    vectors: list[Value] = []
    for column in zip(*rows, strict=True):
        kind = column[0].type
        integer = f"i{kind.bits}"
        first, *others = [code.convert("bitcast", one, integer) for one in column]
        for other in others:
            first = code.binary("or", first, other)
        # Infinity and NaN are made of bits, too; the sign alone is none.
        magnitude = constant((1 << (kind.bits - 1)) - 1, first.type)
        vectors.append(code.binary("and", first, magnitude))
    return columns_set(code, panel, vectors)


def write_narrowing(
    context: Context,
    name: str,
    step: Contraction,
    along: tuple[Axis, int],
    panel: Panel,
    places: Sequence[Axis],
) -> None:
    """`name(table, batch, first, column, words)`: keeps the bits of results that are exact zeros.

    There is a word for each of some rows, from the first one along an axis on, for all places of
    the other axes of the rows. Bits are cleared whose results have a term that is not zero. It is
    over when none is left.

    Args:
        context: where the function is written.
        name: its name.
        step: the contraction, with one axis of a batch and one of columns.
        along: the axis of the rows that lanes run along, and how many.
        panel: the columns.
        places: axes of k that windows move along, each of which is begun in the middle.
    """
    axis_along, lanes = along
    others = [axis for axis in step.m if axis != axis_along]
    numbers = [("batch", I64), ("first", I64), ("column", I64)]
    used = {load.buffer for view in (step.left, step.right) for load in loads(view)}
    points = context.begin(name, (("table", POINTER), *numbers, ("words", POINTER)), used)
    code = points.code
    _, batch, first, column, words = code.parameters
    # What does not depend on the innermost axis of k is found in front of its loop.
    lefts = [
        Rewrite(dict(zip(others, map(Index, place), strict=True))).scalar(step.left)
        for place in product(*(range(axis.extent) for axis in others))
    ]
    terms = _Terms(points, step, along, first, panel, column, places, lefts)
    with points.bound(step.batch[0], batch):
        starts = [code.offset(words, number * lanes, "i32") for number in range(len(lefts))]
        zeros = [code.load(start, Type("i32", lanes)) for start in starts]
        for start, value in zip(starts, terms.over(step.k, zeros), strict=True):
            code.store(value, start)
    code.finish()


@frozen_dataclass
class _Terms:
    """The terms of some results, while the loops over k that look at them are written.

    Attributes:
        points: where they are written, inside the batch.
        step: the contraction.
        along: the axis of the rows that lanes run along, and how many.
        first: the first row.
        panel: the columns.
        column: the first one.
        places: axes of k that windows move along, each of which is begun in the middle.
        lefts: the left operand at all places of the other axes of the rows.
    """

    points: Points
    step: Contraction
    along: tuple[Axis, int]
    first: Value
    panel: Panel
    column: Value
    places: Sequence[Axis]
    lefts: Sequence[Scalar]

    def over(self, axes: Sequence[Axis], zeros: Sequence[Value]) -> Sequence[Value]:
        """What is left of the bits after loops over some axes of k."""
        if not axes:
            return self._narrowed(zeros)
        code, (axis, *rest) = self.points.code, axes
        loop = code.begin_loop(0, axis.extent, 1, zeros)
        place = loop.index
        if axis in self.places:
            place = code.add(place, constant(axis.extent // 2, I64))
            place = code.binary("urem", place, constant(axis.extent, I64))
        with self.points.bound(axis, place):
            following = self.over(rest, loop.carried)
            left = following[0]
            for one in following[1:]:
                left = code.binary("or", left, one)
            return code.end_loop(loop, following, code.any_of(left))

    def _narrowed(self, zeros: Sequence[Value]) -> list[Value]:
        """What is left of the bits after the current k."""
        code, (axis, lanes) = self.points.code, self.along
        kept = code.splat(code.binary("xor", self._columns(), constant(-1, I32)), lanes)
        results: list[Value] = []
        for view, one in zip(self.lefts, zeros, strict=True):
            with self.points.along(axis, self.first, lanes):
                left = self.points.vector(view)
            is_set = code.compare("une", left, constant(0, left.type))
            results.append(code.select(is_set, code.binary("and", one, kept), one))
        return results

    def _columns(self) -> Value:
        """Which numbers of the right operand are not zero, at the current k."""
        code, panel, axis = self.points.code, self.panel, self.step.n[0]
        vectors: list[Value] = []
        for number in range(panel.vectors):
            base = code.add(self.column, constant(number * panel.lanes, I64))
            with self.points.along(axis, base, panel.present(number)):
                vectors.append(self.points.vector(self.step.right))
        return columns_set(code, panel, vectors)
