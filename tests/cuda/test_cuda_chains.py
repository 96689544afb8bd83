"""Kernels of chains for Nvidia's GPUs, on the machine that runs PTX."""

from __future__ import annotations

import pytest
from alternatives import schedules_of
from chain_cases import CASES, check_chains
from test_cuda_schedules import engine

# These always run; the others if `--part` chooses them.
FIRST = ("causal", "mixed-bfloat16")
EVERY = [
    pytest.param(one, id=one.name, marks=() if one.name in FIRST else pytest.mark.sampled)
    for one in CASES
]


@pytest.fixture(autouse=True)
def _short_chains(monkeypatch):
    monkeypatch.setattr("lamina.compiler.chains.LEAST_LENGTH", 1)


@pytest.mark.parametrize("case", EVERY)
def test_chains_give_the_results_of_the_interpreter(case):
    own, double = engine()

    def schedules(program):
        # The machine is slow: two of the odd ones.
        return list(schedules_of(own, program))[::5]

    check_chains(case, own, own.target, schedules)
    assert double.recover() == []
