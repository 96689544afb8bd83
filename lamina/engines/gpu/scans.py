"""Kernels of scans: the work items of a group scan an axis in stretches, in local memory.

Within a stretch, each step of the scan doubles the distance over which elements are combined
(Hillis and Steele, 1986).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from lamina.base.shapes import size_of
from lamina.codegen.blocks import Carried, write_running
from lamina.codegen.c import Module
from lamina.codegen.reductions import combiner
from lamina.codegen.signatures import Signature
from lamina.codegen.values import Value
from lamina.engines.gpu.schedule import ScanSchedule
from lamina.engines.gpu.tree import fetched, keep, kept_type
from lamina.engines.gpu.work_item import ItemPoints, loop_of, work_group
from lamina.program.index import Axis, axis_index
from lamina.program.steps import Reduce, Scan, Store


def write_scan(module: Module, name: str, signature: Signature[ScanSchedule]) -> int:
    """Writes the kernel; returns the number of its work items."""
    loop, decided = loop_of(signature), signature.decided
    (scan,) = loop.stages
    assert isinstance(scan, Scan)
    groups = size_of([axis.extent for axis in loop.axes])
    if not groups * scan.axis.extent:
        return 0
    item = Axis("item", decided.items)
    with work_group(module, name, signature, loop.axes, item) as points:
        _Scan(points, scan, item).write()
    return groups * decided.items


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
            whole = fetched(code, last, start[0].type)
            # The next stretch overwrites what has been read here.
            code.barrier()
            return self._combine.merged(carried, running), self._combine.merged(carried, [whole])

        write_running(
            *(points, self._combine, stretches, body),
            lambda total: self._store(points.indices(location).start, total),
        )

    def _value(self, at: Value, neutral: Sequence[Value]) -> Sequence[Value]:
        """The element of this item; without effect beyond the end of the axis."""
        code, points, axis = self._code, self._points, self._scan.axis
        last = points.position(axis.extent - 1)
        with points.bound(axis, code.minimum(at, last)):
            value = points.value(self._scan.value)
        inside = code.compare("slt", at, points.position(axis.extent))
        value = code.select(inside, value, neutral[0])
        return self._combine.merged(neutral, [value])

    def _within(
        self, array: Value, item: Value, value: Sequence[Value]
    ) -> tuple[Sequence[Value], int]:
        """The running values within the stretch, and the row of the array that has all of them."""
        code, points, items = self._code, self._points, self._item.extent
        type = kept_type(value[0].type)
        distance, row = 1, 0
        keep(code, value[0], code.offset(array, item, type.element))
        code.barrier()
        while distance < items:
            has_other = code.compare("sge", item, points.position(distance))
            other = code.subtract(item, points.position(distance))
            other = code.select(has_other, other, item)
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

    def _store(self, at: Value, value: Value) -> None:
        code, points, scan = self._code, self._points, self._scan
        inside = code.compare("slt", at, points.position(scan.axis.extent))
        with code.when(inside) as before, points.bound(scan.axis, at, before=before):
            points.store(Store(scan.buffer, scan.index, scan.value), value)
