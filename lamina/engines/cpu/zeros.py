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
from contextlib import ExitStack

from lamina.engines.cpu.context import Context
from lamina.engines.cpu.ir import I32, I64, POINTER, Function, Type, Value, constant
from lamina.engines.cpu.packing import Panel
from lamina.engines.cpu.points import Points
from lamina.program.index import Axis
from lamina.program.scalar import Scalar, loads
from lamina.program.steps import Contraction


def columns_set(code: Function, panel: Panel, vectors: Sequence[Value]) -> Value:
    """A word whose bits say which numbers of a panel's vectors are not zero."""
    word: Value | None = None
    for number, vector in enumerate(vectors):
        is_set = code.compare("une", vector, constant(0, vector.type))
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


def write_narrowing(
    context: Context,
    name: str,
    step: Contraction,
    along: Axis,
    lanes: int,
    panel: Panel,
) -> None:
    """`name(table, batch, first, others..., column, words)`: keeps the bits of exact zeros.

    There is a word for each of some rows, from the first one along an axis on, at the given
    places of the other axes of the rows. Bits are cleared whose results have a term that is not
    zero.

    Args:
        context: where the function is written.
        name: its name.
        step: the contraction, with one axis of a batch and one of columns.
        along: the axis of the rows that lanes run along.
        lanes: how many.
        panel: the columns.
    """
    others = [axis for axis in step.rows if axis != along]
    numbers = ("batch", "first", *(f"row{number}" for number in range(len(others))), "column")
    parameters = (("table", POINTER), *((one, I64) for one in numbers), ("words", POINTER))
    used = {load.buffer for view in (step.left, step.right) for load in loads(view)}
    points = context.begin(name, parameters, used)
    code = points.code
    _, batch, first, *places, column, words = code.parameters

    def nest(axes: Sequence[Axis], zeros: Value) -> Value:
        if not axes:
            word = _columns_at(points, panel, step.columns[0], column, step.right)
            with points.along(along, first, lanes):
                left = points.vector(step.left)
            is_set = code.compare("une", left, constant(0, left.type))
            others = code.binary("xor", word, constant(-1, I32))
            kept = code.binary("and", zeros, code.splat(others, lanes))
            return code.select(is_set, kept, zeros)
        with points.loop(axes[0], [zeros]) as loop:
            (*_, received) = loop.carried
            following = nest(axes[1:], received)
            (zeros,) = code.end_loop(loop, [following], code.any_of(following))
        return zeros

    with ExitStack() as stack:
        stack.enter_context(points.bound(step.batch[0], batch))
        for axis, place in zip(others, places, strict=True):
            stack.enter_context(points.bound(axis, place))
        code.store(nest(step.inner, code.load(words, Type("i32", lanes))), words)
    code.finish()


def _columns_at(points: Points, panel: Panel, axis: Axis, column: Value, view: Scalar) -> Value:
    """Which numbers of the right operand are not zero, at the current k."""
    vectors: list[Value] = []
    for number in range(panel.vectors):
        base = points.code.add(column, constant(number * panel.lanes, I64))
        with points.along(axis, base, panel.present(number)):
            vectors.append(points.vector(view))
    return columns_set(points.code, panel, vectors)
