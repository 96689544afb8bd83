"""The epilogue of a contraction: what is stored of the sums of some rows and a panel of columns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from lamina.codegen.primitives import element
from lamina.codegen.values import I64, POINTER, Type, Value
from lamina.engines.cpu.decide.panels import Panel
from lamina.engines.cpu.emit.context import Context, Points
from lamina.program.index import Axis
from lamina.program.steps import Contraction, reads_of, writes_of
from lamina.records import frozen_dataclass


@frozen_dataclass
class Epilogue:
    """A loop nest over rows, each in vectors along the columns.

    Attributes:
        step: the contraction, with one axis of a batch and one of columns.
        around: the axes that are bound to a number: that of the batch, and perhaps others.
        rows: the axes of the rows.
        pitches: how far apart the sums lie along each of them.
        panel: the columns.
        wide: whether several registers are computed at once.
    """

    step: Contraction
    around: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    pitches: tuple[int, ...]
    panel: Panel
    wide: bool


def write_epilogue(context: Context, name: str, epilogue: Epilogue, numbers: Sequence[str]) -> None:
    """`epilogue(table, sums, around.., firsts.., counts.., column)`: stores some rows.

    Args:
        context: where the function is written.
        name: what its name begins with.
        epilogue: which one.
        numbers: what the parameters behind the sums are called.
    """
    step = epilogue.step
    parameters = (("table", POINTER), ("sums", POINTER), *((number, I64) for number in numbers))
    used = reads_of(step) | writes_of(step)
    points = context.begin(f"{name}_epilogue", parameters, used, calling=True)
    _, sums, *given, column = points.code.parameters
    rows = len(epilogue.rows)
    around, extents = given[: -2 * rows], given[-2 * rows :]
    ranges = list(zip(extents[:rows], extents[rows:], strict=True))
    with ExitStack() as stack:
        for axis, value in zip(epilogue.around, around, strict=True):
            stack.enter_context(points.bound(axis, value))
        _write_rows(points, epilogue, ranges, sums, column)
    points.code.finish()


def _write_rows(
    points: Points,
    epilogue: Epilogue,
    ranges: Sequence[tuple[Value, Value]],
    source: Value,
    column: Value,
) -> None:
    """Loops over the axes that are left, from their first points on, over so many."""
    code, kind = points.code, element(epilogue.step.dtype)
    if not ranges:
        _write_row(points, epilogue, source, column)
        return
    (first, count), *rest = ranges
    number = len(epilogue.rows) - len(ranges)
    end = code.add(first, count)
    with points.loop(epilogue.rows[number], (), first, end) as loop:
        past = code.subtract(loop.index, first)
        skipped = code.multiply(past, points.position(epilogue.pitches[number]))
        _write_rows(points, epilogue, rest, code.offset(source, skipped, kind), column)
        code.end_loop(loop)


def _write_row(points: Points, epilogue: Epilogue, source: Value, column: Value) -> None:
    code, step, panel = points.code, epilogue.step, epilogue.panel
    kind = element(step.dtype)
    for first, lanes in panel.runs(wide=epilogue.wide):
        base = code.add(column, points.position(first))
        place = code.offset(source, first, kind)
        with points.along(step.n[0], base, lanes, multiple=panel.lanes):
            points.define(step.result, code.load(place, Type(kind, lanes)))
            points.store_all(step.stores)
