"""Operations on float32 that operations on float16 replace: which ones, and that no bit changes."""

import ctypes

import numpy as np
import pytest
from c99 import C99_WITH_HALF, library_of

from lamina.base.shapes import Array, DType, bfloat16, float16, float32
from lamina.codegen import c, llvm
from lamina.codegen.halves import half_operation
from lamina.codegen.values import I16, I64, constant
from lamina.codegen.words import OPENCL
from lamina.errors import InternalError
from lamina.program.scalar import Apply, Literal, Local, Scalar

OPERATIONS = {"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply}


def cast(scalar: Scalar, dtype: DType) -> Apply:
    return Apply("cast", (scalar,), dtype)


def half(name: str, dtype: DType = float16) -> Apply:
    """A float16 that was cast to float32."""
    return cast(Local(name, dtype), float32)


def rounded(*operands: Scalar, dtype: DType = float16, primitive: str = "add") -> Apply:
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
        found = half_operation(rounded(half("x"), wide, primitive=primitive))
        assert found == (operation, (Local("x", float16), narrow))


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


def pairs() -> tuple[Array, Array]:
    """Every float16, each with 61 others: all special ones, and drawn ones near and far."""
    every = np.arange(1 << 16, dtype=np.uint16)
    special = np.array([0, 0x8000, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x7E00], np.uint16)
    drawn = np.random.default_rng(0).integers(0, 1 << 16, 40, np.uint16)
    # Neighbours of powers of two below: the last bit of the sum is halfway between two numbers.
    others = [np.full_like(every, one) for one in (*special, *drawn)]
    others += [every - np.uint16(one << 10) for one in (1, 10, 11, 12)]
    others += [every ^ np.uint16(0x8000), *(every ^ np.uint16(0x8000 | one) for one in (1, 3, 7))]
    x = np.tile(every, len(others))
    return x.view(np.float16), np.concatenate(others).view(np.float16)


@pytest.mark.sampled
def test_operations_in_c99_have_the_bits_of_numpy(tmp_path):
    module = c.Module(C99_WITH_HALF, fused=True)
    for operation in OPERATIONS:
        code = module.kernel(operation, [("x", "i16"), ("y", "i16"), ("z", "i16")], [("n", I64)])
        *given, result, count = code.parameters
        loop = code.begin_loop(constant(0, I64), count)
        x, y = (code.load(code.offset(one, loop.index, "i16"), I16) for one in given)
        code.store(code.half_binary(operation, x, y), code.offset(result, loop.index, "i16"))
        code.end_loop(loop)
    library = library_of(module.text(), tmp_path)
    x, y = pairs()
    found = np.empty_like(x)
    for operation, compute in OPERATIONS.items():
        addresses = [ctypes.c_void_p(one.ctypes.data) for one in (x, y, found)]
        library[operation](*addresses, ctypes.c_uint64(x.size))
        with np.errstate(all="ignore"):
            expected = compute(x, y)
        nan = np.isnan(expected)
        np.testing.assert_array_equal(nan, np.isnan(found))
        np.testing.assert_array_equal(found.view("u2")[~nan], expected.view("u2")[~nan])


def test_languages_without_float16_refuse_its_operations():
    in_opencl = c.Module(OPENCL, fused=True).kernel("sum", [("x", "i16")], [])
    in_llvm = llvm.Module(fused=True).function("sum", [("x", I16)])
    x = constant(0, I16)
    for code in (in_opencl, in_llvm):
        assert not code.module.half_arithmetic
        with pytest.raises(InternalError, match="this language does not compute with float16"):
            code.half_binary("fadd", x, x)
