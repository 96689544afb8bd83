"""Floating-point instructions of the PTX machine against exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from cuda_machine_cases import calculate

from cuda_machine.faults import Fault

_BITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_LOWEST = {"f16": -14, "bf16": -126, "f32": -126, "f64": -1022}
_HIGHEST = {"f16": 15, "bf16": 127, "f32": 127, "f64": 1023}
_NUMPY = {"f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8"}


def rounded(exact: Fraction, type: str, mode: str, zero: float = 0.0) -> float:
    """An exact value as a float of a type; `zero` is the result for an exact zero."""
    if exact == 0:
        return zero
    sign = -1 if exact < 0 else 1
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    last = Fraction(2) ** (max(exponent, _LOWEST[type]) - _BITS[type] + 1)
    down = math.floor(size / last)
    rest = size / last - down
    nearest = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and down % 2 == 1)
    outward = mode == ("rp" if sign > 0 else "rm")
    up = nearest if mode == "rn" else outward and rest > 0
    largest = (2 - Fraction(2) ** (1 - _BITS[type])) * Fraction(2) ** _HIGHEST[type]
    value = (down + up) * last
    if value > largest:
        return sign * (math.inf if mode == "rn" or outward else float(largest))
    return sign * float(value)


def values(type: str, count: int = 8, seed: int = 0) -> np.ndarray:
    """Special values, and random ones of all exponents, as float64."""
    generator = np.random.default_rng(seed)
    exponents = generator.uniform(_LOWEST[type] - _BITS[type] + 2, _HIGHEST[type], count)
    random = generator.choice([-1, 1], count) * generator.uniform(1, 2, count)
    random = random * np.exp2(np.floor(exponents))
    smallest = 2.0 ** (_LOWEST[type] - _BITS[type] + 1)
    largest = (2 - 2.0 ** (1 - _BITS[type])) * 2.0 ** _HIGHEST[type]
    step = 2.0 ** (1 - _BITS[type])
    special = [0.0, 1.0, 1 + step, 1 + 2 * step, 3.0, 2 ** _LOWEST[type], smallest, largest]
    special += [1 - step / 2, 2 ** _LOWEST[type] - smallest, 3 * smallest, math.inf]
    everything = np.concatenate([random, special, np.negative(special), [math.nan]])
    return as_floats(as_bits(everything, type), type)


def as_bits(wide: np.ndarray, type: str) -> np.ndarray:
    """Float64 values as bits of a type."""
    with np.errstate(over="ignore"):
        if type != "bf16":
            return wide.astype(_NUMPY[type])
        bits = wide.astype("f4").view("u4")
        return np.where(np.isnan(wide), 0x7FFF, bits >> 16).astype("u2")


def as_floats(bits: np.ndarray, type: str) -> np.ndarray:
    """Values of a type as float64."""
    if type != "bf16":
        return bits.astype("f8")
    return (bits.astype("u4") << np.uint32(16)).view("f4").astype("f8")


def check(found: np.ndarray, want: list[float], type: str) -> None:
    """All values are the same, zeros with their sign; NaN may be any NaN."""
    got = as_floats(found, type)
    expected = np.array(want)
    np.testing.assert_array_equal(got, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


def exactly(name: str, type: str, mode: str, *operands: float) -> float:
    """The result of an instruction, by exact arithmetic where the operands are finite."""
    with np.errstate(all="ignore"):
        a, b, *rest = (np.float64(one) for one in operands)
        c = rest[0] if rest else np.float64(0)
        special = {"add": a + b, "sub": a - b, "mul": a * b, "fma": a * b + c, "div": a / b}[name]
    if not all(map(math.isfinite, operands)):
        # A finite product is no infinity, even if it is one in float64.
        return float(c if name == "fma" and math.isfinite(a) and math.isfinite(b) else special)
    if name == "div" and b == 0:
        return float(special)
    x, y, z = Fraction(float(a)), Fraction(float(b)), Fraction(float(c))
    exact = {
        "add": lambda: x + y,
        "sub": lambda: x - y,
        "mul": lambda: x * y,
        "fma": lambda: x * y + z,
        "div": lambda: x / y,
    }[name]()
    zero = _zero(name, mode, float(a), float(b), float(c))
    return rounded(exact, type, mode, zero)


def _zero(name: str, mode: str, a: float, b: float, c: float) -> float:
    """The sign of an exact zero (IEEE 754, 6.3)."""
    minus = math.copysign(1, a) * math.copysign(1, b) < 0
    if name in ("mul", "div"):
        return -0.0 if minus else 0.0
    if name == "fma":
        one, other = (-0.0 if minus else 0.0) if a * b == 0 else a * b, c
    else:
        one, other = a, (-b if name == "sub" else b)
    if one == 0 and other == 0 and math.copysign(1, one) == math.copysign(1, other):
        return one
    return -0.0 if mode == "rm" else 0.0


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_sums_and_products_are_rounded_once(name: str, mode: str) -> None:
    rows = list(product(values("f32"), values("f32", seed=1)))
    a, b = (np.array([row[n] for row in rows], "f4") for n in range(2))
    found = calculate(f"{name}.{mode}.f32 d, a, b;", a, b, result="f4")
    check(found, [exactly(name, "f32", mode, *row) for row in rows], "f32")


@pytest.mark.parametrize(
    ("name", "mode"), [("add", "rn"), ("add", "rz"), ("sub", "rm"), ("add", "rp"), ("mul", "rn")]
)
def test_sums_and_products_of_doubles(name: str, mode: str) -> None:
    rows = list(product(values("f64"), values("f64", seed=1)))
    a, b = (np.array([row[n] for row in rows]) for n in range(2))
    found = calculate(f"{name}.{mode}.f64 d, a, b;", a, b, result="f8")
    want = [exactly(name, "f64", mode, *row) for row in rows]
    check(found, want, "f64")


def _halfway(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Factors and summands whose exact fma is just beyond the middle of two float32."""
    generator = np.random.default_rng(7)
    a = (1 + generator.integers(0, 2**12, count) * 2.0**-12).astype("f4")
    b = (1 + generator.integers(0, 2**12, count) * 2.0**-12).astype("f4")
    tiny = generator.choice([-1, 1], count) * 2.0 ** generator.integers(-120, -40, count)
    return a, b, tiny.astype("f4")


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_fma_of_floats_is_rounded_once(mode: str) -> None:
    rows = list(product(values("f32", 9), values("f32", 8, 1), values("f32", 8, 2)[::2]))
    inputs = [np.array([row[n] for row in rows], "f4") for n in range(3)]
    inputs = [np.concatenate(both) for both in zip(inputs, _halfway(500), strict=True)]
    found = calculate(f"fma.{mode}.f32 d, a, b, c;", *inputs, result="f4")
    wide = zip(*(one.astype("f8").tolist() for one in inputs), strict=True)
    check(found, [exactly("fma", "f32", mode, *row) for row in wide], "f32")


