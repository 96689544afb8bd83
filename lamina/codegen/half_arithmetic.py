"""Operations on float32 that operations on float16 replace, on devices that have them.

A sum, difference or product of two float16 that is computed in float32 and then rounded to float16
has the same bits as one that is rounded to float16 at once: float32 has at least twice as many
bits of precision and two more (Figueroa, *When is double rounding innocuous?*, 1995). Products of
contractions are no such case, as their sums are float32. Neither are fused multiply-adds, and
quotients and square roots, which devices need not round correctly.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import float16, float32
from lamina.program.scalar import Apply, Literal, Scalar

_OPERATIONS: Mapping[str, str] = {"add": "fadd", "subtract": "fsub", "multiply": "fmul"}


@frozen_dataclass
class HalfOperation:
    """An operation on float16.

    Attributes:
        operation: `"fadd"`, `"fsub"` or `"fmul"`.
        operands: two scalars of float16.
    """

    operation: str
    operands: tuple[Scalar, ...]


def half_operation(scalar: Apply) -> HalfOperation | None:
    """The operation on float16 with the bits of a rounded operation on float32; None for others."""
    if scalar.primitive != "cast" or scalar.dtype != float16:
        return None
    (wide,) = scalar.operands
    if not isinstance(wide, Apply) or wide.dtype != float32 or wide.primitive not in _OPERATIONS:
        return None
    found = [_narrow(operand) for operand in wide.operands]
    operands = tuple(one for one in found if one is not None)
    if len(operands) < 2:
        return None
    return HalfOperation(_OPERATIONS[wide.primitive], operands)


def _narrow(operand: Scalar) -> Scalar | None:
    """The float16 of which a float32 is a cast; None if there is none."""
    if isinstance(operand, Literal):
        with np.errstate(over="ignore"):
            fits = float(np.float16(operand.value)) == operand.value
        return Literal(operand.value, float16) if fits else None
    if isinstance(operand, Apply) and operand.primitive == "cast":
        (inner,) = operand.operands
        return inner if inner.dtype == float16 else None
    return None
