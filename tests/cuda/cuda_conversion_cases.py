"""Cases of cvt, in exact arithmetic.

PTX ISA, cvt: integers are extended by the destination's sign; conversions to integers are limited
to the range of the type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import numpy as np
from cuda_exact import as_bits, as_floats, rounded, values
from cuda_forms import Case, Modifiers, cases_of, full
from cuda_integer_cases import dtype_of, is_float

_INTEGRAL = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@lru_cache
def _integers(type: str) -> tuple[np.ndarray, ...]:
    """The input of conversions of integers: those of 8 bits are read from larger registers."""
    bits, dtype = int(type[1:]), dtype_of(type)
    info = np.iinfo(dtype)
    near = [2**53 + 1, 2**53 - 1, 2**24 + 1, 2**24 + 3, 2**62 + 2**38 + 1, 2049, 65504, 65520, 257]
    chosen = [0, 1, -1, 100, info.min, info.max, info.max - 1, *near, *(-one for one in near)]
    generator = np.random.default_rng(0)
    chosen += [int(one) >> n for n, one in enumerate(generator.integers(2**62, 2**63, 40))]
    inside = np.array([one for one in chosen if info.min <= one <= info.max], dtype)
    return (inside.astype(f"{dtype[0]}2") if bits == 8 else inside,)


@lru_cache
def _floats(type: str) -> tuple[np.ndarray, ...]:
    """The input of conversions of floats, among them the middles between integers and floats."""
    edges = [2.0**n + d for n in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, -0.5, 0, 0.5)]
    small = np.arange(-4, 4.5, 0.5)
    generator = np.random.default_rng(1)
    # Next to the middle of two results, and about the smallest of them.
    middle = (1 + generator.integers(0, 2**7, 30) * 2.0**-7) * (1 + 2.0**-8 + 2.0**-12)
    scaled = middle * 2.0 ** generator.integers(-25, 17, 30)
    halves = [np.array(values(one)) for one in ("f16", "bf16")]
    everything = [values(type), edges, np.negative(edges), small, scaled, -middle, *halves]
    everything += [middle + 2.0**-40, [1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11]]
    return (as_bits(np.concatenate(everything), type),)


def _wide(type: str) -> np.ndarray:
    return as_floats(_floats(type)[0], type)


@cases_of("cvt")
def _between_integers(name: str, modifiers: Modifiers) -> Iterator[Case]:
    kind, type = modifiers[-2:]
    if is_float(kind) or is_float(type):
        return
    (inputs,) = _integers(type)
    info = np.iinfo(dtype_of(kind))
    whole = [one % (1 << info.bits) for one in inputs.tolist()]
    want = np.array(whole, f"u{info.bits // 8}").view(dtype_of(kind))
    yield Case(f"{full(name, modifiers)} d, a;", (inputs,), _kept(want))
    # PTX ISA, Operand Size Exceeding Instruction-Type Size: wider registers hold operands, whose
    # upper bits are ignored, and results, which are extended by the sign or by zeros.
    if inputs.itemsize == 4 and want.itemsize < 8:
        code = f"cvt.u64.u32 u, a; or.b64 u, u, 0x5a00000000; {full(name, modifiers)} d, u;"
        yield Case(code, (inputs,), want.astype(f"{want.dtype.kind}8"))


def _kept(want: np.ndarray) -> np.ndarray:
    """Results of 8 bits, extended to the register."""
    return want.astype(f"{want.dtype.kind}2") if want.itemsize == 1 else want


@cases_of("cvt")
def _to_integers(name: str, modifiers: Modifiers) -> Iterator[Case]:
    kind, type = modifiers[-2:]
    if is_float(kind) or not is_float(type):
        return
    mode = modifiers[0]
    info = np.iinfo(dtype_of(kind))
    # PTX ISA, cvt, Integer Notes: NaN is zero if the source is not .f64 and the destination is not
    # .s64 or .u64; otherwise it is 1 << (BitWidth(dst) - 1).
    special = type == "f64" or info.bits == 64
    nan = (info.min if info.min else 1 << (info.bits - 1)) if special else 0

    def converted(value: float) -> int:
        if math.isnan(value):
            return nan
        if math.isinf(value):
            return info.max if value > 0 else info.min
        return min(max(_INTEGRAL[mode](Fraction(value)), info.min), info.max)

    want = [converted(one) for one in _wide(type).tolist()]
    result = _kept(np.array(want, dtype_of(kind)))
    yield Case(f"{full(name, modifiers)} d, a;", _floats(type), result)


@cases_of("cvt")
def _of_integers(name: str, modifiers: Modifiers) -> Iterator[Case]:
    kind, type = modifiers[-2:]
    if not is_float(kind) or is_float(type):
        return
    inputs = _integers(type)
    want = [rounded(Fraction(one), kind) for one in inputs[0].tolist()]
    yield Case(f"{full(name, modifiers)} d, a;", inputs, as_bits(want, kind), kind)


@cases_of("cvt")
def _between_floats(name: str, modifiers: Modifiers) -> Iterator[Case]:
    kind, type = modifiers[-2:]
    if not is_float(kind) or not is_float(type):
        return
    inputs = _wide(type)
    if modifiers[0] in _INTEGRAL:
        function = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
        want = function[modifiers[0]](inputs)
    else:
        want = np.array([
            rounded(Fraction(one), kind, one) if math.isfinite(one) else one
            for one in inputs.tolist()
        ])  # fmt: skip
    yield Case(f"{full(name, modifiers)} d, a;", _floats(type), as_bits(want, kind), kind)