def test_fma_of_doubles_is_rounded_once() -> None:
    rows = list(product(values("f64", 9), values("f64", 8, 1), values("f64", 8, 2)[::2]))
    near = np.random.default_rng(3).uniform(1, 2, (400, 2))
    rows += [(a, b, -a * b) for a, b in near]
    rows += [(a, b, a * b * 2.0**-53 * (1 + 2.0**-52)) for a, b in near]
    inputs = [np.array([row[n] for row in rows]) for n in range(3)]
    found = calculate("fma.rn.f64 d, a, b, c;", *inputs, result="f8")
    wide = zip(*(one.tolist() for one in inputs), strict=True)
    check(found, [exactly("fma", "f64", "rn", *row) for row in wide], "f64")


@pytest.mark.parametrize("type", ["f32", "f64"])
def test_quotients_and_square_roots(type: str) -> None:
    kind = _NUMPY[type]
    rows = list(product(values(type), values(type, seed=1)))
    a, b = (np.array([row[n] for row in rows], kind) for n in range(2))
    found = calculate(f"div.rn.{type} d, a, b;", a, b, result=kind)
    check(found, [exactly("div", type, "rn", *row) for row in rows], type)
    found = calculate(f"rcp.rn.{type} d, a;", a, result=kind)
    check(found, [exactly("div", type, "rn", 1.0, row[0]) for row in rows], type)
    found = calculate(f"sqrt.rn.{type} d, a;", a, result=kind)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, np.sqrt(a))


