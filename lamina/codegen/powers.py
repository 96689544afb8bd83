"""Powers as vector instructions: the logarithm must be known to more digits than the result."""

from __future__ import annotations

import math

from lamina.codegen.builder import Builder, Module
from lamina.codegen.division import each_lane
from lamina.codegen.floats import (
    as_float,
    bits_of,
    clamped,
    floor,
    format_of,
    mantissa_and_exponent,
    polynomial,
    scaled,
    two_product,
    two_sum,
)
from lamina.codegen.functions import exp_minus_one, reduced_exp
from lamina.codegen.values import Type, Value, constant


def _precise_log(code: Builder, x: Value) -> tuple[Value, Value]:
    """log(x) of positive finite x as a sum of two numbers, to about 2**-64 in float64.

    log(m) is 2 s + 2/3 s**3 + s**5 R(s**2) with s = (m - 1) / (m + 1), the first two terms in
    twice the precision.
    """
    shape = format_of(x)
    type = x.type
    m, exponent = mantissa_and_exponent(code, x)
    count = as_float(code, exponent, type)
    f = code.subtract(m, constant(1, type))
    below, below_low = two_sum(code, m, constant(1, type))
    s = code.divide(f, below)
    # f - s * (m + 1) is the remainder of the division.
    product, lost = two_product(code, s, below)
    rest = code.subtract(code.subtract(f, product), lost)
    rest = code.subtract(rest, code.multiply(s, below_low))
    s_low = code.divide(rest, below)
    z, z_low = two_product(code, s, s)
    z_low = code.multiply_add(code.add(s, s), s_low, z_low)
    cube, cube_low = two_product(code, s, z)
    cube_low = code.multiply_add(s, z_low, cube_low)
    cube_low = code.multiply_add(z, s_low, cube_low)
    third = 2 / 3
    term, term_low = two_product(code, cube, constant(third, type))
    term_low = code.multiply_add(cube_low, constant(third, type), term_low)
    # No float equals 2/3, so the difference is added.
    lacking = constant(_TWO_THIRDS_LACK[type.element], type)
    term_low = code.multiply_add(cube, lacking, term_low)
    tail = code.multiply(code.multiply(cube, z), polynomial(code, z, _POWER_LOG))
    high, low = two_sum(code, code.add(s, s), term)
    low = code.add(code.add(low, code.add(term_low, tail)), code.add(s_low, s_low))
    far, far_low = two_sum(code, code.multiply(count, constant(shape.ln2[0], type)), high)
    low = code.add(low, far_low)
    # exponent * log(2): the first summand is exact, the second in twice the precision.
    second, second_low = two_product(code, count, constant(shape.ln2[1], type))
    far, more = two_sum(code, far, second)
    return two_sum(code, far, code.add(low, code.add(more, second_low)))


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

    The special cases are those of C and IEEE 754: anything to the power 0 and 1 to any power is
    1; a negative number to a power that is not an integer is NaN.
    """
    if x.type.element == "float" and code.module.doubles:
        wide = (code.convert("fpext", operand, "double") for operand in (x, y))
        return code.convert("fptrunc", power(code, *wide), "float")
    type = x.type
    zero, one = constant(0, type), constant(1, type)
    size = code.intrinsic("fabs", x)
    high, low = _precise_log(code, size)
    # With larger exponents every power is zero or infinite, except powers of 1.
    bounded = clamped(code, y, -1e20, 1e20)
    total, lost = two_product(code, bounded, high)
    rest = code.multiply_add(bounded, low, lost)
    shape = format_of(x)
    inside = clamped(code, total, shape.exp_low, shape.exp_high)
    rest = code.select(code.compare("oeq", inside, total), rest, zero)
    r, exponent = reduced_exp(code, inside)
    r = code.add(r, rest)
    result = scaled(code, code.add(exp_minus_one(code, r), one), exponent)
    # Zero and infinity have no finite logarithm that could be multiplied.
    infinite = constant(math.inf, type)
    rising = code.compare("ogt", y, zero)
    at_zero = code.select(rising, zero, infinite)
    at_infinity = code.select(rising, infinite, zero)
    result = code.select(code.compare("oeq", size, zero), at_zero, result)
    result = code.select(code.compare("oeq", size, infinite), at_infinity, result)
    # An infinite power of a finite number.
    endless = code.compare("oeq", code.intrinsic("fabs", y), infinite)
    grows = code.binary("xor", code.compare("ogt", size, one), code.compare("olt", y, zero))
    limit = code.select(grows, infinite, zero)
    limit = code.select(code.compare("oeq", size, one), one, limit)
    result = code.select(endless, limit, result)
    # Signs.
    whole = code.compare("oeq", floor(code, y), y)
    half = code.multiply(y, constant(0.5, type))
    odd = code.binary("and", whole, code.compare("une", floor(code, half), half))
    negative = code.compare("slt", bits_of(code, x), constant(0, type.of(format_of(x).integer)))
    flipped = code.select(code.binary("and", negative, odd), code.negate(result), result)
    below = code.compare("olt", x, zero)
    finite = code.compare("olt", size, infinite)
    undefined = code.binary("and", code.binary("and", below, finite), _not(code, whole))
    result = code.select(undefined, constant(math.nan, type), flipped)
    result = code.select(code.compare("uno", x, y), code.add(x, y), result)
    ones = code.binary("or", code.compare("oeq", y, zero), code.compare("oeq", x, one))
    return code.select(ones, one, result)


def _not(code: Builder, condition: Value) -> Value:
    return code.binary("xor", condition, constant(True, condition.type))


def integer_power(code: Builder, x: Value, y: Value, *, signed: bool) -> Value:
    """x to the power y, by squaring; the result wraps around.

    Negative powers are 0, except those of 1 and -1.
    """
    result = each_lane(code, _squaring(code.module, x.type.scalar), x, y)
    if not signed:
        return result
    one, zero = constant(1, x.type), constant(0, x.type)
    is_one = code.compare("eq", code.select(code.compare("slt", x, zero), code.negate(x), x), one)
    odd = code.compare("ne", code.binary("and", y, one), zero)
    inverse = code.select(is_one, code.select(odd, x, one), zero)
    return code.select(code.compare("slt", y, zero), inverse, result)


def _squaring(module: Module, type: Type) -> str:
    """A function of two integers: the first to the power of the second, read without a sign."""
    name = f"power_{type.element}"
    if module.has(name):
        return name
    code = module.function(name, (("x", type), ("y", type)), result=type)
    x, y = code.parameters
    one, zero = constant(1, type), constant(0, type)
    loop = code.begin_loop(0, type.bits, 1, (one, x, y))
    result, square, rest = loop.carried
    odd = code.compare("ne", code.binary("and", rest, one), zero)
    result = code.select(odd, code.multiply(result, square), result)
    rest = code.binary("lshr", rest, one)
    going = code.compare("ne", rest, zero)
    result, *_ = code.end_loop(loop, (result, code.multiply(square, square), rest), going)
    code.finish(result)
    return name
