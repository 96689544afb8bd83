"""Products in TF32: the rounding is right to the bit, and engines agree with the oracle.

`test_mixed_float64.py` compares them with float64.
"""

from functools import partial

import numpy as np
import pytest
from alternatives import schedules_of
from harness import check, run
from random_arrays import every_exponent
from test_mixed_float64 import FLOATS, LINEAR, Samples, outputs_of

from lamina import ops
from lamina.program.tf32 import rounded_to_tf32
from lamina.step.rounding import with_tf32_products


@pytest.mark.parametrize("extent", [1, 65])
def test_every_engine_rounds_to_the_same_bits(extent, engine, leaves):
    """In scalars and in vectors."""
    x = every_exponent().reshape(-1, extent)
    graph = leaves.graph([ops.round_to_tf32(leaves.add(x))])
    rounded = run(graph, engine, leaves.feeds)["y0"]
    expected = rounded_to_tf32(x)
    numbers = ~np.isnan(x)
    assert np.array_equal(np.isnan(rounded), ~numbers)
    assert np.array_equal(rounded.view(np.uint32)[numbers], expected.view(np.uint32)[numbers])


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
