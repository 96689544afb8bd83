"""The orders that native code makes are those of NumPy."""

import numpy as np
import pytest

from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.run.orders import permutations
from lamina.program import philox

SEEDS = np.array([0, 7, -3, 2**40 + 5, -(2**63), 2**63 - 1])


@pytest.mark.parametrize("count", [1, 2, 3, 15, 16, 17, 100, 4097])
def test_native_permutations_equal_those_of_numpy(count):
    numbers = np.arange(3, 3 + len(SEEDS)) * 2**33
    made = permutations(count, SEEDS, numbers, philox.ORDER_STREAM, threads=2)
    of_engine = CpuEngine().permutations(count, SEEDS, numbers, philox.ORDER_STREAM)
    np.testing.assert_array_equal(of_engine, made)
    assert made.dtype == np.int64
    expected = philox.permutations(count, SEEDS, numbers, philox.ORDER_STREAM)
    np.testing.assert_array_equal(made, expected)


def test_seeds_of_each_permutation_are_seeds_of_one():
    for seed in SEEDS.tolist():
        several = philox.permutations(20, np.array([seed]), [4], philox.SPLIT_STREAM)
        one = philox.permutations(20, seed, range(4, 5), philox.SPLIT_STREAM)
        np.testing.assert_array_equal(several, one)


def test_no_permutations():
    assert permutations(5, np.zeros(0), np.zeros(0), 0, threads=2).shape == (0, 5)
    assert permutations(0, np.zeros(2), np.zeros(2), 0, threads=2).shape == (2, 0)
