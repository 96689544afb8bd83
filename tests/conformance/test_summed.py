"""Sums of terms that a loop computes: compilers that vectorize them must not lose any.

The fault that this finds: Intel's OpenCL compiler for processors gave the last iterations of such
loops the wrong sign. It does not occur if terms are read from memory, or added instead of
subtracted.
"""

from __future__ import annotations

import numpy as np
import pytest
from harness import Leaves, check

from lamina import ops
from lamina.engines.engine import Engine

# Whole vectors of any width, and extents with a remainder.
EXTENTS = (10, 14, 21, 32, 38)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("extent", EXTENTS)
def test_random_numbers_are_subtracted_from_a_sum(extent: int, dtype: str, engine: Engine) -> None:
    leaves = Leaves()
    seed, step = (leaves.add(np.array(3)) for _ in range(2))
    numbers = ops.uniform((extent,), seed, step, 1, dtype)
    check(leaves.graph([ops.sum(ops.neg(numbers))]), engine, leaves.feeds)
