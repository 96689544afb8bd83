"""Conversions of floats of 16 bits on the cpu engine, also without instructions for float16."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, as_dtype, converted
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.processor import host
from lamina.runtime import Function


def cast(array: Array, dtype: str, *, instructions: bool = True) -> Array:
    """The array as another dtype, by a program."""
    engine = CpuEngine()
    engine.processor = replace(host(), halves=instructions and host().halves)
    x = lm.Input(dtype=array.dtype.name)
    return Function(x, ops.cast(x, dtype), engine)(array)[0]


def test_every_float16_is_read_exactly_without_instructions() -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    expected = numbers.astype("float32")
    np.testing.assert_array_equal(cast(numbers, "float32", instructions=False), expected)


def test_floats_are_rounded_to_float16_without_instructions() -> None:
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
def test_every_kind_of_nan_stays_a_nan(half: str, instructions: bool) -> None:
    """Rounding the bits of these would make them infinite, or change their sign."""
    bits = np.array([0x7F800001, 0x7F80FFFF, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32)
    found = cast(bits.view(np.float32), half, instructions=instructions)
    assert found.dtype == as_dtype(half).numpy
    assert np.isnan(converted(found, np.dtype("float32"))).all()
