"""Random graphs, compiled and run on the engine under test, equal the oracle.

A failure names its seed and shows the graph; `random_graph(seed)` builds it again.
"""

import pytest
from harness import check
from random_graphs import random_graph

SEEDS = [pytest.param(n, marks=pytest.mark.sampled if n >= 24 else ()) for n in range(500)]


@pytest.mark.parametrize("seed", SEEDS)
def test_compiled_graph_equals_its_evaluation(seed, engine):
    made = random_graph(seed)
    # A second run starts from the updates of the first.
    program = check(made.graph, engine, made.feeds, runs=2 if made.graph.updates else 1)
    plan = program.plan
    between = (engine.target.alignment_bytes - 1) * len(plan.allocations)
    assert plan.largest_live_bytes <= plan.arena_bytes <= 1.05 * plan.largest_live_bytes + between
