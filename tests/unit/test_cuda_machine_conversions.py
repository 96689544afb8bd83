"""Conversions of the PTX machine, against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from cuda_machine_cases import calculate
from test_cuda_machine_floats import as_bits, as_floats, check, rounded, values

from cuda_machine.faults import Fault

_INTEGERS = {"s16": "i2", "u16": "u2", "s32": "i4", "u32": "u4", "s64": "i8", "u64": "u8"}
_FLOATS = {"f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8"}


def _integers(dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    near = [2**53 + 1, 2**53 - 1, 2**24 + 1, 2**24 + 3, 2**62 + 2**38 + 1, 2049, 65504, 65520]
    chosen = [0, 1, -1, 100, info.min, info.max, info.max - 1, *near, *(-one for one in near)]
    generator = np.random.default_rng(0)
    chosen += [int(one) >> n for n, one in enumerate(generator.integers(2**62, 2**63, 40))]
    return np.array([one for one in chosen if info.min <= one <= info.max], dtype)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
@pytest.mark.parametrize("type", _INTEGERS)
def test_integers_become_floats_in_one_rounding(type: str, kind: str, mode: str) -> None:
    a = _integers(_INTEGERS[type])
    found = calculate(f"cvt.{mode}.{kind}.{type} d, a;", a, result=_FLOATS[kind])
    check(found, [rounded(Fraction(one), kind, mode) for one in a.tolist()], kind)


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("type", ["f16", "f32", "f64"])
@pytest.mark.parametrize("kind", _INTEGERS)
def test_floats_become_integers_within_the_range(kind: str, type: str, mode: str) -> None:
    edges = [2.0**n + d for n in (15, 16, 31, 32, 63, 64) for d in (-1, -0.5, 0, 0.5)]
    wide = np.concatenate([values(type), edges, np.negative(edges), np.arange(-4, 4.5, 0.5)])
    bits = as_bits(wide, type)
    found = calculate(f"cvt.{mode}.{kind}.{type} d, a;", bits, result=_INTEGERS[kind])
    info = np.iinfo(_INTEGERS[kind])
    functions = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
    # PTX ISA, cvt: NaN is zero, or its upper bit is set.
    special = type == "f64" or kind in ("s64", "u64")
    nan = (info.min if info.min else 1 << (info.bits - 1)) if special else 0

    def converted(value: float) -> int:
        if math.isnan(value):
            return nan
        if math.isinf(value):
            return info.max if value > 0 else info.min
        return min(max(functions[mode](Fraction(value)), info.min), info.max)

    want = [converted(one) for one in as_floats(bits, type).tolist()]
    np.testing.assert_array_equal(found, np.array(want, _INTEGERS[kind]))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("pair", ["f32.f64", "f16.f64", "f16.f32", "bf16.f32", "bf16.f64"])
def test_floats_become_smaller_in_one_rounding(pair: str, mode: str) -> None:
    kind, type = pair.split(".")
    generator = np.random.default_rng(1)
    # Just beyond the middle of two results, and about the smallest of them.
    middle = (1 + generator.integers(0, 2**7, 60) * 2.0**-7) * (1 + 2.0**-8 + 2.0**-12)
    scale = 2.0 ** generator.integers(-25, 17, 60)
    wide = np.concatenate([values(type), values(kind), middle * scale, -middle, middle + 2.0**-40])
    bits = as_bits(wide, type)
    found = calculate(f"cvt.{mode}.{pair} d, a;", bits, result=_FLOATS[kind], target="sm_90")

    def converted(value: float) -> float:
        if not math.isfinite(value):
            return value
        return rounded(Fraction(value), kind, mode, value)

    check(found, [converted(one) for one in as_floats(bits, type).tolist()], kind)


@pytest.mark.parametrize("pair", ["f32.f16", "f64.f16", "f32.bf16", "f64.f32"])
def test_floats_become_larger_exactly(pair: str) -> None:
    kind, type = pair.split(".")
    wide = values(type)
    found = calculate(
        f"cvt.{pair} d, a;", as_bits(wide, type), result=_FLOATS[kind], target="sm_90"
    )
    check(found, wide.tolist(), kind)


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_floats_are_rounded_to_integral_floats(mode: str) -> None:
    a = np.concatenate([values("f32"), np.arange(-3, 3.5, 0.5)]).astype("f4")
    functions = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
    found = calculate(f"cvt.{mode}.f32.f32 d, a;", a, result="f4")
    check(found, functions[mode](a).tolist(), "f32")


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_two_floats_become_a_pair_the_first_above(kind: str) -> None:
    a = values("f32").astype("f4")
    b = a[::-1].copy()
    found = calculate(f"cvt.rn.{kind}x2.f32 d, a, b;", a, b, result="u4").view("u2")
    single = calculate(f"cvt.rn.{kind}.f32 d, a;", a, result="u2")
    np.testing.assert_array_equal(found[1::2], single)
    np.testing.assert_array_equal(found[::2], single[::-1])


def test_tf32_keeps_eleven_bits() -> None:
    a = np.array([1, 1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11, 2.0**-130, math.inf], "f4")
    away = calculate("cvt.rna.tf32.f32 d, a;", a, result="f4")
    want = [1, 1 + 2.0**-10, 1 + 2.0**-9, -1 - 2.0**-10, 2.0**-130, math.inf]
    np.testing.assert_array_equal(away, np.array(want, "f4"))
    even = calculate("cvt.rn.tf32.f32 d, a;", a, result="f4", target="sm_90")
    want[1], want[3] = 1, -1
    np.testing.assert_array_equal(even, np.array(want, "f4"))


def test_integers_are_extended_truncated_or_limited() -> None:
    a = _integers("i4")
    for code, result, want in (
        ("cvt.s64.s32", "i8", a.astype("i8")),
        ("cvt.u16.u32", "u2", a.astype("u2")),
        ("cvt.s32.s8", "i4", a.astype("i1").astype("i4")),
        ("cvt.u32.u8", "u4", a.astype("u1").astype("u4")),
        ("cvt.sat.s16.s32", "i2", np.clip(a, -(2**15), 2**15 - 1).astype("i2")),
        ("cvt.sat.u32.s32", "u4", np.maximum(a, 0).astype("u4")),
    ):
        np.testing.assert_array_equal(calculate(f"{code} d, a;", a, result=result), want)


@pytest.mark.parametrize("code", ["cvt.rn.satfinite.e4m3x2.f32", "cvt.f16.f32", "cvt.rn.f32.f16"])
def test_other_conversions_are_unknown(code: str) -> None:
    with pytest.raises(Fault) as caught:
        calculate(f"{code} d, a;", np.ones(4, "f4"), result="f4")
    assert "unknown instruction" in str(caught.value)
