"""Correctly rounded arithmetic on arrays.

Sums and products that are not exact in float64 are *rounded to odd*: if a result is inexact, the
one of its two neighbours is taken whose last bit is set. A value of 53 bits that is rounded to odd
gives the same as the exact value when it is rounded once more to at most 51 bits (S. Boldo and
G. Melquiond, Emulation of FMA and Correctly Rounded Sums: Proved Algorithms Using Rounding to Odd).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from cuda_machine.writer import helper


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """The rounded sum and its error (Knuth); the error is NaN if the sum is not finite."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def to_odd(value: Any, error: Any) -> Any:
    """The sum of a float64 and its error, rounded to odd; the error is below half an ulp."""
    even = (value.view(np.int64) & 1) == 0
    inexact = (error != 0) & np.isfinite(value) & np.isfinite(error)
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(inexact & even, np.nextafter(value, toward), value)


def fused(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float64 whose products are exact, rounded to odd."""
    product = a * b
    total, error = two_sum(product, c)
    return to_odd(total, error)


@helper
def fma_f4(a: Any, b: Any, c: Any) -> Any:
    """float32 a * b + c, rounded once to nearest."""
    wide = np.float64
    product = np.multiply(a, b, dtype=wide)
    exact = np.add(product, c, dtype=wide)
    result = exact.astype(np.float32)
    # A second rounding only matters if the first one ended halfway between two float32, or where
    # float32 has fewer bits.
    halfway = (exact.view(np.int64) & 0x1FFFFFFF) == 0x10000000
    halfway |= (np.abs(exact) < 2.0**-125) & (exact != 0)
    if halfway.any():
        where = np.flatnonzero(halfway)
        a, b, c = (np.broadcast_to(one, exact.shape)[where].astype(wide) for one in (a, b, c))
        result[where] = fused(a, b, c).astype(np.float32)
    return result


@helper
def fma_f8(a: Any, b: Any, c: Any) -> Any:
    """float64 a * b + c, rounded once to nearest."""
    rows = zip(*(one.tolist() for one in np.broadcast_arrays(a, b, c)), strict=True)
    return np.array([_exact_fma(*row) for row in rows])


def _exact_fma(a: float, b: float, c: float) -> float:
    if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)):
        # Infinities and NaN are exact; finite products do not become infinite on the way.
        product = float(np.float64(a) * np.float64(b))
        if np.isinf(product) and np.isfinite(a) and np.isfinite(b):
            product = np.copysign(1.0, product)
        return float(np.float64(product) + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return float(np.copysign(np.inf, 1.0 if exact > 0 else -1.0))
