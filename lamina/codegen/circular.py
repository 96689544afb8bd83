"""Circular functions and their inverse as vector instructions; see `functions.py`."""

from __future__ import annotations

import math
from collections.abc import Callable

from lamina.codegen.builder import Builder
from lamina.codegen.floats import (
    bits_of,
    clamped,
    format_of,
    polynomial,
    rounded,
    two_product,
    two_sum,
)
from lamina.codegen.values import Value, constant

# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 in powers of r**2, for abs(r) <= pi / 4.
_SIN = (
    *(-0.16666666666666666, 0.008333333333330946, -0.00019841269836753985),
    *(2.755731610017207e-06, -2.5051131348960252e-08, 1.5918093561437795e-10),
)
_COS = (
    *(0.041666666666666664, -0.0013888888888887395, 2.4801587298762816e-05),
    *(-2.755731727024068e-07, 2.087614595808494e-09, -1.1382610070998325e-11),
)
# pi / 2 as a sum of three numbers; products of the first two with numbers below 2**20 are exact.
_HALF_PI_SINGLE = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
_HALF_PI = (1.5707963267341256142, 6.0771005063039659766e-11, 2.0222662487959506e-21)
_TANGENT = math.tan(math.pi / 8)


def sin(code: Builder, x: Value) -> Value:
    """The sine, to 4 units in the last place for abs(x) up to 1e6.

    Larger x lose digits; results stay within [-1, 1].
    """
    return _circular(code, x, 0)


def cos(code: Builder, x: Value) -> Value:
    """The cosine, to 4 units in the last place for abs(x) up to 1e6.

    Larger x lose digits; results stay within [-1, 1].
    """
    return _circular(code, x, 1)


def tan(code: Builder, x: Value) -> Value:
    """The tangent, to 4 units in the last place for abs(x) up to 1e6; larger x lose digits."""
    if _is_widened(code, x):
        return _in_float64(code, tan, x)
    r, quarter = _reduced(code, x)
    sine, cosine = _sine_and_cosine(code, r)
    odd = _has_bit(code, quarter, 1)
    top = code.select(odd, code.negate(cosine), sine)
    result = code.divide(top, code.select(odd, sine, cosine))
    if x.type.element == "float":
        result = _undefined_at_infinity(code, result, x)
    return code.select(code.compare("oeq", x, constant(0, x.type)), x, result)


def _circular(code: Builder, x: Value, quarters: int) -> Value:
    """sin(x + quarters * pi / 2), in float64 if available."""
    if _is_widened(code, x):
        return _in_float64(code, lambda code, x: _circular(code, x, quarters), x)
    type = x.type
    r, quarter = _reduced(code, x)
    sine, cosine = _sine_and_cosine(code, r)
    quadrant = code.add(quarter, constant(quarters, quarter.type))
    odd = _has_bit(code, quadrant, 1)
    result = code.select(odd, cosine, sine)
    result = code.select(_has_bit(code, quadrant, 2), code.negate(result), result)
    result = clamped(code, result, -1.0, 1.0)
    if type.element == "float":
        result = _undefined_at_infinity(code, result, x)
    if quarters == 0:
        result = code.select(code.compare("oeq", x, constant(0, type)), x, result)
    return result


def _is_widened(code: Builder, x: Value) -> bool:
    return x.type.element == "float" and code.module.doubles


def _in_float64(code: Builder, function: Callable[[Builder, Value], Value], x: Value) -> Value:
    wide = function(code, code.convert("fpext", x, "double"))
    return code.convert("fptrunc", wide, "float")


def _reduced(code: Builder, x: Value) -> tuple[Value, Value]:
    """(r, n) with x = r + n pi / 2, abs(r) about pi / 4 or less."""
    type = x.type
    is_single = type.element == "float"
    if is_single:
        # Beyond this, no digit of the result is right, and products would overflow.
        x = clamped(code, x, -(2.0**30), 2.0**30)
    count, quarter = rounded(code, code.multiply(x, constant(2 / math.pi, type)))
    if is_single:
        return _less_half_pis(code, x, count), quarter
    r = x
    for term in _HALF_PI:
        r = code.subtract(r, code.multiply(count, constant(term, type)))
    return r, quarter


