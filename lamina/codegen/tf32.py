"""Rounding to TF32, as integers: `lamina.program.tf32` defines it."""

from __future__ import annotations

from lamina.codegen.builder import Builder
from lamina.codegen.values import Value
from lamina.program.tf32 import HALF_DIGIT, KEPT_BITS, QUIET


def rounded(code: Builder, value: Value) -> Value:
    """Floats of 32 bits rounded to TF32."""
    bits = code.convert("bitcast", value, "i32")
    nearest = bits + HALF_DIGIT
    # The carry could make a NaN a number.
    is_nan = code.compare("uno", value, value)
    quiet = bits | QUIET
    found = code.select(is_nan, quiet, nearest)
    return code.convert("bitcast", found & KEPT_BITS, "float")
