"""The strides of arrays, and of index expressions along an axis."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.base.shapes import size_of
from lamina.program.index import Axis, Index, Quotient, Remainder
from lamina.program.scalar import indices_of, postorder


def row_major_strides(extents: Sequence[int]) -> list[int]:
    """The strides of the axes of an array, the last of which is contiguous."""
    return [size_of(extents[number + 1 :]) for number in range(len(extents))]


def stride_along(index: Index, axis: Axis) -> int | None:
    """The stride of an index along an axis; None if it is not constant."""
    stride = 0
    for atom, coefficient in index.terms:
        if atom == axis:
            stride = coefficient
        elif isinstance(atom, Quotient | Remainder):
            if stride_along(atom.index, axis) != 0:
                return None
        elif not isinstance(atom, Axis):
            within = (i for scalar in postorder(atom.value) for i in indices_of(scalar))
            if any(stride_along(one, axis) != 0 for one in within):
                return None
    return stride
