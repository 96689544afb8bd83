"""What each form of each instruction of the PTX machine gives: rows of operands and results.

Products of matrices, copies and barriers are left to the kernels of every schedule
(`test_cuda_schedules.py`) and to `test_cuda_machine_faults.py`.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from cuda_machine_cases import Bench, calculate, kernel

from cuda_machine.arithmetic import fma_f4, fma_f8
from cuda_machine.faults import Fault
from cuda_machine.syntax import BITS, CONTROL
from cuda_machine.writer import DTYPES, FORMS, INTEGERS, expanded

NAN, INF = math.nan, math.inf
SIGNED, UNSIGNED, BITS_OF = "s16|s32|s64", "u16|u32|u64", "b16|b32|b64"
EVERY = "u8|s8|u16|s16|u32|s32|u64|s64"

# Forms as `writer.writes` takes them, with the name before them; operands; the result, as far
# as its type has bits for it. An int is read from a register of 64 bits, a bool is a predicate, a
# text stands in the code.
ROWS = [
    (f"add {INTEGERS}", (7, -9), -2),
    (f"sub {INTEGERS}", (5, 7), -2),
    (f"mul lo {INTEGERS}", (-3, 5), -15),
    (f"mul hi {SIGNED}", (-3, 5), -1),
    (f"mul hi {UNSIGNED}", (-1, -1), -2),
    ("mul hi u64", (0xF23456789ABCDEF0, 0xFEDCBA9876543210),
     0xF23456789ABCDEF0 * 0xFEDCBA9876543210 >> 64),
    ("mul wide s16|s32", (-3, 5), -15),
    ("mul wide u16", (-1, 2), 0x1FFFE),
    ("mul wide u32", (-1, 2), 0x1FFFFFFFE),
    (f"mad lo {INTEGERS}", (-3, 5, 7), -8),
    (f"mad hi {SIGNED}", (-3, 5, 7), 6),
    (f"mad hi {UNSIGNED}", (-1, -1, 7), 5),
    ("mad wide s16|s32", (-3, 5, 7), -8),
    ("mad wide u16", (-1, 2, 1), 0x1FFFF),
    ("mad wide u32", (-1, 2, 1), 0x1FFFFFFFF),
    *((f"{name} {forms}", operands, result) for name, forms, operands, result in (
        ("div", UNSIGNED, (17, 5), 3), ("rem", UNSIGNED, (17, 5), 2),
        ("div", SIGNED, (-17, 5), -3), ("rem", SIGNED, (-17, 5), -2),
        ("div", SIGNED, (17, -5), -3), ("rem", SIGNED, (17, -5), 2),
        ("div", SIGNED, (-17, -1), 17), ("rem", SIGNED, (-17, -1), 0),
    )),
    ("div s32", (-(2**31), -1), -(2**31)),
    (f"and {BITS_OF}", (12, 10), 8),
    (f"or {BITS_OF}", (12, 10), 14),
    (f"xor {BITS_OF}", (12, 10), 6),
    (f"not {BITS_OF}", (5,), -6),
    ("and pred", (True, False), 0),
    ("or pred", (True, False), 1),
    ("xor pred", (True, True), 0),
    ("not pred", (True,), 0),
    (f"abs {SIGNED}", (-7,), 7),
    (f"neg {SIGNED}", (7,), -7),
    (f"min {SIGNED}", (-3, 2), -3),
    (f"max {SIGNED}", (-3, 2), 2),
    (f"min {UNSIGNED}", (-3, 2), 2),
    (f"max {UNSIGNED}", (-3, 2), -3),
    (f"shl {BITS_OF}", (3, 4), 48),
    (f"shl {BITS_OF}", (3, 64), 0),
    (f"shl {BITS_OF}", (3, "64"), 0),
    (f"shr {BITS_OF}|{UNSIGNED}", (48, 4), 3),
    (f"shr {BITS_OF}|{UNSIGNED}", (-1, 200), 0),
    ("shr b16|u16", (-1, 8), 0xFF),
    (f"shr {SIGNED}", (-48, 4), -3),
    (f"shr {SIGNED}", (-48, 200), -1),
    (f"shr {SIGNED}", (-48, "200"), -1),
    ("bfi b32|b64", (0xFF, 0x1111, 4, 8), 0x1FF1),
    ("bfi b32|b64", (0xFF, 0x1111, 64, 8), 0x1111),
    ("prmt b32", (0x33221100, 0x77665544, 0x4701), 0x44770011),
    ("prmt b32", (0x7F80, 0, 0x9818), 0x00FF7FFF),
    ("dp4a u32|s32 u32|s32", (0x01020304, 0x05060708, 10), 80),
    ("dp4a u32 u32", (0xFF, 0xFE, 1), 255 * 254 + 1), ("dp4a s32 s32", (0xFF, 0xFE, 1), 3),
    ("dp4a s32 u32", (0xFF, 0xFE, 1), -253), ("dp4a u32 s32", (0xFF, 0xFE, 1), -509),
    ("dp2a lo u32|s32 u32|s32", (0x00020003, 0x05060708, 1), 39),
    ("dp2a hi u32|s32 u32|s32", (0x00020003, 0x05060708, 1), 29),
    ("dp2a lo s32 s32", (0xFFFF, 0xFE, 0), 2), ("dp2a lo u32 u32", (0xFFFF, 2, 0), 0x1FFFE),
    # Moves and comparisons
    (f"mov {BITS_OF}|{INTEGERS}", (-2,), -2),
    (f"mov {BITS_OF}|{INTEGERS}", ("-2",), -2),
    ("mov f32|f64", (-1.5,), -1.5),
    ("mov f64", ("0dC009000000000000",), -3.125),
    ("mov f32", ("0fC0480000",), -3.125),
    ("mov pred", (True,), 1),
    (f"selp {BITS_OF}|{INTEGERS}", (3, 4, True), 3),
    (f"selp {BITS_OF}|{INTEGERS}", (3, 4, False), 4),
    ("selp f32|f64", (1.5, 2.5, False), 2.5),
    (f"setp eq {BITS_OF}", (5, 5), 1), (f"setp ne {BITS_OF}", (5, 5), 0),
    (f"setp eq|le|ge {INTEGERS}", (5, 5), 1), (f"setp ne|lt|gt {INTEGERS}", (5, 5), 0),
    (f"setp ne|lt|le {INTEGERS}", (3, 5), 1), (f"setp eq|gt|ge {INTEGERS}", (3, 5), 0),
    (f"setp lt|le {SIGNED}", (-1, 5), 1), (f"setp lt|le {UNSIGNED}", (-1, 5), 0),
    (f"setp gt|ge {UNSIGNED}", (-1, 5), 1),
    ("setp eq|ne|lt|le|gt|ge|num f32|f64", (NAN, 1.0), 0),
    ("setp equ|neu|ltu|leu|gtu|geu|nan f32|f64", (1.0, NAN), 1),
    ("setp ne|lt|le|neu|ltu|leu|num f32|f64", (1.0, 2.0), 1),
    ("setp eq|gt|ge|equ|gtu|geu|nan f32|f64", (1.0, 2.0), 0),
    ("setp eq|le|ge|equ|leu|geu|num f32|f64", (0.0, -0.0), 1),
    ("setp ne|lt|gt|neu|ltu|gtu|nan f32|f64", (0.0, -0.0), 0),
    # Conversions
    (f"cvt {EVERY} {EVERY}", (5,), 5),
    (f"cvt u8|s8 {EVERY}", (0x1FE,), -2),
    ("cvt u16|s16|u32|s32|u64|s64 u8", (0x1FE,), 0xFE),
    ("cvt u16|s16|u32|s32|u64|s64 s8", (0x1FE,), -2),
    ("cvt u32|s32|u64|s64 u16", (-2,), 0xFFFE), ("cvt u32|s32|u64|s64 s16", (-2,), -2),
    ("cvt u64|s64 u32", (-2,), 0xFFFFFFFE), ("cvt u64|s64 s32", (-2,), -2),
    (f"cvt rn f32|f64 {EVERY}", (5,), 5.0),
    ("cvt rn f32|f64 s8|s16|s32|s64", (-2,), -2.0),
    ("cvt rn f64 u32", (-2,), 2.0**32 - 2), ("cvt rn f32|f64 u64", (-1,), 2.0**64),
    # A second rounding, after one to float64, would give 2**62.
    ("cvt rn f32 u64|s64", (2**62 + 2**38 + 1,), 2.0**62 + 2.0**39),
    (f"cvt rzi {EVERY} f32|f64", (2.75,), 2), ("cvt rzi s8|s16|s32|s64 f32|f64", (-2.75,), -2),
    ("cvt rzi u8|u16|u32|u64 f32|f64", (-5.0,), 0),
    *((f"cvt rzi {kind}{bits} f32|f64", (value,), result)
      for bits in (8, 16, 32, 64)
      for kind, value, result in (
          ("s", INF, 2 ** (bits - 1) - 1), ("s", -INF, -(2 ** (bits - 1))), ("u", INF, 2**bits - 1),
      )),
    # PTX ISA, cvt, Integer Notes: what becomes of NaN depends on the types.
    ("cvt rzi u8|s8|u16|s16|u32|s32 f32", (NAN,), 0),
    *((f"cvt rzi u{bits}|s{bits} f64", (NAN,), 1 << (bits - 1)) for bits in (8, 16, 32, 64)),
    ("cvt rzi u64|s64 f32", (NAN,), 1 << 63),
    ("cvt f64 f32", (0.1,), float(np.float32(0.1))),
    ("cvt f32 f16", (0.1,), float(np.float16(0.1))),
    ("cvt rn f32 f64", (1 + 3 * 2.0**-25,), 1 + 2.0**-23),
    ("cvt rn f16 f32", (1 + 2.0**-11,), 1.0), ("cvt rn f16 f32", (1 + 3 * 2.0**-11,), 1 + 2.0**-9),
    ("cvt rn f16 f32", (65520.0,), INF), ("cvt rn f16 f32", (NAN,), NAN),
    # Halfway cases go to even numbers; the upper half comes from the first operand.
    ("cvt rn f16x2 f32", (1 + 2.0**-11, 1 + 3 * 2.0**-11), 0x3C003C02),
    ("cvt rn f16x2 f32", (NAN, -65520.0), 0x7FFFFC00),
    ("cvt rn f16x2 f32", (2.0**-24, -(2.0**-26)), 0x00018000),
    *((f"cvt rn bf16{pair} f32", (value, -value)[: 1 + bool(pair)], low if not pair
       else low << 16 | (low if value != value else low ^ 0x8000))
      for pair in ("", "x2")
      for value, low in (
          (1 + 2.0**-8, 0x3F80), (1 + 3 * 2.0**-8, 0x3F82), (1 + 2.0**-8 + 2.0**-23, 0x3F81),
          (3.4e38, 0x7F80), (INF, 0x7F80), (NAN, 0x7FFF), (-0.0, 0x8000), (2.0**-133, 0x0001),
          (2.0**-134, 0x0000), (3 * 2.0**-134, 0x0002),
      )),
    # Floats
    *((f"{name} {form}", (-0.0, 1 + 2.0**-10), result)
      for name, result in (("add", 1 + 2.0**-10), ("sub", -1 - 2.0**-10), ("mul", -0.0))
      for form in ("rn? f32|f64", "rn f16")),
    ("add rn f16", (1.0, 2.0**-11), 1.0), ("mul rn f16", (300.0, 300.0), INF),
    ("fma|mad rn f32|f64", (1.5, 2.0, 0.25), 3.25),
    ("fma|mad rn f32|f64", (INF, 0.0, 1.0), NAN),
    ("fma|mad rn f32", (1 + 2.0**-12, 1 + 2.0**-12, -1 - 2.0**-11), 2.0**-24),
    # Just below the middle of two floats, where float64 is the middle.
    ("fma rn f32", (2.0**-12 * (1 + 2.0**-23), 2.0**-12 * (1 - 2.0**-23), 1 + 2.0**-23),
     1 + 2.0**-23),
    ("fma|mad rn f64", (1 + 2.0**-27, 1 + 2.0**-27, -1 - 2.0**-26), 2.0**-54),
    ("fma rn f64", (1e200, 1e200, -INF), -INF), ("fma rn f64", (1e200, 1e200, 1.0), INF),
    ("fma rn f64", (2.0**-600, 2.0**-600, 0.0), 0.0),
    ("fma rn f64", (2.0**-1000, 2.0**-30, 2.0**-1030), 2.0**-1029),
    ("div rn f32|f64", (1.0, 3.0), 1 / 3), ("div rn f32|f64", (-1.0, 0.0), -INF),
    ("rcp rn f32|f64", (3.0,), 1 / 3), ("sqrt rn f32|f64", (2.0,), math.sqrt(2)),
    ("sqrt rn f32|f64", (-1.0,), NAN),
    ("abs f32|f64", (-0.0,), 0.0), ("neg f32|f64", (0.0,), -0.0),
    ("min f32|f64", (0.0, -0.0), -0.0), ("max f32|f64", (-0.0, 0.0), 0.0),
    ("min f32|f64", (-1.0, 2.0), -1.0), ("max f32|f64", (-1.0, 2.0), 2.0),
    ("min|max f32|f64", (NAN, 1.0), 1.0), ("min|max f32|f64", (1.0, NAN), 1.0),
    ("min|max f32|f64", (NAN, NAN), NAN),
    ("copysign f32|f64", (-1.0, 2.0), -2.0), ("copysign f32|f64", (1.0, -2.0), 2.0),
]  # fmt: skip
# Instructions whose forms have no rows.
OTHERS = {
    *("bar", "barrier", "cp", "cvta", "fence", "griddepcontrol", "ld", "ldmatrix", "mma"),
    *("prefetch", "shfl", "st", "wgmma"),
}
# The registers of floats that are stored as bits.
_PACKED = {"bf16": "u16", "f16x2": "u32", "bf16x2": "u32"}
# What is in every memory before a load.
TABLE = bytes((37 * n + 130) % 256 for n in range(32))


class Case(NamedTuple):
    """Code that writes a register `d` of 64 bits, and its value; `type` has floats of `want`."""

    code: str
    want: int
    is_float: str = ""


def bits_of(value, type):
    """The bits of a value of a type, extended to 64."""
    if type == "pred":
        return int(value)
    dtype = np.dtype(DTYPES[type])
    if "f" in type:
        return int(np.array(value, dtype).view(f"u{dtype.itemsize}"))
    return int(np.array(int(value) % (1 << BITS[type]), np.uint64).astype(dtype)) % (1 << 64)


def result_type(name, modifiers):
    *_, type = modifiers
    if name.startswith("dp"):
        return "s32" if "s32" in modifiers else "u32"
    if modifiers[0] == "wide":
        return f"{type[0]}{2 * BITS[type]}"
    changed = {"setp": "pred", "cvt": _PACKED.get(modifiers[-2:][0], modifiers[-2:][0])}
    return changed.get(name, type)


def case_of(name, modifiers, operands, want):
    source, result = modifiers[-1], result_type(name, modifiers)
    names, lines = [], []
    for number, operand in enumerate(operands):
        register, bits = f"a{number}", BITS[source] if isinstance(operand, float) else 64
        names.append(operand if isinstance(operand, str) else register)
        if isinstance(operand, bool):
            lines.append(f".reg .pred {register}; setp.ne.u32 {register}, {int(operand)}, 0;")
        elif not isinstance(operand, str):
            value = bits_of(operand, source) if isinstance(operand, float) else operand
            lines.append(f".reg .b{bits} {register}; mov.b{bits} {register}, {value};")
    width = BITS[result] if "f" in result else 64
    kind, after = f"b{width}", {16: "cvt.u64.u16 d, r;", 32: "cvt.u64.u32 d, r;"}
    if result == "pred":
        kind, after[64] = "pred", "selp.b64 d, 1, 0, r;"
    code = f"{'.'.join((name, *modifiers))} r, {', '.join(names)};"
    end = after.get(width, "mov.b64 d, r;")
    return Case(f".reg .{kind} r; {' '.join(lines)} {code} {end}", bits_of(want, result),
                result if "f" in result else "")  # fmt: skip


def cases():
    """The first architecture that has it, the form, and the case, of all rows."""
    for forms, operands, want in ROWS:
        for name, *rest in expanded(forms):
            modifiers = tuple(rest)
            since = FORMS[name][modifiers].since
            yield since, (name, *modifiers), case_of(name, modifiers, operands, want)
            if operands[1:] and type(operands[-1]) is int:
                # The last operand as a constant.
                other = (*operands[:-1], str(operands[-1]))
                yield since, (name, *modifiers), case_of(name, modifiers, other, want)


def accesses():
    """Loads of `TABLE`, and stores of its last bytes that are loaded again."""
    at = {"global": "mine", "shared": "s", "const": "table", "param": "block"}
    fill = "ld.const.u64 v, [table+{0}]; st.{1}.u64 [{2}+{0}], v;"
    for name in ("ld", "st"):
        for modifiers, known_form in FORMS[name].items():
            space, *vector, type = modifiers
            count, size = int(vector[0][1:]) if vector else 1, BITS[type] // 8
            bits = BITS[type] if "f" in type else 64
            registers = ", ".join(f"r{n}" for n in range(count))
            operand = f"{{{registers}}}" if vector else registers
            form, address = ".".join(modifiers), at[space]
            code, octets = f".reg .b{bits} {registers};", TABLE
            if name == "st":
                octets = TABLE[-size * count :]
                # Elements are read one by one from constant memory.
                for n in range(count):
                    code += f" ld.const.{type} r{n}, [table+{32 - size * (count - n)}];"
                code += f" st.{form} [{address}], {operand};"
            elif space not in ("const", "param"):
                code += "".join(fill.format(n, space, address) for n in range(0, 32, 8))
            code += f" ld.{form} {operand}, [{address}]; mov.u64 d, 0;"
            widen = "cvt.u64.u32 v," if bits == 32 else "mov.b64 v,"
            for n in range(count):
                code += f" {widen} r{n}; mad.lo.u64 d, d, 31, v;"
            kind = f"u{size}" if "f" in type else DTYPES[type]
            elements, total = np.frombuffer(octets, kind)[:count], 0
            for element in elements.tolist():
                total = (31 * total + element) % (1 << 64)
            yield known_form.since, (name, *modifiers), Case(code, total)


def wrong_of(rows, target):
    """What is wrong with cases, which all run in one thread."""
    body = """.reg .b32 s; .reg .b64 to, mine, v; .shared .align 32 .b8 sharing[32];
        mov.u32 s, sharing; ld.param.u64 to, [p0]; ld.param.u64 mine, [p1]; """
    for number, case in enumerate(rows):
        body += f"\n{{ .reg .b64 d; {case.code} st.global.u64 [to+{8 * number}], d; }}"
    numbers = ", ".join(map(str, TABLE))
    text = kernel(body, ["u64", "u64", "align 32 .b8"], target=target,
                  before=f".const .align 32 .b8 table[32] = {{{numbers}}};")  # fmt: skip
    bench = Bench(text.replace("p2)", "block[32])"))
    results = np.zeros(len(rows), np.uint64)
    addresses = [bench.array(array) for array in (results, np.zeros(32, np.uint8))]
    bench.launch("k", 1, 1, *addresses, np.frombuffer(TABLE, np.uint8))
    wrong = []
    results = bench.read(addresses[0], results).tolist()
    for (code, want, is_float), result in zip(rows, results, strict=True):
        if result != want and not all(is_nan(bits, is_float) for bits in (result, want)):
            wrong.append(f"{code} gives {result:#x}, {want:#x} is expected")
    return wrong


def is_nan(bits, type):
    return bool(type) and bool(np.isnan(np.array(bits, f"u{BITS[type] // 8}").view(DTYPES[type])))


def test_each_form_of_an_instruction():
    every = [*cases(), *accesses()]
    wrong = []
    for since in {since for since, _, _ in every}:
        rows = [case for version, _, case in every if version == since]
        for first in range(0, len(rows), 100):
            wrong += wrong_of(rows[first : first + 100], f"sm_{since}")
    assert not wrong, "\n".join(wrong[:20])
    keys = {(name, *form) for name, forms in FORMS.items() if name not in OTHERS for form in forms}
    missing = keys - {form for _, form, _ in every}
    assert not missing, f"no row of {sorted(missing)[:20]}"


@pytest.mark.parametrize(
    ("fma", "dtype", "bits", "exponents"),
    [(fma_f4, np.float32, 12, (-120, -40)), (fma_f8, np.float64, 27, (-960, -100))],
)
def test_fused_products_are_rounded_once(fma, dtype, bits, exponents):
    generator = np.random.default_rng(7)
    a, b = (1 + generator.integers(0, 2**bits, (2, 400)) * 2.0**-bits).astype(dtype)
    # Sums that are next to the middle of two floats: no neighbour is nearer. Others cancel.
    c = (generator.choice([-1, 1], 400) * 2.0 ** generator.integers(*exponents, 400)).astype(dtype)
    c[::4] = -(a * b)[::4]
    c[1::4] *= dtype(2.0) ** -exponents[0]
    rows = zip(*(array.tolist() for array in (a, b, c)), strict=True)
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in rows]
    sums = fma(a, b, c)
    pairs = zip(sums.tolist(), exact, strict=True)
    errors = [abs(Fraction(value) - want) for value, want in pairs]
    for neighbour in (np.nextafter(sums, dtype(side)) for side in (-INF, INF)):
        assert all(
            error <= abs(Fraction(value) - want)
            for value, error, want in zip(neighbour.tolist(), errors, exact, strict=True)
        )


FOUR = np.arange(4, dtype="u4")
# An address in shared memory, where a 6 is, as a generic one.
THERE = """.shared .b8 k[8]; .reg .b64 u; st.shared.u32 [k], 6; mov.u64 u, k;
    cvta.shared.u64 u, u;"""


@pytest.mark.parametrize(
    ("code", "want"),
    [
        ("add.u32 d, 5, -7;", 2**32 - 2),
        ("and.b32 d, 0xff, 0b1010;", 10),
        ("mul.lo.u32 d, 8, 3U;", 24),
        ("sub.u32 x, %ntid.x, %tid.x; add.u32 d, x, %tid.x;", 128),
        ("setp.lt.u32 p, a, 9; and.pred q, p, !p; selp.u32 d, 3, 4, q;", 4),
        ("setp.lt.u32 p, a, 9; and.pred q, p, 1; selp.u32 d, 3, 4, q;", 3),
        ("mov.b32 {h, l}, 0x12345678; mov.b32 d, {l, h};", 0x56781234),
        ("mov.b64 {x, y}, 0x1234567800000001; sub.u32 d, y, x;", 0x12345677),
        ("fma.rn.f32 d, 0f40000000, 0f40400000, 0f3F800000;", 0x40E00000),
        ("mov.u32 x, 9; { .reg .b32 x; mov.u32 x, 1; } mov.u32 d, x;", 9),
        (f"{THERE} cvta.to.shared.u64 u, u; cvt.u32.u64 x, u; ld.shared.u32 d, [x];", 6),
    ],
)  # fmt: skip
def test_operands(code, want):
    # One thread, so that writes to shared memory are no race.
    found = calculate(code, FOUR[:1], threads=128 if "tid" in code else 1)
    np.testing.assert_array_equal(found, np.full(1, want, "u4"))


# What each form of each instruction of control makes of the numbers 0 to 3, and zeros.
CONTROLLED = {
    "bra": ("setp.gt.u32 p, a, 1; @p bra over; mov.u32 d, 7; over:", [7, 7, 9, 9]),
    "bra.uni": ("bra.uni over; mov.u32 d, 7; over:", [9, 9, 9, 9]),
    "ret": ("setp.gt.u32 p, a, 1; @p ret;", [9, 9, 0, 0]),
    "ret.uni": ("ret.uni;", [0, 0, 0, 0]),
    "exit": ("setp.gt.u32 p, a, 1; @p exit;", [9, 9, 0, 0]),
}


def test_each_form_of_control():
    for form, (code, want) in CONTROLLED.items():
        assert calculate(f"mov.u32 d, 9; {code} ", FOUR).tolist() == want, form
    known = {f"{name}.{form}".rstrip(".") for name, forms in CONTROL.items() for form in forms}
    assert known == {*CONTROLLED}


APPROXIMATION = ": an approximation, whose result PTX does not say"
PRODUCT = "mma.sync.aligned.{}.row.col.f32.{}.{}.f32 {{a}}, {{a}}, {{a}}, {{a}};"


@pytest.mark.cases(
    ("code", "what"),
    ("vadd.s32.s32.s32 d, a, a, a;", ""),
    ("add.s32.wide d, a, a;", ""),
    ("cvt.f16.f32 d, a;", ""),
    ("bra.frobnicate over; over: mov.u32 d, 0;", ""),
    ("ex2.approx.f32 d, a;", APPROXIMATION),
    ("div.full.f32 d, a, a;", APPROXIMATION),
    # PTX ISA, mma, Target ISA Notes: Turing has only the small product of float16.
    (PRODUCT.format("m16n8k16", "f16", "f16"), ": only sm_80 and later have it"),
    (PRODUCT.format("m16n8k16", "bf16", "bf16"), ": only sm_80 and later have it"),
    (PRODUCT.format("m16n8k8", "tf32", "tf32"), ": only sm_80 and later have it"),
)
def test_unknown_instructions_name_their_line(code, what):
    with pytest.raises(Fault) as caught:
        calculate(code, FOUR, target="sm_75")
    assert str(caught.value).startswith(f"unknown instruction{what} (kernel k, line ")
    assert code.partition(";")[0] in str(caught.value)
    assert caught.value.line > 10
