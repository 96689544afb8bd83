"""Sums of terms that a loop computes: compilers that vectorize them must not lose any.

The fault that this finds: Intel's OpenCL compiler for processors gave the last iterations of such
loops the wrong sign. It does not occur if terms are read from memory, or added instead of
subtracted.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from harness import Leaves

from lamina import ops
from lamina.engines.engine import Engine
from lamina.graph import Tensor

# Whole vectors of any width, and extents with a remainder.
EXTENTS = (10, 14, 21, 32, 38)


def test_random_numbers_are_subtracted_from_a_sum(engine: Engine, check_cases: Any) -> None:
    def build(extent: int, dtype: str, leaves: Leaves) -> list[Tensor]:
        seed, step = (leaves.add(np.array(3)) for _ in range(2))
        return [ops.sum(ops.neg(ops.uniform((extent,), seed, step, 1, dtype)))]

    cases = [
        (f"{extent}-{dtype}", partial(build, extent, dtype))
        for dtype in ("float32", "float64")
        for extent in EXTENTS
    ]
    check_cases(cases, engine)
