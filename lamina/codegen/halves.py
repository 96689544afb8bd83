"""Conversions of floats of 16 bits, whose bits are integers of 16 bits.

Numbers are rounded to the nearest, to even if two are equally near. Subnormal numbers are kept,
even on devices that take subnormal floats of 32 bits as zero: bfloat16 is converted as integers,
and the subnormal numbers of float16 are normal in float32.
"""

from __future__ import annotations

from lamina.base.shapes import DType, bfloat16
from lamina.codegen.builder import Builder
from lamina.codegen.values import Value, constant

# Bits of float32, and the difference of the exponents of float32 and float16.
_SIGN, _EXPONENT, _QUIET = 0x80000000, 0x7F800000, 0x400000
_BIAS = (127 - 15) << 23


def is_not_zero(code: Builder, value: Value) -> Value:
    """Whether a float of 16 bits is not zero, in each lane."""
    magnitude = code.binary("and", value, constant(0x7FFF, value.type))
    return code.compare("ne", magnitude, constant(0, value.type))


def to_float(code: Builder, value: Value, dtype: DType) -> Value:
    """The floats of 32 bits with the values of floats of 16 bits."""
    if dtype == bfloat16:
        bits = _shifted(code, "shl", code.convert("zext", value, "i32"), 16)
        return code.convert("bitcast", bits, "float")
    if code.module.halves:
        return code.from_half(value)
    return _from_float16(code, value)


def _from_float16(code: Builder, value: Value) -> Value:
    wide = code.convert("zext", value, "i32")
    type = wide.type
    magnitude = code.binary("and", wide, constant(0x7FFF, type))
    normal = code.add(_shifted(code, "shl", magnitude, 13), constant(_BIAS, type))
    is_large = code.compare("uge", magnitude, constant(0x7C00, type))
    normal = code.select(is_large, code.add(normal, constant(_BIAS, type)), normal)
    count = code.convert("sitofp", magnitude, "float")
    small = code.multiply(count, constant(2.0**-24, count.type))
    is_small = code.compare("ult", magnitude, constant(0x400, type))
    bits = code.select(is_small, code.convert("bitcast", small, "i32"), normal)
    sign = _shifted(code, "shl", code.binary("and", wide, constant(0x8000, type)), 16)
    return code.convert("bitcast", code.binary("or", bits, sign), "float")


def rounded(code: Builder, value: Value, source: DType, target: DType) -> Value:
    """Numbers of any other dtype, except floats of 16 bits, rounded to floats of 16 bits."""
    if source.kind == "bool":
        value = code.convert("uitofp", value, "float")
    elif source.name == "uint32":
        value = code.convert(
            "sitofp", _shortened(code, code.convert("zext", value, "i64")), "float"
        )
    elif source.name in ("int32", "int64"):
        value = code.convert("sitofp", _shortened(code, value), "float")
    elif not source.is_float:
        signed = source.name.startswith("int")
        value = code.convert("sitofp" if signed else "uitofp", value, "float")
    elif source.itemsize == 8:
        value = _rounded_to_odd(code, value)
    if target == bfloat16:
        return code.convert("trunc", _shifted(code, "lshr", bfloat16_bits(code, value), 16), "i16")
    if code.module.halves:
        return code.to_half(value)
    return _to_float16(code, value)


def bfloat16_bits(code: Builder, value: Value) -> Value:
    """Floats rounded to bfloat16: their bits in the upper half of integers; the rest is any."""
    bits = code.convert("bitcast", value, "i32")
    type = bits.type
    last = code.binary("and", _shifted(code, "lshr", bits, 16), constant(1, type))
    nearest = code.add(code.add(bits, constant(0x7FFF, type)), last)
    # Rounding could make a NaN infinite.
    quiet = code.binary("or", bits, constant(_QUIET, type))
    return code.select(code.compare("uno", value, value), quiet, nearest)


def _to_float16(code: Builder, value: Value) -> Value:
    bits = code.convert("bitcast", value, "i32")
    type = bits.type
    magnitude = code.binary("and", bits, constant(_SIGN - 1, type))
    # Of the numbers from 0.5 to 1, neighbours are as far apart as the subnormal numbers of float16.
    absolute = code.convert("bitcast", magnitude, "float")
    half = constant(0.5, absolute.type)
    sum_bits = code.convert("bitcast", code.add(absolute, half), "i32")
    small = code.subtract(sum_bits, constant(0x3F000000, type))
    last = code.binary("and", _shifted(code, "lshr", magnitude, 13), constant(1, type))
    nearest = code.add(code.add(magnitude, constant(0xFFF - _BIAS, type)), last)
    normal = _shifted(code, "lshr", nearest, 13)
    is_small = code.compare("ult", magnitude, constant(_BIAS + (1 << 23), type))
    finite = code.select(is_small, small, normal)
    # 65,520 lies between the largest number and the next one, which is missing.
    is_large = code.compare("uge", magnitude, constant(0x477FF000, type))
    is_nan = code.compare("ugt", magnitude, constant(_EXPONENT, type))
    special = code.select(is_nan, constant(0x7E00, type), constant(0x7C00, type))
    sign = code.binary("and", _shifted(code, "lshr", bits, 16), constant(0x8000, type))
    found = code.binary("or", code.select(is_large, special, finite), sign)
    return code.convert("trunc", found, "i16")


def _rounded_to_odd(code: Builder, value: Value) -> Value:
    """Floats of 64 bits in 32: the last bit of a number that does not fit is set.

    So rounding the result to 16 bits rounds the number correctly.
    """
    single = code.convert("fptrunc", value, "float")
    back = code.convert("fpext", single, "double")
    bits = code.convert("bitcast", single, "i32")
    one, zero = constant(1, bits.type), constant(0, bits.type)
    too_large = code.compare("ogt", code.intrinsic("fabs", back), code.intrinsic("fabs", value))
    bits = code.subtract(bits, code.select(too_large, one, zero))
    bits = code.binary("or", bits, code.select(code.compare("one", back, value), one, zero))
    return code.convert("bitcast", bits, "float")


def _shortened(code: Builder, value: Value) -> Value:
    """Integers that floats of 32 bits hold: for each lost bit that is set, the last one is set."""
    type = value.type
    for lowest, lost in ((24, 15), (39, 30), (54, 45)):
        if lowest >= type.bits - 1:
            break
        mask = (1 << lost) - 1
        low = code.binary("and", value, constant(mask, type))
        sticky = code.select(
            code.compare("ne", low, constant(0, type)), constant(1 << lost, type), constant(0, type)
        )
        short = code.binary("or", code.subtract(value, low), sticky)
        # Whether the magnitude reaches 2**lowest.
        moved = code.add(value, constant(1 << lowest, type))
        is_long = code.compare("ugt", moved, constant(2 << lowest, type))
        value = code.select(is_long, short, value)
    return value


def _shifted(code: Builder, operation: str, value: Value, bits: int) -> Value:
    return code.binary(operation, value, constant(bits, value.type))
