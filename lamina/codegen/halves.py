"""Floats of 16 bits, whose bits are integers of 16 bits: conversions, and operations.

Numbers are rounded to the nearest, to even if two are equally near. Subnormal numbers are kept,
even on devices that take subnormal floats of 32 bits as zero: bfloat16 is converted as integers,
unless the device has an instruction that keeps them, and the subnormal numbers of float16 are
normal in float32.

A sum, difference or product of two float16 that is computed in float32 and then rounded to float16
has the same bits as one that is rounded to float16 at once: float32 has at least twice as many
bits of precision and two more (Figueroa, *When is double rounding innocuous?*, 1995). Products of
contractions are no such case, as their sums are float32. Neither are fused multiply-adds, and
quotients and square roots, which devices need not round correctly.
"""

from __future__ import annotations

import numpy as np

from lamina.base.shapes import DType, bfloat16, float16, float32
from lamina.codegen.builder import Builder
from lamina.codegen.values import Value
from lamina.program.scalar import Apply, Literal, Scalar

# Bits of float32, and the difference of the exponents of float32 and float16.
_SIGN, _EXPONENT, _QUIET = 0x80000000, 0x7F800000, 0x400000
_BIAS = (127 - 15) << 23


def to_float(code: Builder, value: Value, dtype: DType) -> Value:
    """The floats of 32 bits with the values of floats of 16 bits."""
    if dtype == bfloat16:
        bits = code.convert("zext", value, "i32") << 16
        return code.convert("bitcast", bits, "float")
    return code.from_half(value) if code.module.halves else _from_float16(code, value)


def _from_float16(code: Builder, value: Value) -> Value:
    wide = code.convert("zext", value, "i32")
    magnitude = wide & 0x7FFF
    normal = (magnitude << 13) + _BIAS
    is_large = code.compare("uge", magnitude, 0x7C00)
    normal = code.select(is_large, normal + _BIAS, normal)
    small = code.convert("sitofp", magnitude, "float") * 2.0**-24
    is_small = code.compare("ult", magnitude, 0x400)
    bits = code.select(is_small, code.convert("bitcast", small, "i32"), normal)
    sign = (wide & 0x8000) << 16
    return code.convert("bitcast", bits | sign, "float")


def rounded_to_half(code: Builder, value: Value, source: DType, target: DType) -> Value:
    """Numbers of any other dtype, except floats of 16 bits, rounded to floats of 16 bits."""
    if source.kind == "bool":
        value = code.convert("uitofp", value, "float")
    elif source.name == "uint32":
        wide = code.convert("zext", value, "i64")
        value = code.convert("sitofp", _shortened(code, wide), "float")
    elif source.name in ("int32", "int64"):
        value = code.convert("sitofp", _shortened(code, value), "float")
    elif not source.is_float:
        signed = source.name.startswith("int")
        value = code.convert("sitofp" if signed else "uitofp", value, "float")
    elif source.itemsize == 8:
        value = _rounded_to_odd(code, value)
    if target == bfloat16 and code.module.bfloat16:
        return code.call(code.module.bfloat16, value.type.of("i16"), value)
    if target == bfloat16:
        return code.convert("trunc", bfloat16_bits(code, value) >> 16, "i16")
    return code.to_half(value) if code.module.halves else _to_float16(code, value)


def bfloat16_bits(code: Builder, value: Value) -> Value:
    """Floats rounded to bfloat16: their bits in the upper half of integers; the rest is any."""
    bits = code.convert("bitcast", value, "i32")
    last = (bits >> 16) & 1
    nearest = bits + 0x7FFF + last
    # Rounding could make a NaN infinite.
    quiet = bits | _QUIET
    return code.select(code.compare("uno", value, value), quiet, nearest)


def _to_float16(code: Builder, value: Value) -> Value:
    bits = code.convert("bitcast", value, "i32")
    magnitude = bits & (_SIGN - 1)
    # Of the numbers from 0.5 to 1, neighbours are as far apart as the subnormal numbers of float16.
    absolute = code.convert("bitcast", magnitude, "float")
    small = code.convert("bitcast", absolute + 0.5, "i32") - 0x3F000000
    last = (magnitude >> 13) & 1
    nearest = magnitude + (0xFFF - _BIAS) + last
    normal = nearest >> 13
    is_small = code.compare("ult", magnitude, _BIAS + (1 << 23))
    finite = code.select(is_small, small, normal)
    # 65,520 lies between the largest number and the next one, which is missing.
    is_large = code.compare("uge", magnitude, 0x477FF000)
    is_nan = code.compare("ugt", magnitude, _EXPONENT)
    special = code.select(is_nan, code.constant(0x7E00, bits.type), 0x7C00)
    sign = (bits >> 16) & 0x8000
    half = code.select(is_large, special, finite) | sign
    return code.convert("trunc", half, "i16")


def _rounded_to_odd(code: Builder, value: Value) -> Value:
    """Floats of 64 bits in 32, rounded so that a further rounding to 16 bits is correct."""
    single = code.convert("fptrunc", value, "float")
    back = code.convert("fpext", single, "double")
    bits = code.convert("bitcast", single, "i32")
    unit = code.constant(1, bits.type)
    too_large = code.intrinsic("fabs", back) > code.intrinsic("fabs", value)
    bits = bits - code.select(too_large, unit, 0)
    # The last bit of a number that does not fit is set.
    bits = bits | code.select(code.compare("one", back, value), unit, 0)
    return code.convert("bitcast", bits, "float")


def _shortened(code: Builder, value: Value) -> Value:
    """Integers that floats of 32 bits hold: for each lost bit that is set, the last one is set."""
    for lowest, lost in ((24, 15), (39, 30), (54, 45)):
        if lowest >= value.type.bits - 1:
            break
        low = value & ((1 << lost) - 1)
        sticky = code.select(low.differs(0), code.constant(1 << lost, value.type), 0)
        short = (value - low) | sticky
        # Whether the magnitude reaches 2**lowest.
        is_long = code.compare("ugt", value + (1 << lowest), 2 << lowest)
        value = code.select(is_long, short, value)
    return value


_OPERATIONS = {"add": "fadd", "subtract": "fsub", "multiply": "fmul"}


def half_operation(scalar: Apply) -> tuple[str, tuple[Scalar, ...]] | None:
    """The operation on float16 with the bits of a rounded operation on float32; None for others.

    It is `"fadd"`, `"fsub"` or `"fmul"`, and has two operands of float16.
    """
    if scalar.primitive != "cast" or scalar.dtype != float16:
        return None
    (wide,) = scalar.operands
    if not isinstance(wide, Apply) or wide.dtype != float32 or wide.primitive not in _OPERATIONS:
        return None
    halves = [_narrow(operand) for operand in wide.operands]
    operands = tuple(half for half in halves if half is not None)
    return None if len(operands) < 2 else (_OPERATIONS[wide.primitive], operands)


def _narrow(operand: Scalar) -> Scalar | None:
    """The float16 from which a float32 is cast; None if there is none."""
    if isinstance(operand, Literal):
        with np.errstate(over="ignore"):
            fits = float(np.float16(operand.value)) == operand.value
        return Literal(operand.value, float16) if fits else None
    if isinstance(operand, Apply) and operand.primitive == "cast":
        (inner,) = operand.operands
        return inner if inner.dtype == float16 else None
    return None
