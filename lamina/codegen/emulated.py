"""Instructions on bfloat16 that a processor does not have, as functions by their definition.

So code for processors with AVX512-BF16 can be tested on others. The definitions are those of
Intel's Software Developer's Manual, volume 2: operands and results that are subnormal become zero,
numbers are rounded to the nearest, to even if two are equally near. One difference: a sum just
below the smallest normal number, which rounding makes that number, is kept.
"""

from __future__ import annotations

from lamina.codegen.builder import Builder, Module
from lamina.codegen.halves import bfloat16_bits
from lamina.codegen.values import Type, Value, constant

# Bits of float32.
_SIGN, _EXPONENT, _UPPER_HALF = 0x80000000, 0x7F800000, 0xFFFF0000


def emulated_products(module: Module, lanes: int) -> str:
    """VDPBF16PS as a function `(added, right, left)`, whose pairs are i32; gives its name.

    The second numbers of the pairs are multiplied and added first.
    """
    name = f"emulated_dpbf16ps_{lanes}"
    if module.has(name):
        return name
    sums, pairs = Type("float", lanes), Type("i32", lanes)
    parameters = (("added", sums), ("right", pairs), ("left", pairs))
    code = module.function(name, parameters, result=sums)
    added, right, left = code.parameters
    for number in (1, 0):
        one, other = (bfloat16_of_pairs(code, pair, number) for pair in (left, right))
        added = without_subnormals(
            code, code.multiply_add(one, other, without_subnormals(code, added))
        )
    code.finish(added)
    return name


def emulated_rounding(module: Module, lanes: int) -> str:
    """VCVTNE2PS2BF16 as a function `(second, first)` to vectors of i16; gives its name."""
    name = f"emulated_cvtne2ps2bf16_{lanes}"
    if module.has(name):
        return name
    floats = Type("float", lanes)
    code = module.function(
        name, (("second", floats), ("first", floats)), result=Type("i16", 2 * lanes)
    )
    second, first = (without_subnormals(code, value) for value in code.parameters)
    halves = [
        code.convert("trunc", code.binary("lshr", bits, constant(16, bits.type)), "i16")
        for bits in (bfloat16_bits(code, first), bfloat16_bits(code, second))
    ]
    code.finish(code.shuffle(halves[0], halves[1], range(2 * lanes)))
    return name


def bfloat16_of_pairs(code: Builder, pairs: Value, number: int) -> Value:
    """The first (0) or second (1) numbers of pairs as floats, without subnormal ones."""
    if number == 1:
        bits = code.binary("and", pairs, constant(_UPPER_HALF, pairs.type))
    else:
        bits = code.binary("shl", pairs, constant(16, pairs.type))
    return without_subnormals(code, code.convert("bitcast", bits, "float"))


def without_subnormals(code: Builder, value: Value) -> Value:
    """Floats, with zero of the same sign for subnormal ones."""
    bits = code.convert("bitcast", value, "i32")
    exponent = code.binary("and", bits, constant(_EXPONENT, bits.type))
    is_small = code.compare("eq", exponent, constant(0, bits.type))
    sign = code.binary("and", bits, constant(_SIGN, bits.type))
    return code.convert("bitcast", code.select(is_small, sign, bits), "float")
