"""Trees that combine values of the work items of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.c import Function
from lamina.codegen.values import I1, I8, I32, Type, Value
from lamina.engines.gpu.schedule import WARP
from lamina.engines.gpu.work_item import ItemPoints
from lamina.program.index import Index

# The most rows that each item combines.
MOST_ROWS = 8

# Combines two rows of values.
Combine = Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]]


def _added(left: Sequence[Value], right: Sequence[Value]) -> Sequence[Value]:
    """The sums of two rows of values."""
    return [a + b for a, b in zip(left, right, strict=True)]


def kept_type(type: Type) -> Type:
    """The type in which values are in local memory: a condition is a byte."""
    return I8 if type == I1 else type


def keep(code: Function, value: Value, address: Value) -> None:
    """Writes a value to local memory."""
    code.store(code.convert("zext", value, "i8") if value.type == I1 else value, address)


def fetched(code: Function, address: Value, type: Type) -> Value:
    """A value of a type in local memory."""
    if type != I1:
        return code.load(address, type)
    return code.load(address, I8).differs(0)


@final
@frozen_dataclass
class Tree:
    """Combines values of the items of a group that share a sum, always in the same order.

    Items of a warp combine theirs without local memory, if the language can do that. What is left
    is combined there, with a barrier for each level, until few rows are left: all items that need
    the result read these, and combine them once more.

    Attributes:
        points: the kernel.
        share: the number of an item among those whose values are combined.
        row: the number of its sum in the group.
        items: the number of items that share a sum, a power of two.
        rows: the number of sums of a group.
        near: the distance of items with neighbouring shares: 1, or `rows`.
        combine: the function that combines two rows of values.
    """

    points: ItemPoints
    share: Index
    row: Index
    items: int
    rows: int
    near: int
    combine: Combine = _added

    @property
    def within(self) -> int:
        """The number of items of a warp that share a sum; 1 if they do not combine their values."""
        whole = self.items * self.rows % WARP == 0 and WARP % self.near == 0
        can = whole and bool(self.points.code.module.groups.shifted)
        return min(self.items, WARP // self.near) if can else 1

    @property
    def size(self) -> int:
        """The number of elements of local memory for each value of an item."""
        return self.items // self.within * self.rows

    def write(self, arrays: Sequence[Value], values: Sequence[Value]) -> None:
        """Combines the values of items, which are all here.

        Each value of this item has the address of its elements in local memory.
        """
        code, points, within = self.points.code, self.points, self.within
        distance = within // 2
        while distance:
            others = [_shifted(code, value, distance * self.near) for value in values]
            values = self.combine(values, others)
            distance //= 2
        first = points.indices(self.share // within * self.rows + self.row).start
        part = points.indices(self.share % within).start
        with (
            code.when(code.compare("eq", part, points.position(0))) if within > 1 else nullcontext()
        ):
            self._keep(arrays, first, values)
        code.barrier()
        types = [value.type for value in values]
        left, share = self.items // within // 2, points.indices(self.share).start
        first = points.indices(self.share * self.rows + self.row).start
        while left >= MOST_ROWS:
            with code.when(code.compare("slt", share, points.position(left))):
                self._keep(arrays, first, self._rows(arrays, first, types, (0, left)))
            code.barrier()
            left //= 2

    def result(self, arrays: Sequence[Value], row: Value, types: Sequence[Type]) -> Sequence[Value]:
        """The combined values of a row, for any item, from its values' arrays."""
        count = min(self.items // self.within, MOST_ROWS)
        return self._rows(arrays, row, types, range(count))

    def _keep(self, arrays: Sequence[Value], row: Value, values: Sequence[Value]) -> None:
        for array, value in zip(arrays, values, strict=True):
            keep(self.points.code, value, self._address(array, row, value.type))

    def _rows(
        self, arrays: Sequence[Value], first: Value, types: Sequence[Type], shares: Sequence[int]
    ) -> Sequence[Value]:
        """The values of some shares, a power of two of them, combined."""
        code, rows = self.points.code, list[Sequence[Value]]()
        for share in shares:
            at = [
                code.offset(
                    self._address(array, first, type), share * self.rows, kept_type(type).element
                )
                for array, type in zip(arrays, types, strict=True)
            ]
            rows.append([fetched(code, cell, type) for cell, type in zip(at, types, strict=True)])
        while len(rows) > 1:
            half = len(rows) // 2
            rows = [self.combine(*both) for both in zip(rows[:half], rows[half:], strict=True)]
        return rows[0]

    def _address(self, array: Value, row: Value, type: Type) -> Value:
        return self.points.code.offset(array, row, kept_type(type).element)


def _shifted(code: Function, value: Value, distance: int) -> Value:
    """The value of a later item of the warp; any value if there is none."""
    name = code.module.groups.shifted.format(distance=distance)
    if value.type.bits >= 32:
        return code.call(name, value.type, value)
    wide = code.call(name, I32, code.convert("zext", value, "i32"))
    return (
        code.compare("ne", wide, 0)
        if value.type == I1
        else code.convert("trunc", wide, value.type.element)
    )
