"""The kernels of the self-test, their inputs, and their results on a sound device.

`arithmetic` and `halves` are written by the same code as all kernels, so they have all workarounds;
`plain` shows the faults that they avoid. The other kernels are plain OpenCL C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.codegen.c import Function, Module
from lamina.codegen.values import FLOAT, I64, Type, Value, constant
from lamina.codegen.words import NATIVE_HALF, OFFSET_BYTES, OPENCL, OPENCL_PROCESSOR, Words
from lamina.engines.gpu.launches import Traits
from lamina.engines.opencl.verdicts import (
    HALF_FUNCTIONS,
    HALF_TYPE,
    MOST_ITERATIONS,
    SHORT_LOOPS,
    Fault,
)

# The work items of a kernel; GROUP of them share local memory.
COUNT, GROUP = 64, 16
# The iterations of a sum: whole vectors, and a rest that a compiler summed wrongly.
_TERMS = 18
# The iterations of a loop of one work item.
_LONG = 70_000
# The lanes of vectors in the test of float16.
_LANES = 4


@frozen_dataclass
class Check:
    """Results of a kernel, unsigned integers, that show a fault if they differ by more."""

    fault: Fault
    expected: Array
    tolerance: int = 0


@frozen_dataclass
class Kernel:
    """A kernel of the self-test: its arguments are the inputs and the results.

    The results of the checks follow each other; all have one dtype. A work group of 0 work items
    may have any size.
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


def program_for(traits: Traits) -> tuple[str, tuple[Kernel, ...]]:
    """The text of all kernels but `halves`, and the kernels that a device can run."""
    module = _module(traits, OPENCL)
    kernels = (_arithmetic(module, traits), _plain(), _loops(), _memory())
    text = _TEXT.replace("IN_ORDER", "\n".join(OPENCL.in_order))
    words = {"COUNT": COUNT, "GROUP": GROUP, "TERMS": _TERMS, "OFFSET_BYTES": OFFSET_BYTES}
    for name, value in words.items():
        text = text.replace(name, str(value))
    if traits.largest_group >= GROUP:
        kernels += (_groups(),)
    return module.text() + text, kernels


def halves_for(traits: Traits, *, native: bool) -> tuple[str, tuple[Kernel, ...]]:
    """The text of the kernel `halves`, and the kernel: conversions and arithmetic of float16.

    If `native`, it has the type of `cl_khr_fp16`, otherwise OpenCL's functions. A device that fails
    is not refused, because Lamina can do without both.
    """
    module = _module(traits, replace(OPENCL, half=NATIVE_HALF) if native else OPENCL)
    kernels = (_halves(module, native),)
    return module.text(), kernels


def _module(traits: Traits, words: Words) -> Module:
    """A text in the words of the kernels of programs."""
    return Module(
        replace(OPENCL_PROCESSOR, half=words.half) if traits.is_processor else words,
        fused=traits.fused,
        doubles=traits.has_float64,
        exact_division=traits.exact_division,
    )


# Kernels that are written by the code of all kernels ----------------------------------------------

# (code, operands of a work item) -> a float, an integer, or the bits of a float16. The operands are
# an element of each input by its name, `item`, and `terms`: the address of the first input.
_Write = Callable[[Function, Mapping[str, Value]], Value]
_Row = tuple[Fault, _Write, Array, int]
_ELEMENTS = {"uint16": "i16", "int32": "i32", "uint64": "i64", "float32": "float"}


def _written(
    module: Module, name: str, inputs: Mapping[str, Array], rows: Sequence[_Row], *lanes: int
) -> Kernel:
    """Writes a kernel in which each row is a check.

    Args:
        module: the text.
        name: the name of the kernel.
        inputs: the arrays; a work item takes the element of its number. For vectors they begin
            again at the end.
        rows: a fault, what is written, its results, and their tolerance. Results that are float16
            are written as their bits.
        lanes: the lanes of tested vectors of the next elements, 0 for scalars; may be both.
    """
    elements = {label: Type(_ELEMENTS[str(array.dtype)]) for label, array in inputs.items()}
    buffers = [*((label, type.element) for label, type in elements.items()), ("results", "i64")]
    code = module.kernel(name, buffers, [])
    *sources, results = code.parameters
    item = code.item()
    checks: list[Check] = []
    with code.when(code.compare("ult", item, constant(COUNT, I64))):
        for width in lanes:
            operands = {"item": item, "terms": sources[0]} | {
                label: code.load(code.offset(source, item, type.element), type.wide(width))
                for source, (label, type) in zip(sources, elements.items(), strict=True)
            }
            for fault, write, expected, tolerance in rows:
                value = _bits(code, write(code, operands), expected.dtype == np.float16)
                for lane in range(width or 1):
                    bits = code.extract(value, lane) if width else value
                    position = code.add(item, constant(len(checks) * COUNT, I64))
                    wide = bits if bits.type == I64 else code.convert("zext", bits, "i64")
                    code.store(wide, code.offset(results, position, "i64"))
                    checks.append(Check(fault, _expected(np.roll(expected, -lane)), tolerance))
    more = max(lanes)
    arrays = tuple(np.append(array, array[:more]) for array in inputs.values())
    return Kernel(name, arrays, tuple(checks))


