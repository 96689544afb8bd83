"""Quotients of integers and remainders of floats, both exact.

Neither has vector instructions. Functions of one lane contain their loops, because values may be
computed outside of the block in which they are used.
"""

from __future__ import annotations

import math

from lamina.codegen.builder import Builder, Module
from lamina.codegen.floats import Format, bits_of, format_of, scaled
from lamina.codegen.values import Type, Value, constant, undefined


def quotient(code: Builder, x: Value, y: Value, *, signed: bool) -> Value:
    """x / y, truncated towards zero; 0 if y is 0.

    The smallest integer divided by -1 wraps around. Processors stop at both.
    """
    zero = constant(0, x.type)
    if not signed:
        return _unsigned_quotient(code, x, y)
    sizes = (code.select(code.compare("slt", one, zero), code.negate(one), one) for one in (x, y))
    result = _unsigned_quotient(code, *sizes)
    negative = code.compare("slt", code.binary("xor", x, y), zero)
    return code.select(negative, code.negate(result), result)


def _unsigned_quotient(code: Builder, x: Value, y: Value) -> Value:
    zero, one = constant(0, x.type), constant(1, x.type)
    nothing = code.compare("eq", y, zero)
    found = code.binary("udiv", x, code.select(nothing, one, y))
    return code.select(nothing, zero, found)


def each_lane(code: Builder, function: str, x: Value, y: Value) -> Value:
    """A function of two numbers, called for each lane."""
    lanes, type = x.type.lanes, x.type.scalar
    if not lanes:
        return code.call(function, type, x, y)
    result = undefined(x.type)
    for lane in range(lanes):
        found = code.call(function, type, code.extract(x, lane), code.extract(y, lane))
        result = code.insert(result, found, lane)
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
    (top, top_exponent), (bottom, exponent) = (_mantissa(code, shape, one) for one in (x, y))
    whole = top.type
    zero = constant(0, whole)
    nothing = code.compare("eq", bottom, zero)
    bottom = code.select(nothing, constant(1, whole), bottom)
    distance = code.subtract(top_exponent, exponent)
    width = whole.bits - shape.mantissa - 1
    loop = code.begin_loop(0, -(-2 * shape.bias // width), 1, (top, distance))
    rest, left = loop.carried
    taken = code.minimum(left, constant(width, whole))
    taken = code.select(code.compare("sgt", taken, zero), taken, zero)
    rest = code.binary("urem", code.binary("shl", rest, taken), bottom)
    left = code.subtract(left, taken)
    rest, _ = code.end_loop(loop, (rest, left), code.compare("sgt", left, zero))
    power = code.subtract(exponent, constant(shape.bias + shape.mantissa, whole))
    result = scaled(code, code.convert("uitofp", rest, type.element), power)
    result = code.intrinsic("copysign", result, x)
    # If x has the smaller exponent, it is smaller than y; so is every finite x if y is infinite.
    result = code.select(code.compare("slt", distance, zero), x, result)
    endless = code.compare("oeq", code.intrinsic("fabs", x), constant(math.inf, type))
    undefined_here = code.binary(
        "or", code.binary("or", endless, nothing), code.compare("uno", x, y)
    )
    code.finish(code.select(undefined_here, constant(math.nan, type), result))
    return name


def _mantissa(code: Builder, shape: Format, x: Value) -> tuple[Value, Value]:
    """(m, e) with abs(x) = m 2**(e - bias - mantissa): two integers, e at least 1."""
    bits = bits_of(code, code.intrinsic("fabs", x))
    type = bits.type
    exponent = code.binary("lshr", bits, constant(shape.mantissa, type))
    fraction = code.binary("and", bits, constant(2**shape.mantissa - 1, type))
    normal = code.compare("ne", exponent, constant(0, type))
    whole = code.binary("or", fraction, constant(2**shape.mantissa, type))
    return (code.select(normal, whole, fraction), code.select(normal, exponent, constant(1, type)))
