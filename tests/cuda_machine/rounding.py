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


def _directed(result: Any, exact: Any, mode: str) -> Any:
    """Moves a rounded result to its neighbour, if it is on the wrong side of the exact value."""
    infinity = result.dtype.type(np.inf)
    wide = result.astype(np.float64)
    if mode == "rm":
        return np.where(wide > exact, np.nextafter(result, -infinity), result)
    if mode == "rp":
        return np.where(wide < exact, np.nextafter(result, infinity), result)
    larger = np.abs(wide) > np.abs(exact)
    return np.where(larger, np.nextafter(result, result.dtype.type(0)), result)


def narrowed(exact: Any, dtype: Any, mode: str = "rn") -> Any:
    """Float64 as float32 or float16, with .rn, .rz, .rm or .rp."""
    result = exact.astype(dtype)
    if mode == "rn":
        return result
    neighbour = _directed(result, exact, mode)
    # Zeros, which nextafter may reach, keep the sign of the exact value.
    return np.where(neighbour == 0, np.copysign(neighbour, exact).astype(dtype), neighbour)


@helper
def narrowed_f2(exact: Any, mode: str = "rn") -> Any:
    """Float64 as float16."""
    return narrowed(exact, np.float16, mode)


@helper
def to_bfloat16(exact: Any, mode: str = "rn") -> Any:
    """Float64 as the bits of bfloat16."""
    down = narrowed(exact, np.float32, "rz")
    # Round to odd, so that float32 tells on which side of it the exact value is.
    inexact = (down.astype(np.float64) != exact) & ~np.isnan(exact)
    bits = down.view(np.uint32) | inexact
    low = bits & np.uint32(0xFFFF)
    high = bits >> np.uint32(16)
    negative = (bits >> np.uint32(31)) == 1
    if mode == "rn":
        up = (low > 0x8000) | ((low == 0x8000) & ((high & 1) == 1))
    elif mode == "rna":
        up = low >= 0x8000
    else:
        up = {"rz": low < 0, "rm": (low > 0) & negative, "rp": (low > 0) & ~negative}[mode]
    up &= (bits & np.uint32(0x7FFFFFFF)) < 0x7F800000
    return np.where(np.isnan(exact), np.uint16(0x7FFF), (high + up).astype(np.uint16))


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


def _zero_of_sum(total: Any, one: Any, other: Any, mode: str) -> Any:
    """With .rm, exact zeros that are no sum of two +0 are negative (IEEE 754, 6.3)."""
    if mode != "rm":
        return total
    minus = (total == 0) & ~((one == 0) & (other == 0) & ~np.signbit(one) & ~np.signbit(other))
    return np.where(minus, -np.abs(total), total)


@helper
def directed_fma_f4(a: Any, b: Any, c: Any, mode: str) -> Any:
    """float32 a * b + c, rounded once."""
    a, b, c = (np.asarray(one).astype(np.float64) for one in (a, b, c))
    product = a * b
    total, error = two_sum(product, c)
    total = _zero_of_sum(to_odd(total, error), product, np.broadcast_to(c, total.shape), mode)
    return narrowed(total, np.float32, mode)


@helper
def directed_sum(a: Any, b: Any, mode: str) -> Any:
    """float32 or float64 a + b, rounded by mode."""
    if a.dtype == np.float64:
        total, error = two_sum(a, b)
        # A finite sum is below an infinite result.
        overflow = np.isinf(total) & np.isfinite(a) & np.isfinite(b)
        error = np.where(overflow, np.copysign(1.0, -total), error)
        result = moved(total, error, mode)
        return _zero_of_sum(result, a, np.broadcast_to(b, a.shape), mode)
    one = np.ones(1, np.float32)
    return directed_fma_f4(a, one, b, mode)


def moved(rounded: Any, error: Any, mode: str) -> Any:
    """A rounded float64 moved to its neighbour, if the error says that the mode wants it."""
    if mode == "rm":
        return np.where(error < 0, np.nextafter(rounded, -np.inf), rounded)
    if mode == "rp":
        return np.where(error > 0, np.nextafter(rounded, np.inf), rounded)
    toward = np.where(rounded > 0, error < 0, error > 0)
    return np.where(toward, np.nextafter(rounded, 0.0), rounded)


@helper
def directed_product_f4(a: Any, b: Any, mode: str) -> Any:
    """float32 a * b, rounded by mode: the product is exact in float64."""
    return narrowed(np.multiply(a, b, dtype=np.float64), np.float32, mode)


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """The rounded product and its error (Dekker), if nothing overflows or is subnormal."""

    def halves(value: Any) -> tuple[Any, Any]:
        large = value * 134217729.0
        high = large - (large - value)
        return high, value - high

    product = a * b
    (a1, a0), (b1, b0) = halves(a), halves(b)
    return product, ((a1 * b1 - product) + a1 * b0 + a0 * b1) + a0 * b0


@helper
def fma_f8(a: Any, b: Any, c: Any) -> Any:
    """float64 a * b + c, rounded once to nearest."""
    a, b, c = np.broadcast_arrays(a, b, c)
    high, low = _two_product(a, b)
    middle, rest = two_sum(c, low)
    total, error = two_sum(high, middle)
    result = total + to_odd(*two_sum(rest, error))
    # Exponents for which no step above overflows or loses bits.
    small, large = 2.0**-400, 2.0**400
    sizes = [np.abs(one) for one in (a, b, c)]
    safe = (sizes[0] < large) & (sizes[1] < large) & (sizes[2] < 2.0**900)
    safe &= (sizes[0] > small) & (sizes[1] > small) & (sizes[2] > 2.0**-900)
    for number in np.flatnonzero(~safe):
        result[number] = _exact_fma(float(a[number]), float(b[number]), float(c[number]))
    return result


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


@helper
def rounded_to_integral(value: Any, mode: str) -> Any:
    """Floats rounded to integers, as floats."""
    functions = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
    return functions[mode](value)
