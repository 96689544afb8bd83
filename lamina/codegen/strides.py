"""The stride of an index expression along an axis."""

from __future__ import annotations

from lamina.program.index import Axis, Index, Quotient, Remainder
from lamina.program.scalar import indices_of, postorder


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
