"""Mathematical functions as vector instructions: no tables, no calls, no branches.

Errors are at most 4 units in the last place in float32 and float64; infinities, NaN, zeros of both
signs and denormal numbers are handled. The method is the classic one: range reduction, polynomial
approximation, reconstruction (Cody and Waite, Software Manual for the Elementary Functions, 1980;
Muller, Elementary Functions, 2016). `tests/unit/polynomials.py` computes the polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from lamina.codegen.builder import Builder
from lamina.codegen.circular import cos, sin, tan
from lamina.codegen.floats import (
    as_float,
    clamped,
    format_of,
    mantissa_and_exponent,
    polynomial,
    power_of_two,
    rounded,
    scaled,
    split_exponent,
    two_product,
)
from lamina.codegen.values import Value, constant


def reduced_exp(code: Builder, x: Value) -> tuple[Value, Value]:
    """(r, n) with x = r + n log(2), abs(r) about log(2) / 2 or less."""
    shape = format_of(x)
    count, integer = rounded(code, code.multiply(x, constant(1 / math.log(2), x.type)))
    negative = code.negate(count)
    r = code.multiply_add(negative, constant(shape.ln2[0], x.type), x)
    return code.multiply_add(negative, constant(shape.ln2[1], x.type), r), integer


def exp_minus_one(code: Builder, r: Value) -> Value:
    """exp(r) - 1 for abs(r) <= log(2) / 2."""
    square = code.multiply(r, r)
    return code.multiply_add(square, polynomial(code, r, format_of(r).exp), r)


def exp(code: Builder, x: Value) -> Value:
    """exp(x), as exp(r) * 2**n."""
    shape = format_of(x)
    r, exponent = reduced_exp(code, clamped(code, x, shape.exp_low, shape.exp_high))
    return scaled(code, code.add(exp_minus_one(code, r), constant(1, x.type)), exponent)


def expm1(code: Builder, x: Value) -> Value:
    """exp(x) - 1, accurate near zero: 2**n (exp(r) - 1) + (2**n - 1)."""
    shape = format_of(x)
    r, exponent = reduced_exp(code, clamped(code, x, shape.expm1_low, shape.exp_high))
    # Half the result is computed and then doubled, because 2**n may overflow.
    less = code.subtract(exponent, constant(1, exponent.type))
    scale = power_of_two(code, less, x.type)
    rest = code.subtract(scale, constant(0.5, x.type))
    half = code.multiply_add(scale, exp_minus_one(code, r), rest)
    zero = code.compare("oeq", x, constant(0, x.type))
    return code.select(zero, x, code.add(half, half))


def exp2(code: Builder, x: Value) -> Value:
    """2 to the power x: exp(r log(2)) * 2**n."""
    shape = format_of(x)
    low, high = -(shape.bias + shape.mantissa + 3.0), shape.bias + 2.0
    x = clamped(code, x, low, high)
    count, exponent = rounded(code, x)
    r = code.multiply(code.subtract(x, count), constant(math.log(2), x.type))
    return scaled(code, code.add(exp_minus_one(code, r), constant(1, x.type)), exponent)


def _log_sum(code: Builder, f: Value, exponent: Value, correction: Value) -> Value:
    """log(1 + f) + exponent * log(2) + correction, f from sqrt(1/2) - 1 to sqrt(2) - 1.

    With s = f / (2 + f), log(1 + f) is f - f**2 / 2 + s (f**2 / 2 + s**2 R(s**2)), where only
    small terms are rounded before the last addition (as in the logarithm of FDLIBM, Sun, 1993).
    """
    shape = format_of(f)
    s = code.divide(f, code.add(f, constant(2, f.type)))
    z = code.multiply(s, s)
    tail = code.multiply(z, polynomial(code, z, shape.log))
    half = code.multiply(code.multiply(f, f), constant(0.5, f.type))
    count = as_float(code, exponent, f.type)
    low = code.multiply_add(count, constant(shape.ln2[1], f.type), correction)
    low = code.multiply_add(s, code.add(half, tail), low)
    rest = code.subtract(half, low)
    high = code.multiply(count, constant(shape.ln2[0], f.type))
    return code.add(high, code.subtract(f, rest))


def _log_edges(code: Builder, x: Value, distance: Value, result: Value) -> Value:
    """The result, corrected where x is infinite and where `distance` is not positive.

    `distance` is the distance of x above the pole of the logarithm.
    """
    type = x.type
    infinite = code.compare("oeq", x, constant(math.inf, type))
    result = code.select(infinite, x, result)
    zero = constant(0, type)
    result = code.select(code.compare("oeq", distance, zero), constant(-math.inf, type), result)
    # Below zero, and for NaN.
    return code.select(code.compare("oge", distance, zero), result, constant(math.nan, type))


def log(code: Builder, x: Value) -> Value:
    """The natural logarithm: log(m) + e log(2)."""
    m, exponent = mantissa_and_exponent(code, x)
    f = code.subtract(m, constant(1, x.type))
    result = _log_sum(code, f, exponent, constant(0, x.type))
    return _log_edges(code, x, x, result)


def log1p(code: Builder, x: Value) -> Value:
    """log(1 + x), accurate near zero: the rounding error of 1 + x is corrected."""
    one = constant(1, x.type)
    u = code.add(x, one)
    large = code.compare("oge", x, one)
    lost = code.select(
        large, code.subtract(one, code.subtract(u, x)), code.subtract(x, code.subtract(u, one))
    )
    m, exponent = split_exponent(code, u)
    result = _log_sum(code, code.subtract(m, one), exponent, code.divide(lost, u))
    result = _log_edges(code, x, u, result)
    small = code.compare("olt", code.intrinsic("fabs", x), constant(2.0**-60, x.type))
    return code.select(small, x, result)


def _log_fraction(code: Builder, f: Value) -> Value:
    """log(1 + f) as in `_log_sum`."""
    s = code.divide(f, code.add(f, constant(2, f.type)))
    z = code.multiply(s, s)
    tail = code.multiply(z, polynomial(code, z, format_of(f).log))
    half = code.multiply(code.multiply(f, f), constant(0.5, f.type))
    return code.subtract(f, code.subtract(half, code.multiply(s, code.add(half, tail))))


def log2(code: Builder, x: Value) -> Value:
    """The logarithm to base 2: e + log(m) / log(2); exact for powers of 2."""
    m, exponent = mantissa_and_exponent(code, x)
    fraction = _log_fraction(code, code.subtract(m, constant(1, x.type)))
    count = as_float(code, exponent, x.type)
    result = code.multiply_add(fraction, constant(1 / math.log(2), x.type), count)
    return _log_edges(code, x, x, result)


def log10(code: Builder, x: Value) -> Value:
    """The logarithm to base 10: e log10(2) + log(m) / log(10)."""
    shape = format_of(x)
    m, exponent = mantissa_and_exponent(code, x)
    fraction = _log_fraction(code, code.subtract(m, constant(1, x.type)))
    count = as_float(code, exponent, x.type)
    low = code.multiply(count, constant(shape.log10_2[1], x.type))
    low = code.multiply_add(fraction, constant(1 / math.log(10), x.type), low)
    result = code.multiply_add(count, constant(shape.log10_2[0], x.type), low)
    return _log_edges(code, x, x, result)


def _quarter_expm1(code: Builder, x: Value) -> Value:
    """A quarter of exp(|x|) - 1, where sinh(x) is finite: it does not overflow."""
    size = clamped(code, code.intrinsic("fabs", x), 0.0, format_of(x).sinh_high)
    r, exponent = reduced_exp(code, size)
    scale = power_of_two(code, code.subtract(exponent, constant(2, exponent.type)), x.type)
    rest = code.subtract(scale, constant(0.25, x.type))
    return code.multiply_add(scale, exp_minus_one(code, r), rest)


def sinh(code: Builder, x: Value) -> Value:
    """The hyperbolic sine: (t + t / (t + 1)) / 2 with t = exp(|x|) - 1."""
    quarter = _quarter_expm1(code, x)
    half = code.add(quarter, quarter)
    whole = code.add(code.add(half, half), constant(1, x.type))
    rest = code.divide(quarter, whole)
    result = code.intrinsic("copysign", code.add(half, code.add(rest, rest)), x)
    # Below this, x**2 / 6 does not change the result; the quarter of a denormal number loses bits.
    tiny = constant(2.0 ** -(format_of(x).mantissa // 2 + 1), x.type)
    return code.select(code.compare("olt", code.intrinsic("fabs", x), tiny), x, result)


def cosh(code: Builder, x: Value) -> Value:
    """The hyperbolic cosine: 2 q + 1 / (8 q) with q = exp(|x|) / 4."""
    quarter = code.add(_quarter_expm1(code, x), constant(0.25, x.type))
    return code.add(code.add(quarter, quarter), code.divide(constant(0.125, x.type), quarter))


def tanh(code: Builder, x: Value) -> Value:
    """The hyperbolic tangent: t / (t + 2) with t = exp(2 |x|) - 1."""
    size = clamped(code, code.intrinsic("fabs", x), 0.0, format_of(x).tanh_high)
    t = expm1(code, code.add(size, size))
    result = code.divide(t, code.add(t, constant(2, x.type)))
    return code.intrinsic("copysign", result, x)


def sigmoid(code: Builder, x: Value) -> Value:
    """1 / (1 + exp(-x)); for negative x as exp(x) / (1 + exp(x))."""
    one = constant(1, x.type)
    small = exp(code, code.negate(code.intrinsic("fabs", x)))
    above = code.select(code.compare("oge", x, constant(0, x.type)), one, small)
    return code.divide(above, code.add(one, small))


def softplus(code: Builder, x: Value) -> Value:
    """log(1 + exp(x)): max(x, 0) + log1p(exp(-|x|))."""
    small = log1p(code, exp(code, code.negate(code.intrinsic("fabs", x))))
    zero = constant(0, x.type)
    return code.add(code.select(code.compare("olt", x, zero), zero, x), small)


def _erf_near(code: Builder, x: Value) -> Value:
    """erf(x) for abs(x) up to 1."""
    tail = polynomial(code, code.multiply(x, x), format_of(x).erf_near)
    return code.multiply_add(x, tail, x)


def erf(code: Builder, x: Value) -> Value:
    """The error function: x + x P(x**2) up to 1, beyond it 1 - exp(-Q(x))."""
    shape = format_of(x)
    one = constant(1, x.type)
    near = _erf_near(code, x)
    size = code.intrinsic("fabs", x)
    bounded = clamped(code, size, 0.0, shape.erf_high)
    exponent = polynomial(code, bounded, shape.erf_far[0][1])
    for start, coefficients in shape.erf_far[1:]:
        beyond = code.compare("oge", bounded, constant(start, x.type))
        exponent = code.select(beyond, polynomial(code, bounded, coefficients), exponent)
    far = code.subtract(one, exp(code, code.negate(exponent)))
    far = code.intrinsic("copysign", far, x)
    return code.select(code.compare("olt", size, one), near, far)


def erfc(code: Builder, x: Value) -> Value:
    """1 - erf(x), accurate where it is small: exp(-x**2) P((x - 4) / (x + 4)) / (1 + 2 x).

    Near 0, P would lose digits.

    Shepherd, Laframboise: Chebyshev approximation of (1 + 2 x) exp(x**2) erfc(x) (1981).
    """
    shape = format_of(x)
    size = clamped(code, code.intrinsic("fabs", x), 0.0, shape.erfc_high)
    centre = constant(4, x.type)
    t = code.divide(code.subtract(size, centre), code.add(size, centre))
    line = code.add(code.add(size, size), constant(1, x.type))
    quotient = code.divide(polynomial(code, t, shape.erfc), line)
    square, lost = two_product(code, size, size)
    r, exponent = reduced_exp(code, code.negate(square))
    less = exp_minus_one(code, code.subtract(r, lost))
    above = scaled(code, code.multiply_add(quotient, less, quotient), exponent)
    below = code.subtract(constant(2, x.type), above)
    far = code.select(code.compare("olt", x, constant(0, x.type)), below, above)
    near = code.subtract(constant(1, x.type), _erf_near(code, x))
    return code.select(code.compare("olt", size, constant(0.75, x.type)), near, far)


FUNCTIONS: Mapping[str, Callable[[Builder, Value], Value]] = {
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "log": log,
    "log2": log2,
    "log10": log10,
    "log1p": log1p,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "erf": erf,
    "erfc": erfc,
    "sigmoid": sigmoid,
    "softplus": softplus,
}
