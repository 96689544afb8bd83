"""Contractions over windows, of the sizes at which engines change algorithms.

`test_cpu_windowed.py` checks that the cpu engine uses all of its algorithms for these.
"""

from itertools import product

import numpy as np
import pytest
from harness import tens
from windowed_graphs import FILTERED_SEEDS, SEEDS, FilteredGraph, WindowedGraph

from lamina import ops
from lamina.ops.differentiate import gradients


@pytest.mark.parametrize(
    ("graphs", "first"),
    [
        pytest.param(graphs, *first.values, marks=first.marks)
        for graphs, seeds in ((WindowedGraph, SEEDS), (FilteredGraph, FILTERED_SEEDS))
        for first in tens(seeds)
    ],
)
def test_contractions_over_windows_equal_their_evaluation(graphs, first, check_cases):
    check_cases(range(first, first + 10), lambda *of: graphs(*of).results)


# Channels, outputs, size, stride, dilation, groups, and extents.
CONVOLUTIONS: tuple[tuple[int, int, int, int, int, int, tuple[int, ...]], ...] = (
    (1, 20, 5, 1, 1, 1, (12, 13)),
    (3, 17, 3, 2, 1, 1, (11, 19)),
    (17, 33, 3, 1, 1, 1, (9, 12)),
    (16, 16, 3, 1, 2, 1, (10, 11)),
    (8, 12, 2, 2, 1, 2, (8, 9)),
    (33, 5, 1, 1, 1, 1, (7, 19)),
    (6, 6, 3, 1, 1, 6, (9, 10)),
    (19, 19, 3, 1, 1, 19, (9, 40)),
    (32, 32, 3, 2, 1, 32, (9, 16)),
    (5, 5, 6, 1, 1, 5, (9, 20)),
    (33, 33, 3, 1, 2, 33, (9, 12)),
    (2, 50, 4, 3, 1, 1, (16, 31)),
    (5, 50, 5, 1, 1, 1, (31,)),
    (17, 5, 3, 3, 1, 1, (61,)),
    (8, 33, 3, 1, 1, 1, (21, 1)),
    (3, 8, 3, 2, 1, 1, (5, 6, 7)),
)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_element_of_a_window_counts(dtype, masked, check_cases):
    """Sums of small whole numbers are exact in every order, also by Winograd's algorithm."""

    def build(row, leaves):
        channels, outputs, size, stride, dilation, groups, extents = row
        generator = np.random.default_rng(channels)

        def numbers(*shape):
            return generator.integers(-3, 4, shape).astype(dtype)

        rank, padding = len(extents), (size // 2, size // 2)
        if groups == channels:  # channels last, as in networks
            x = leaves.add(numbers(3, *extents, channels))
            x = ops.transpose(x, (0, rank + 1, *range(1, rank + 1)))
        else:
            x = leaves.add(numbers(3, channels, *extents))
        values = numbers(outputs, channels // groups, *(size for _ in extents))
        weight = leaves.add(values, "parameter")
        y = ops.conv(x, weight, [stride] * rank, [padding] * rank, [dilation] * rank, groups)
        # With a mask, the upstream gradient is an expression instead of a stored array.
        y = ops.relu(y) if masked else y
        upstream = leaves.add(numbers(*(extent for extent in y.shape if isinstance(extent, int))))
        return [y, *gradients(ops.sum(y * upstream), [x, weight])]

    check_cases(CONVOLUTIONS, build, exact=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_weight_of_a_window_counts(dtype, check_cases):
    """Parameters, which are constant over many runs, may be prepacked."""

    def build(row, leaves):
        (channels, outputs), size = row
        generator = np.random.default_rng(channels)
        x, again = (
            leaves.add(generator.integers(-3, 4, (2, channels, 11, 14)).astype(dtype))
            for _ in range(2)
        )
        values = generator.integers(-3, 4, (outputs, channels, size, size)).astype(dtype)
        weight = leaves.add(values, "parameter")
        return [ops.conv(image, weight, [2, 2], [(1, 1)] * 2, [1, 1]) for image in (x, again)]

    check_cases(product(((3, 20), (8, 33), (18, 7)), range(1, 6)), build, exact=True)
