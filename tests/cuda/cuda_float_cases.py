"""Cases of floating-point instructions, in exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import numpy as np
from cuda_exact import as_bits, exactly, square_root, values
from cuda_forms import Case, Modifiers, cases_of, full
from cuda_integer_cases import is_float

_CANONICAL = 0x7FFFFFFF
Arrays = tuple[np.ndarray, ...]


@lru_cache
def wide(type: str, count: int) -> Arrays:
    """Combinations of `count` values of a type, as float64."""
    some = [values(type), values(type, 6, 1), values(type, 6, 2)[::3]][:count]
    if count == 3:
        some = [some[0][::3], some[1][::2], some[2]]
    rows = list(product(*some))
    if count == 3 and type in ("f32", "f64"):
        rows += _near_the_middle(type)
    return tuple(np.array([row[n] for row in rows]) for n in range(count))


def _near_the_middle(type: str) -> list[tuple[float, float, float]]:
    """Factors and summands whose exact fma is next to the middle of two floats."""
    generator = np.random.default_rng(7)
    if type == "f32":
        a, b = 1 + generator.integers(0, 2**12, (2, 200)) * 2.0**-12
        c = generator.choice([-1, 1], 200) * 2.0 ** generator.integers(-120, -40, 200)
        return list(zip(a.tolist(), b.tolist(), c.tolist(), strict=True))
    near = generator.uniform(1, 2, (100, 2)).tolist()
    rows = [(a, b, -a * b) for a, b in near]
    return rows + [(a, b, a * b * 2.0**-53 * (1 + 2.0**-52)) for a, b in near]


@lru_cache
def bits(type: str, count: int) -> Arrays:
    """The combinations as the inputs of a case."""
    return tuple(as_bits(one, type) for one in wide(type, count))


@lru_cache
def _computed(name: str, type: str, count: int) -> np.ndarray:
    """add, sub, mul, fma, div, rcp or sqrt of all combinations, as float64."""
    rows = zip(*(one.tolist() for one in wide(type, count)), strict=True)
    if name == "sqrt":
        found = [square_root(row[0], type) for row in rows]
    elif name == "rcp":
        found = [exactly("div", type, 1.0, row[0]) for row in rows]
    else:
        found = [exactly(name, type, *row) for row in rows]
    return np.array(found)


def _case(name: str, modifiers: Modifiers, count: int, want: np.ndarray) -> Case:
    """The case of an instruction without destination `d`, of results as float64."""
    type = modifiers[-1]
    code = f"{full(name, modifiers)} d, {', '.join('abc'[:count])};"
    return Case(code, bits(type, count), as_bits(want, type), type)


@cases_of("add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt")
def _arithmetic(name: str, modifiers: Modifiers) -> Iterator[Case]:
    type = modifiers[-1]
    if is_float(type):
        # PTX ISA, mad: for sm_20 and higher, mad with a rounding mode is fma.
        operation = "fma" if name == "mad" else name
        count = {"fma": 3, "rcp": 1, "sqrt": 1}.get(operation, 2)
        yield _case(name, modifiers, count, _computed(operation, type, count))


@cases_of("min", "max")
def _extremes(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """PTX ISA, min and max: of a number and NaN the number, or with .NaN canonical NaN.

    If both inputs are zeros, +0.0 > -0.0.
    """
    *flags, type = modifiers
    if not is_float(type):
        return
    choose = min if name == "min" else max

    def chosen(a: float, b: float) -> float:
        if math.isnan(a) or math.isnan(b):
            return math.nan if "NaN" in flags else (b if math.isnan(a) else a)
        return choose((one, math.copysign(1, one)) for one in (a, b))[0]

    want = np.array([chosen(*row) for row in zip(*wide(type, 2), strict=True)])
    one = _case(name, modifiers, 2, want)
    yield one
    if "NaN" in flags:
        result = np.where(np.isnan(want), _CANONICAL, one.want.view("u4")).astype("u4")
        yield Case(one.code, one.inputs, result)


@cases_of("abs", "neg")
def _signs(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """PTX ISA, abs and neg: NaN inputs yield an unspecified NaN."""
    type = modifiers[-1]
    if not is_float(type):
        return
    (inputs,) = wide(type, 1)
    yield _case(name, modifiers, 1, np.abs(inputs) if name == "abs" else -inputs)


@cases_of("copysign")
def _copied_signs(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """PTX ISA, copysign: copies the sign bit of a into b."""
    a, b = wide(modifiers[0], 2)
    numbers = ~np.isnan(b)
    inputs = tuple(as_bits(one[numbers], modifiers[0]) for one in (a, b))
    want = np.array([math.copysign(y, x) for x, y in zip(a[numbers], b[numbers], strict=True)])
    yield Case(f"{full(name, modifiers)} d, a, b;", inputs, as_bits(want, modifiers[0]))


@cases_of("testp")
def _classes(name: str, modifiers: Modifiers) -> Iterator[Case]:
    (inputs,) = wide(modifiers[-1], 1)
    code = f"{full(name, modifiers)} p, a; selp.u32 d, 1, 0, p;"
    yield Case(code, bits(modifiers[-1], 1), np.isinf(inputs).astype("u4"))
