"""Products in TF32: the rounding is right to the bit, and engines agree with the oracle.

`test_mixed_float64.py` compares them with float64.
"""

from functools import partial

import numpy as np
import pytest
from alternatives import schedules_of
from harness import check, run
from test_mixed_float64 import FLOATS, LINEAR, Samples, outputs_of

from lamina import ops
from lamina.base.shapes import Array
from lamina.program.tf32 import rounded_to_tf32
from lamina.step.rounding import with_tf32_products


def every_exponent() -> Array:
    """Float32 of every sign and exponent: near ties, near the ends of the fraction, and random."""
    generator = np.random.default_rng(0)
    kept = np.array([0, 1, 2, 511, 512, 1022, 1023], np.uint32) << np.uint32(13)
    rest = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF], np.uint32)
    chosen = (kept[:, None] + rest).reshape(-1)
    fractions = np.concatenate([chosen, generator.integers(0, 1 << 23, 23, dtype=np.uint32)])
    upper = np.arange(512, dtype=np.uint32) << np.uint32(23)
    return (upper[:, None] | fractions).reshape(-1).view(np.float32)


@pytest.mark.parametrize("extent", [1, 65])
def test_every_engine_rounds_to_the_same_bits(extent, engine, leaves):
    """In scalars and in vectors."""
    x = every_exponent().reshape(-1, extent)
    graph = leaves.graph([ops.round_to_tf32(leaves.add(x))])
    found = run(graph, engine, leaves.feeds)["y0"]
    wanted = rounded_to_tf32(x)
    numbers = ~np.isnan(x)
    assert np.array_equal(np.isnan(found), ~numbers)
    assert np.array_equal(found.view(np.uint32)[numbers], wanted.view(np.uint32)[numbers])


# Attention has samples of its own in TF32.
@pytest.mark.parametrize("name", sorted(LINEAR | {"recurrence"}))
def test_engines_agree_with_the_oracle(name, engine):
    made = Samples(FLOATS[name])
    graph = with_tf32_products(made.leaves.graph(outputs_of(made)))
    check(graph, engine, made.leaves.feeds)


@pytest.mark.parametrize("name", ["conv", "matmul"])
@pytest.mark.sampled
def test_every_schedule_rounds_the_operands(name, engine):
    made = Samples(FLOATS[name])
    graph = with_tf32_products(made.leaves.graph([result for _, result in made.results]))
    check(graph, engine, made.leaves.feeds, schedules=partial(schedules_of, engine))
