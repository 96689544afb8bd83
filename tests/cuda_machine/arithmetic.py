"""Instructions on numbers in registers, by sections of the PTX ISA.

Integer Arithmetic; Logic and Shift; Floating Point; moves, conversions, selections and comparisons.
Approximations of floats (`.approx`, `.full`) are errors: PTX bounds their error and does not say
their results.
"""

from fractions import Fraction

import numpy as np

from cuda_machine.syntax import BITS, Immediate, Register, Vector
from cuda_machine.writer import DTYPES, INTEGERS, expressions, helper, writes

_SIGNED = "s16|s32|s64"
_LOGIC = "pred|b16|b32|b64"

expressions("add", INTEGERS, "{0} + {1}")
expressions("sub", INTEGERS, "{0} - {1}")
expressions("min", INTEGERS, "np.minimum({0}, {1})")
expressions("max", INTEGERS, "np.maximum({0}, {1})")
expressions("abs", _SIGNED, "np.abs({0})")
expressions("neg", _SIGNED, "-{0}")
expressions("and", _LOGIC, "{0} & {1}")
expressions("or", _LOGIC, "{0} | {1}")
expressions("xor", _LOGIC, "{0} ^ {1}")
expressions("not", _LOGIC, "~{0}")
expressions("bfi", "b32|b64", "inserted({0}, {1}, {2}, {3})", others=("", "u32", "u32"))
expressions("prmt", "b32", "permuted_bytes({0}, {1}, {2})")


@writes("mul", "mad", forms=(f"lo|hi {INTEGERS}", "wide u16|s16|u32|s32"))
def _mul(writer, instruction):
    """Products, or their upper bits, or all bits, which are twice as wide as the operands."""
    half, type = instruction.modifiers
    result, a, b, *added = instruction.operands
    left, right = writer.several((a, b), (type, type))
    bits = BITS[type]
    twice = f"{type[0]}{2 * bits}"
    if half == "lo":
        value = f"{left} * {right}"
    elif half == "hi" and bits == 64:
        value = f"high({left}, {right})"
    else:
        value = f"np.multiply({left}, {right}, dtype={writer.type(DTYPES[twice])})"
        if half == "hi":
            value = f"({value} >> {bits}).astype({writer.type(DTYPES[type])})"
    kind = twice if half == "wide" else type
    writer.write(result, kind, " + ".join([value, *(writer.read(c, kind) for c in added)]))


@helper
def high(a, b):
    """The upper 64 bits of products."""
    product = np.multiply(a, b, dtype=object) >> 64
    return product.astype((a if np.ndim(a) else b).dtype)


@writes("div", "rem", forms=INTEGERS)
def _div(writer, instruction):
    type = instruction.modifiers[-1]
    result, a, b = instruction.operands
    left, right = writer.array(a, type), writer.array(b, type)
    writer.emit(f"divisible(m, {right}, {writer.located(instruction)})")
    quotient = f"quotient({left}, {right})"
    value = quotient if instruction.name == "div" else f"{left} - {quotient} * {right}"
    writer.write(result, type, value)


@helper
def divisible(m, b, idx):
    """A division by zero yields an unspecified value (PTX ISA, div): it is a fault here."""
    if not b.all():
        m.fault_where("a division by zero", b == 0, idx)


@helper
def quotient(a, b):
    """Quotients that are rounded toward zero; the smallest integer by -1 wraps."""
    if a.dtype.kind == "u":
        return a // b
    minus = b == -1
    divisor = np.where(minus, a.dtype.type(1), b)
    floor = a // divisor
    inexact = floor * divisor != a
    floor += inexact & ((a < 0) != (divisor < 0))
    return np.where(minus, -a, floor)


@writes("shl", forms="b16|b32|b64")
@writes("shr", forms=f"b16|b32|b64|{INTEGERS}")
def _shift(writer, instruction):
    type = instruction.modifiers[-1]
    result, a, b = instruction.operands
    dtype = DTYPES[type]
    # PTX ISA, shl and shr: amounts above the width are clamped to it. NumPy's shifts by the width
    # give 0 or the sign.
    if isinstance(b, Immediate):
        amount = writer.constant(np.dtype(dtype).type(min(b.bits % (1 << 32), BITS[type])))
    else:
        bound = writer.constant(np.uint32(BITS[type]))
        amount = f"np.minimum({writer.read(b, 'u32')}, {bound}).astype({writer.type(dtype)})"
    operator = "<<" if instruction.name == "shl" else ">>"
    writer.write(result, type, f"{writer.array(a, type)} {operator} {amount}")


