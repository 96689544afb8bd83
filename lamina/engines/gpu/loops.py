"""Kernels of loops: a work item computes a point, or the items of a group share the work at it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import final

from lamina.base.shapes import size_of
from lamina.codegen.axes import flattened, merged_axes
from lamina.codegen.blocks import BlockedLoop, Bound, Carried, blocks_of
from lamina.codegen.reductions import combiner
from lamina.codegen.signatures import Signature
from lamina.codegen.stages import Stages, Style
from lamina.codegen.values import Value
from lamina.engines.gpu.schedule import LoopSchedule, RowSchedule
from lamina.engines.gpu.tree import Tree, kept_type
from lamina.engines.gpu.work_item import Body, ItemPoints, item_of, step_of
from lamina.errors import InternalError
from lamina.program.index import Axis, Index, axis_index, unflatten
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Position, Scalar, loads
from lamina.program.steps import Loop, Reduce, Stage, Write, stage_stores, stage_values

# Reductions of up to 8 iterations are unrolled, and windows of up to 9 elements.
STYLE = Style(inner_lanes=0, unrolled=8, window=9)


def loop_kernel(signature: Signature[LoopSchedule]) -> Body:
    """A work item computes all stages of a point, or of a vector of points."""
    loop, lanes = merged_axes(step_of(signature, Loop)), signature.decided.lanes
    axes = list(loop.axes)
    if lanes > 1:
        axes[-1] = Axis("vector", axes[-1].extent // lanes)

    def write(points: ItemPoints) -> None:
        with ExitStack() as across:
            if lanes > 1:
                first = points.axis(axes[-1]) * lanes
                across.enter_context(points.along(loop.axes[-1], first, lanes, multiple=lanes))
            Stages(points, STYLE).write(loop.stages)

    return axes, write


def row_kernel(signature: Signature[RowSchedule]) -> Body:
    """The items of a group share the inner axes of the stages at a point."""
    rows, loop = signature.decided, merged_axes(step_of(signature, Loop))
    groups = Axis("group", size_of([axis.extent for axis in loop.axes]) // rows.rows)
    return [groups], lambda points: _Rows(points, loop, rows, groups).write()


@final
class _Rows:
    """Writes the kernel of a loop."""

    def __init__(self, points: ItemPoints, loop: Loop, rows: RowSchedule, groups: Axis) -> None:
        self._points, self._code = points, points.code
        self._loop, self._rows = loop, rows
        at = axis_index(item_of(rows))
        self._share, row = at % rows.items, at // rows.items
        if rows.along_points:
            self._share, row = at // rows.rows, at % rows.rows
        self._row = row
        self._point = axis_index(groups) * rows.rows + row
        self._here = Rewrite(self._coordinates(self._point))

    def _coordinates(self, point: Index) -> dict[Axis, Index]:
        axes = self._loop.axes
        return dict(zip(axes, unflatten(point, [axis.extent for axis in axes]), strict=True))

    def write(self) -> None:
        stages = self._loop.stages
        for number, stage in enumerate(stages):
            if isinstance(stage, Reduce):
                self._points.define(stage.local, self._reduced(stage))
            elif isinstance(stage, Write):
                written = {store.buffer for store in stage.stores}
                # The items of a row read what one of them overwrites. A number of each point may
                # be in the memory of another one that all items of its row have read.
                if number and (not stage.axes or _loaded(stages[:number]) & written):
                    self._code.barrier(everywhere=True)
                self._write(stage)
                if _loaded(stages[number + 1 :]) & written:
                    self._code.barrier(everywhere=True)
            else:
                raise InternalError(f"a stage is not shared by a group: {stage}")

    def _reduced(self, stage: Reduce) -> Value:
        points, code = self._points, self._code
        value = self._here.scalar(stage.value)
        if not stage.axes:
            return points.value(value)
        axis, replaced = flattened(stage.axes, "inner")
        stage = replace(stage, axes=(axis,), value=Rewrite(replaced).scalar(value))
        combine = combiner(stage, code)
        carried = fresh = combine.start(0)
        if axis.extent:

            def loop(start: Bound, stop: Bound, most: int, received: Carried) -> Carried:
                opened = code.begin_loop(start, stop, self._rows.items, received, most=most)
                with points.bound(axis, opened.index, before=opened.before):
                    return code.end_loop(opened, combine.accumulate(points, opened.carried))

            start, end, most = self._share_of(axis)
            blocked = BlockedLoop(points, self._rows.items, lambda _: fresh, combine.merged, loop)
            blocks = blocks_of(most) if combine.sums_floats else []
            carried = blocked.write(blocks, start, end, most, fresh)
        rows, items = self._rows.rows, self._rows.items
        tree = Tree(
            *(points, self._share, self._row, items, rows, rows if self._rows.along_points else 1),
            combine.merged,
        )
        types = [accumulator.type for accumulator in carried]
        arrays = [code.local(kept_type(type).element, tree.size) for type in types]
        tree.write(arrays, carried)
        values = tree.result(arrays, points.indices(self._row).start, types)
        return combine.result(tuple(values))

    def _share_of(self, axis: Axis) -> tuple[Value, Value, int]:
        """The first point of the item's share of an axis, the end, and its most points."""
        start, end = self._points.indices(self._share).start, self._points.position(axis.extent)
        return start, end, -(-axis.extent // self._rows.items)

    def _write(self, stage: Write) -> None:
        points, code = self._points, self._code
        if not stage.axes:
            # One item stores; it reads inside the condition, because it may overwrite that.
            first = points.indices(self._share).start.equals(0)
            point = Axis("point", size_of([axis.extent for axis in self._loop.axes]))
            stores = Rewrite(self._coordinates(axis_index(point))).records(stage.stores)
            value = points.indices(self._point).start
            with (
                code.when(first) as before,
                points.bound(point, value, before=before),
                points.reading(),
            ):
                points.store_all(stores)
            return
        axis, replaced = flattened(stage.axes, "inner")
        stores = Rewrite(replaced).records(self._here.records(stage.stores))
        if axis.extent:
            start, end, most = self._share_of(axis)
            with (
                code.loop(start, end, self._rows.items, most=most) as opened,
                points.bound(axis, opened.index, before=opened.before),
            ):
                points.store_all(stores)


def _loaded(stages: Sequence[Stage]) -> set[str]:
    values: list[Scalar] = [value for stage in stages for value in stage_values(stage)]
    values += [Position(store.index) for stage in stages for store in stage_stores(stage)]
    return {load.buffer for load in loads(*values)}
