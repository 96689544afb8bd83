"""Mathematical functions and conversions of the cpu engine against references."""

import ctypes
import math
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.base.shapes import as_dtype, converted
from lamina.codegen import circular, division, floats, functions, powers
from lamina.codegen.llvm import Module
from lamina.codegen.primitives import EMITTERS
from lamina.codegen.values import I64, POINTER, Type, constant
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.llvm import assemble, listing, load
from lamina.engines.cpu.processor import host
from lamina.engines.interpreter.primitives import FUNCTIONS as REFERENCES
from lamina.program.definitions import integer_power
from lamina.runtime import Function

MOST_ULP = 4.0
ELEMENTS = {
    "float32": "float",
    "float64": "double",
    "uint8": "i8",
    "uint32": "i32",
    "int32": "i32",
    "int64": "i64",
}
PRECISE = np.finfo(np.longdouble).nmant >= 63
needs_precise = pytest.mark.skipif(not PRECISE, reason="long double is no wider than double here")
# As the processor is, and without fused multiply-add.
FUSED = (True, False)


def module_of(emit, operands, element, lanes, *, fused, doubles=True):
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
    return module


@cache
def compiled(emit, operands, element, lanes, fused, doubles):
    module = module_of(emit, operands, element, lanes, fused=fused, doubles=doubles)
    return load(assemble(module.text(), host()))


def apply(emit, *operands, lanes=16, fused=True, doubles=True):
    element = ELEMENTS[operands[0].dtype.name]
    library = compiled(emit, len(operands), element, lanes, fused and host().fused, doubles)
    size = operands[0].size
    padded = [np.pad(x, (0, -size % lanes)) for x in operands]
    result = np.empty_like(padded[0])
    types = [ctypes.c_int64, *[ctypes.c_void_p] * (len(padded) + 1)]
    call = ctypes.CFUNCTYPE(None, *types)(library.addresses["program"])
    call(result.size, result.ctypes.data, *(x.ctypes.data for x in padded))
    return result[:size]


def check_units(results, expected, *arguments):
    """Values are at most `MOST_ULP` units off; both are NaN or infinite, or none."""
    with np.errstate(over="ignore"):
        rounded = expected.astype(results.dtype)
    same = (results == rounded) | (np.isnan(results) & np.isnan(rounded))
    spacing = np.spacing(np.abs(np.where(np.isfinite(rounded), rounded, 1)))
    with np.errstate(all="ignore"):
        distance = np.abs(results.astype(expected.dtype) - expected) / spacing
    # A value that overflows in one may be the largest number in the other.
    error = np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance)).astype(float)
    worst = int(np.argmax(error))
    named = ", ".join(repr(argument[worst]) for argument in arguments)
    assert error[worst] <= MOST_ULP, f"of {named}: {error[worst]:.2f} units off"


def arguments(dtype, low, high):
    """Numbers from low to high: evenly, and of every size down to denormals."""
    generator = np.random.default_rng(0)
    even = generator.uniform(low, high, 200_000)
    smallest = -149 if dtype == "float32" else -1074
    largest = math.log2(max(abs(low), abs(high)))
    sizes = 2.0 ** generator.uniform(smallest, largest, 200_000)
    signed = sizes * generator.choice([-1, 1], sizes.shape)
    values = np.concatenate([even, signed]).astype(dtype)
    return values[(values >= low) & (values <= high)]


def wide(x):
    return x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)


# name -> the arguments in float32 and in float64
RANGES = {
    "exp": ((-110, 95), (-760, 715)),
    "exp2": ((-152, 130), (-1080, 1026)),
    "expm1": ((-110, 95), (-760, 715)),
    **dict.fromkeys(("log", "log2", "log10"), ((0, 3e38), (0, 1e308))),
    "log1p": ((-1, 3e38), (-1, 1e308)),
    **dict.fromkeys(("sin", "cos", "tan"), ((-1e6, 1e6), (-1e6, 1e6))),
    **dict.fromkeys(("sinh", "cosh"), ((-90, 90), (-711, 711))),
    "tanh": ((-20, 20), (-40, 40)),
    **dict.fromkeys(("sigmoid", "softplus"), ((-110, 110), (-760, 760))),
}
PAIRS = {"power": powers.power, "atan2": circular.atan2}


def function_of(name):
    return PAIRS.get(name) or functions.FUNCTIONS[name]


def operands_of(name, dtype):
    """The operands of a function: of one in its range, of a power whose results are finite."""
    if name in RANGES:
        return [arguments(dtype, *RANGES[name][dtype == "float64"])]
    generator = np.random.default_rng(1)
    reach = 120 if dtype == "float32" else 1000
    if name == "atan2":
        near = generator.uniform(-3, 3, (2, 200_000))
        sizes = 2.0 ** generator.uniform(-reach, reach, near.shape)
        return [*np.concatenate([near, sizes * generator.choice([-1, 1], near.shape)], 1)]
    x = 2.0 ** generator.uniform(-reach, reach, 200_000)
    y = generator.uniform(-1.1, 1.1, x.shape) * reach / np.log2(x)
    near_one = 1 + generator.uniform(-0.5, 0.9, 200_000)
    steep = generator.uniform(-1.05, 1.05, near_one.shape) * reach / np.log2(near_one)
    return [np.concatenate([x, near_one]), np.concatenate([y, steep])]


