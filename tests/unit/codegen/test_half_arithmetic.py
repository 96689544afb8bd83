"""Floats of 16 bits: operations on float16 instead of float32, and emulated ones on bfloat16."""

import ctypes

import numpy as np
import pytest
from c99 import C99_WITH_HALF, library_of
from emulated import emulate, with_functions

from lamina.base.shapes import bfloat16, float16, float32
from lamina.codegen import c
from lamina.codegen.halves import half_operation
from lamina.codegen.llvm import Function, Module
from lamina.codegen.values import I16, I64, POINTER, Type, constant
from lamina.codegen.words import OPENCL
from lamina.engines.cpu import llvm
from lamina.engines.cpu.processor import host
from lamina.errors import InternalError
from lamina.program.scalar import Apply, Literal, Local

OPERATIONS = {"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply}


def cast(scalar, dtype):
    return Apply("cast", (scalar,), dtype)


def half(name, dtype=float16):
    """A float16 that was cast to float32."""
    return cast(Local(name, dtype), float32)


def rounded(*operands, dtype=float16, primitive="add"):
    return cast(Apply(primitive, operands, float32), dtype)


@pytest.mark.parametrize(
    ("primitive", "operation"), [("add", "fadd"), ("subtract", "fsub"), ("multiply", "fmul")]
)
def test_a_rounded_sum_or_product_of_float16_is_one_in_float16(primitive, operation):
    for wide, narrow in (
        (half("y"), Local("y", float16)),
        # A literal that float16 has.
        (Literal(0.375, float32), Literal(0.375, float16)),
    ):
        matched = half_operation(rounded(half("x"), wide, primitive=primitive))
        assert matched == (operation, (Local("x", float16), narrow))


OTHERS = {
    "not rounded": Apply("add", (half("x"), half("y")), float32),
    "no operation": cast(half("x"), float16),
    "quotient": rounded(half("x"), half("y"), primitive="divide"),
    "multiply-add": cast(
        Apply("multiply_add", (half("x"), half("y"), half("z")), float32), float16
    ),
    "operand of float32": rounded(half("x"), Local("y", float32)),
    "literal with more digits": rounded(half("x"), Literal(0.1, float32)),
    "literal out of range": rounded(half("x"), Literal(65_536.0, float32)),
    "bfloat16": rounded(half("x", bfloat16), half("y", bfloat16), dtype=bfloat16),
    "operands of bfloat16": rounded(half("x", bfloat16), half("y", bfloat16)),
    "result of bfloat16": rounded(half("x"), half("y"), dtype=bfloat16),
}


@pytest.mark.parametrize("name", OTHERS)
def test_anything_else_stays_in_float32(name):
    assert half_operation(OTHERS[name]) is None


def pairs():
    """Every float16, each with 61 others: all special ones, and drawn ones near and far."""
    every = np.arange(1 << 16, dtype=np.uint16)
    special = np.array([0, 0x8000, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x7E00], np.uint16)
    drawn = np.random.default_rng(0).integers(0, 1 << 16, 40, np.uint16)
    # Neighbours of powers of two below: the last bit of the sum is halfway between two numbers.
    others = [np.full_like(every, bits) for bits in (*special, *drawn)]
    others += [every - np.uint16(exponent << 10) for exponent in (1, 10, 11, 12)]
    others += [every ^ np.uint16(0x8000), *(every ^ np.uint16(0x8000 | bits) for bits in (1, 3, 7))]
    x = np.tile(every, len(others))
    return x.view(np.float16), np.concatenate(others).view(np.float16)


@pytest.mark.sampled
def test_operations_in_c99_have_the_bits_of_numpy(tmp_path):
    module = c.Module(C99_WITH_HALF, fused=True)
    for operation in OPERATIONS:
        code = module.kernel(operation, [("x", "i16"), ("y", "i16"), ("z", "i16")], [("n", I64)])
        *sources, result, count = code.parameters
        loop = code.begin_loop(constant(0, I64), count)
        x, y = (code.load(code.offset(source, loop.index, "i16"), I16) for source in sources)
        code.store(code.half_binary(operation, x, y), code.offset(result, loop.index, "i16"))
        code.end_loop(loop)
    library = library_of(module.text(), tmp_path)
    x, y = pairs()
    outputs = np.empty_like(x)
    for operation, compute in OPERATIONS.items():
        addresses = [ctypes.c_void_p(array.ctypes.data) for array in (x, y, outputs)]
        library[operation](*addresses, ctypes.c_uint64(x.size))
        with np.errstate(all="ignore"):
            expected = compute(x, y)
        nan = np.isnan(expected)
        np.testing.assert_array_equal(nan, np.isnan(outputs))
        np.testing.assert_array_equal(outputs.view("u2")[~nan], expected.view("u2")[~nan])


def test_languages_without_float16_refuse_its_operations():
    in_opencl = c.Module(OPENCL, fused=True).kernel("sum", [("x", "i16")], [])
    in_llvm = Module(fused=True).function("sum", [("x", I16)])
    x = constant(0, I16)
    for code in (in_opencl, in_llvm):
        assert not code.module.half_arithmetic
        with pytest.raises(InternalError, match="this language does not compute with float16"):
            code.half_binary("fadd", x, x)


LANES = [3, 4, 8, 16]
# The two subnormal numbers next to zero and to the smallest normal number, of each sign.
SUBNORMAL = [bits | sign for bits in (0x1, 0x7F) for sign in (0, 0x8000)]


@pytest.fixture
def processor(monkeypatch):
    emulate(monkeypatch, "avx512")
    return host()


def run(processor, emit, types, operands):
    """The bytes that a function of vectors returns."""
    module = Module(fused=True)
    names = [f"x{number}" for number in range(len(types))]
    parameters = [(name, POINTER) for name in [*names, "out"]]
    code = module.function("program", parameters, internal=False)
    *sources, out = code.parameters
    result = emit(code, *(code.load(*pair) for pair in zip(sources, types, strict=True)))
    code.store(result, out)
    # The emulation replaces `assemble`.
    library = llvm.load(llvm.assemble(module.text(), processor))
    output = np.zeros(result.type.lanes * result.type.bytes, np.uint8)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(types) + 1))
    call(library.addresses["program"])(*(array.ctypes.data for array in (*operands, output)))
    return output.tobytes()


