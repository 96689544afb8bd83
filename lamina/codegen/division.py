"""Quotients of integers and remainders of floats, both exact.

Neither has vector instructions. Functions of one lane contain their loops, because values may be
computed outside of the block in which they are used.
"""

from __future__ import annotations

import math

from lamina.codegen.builder import Builder, Module
from lamina.codegen.floats import Format, bits_of, format_of, scaled
from lamina.codegen.values import Type, Value, undefined


def quotient(code: Builder, x: Value, y: Value, *, signed: bool) -> Value:
    """x / y, truncated towards zero; 0 if y is 0.

    The smallest integer divided by -1 wraps around. Processors stop at both.
    """
    if signed:
        result = quotient(code, *(code.select(z < 0, -z, z) for z in (x, y)), signed=False)
        return code.select((x ^ y) < 0, -result, result)
    nothing = y.equals(0)
    return code.select(nothing, 0, x // code.select(nothing, 1, y))


def each_lane(code: Builder, function: str, x: Value, y: Value) -> Value:
    """A function of two numbers, called for each lane."""
    lanes, type = x.type.lanes, x.type.scalar
    if not lanes:
        return code.call(function, type, x, y)
    result = undefined(x.type)
    for lane in range(lanes):
        lane_result = code.call(function, type, code.extract(x, lane), code.extract(y, lane))
        result = code.insert(result, lane_result, lane)
    return result


def remainder(code: Builder, x: Value, y: Value) -> Value:
    """The remainder of x / y, truncated towards zero; it has the sign of x, as C's fmod."""
    return each_lane(code, _remainder(code.module, x.type.scalar), x, y)


def _remainder(module: Module, type: Type) -> str:
    """The remainder of two floats as a function.

    X is m 2**d, and y is n, counted in the last digit of y. The remainder of m 2**d / n is computed
    in integers, with as many bits of d at once as an integer holds.
    """
    name = f"remainder_{type.element}"
    if module.has(name):
        return name
    code = module.function(name, (("x", type), ("y", type)), result=type)
    x, y = code.parameters
    shape = format_of(x)
    (top, top_exponent), (bottom, exponent) = (_mantissa(code, shape, float_) for float_ in (x, y))
    nothing = bottom.equals(0)
    bottom = code.select(nothing, 1, bottom)
    distance = top_exponent - exponent
    width = top.type.bits - shape.mantissa - 1
    loop = code.begin_loop(0, -(-2 * shape.bias // width), 1, (top, distance))
    rest, left = loop.carried
    taken = code.minimum(left, width)
    taken = code.select(taken > 0, taken, 0)
    rest = (rest << taken) % bottom
    left = left - taken
    rest, _ = code.end_loop(loop, (rest, left), left > 0)
    power = exponent - (shape.bias + shape.mantissa)
    result = scaled(code, code.convert("uitofp", rest, type.element), power)
    result = code.intrinsic("copysign", result, x)
    # x is the result if it has the smaller exponent: then it is smaller than y, also an infinite y.
    result = code.select(distance < 0, x, result)
    endless = code.intrinsic("fabs", x).equals(math.inf)
    undefined_here = endless | nothing | code.compare("uno", x, y)
    code.finish(code.select(undefined_here, math.nan, result))
    return name


def _mantissa(code: Builder, shape: Format, x: Value) -> tuple[Value, Value]:
    """(m, e) with abs(x) = m 2**(e - bias - mantissa): two integers, e at least 1."""
    bits = bits_of(code, code.intrinsic("fabs", x))
    exponent = bits >> shape.mantissa
    fraction = bits & (2**shape.mantissa - 1)
    normal = exponent.differs(0)
    significand = fraction | 2**shape.mantissa
    return (code.select(normal, significand, fraction), code.select(normal, exponent, 1))