# float32 on a device without float64, too.
FLOATS = pytest.mark.parametrize(
    ("dtype", "doubles"), [("float32", True), ("float64", True), ("float32", False)]
)


@needs_precise
@pytest.mark.parametrize("fused", FUSED)
@FLOATS
@pytest.mark.parametrize("name", [*RANGES, *PAIRS])
def test_functions_are_right_to_four_units(name, dtype, doubles, fused):
    operands = [one.astype(dtype) for one in operands_of(name, dtype)]
    with np.errstate(all="ignore"):
        expected = REFERENCES[name](*map(wide, operands))
    found = apply(function_of(name), *operands, fused=fused, doubles=doubles)
    check_units(found, expected, *operands)


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_error_functions_are_right_to_four_units(name, dtype, fused):
    mpmath = pytest.importorskip("mpmath", reason="mpmath gives the reference")
    reach = 7 if name == "erf" else 10.2 if dtype == "float32" else 27.5
    x = arguments(dtype, -reach, reach)[::100]
    results = apply(functions.FUNCTIONS[name], x, fused=fused)
    with mpmath.workdps(40):
        exact = [getattr(mpmath, name)(mpmath.mpf(float(value))) for value in x]
        spacing = np.spacing(np.abs(np.array([float(e) for e in exact], dtype)))
        pairs = zip(results, exact, spacing, strict=True)
        error = [float(abs(mpmath.mpf(float(f)) - e) / float(s)) for f, e, s in pairs]
    assert max(error) <= MOST_ULP


SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0]


def same_bits(found, expected):
    """Equal, zeros of the same sign, NaN of any kind."""
    nan = np.isnan(found) & np.isnan(expected)
    return bool(np.all(nan | ((found == expected) & (np.signbit(found) == np.signbit(expected)))))


@FLOATS
@pytest.mark.parametrize("name", [*functions.FUNCTIONS, *PAIRS])
def test_special_values_are_those_of_numpy(name, dtype, doubles):
    limits = np.finfo(dtype)
    operands = [np.array(SPECIAL, dtype)]
    if name in PAIRS:
        values = [*SPECIAL, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 2.5, 1e30, -1e30, 1e-40]
        values += [limits.max, limits.min, limits.tiny, limits.smallest_subnormal]
        operands = [grid.ravel() for grid in np.meshgrid(*[np.array(values, dtype)] * 2)]
    with np.errstate(all="ignore"):
        expected = REFERENCES[name](*operands)
    results = apply(function_of(name), *operands, doubles=doubles)
    exact = ~np.isfinite(expected) | (expected == 0)
    if name == "power":
        exact |= np.abs(expected) == 1
    elif name == "atan2":
        assert np.array_equal(np.signbit(results), np.signbit(expected))
    else:
        exact |= ~np.isfinite(operands[0]) | (operands[0] == 0)
    assert same_bits(results[exact], expected[exact])
    error = 1e-6 if name == "power" else 4 * limits.eps
    np.testing.assert_allclose(results, expected, error, limits.smallest_subnormal)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logarithms_of_powers_are_whole(dtype):
    exponents = np.arange(*((-149, 128) if dtype == "float32" else (-1074, 1024)))
    twos = np.ldexp(1.0, exponents).astype(dtype)
    assert np.array_equal(apply(functions.log2, twos), exponents)
    assert np.array_equal(apply(functions.exp2, exponents.astype(dtype)), twos)
    exponents = np.arange(11 if dtype == "float32" else 23)
    tens = np.array([float(10**exponent) for exponent in exponents.tolist()], dtype)
    assert np.array_equal(apply(functions.log10, tens), exponents)


