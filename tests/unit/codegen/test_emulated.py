"""Emulated instructions on bfloat16 do what their definition says, bit for bit."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from emulated import emulate, with_functions

from lamina.base.shapes import Array, bfloat16
from lamina.codegen.llvm import Function, Module
from lamina.codegen.values import POINTER, Type, Value
from lamina.engines.cpu import llvm
from lamina.engines.cpu.processor import HostProcessor, host

LANES = [3, 4, 8, 16]
# The two subnormal numbers next to zero and to the smallest normal number, of each sign.
SUBNORMAL = [bits | sign for bits in (0x1, 0x7F) for sign in (0, 0x8000)]


@pytest.fixture
def processor(monkeypatch):
    emulate(monkeypatch, "avx512")
    return host()


def run(
    processor: HostProcessor, emit: Callable[..., Value], types: list[Type], operands: list[Array]
) -> bytes:
    """The bytes that a function of vectors returns."""
    module = Module(fused=True)
    names = [f"x{number}" for number in range(len(types))]
    parameters = [(name, POINTER) for name in [*names, "out"]]
    code = module.function("program", parameters, internal=False)
    *sources, out = code.parameters
    result = emit(code, *(code.load(*one) for one in zip(sources, types, strict=True)))
    code.store(result, out)
    library = llvm.load(llvm.assemble(module.text(), processor))
    found = np.zeros(result.type.lanes * result.type.bytes, np.uint8)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(types) + 1))
    call(library.addresses["program"])(*(one.ctypes.data for one in (*operands, found)))
    return found.tobytes()


def products(processor: HostProcessor, left: Array, right: Array, added: Array) -> Array:
    """What `multiply_add_pairs` returns for rows of pairs."""
    pairs, lanes = Type("i32", added.size), Type("float", added.size)
    found = run(processor, Function.multiply_add_pairs, [pairs, pairs, lanes], [left, right, added])
    return np.frombuffer(found, np.float32)


def rounded(processor: HostProcessor, first: Array, second: Array) -> Array:
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
    found = products(processor, left, right, added)
    np.testing.assert_array_equal(found, expected)
    other = ((added + exact[:, 0]).astype("float32") + exact[:, 1]).astype("float32")
    assert lanes < 16 or (found != other).any()


def test_subnormal_numbers_count_as_zero_and_become_zero(processor):
    one, tiny = np.array([1, 2.0**-126], bfloat16.numpy).view("uint16")
    # Subnormal operands of either side; a subnormal sum; sums that become subnormal.
    left = np.array([[SUBNORMAL[0], one], [one, SUBNORMAL[3]], [0, 0], [tiny, 0]], np.uint16)
    right = np.array([[0x7F00, 0x7F00], [0x7F00, 0x7F00], [one, one], [0x3F00, 0]], np.uint16)
    added = np.array([3, 3, 1e-40, 0], np.float32)
    large = float(np.array(0x7F00, np.uint16).view(bfloat16.numpy))
    expected = np.array([large, large, 0, 0], np.float32)
    np.testing.assert_array_equal(products(processor, left, right, added), expected)


@pytest.mark.parametrize("lanes", LANES)
def test_floats_are_rounded_to_the_nearest_even(lanes, processor):
    bits = np.random.default_rng(lanes).integers(0x3F000000, 0x40000000, (2, lanes), np.uint32)
    bits[:, 0] = 0x3F808000, 0x3F818000  # halfway, below an even and an odd number
    floats = bits.view("float32")
    found = rounded(processor, *floats)
    np.testing.assert_array_equal(found, floats.astype(bfloat16.numpy).view("uint16").ravel())


def test_rounding_keeps_infinity_quiets_nan_and_drops_subnormal_numbers(processor):
    bits = [0x7F800000, 0xFF800000, 0x7F800001, 0xFFABCDEF, 0x00000001, 0x807FFFFF, 0x7F7FFFFF, 0]
    first, second = np.array(bits, np.uint32).view("float32").reshape(2, 4)
    expected = [0x7F80, 0xFF80, 0x7FC0, 0xFFEB, 0, 0x8000, 0x7F80, 0]
    assert rounded(processor, first, second).tolist() == expected


def test_without_emulation_the_instructions_are_llvms():
    module = Module(fused=True)
    parameters = (("sum", Type("float", 16)), ("pair", Type("i32", 16)))
    code = module.function("program", parameters, result=Type("float", 16))
    total, pair = code.parameters
    code.finish(code.multiply_add_pairs(pair, pair, total))
    text = module.text()
    assert "llvm.x86.avx512bf16" in text
    assert "llvm.x86" not in with_functions(text)