@pytest.mark.parametrize("type", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_arithmetic_of_halves_is_rounded_once(name: str, type: str) -> None:
    count = 3 if name == "fma" else 2
    rows = list(product(*(values(type, 6, seed)[:: 1 + seed] for seed in range(count))))
    inputs = [as_bits(np.array([row[n] for row in rows]), type) for n in range(count)]
    operands = ", ".join("abc"[:count])
    code = f"{name}.rn.{type} d, {operands};"
    found = calculate(code, *inputs, result=_NUMPY[type], target="sm_90")
    check(found, [exactly(name, type, "rn", *row) for row in rows], type)


@pytest.mark.parametrize("type", ["f16", "bf16"])
def test_pairs_of_halves_are_two_halves(type: str) -> None:
    rows = list(product(values(type), values(type, seed=1)))
    bits = [as_bits(np.array([row[n] for row in rows]), type).view("u2") for n in range(2)]
    bits = [one[: len(one) // 2 * 2] for one in bits]
    kind = _NUMPY[type]
    found = calculate(
        f"mul.rn.{type}x2 d, a, b;", *(one.view("u4") for one in bits), result="u4", target="sm_90"
    )
    want = [exactly("mul", type, "rn", *row) for row in rows[: len(bits[0])]]
    check(found.view(kind), want, type)


@pytest.mark.parametrize("type", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("nan", [False, True])
def test_minimum_and_maximum(name: str, type: str, nan: bool) -> None:
    rows = list(product(values(type), values(type, seed=1)))
    inputs = [as_bits(np.array([row[n] for row in rows]), type) for n in range(2)]
    code = f"{name}{'.NaN' if nan else ''}.{type} d, a, b;"
    found = calculate(code, *inputs, result=_NUMPY[type])

    def chosen(a: float, b: float) -> float:
        if math.isnan(a) or math.isnan(b):
            return math.nan if nan else (b if math.isnan(a) else a)
        # -0 is below +0.
        key = [(one, math.copysign(1, one)) for one in (a, b)]
        return (min(key) if name == "min" else max(key))[0]

    check(found, [chosen(*row) for row in rows], type)


def test_ftz_flushes_inputs_and_results() -> None:
    tiny = np.float32(2.0**-126)
    a = np.array([tiny / 2, -tiny / 2, tiny, tiny * 1.5], "f4")
    b = np.array([1, 1, 0.5, -tiny], "f4")
    found = calculate("mul.ftz.f32 d, a, b;", a[:3], b[:3], result="f4")
    check(found, [0.0, -0.0, 0.0], "f32")
    found = calculate("add.ftz.f32 d, a, b;", a[3:], b[3:], result="f4")
    check(found, [0.0], "f32")


def test_sat_limits_to_one_and_makes_nan_zero() -> None:
    a = np.array([0.25, 2, -1, math.nan, math.inf, -0.0], "f4")
    found = calculate("add.sat.f32 d, a, a;", a, result="f4")
    check(found, [0.5, 1, 0, 0, 1, 0], "f32")


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("eq", lambda a, b: a == b),
        ("ne", lambda a, b: a != b and a == a and b == b),
        ("lt", lambda a, b: a < b),
        ("geu", lambda a, b: not a < b),
        ("equ", lambda a, b: a == b or a != a or b != b),
        ("neu", lambda a, b: a != b),
        ("ltu", lambda a, b: not a >= b),
        ("num", lambda a, b: a == a and b == b),
        ("nan", lambda a, b: a != a or b != b),
    ],
)
@pytest.mark.parametrize("type", ["f16", "bf16", "f32", "f64"])
def test_comparisons_with_nan(name: str, function: Callable[..., bool], type: str) -> None:
    rows = list(product(values(type, 4), values(type, 4, 1)))
    inputs = [as_bits(np.array([row[n] for row in rows]), type) for n in range(2)]
    found = calculate(f"setp.{name}.{type} p, a, b; selp.u32 d, 1, 0, p;", *inputs, result="u4")
    np.testing.assert_array_equal(found, [function(*row) for row in rows])


def test_classes_and_signs() -> None:
    a = values("f32").astype("f4")
    tests = {
        "finite": np.isfinite(a),
        "infinite": np.isinf(a),
        "notanumber": np.isnan(a),
        "subnormal": (np.abs(a) < 2.0**-126) & (a != 0),
        "normal": np.isfinite(a) & ((np.abs(a) >= 2.0**-126) | (a == 0)),
    }
    for name, want in tests.items():
        found = calculate(f"testp.{name}.f32 p, a; selp.u32 d, 1, 0, p;", a, result="u4")
        np.testing.assert_array_equal(found, want)
    found = calculate("copysign.f32 d, a, b;", a, a[::-1].copy(), result="f4")
    np.testing.assert_array_equal(found, np.copysign(a[::-1], a))
    for name, want in (("neg", -a), ("abs", np.abs(a))):
        np.testing.assert_array_equal(calculate(f"{name}.f32 d, a;", a, result="f4"), want)


@pytest.mark.parametrize(
    "code", ["ex2.approx.f32", "rcp.approx.f32", "sqrt.approx.f32", "sin.approx.f32"]
)
def test_approximations_are_unknown(code: str) -> None:
    with pytest.raises(Fault) as caught:
        calculate(f"{code} d, a;", np.ones(4, "f4"), result="f4")
    assert "an approximation, of which PTX does not say the result" in str(caught.value)