@pytest.mark.parametrize(
    ("emit", "reference"), [(floats.floor, np.floor), (floats.round_half_even, np.rint)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_whole_numbers(emit, reference, dtype):
    generator = np.random.default_rng(2)
    quarters = np.arange(-20, 20) / 4
    sizes = 10.0 ** generator.uniform(-40, 30, 10_000) * generator.choice([-1, 1], 10_000)
    limits = 2.0 ** (np.finfo(dtype).nmant + np.arange(-2, 3)) + np.arange(-2, 2.5, 0.5)[:, None]
    below_half = np.nextafter(np.array([0.5, -0.5], dtype), np.array(0, dtype))
    x = np.concatenate([quarters, sizes, SPECIAL, limits.ravel(), below_half]).astype(dtype)
    assert same_bits(apply(emit, x), reference(x))


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_are_exact(dtype, lanes):
    generator = np.random.default_rng(4)
    limits = np.finfo(dtype)
    reach = 140 if dtype == "float32" else 1060
    sizes = 2.0 ** generator.uniform(-reach, reach * 0.9, (2, 20_000))
    near = generator.uniform(-30, 30, (2, 20_000))
    x, y = np.concatenate([near, sizes * generator.choice([-1, 1], sizes.shape)], 1).astype(dtype)
    values = [*SPECIAL, 3, -3, 0.75, limits.max, limits.min, limits.tiny, -limits.tiny]
    values += [limits.smallest_subnormal, limits.smallest_subnormal * 7, limits.eps]
    grid = [coordinates.ravel() for coordinates in np.meshgrid(*[np.array(values, dtype)] * 2)]
    x, y = np.concatenate([x, grid[0]]), np.concatenate([y, grid[1]])
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    assert same_bits(apply(division.remainder, x, y, lanes=lanes), expected)


INTEGERS = pytest.mark.parametrize("name", ["uint8", "uint32", "int32", "int64"])


def integers(name):
    """Pairs of integers: small ones, any, and the limits."""
    generator = np.random.default_rng(5)
    limits = np.iinfo(name)
    ends = [limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1, 2, 3]
    ends += [-1, -2] if limits.min else []
    grid = [coordinates.ravel() for coordinates in np.meshgrid(*[np.array(ends, name)] * 2)]
    small = generator.integers(max(limits.min, -9), 70, (2, 500)).astype(name)
    every = generator.integers(limits.min, limits.max, (2, 500), name, endpoint=True)
    left, right = np.concatenate([grid, small, every, np.stack([every[0], small[0]])], 1)
    return left, right


def quotient(x, y, bits):
    return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def power(x, y, bits):
    return pow(x, y, 2**bits) if y >= 0 else {1: 1, -1: 1 - y % 2 * 2}.get(x, 0)


@INTEGERS
@pytest.mark.parametrize(
    ("emit", "exact"), [(division.quotient, quotient), (powers.integer_power, power)]
)
def test_quotients_are_truncated_and_powers_wrap_around(emit, exact, name):
    left, right = integers(name)
    bits = 8 * left.itemsize
    pairs = zip(left.tolist(), right.tolist(), strict=True)
    # The smallest number divided by -1 wraps around, too.
    numbers = [exact(x, y, bits) % 2**bits for x, y in pairs]
    expected = np.array(numbers, f"uint{bits}").view(name)
    assert np.array_equal(apply(partial(emit, signed=name[0] == "i"), left, right), expected)
    assert exact is quotient or np.array_equal(integer_power(left, right), expected)


@INTEGERS
@pytest.mark.parametrize("primitive", ["shift_left", "shift_right"])
def test_shifts_by_any_number_are_those_of_numpy(primitive, name):
    left, right = integers(name)

    def emit(code, value, count):
        return EMITTERS[primitive](code, as_dtype(name), value, count)

    assert np.array_equal(apply(emit, left, right), REFERENCES[primitive](left, right))


@pytest.mark.parametrize("name", functions.FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_number_of_lanes_does_not_change_a_bit(name, dtype):
    generator = np.random.default_rng(3)
    x = generator.normal(0, 20, 999).astype(dtype)
    emit = functions.FUNCTIONS[name]
    bits = {apply(emit, x, lanes=lanes).tobytes() for lanes in (1, 3, 16)}
    assert len(bits) == 1


@pytest.mark.parametrize("name", [*functions.FUNCTIONS, *PAIRS])
@pytest.mark.cases("element", "float", "double")
def test_functions_call_nothing_even_on_the_oldest_processor(name, element):
    oldest = replace(host(), name="x86-64", features="+sse2")
    if "x86_64" not in oldest.triple:
        pytest.skip("the oldest processor is known for x86 only")
    module = module_of(function_of(name), 1 + (name in PAIRS), element, 16, fused=False)
    assert "call" not in listing(module.text(), oldest)


def cast(array, dtype, *, instructions=True):
    engine = CpuEngine()
    engine.processor = replace(host(), halves=instructions and host().halves)
    x = lm.Input(dtype=array.dtype.name)
    return Function(x, ops.cast(x, dtype), engine)(array)[0]


def test_every_float16_is_read_exactly_without_instructions():
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    expected = numbers.astype("float32")
    np.testing.assert_array_equal(cast(numbers, "float32", instructions=False), expected)


def test_floats_are_rounded_to_float16_without_instructions():
    numbers = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype("float32")
    middle = (numbers[:-1] + numbers[1:]) / 2
    ends = np.array([65519.996, 65520.0, 65535.0, 1e9, np.inf, np.nan, 1e-30], "float32")
    near = np.concatenate([numbers, middle, ends])
    near = np.concatenate([np.nextafter(near, -np.inf), near, np.nextafter(near, np.inf)])
    near = np.concatenate([near, -near])
    with np.errstate(all="ignore"):
        expected = near.astype("float16")
    np.testing.assert_array_equal(cast(near, "float16", instructions=False), expected)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("instructions", [True, False])
def test_every_kind_of_nan_stays_a_nan(half, instructions):
    """Rounding the bits of these would make them infinite, or change their sign."""
    bits = np.array([0x7F800001, 0x7F80FFFF, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32)
    found = cast(bits.view(np.float32), half, instructions=instructions)
    assert found.dtype == as_dtype(half).numpy
    assert np.isnan(converted(found, np.dtype("float32"))).all()
