"""By how much the position of what is read or written grows with an axis."""

from __future__ import annotations

from lamina.program.index import Axis, Index, Quotient, Remainder
from lamina.program.scalar import indices_of, postorder


def stride_along(index: Index, axis: Axis) -> int | None:
    """By how much the index grows with the axis; None where it does not grow evenly."""
    stride = 0
    for atom, coefficient in index.terms:
        if atom == axis:
            stride = coefficient
        elif isinstance(atom, Quotient | Remainder):
            if stride_along(atom.index, axis) != 0:
                return None
        elif not isinstance(atom, Axis):
            positions = (i for part in postorder(atom.value) for i in indices_of(part))
            if any(stride_along(position, axis) != 0 for position in positions):
                return None
    return stride
