"""Powers as vector instructions: the logarithm must be known to more digits than the result."""

from __future__ import annotations

import math

from lamina.codegen import floats
from lamina.codegen.builder import Builder, Module
from lamina.codegen.division import each_lane
from lamina.codegen.functions import exp_minus_one, reduced_exp
from lamina.codegen.values import Type, Value


def _precise_log(code: Builder, x: Value) -> tuple[Value, Value]:
    """log(x) of positive finite x as a sum of two numbers, to about 2**-64 in float64.

    log(m) is 2 s + 2/3 s**3 + s**5 R(s**2) with s = (m - 1) / (m + 1), the first two terms in
    twice the precision.
    """
    shape = floats.format_of(x)
    type = x.type
    m, exponent = floats.mantissa_and_exponent(code, x)
    count = floats.as_float(code, exponent, type)
    f = m - 1
    below, below_low = floats.two_sum(code, m, code.constant(1, type))
    s = f / below
    # f - s * (m + 1) is the remainder of the division.
    product, lost = floats.two_product(code, s, below)
    s_low = (f - product - lost - s * below_low) / below
    z, z_low = floats.two_product(code, s, s)
    z_low = code.multiply_add(s + s, s_low, z_low)
    cube, cube_low = floats.two_product(code, s, z)
    cube_low = code.multiply_add(s, z_low, cube_low)
    cube_low = code.multiply_add(z, s_low, cube_low)
    term, term_low = floats.two_product(code, cube, code.constant(2 / 3, type))
    term_low = code.multiply_add(cube_low, 2 / 3, term_low)
    # No float equals 2/3, so the difference is added.
    term_low = code.multiply_add(cube, _TWO_THIRDS_LACK[type.element], term_low)
    tail = cube * z * floats.polynomial(code, z, _POWER_LOG)
    high, low = floats.two_sum(code, s + s, term)
    low = low + (term_low + tail) + (s_low + s_low)
    far, far_low = floats.two_sum(code, count * shape.ln2[0], high)
    low = low + far_low
    # exponent * log(2): the first summand is exact, the second in twice the precision.
    second, second_low = floats.two_product(code, count, code.constant(shape.ln2[1], type))
    far, more = floats.two_sum(code, far, second)
    return floats.two_sum(code, far, low + (more + second_low))


# log((1 + s) / (1 - s)) is 2 s + 2/3 s**3 + s**5 times this, in powers of s**2.
_POWER_LOG = (
    *(0.4, 0.2857142857142857, 0.2222222222222222, 0.18181818181818182),
    *(0.15384615384615385, 0.13333333333333333, 0.11764705882352941, 0.10526315789473684),
    *(0.09523809523809523, 0.08695652173913043),
)

# 2/3 minus the nearest number of each format.
_TWO_THIRDS_LACK = {"float": -1.9868214925130207e-08, "double": 3.700743415417188e-17}


def power(code: Builder, x: Value, y: Value) -> Value:
    """x to the power y: exp(y log |x|) with the sign of an odd power, in float64 if available.

    The special cases are as in C and IEEE 754: anything to the power 0 and 1 to any power is
    1; a negative number to a power that is not an integer is NaN.
    """
    if x.type.element == "float" and code.module.doubles:
        wide = (code.convert("fpext", operand, "double") for operand in (x, y))
        return code.convert("fptrunc", power(code, *wide), "float")
    size = code.intrinsic("fabs", x)
    high, low = _precise_log(code, size)
    # With larger exponents every power is zero or infinite, except powers of 1.
    bounded = floats.clamped(code, y, -1e20, 1e20)
    total, lost = floats.two_product(code, bounded, high)
    rest = code.multiply_add(bounded, low, lost)
    shape = floats.format_of(x)
    inside = floats.clamped(code, total, shape.exp_low, shape.exp_high)
    rest = code.select(inside.equals(total), rest, 0)
    r, exponent = reduced_exp(code, inside)
    result = floats.scaled(code, exp_minus_one(code, r + rest) + 1, exponent)
    # Zero and infinity have no finite logarithm that could be multiplied.
    infinite = code.constant(math.inf, x.type)
    rising = y > 0
    at_zero = code.select(rising, 0, infinite)
    at_infinity = code.select(rising, infinite, 0)
    result = code.select(size.equals(0), at_zero, result)
    result = code.select(size.equals(infinite), at_infinity, result)
    # An infinite power of a finite number.
    endless = code.intrinsic("fabs", y).equals(infinite)
    limit = code.select((size > 1) ^ (y < 0), infinite, 0)
    limit = code.select(size.equals(1), 1, limit)
    result = code.select(endless, limit, result)
    # Signs.
    is_integer = floats.floor(code, y).equals(y)
    half = y * 0.5
    odd = is_integer & floats.floor(code, half).differs(half)
    negative = floats.bits_of(code, x) < 0
    flipped = code.select(negative & odd, -result, result)
    below = x < 0
    finite = size < infinite
    result = code.select(below & finite & (is_integer ^ True), math.nan, flipped)
    result = code.select(code.compare("uno", x, y), x + y, result)
    return code.select(y.equals(0) | x.equals(1), 1, result)


def integer_power(code: Builder, x: Value, y: Value, *, signed: bool) -> Value:
    """x to the power y, by squaring; the result wraps around.

    Negative powers are 0, except of 1 and -1.
    """
    result = each_lane(code, _squaring(code.module, x.type.scalar), x, y)
    if not signed:
        return result
    is_one = code.select(x < 0, -x, x).equals(1)
    odd = (y & 1).differs(0)
    inverse = code.select(is_one, code.select(odd, x, 1), 0)
    return code.select(y < 0, inverse, result)


def _squaring(module: Module, type: Type) -> str:
    """A function of two integers: the first to the power of the second, read without a sign."""
    name = f"power_{type.element}"
    if module.has(name):
        return name
    code = module.function(name, (("x", type), ("y", type)), result=type)
    x, y = code.parameters
    loop = code.begin_loop(0, type.bits, 1, (code.constant(1, type), x, y))
    result, square, rest = loop.carried
    odd = (rest & 1).differs(0)
    result = code.select(odd, result * square, result)
    rest = rest >> 1
    going = rest.differs(0)
    result, *_ = code.end_loop(loop, (result, square * square, rest), going)
    code.finish(result)
    return name
