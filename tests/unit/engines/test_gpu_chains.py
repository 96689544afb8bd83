"""Kernels of chains for GPUs, against the interpreter."""

from __future__ import annotations

from functools import partial

import pytest
from alternatives import schedules_of
from chain_cases import CASES, LARGE, check_chains
from test_gpu_schedules import gpu_engine

pytestmark = pytest.mark.sampled


@pytest.fixture(autouse=True)
def _short_chains(monkeypatch):
    monkeypatch.setattr("lamina.compiler.chains.LEAST_LENGTH", 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_schedule_of_a_chain_gives_the_results_of_the_interpreter(case):
    own = gpu_engine()
    check_chains(case, own, own.target, partial(schedules_of, own))


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
def test_chains_of_several_tiles_give_the_results_of_the_interpreter(case):
    own = gpu_engine()
    check_chains(case, own, own.target, lambda _: ())