def products(processor, left, right, added):
    """What `multiply_add_pairs` returns for rows of pairs."""
    pairs, lanes = Type("i32", added.size), Type("float", added.size)
    found = run(processor, Function.multiply_add_pairs, [pairs, pairs, lanes], [left, right, added])
    return np.frombuffer(found, np.float32)


def rounded_by(processor, first, second):
    """The bits that `rounded_to_bfloat16` returns."""
    types = [Type("float", first.size)] * 2
    found = run(processor, Function.rounded_to_bfloat16, types, [first, second])
    return np.frombuffer(found, np.uint16)


@pytest.mark.parametrize("lanes", LANES)
def test_second_products_are_added_first_each_rounded_once(lanes, processor):
    generator = np.random.default_rng(lanes)
    left, right = generator.standard_normal((2, lanes, 2), "float32").astype(bfloat16.numpy)
    added = generator.standard_normal(lanes, "float32")
    # Sums of such numbers are exact in float64.
    exact = left.astype("float64") * right.astype("float64")
    once = (added + exact[:, 1]).astype("float32")
    expected = (once + exact[:, 0]).astype("float32")
    result = products(processor, left, right, added)
    np.testing.assert_array_equal(result, expected)
    other = ((added + exact[:, 0]).astype("float32") + exact[:, 1]).astype("float32")
    assert lanes < 16 or (result != other).any()


def test_subnormal_numbers_count_as_zero_and_become_zero(processor):
    unit, tiny = np.array([1, 2.0**-126], bfloat16.numpy).view("uint16")
    # Subnormal operands of either side; a subnormal sum; sums that become subnormal.
    left = np.array([[SUBNORMAL[0], unit], [unit, SUBNORMAL[3]], [0, 0], [tiny, 0]], np.uint16)
    right = np.array([[0x7F00, 0x7F00], [0x7F00, 0x7F00], [unit, unit], [0x3F00, 0]], np.uint16)
    added = np.array([3, 3, 1e-40, 0], np.float32)
    large = float(np.array(0x7F00, np.uint16).view(bfloat16.numpy))
    expected = np.array([large, large, 0, 0], np.float32)
    np.testing.assert_array_equal(products(processor, left, right, added), expected)


@pytest.mark.parametrize("lanes", LANES)
def test_floats_are_rounded_to_the_nearest_even(lanes, processor):
    bits = np.random.default_rng(lanes).integers(0x3F000000, 0x40000000, (2, lanes), np.uint32)
    bits[:, 0] = 0x3F808000, 0x3F818000  # halfway, below an even and an odd number
    floats = bits.view("float32")
    found = rounded_by(processor, *floats)
    np.testing.assert_array_equal(found, floats.astype(bfloat16.numpy).view("uint16").ravel())


def test_rounding_keeps_infinity_quiets_nan_and_drops_subnormal_numbers(processor):
    bits = [0x7F800000, 0xFF800000, 0x7F800001, 0xFFABCDEF, 0x00000001, 0x807FFFFF, 0x7F7FFFFF, 0]
    first, second = np.array(bits, np.uint32).view("float32").reshape(2, 4)
    expected = [0x7F80, 0xFF80, 0x7FC0, 0xFFEB, 0, 0x8000, 0x7F80, 0]
    assert rounded_by(processor, first, second).tolist() == expected


def test_without_emulation_the_instructions_are_llvms():
    module = Module(fused=True)
    parameters = (("sum", Type("float", 16)), ("pair", Type("i32", 16)))
    code = module.function("program", parameters, result=Type("float", 16))
    total, pair = code.parameters
    code.finish(code.multiply_add_pairs(pair, pair, total))
    text = module.text()
    assert "llvm.x86.avx512bf16" in text
    assert "llvm.x86" not in with_functions(text)
