"""Circular functions and their inverse as vector instructions; see `functions.py`."""

from __future__ import annotations

import math
from collections.abc import Callable

from lamina.codegen import floats
from lamina.codegen.builder import Builder
from lamina.codegen.values import Value

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
    odd = (quarter & 1).differs(0)
    top = code.select(odd, -cosine, sine)
    result = top / code.select(odd, sine, cosine)
    if x.type.element == "float":
        # NaN where x is infinite.
        result = result + (x - x)
    return code.select(x.equals(0), x, result)


def _circular(code: Builder, x: Value, quarters: int) -> Value:
    """sin(x + quarters * pi / 2), in float64 if available."""
    if _is_widened(code, x):
        return _in_float64(code, lambda code, x: _circular(code, x, quarters), x)
    r, quarter = _reduced(code, x)
    sine, cosine = _sine_and_cosine(code, r)
    quadrant = quarter + quarters
    result = code.select((quadrant & 1).differs(0), cosine, sine)
    result = code.select((quadrant & 2).differs(0), -result, result)
    result = floats.clamped(code, result, -1.0, 1.0)
    if x.type.element == "float":
        # NaN where x is infinite.
        result = result + (x - x)
    if quarters == 0:
        result = code.select(x.equals(0), x, result)
    return result


def _is_widened(code: Builder, x: Value) -> bool:
    return x.type.element == "float" and code.module.doubles


def _in_float64(code: Builder, function: Callable[[Builder, Value], Value], x: Value) -> Value:
    wide = function(code, code.convert("fpext", x, "double"))
    return code.convert("fptrunc", wide, "float")


def _reduced(code: Builder, x: Value) -> tuple[Value, Value]:
    """(r, n) with x = r + n pi / 2, abs(r) about pi / 4 or less."""
    is_single = x.type.element == "float"
    if is_single:
        # Beyond this, no digit of the result is right, and products would overflow.
        x = floats.clamped(code, x, -(2.0**30), 2.0**30)
    count, quarter = floats.nearest_integer(code, x * (2 / math.pi))
    if is_single:
        return _less_half_pis(code, x, count), quarter
    r = x
    for term in _HALF_PI:
        r = r - count * term
    return r, quarter


def _sine_and_cosine(code: Builder, r: Value) -> tuple[Value, Value]:
    """For abs(r) about pi / 4 or less."""
    z = r * r
    sine = code.multiply_add(r * z, floats.polynomial(code, z, _SIN), r)
    # 1 - z / 2 and its rounding error.
    half = z * 0.5
    near = 1 - half
    lost = 1 - near - half
    tail = code.multiply_add(z * z, floats.polynomial(code, z, _COS), lost)
    return sine, near + tail


def _less_half_pis(code: Builder, x: Value, count: Value) -> Value:
    """The difference x - count * pi / 2, in float32 arithmetic alone.

    Each product is a sum of two numbers; the rounding errors of differences are added at the end.
    """
    r, lost = x, code.constant(0, x.type)
    for piece in _HALF_PI_SINGLE:
        for term in floats.two_product(code, count, code.constant(piece, x.type)):
            r, rounding = floats.two_sum(code, r, -term)
            lost = lost + rounding
    return r + lost


def atan2(code: Builder, y: Value, x: Value) -> Value:
    """The angle of the point (x, y), from -pi to pi.

    With t the quotient of the smaller and the larger number, or its difference from an angle of
    pi / 4 if that is smaller, the angle is a multiple of pi / 4 plus or minus atan(t). Special
    cases are as in C.
    """
    shape = floats.format_of(x)
    swapped, small, large = _sorted(code, code.intrinsic("fabs", y), code.intrinsic("fabs", x))
    shifted = small > large * _TANGENT
    top = code.select(shifted, small - large, small)
    bottom = code.select(shifted, small + large, large)
    t = top / code.select(bottom.equals(0), 1, bottom)
    z = t * t
    angle = code.multiply_add(t * z, floats.polynomial(code, z, shape.atan), t)
    quarters = code.select(shifted, code.constant(1, x.type), 0)
    negative = floats.bits_of(code, x) < 0
    for mirrored, line in ((swapped, 2), (negative, 4)):
        quarters = code.select(mirrored, line - quarters, quarters)
        angle = code.select(mirrored, -angle, angle)
    angle = code.multiply_add(quarters, shape.quarter_pi[1], angle)
    angle = code.multiply_add(quarters, shape.quarter_pi[0], angle)
    angle = code.intrinsic("copysign", angle, y)
    return code.select(code.compare("uno", x, y), x + y, angle)


def _sorted(code: Builder, y: Value, x: Value) -> tuple[Value, Value, Value]:
    """(whether y is larger, the smaller, the larger), scaled so that their sum is finite."""
    swapped = y > x
    large, small = code.select(swapped, y, x), code.select(swapped, x, y)
    endless = small.equals(math.inf)
    large, small = code.select(endless, 1, large), code.select(endless, 1, small)
    past = large > 2.0 ** (floats.format_of(x).bias - 2)
    scale = code.select(past, code.constant(0.25, x.type), 1)
    return swapped, small * scale, large * scale
