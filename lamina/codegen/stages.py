"""The stages at a point of a loop nest, or at a vector of points: reductions, writes, scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import final

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import int64, size_of
from lamina.codegen.blocks import BlockedLoop, Bound, Carried, blocks_of, write_running
from lamina.codegen.builder import Builder
from lamina.codegen.points import Points
from lamina.codegen.primitives import element
from lamina.codegen.reductions import Combining, Together, combiner
from lamina.codegen.values import Integer, Type, Value
from lamina.errors import InternalError
from lamina.program.index import Axis, Index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Local, Position, postorder
from lamina.program.steps import Reduce, Scan, SegmentSum, Stage, Store, Write


@frozen_dataclass
class Run:
    """One loop of a nest.

    Attributes:
        axis: the axis of the loop.
        start, stop: the first point, and the point after the last; with lanes, numbers of vectors.
        lanes: the points of a vector; the last vector has only the remaining points. 0: scalars.
    """

    axis: Axis
    start: Integer
    stop: Integer
    lanes: int = 0


def full_run(axis: Axis, lanes: int = 0) -> Run:
    """The run along all of an axis."""
    return Run(axis, 0, -(-axis.extent // lanes) if lanes else axis.extent, lanes)


@frozen_dataclass
class Style:
    """How stages are written.

    Attributes:
        inner_lanes: the lanes along the last inner axis of each stage; 0 for none.
        unrolled: the most iterations of a reduction that is unrolled.
        window: the most points of a reduction over several axes that is unrolled.
        joins: whether neighbouring reductions over the same points share a loop.
    """

    inner_lanes: int
    unrolled: int
    window: int
    joins: bool = False


def write_nest(points: Points[Builder], runs: Sequence[Run], body: Callable[[], None]) -> None:
    """Writes loops, the first one outermost, and the body inside them."""
    if not runs:
        body()
        return
    run, *rest = runs
    if run.lanes:
        for _ in _over_vectors(points, run):
            write_nest(points, rest, body)
        return
    with points.loop(run.axis, start=run.start, stop=run.stop):
        write_nest(points, rest, body)


def _over_vectors(points: Points[Builder], run: Run) -> Iterator[None]:
    """Opens a loop over full vectors along an axis, then a vector of the remaining points."""
    code, axis, lanes, stop = points.code, run.axis, run.lanes, run.stop
    full, rest = divmod(axis.extent, lanes)
    if full:
        last = stop
        if isinstance(stop, int):
            last = min(stop, full)
        elif rest:
            last = code.minimum(stop, points.position(full))
        with points.loop(axis, start=run.start, stop=last, lanes=lanes):
            yield
    if not rest:
        return
    base = points.position(full * lanes)
    if isinstance(stop, int):
        with points.along(axis, base, rest, multiple=lanes):
            yield
        return
    with (
        code.when(stop > points.position(full)) as before,
        points.along(axis, base, rest, multiple=lanes, before=before),
    ):
        yield


@final
class Stages:
    """Writes stages at the current point."""

    def __init__(self, points: Points[Builder], style: Style) -> None:
        self._points = points
        self._code = points.code
        self._style = style

    def write(self, stages: Sequence[Stage]) -> None:
        """Writes stages one after the other."""
        for group in _groups_of(stages) if self._style.joins else [[stage] for stage in stages]:
            stage, *_ = group
            if isinstance(stage, Reduce):
                reduces = [reduce for reduce in group if isinstance(reduce, Reduce)]
                for reduce, value in zip(reduces, self._reduced(reduces), strict=True):
                    self._points.define(reduce.local, value)
            elif isinstance(stage, Write):
                self._write(stage)
            elif isinstance(stage, Scan):
                self._scan(stage)
            elif isinstance(stage, SegmentSum):
                self._points.define(stage.local, self._segment_sum(stage))
            else:
                raise InternalError(f"a sort is not written as a stage at a point: {stage}")

    def _across(self, stage: Reduce | Write) -> int:
        """The number of lanes along the stage's last inner axis; 0 if none run along it."""
        if not self._style.inner_lanes or not stage.axes:
            return 0
        if isinstance(stage, Write) and stage.sequential:
            return 0
        lanes = fitting_lanes(self._style.inner_lanes, stage.axes[-1].extent)
        return lanes if lanes > 1 else 0

    def _reduced(self, stages: Sequence[Reduce]) -> list[Value]:
        """The results of reductions over the same points, in one loop."""
        first = stages[0]
        if not first.axes:
            return [self._points.value(stage.value) for stage in stages]
        lanes = self._across(first)
        combiners = [combiner(stage, self._code) for stage in stages]
        combine = Together(combiners)
        carried = combine.start(lanes or self._points.lanes)
        if not lanes and is_window(first, self._style.window):
            for point in np.ndindex(*(axis.extent for axis in first.axes)):
                at = Rewrite(dict(zip(first.axes, map(Index, point), strict=True)))
                carried = combine.accumulate(self._points, carried, at)
        elif all(axis.extent for axis in first.axes):
            carried = self._reduce_nest(first.axes, lanes, combine, carried)
        parts = zip(combiners, combine.parts(carried), strict=True)
        return [each.finish(part) if lanes else each.result(part) for each, part in parts]

    def _reduce_nest(
        self, axes: Sequence[Axis], lanes: int, combine: Combining, carried: Carried
    ) -> Carried:
        points = self._points
        axis, *rest = axes
        if not rest and -(-axis.extent // (lanes or 1)) <= self._style.unrolled:
            return self._unrolled(axis, lanes or 1, combine, carried)
        if rest or not lanes:
            terms = -(-size_of([inner.extent for inner in rest]) // (lanes or 1))

            def at_point(received: Carried) -> Carried:
                if rest:
                    return self._reduce_nest(rest, lanes, combine, received)
                return combine.accumulate(points, received)

            return self._reduce_loop(axis, 0, terms, combine, carried, at_point)
        full, left = divmod(axis.extent, lanes)
        if full:
            carried = self._reduce_loop(
                *(axis, lanes, 1, combine, carried),
                lambda received: combine.accumulate(points, received),
            )
        if left:
            with points.along(axis, points.position(full * lanes), left, multiple=lanes):
                carried = combine.accumulate(points, carried)
        return carried

    def _reduce_loop(
        self,
        axis: Axis,
        lanes: int,
        terms: int,
        combine: Combining,
        carried: Carried,
        body: Callable[[Carried], Carried],
    ) -> Carried:
        """A loop over the points of an axis, or its full vectors; `body` adds some terms."""
        points, extent = self._points, axis.extent // (lanes or 1)

        def loop(start: Bound, stop: Bound, most: int, received: Carried) -> Carried:
            with points.loop(axis, received, start, stop, most, lanes=lanes) as opened:
                return self._code.end_loop(opened, body(opened.carried))

        fresh = combine.start(carried[0].type.lanes)
        blocked = BlockedLoop(points, 1, lambda _: fresh, combine.merged, loop)
        blocks = blocks_of(extent, terms) if combine.sums_floats else []
        return blocked.write(blocks, 0, extent, extent, carried)

    def _unrolled(self, axis: Axis, lanes: int, combine: Combining, carried: Carried) -> Carried:
        """A few iterations one after the other; without lanes the axis is bound."""
        points = self._points
        for start in range(0, axis.extent, lanes):
            first = points.position(start)
            across = lanes > 1
            with (
                points.along(axis, first, min(lanes, axis.extent - start), multiple=lanes)
                if across
                else points.bound(axis, first)
            ):
                carried = combine.accumulate(points, carried)
        return carried

    def _write(self, stage: Write) -> None:
        if any(axis.extent == 0 for axis in stage.axes):
            return
        lanes = self._across(stage)
        runs = [full_run(axis) for axis in stage.axes]
        if lanes:
            runs[-1] = full_run(stage.axes[-1], lanes)
        write_nest(self._points, runs, lambda: self._points.store_all(stage.stores))

    def _scan(self, stage: Scan) -> None:
        points = self._points
        if not stage.axis.extent:
            return
        reduce = Reduce("", stage.combine, (stage.axis,), stage.value, stage.dtype)
        combine = combiner(reduce, self._code)
        store = Store(stage.buffer, stage.index, stage.value)

        def body(carried: Carried) -> tuple[Carried, Carried]:
            running = combine.accumulate(points, carried)
            return running, running

        write_running(
            points, combine, stage.axis, body, lambda running: points.store(store, running)
        )

    def _segment_sum(self, stage: SegmentSum) -> Value:
        """The sum over the ranks from the first one with the key to the first one above it."""
        points, code = self._points, self._code
        zero = code.constant(0, Type(element(stage.dtype)))
        if not stage.axis.extent:
            return zero
        first, last = (self._slots_before(stage, relation) for relation in ("slt", "sle"))
        with points.loop(stage.axis, (zero,), first, last) as opened:
            (total,) = opened.carried
            (total,) = code.end_loop(opened, (total + points.value(stage.value),))
        return total

    def _slots_before(self, stage: SegmentSum, relation: str) -> Value:
        """The number of ranks whose key is below the segment's (slt), or not above it (sle)."""
        points, code = self._points, self._code
        extent = stage.axis.extent
        halvings = Axis("halving", extent.bit_length())
        carried = (points.position(0), points.position(extent))
        with points.loop(halvings, carried) as opened:
            low, high = opened.carried
            middle = low + high >> 1
            # If no rank is left, the last one is read again, without effect.
            seen = code.minimum(middle, points.position(extent - 1))
            with points.bound(stage.axis, seen):
                key = points.value(Apply("cast", (stage.key,), int64))
                before = code.compare(relation, key, points.value(Position(stage.segment)))
            before = before & (low < high)
            following = middle + 1
            received = (code.select(before, following, low), code.select(before, high, middle))
            low, _ = code.end_loop(opened, received)
        return low


def _groups_of(stages: Sequence[Stage]) -> list[list[Stage]]:
    """The stages in order; neighbouring reductions that may share a loop are in one group."""
    groups: list[list[Stage]] = []
    for stage in stages:
        if groups and isinstance(stage, Reduce) and _may_join(stage, groups[-1]):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def _may_join(stage: Reduce, group: Sequence[Stage]) -> bool:
    """Whether a reduction has the same points as others, the same blocks, and none as operand."""
    first = group[0]
    if not isinstance(first, Reduce) or not stage.axes or stage.axes != first.axes:
        return False
    if _sums_floats(stage) != _sums_floats(first):
        return False
    joined = {other.local for other in group if isinstance(other, Reduce)}
    return not any(isinstance(s, Local) and s.name in joined for s in postorder(stage.value))


def _sums_floats(stage: Reduce) -> bool:
    return stage.combine == "sum" and stage.dtype.is_float


def fitting_lanes(lanes: int, extent: int) -> int:
    """At most `lanes`, and at most the extent rounded up to a power of two."""
    while lanes > 1 and lanes // 2 >= extent:
        lanes //= 2
    return lanes


def is_window(stage: Stage, largest: int) -> bool:
    """Whether the stage reduces at most `largest` points of several axes."""
    if not isinstance(stage, Reduce) or len(stage.axes) < 2:
        return False
    return 0 < size_of([axis.extent for axis in stage.axes]) <= largest
