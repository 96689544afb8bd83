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

from lamina.program.scalar import Apply, Literal, Scalar
from lamina.shapes import float16, float32

# The instructions, by the primitives.
OPERATIONS: Mapping[str, str] = {"add": "fadd", "subtract": "fsub", "multiply": "fmul"}


def in_float16(scalar: Apply) -> Apply | None:
    """The operation on float16 with the bits of a rounded operation on float32.

    Args:
        scalar: a primitive.

    Returns:
        None if the scalar is anything else.
    """
    if scalar.primitive != "cast" or scalar.dtype != float16:
        return None
    (wide,) = scalar.operands
    if not isinstance(wide, Apply) or wide.dtype != float32 or wide.primitive not in OPERATIONS:
        return None
    operands = [_narrow(operand) for operand in wide.operands]
    if any(one is None for one in operands) or all(isinstance(one, Literal) for one in operands):
        return None
    return Apply(wide.primitive, tuple(one for one in operands if one is not None), float16)


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
