"""The kernels of the self-test, their inputs, and their results on a sound device.

`arithmetic` is written by the same code as all kernels, so it has all workarounds. `plain` shows
the faults that they avoid. The other kernels are plain OpenCL C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.codegen.c import Function, Module
from lamina.codegen.values import FLOAT, I32, I64, Type, Value, constant
from lamina.codegen.words import OPENCL, OPENCL_PROCESSOR
from lamina.engines.gpu.launches import Traits
from lamina.engines.opencl.verdicts import MOST_ITERATIONS, SHORT_LOOPS, Fault

# The work items of a kernel; GROUP of them share local memory.
COUNT, GROUP = 64, 16
# The iterations of a sum: whole vectors, and a rest of which a compiler made a wrong sum.
_TERMS = 18
# The iterations of a loop of one work item.
_LONG = 70_000


@frozen_dataclass
class Check:
    """Results of a kernel that show a fault.

    Attributes:
        fault: the driver has it if the results differ.
        expected: unsigned integers.
        tolerance: the most by which they may differ.
    """

    fault: Fault
    expected: Array
    tolerance: int = 0


@frozen_dataclass
class Kernel:
    """A kernel of the self-test: its arguments are the inputs and the results.

    Attributes:
        name: of its function.
        inputs: arrays.
        checks: their results follow each other; all have one dtype.
        group: the number of work items in a work group; 0 if it may have any size.
    """

    name: str
    inputs: tuple[Array, ...]
    checks: tuple[Check, ...]
    group: int = 0

    @property
    def length(self) -> int:
        """The number of its results."""
        return sum(check.expected.size for check in self.checks)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its results."""
        return self.checks[0].expected.dtype


# Inputs -------------------------------------------------------------------------------------------

_NUMBERS = np.arange(COUNT, dtype="uint64")
_INTS = np.resize(np.array([0, 1, -1, 2, -2, 2**31 - 1, -(2**31), 5, -70_000], "int32"), COUNT)
_WIDE = _NUMBERS * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
_DIVISORS = (_WIDE >> (_NUMBERS % 50 + 1)) | 1
# Square roots have all digits. The last addends cancel the rounded products.
_LEFT = np.sqrt(np.arange(2, COUNT + 2, dtype="float32"))
_RIGHT = np.sqrt(_LEFT + 1)
_ADDED = -(_LEFT * _RIGHT)
_SPECIAL = np.resize(
    np.array([np.nan, -1.0, 0.0, 3.75, 2.0**32, np.inf, -np.inf, 4e9], "float32"), COUNT
)
_SATURATED = np.resize(np.array([0, 0, 0, 3, 2**32 - 1, 2**32 - 1, 0, 4 * 10**9], "uint64"), COUNT)


def _bits(floats: Array) -> Array:
    return floats.astype("float32").view("uint32").astype("uint64")


def _sums() -> Array:
    """The bits of 0 - _LEFT[n] - _LEFT[n + 1] - ..., for _TERMS terms, in this order."""
    total = np.zeros(COUNT, "float32")
    for term in range(_TERMS):
        total = total - np.resize(_LEFT, COUNT + _TERMS)[term : term + COUNT]
    return _bits(total)


# Arithmetic ---------------------------------------------------------------------------------------


@frozen_dataclass
class _Operands:
    """The operands of a work item: integers, wide integers, floats, and addresses of sums."""

    number: Value
    wide: Value
    divisor: Value
    left: Value
    right: Value
    added: Value
    special: Value
    item: Value
    terms: Value


_Write = Callable[[Function, _Operands], Value]


def _arithmetic(traits: Traits) -> tuple[tuple[str, _Write, Array, int], ...]:
    """What is checked, how it is written, its results, and their tolerance."""
    residual = (_LEFT.astype("float64") * _RIGHT + _ADDED).astype("float32")
    exact = traits.exact_division or traits.has_float64
    # OpenCL allows 2.5 units in the last place for divisions and 3 for square roots.
    tolerance = 0 if exact else 3
    signed = (_WIDE.view("int64") >> (_NUMBERS % 63).view("int64")).view("uint64")
    return (
        ("comparisons of 64-bit integers", _compared, (_INTS >= 1).astype("uint64"), 0),
        (
            "conversions of floats to integers",
            lambda code, x: code.convert("fptoui.sat", x.special, "i32"),
            _SATURATED,
            0,
        ),
        ("sums of floats in loops", _summed, _sums(), 0),
        (
            "fused multiply-adds",
            lambda code, x: code.multiply_add(x.left, x.right, x.added),
            _bits(residual if traits.fused else np.zeros(COUNT)),
            0,
        ),
        (
            "products and sums that are rounded separately",
            lambda code, x: code.add(code.multiply(x.left, x.right), x.added),
            _bits(np.zeros(COUNT)),
            0,
        ),
        (
            "divisions",
            lambda code, x: code.divide(x.left, x.right),
            _bits(_LEFT / _RIGHT),
            tolerance,
        ),
        (
            "square roots",
            lambda code, x: code.intrinsic("sqrt", x.right),
            _bits(np.sqrt(_RIGHT)),
            tolerance,
        ),
        (
            "products of 64-bit integers",
            lambda code, x: code.multiply(x.wide, x.divisor),
            _WIDE * _DIVISORS,
            0,
        ),
        (
            "divisions of 64-bit integers",
            lambda code, x: code.binary("udiv", x.wide, x.divisor),
            _WIDE // _DIVISORS,
            0,
        ),
        (
            "remainders of 64-bit integers",
            lambda code, x: code.binary("urem", x.wide, x.divisor),
            _WIDE % _DIVISORS,
            0,
        ),
        (
            "shifts of 64-bit integers",
            lambda code, x: code.binary(
                "ashr", x.wide, code.binary("urem", x.item, constant(63, I64))
            ),
            signed,
            0,
        ),
    )


