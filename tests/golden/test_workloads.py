"""Costs, schedules and results of the workloads are as recorded.

After an intended change: `python tests/golden/record.py workloads`, and read the difference.
"""

import pytest
from workloads import BITS, FIGURES, SCHEDULES, VECTORS, WORKLOADS, bits, figures, runs_here
from workloads import schedules as schedules_of

pytestmark = pytest.mark.each_case


@pytest.mark.parametrize("workload", WORKLOADS)
def test_program_costs_equal_the_recorded_ones(workload):
    assert figures(workload) in FIGURES.read_text().splitlines()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_schedules_equal_the_recorded_ones(workload):
    (recorded,) = [
        text
        for text in SCHEDULES.read_text().strip().split("\n\n")
        if text.startswith(f"{workload} ")
    ]
    assert schedules_of(workload) == recorded


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(
    "vectors", ["widest", *(pytest.param(name, marks=pytest.mark.sampled) for name in VECTORS)]
)
def test_results_have_the_recorded_bits(workload, vectors):
    if vectors == "widest":
        vectors = next((one for one in VECTORS if runs_here(one) is not None), "none")
    if vectors not in VECTORS or runs_here(vectors) is None:
        pytest.skip(f"this processor has no {vectors}")
    assert bits(workload, vectors) in BITS.read_text().splitlines()
