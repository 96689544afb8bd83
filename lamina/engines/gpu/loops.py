"""Kernels of loops: a work item computes all stages of a point, or of a vector of points."""

from __future__ import annotations

from contextlib import ExitStack

from lamina.base.shapes import size_of
from lamina.codegen.c import Module
from lamina.codegen.signatures import Signature
from lamina.codegen.stages import Stages, Style
from lamina.engines.gpu.schedule import LoopSchedule
from lamina.engines.gpu.work_item import loop_of, work_item
from lamina.program.index import Axis

# Reductions of up to 8 iterations are unrolled, and windows of up to 9 elements.
STYLE = Style(inner_lanes=0, unrolled=8, window=9)


def write_loop(module: Module, name: str, signature: Signature[LoopSchedule]) -> int:
    """Writes the kernel; returns the number of its work items."""
    loop, lanes = loop_of(signature), signature.decided.lanes
    axes = list(loop.axes)
    if lanes > 1:
        axes[-1] = Axis("vector", axes[-1].extent // lanes)
    items = size_of([axis.extent for axis in axes])
    if not items:
        return 0
    with work_item(module, name, signature, axes) as points, ExitStack() as across:
        if lanes > 1:
            first = points.code.multiply(points.axis(axes[-1]), points.position(lanes))
            across.enter_context(points.along(loop.axes[-1], first, lanes, multiple=lanes))
        Stages(points, STYLE).write(loop.stages)
    return items
