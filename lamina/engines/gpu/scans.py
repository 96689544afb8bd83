"""Kernels of scans: the work items of a group scan an axis in stretches, in local memory.

Within a stretch, each step of the scan doubles the distance over which elements are combined
(Hillis and Steele, 1986).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from lamina.codegen.axes import merged_axes
from lamina.codegen.blocks import Carried, write_running
from lamina.codegen.reductions import combiner
from lamina.codegen.signatures import Signature
from lamina.codegen.values import Value
from lamina.engines.gpu.schedule import ScanSchedule
from lamina.engines.gpu.tree import fetched, keep, kept_type
from lamina.engines.gpu.work_item import Body, ItemPoints, item_of, step_of
from lamina.program.index import Axis, axis_index
from lamina.program.steps import Loop, Reduce, Scan, Store


def scan_kernel(signature: Signature[ScanSchedule]) -> Body:
    """A group scans an axis."""
    loop, item = merged_axes(step_of(signature, Loop)), item_of(signature.decided)
    (scan,) = loop.stages
    assert isinstance(scan, Scan)
    # Without elements there are no groups.
    axes = loop.axes if scan.axis.extent else [scan.axis]
    return axes, lambda points: _Scan(points, scan, item).write()


@final
class _Scan:
    def __init__(self, points: ItemPoints, scan: Scan, item: Axis) -> None:
        self._points, self._code = points, points.code
        self._scan, self._item = scan, item
        stage = Reduce("", scan.combine, (scan.axis,), scan.value, scan.dtype)
        self._combine = combiner(stage, self._code)

    def write(self) -> None:
        code, points, scan = self._code, self._points, self._scan
        items = self._item.extent
        start = self._combine.start(0)
        type = kept_type(start[0].type)
        # Two rows, because an item reads what another one overwrites.
        array = code.local(type.element, 2 * items)
        item = points.indices(axis_index(self._item)).start
        stretches = Axis("stretch", -(-scan.axis.extent // items))
        location = axis_index(stretches) * items + axis_index(self._item)

        def body(carried: Carried) -> tuple[Carried, Carried]:
            value = self._value(points.indices(location).start, start)
            running, row = self._within(array, item, value)
            last = code.offset(array, row * items + items - 1, type.element)
            total = fetched(code, last, start[0].type)
            # The next stretch overwrites what has been read here. The result may be stored in place
            # of the element that items beyond the end have read.
            code.barrier(everywhere=True)
            return self._combine.merged(carried, running), self._combine.merged(carried, [total])

        def store(total: Value) -> None:
            at = points.indices(location).start
            with (
                code.when(at < scan.axis.extent) as before,
                points.bound(scan.axis, at, before=before),
            ):
                points.store(Store(scan.buffer, scan.index, scan.value), total)

        write_running(points, self._combine, stretches, body, store)

    def _value(self, at: Value, neutral: Sequence[Value]) -> Sequence[Value]:
        """The element of this item; without effect beyond the end of the axis."""
        code, points, axis = self._code, self._points, self._scan.axis
        with points.bound(axis, code.minimum(at, axis.extent - 1)):
            value = points.value(self._scan.value)
        value = code.select(at < axis.extent, value, neutral[0])
        return self._combine.merged(neutral, [value])

    def _within(
        self, array: Value, item: Value, value: Sequence[Value]
    ) -> tuple[Sequence[Value], int]:
        """The running values within the stretch, and the row of the array that has all of them."""
        code, items, type = self._code, self._item.extent, kept_type(value[0].type)
        distance, row = 1, 0
        keep(code, value[0], code.offset(array, item, type.element))
        code.barrier()
        while distance < items:
            has_other = item >= distance
            other = code.select(has_other, item - distance, item)
            begin = code.offset(array, row * items, type.element)
            earlier = fetched(code, code.offset(begin, other, type.element), value[0].type)
            both = self._combine.merged([earlier], value)
            value = [code.select(has_other, both[0], value[0])]
            row = 1 - row
            begin = code.offset(array, row * items, type.element)
            keep(code, value[0], code.offset(begin, item, type.element))
            code.barrier()
            distance *= 2
        return value, row