def _compared(code: Function, x: _Operands) -> Value:
    wide = code.convert("sext", x.number, "i64")
    return code.convert("zext", code.compare("sge", wide, constant(1, I64)), "i64")


def _summed(code: Function, x: _Operands) -> Value:
    loop = code.begin_loop(0, _TERMS, carried=[constant(0.0, FLOAT)])
    address = code.offset(x.terms, code.add(x.item, loop.index), "float")
    total = code.subtract(loop.carried[0], code.load(address, FLOAT))
    return code.end_loop(loop, [total])[0]


def _write_arithmetic(module: Module, checks: Sequence[_Write]) -> None:
    floats = ("left", "right", "added", "special")
    buffers = [("ints", "i32"), ("wide", "i64"), ("divisors", "i64")]
    buffers += [*((name, "float") for name in floats), ("results", "i64")]
    code = module.kernel("arithmetic", buffers, [])
    ints, wide, divisors, left, right, added, special, results = code.parameters
    item = code.item()
    with code.when(code.compare("ult", item, constant(COUNT, I64))):

        def read(row: Value, type: Type) -> Value:
            return code.load(code.offset(row, item, type.element), type)

        operands = _Operands(
            number=read(ints, I32),
            wide=read(wide, I64),
            divisor=read(divisors, I64),
            left=read(left, FLOAT),
            right=read(right, FLOAT),
            added=read(added, FLOAT),
            special=read(special, FLOAT),
            item=item,
            terms=left,
        )
        for number, write in enumerate(checks):
            value = write(code, operands)
            if value.type.is_float:
                value = code.convert("bitcast", value, "i32")
            if value.type == I32:
                value = code.convert("zext", value, "i64")
            position = code.add(item, constant(number * COUNT, I64))
            code.store(value, code.offset(results, position, "i64"))
    code.finish()


# Plain kernels ------------------------------------------------------------------------------------

_TEXT = """
__kernel void plain(__global const int *ints, __global const float *special,
                    __global ulong *results) {
    const size_t i = get_global_id(0);
    results[i] = (long)ints[i] >= 1L;
    results[COUNT + i] = convert_uint4_sat((float4)(special[i])).x;
}

// With `j & 3` in a variable, Intel's compiler makes right sums.
static float term(uint j, ulong key) {
    const ulong product = ((ulong)j * 3528531795ul & 4294967295ul) * 3449720151ul ^ key;
    const ulong word = (j & 3) == 3   ? product + 9
                       : (j & 3) == 2 ? product ^ key
                       : (j & 3) == 1 ? product >> 32
                                      : product;
    return (float)((uint)word >> 8) * 0x1p-24f;
}

// One work item, so that compilers may vectorize the loops.
__kernel void loops(__global const ulong *keys, __global const uint *lengths,
                    __global uint *results) {
    if (get_global_id(0) < 1) {
        const ulong key = keys[0];
        float plain = 0.0f;
        for (uint j = 0; j < TERMS; ++j)
            plain = plain - term(j, key);
        results[0] = as_uint(plain);
        float ordered = 0.0f;
        IN_ORDER
        for (uint j = 0; j < TERMS; ++j)
            ordered = ordered - term(j, key);
        results[1] = as_uint(ordered);
        uint nested = 0;
        for (uint j = 0; j < lengths[0]; ++j)
            for (uint k = 0; k < lengths[1]; ++k)
                nested ^= (j * lengths[1] + k) * 2654435761u;
        results[2] = nested;
        uint long_loop = 0;
        for (uint j = 0; j < lengths[2]; ++j)
            long_loop ^= j * 2654435761u;
        results[3] = long_loop;
    }
}

// Vectors at addresses of their elements, and an array of a work item.
__kernel void memory(__global const uint *x, __global uint *results) {
    const uint i = (uint)get_global_id(0);
    uint own[16];
    for (uint j = 0; j < 16; ++j)
        own[j] = x[j] * (i + 1);
    results[i] = own[x[i] & 15];
    __global uint *y = results + COUNT;
    if (i == 0)
        y[0] = 7;
    vstore16(vload16(0, x + 1 + 16 * i), 0, y + 1 + 16 * i);
}

// Local memory, with a barrier before each read of another work item's words.
__kernel void groups(__global const uint *x, __global uint *results) {
    __local uint shared[GROUP];
    const size_t i = get_global_id(0);
    const uint own = (uint)get_local_id(0);
    shared[own] = x[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    results[i] = shared[GROUP - 1 - own];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint step = GROUP / 2; step > 0; step /= 2) {
        if (own < step)
            shared[own] += shared[own + step];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    results[COUNT + i] = shared[0];
}

__kernel void update(__global const uint *x, __global uint *results, int number) {
    const size_t i = get_global_id(0);
    results[i] = x[i] * 3 + (uint)number;
}
"""


