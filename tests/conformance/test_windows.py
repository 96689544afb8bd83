"""Contractions over windows, of the sizes at which engines change their ways.

`tests/unit/test_cpu_windowed.py` checks that the cpu engine does take all of its ways for these.
"""

from __future__ import annotations

import pytest
from harness import check
from windowed_graphs import FILTERED_SEEDS, SEEDS, FilteredGraph, WindowedGraph

from lamina.engines.engine import Engine


@pytest.mark.parametrize("seed", SEEDS)
def test_contraction_over_windows_equals_its_evaluation(seed: int, engine: Engine) -> None:
    made = WindowedGraph(seed)
    check(made.graph, engine, made.feeds)


@pytest.mark.parametrize("seed", FILTERED_SEEDS)
def test_contraction_over_windows_of_3x3_equals_its_evaluation(seed: int, engine: Engine) -> None:
    made = FilteredGraph(seed)
    check(made.graph, engine, made.feeds)
