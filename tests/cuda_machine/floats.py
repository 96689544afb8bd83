"""Floating-point instructions (PTX ISA, Floating Point Instructions).

Approximations (`.approx`, `.full`) are errors: PTX bounds their error and does not say their
results.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from cuda_machine.writer import expressions, helper

# Sums and products of float16 are exact in float64.
_WIDE = ("{0}.astype(np.float64)", "{1}.astype(np.float64)")
for _name, _operator in (("add", "+"), ("sub", "-"), ("mul", "*")):
    expressions(_name, "rn? f32|f64", f"{{0}} {_operator} {{1}}")
    expressions(_name, "rn f16", f"half_bits({_WIDE[0]} {_operator} {_WIDE[1]})")
# PTX ISA, mad: for sm_20 and higher, mad with a rounding mode is fma.
for _name in ("fma", "mad"):
    expressions(_name, "rn f32", "fma_f4({0}, {1}, {2})")
    expressions(_name, "rn f64", "fma_f8({0}, {1}, {2})")
expressions("div", "rn f32|f64", "{0} / {1}")
expressions("rcp", "rn f32|f64", "np.reciprocal({0})")
expressions("sqrt", "rn f32|f64", "np.sqrt({0})")
expressions("abs", "f32|f64", "np.abs({0})")
expressions("neg", "f32|f64", "-{0}")
for _name in ("min", "max"):
    expressions(_name, "f32|f64", f"{_name}imum_of({{0}}, {{1}})")
# PTX ISA, copysign: the sign of a, the magnitude of b.
expressions("copysign", "f32|f64", "np.copysign({1}, {0})")


@helper
def minimum_of(a: Any, b: Any) -> Any:
    """The smaller values: -0 is below +0, NaN is only the result of two, and canonical (min)."""
    return _with_nan(np.where((a < b) | ((a == b) & np.signbit(a)), a, b), a, b)


@helper
def maximum_of(a: Any, b: Any) -> Any:
    """The larger values, as `minimum_of`."""
    return _with_nan(np.where((a > b) | ((a == b) & ~np.signbit(a)), a, b), a, b)


def _with_nan(chosen: Any, a: Any, b: Any) -> Any:
    one, other = a != a, b != b
    canonical = {4: 0x7FFFFFFF, 8: 0x7FFFFFFFFFFFFFFF}[chosen.dtype.itemsize]
    value = np.array([canonical], f"u{chosen.dtype.itemsize}").view(chosen.dtype)
    return np.where(one & other, value, np.where(one, b, np.where(other, a, chosen)))


# Correctly rounded arithmetic
#
# Sums and products that are not exact in float64 are *rounded to odd*: if a result is inexact, the
# one of its two neighbours is taken whose last bit is set. A value of 53 bits that is rounded to
# odd gives the same as the exact value when it is rounded once more to at most 51 bits (S. Boldo
# and G. Melquiond, Emulation of FMA and Correctly Rounded Sums: Proved Algorithms Using Rounding to
# Odd).


def _fused(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float64 whose products are exact, rounded to odd."""
    product = a * b
    total = product + c
    # The error of the sum (Knuth), which is NaN if the sum is not finite.
    part = total - product
    error = (product - (total - part)) + (c - part)
    even = (total.view(np.int64) & 1) == 0
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error)
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(inexact & even, np.nextafter(total, toward), total)


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
        result[where] = _fused(a, b, c).astype(np.float32)
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