def text_for(traits: Traits) -> str:
    """The text of all kernels, in the words of the kernels of programs."""
    module = Module(
        OPENCL_PROCESSOR if traits.is_processor else OPENCL,
        fused=traits.fused,
        doubles=traits.has_float64,
        exact_division=traits.exact_division,
    )
    _write_arithmetic(module, [write for _, write, _, _ in _arithmetic(traits)])
    text = _TEXT
    in_order = "\n".join(OPENCL.in_order)
    words = {"COUNT": COUNT, "GROUP": GROUP, "TERMS": _TERMS, "IN_ORDER": in_order}
    for name, value in words.items():
        text = text.replace(name, str(value))
    return module.text() + text


def kernels_for(traits: Traits) -> tuple[Kernel, ...]:
    """The kernels for a device, with their results."""
    rows = (_INTS, _WIDE, _DIVISORS, np.resize(_LEFT, COUNT + _TERMS), _RIGHT, _ADDED, _SPECIAL)
    checks = tuple(
        Check(Fault(f"{what} are wrong"), expected, tolerance)
        for what, _, expected, tolerance in _arithmetic(traits)
    )
    kernels = (Kernel("arithmetic", rows, checks), _plain(), _loops(), _memory())
    return (*kernels, _groups()) if traits.largest_group >= GROUP else kernels


def _plain() -> Kernel:
    compared = Fault(
        "longs that are converted from ints are compared wrongly with constants",
        "these conversions are written as other operations",
    )
    saturated = Fault("saturating conversions of NaN are not zero", "NaN is replaced after them")
    checks = (Check(compared, (_INTS >= 1).astype("uint64")), Check(saturated, _SATURATED))
    return Kernel("plain", (_INTS, _SPECIAL), checks)


def _loops() -> Kernel:
    """Loops of one work item, which compilers may vectorize."""
    key, total = 3, np.float32(0)
    for number in range(_TERMS):
        product = (number * 3528531795 & 2**32 - 1) * 3449720151 ^ key
        word = (product, product >> 32, product ^ key, product + 9)[number & 3] & 2**32 - 1
        total -= np.float32(word >> 8) * np.float32(2**-24)
    expected = np.array([total]).view("uint32")
    plain = Fault(
        "sums in loops of one work item are wrong",
        "a pragma forbids vectorizing and unrolling such loops",
    )
    ordered = Fault("sums are wrong in loops that must not be vectorized")
    # A loop ends by one more iteration, and the iterations around a loop count too.
    outer, inner = MOST_ITERATIONS // 259, 256
    nested = Fault("the loops of a work item end too early")
    return Kernel(
        "loops",
        (np.array([key], "uint64"), np.array([outer, inner, _LONG], "uint32")),
        (
            Check(plain, expected),
            Check(ordered, expected),
            Check(nested, _mixed(outer * inner)),
            Check(SHORT_LOOPS, _mixed(_LONG)),
        ),
    )


def _mixed(count: int) -> Array:
    products = np.arange(count, dtype="uint32") * np.uint32(2654435761)
    return np.bitwise_xor.reduce(products, keepdims=True)


def _memory() -> Kernel:
    x = (np.arange(16 * COUNT + 1) * 2654435761 % 2**32).astype("uint32")
    items = np.arange(COUNT, dtype="uint32")
    moved = np.concatenate([np.array([7], "uint32"), x[1:]])
    return Kernel(
        "memory",
        (x,),
        (
            Check(Fault("private arrays are wrong"), x[x[:COUNT] & 15] * (items + 1)),
            Check(Fault("vectors of 16 are wrong at addresses of their elements"), moved),
        ),
    )


def _groups() -> Kernel:
    x = (np.arange(COUNT) * 2654435761 % 2**32).astype("uint32")
    groups = x.reshape(-1, GROUP)
    sums = np.repeat(groups.sum(1, dtype="uint32"), GROUP)
    return Kernel(
        "groups",
        (x,),
        (
            Check(Fault("local memory is wrong after a barrier"), groups[:, ::-1].reshape(-1)),
            Check(Fault("barriers in a loop are wrong"), sums),
        ),
        group=GROUP,
    )
