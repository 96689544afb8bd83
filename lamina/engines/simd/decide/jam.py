"""Neighbouring points of a loop nest that are computed together: unroll and jam.

A sum that is computed alone waits for each of its additions. The sums of several points do not wait
for each other, and read what their points share once. Each sum has the same terms in the same
order as alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lamina.program.index import Axis, Index
from lamina.program.primitive_costs import EXPENSIVE
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Local, Scalar, varying
from lamina.program.steps import Loop, Reduce, Stage, Store, Write, stage_values

# The most points together, and the most operations that are written for them: longer code would
# take longer to compile than it saves.
MOST_POINTS, MOST_OPERATIONS = 8, 160
_EXPENSIVE_OPERATION = 16


def points_together(
    loop: Loop, axes: Iterable[Axis], registers: int, unrolled: int
) -> tuple[Axis, int] | None:
    """The axis of `axes` whose points are computed together, and how many; None if none are.

    Args:
        registers: the most sums that registers hold.
        unrolled: the iterations of a reduction that are unrolled: so few need no other points. -1
            if points without a reduction are computed together too.
    """
    stages = loop.stages
    simple = all(isinstance(s, Reduce) or (isinstance(s, Write) and not s.axes) for s in stages)
    reduced = [stage.axes for stage in stages if isinstance(stage, Reduce)]
    longest = max((axes_[-1].extent if axes_ else 0 for axes_ in reduced), default=0)
    if not simple or longest <= unrolled:
        return None
    sums = max(len(reduced), 1)
    written = max(_operations(value for stage in stages for value in stage_values(stage)), 1)
    most = min(MOST_POINTS, registers // sums, MOST_OPERATIONS // written)
    for axis in axes:
        for count in range(most, 1, -1):
            if axis.extent % count == 0:
                return axis, count
    return None


def _operations(values: Iterable[Scalar]) -> int:
    return sum(
        _EXPENSIVE_OPERATION if scalar.primitive in EXPENSIVE else 1
        for scalar in varying(*values)
        if isinstance(scalar, Apply)
    )


def shortened(axis: Axis, count: int) -> Axis:
    """The axis whose points stand for `count` points of another."""
    return Axis(axis.name, axis.extent // count)


def jammed(loop: Loop, axis: Axis, count: int) -> Loop:
    """The loop with `count` neighbouring points of an axis as one point."""
    new = shortened(axis, count)
    stages: list[Stage] = []
    reduces = [stage for stage in loop.stages if isinstance(stage, Reduce)]
    changes = [
        Rewrite(
            {axis: Index(number, ((new, count),))},
            {stage.local: Local(_of_point(stage, number), stage.dtype) for stage in reduces},
        )
        for number in range(count)
    ]
    for stage in loop.stages:
        if isinstance(stage, Reduce):
            stages += (
                replace(change.record(stage), local=_of_point(stage, number))
                for number, change in enumerate(changes)
            )
        elif isinstance(stage, Write):
            stores: tuple[Store, ...] = ()
            for change in changes:
                stores += change.records(stage.stores)
            stages.append(replace(stage, stores=stores))
    axes = tuple(new if old == axis else old for old in loop.axes)
    return replace(loop, axes=axes, stages=tuple(stages))


def _of_point(stage: Reduce, number: int) -> str:
    """The name of the local of one of the points."""
    return f"{stage.local}.{number}"