@helper
def inserted(field, value, position, length):
    """Values with the bits of a field at a position."""
    dtype, bits = value.dtype, value.dtype.itemsize * 8
    shift, least = (
        np.minimum(amount & np.uint32(255), bits).astype(dtype) for amount in (position, length)
    )
    # A shift by all bits gives zeros.
    mask = ~(~dtype.type(0) << least) << shift
    return (value & ~mask) | ((field << shift) & mask)


@helper
def permuted_bytes(a, b, selectors):
    """Bytes of b and a in any order; the upper bit of a selector repeats the byte's sign."""
    both = (b.astype(np.uint64) << np.uint64(32)) | a
    result = np.uint32(0)
    for number in range(4):
        selector = (selectors >> np.uint32(4 * number)).astype(np.uint64)
        octet = (both >> ((selector & np.uint64(7)) * np.uint64(8))).astype(np.uint8)
        chosen = np.where(selector & np.uint64(8), (octet >> 7) * np.uint8(255), octet)
        result = result | chosen.astype(np.uint32) << np.uint32(8 * number)
    return result


@writes("dp4a", forms="u32|s32 u32|s32")
@writes("dp2a", forms="lo|hi u32|s32 u32|s32")
def _dot(writer, instruction):
    """Four bytes by four, or two halves by the two low or high bytes (PTX ISA, dp4a and dp2a)."""
    *half, left, right = instruction.modifiers
    result, a, b, c = instruction.operands
    kind = "s32" if "s32" in (left, right) else "u32"
    first = f"{left[0].replace('s', 'i')}{2 if half else 1}"
    code = f"dot({writer.array(a, 'u32')}, {first!r}, {writer.array(b, 'u32')}, "
    code += f"{right[0].replace('s', 'i') + '1'!r}, {2 if half == ['hi'] else 0})"
    value = f"{code}.astype({writer.type(DTYPES[kind])}) + {writer.read(c, kind)}"
    writer.write(result, kind, value)


@helper
def dot(a, a_type, b, b_type, first):
    """Sums of products of the parts of two integers, from a byte of `b` on, as int64."""
    left, right = (
        np.ascontiguousarray(integers).view(type).reshape(len(integers), -1).astype(np.int64)
        for integers, type in ((a, a_type), (b, b_type))
    )
    return (left * right[:, first : first + left.shape[1]]).sum(1)


# Sums and products of float16 are exact in float64.
_WIDE = ("{0}.astype(np.float64)", "{1}.astype(np.float64)")
for _name, _operator in (("add", "+"), ("sub", "-"), ("mul", "*")):
    expressions(_name, "rn? f32|f64", f"{{0}} {_operator} {{1}}")
    expressions(_name, "rn f16", f"half_bits({_WIDE[0]} {_operator} {_WIDE[1]})")
# PTX ISA, mad: for sm_20 and higher, mad with a rounding mode is fma.
for _name in ("fma", "mad"):
    expressions(_name, "rn f32", "fma_f4({0}, {1}, {2})")
    expressions(_name, "rn f64", "fma_f8({0}, {1}, {2})")
expressions("div", "rn f32|f64", "{0} / {1}")
expressions("rcp", "rn f32|f64", "np.reciprocal({0})")
expressions("sqrt", "rn f32|f64", "np.sqrt({0})")
expressions("abs", "f32|f64", "np.abs({0})")
expressions("neg", "f32|f64", "-{0}")
for _name in ("min", "max"):
    expressions(_name, "f32|f64", f"{_name}imum_of({{0}}, {{1}})")
# PTX ISA, copysign: the sign of a, the magnitude of b.
expressions("copysign", "f32|f64", "np.copysign({1}, {0})")


@helper
def minimum_of(a, b):
    """The smaller values: -0 is below +0, NaN is only the result of two, and canonical (min)."""
    return _with_nan(np.where((a < b) | ((a == b) & np.signbit(a)), a, b), a, b)


@helper
def maximum_of(a, b):
    """The larger values, as `minimum_of`."""
    return _with_nan(np.where((a > b) | ((a == b) & ~np.signbit(a)), a, b), a, b)


def _with_nan(chosen, a, b):
    one, other = a != a, b != b
    canonical = {4: 0x7FFFFFFF, 8: 0x7FFFFFFFFFFFFFFF}[chosen.dtype.itemsize]
    value = np.array([canonical], f"u{chosen.dtype.itemsize}").view(chosen.dtype)
    return np.where(one & other, value, np.where(one, b, np.where(other, a, chosen)))


