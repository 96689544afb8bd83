"""Kernels of loop steps: a work item computes all stages of a point."""

from __future__ import annotations

from lamina.codegen.axes import merged_axes
from lamina.codegen.c import Module
from lamina.codegen.stages import Stages, Style
from lamina.engines.gpu.item import Form, work_item
from lamina.engines.gpu.schedule import Ranks
from lamina.engines.gpu.sort import write_sort
from lamina.program.steps import Loop, Sort
from lamina.shapes import size_of

# Reductions of so few iterations are written one after the other, and windows of so many elements.
STYLE = Style(inner_lanes=0, unrolled=8, window=9)


def write_loop(module: Module, name: str, form: Form) -> int:
    """Writes the kernel; gives the number of its work items."""
    assert isinstance(form.steps[0], Loop)
    if isinstance(form.decided, Ranks):
        (sort,) = form.steps[0].stages
        assert isinstance(sort, Sort)
        return write_sort(module, name, form, sort)
    loop = merged_axes(form.steps[0])
    items = size_of([axis.extent for axis in loop.axes])
    if items:
        with work_item(module, name, form, loop.axes) as points:
            Stages(points, STYLE).write(loop.stages)
    return items
