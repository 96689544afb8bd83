"""The part of the self-test on float16: its conversions, and the arithmetic of `cl_khr_fp16`.

The kernels are written by the same code as all kernels, once with OpenCL's functions and once with
the type of `cl_khr_fp16`. A device that fails is not refused, because Lamina can do without both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.codegen.c import Function, Module
from lamina.codegen.values import FLOAT, I64, Type, Value, constant
from lamina.codegen.words import NATIVE_HALF, OPENCL, OPENCL_PROCESSOR, Words
from lamina.engines.gpu.launches import Traits
from lamina.engines.opencl.selftest_kernels import COUNT, Check, Kernel
from lamina.engines.opencl.verdicts import HALF_FUNCTIONS, HALF_TYPE

# Vectors of so many lanes are tested too.
_LANES = 4
# NaN may have any bits.
_NAN, _HALF_NAN = 0x7FC00000, 0x7E00


def _halves() -> Array:
    """The bits of float16: zeros, subnormal and normal numbers, the largest, infinities, NaN."""
    positive = [0x0000, 0x0001, 0x0203, 0x03FF, 0x0400, 0x1234, 0x2E66, 0x3555, 0x3BFF, 0x3C00]
    positive += [0x3C01, 0x4248, 0x5640, 0x7BFF, 0x7C00, 0x7E01]
    signed = [sign | number for sign in (0, 0x8000) for number in positive]
    return np.resize(np.array(signed, "uint16"), COUNT)


def _floats() -> Array:
    """Floats at, and next to, the points halfway between two float16; and those that overflow."""
    found: list[float] = [0.0, np.nan, np.inf, 65504.0, 65519.996, 65520.0, 1e30, 2.0**-25]
    for low in (0x0000, 0x0001, 0x03FF, 0x0400, 0x2E66, 0x3C00, 0x3C01, 0x7BFE):
        near, far = np.array([low, low + 1], "uint16").view("float16").astype("float32")
        middle = (near + far) / np.float32(2)
        found += map(float, (np.nextafter(middle, near), middle, np.nextafter(middle, far)))
    return np.array([*found, *(-one for one in found)], "float32")[:COUNT]


_HALVES, _OTHERS, _FLOATS = _halves(), np.roll(_halves(), 7), _floats()


@frozen_dataclass
class _Operands:
    """Two float16 and a float: of a work item, or vectors of those of the next work items too."""

    half: Value
    other: Value
    single: Value


# (code, operands) -> a float, or the bits of a float16
_Write = Callable[[Function, _Operands], Value]


def _conversions() -> tuple[tuple[_Write, Array], ...]:
    """What is written, and its results."""
    with np.errstate(all="ignore"):
        singles, halves = _HALVES.view("float16").astype("float32"), _FLOATS.astype("float16")
    return (
        (lambda code, x: code.from_half(x.half), singles),
        (lambda code, x: code.to_half(x.single), halves),
    )


def _operations() -> tuple[tuple[_Write, Array], ...]:
    x, y = _HALVES.view("float16"), _OTHERS.view("float16")
    with np.errstate(all="ignore"):
        return (
            (lambda code, x: code.half_binary("fadd", x.half, x.other), x + y),
            (lambda code, x: code.half_binary("fsub", x.half, x.other), x - y),
            (lambda code, x: code.half_binary("fmul", x.half, x.other), x * y),
            # The product is rounded before it is added.
            (_chained, x * y + x),
        )


def _chained(code: Function, x: _Operands) -> Value:
    return code.half_binary("fadd", code.half_binary("fmul", x.half, x.other), x.half)


def halves_text(traits: Traits, *, native: bool) -> str:
    """The text of the kernel `halves`.

    Args:
        traits: of the device.
        native: whether it is written with `cl_khr_fp16`.
    """
    words: Words = OPENCL_PROCESSOR if traits.is_processor else OPENCL
    words = replace(words, half=NATIVE_HALF) if native else words
    module = Module(words, fused=traits.fused, doubles=traits.has_float64)
    checks = (*_conversions(), *(_operations() if native else ()))
    buffers = [("halves", "i16"), ("others", "i16"), ("floats", "float"), ("results", "i64")]
    code = module.kernel("halves", buffers, [])
    *given, results = code.parameters
    types = [Type("i16"), Type("i16"), FLOAT]
    item = code.item()
    with code.when(code.compare("ult", item, constant(COUNT, I64))):
        number = 0
        for lanes in (0, _LANES):
            row = (
                code.load(code.offset(one, item, type.element), type.wide(lanes))
                for one, type in zip(given, types, strict=True)
            )
            operands = _Operands(*row)
            for write, _ in checks:
                value = _bits(code, write(code, operands))
                for lane in range(lanes or 1):
                    one = code.extract(value, lane) if lanes else value
                    position = code.add(item, constant(number * COUNT, I64))
                    address = code.offset(results, position, "i64")
                    code.store(code.convert("zext", one, "i64"), address)
                    number += 1
    code.finish()
    return module.text()


def _bits(code: Function, value: Value) -> Value:
    """The bits of a result; those of a NaN are always the same."""
    if value.type.is_float:
        bits = code.convert("bitcast", value, "i32")
        return code.select(code.compare("uno", value, value), constant(_NAN, bits.type), bits)
    magnitude = code.binary("and", value, constant(0x7FFF, value.type))
    is_nan = code.compare("ugt", magnitude, constant(0x7C00, value.type))
    return code.select(is_nan, constant(_HALF_NAN, value.type), value)


def halves_kernel(*, native: bool) -> Kernel:
    """The kernel `halves` with its results; see `halves_text`."""
    fault = HALF_TYPE if native else HALF_FUNCTIONS
    expected = [one for _, one in (*_conversions(), *(_operations() if native else ()))]
    rows = [_expected_bits(one) for one in expected]
    for one in expected:
        padded = _expected_bits(np.append(one, one[:_LANES]))
        rows += [padded[lane : lane + COUNT] for lane in range(_LANES)]
    inputs = tuple(np.append(one, one[:_LANES]) for one in (_HALVES, _OTHERS, _FLOATS))
    return Kernel("halves", inputs, tuple(Check(fault, row) for row in rows))


def _expected_bits(floats: Array) -> Array:
    nan = _NAN if floats.itemsize == 4 else _HALF_NAN
    bits = floats.view(f"uint{8 * floats.itemsize}").astype("uint64")
    return np.where(np.isnan(floats), np.uint64(nan), bits)
