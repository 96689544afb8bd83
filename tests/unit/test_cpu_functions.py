"""The cpu engine's mathematical functions against references of higher precision."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from lamina.codegen import functions
from lamina.codegen.llvm import Module
from lamina.codegen.values import I64, POINTER, Type, Value, constant
from lamina.engines.cpu.machine_code import Library, assemble, listing
from lamina.engines.cpu.processor import host
from lamina.shapes import Array

MOST_ULP = 4.0
PRECISE = np.finfo(np.longdouble).nmant >= 63
needs_precise = pytest.mark.skipif(not PRECISE, reason="long double is no wider than double here")
KINDS = ("float", "double")
# As the processor is, and without fused multiply-add.
FUSED = (True, False)
Emit = Callable[..., Value]


def module_of(
    emit: Emit, operands: int, element: str, lanes: int, *, fused: bool, doubles: bool = True
) -> Module:
    """A module whose `program(count, out, x, ...)` applies the function to whole vectors."""
    module = Module(fused=fused, doubles=doubles)
    names = ["out", *(f"x{number}" for number in range(operands))]
    parameters = [("count", I64), *((name, POINTER) for name in names)]
    code = module.function("program", parameters, internal=False)
    count, out, *sources = code.parameters
    loop = code.begin_loop(constant(0, I64), count, lanes or 1)
    type = Type(element, lanes)
    values = [code.load(code.offset(s, loop.index, element), type) for s in sources]
    code.store(emit(code, *values), code.offset(out, loop.index, element))
    code.end_loop(loop)
    code.finish()
    return module


@cache
def compiled(
    emit: Emit, operands: int, element: str, lanes: int, fused: bool, doubles: bool
) -> Library:
    module = module_of(emit, operands, element, lanes, fused=fused, doubles=doubles)
    return Library(assemble(module.text(), host()))


def apply(
    emit: Emit, *operands: Array, lanes: int = 16, fused: bool = True, doubles: bool = True
) -> Array:
    """The function of arrays, of one dtype and any length."""
    element = "float" if operands[0].dtype == np.float32 else "double"
    library = compiled(emit, len(operands), element, lanes, fused and host().fused, doubles)
    size = operands[0].size
    padded = [np.pad(x, (0, -size % lanes)) for x in operands]
    result = np.empty_like(padded[0])
    types = [ctypes.c_int64, *[ctypes.c_void_p] * (len(padded) + 1)]
    call = ctypes.CFUNCTYPE(None, *types)(library.address("program"))
    call(result.size, result.ctypes.data, *(x.ctypes.data for x in padded))
    return result[:size]


def ulps(found: Array, expected: Array) -> Array:
    """The distance in units in the last place; infinite if only one is NaN or infinite."""
    with np.errstate(over="ignore"):
        rounded = expected.astype(found.dtype)
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    spacing = np.spacing(np.abs(np.where(np.isfinite(rounded), rounded, 1)))
    with np.errstate(all="ignore"):
        distance = np.abs(found.astype(expected.dtype) - expected) / spacing
    # A value that overflows in one may be the largest number in the other.
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance)).astype(float)


def arguments(dtype: str, low: float, high: float) -> Array:
    """Numbers from low to high: evenly, and of every size down to denormals."""
    generator = np.random.default_rng(0)
    even = generator.uniform(low, high, 200_000)
    smallest = -149 if dtype == "float32" else -1074
    largest = math.log2(max(abs(low), abs(high)))
    sizes = 2.0 ** generator.uniform(smallest, largest, 200_000)
    signed = sizes * generator.choice([-1, 1], sizes.shape)
    values = np.concatenate([even, signed]).astype(dtype)
    return values[(values >= low) & (values <= high)]


def wide(x: Array) -> Array:
    return x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)


def sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


# name -> reference, and the arguments in float32 and in float64
RANGES: dict[str, tuple[Callable[[Array], Array], tuple[float, float], tuple[float, float]]] = {
    "exp": (np.exp, (-110, 95), (-760, 715)),
    "expm1": (np.expm1, (-110, 95), (-760, 715)),
    "log": (np.log, (0, 3e38), (0, 1e308)),
    "log1p": (np.log1p, (-1, 3e38), (-1, 1e308)),
    "sin": (np.sin, (-1e6, 1e6), (-1e6, 1e6)),
    "cos": (np.cos, (-1e6, 1e6), (-1e6, 1e6)),
    "tanh": (np.tanh, (-20, 20), (-40, 40)),
    "sigmoid": (sigmoid, (-110, 110), (-760, 760)),
    "softplus": (softplus, (-110, 110), (-760, 760)),
}


# float32 on a device without float64, too.
FLOATS = pytest.mark.parametrize(
    ("dtype", "doubles"), [("float32", True), ("float64", True), ("float32", False)]
)


@needs_precise
@pytest.mark.parametrize("fused", FUSED)
@FLOATS
@pytest.mark.parametrize("name", RANGES)
def test_functions_are_right_to_four_units(
    name: str, dtype: str, doubles: bool, fused: bool
) -> None:
    reference, *ranges = RANGES[name]
    low, high = ranges[dtype == "float64"]
    x = arguments(dtype, low, high)
    with np.errstate(all="ignore"):
        expected = reference(wide(x))
    found = apply(functions.FUNCTIONS[name], x, fused=fused, doubles=doubles)
    error = ulps(found, expected)
    worst = int(np.argmax(error))
    assert error[worst] <= MOST_ULP, f"{name}({x[worst]!r}) is {error[worst]:.2f} units off"


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_error_function_is_right_to_four_units(dtype: str, fused: bool) -> None:
    mpmath = pytest.importorskip("mpmath", reason="mpmath gives the reference")
    x = arguments(dtype, -7, 7)[::100]
    found = apply(functions.erf, x, fused=fused)
    with mpmath.workdps(40):
        exact = [mpmath.erf(mpmath.mpf(float(value))) for value in x]
        spacing = np.spacing(np.abs(np.array([float(e) for e in exact], dtype)))
        pairs = zip(found, exact, spacing, strict=True)
        error = [float(abs(mpmath.mpf(float(f)) - e) / float(s)) for f, e, s in pairs]
    assert max(error) <= MOST_ULP


@needs_precise
@pytest.mark.parametrize("fused", FUSED)
@FLOATS
def test_powers_are_right_to_four_units(dtype: str, doubles: bool, fused: bool) -> None:
    generator = np.random.default_rng(1)
    reach = 120 if dtype == "float32" else 1000
    x = 2.0 ** generator.uniform(-reach, reach, 200_000)
    y = generator.uniform(-1.1, 1.1, x.shape) * reach / np.log2(x)
    near_one = 1 + generator.uniform(-0.5, 0.9, 200_000)
    steep = generator.uniform(-1.05, 1.05, near_one.shape) * reach / np.log2(near_one)
    x = np.concatenate([x, near_one]).astype(dtype)
    y = np.concatenate([y, steep]).astype(dtype)
    with np.errstate(all="ignore"):
        expected = np.power(wide(x), wide(y))
    error = ulps(apply(functions.power, x, y, fused=fused, doubles=doubles), expected)
    worst = int(np.argmax(error))
    assert error[worst] <= MOST_ULP, f"{x[worst]!r} ** {y[worst]!r}: {error[worst]:.2f} units off"


SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0]


def same_bits(found: Array, expected: Array) -> bool:
    """Equal, zeros of the same sign, NaN of any kind."""
    nan = np.isnan(found) & np.isnan(expected)
    return bool(np.all(nan | ((found == expected) & (np.signbit(found) == np.signbit(expected)))))


@FLOATS
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exp", [1, 1, math.inf, 0, math.nan, math.e, 1 / math.e]),
        ("expm1", [0.0, -0.0, math.inf, -1, math.nan, math.expm1(1), math.expm1(-1)]),
        ("log", [-math.inf, -math.inf, math.inf, math.nan, math.nan, 0.0, math.nan]),
        ("log1p", [0.0, -0.0, math.inf, math.nan, math.nan, math.log(2), -math.inf]),
        ("sin", [0.0, -0.0, math.nan, math.nan, math.nan, math.sin(1), -math.sin(1)]),
        ("cos", [1, 1, math.nan, math.nan, math.nan, math.cos(1), math.cos(1)]),
        ("tanh", [0.0, -0.0, 1, -1, math.nan, math.tanh(1), -math.tanh(1)]),
        ("erf", [0.0, -0.0, 1, -1, math.nan, math.erf(1), -math.erf(1)]),
        ("sigmoid", [0.5, 0.5, 1, 0, math.nan, 1 / (1 + 1 / math.e), 1 / (1 + math.e)]),
    ],
)
def test_special_values(name: str, expected: list[float], dtype: str, doubles: bool) -> None:
    found = apply(functions.FUNCTIONS[name], np.array(SPECIAL, dtype), doubles=doubles)
    wanted = np.array(expected, dtype)
    assert same_bits(found[:5], wanted[:5])
    np.testing.assert_allclose(found[5:], wanted[5:], 4 * np.finfo(dtype).eps)


@FLOATS
def test_powers_of_special_values_are_those_of_numpy(dtype: str, doubles: bool) -> None:
    values = [*SPECIAL, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 2.5, 1e30, -1e30, 1e-40]
    x, y = (grid.ravel() for grid in np.meshgrid(*[np.array(values, dtype)] * 2))
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
    found = apply(functions.power, x, y, doubles=doubles)
    exact = ~np.isfinite(expected) | (expected == 0) | (np.abs(expected) == 1)
    assert same_bits(found[exact], expected[exact])
    np.testing.assert_allclose(found, expected, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floor(dtype: str) -> None:
    generator = np.random.default_rng(2)
    whole = np.arange(-20, 20) / 4
    sizes = 10.0 ** generator.uniform(-40, 30, 10_000) * generator.choice([-1, 1], 10_000)
    x = np.concatenate([whole, sizes, SPECIAL]).astype(dtype)
    assert same_bits(apply(functions.floor, x), np.floor(x))


@pytest.mark.parametrize("name", functions.FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_number_of_lanes_does_not_change_a_bit(name: str, dtype: str) -> None:
    generator = np.random.default_rng(3)
    x = generator.normal(0, 20, 999).astype(dtype)
    emit = functions.FUNCTIONS[name]
    bits = {apply(emit, x, lanes=lanes).tobytes() for lanes in (1, 3, 16)}
    assert len(bits) == 1


@pytest.mark.parametrize("name", [*functions.FUNCTIONS, "power"])
@pytest.mark.parametrize("element", KINDS)
def test_functions_call_nothing_even_on_the_oldest_processor(name: str, element: str) -> None:
    oldest = replace(host(), name="x86-64", features="+sse2")
    if "x86_64" not in oldest.triple:
        pytest.skip("the oldest processor is known for x86 only")
    emit = functions.power if name == "power" else functions.FUNCTIONS[name]
    module = module_of(emit, 1 + (name == "power"), element, 16, fused=False)
    assert "call" not in listing(module.text(), oldest)
