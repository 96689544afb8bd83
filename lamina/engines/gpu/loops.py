"""Kernels of loop steps: a work item computes all stages of a point."""

from __future__ import annotations

from lamina.codegen.axes import merged_axes
from lamina.codegen.c import Module
from lamina.codegen.stages import Stages, Style
from lamina.engines.gpu.schedule import SortSchedule
from lamina.engines.gpu.sort import write_sort
from lamina.engines.gpu.work_item import StepSignature, work_item
from lamina.program.steps import Loop, Sort
from lamina.shapes import size_of

# Reductions of up to 8 iterations are unrolled, and windows of up to 9 elements.
STYLE = Style(inner_lanes=0, unrolled=8, window=9)


def write_loop(module: Module, name: str, signature: StepSignature) -> int:
    """Writes the kernel; returns the number of its work items."""
    assert isinstance(signature.steps[0], Loop)
    if isinstance(signature.decided, SortSchedule):
        (sort,) = signature.steps[0].stages
        assert isinstance(sort, Sort)
        return write_sort(module, name, signature, sort)
    loop = merged_axes(signature.steps[0])
    items = size_of([axis.extent for axis in loop.axes])
    if items:
        with work_item(module, name, signature, loop.axes) as points:
            Stages(points, STYLE).write(loop.stages)
    return items
