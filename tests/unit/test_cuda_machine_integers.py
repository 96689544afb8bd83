"""Integer and bit instructions of the PTX machine against Python's integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
from cuda_machine_cases import calculate

from cuda_machine.faults import Fault

_SPECIAL = (0, 1, 2, 3, 7, -1, -2, -3, 100, -100, 12345)


def _values(dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    chosen = [value for value in _SPECIAL if info.min <= value <= info.max]
    chosen += [info.min, info.min + 1, info.max, info.max - 1, info.max // 3, info.max // 2 + 1]
    return np.array(chosen, dtype)


def _tuples(dtypes: Sequence[str]) -> list[np.ndarray]:
    rows = list(product(*(_values(dtype) for dtype in dtypes)))
    return [np.array([row[n] for row in rows], dtype) for n, dtype in enumerate(dtypes)]


def _expected(function: Callable[..., int], inputs: list[np.ndarray], result: str) -> np.ndarray:
    bits = 8 * np.dtype(result).itemsize
    rows = zip(*(one.tolist() for one in inputs), strict=True)
    values = [function(*row) % (1 << bits) for row in rows]
    return np.array(values, f"u{bits // 8}").view(result)


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _check(code: str, function: Callable[..., int], types: str, result: str) -> None:
    inputs = _tuples(types.split())
    found = calculate(code, *inputs, result=result)
    np.testing.assert_array_equal(found, _expected(function, inputs, result))


@pytest.mark.parametrize("kind", ["i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("add", lambda a, b: a + b),
        ("sub", lambda a, b: a - b),
        ("mul.lo", lambda a, b: a * b),
        ("min", min),
        ("max", max),
    ],
)
def test_arithmetic_wraps(name: str, function: Callable[..., int], kind: str) -> None:
    type = f"{kind[0].replace('i', 's')}{8 * int(kind[1])}"
    _check(f"{name}.{type} d, a, b;", function, f"{kind} {kind}", kind)


@pytest.mark.parametrize("kind", ["i2", "u2", "i4", "u4", "i8", "u8"])
def test_upper_half_of_products(kind: str) -> None:
    bits = 8 * int(kind[1])
    type = f"{kind[0].replace('i', 's')}{bits}"
    _check(f"mul.hi.{type} d, a, b;", lambda a, b: a * b >> bits, f"{kind} {kind}", kind)


@pytest.mark.parametrize("kind", ["i2", "u2", "i4", "u4"])
def test_wide_products_are_exact(kind: str) -> None:
    type = f"{kind[0].replace('i', 's')}{8 * int(kind[1])}"
    wide = f"{kind[0]}{2 * int(kind[1])}"
    _check(f"mul.wide.{type} d, a, b;", lambda a, b: a * b, f"{kind} {kind}", wide)


@pytest.mark.parametrize("kind", ["i2", "u2", "i4", "u4", "i8", "u8"])
def test_quotients_and_remainders_round_toward_zero(kind: str) -> None:
    type = f"{kind[0].replace('i', 's')}{8 * int(kind[1])}"
    a, b = _tuples([kind, kind])
    a, b = a[b != 0], b[b != 0]
    for name, function in (("div", _quotient), ("rem", lambda x, y: x - _quotient(x, y) * y)):
        found = calculate(f"{name}.{type} d, a, b;", a, b, result=kind)
        np.testing.assert_array_equal(found, _expected(function, [a, b], kind))


def test_division_by_zero_is_a_fault() -> None:
    with pytest.raises(Fault) as caught:
        calculate("div.u32 d, a, 0;", np.arange(4, dtype="u4"), result="u4")
    assert "a division by zero (kernel k, line" in str(caught.value)


@pytest.mark.parametrize("kind", ["i4", "u4", "i8", "u8"])
def test_shifts_clamp_their_amount(kind: str) -> None:
    bits = 8 * int(kind[1])
    type = f"{kind[0].replace('i', 's')}{bits}"
    amounts = np.array([0, 1, 5, bits - 1, bits, bits + 1, 255, 2**32 - 1], "u4")
    values = _values(kind)
    a, b = np.repeat(values, len(amounts)), np.tile(amounts, len(values))
    for code, function in (
        (f"shl.b{bits}", lambda x, n: x << min(n, bits)),
        (f"shr.{type}", lambda x, n: x >> min(n, bits)),
    ):
        found = calculate(f"{code} d, a, b;", a, b, result=kind)
        np.testing.assert_array_equal(found, _expected(function, [a, b], kind))


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shifts(mode: str) -> None:
    amounts = np.array([0, 1, 31, 32, 33, 64], "u4")
    low = np.repeat(_values("u4"), 6)
    high = ~low * np.uint32(3)
    n = np.tile(amounts, len(low) // 6)

    def shifted(a: int, b: int, c: int, left: bool) -> int:
        count = min(c, 32) if mode == "clamp" else c & 31
        both = b << 32 | a
        return both << count >> 32 if left else both >> count

    for left in (True, False):
        code = f"shf.{'l' if left else 'r'}.{mode}.b32 d, a, b, c;"
        found = calculate(code, low, high, n, result="u4")
        want = _expected(lambda a, b, c: shifted(a, b, c, left), [low, high, n], "u4")  # noqa: B023
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("bits", [32, 64])
def test_counting_bits(bits: int) -> None:
    kind = f"u{bits // 8}"
    values = np.concatenate([_values(kind), np.uint64(1) << np.arange(bits, dtype="u8")]).astype(
        kind
    )
    for name, function, result in (
        ("popc", int.bit_count, "u4"),
        ("clz", lambda a: bits - a.bit_length(), "u4"),
        ("brev", lambda a: int(f"{a:0{bits}b}"[::-1], 2), kind),
    ):
        found = calculate(f"{name}.b{bits} d, a;", values, result=result)
        np.testing.assert_array_equal(found, _expected(function, [values], result))


@pytest.mark.parametrize("kind", ["i4", "u4", "i8", "u8"])
def test_bfind_finds_the_highest_bit_unlike_the_sign(kind: str) -> None:
    type = f"{kind[0].replace('i', 's')}{8 * int(kind[1])}"
    _check(f"bfind.{type} d, a;", lambda a: (a if a >= 0 else ~a).bit_length() - 1, kind, "u4")


def _extracted(a: int, b: int, c: int, bits: int, signed: bool) -> int:
    """The pseudocode of bfe in the PTX ISA."""
    a, position, length = a % (1 << bits), b & 255, c & 255
    last = bits - 1
    sign = 0
    if signed and length:
        sign = a >> min(position + length - 1, last) & 1
    result = 0
    for i in range(bits):
        inside = i < length and position + i <= last
        result |= (a >> (position + i) & 1 if inside else sign) << i
    return result


@pytest.mark.parametrize("kind", ["i4", "u4", "i8", "u8"])
def test_bit_fields_are_extracted(kind: str) -> None:
    bits = 8 * int(kind[1])
    type = f"{kind[0].replace('i', 's')}{bits}"
    rows = list(product(_values(kind)[::3], (0, 1, 7, 31, 33, 64, 255), (0, 1, 8, 32, 64, 255)))
    a, b, c = (np.array([row[n] for row in rows], t) for n, t in enumerate((kind, "u4", "u4")))
    found = calculate(f"bfe.{type} d, a, b, c;", a, b, c, result=kind)
    want = _expected(lambda *row: _extracted(*row, bits, kind[0] == "i"), [a, b, c], kind)
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_fields_are_inserted(bits: int) -> None:
    kind = f"u{bits // 8}"
    rows = list(product(_values(kind)[::4], _values(kind)[::5], (0, 3, 31, 70), (0, 1, 9, 32, 64)))
    inputs = [np.array([row[n] for row in rows], t) for n, t in enumerate((kind, kind, "u4", "u4"))]

    def inserted(a: int, b: int, position: int, length: int) -> int:
        mask = ((1 << length) - 1) << position & ((1 << bits) - 1)
        return b & ~mask | a << position & mask

    found = calculate(f"bfi.b{bits} d, a, b, c, e;", *inputs, result=kind)
    np.testing.assert_array_equal(found, _expected(inserted, inputs, kind))


def test_bytes_are_permuted() -> None:
    a, b, c = _tuples(["u4", "u4", "u4"])
    c = c ^ np.uint32(0x9A3C)

    def permuted(x: int, y: int, s: int) -> int:
        octets = (y << 32 | x).to_bytes(8, "little")
        chosen = [(octets[s >> 4 * n & 7], s >> 4 * n & 8) for n in range(4)]
        return int.from_bytes([(255 * (o >> 7) if sign else o) for o, sign in chosen], "little")

    found = calculate("prmt.b32 d, a, b, c;", a, b, c, result="u4")
    np.testing.assert_array_equal(found, _expected(permuted, [a, b, c], "u4"))


@pytest.mark.parametrize("table", [0, 0x96, 0xE8, 0xCA, 0xFF])
def test_lop3_looks_up_each_bit(table: int) -> None:
    a, b, c = _tuples(["u4", "u4", "u4"])

    def looked_up(x: int, y: int, z: int) -> int:
        bits = [
            (table >> ((x >> n & 1) * 4 + (y >> n & 1) * 2 + (z >> n & 1))) & 1 for n in range(32)
        ]
        return sum(bit << n for n, bit in enumerate(bits))

    found = calculate(f"lop3.b32 d, a, b, c, {table};", a[::7], b[::7], c[::7], result="u4")
    np.testing.assert_array_equal(found, _expected(looked_up, [a[::7], b[::7], c[::7]], "u4"))


@pytest.mark.parametrize("bits", [32, 64])
def test_carries_make_sums_of_more_bits(bits: int) -> None:
    kind, whole = f"u{bits // 8}", 1 << bits
    a, b, c, e = _tuples([kind] * 2) + _tuples([kind] * 2)
    c, e = c[::-1].copy(), np.roll(e, 17)
    for first, second, function in (
        ("add.cc", "addc", lambda w, x, y, z: w + x * whole + y + z * whole),
        ("sub.cc", "subc", lambda w, x, y, z: w + x * whole - y - z * whole),
    ):
        code = f".reg .b{bits} low; {first}.u{bits} low, a, c; {second}.u{bits} d, b, e;"
        found = calculate(code, a, b, c, e, result=kind)
        want = _expected(lambda *row: function(*row) >> bits, [a, b, c, e], kind)  # noqa: B023
        np.testing.assert_array_equal(found, want)


def test_multiplication_with_carry_makes_products_of_64_bits() -> None:
    a, b = _tuples(["u4", "u4"])
    code = """mul.lo.u32 x, a, b; mad.lo.cc.u32 x, a, b, x; madc.hi.u32 y, a, b, 0;
        mov.b64 d, {x, y};"""
    found = calculate(code, a, b, result="u8")

    def function(x: int, y: int) -> int:
        low = x * y % 2**32 * 2
        return low % 2**32 | (((x * y >> 32) + (low >> 32)) % 2**32) << 32

    np.testing.assert_array_equal(found, _expected(function, [a, b], "u8"))


def test_sums_of_absolute_differences_and_of_products_of_bytes() -> None:
    a, b, c = _tuples(["i4", "i4", "i4"])
    found = calculate("sad.s32 d, a, b, c;", a, b, c, result="i4")
    want = _expected(lambda x, y, z: abs(x - y) + z, [a, b, c], "i4")
    np.testing.assert_array_equal(found, want)

    def dot(x: int, y: int, z: int) -> int:
        left = [one - 256 if one > 127 else one for one in (x % 2**32).to_bytes(4, "little")]
        return z + sum(p * q for p, q in zip(left, (y % 2**32).to_bytes(4, "little"), strict=True))

    found = calculate("dp4a.s32.u32 d, a, b, c;", a, b, c, result="i4")
    np.testing.assert_array_equal(found, _expected(dot, [a, b, c], "i4"))


@pytest.mark.parametrize("half", ["lo", "hi"])
def test_products_of_halves_and_bytes(half: str) -> None:
    a, b, c = _tuples(["i4", "i4", "i4"])
    found = calculate(f"dp2a.{half}.s32.u32 d, a, b, c;", a, b, c, result="i4")

    def dot(x: int, y: int, z: int) -> int:
        bits = x % 2**32
        left = [one - 2**16 if one >= 2**15 else one for one in (bits % 2**16, bits >> 16)]
        right = (y % 2**32).to_bytes(4, "little")[2 * (half == "hi") :]
        return z + left[0] * right[0] + left[1] * right[1]

    np.testing.assert_array_equal(found, _expected(dot, [a, b, c], "i4"))


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(name: str) -> None:
    function = {"eq": "__eq__", "ne": "__ne__", "lt": "__lt__"}
    function |= {"le": "__le__", "gt": "__gt__", "ge": "__ge__"}
    for kind in ("i2", "u4", "i8"):
        type = f"{kind[0].replace('i', 's')}{8 * int(kind[1])}"
        code = f"setp.{name}.{type} p, a, b; selp.u32 d, 1, 0, p;"
        _check(code, lambda a, b: getattr(a, function[name])(b), f"{kind} {kind}", "u4")


def test_comparisons_combine_with_predicates() -> None:
    a, b = _tuples(["u4", "u4"])
    code = """setp.hi.u32 q, a, 5; setp.ls.and.u32 p|q, a, b, !q; selp.u32 x, 1, 0, p;
        selp.u32 y, 2, 0, q; or.b32 d, x, y;"""
    found = calculate(code, a, b, result="u4")
    small = a <= 5
    want = ((a <= b) & small) + 2 * (~(a <= b) & small)
    np.testing.assert_array_equal(found, want)


def test_values_are_packed_and_unpacked() -> None:
    a = _values("u8")
    found = calculate("mov.b64 {x, y}, a; mov.b64 d, {y, x};", a, result="u8")
    np.testing.assert_array_equal(found, (a << np.uint64(32)) | (a >> np.uint64(32)))
    b = _values("u4")
    found = calculate("mov.b32 {h, l}, a; mov.b32 d, {l, h};", b, result="u4")
    np.testing.assert_array_equal(found, (b << np.uint32(16)) | (b >> np.uint32(16)))


@pytest.mark.parametrize(
    "code",
    [
        "vadd.s32.s32.s32 d, a, a, a;",
        "add.s32.wide d, a, a;",
        "add.f32x2 d, a, a;",
        "mul.s32 d, a, a;",
    ],
)
def test_unknown_instructions_name_their_line(code: str) -> None:
    with pytest.raises(Fault) as caught:
        calculate(code, np.arange(4, dtype="u4"), result="u4")
    assert "unknown instruction" in str(caught.value)
    assert code.removesuffix(";") in str(caught.value)
    assert caught.value.line > 10
