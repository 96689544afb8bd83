"""Contractions over windows, of the sizes at which engines change algorithms.

`tests/unit/test_cpu_windowed.py` checks that the cpu engine uses all of its algorithms for these.
"""

from __future__ import annotations

import numpy as np
import pytest
from harness import Leaves, check
from windowed_graphs import FILTERED_SEEDS, SEEDS, FilteredGraph, WindowedGraph

from lamina import ops
from lamina.engines.engine import Engine
from lamina.ops.differentiate import gradients


@pytest.mark.parametrize("seed", SEEDS)
def test_contraction_over_windows_equals_its_evaluation(seed: int, engine: Engine) -> None:
    made = WindowedGraph(seed)
    check(made.graph, engine, made.feeds)


@pytest.mark.parametrize("seed", FILTERED_SEEDS)
def test_contraction_over_windows_of_3x3_equals_its_evaluation(seed: int, engine: Engine) -> None:
    made = FilteredGraph(seed)
    check(made.graph, engine, made.feeds)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("channels", "outputs", "size", "stride", "dilation", "groups", "extents"),
    [
        (1, 20, 5, 1, 1, 1, (12, 13)),
        (3, 17, 3, 2, 1, 1, (11, 19)),
        (17, 33, 3, 1, 1, 1, (9, 12)),
        (16, 16, 3, 1, 2, 1, (10, 11)),
        (8, 12, 2, 2, 1, 2, (8, 9)),
        (33, 5, 1, 1, 1, 1, (7, 19)),
        (6, 6, 3, 1, 1, 6, (9, 10)),
        (2, 50, 4, 3, 1, 1, (16, 31)),
        (5, 50, 5, 1, 1, 1, (31,)),
        (17, 5, 3, 3, 1, 1, (61,)),
        (8, 33, 3, 1, 1, 1, (21, 1)),
        (3, 8, 3, 2, 1, 1, (5, 6, 7)),
    ],
)
def test_every_element_of_a_window_counts(
    channels: int,
    outputs: int,
    size: int,
    stride: int,
    dilation: int,
    groups: int,
    extents: tuple[int, ...],
    dtype: str,
    masked: bool,
    engine: Engine,
) -> None:
    """Sums of small whole numbers are exact in every order, also by Winograd's algorithm."""
    generator, leaves = np.random.default_rng(channels), Leaves()

    def numbers(*shape: int) -> np.ndarray:
        return generator.integers(-3, 4, shape).astype(dtype)

    x = leaves.add(numbers(3, channels, *extents))
    values = numbers(outputs, channels // groups, *(size for _ in extents))
    weight = leaves.add(values, "parameter", "weight")
    rank, padding = len(extents), (size // 2, size // 2)
    y = ops.conv(x, weight, [stride] * rank, [padding] * rank, [dilation] * rank, groups)
    # With a mask, the upstream gradient is an expression instead of a stored array.
    y = ops.relu(y) if masked else y
    upstream = leaves.add(numbers(*(extent for extent in y.shape if isinstance(extent, int))))
    graph = leaves.graph([y, *gradients(ops.sum(y * upstream), [x, weight])])
    check(graph, engine, leaves.feeds, exact=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("channels", "outputs"), [(3, 20), (8, 33), (18, 7)])
def test_every_weight_of_a_window_counts(
    channels: int, outputs: int, size: int, dtype: str, engine: Engine
) -> None:
    """Parameters, which are constant over many runs, may be prepacked."""
    generator, leaves = np.random.default_rng(channels), Leaves()
    x, again = (
        leaves.add(generator.integers(-3, 4, (2, channels, 11, 14)).astype(dtype)) for _ in range(2)
    )
    values = generator.integers(-3, 4, (outputs, channels, size, size)).astype(dtype)
    weight = leaves.add(values, "parameter", "weight")
    results = [ops.conv(one, weight, [2, 2], [(1, 1)] * 2, [1, 1]) for one in (x, again)]
    check(leaves.graph(results), engine, leaves.feeds, exact=True)
