"""Powers of integers, in NumPy: the definition of the primitive `power` for them."""

from __future__ import annotations

import numpy as np

from lamina.base.shapes import Array


def integer_power(left: Array, right: Array) -> Array:
    """Left to the power right, wrapping around; negative powers are 0, except those of 1 and -1."""
    positive = np.power(left, np.maximum(right, 0))
    odd = (right & 1).astype(bool)
    inverse = np.where(left == 1, 1, np.where(left == -1, np.where(odd, -1, 1), 0))
    return np.where(right < 0, inverse.astype(left.dtype), positive)
