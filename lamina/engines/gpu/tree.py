"""A tree in local memory that combines values of the work items of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina.codegen.c import Function
from lamina.codegen.values import I1, I8, Type, Value, constant
from lamina.engines.gpu.work_item import ItemPoints

# Combines two rows of values.
Combine = Callable[[Function, Sequence[Value], Sequence[Value]], Sequence[Value]]


def added(code: Function, left: Sequence[Value], right: Sequence[Value]) -> Sequence[Value]:
    """The sums of two rows of values."""
    return [code.add(one, other) for one, other in zip(left, right, strict=True)]


def kept_type(value: Value) -> Type:
    """The type in which a value is in local memory: a condition is a byte."""
    return I8 if value.type == I1 else value.type


def keep(code: Function, value: Value, address: Value) -> None:
    """Writes a value to local memory."""
    code.store(code.convert("zext", value, "i8") if value.type == I1 else value, address)


def fetched(code: Function, address: Value, type: Type) -> Value:
    """A value of a type in local memory."""
    if type != I1:
        return code.load(address, type)
    return code.compare("ne", code.load(address, I8), constant(0, I8))


def write_tree(
    points: ItemPoints,
    arrays: Sequence[Value],
    share: Value,
    first: Value,
    stride: int,
    items: int,
    values: Sequence[Value],
    combine: Combine = added,
    *,
    apart: int = 1,
) -> None:
    """Combines the values of items: the combined ones are then in the first rows of arrays.

    All items of the group are here.

    Args:
        points: the kernel.
        arrays: the array of each value in local memory, with a row for each of the items.
        share: the number of the item among those whose values are combined.
        first: the location of the item's values in the arrays.
        stride: the distance between rows.
        items: the number of items that have values to be combined, a power of two.
        values: this item's values.
        combine: combines two rows of values.
        apart: the distance between an item's values in one array.
    """
    code = points.code
    locations = [list(arrays[:number]).count(array) for number, array in enumerate(arrays)]

    def address(row: Value, number: int) -> Value:
        type = kept_type(values[number])
        begin = code.offset(arrays[number], row, type.element)
        return code.offset(begin, locations[number] * apart, type.element)

    for number, value in enumerate(values):
        keep(code, value, address(first, number))
    code.barrier()
    left = items // 2
    while left:
        with code.when(code.compare("slt", share, points.position(left))):
            other = code.add(first, points.position(left * stride))
            rows = [
                [fetched(code, address(row, number), one.type) for number, one in enumerate(values)]
                for row in (first, other)
            ]
            for number, value in enumerate(combine(code, *rows)):
                keep(code, value, address(first, number))
        code.barrier()
        left //= 2
