"""Kernels of loops with long inner axes: the work items of a group share the work at a point."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import final

from lamina.codegen.axes import flattened, merged_axes
from lamina.codegen.c import Module
from lamina.codegen.reductions import combiner
from lamina.codegen.values import Value
from lamina.engines.gpu.schedule import RowSchedule
from lamina.engines.gpu.tree import fetched, kept_type, write_tree
from lamina.engines.gpu.work_item import ItemPoints, StepSignature, work_group
from lamina.errors import InternalError
from lamina.program.index import Axis, Index, axis_index, unflatten
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Position, Scalar, loads
from lamina.program.steps import Loop, Reduce, Stage, Write, stage_stores, stage_values
from lamina.shapes import size_of


def write_rows(module: Module, name: str, signature: StepSignature) -> int:
    """Writes the kernel; returns the number of its work items."""
    rows = signature.decided
    assert isinstance(signature.steps[0], Loop)
    assert isinstance(rows, RowSchedule)
    loop = merged_axes(signature.steps[0])
    count = size_of([axis.extent for axis in loop.axes])
    if not count:
        return 0
    groups, item = Axis("group", count // rows.rows), Axis("item", rows.group)
    with work_group(module, name, signature, [groups], item) as points:
        _Rows(points, loop, rows, groups, item).write()
    return groups.extent * rows.group


@final
class _Rows:
    """Writes the kernel of a loop."""

    def __init__(
        self, points: ItemPoints, loop: Loop, rows: RowSchedule, groups: Axis, item: Axis
    ) -> None:
        self._points, self._code = points, points.code
        self._loop, self._rows = loop, rows
        at = axis_index(item)
        self._share, row = at % rows.items, at // rows.items
        if rows.along_points:
            self._share, row = at // rows.rows, at % rows.rows
        self._row = row
        self._point = axis_index(groups) * rows.rows + row
        self._here = Rewrite(self._coordinates(self._point))

    def _coordinates(self, point: Index) -> dict[Axis, Index]:
        """The axes of the loop at a point."""
        axes = self._loop.axes
        return dict(zip(axes, unflatten(point, [axis.extent for axis in axes]), strict=True))

    def write(self) -> None:
        stages = self._loop.stages
        for number, stage in enumerate(stages):
            if isinstance(stage, Reduce):
                self._points.define(stage.local, self._reduced(self._here.stage(stage)))
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

    def _reduced(self, stage: Stage) -> Value:
        points, code = self._points, self._code
        assert isinstance(stage, Reduce)
        if not stage.axes:
            return points.value(stage.value)
        stage, axis = _with_one_axis(stage)
        assert isinstance(stage, Reduce)
        combine = combiner(stage, code)
        carried = combine.start(0)
        if axis.extent:
            with self._shared(axis, carried) as (received, end):
                end(combine.accumulate(points, received))
                carried = received
        rows, items = self._rows.rows, self._rows.items
        arrays = [code.local(kept_type(one).element, rows * items) for one in carried]
        share = points.indices(self._share).start
        row = points.indices(self._row).start
        first = points.indices(self._share * rows + self._row).start
        write_tree(
            *(points, arrays, share, first, rows, items, carried),
            lambda _, left, right: combine.merged(left, right),
        )
        values = [
            fetched(code, code.offset(array, row, kept_type(one).element), one.type)
            for array, one in zip(arrays, carried, strict=True)
        ]
        return combine.result(tuple(values))

    @contextmanager
    def _shared(
        self, axis: Axis, carried: Sequence[Value]
    ) -> Generator[tuple[tuple[Value, ...], Callable[[Sequence[Value]], object]]]:
        """A loop over the item's share of an axis.

        Yields the carried values, and a function that ends the loop with those of an iteration.
        """
        code, points = self._code, self._points
        start, end = points.indices(self._share).start, points.position(axis.extent)
        most = -(-axis.extent // self._rows.items)
        opened = code.begin_loop(start, end, self._rows.items, carried, most=most)
        with points.bound(axis, opened.index, before=opened.before):
            yield opened.carried, lambda received: code.end_loop(opened, received)

    def _write(self, stage: Write) -> None:
        points, code = self._points, self._code
        if not stage.axes:
            # One item stores; it reads inside the condition, because it may overwrite that.
            first = code.compare("eq", points.indices(self._share).start, points.position(0))
            point = Axis("point", size_of([axis.extent for axis in self._loop.axes]))
            own = Rewrite(self._coordinates(axis_index(point))).stores(stage.stores)
            value = points.indices(self._point).start
            with (
                code.when(first) as before,
                points.bound(point, value, before=before),
                points.reading(),
            ):
                points.store_all(own)
            return
        here = self._here.stage(stage)
        assert isinstance(here, Write)
        own, axis = _with_one_axis(here)
        assert isinstance(own, Write)
        if axis.extent:
            with self._shared(axis, ()) as (_, end):
                points.store_all(own.stores)
                end(())


def _with_one_axis(stage: Reduce | Write) -> tuple[Stage, Axis]:
    """The stage with its inner axes as one axis."""
    axis, replaced = flattened(stage.axes, "inner")
    one = Rewrite(replaced).stage(stage)
    assert isinstance(one, Reduce | Write)
    return replace(one, axes=(axis,)), axis


def _loaded(stages: Sequence[Stage]) -> set[str]:
    """The buffers that stages read."""
    values: list[Scalar] = [value for stage in stages for value in stage_values(stage)]
    values += [Position(store.index) for stage in stages for store in stage_stores(stage)]
    return {load.buffer for load in loads(*values)}