# NaN may have any bits: here it has these, in float32 and in float16.
_NAN, _HALF_NAN = 0x7FC00000, 0x7E00


def _bits(code: Function, value: Value, is_half: bool) -> Value:
    """The bits of a result; every NaN has the same bits."""
    if value.type.is_float:
        bits = code.convert("bitcast", value, "i32")
        return code.select(code.compare("uno", value, value), constant(_NAN, bits.type), bits)
    if not is_half:
        return value
    magnitude = code.binary("and", value, constant(0x7FFF, value.type))
    is_nan = code.compare("ugt", magnitude, constant(0x7C00, value.type))
    return code.select(is_nan, constant(_HALF_NAN, value.type), value)


def _expected(array: Array) -> Array:
    """The bits of results, as unsigned integers of 64 bits."""
    bits = array.view(f"uint{8 * array.itemsize}").astype("uint64")
    if array.dtype.kind != "f":
        return bits
    return np.where(np.isnan(array), np.uint64(_NAN if array.itemsize == 4 else _HALF_NAN), bits)


# Arithmetic ---------------------------------------------------------------------------------------

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


def _arithmetic(module: Module, traits: Traits) -> Kernel:
    residual = (_LEFT.astype("float64") * _RIGHT + _ADDED).astype("float32")
    zeros = np.zeros(COUNT, "float32")
    # OpenCL allows 2.5 units in the last place for divisions and 3 for square roots.
    inexact = 0 if traits.exact_division or traits.has_float64 else 3
    shifted = _WIDE.view("int64") >> (_NUMBERS % 63).view("int64")

    def binary(operation: str) -> _Write:
        return lambda code, x: code.binary(operation, x["wide"], x["divisors"])

    def shift(code: Function, x: Mapping[str, Value]) -> Value:
        return code.binary("ashr", x["wide"], code.binary("urem", x["item"], constant(63, I64)))

    rows: dict[str, tuple[_Write, Array]] = {
        "comparisons of 64-bit integers": (_compared, (_INTS >= 1).astype("uint64")),
        "conversions of floats to integers": (
            lambda code, x: code.convert("fptoui.sat", x["special"], "i32"),
            _SATURATED,
        ),
        "sums of floats in loops": (_summed, _sums()),
        "fused multiply-adds": (
            lambda code, x: code.multiply_add(x["left"], x["right"], x["added"]),
            residual if traits.fused else zeros,
        ),
        "products and sums that are rounded separately": (
            lambda code, x: code.add(code.multiply(x["left"], x["right"]), x["added"]),
            zeros,
        ),
        "divisions": (lambda code, x: code.divide(x["left"], x["right"]), _LEFT / _RIGHT),
        "square roots": (lambda code, x: code.intrinsic("sqrt", x["right"]), np.sqrt(_RIGHT)),
        "products of 64-bit integers": (binary("mul"), _WIDE * _DIVISORS),
        "divisions of 64-bit integers": (binary("udiv"), _WIDE // _DIVISORS),
        "remainders of 64-bit integers": (binary("urem"), _WIDE % _DIVISORS),
        "shifts of 64-bit integers": (shift, shifted),
    }
    inputs = {
        "left": np.resize(_LEFT, COUNT + _TERMS),
        "right": _RIGHT,
        "added": _ADDED,
        "special": _SPECIAL,
        "ints": _INTS,
        "wide": _WIDE,
        "divisors": _DIVISORS,
    }
    checked = [
        (Fault(f"{what} are wrong"), *row, inexact if what in ("divisions", "square roots") else 0)
        for what, row in rows.items()
    ]
    return _written(module, "arithmetic", inputs, checked, 0)


def _compared(code: Function, x: Mapping[str, Value]) -> Value:
    wide = code.convert("sext", x["ints"], "i64")
    return code.convert("zext", code.compare("sge", wide, constant(1, I64)), "i64")


def _summed(code: Function, x: Mapping[str, Value]) -> Value:
    loop = code.begin_loop(0, _TERMS, carried=[constant(0.0, FLOAT)])
    address = code.offset(x["terms"], code.add(x["item"], loop.index), "float")
    total = code.subtract(loop.carried[0], code.load(address, FLOAT))
    return code.end_loop(loop, [total])[0]


def _sums() -> Array:
    """0 - _LEFT[n] - _LEFT[n + 1] - ..., for _TERMS terms, in this order."""
    total = np.zeros(COUNT, "float32")
    for term in range(_TERMS):
        total = total - np.resize(_LEFT, COUNT + _TERMS)[term : term + COUNT]
    return total


# float16 ------------------------------------------------------------------------------------------


def _halves(module: Module, native: bool) -> Kernel:
    """Conversions; with the type of `cl_khr_fp16` also its arithmetic."""
    positive = [0x0000, 0x0001, 0x0203, 0x03FF, 0x0400, 0x1234, 0x2E66, 0x3555, 0x3BFF, 0x3C00]
    positive += [0x3C01, 0x4248, 0x5640, 0x7BFF, 0x7C00, 0x7E01]
    signed = [sign | number for sign in (0, 0x8000) for number in positive]
    # Zeros, subnormal and normal numbers, the largest, infinities, NaN.
    x = np.resize(np.array(signed, "uint16"), COUNT).view("float16")
    y, floats = np.roll(x, 7), _floats()

    def operation(name: str) -> _Write:
        return lambda code, x: code.half_binary(name, x["halves"], x["others"])

    def chained(code: Function, x: Mapping[str, Value]) -> Value:
        product = code.half_binary("fmul", x["halves"], x["others"])
        return code.half_binary("fadd", product, x["halves"])

    with np.errstate(all="ignore"):
        rows: list[tuple[_Write, Array]] = [
            (lambda code, x: code.from_half(x["halves"]), x.astype("float32")),
            (lambda code, x: code.to_half(x["floats"]), floats.astype("float16")),
        ]
        if native:
            rows += [(operation("fadd"), x + y), (operation("fsub"), x - y)]
            # The product is rounded before it is added.
            rows += [(operation("fmul"), x * y), (chained, x * y + x)]
    fault = HALF_TYPE if native else HALF_FUNCTIONS
    inputs = {"halves": x.view("uint16"), "others": y.view("uint16"), "floats": floats}
    faults = [(fault, write, expected, 0) for write, expected in rows]
    return _written(module, "halves", inputs, faults, 0, _LANES)


def _floats() -> Array:
    """Floats at, and next to, the points halfway between two float16; and those that overflow."""
    floats: list[float] = [0.0, np.nan, np.inf, 65504.0, 65519.996, 65520.0, 1e30, 2.0**-25]
    for low in (0x0000, 0x0001, 0x03FF, 0x0400, 0x2E66, 0x3C00, 0x3C01, 0x7BFE):
        near, far = np.array([low, low + 1], "uint16").view("float16").astype("float32")
        middle = (near + far) / np.float32(2)
        floats += map(float, (np.nextafter(middle, near), middle, np.nextafter(middle, far)))
    return np.array([*floats, *(-number for number in floats)], "float32")[:COUNT]


# Plain kernels ------------------------------------------------------------------------------------

# After their buffers they take the offset of each in its block. It is 0, but in `update`.
_TEXT = """
__kernel void plain(__global const int *ints, __global const float *special,
                    __global ulong *results, uint a, uint b, uint c) {
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
                    __global uint *results, uint a, uint b, uint c) {
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
__kernel void memory(__global const uint *x, __global uint *results, uint a, uint b) {
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
__kernel void groups(__global const uint *x, __global uint *results, uint a, uint b) {
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

__kernel void update(__global const uint *x_block, __global uint *results_block,
                     uint x_offset, uint results_offset, int number) {
    __global const uint *x = x_block + x_offset * (OFFSET_BYTES / sizeof(uint));
    __global uint *results = results_block + results_offset * (OFFSET_BYTES / sizeof(uint));
    const size_t i = get_global_id(0);
    results[i] = x[i] * 3 + (uint)number;
}
"""


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
    checks = (
        *(Check(plain, expected), Check(ordered, expected)),
        *(Check(nested, _mixed(outer * inner)), Check(SHORT_LOOPS, _mixed(_LONG))),
    )
    inputs = np.array([key], "uint64"), np.array([outer, inner, _LONG], "uint32")
    return Kernel("loops", inputs, checks)


def _mixed(count: int) -> Array:
    products = np.arange(count, dtype="uint32") * np.uint32(2654435761)
    return np.bitwise_xor.reduce(products, keepdims=True)


def _memory() -> Kernel:
    x = (np.arange(16 * COUNT + 1) * 2654435761 % 2**32).astype("uint32")
    items = np.arange(COUNT, dtype="uint32")
    moved = np.concatenate([np.array([7], "uint32"), x[1:]])
    checks = (
        Check(Fault("private arrays are wrong"), x[x[:COUNT] & 15] * (items + 1)),
        Check(Fault("vectors of 16 are wrong at addresses of their elements"), moved),
    )
    return Kernel("memory", (x,), checks)


def _groups() -> Kernel:
    x = (np.arange(COUNT) * 2654435761 % 2**32).astype("uint32")
    groups = x.reshape(-1, GROUP)
    sums = np.repeat(groups.sum(1, dtype="uint32"), GROUP)
    checks = (
        Check(Fault("local memory is wrong after a barrier"), groups[:, ::-1].reshape(-1)),
        Check(Fault("barriers in a loop are wrong"), sums),
    )
    return Kernel("groups", (x,), checks, group=GROUP)
