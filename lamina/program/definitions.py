"""Primitives that NumPy lacks, in NumPy: their definition. Powers of integers; sort keys.

Sort keys are integers in the order of floats, so that a sort compares integers only.

The bits of a float, read as an integer with a sign, rise with numbers from 0 on, and fall with
negative ones. There all bits except the sign are inverted. Both zeros have the key 0, and every NaN
has the largest key, so NaN counts as larger than any number.
"""

from __future__ import annotations

import numpy as np

from lamina.base.shapes import Array


def sort_key(x: Array) -> Array:
    """The keys of float32 as int32, of float64 as int64."""
    dtype = np.int32 if x.dtype == np.float32 else np.int64
    largest = np.iinfo(dtype).max
    bits = x.view(dtype)
    ordered = np.where(bits < 0, bits ^ largest, bits)
    return np.where(np.isnan(x), largest, np.where(x == 0, 0, ordered)).astype(dtype)


def integer_power(left: Array, right: Array) -> Array:
    """Left to the power right, wrapping around; negative powers are 0, except of 1 and -1."""
    positive = np.power(left, np.maximum(right, 0))
    odd = (right & 1).astype(bool)
    inverse = np.where(left == 1, 1, np.where(left == -1, np.where(odd, -1, 1), 0))
    return np.where(right < 0, inverse.astype(left.dtype), positive)
