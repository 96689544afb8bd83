"""TF32: float32 with 10 bits of fraction instead of 23, the operands of some tensor cores.

Numbers are rounded to the nearest, ties away from zero, like `cvt.rna.tf32.f32` (PTX ISA, "Data
Movement and Conversion Instructions: cvt"). Subnormal numbers are rounded and kept. Numbers beyond
the largest one become infinite. Infinities stay. A NaN becomes a quiet one: its only bits could be
among those that tensor cores do not read, which would make it infinite.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lamina.base.shapes import Array
from lamina.program.scalar import Apply
from lamina.program.steps import Contraction

# Half of the last digit that is kept, and the bits that are kept.
HALF_DIGIT, KEPT_BITS = 0x1000, 0xFFFFE000
# The bit that quiet NaNs have.
QUIET = 0x400000


def rounded_to_tf32(x: Array) -> Array:
    """Float32 rounded to TF32."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    # A carry out of the fraction increments the exponent; the largest number becomes infinity.
    nearest = np.where(np.isnan(x), bits | np.uint32(QUIET), bits + np.uint32(HALF_DIGIT))
    return np.asarray(nearest & np.uint32(KEPT_BITS)).view(np.float32)


# The conversions whose results are rounded to TF32.
ROUNDED = ("round_to_tf32", "as_tf32")


def unrounded(step: Contraction) -> Contraction | None:
    """The contraction of both operands before they are rounded to TF32.

    Its result is equal if a device rounds both operands to TF32 before it multiplies them. None if
    an operand is not rounded.
    """
    views = [
        view.operands[0]
        for view in (step.left, step.right)
        if isinstance(view, Apply) and view.primitive in ROUNDED
    ]
    return replace(step, left=views[0], right=views[1]) if len(views) == 2 else None
