"""Sums of terms that a loop computes itself: compilers that vectorize them must not lose any.

Terms that are read from memory, or added instead of subtracted, hide what this finds: Intel's
compiler for processors gave the last iterations of such loops the wrong sign.
"""

from __future__ import annotations

import numpy as np
import pytest
from harness import Leaves, check

from lamina import ops
from lamina.engines.engine import Engine

# With whole vectors of any width, and with what is left of them.
EXTENTS = (10, 14, 21, 32, 38)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("extent", EXTENTS)
def test_random_numbers_are_subtracted_from_a_sum(extent: int, dtype: str, engine: Engine) -> None:
    leaves = Leaves()
    seed, step = (leaves.add(np.array(3)) for _ in range(2))
    numbers = ops.uniform((extent,), seed, step, 1, dtype)
    check(leaves.graph([ops.sum(ops.neg(numbers))]), engine, leaves.feeds)
