"""The epilogue of a contraction: computes the outputs from sums of a panel, and stores them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from lamina.codegen.primitives import element
from lamina.codegen.values import I64, POINTER, TABLE, Type
from lamina.engines.simd.decide.packing import Panel
from lamina.engines.simd.emit.context import Context
from lamina.program.index import Axis
from lamina.program.steps import Contraction, reads_of, writes_of


def write_epilogue(
    context: Context,
    name: str,
    numbers: Sequence[str],
    step: Contraction,
    around: Sequence[Axis],
    m_axes: Sequence[Axis],
    pitches: Sequence[int],
    panel: Panel,
    *,
    wide: bool,
) -> None:
    """Writes `epilogue(table, sums, around.., firsts.., counts.., n_start)`, for some rows of M.

    It is a loop nest over axes of M, with vectors along N.

    Args:
        context: the context of the step.
        name: the beginning of the function's name.
        numbers: the names of its parameters after `sums`.
        step: the contraction, with one batch axis and one N axis.
        around: the axes that the caller binds: the batch axis, and perhaps outer axes of M.
        m_axes, pitches: the axes of the nest, and the stride of the sums along each.
        panel: the vectors of the panel.
        wide: whether several registers are computed at once.
    """
    parameters = (("table", TABLE), ("sums", POINTER), *((number, I64) for number in numbers))
    used = reads_of(step) | writes_of(step)
    points = context.begin(f"{name}_epilogue", parameters, used, calling=True)
    _, sums, *integers, n_start = points.code.parameters
    count, kind, code = len(m_axes), element(step.dtype), points.code
    bound, firsts, counts = integers[: -2 * count], integers[-2 * count : -count], integers[-count:]
    with ExitStack() as stack:
        for axis, value in zip(around, bound, strict=True):
            stack.enter_context(points.bound(axis, value))
        for axis, pitch, first, rows in zip(m_axes, pitches, firsts, counts, strict=True):
            loop = stack.enter_context(points.loop(axis, start=first, stop=first + rows))
            sums = code.offset(sums, (loop.index - first) * points.position(pitch), kind)
        for first, lanes in panel.runs(wide=wide):
            base = n_start + points.position(first)
            source = code.offset(sums, first, kind)
            with points.along(step.n[0], base, lanes, multiple=panel.lanes):
                points.define(step.result, code.load(source, Type(kind, lanes)))
                points.store_all(step.stores)
