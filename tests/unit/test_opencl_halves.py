"""Floats of 16 bits on OpenCL devices, except for what the conformance tests check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lamina.engines.discovery import open_engine
from lamina.engines.engine import Engine
from lamina.shapes import DType, bfloat16, float16, float32

pytest.importorskip("pyopencl", reason="needs pyopencl: pip install 'lamina[opencl]'")


@pytest.fixture(scope="module")
def own(opencl_name: str) -> Engine:
    """The engine of the first device."""
    return open_engine(opencl_name)


def check(own: Engine, *arrays: Any) -> bool:
    """Whether the engine finds all elements of arrays finite."""
    memories = [own.allocate(array.shape, array.dtype) for array in arrays]
    for memory, array in zip(memories, arrays, strict=True):
        memory.write(array)
    return own.finite_check(memories)()


@pytest.mark.parametrize("dtype", [bfloat16, float16, float32], ids=str)
def test_the_largest_numbers_are_finite_and_their_successors_are_not(
    dtype: DType, own: Engine
) -> None:
    bits = f"u{dtype.itemsize}"
    infinity = int(np.asarray(np.inf, dtype.numpy).view(bits))
    finite = np.array([infinity - 1, 0, 1], bits).view(dtype.numpy)
    assert check(own, finite, -finite)
    for wrong in (infinity, infinity + 1, 2 ** (8 * dtype.itemsize) - 1):
        array = np.array([infinity - 1, wrong], bits).view(dtype.numpy)
        assert not check(own, finite, array)


def test_arrays_of_several_float_types_are_checked_together(own: Engine) -> None:
    dtypes = (bfloat16, float16, float32)
    # The bits of float16's infinity are those of a finite bfloat16.
    ones = [
        np.full(3, 0x7C00, "u2").view(bfloat16.numpy),
        *(np.ones(3, one.numpy) for one in dtypes),
    ]
    assert check(own, *ones)
    for number in range(len(ones)):
        wrong = [one.copy() for one in ones]
        wrong[number][2] = np.inf
        assert not check(own, *wrong)