# Correctly rounded arithmetic
#
# Sums and products that are not exact in float64 are *rounded to odd*: if a result is inexact, the
# one of its two neighbours is taken whose last bit is set. A value of 53 bits that is rounded to
# odd gives the same as the exact value when it is rounded once more to at most 51 bits (S. Boldo
# and G. Melquiond, Emulation of FMA and Correctly Rounded Sums: Proved Algorithms Using Rounding to
# Odd).


def _sum_and_error(a, b):
    """The rounded sum of float64, and what it lacks (Knuth), which is NaN if it is not finite."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _sum_to_odd(a, b):
    """The sum of float64, rounded to odd."""
    total, error = _sum_and_error(a, b)
    even = (total.view(np.int64) & 1) == 0
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error)
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(inexact & even, np.nextafter(total, toward), total)


@helper
def fma_f4(a, b, c):
    """float32 a * b + c, rounded once to nearest."""
    wide = np.float64
    product = np.multiply(a, b, dtype=wide)
    exact = np.add(product, c, dtype=wide)
    result = exact.astype(np.float32)
    # A second rounding only matters if the first one ended halfway between two float32, or where
    # float32 has fewer bits.
    halfway = (exact.view(np.int64) & 0x1FFFFFFF) == 0x10000000
    halfway |= (np.abs(exact) < 2.0**-125) & (exact != 0)
    if halfway.any():
        where = np.flatnonzero(halfway)
        a, b, c = (np.broadcast_to(array, exact.shape)[where].astype(wide) for array in (a, b, c))
        result[where] = _sum_to_odd(a * b, c).astype(np.float32)
    return result


@helper
def fma_f8(a, b, c):
    """float64 a * b + c, rounded once to nearest."""
    a, b, c = np.broadcast_arrays(a, b, c)
    product = a * b
    # What the product lacks: halves of 26 bits have exact products (T. J. Dekker, A floating-point
    # technique for extending the available precision).
    (left, left_rest), (right, right_rest) = map(_halves, (a, b))
    lacks = ((left * right - product) + left * right_rest) + left_rest * right
    lacks += left_rest * right_rest
    added, low = _sum_and_error(c, lacks)
    total, rest = _sum_and_error(product, added)
    result = total + _sum_to_odd(low, rest)
    # A sum that is exactly zero has the sign that separate operations give it.
    result = np.where(result == 0, product + c, result)
    # This is proved without overflow and underflow. Others, also NaN, are computed one by one.
    small = (np.abs(a) < 2.0**480) & (np.abs(b) < 2.0**480) & (np.abs(c) < 2.0**960)
    proved = small & ((np.abs(product) > 2.0**-900) | (a == 0) | (b == 0))
    for n in np.flatnonzero(~proved):
        result[n] = _exact_fma(float(a[n]), float(b[n]), float(c[n]))
    return result


def _halves(value):
    """A float64 as the sum of two of 26 bits."""
    scaled = value * (2.0**27 + 1)
    upper = scaled - (scaled - value)
    return upper, value - upper


def _exact_fma(a, b, c):
    if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)):
        # Infinities and NaN are exact; finite products do not become infinite on the way.
        product = float(np.float64(a) * np.float64(b))
        if np.isinf(product) and np.isfinite(a) and np.isfinite(b):
            product = np.copysign(1.0, product)
        return float(np.float64(product) + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return float(np.copysign(np.inf, 1.0 if exact > 0 else -1.0))


_TYPES = f"b16|b32|b64|{INTEGERS}|f32|f64"
_ALL = "u8|s8|u16|s16|u32|s32|u64|s64"


@writes("mov", forms=f"pred|{_TYPES}")
def _mov(writer, instruction):
    (type,) = instruction.modifiers
    result, value = instruction.operands
    if isinstance(result, Vector):
        _unpack(writer, result, writer.array(value, f"u{BITS[type]}"), BITS[type])
    elif isinstance(value, Vector):
        writer.write(result, f"b{BITS[type]}", _packed(writer, value, BITS[type]))
    elif isinstance(value, Register):
        # A copy: the arrays of two registers are never the same.
        writer.write(result, type, f"{writer.read(value, type)}.copy()")
    else:
        writer.write(result, type, f"np.full(n, {writer.read(value, type)})")


def _unpack(writer, result, value, bits):
    each = bits // len(result.elements)
    if each not in (16, 32):
        raise ValueError(f"elements of {each} bits")
    elements = f"{value}.view({writer.type(f'u{each // 8}')})"
    count = len(result.elements)
    values = [writer.temporary(f"{elements}[{number}::{count}].copy()") for number in range(count)]
    for element, part in zip(result.elements, values, strict=True):
        writer.write(element, f"b{each}", part)


def _packed(writer, value, bits):
    count = len(value.elements)
    each = bits // count
    if each not in (16, 32):
        raise ValueError(f"elements of {each} bits")
    packed = writer.temporary(f"np.empty((n, {count}), {writer.type(f'u{each // 8}')})")
    for number, element in enumerate(value.elements):
        writer.emit(f"{packed}[:, {number}] = {writer.read(element, f'b{each}')}")
    return f"{packed}.view({writer.type(f'u{bits // 8}')}).reshape(-1)"


# Comparisons by an operator and by its opposite. Those of floats that hold for NaN end with u.
for _name, _operator, _opposite in (
    *(("lt", "<", ">="), ("le", "<=", ">"), ("gt", ">", "<="), ("ge", ">=", "<")),
):
    _code = f"{{0}} {_operator} {{1}}"
    expressions("setp", f"{_name} {INTEGERS}|f32|f64", _code, result="pred")
    expressions("setp", f"{_name}u f32|f64", f"~({{0}} {_opposite} {{1}})", result="pred")
_DIFFERENT = "({0} < {1}) | ({0} > {1})"
for _form, _code in (
    (f"eq b16|b32|b64|{INTEGERS}|f32|f64", "{0} == {1}"),
    (f"ne b16|b32|b64|{INTEGERS}", "{0} != {1}"),
    ("ne f32|f64", _DIFFERENT),
    ("neu f32|f64", "{0} != {1}"),
    ("equ f32|f64", f"~({_DIFFERENT})"),
    ("num f32|f64", "({0} == {0}) & ({1} == {1})"),
    ("nan f32|f64", "({0} != {0}) | ({1} != {1})"),
):
    expressions("setp", _form, _code, result="pred")
expressions("selp", _TYPES, "np.where({2}, {0}, {1})", others=("", "pred"))

# Conversions
for _kind in _ALL.split("|"):
    expressions("cvt", f"{_kind} {_ALL}", f"{{0}}.astype({DTYPES[_kind]!r})", result=_kind)
    for _type in ("f32", "f64"):
        # PTX ISA, cvt, Integer Notes: NaN becomes zero if the source is not .f64 and the
        # destination is not .s64 or .u64; otherwise only the upper bit is set.
        _nan = 1 << BITS[_kind] - 1 if _type == "f64" or _kind in ("s64", "u64") else 0
        _code = f"integers_of({{0}}, {DTYPES[_kind]!r}, {_nan})"
        expressions("cvt", f"rzi {_kind} {_type}", _code, result=_kind)
for _kind, _form in (
    *(("f32", f"rn f32 {_ALL}|f64"), ("f64", f"rn f64 {_ALL}")),
    *(("f64", "f64 f32"), ("f32", "f32 f16")),
):
    expressions("cvt", _form, f"{{0}}.astype({DTYPES[_kind]!r})", result=_kind)
# PTX ISA, cvt: of two floats the first one is in the upper half of the result.
for _name, _bits, _since in (("f16", "half_bits", 75), ("bf16", "bfloat16_bits", 80)):
    expressions("cvt", f"rn {_name} f32", f"{_bits}({{0}})", result="u16", since=_since)
    _code = f"{_bits}({{1}}) | {_bits}({{0}}).astype(np.uint32) << 16"
    expressions("cvt", f"rn {_name}x2 f32", _code, result="u32", since=80)


@helper
def integers_of(value, dtype, nan):
    """Floats that are rounded toward zero to integers, limited to the range of a type."""
    rounded, info = np.trunc(value.astype(np.float64)), np.iinfo(dtype)
    missing, high, low = np.isnan(rounded), rounded >= float(info.max), rounded <= float(info.min)
    result = np.where(high | low | missing, 0.0, rounded).astype(dtype)
    result[high] = info.max
    result[low] = info.min
    result[missing] = np.array(nan, np.uint64).astype(dtype)
    return result


@helper
def bfloat16_bits(value):
    """Float32 as the bits of bfloat16, to even if two are equally near; NaN is canonical."""
    bits = value.view(np.uint32)
    nearest = bits + (bits >> 16 & 1) + np.uint32(0x7FFF) >> 16
    return np.where(np.isnan(value), 0x7FFF, nearest).astype(np.uint16)


@helper
def half_bits(value):
    """Floats as the bits of float16; NaN is canonical."""
    bits = value.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(value), np.uint16(0x7FFF), bits)
