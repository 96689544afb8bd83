"""Rounding to TF32, as integers: `lamina.program.tf32` defines it."""

from __future__ import annotations

from lamina.codegen.builder import Builder
from lamina.codegen.values import Value, constant
from lamina.program.tf32 import HALF_DIGIT, KEPT_BITS, QUIET


def rounded(code: Builder, value: Value) -> Value:
    """Floats of 32 bits rounded to TF32."""
    bits = code.convert("bitcast", value, "i32")
    nearest = code.add(bits, constant(HALF_DIGIT, bits.type))
    # The carry could make a NaN a number.
    is_nan = code.compare("uno", value, value)
    quiet = code.binary("or", bits, constant(QUIET, bits.type))
    found = code.select(is_nan, quiet, nearest)
    return code.convert(
        "bitcast", code.binary("and", found, constant(KEPT_BITS, bits.type)), "float"
    )
