"""Exact arithmetic of floats, rounded once: what instructions of the PTX machine must give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

BITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
LOWEST = {"f16": -14, "bf16": -126, "f32": -126, "f64": -1022}
HIGHEST = {"f16": 15, "bf16": 127, "f32": 127, "f64": 1023}
# bfloat16 are bits.
NUMPY = {"f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8"}


def rounded(exact: Fraction, type: str, zero: float = 0.0) -> float:
    """An exact value as the nearest float of a type; `zero` is the result for an exact zero."""
    if exact == 0:
        return zero
    sign = -1 if exact < 0 else 1
    # Integers instead of fractions, which are slower.
    above, below = abs(exact.numerator), exact.denominator
    exponent = above.bit_length() - below.bit_length()
    exponent -= above << max(-exponent, 0) < below << max(exponent, 0)
    last = max(exponent, LOWEST[type]) - BITS[type] + 1
    below <<= max(last, 0)
    down, rest = divmod(above << max(-last, 0), below)
    up = 2 * rest > below or (2 * rest == below and down % 2 == 1)
    if (down + up).bit_length() + last > HIGHEST[type] + 1:
        return sign * math.inf
    return math.copysign(math.ldexp(down + up, last), sign)


def values(type: str, count: int = 8, seed: int = 0) -> np.ndarray:
    """Special values, and random ones of all exponents, as float64."""
    generator = np.random.default_rng(seed)
    exponents = generator.uniform(LOWEST[type] - BITS[type] + 2, HIGHEST[type], count)
    random = generator.choice([-1, 1], count) * generator.uniform(1, 2, count)
    random = random * np.exp2(np.floor(exponents))
    smallest = 2.0 ** (LOWEST[type] - BITS[type] + 1)
    largest = (2 - 2.0 ** (1 - BITS[type])) * 2.0 ** HIGHEST[type]
    step = 2.0 ** (1 - BITS[type])
    special = [0.0, 1.0, 1 + step, 1 + 2 * step, 3.0, 2 ** LOWEST[type], smallest, largest]
    special += [1 - step / 2, 2 ** LOWEST[type] - smallest, 3 * smallest, math.inf]
    everything = np.concatenate([random, special, np.negative(special), [math.nan]])
    return as_floats(as_bits(everything, type), type)


def as_bits(wide: np.ndarray | Sequence[float], type: str) -> np.ndarray:
    """Float64 values that a type has, in the NumPy type: bfloat16 as bits; NaN is canonical."""
    wide = np.asarray(wide, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if type != "bf16":
            return wide.astype(NUMPY[type])
        bits = wide.astype("f4").view("u4")
        return np.where(np.isnan(wide), 0x7FFF, bits >> 16).astype("u2")


def as_floats(bits: np.ndarray, type: str) -> np.ndarray:
    """Values of a type as float64."""
    if type != "bf16":
        return bits.astype("f8")
    return (bits.astype("u4") << np.uint32(16)).view("f4").astype("f8")


def exactly(name: str, type: str, *operands: float) -> float:
    """add, sub, mul, fma or div, by exact arithmetic where the operands are finite."""
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
    return rounded(exact, type, _zero(name, float(a), float(b), float(c)))


def _zero(name: str, a: float, b: float, c: float) -> float:
    """The sign of an exact zero (IEEE 754, 6.3)."""
    minus = math.copysign(1, a) * math.copysign(1, b) < 0
    if name in ("mul", "div"):
        return -0.0 if minus else 0.0
    if name == "fma":
        one, other = (-0.0 if minus else 0.0) if a == 0 or b == 0 else 1.0, c
    else:
        one, other = a, (-b if name == "sub" else b)
    if one == 0 and other == 0 and math.copysign(1, one) == math.copysign(1, other):
        return one
    return 0.0


def square_root(value: float, type: str) -> float:
    """The square root rounded to nearest: of the two floats next to it, the nearer one."""
    if not math.isfinite(value) or value <= 0:
        return math.sqrt(value) if value == 0 or value > 0 else math.nan
    exact = Fraction(value)
    scale = 2 ** (2 * 1200)
    # Enough bits, and a last one that says whether there are more.
    number = exact * scale
    root = math.isqrt(number.numerator // number.denominator)
    more = Fraction(root) ** 2 != number
    return rounded(Fraction(2 * root + more, 2**1201), type)
