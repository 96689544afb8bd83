"""Mathematical functions as vector instructions: no tables, no calls, no branches.

Errors are at most 4 units in the last place in float32 and float64; infinities, NaN, zeros of both
signs and denormal numbers are handled. The method is the classic one: range reduction, polynomial
approximation, reconstruction (Cody and Waite, Software Manual for the Elementary Functions, 1980;
Muller, Elementary Functions, 2016). `tools/polynomials.py` computes the polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from lamina.codegen import floats
from lamina.codegen.builder import Builder
from lamina.codegen.circular import cos, sin, tan
from lamina.codegen.values import Value


def reduced_exp(code: Builder, x: Value) -> tuple[Value, Value]:
    """(r, n) with x = r + n log(2), abs(r) about log(2) / 2 or less."""
    shape = floats.format_of(x)
    count, integer = floats.nearest_integer(code, x * (1 / math.log(2)))
    negative = -count
    r = code.multiply_add(negative, shape.ln2[0], x)
    return code.multiply_add(negative, shape.ln2[1], r), integer


def exp_minus_one(code: Builder, r: Value) -> Value:
    """exp(r) - 1 for abs(r) <= log(2) / 2."""
    return code.multiply_add(r * r, floats.polynomial(code, r, floats.format_of(r).exp), r)


def exp(code: Builder, x: Value) -> Value:
    """exp(x), as exp(r) * 2**n."""
    shape = floats.format_of(x)
    r, exponent = reduced_exp(code, floats.clamped(code, x, shape.exp_low, shape.exp_high))
    return floats.scaled(code, exp_minus_one(code, r) + 1, exponent)


def expm1(code: Builder, x: Value) -> Value:
    """exp(x) - 1, accurate near zero: 2**n (exp(r) - 1) + (2**n - 1)."""
    shape = floats.format_of(x)
    r, exponent = reduced_exp(code, floats.clamped(code, x, shape.expm1_low, shape.exp_high))
    # Half the result is computed and then doubled, because 2**n may overflow.
    scale = floats.power_of_two(code, exponent - 1, x.type)
    rest = scale - 0.5
    half = code.multiply_add(scale, exp_minus_one(code, r), rest)
    return code.select(x.equals(0), x, half + half)


def exp2(code: Builder, x: Value) -> Value:
    """2 to the power x: exp(r log(2)) * 2**n."""
    shape = floats.format_of(x)
    x = floats.clamped(code, x, -(shape.bias + shape.mantissa + 3.0), shape.bias + 2.0)
    count, exponent = floats.nearest_integer(code, x)
    r = (x - count) * math.log(2)
    return floats.scaled(code, exp_minus_one(code, r) + 1, exponent)


def _log_sum(code: Builder, f: Value, exponent: Value, correction: Value) -> Value:
    """log(1 + f) + exponent * log(2) + correction, f from sqrt(1/2) - 1 to sqrt(2) - 1.

    With s = f / (2 + f), log(1 + f) is f - f**2 / 2 + s (f**2 / 2 + s**2 R(s**2)), where only
    small terms are rounded before the last addition (as in the logarithm of FDLIBM, Sun, 1993).
    """
    shape = floats.format_of(f)
    s = f / (f + 2)
    z = s * s
    tail = z * floats.polynomial(code, z, shape.log)
    half = f * f * 0.5
    count = floats.as_float(code, exponent, f.type)
    low = code.multiply_add(count, shape.ln2[1], correction)
    low = code.multiply_add(s, half + tail, low)
    rest = half - low
    high = count * shape.ln2[0]
    return high + (f - rest)


def _log_edges(code: Builder, x: Value, distance: Value, result: Value) -> Value:
    """The result, corrected where x is infinite, and at or below the pole, by its distance."""
    result = code.select(x.equals(math.inf), x, result)
    result = code.select(distance.equals(0), -math.inf, result)
    # Below zero, and for NaN.
    return code.select(distance >= 0, result, math.nan)


def log(code: Builder, x: Value) -> Value:
    """The natural logarithm: log(m) + e log(2)."""
    m, exponent = floats.mantissa_and_exponent(code, x)
    result = _log_sum(code, m - 1, exponent, code.constant(0, x.type))
    return _log_edges(code, x, x, result)


def log1p(code: Builder, x: Value) -> Value:
    """log(1 + x), accurate near zero: the rounding error of 1 + x is corrected."""
    u = x + 1
    lost = code.select(x >= 1, 1 - (u - x), x - (u - 1))
    m, exponent = floats.split_exponent(code, u)
    result = _log_sum(code, m - 1, exponent, lost / u)
    result = _log_edges(code, x, u, result)
    return code.select(code.intrinsic("fabs", x) < 2.0**-60, x, result)


def _log_fraction(code: Builder, f: Value) -> Value:
    """log(1 + f) as in `_log_sum`."""
    s = f / (f + 2)
    z = s * s
    tail = z * floats.polynomial(code, z, floats.format_of(f).log)
    half = f * f * 0.5
    return f - (half - s * (half + tail))


def log2(code: Builder, x: Value) -> Value:
    """The logarithm to base 2: e + log(m) / log(2); exact for powers of 2."""
    m, exponent = floats.mantissa_and_exponent(code, x)
    fraction = _log_fraction(code, m - 1)
    count = floats.as_float(code, exponent, x.type)
    result = code.multiply_add(fraction, 1 / math.log(2), count)
    return _log_edges(code, x, x, result)


def log10(code: Builder, x: Value) -> Value:
    """The logarithm to base 10: e log10(2) + log(m) / log(10)."""
    shape = floats.format_of(x)
    m, exponent = floats.mantissa_and_exponent(code, x)
    fraction = _log_fraction(code, m - 1)
    count = floats.as_float(code, exponent, x.type)
    low = count * shape.log10_2[1]
    low = code.multiply_add(fraction, 1 / math.log(10), low)
    result = code.multiply_add(count, shape.log10_2[0], low)
    return _log_edges(code, x, x, result)


def _quarter_expm1(code: Builder, x: Value) -> Value:
    """A quarter of exp(|x|) - 1, where sinh(x) is finite: it does not overflow."""
    size = floats.clamped(code, code.intrinsic("fabs", x), 0.0, floats.format_of(x).sinh_high)
    r, exponent = reduced_exp(code, size)
    scale = floats.power_of_two(code, exponent - 2, x.type)
    rest = scale - 0.25
    return code.multiply_add(scale, exp_minus_one(code, r), rest)


def sinh(code: Builder, x: Value) -> Value:
    """The hyperbolic sine: (t + t / (t + 1)) / 2 with t = exp(|x|) - 1."""
    quarter = _quarter_expm1(code, x)
    half = quarter + quarter
    rest = quarter / (half + half + 1)
    result = code.intrinsic("copysign", half + (rest + rest), x)
    # Below this, x**2 / 6 does not change the result; the quarter of a denormal number loses bits.
    tiny = 2.0 ** -(floats.format_of(x).mantissa // 2 + 1)
    return code.select(code.intrinsic("fabs", x) < tiny, x, result)


def cosh(code: Builder, x: Value) -> Value:
    """The hyperbolic cosine: 2 q + 1 / (8 q) with q = exp(|x|) / 4."""
    quarter = _quarter_expm1(code, x) + 0.25
    return quarter + quarter + 0.125 / quarter


def tanh(code: Builder, x: Value) -> Value:
    """The hyperbolic tangent: t / (t + 2) with t = exp(2 |x|) - 1."""
    size = floats.clamped(code, code.intrinsic("fabs", x), 0.0, floats.format_of(x).tanh_high)
    t = expm1(code, size + size)
    return code.intrinsic("copysign", t / (t + 2), x)


def sigmoid(code: Builder, x: Value) -> Value:
    """1 / (1 + exp(-x)); for negative x as exp(x) / (1 + exp(x))."""
    small = exp(code, -code.intrinsic("fabs", x))
    return code.select(x >= 0, 1, small) / (1 + small)


def softplus(code: Builder, x: Value) -> Value:
    """log(1 + exp(x)): max(x, 0) + log1p(exp(-|x|))."""
    small = log1p(code, exp(code, -code.intrinsic("fabs", x)))
    return code.select(x < 0, 0, x) + small


def _erf_near(code: Builder, x: Value) -> Value:
    """erf(x) for abs(x) up to 1."""
    tail = floats.polynomial(code, x * x, floats.format_of(x).erf_near)
    return code.multiply_add(x, tail, x)


def erf(code: Builder, x: Value) -> Value:
    """The error function: x + x P(x**2) up to 1, beyond it 1 - exp(-Q(x))."""
    shape = floats.format_of(x)
    near = _erf_near(code, x)
    size = code.intrinsic("fabs", x)
    bounded = floats.clamped(code, size, 0.0, shape.erf_high)
    exponent = floats.polynomial(code, bounded, shape.erf_far[0][1])
    for start, coefficients in shape.erf_far[1:]:
        beyond = bounded >= start
        exponent = code.select(beyond, floats.polynomial(code, bounded, coefficients), exponent)
    far = code.intrinsic("copysign", 1 - exp(code, -exponent), x)
    return code.select(size < 1, near, far)


def erfc(code: Builder, x: Value) -> Value:
    """1 - erf(x), accurate where it is small: exp(-x**2) P((x - 4) / (x + 4)) / (1 + 2 x).

    Near 0, P would lose digits.

    Shepherd, Laframboise: Chebyshev approximation of (1 + 2 x) exp(x**2) erfc(x) (1981).
    """
    shape = floats.format_of(x)
    size = floats.clamped(code, code.intrinsic("fabs", x), 0.0, shape.erfc_high)
    t = (size - 4) / (size + 4)
    line = size + size + 1
    quotient = floats.polynomial(code, t, shape.erfc) / line
    square, lost = floats.two_product(code, size, size)
    r, exponent = reduced_exp(code, -square)
    less = exp_minus_one(code, r - lost)
    above = floats.scaled(code, code.multiply_add(quotient, less, quotient), exponent)
    below = 2 - above
    far = code.select(x < 0, below, above)
    near = 1 - _erf_near(code, x)
    return code.select(size < 0.75, near, far)


FUNCTIONS: Mapping[str, Callable[[Builder, Value], Value]] = {
    function.__name__: function
    for function in (
        *(exp, exp2, expm1, log, log2, log10, log1p, sin, cos, tan, sinh, cosh, tanh, erf, erfc),
        *(sigmoid, softplus),
    )
}
