"""The costs and the LLVM IR of the workloads are as recorded.

After an intended change: `python tests/golden/record.py workloads`, and read the difference.
"""

from __future__ import annotations

import pytest
from workloads import CHECKSUMS, FIGURES, VECTORS, WORKLOADS, checksum, figures


@pytest.mark.parametrize("workload", WORKLOADS)
def test_program_costs_equal_the_recorded_ones(workload: str) -> None:
    assert figures(workload) in FIGURES.read_text().splitlines()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_llvm_text_has_the_recorded_checksum(workload: str) -> None:
    recorded = CHECKSUMS.read_text().splitlines()
    for vectors in VECTORS:
        assert checksum(workload, vectors) in recorded
