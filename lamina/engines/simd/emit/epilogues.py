"""The epilogue of a contraction: computes the outputs from sums of a panel, and stores them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from lamina.base.records import frozen_dataclass
from lamina.codegen.primitives import element
from lamina.codegen.values import I64, POINTER, TABLE, Type, Value
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.emit.context import Context, Points
from lamina.program.index import Axis
from lamina.program.steps import Contraction, reads_of, writes_of


@frozen_dataclass
class Epilogue:
    """A loop nest over axes of M, with vectors along N.

    Attributes:
        step: the contraction, with one batch axis and one N axis.
        around: the axes that the caller binds: the batch axis, and perhaps outer axes of M.
        m_axes: the axes of M over which the nest runs.
        pitches: the stride of the sums along each of them.
        panel: the vectors of the panel.
        wide: whether several registers are computed at once.
    """

    step: Contraction
    around: tuple[Axis, ...]
    m_axes: tuple[Axis, ...]
    pitches: tuple[int, ...]
    panel: Panel
    wide: bool


def write_epilogue(context: Context, name: str, epilogue: Epilogue, numbers: Sequence[str]) -> None:
    """Writes `epilogue(table, sums, around.., firsts.., counts.., n_start)`, for some rows of M.

    The function's name begins with `name`; `numbers` are the names of the parameters after `sums`.
    """
    step = epilogue.step
    parameters = (("table", TABLE), ("sums", POINTER), *((number, I64) for number in numbers))
    used = reads_of(step) | writes_of(step)
    points = context.begin(f"{name}_epilogue", parameters, used, calling=True)
    _, sums, *given, n_start = points.code.parameters
    count = len(epilogue.m_axes)
    around, extents = given[: -2 * count], given[-2 * count :]
    ranges = list(zip(extents[:count], extents[count:], strict=True))
    with ExitStack() as stack:
        for axis, value in zip(epilogue.around, around, strict=True):
            stack.enter_context(points.bound(axis, value))
        _write_loops(points, epilogue, ranges, sums, n_start)


def _write_loops(
    points: Points,
    epilogue: Epilogue,
    ranges: Sequence[tuple[Value, Value]],
    source: Value,
    n_start: Value,
) -> None:
    """Loops over the remaining axes of M, each over a range of (first, count)."""
    code, kind = points.code, element(epilogue.step.dtype)
    if not ranges:
        _write_vectors(points, epilogue, source, n_start)
        return
    (first, count), *rest = ranges
    number = len(epilogue.m_axes) - len(ranges)
    end = first + count
    with points.loop(epilogue.m_axes[number], start=first, stop=end) as loop:
        past = loop.index - first
        skipped = past * points.position(epilogue.pitches[number])
        _write_loops(points, epilogue, rest, code.offset(source, skipped, kind), n_start)


def _write_vectors(points: Points, epilogue: Epilogue, source: Value, n_start: Value) -> None:
    code, step, panel = points.code, epilogue.step, epilogue.panel
    kind = element(step.dtype)
    for first, lanes in panel.runs(wide=epilogue.wide):
        base = n_start + points.position(first)
        sums = code.offset(source, first, kind)
        with points.along(step.n[0], base, lanes, multiple=panel.lanes):
            points.define(step.result, code.load(sums, Type(kind, lanes)))
            points.store_all(step.stores)
