"""Loop steps, in explicit vectors, as `decide/loops.py` has decided."""

from __future__ import annotations

from dataclasses import replace

from lamina.codegen.axes import merged_axes
from lamina.codegen.stages import Stages, whole, write_nest
from lamina.engines.simd.decide.schedule import LoopSchedule, NestSchedule
from lamina.engines.simd.decide.split_reductions import split_loop
from lamina.engines.simd.emit.context import ITEM_RANGE_PARAMETERS, Context, Points, WrittenKernel
from lamina.engines.simd.emit.sort import MergeSort
from lamina.program.steps import Loop, Sort, reads_of, writes_of


def emit_loops(
    context: Context, name: str, loop: Loop, schedule: LoopSchedule
) -> list[WrittenKernel]:
    """Writes the functions of a loop step; the last one is called `name`."""
    split = split_loop(merged_axes(loop), schedule.split, schedule.blocks)
    for buffer in split.buffers:
        context.need_buffer(buffer.name, buffer.shape, buffer.dtype)
    names = [*(f"{name}_{one.name}" for one in split.loops[:-1]), name]
    return [
        emit_nest(context, function, one, nest)
        for function, one, nest in zip(names, split.loops, schedule.nests, strict=True)
    ]


def emit_nest(context: Context, name: str, loop: Loop, nest: NestSchedule) -> WrittenKernel:
    """Writes the function of a loop nest, with neighbouring axes merged."""
    reads, writes = reads_of(loop), writes_of(loop)
    points = context.begin(name, ITEM_RANGE_PARAMETERS, reads | writes, calling=True)
    _write(context, points, loop, nest)
    return WrittenKernel(name, reads, writes)


def _write(context: Context, points: Points, loop: Loop, nest: NestSchedule) -> None:
    if any(axis.extent == 0 for axis in loop.axes):
        return
    *_, first, last = points.code.parameters
    runs = [whole(axis, nest.lanes if axis == nest.lane else 0) for axis in nest.order]
    runs = [
        replace(run, start=first, stop=last) if run.axis == nest.shared else run for run in runs
    ]
    if isinstance(loop.stages[0], Sort):
        write_nest(points, runs, MergeSort(context, points, loop.stages[0]).write)
        return
    stages = Stages(points, nest.style)
    write_nest(points, runs, lambda: stages.write(loop.stages))