def _sine_and_cosine(code: Builder, r: Value) -> tuple[Value, Value]:
    """For abs(r) about pi / 4 or less."""
    type = r.type
    z = code.multiply(r, r)
    sine = code.multiply_add(code.multiply(r, z), polynomial(code, z, _SIN), r)
    # 1 - z / 2 and its rounding error.
    half = code.multiply(z, constant(0.5, type))
    one = constant(1, type)
    near = code.subtract(one, half)
    lost = code.subtract(code.subtract(one, near), half)
    tail = code.multiply_add(code.multiply(z, z), polynomial(code, z, _COS), lost)
    return sine, code.add(near, tail)


def _undefined_at_infinity(code: Builder, result: Value, x: Value) -> Value:
    """The result, but NaN where x is infinite."""
    return code.add(result, code.subtract(x, x))


def _less_half_pis(code: Builder, x: Value, count: Value) -> Value:
    """The difference x - count * pi / 2, in float32 arithmetic alone.

    Each product is a sum of two numbers; the rounding errors of differences are added at the end.
    """
    r, lost = x, constant(0, x.type)
    for piece in _HALF_PI_SINGLE:
        for term in two_product(code, count, constant(piece, x.type)):
            r, rounding = two_sum(code, r, code.negate(term))
            lost = code.add(lost, rounding)
    return code.add(r, lost)


def _has_bit(code: Builder, integer: Value, bit: int) -> Value:
    masked = code.binary("and", integer, constant(bit, integer.type))
    return code.compare("ne", masked, constant(0, integer.type))


def atan2(code: Builder, y: Value, x: Value) -> Value:
    """The angle of the point (x, y), from -pi to pi.

    With t the quotient of the smaller and the larger number, or its difference from an angle of
    pi / 4 if that is smaller, the angle is a multiple of pi / 4 plus or minus atan(t). Special
    cases are those of C.
    """
    type, shape = x.type, format_of(x)
    zero, one = constant(0, type), constant(1, type)
    swapped, small, large = _sorted(code, code.intrinsic("fabs", y), code.intrinsic("fabs", x))
    shifted = code.compare("ogt", small, code.multiply(large, constant(_TANGENT, type)))
    top = code.select(shifted, code.subtract(small, large), small)
    bottom = code.select(shifted, code.add(small, large), large)
    t = code.divide(top, code.select(code.compare("oeq", bottom, zero), one, bottom))
    z = code.multiply(t, t)
    angle = code.multiply_add(code.multiply(t, z), polynomial(code, z, shape.atan), t)
    quarters = code.select(shifted, one, zero)
    negative = code.compare("slt", bits_of(code, x), constant(0, type.of(shape.integer)))
    for mirrored, line in ((swapped, 2), (negative, 4)):
        other = code.subtract(constant(line, type), quarters)
        quarters = code.select(mirrored, other, quarters)
        angle = code.select(mirrored, code.negate(angle), angle)
    angle = code.multiply_add(quarters, constant(shape.quarter_pi[1], type), angle)
    angle = code.multiply_add(quarters, constant(shape.quarter_pi[0], type), angle)
    angle = code.intrinsic("copysign", angle, y)
    return code.select(code.compare("uno", x, y), code.add(x, y), angle)


def _sorted(code: Builder, y: Value, x: Value) -> tuple[Value, Value, Value]:
    """(whether y is larger, the smaller, the larger), scaled so that their sum is finite."""
    type = x.type
    swapped = code.compare("ogt", y, x)
    large, small = code.select(swapped, y, x), code.select(swapped, x, y)
    one = constant(1, type)
    endless = code.compare("oeq", small, constant(math.inf, type))
    large, small = code.select(endless, one, large), code.select(endless, one, small)
    past = code.compare("ogt", large, constant(2.0 ** (format_of(x).bias - 2), type))
    scale = code.select(past, constant(0.25, type), one)
    return swapped, code.multiply(small, scale), code.multiply(large, scale)
