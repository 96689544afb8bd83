"""Calls of kernels for processors share launches: side by side, or in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import TRAITS, Case, compiled

import lamina as lm
from lamina import ops
from lamina.codegen.words import OPENCL_PROCESSOR
from lamina.engines.discovery import open_engine
from lamina.engines.gpu.launches import Launches, Traits
from lamina.engines.opencl import processor_groups
from lamina.engines.opencl.processors import ProcessorFamily
from lamina.graph import Tensor
from lamina.layers import LSTM, Input
from lamina.workloads import WORKLOADS

PROCESSOR = replace(TRAITS, is_processor=True, lanes=8, fused=True)
# Launches are shared even if calls take long.
ALWAYS = 1e18


def launches_of(case: Case, traits: Traits = PROCESSOR, *, apart: bool = False) -> Launches:
    family = ProcessorFamily(traits, OPENCL_PROCESSOR, "opencl")
    program = compiled(case, family.target)
    return family.write(program, family.decide(program), apart=apart)


def chain(x: Tensor) -> Tensor:
    """Sums of rows of sums of columns: steps that depend on each other."""
    return ops.sum(ops.exp(x - ops.sum(x, 0, keepdims=True)), 1)


def products(count: int) -> Callable[..., Tensor]:
    """Products that do not depend on each other, then their sum."""

    def result(*leaves: Tensor) -> Tensor:
        found = [ops.matmul(x, y) for x, y in zip(leaves[:count], leaves[count:], strict=True)]
        return ops.concat(found, 0)

    return result


CHAIN = Case("chain", ((9, 7),), chain)
PRODUCTS = Case("products", ((300, 250),) * 2 + ((250, 200),) * 2, products(2))


def test_short_steps_are_one_launch_of_one_work_item() -> None:
    launches = launches_of(CHAIN)
    (launch,) = launches.launches
    assert len(launch.calls) > 1
    assert (launch.items, launch.group) == (1, 1)
    assert [call.step for call in launch.calls] == sorted(call.step for call in launch.calls)


def test_long_steps_are_launches_of_their_own_unless_they_are_independent() -> None:
    launches = launches_of(PRODUCTS)
    by_step = {call.step: launch for launch in launches.launches for call in launch.calls}
    several = [launch for launch in launches.launches if len(launch.calls) > 1]
    assert several
    for launch in several:
        assert launch.items == sum(call.items for call in launch.calls)
        assert all(call.items > 1 for call in launch.calls)
    # The copy of the products needs both.
    assert by_step[max(by_step)] is not by_step[min(by_step)]


def test_calls_are_apart_if_their_times_are_measured() -> None:
    for case in (CHAIN, PRODUCTS):
        launches = launches_of(case, apart=True)
        assert all(len(launch.calls) == 1 for launch in launches.launches)
        assert len(launches.launches) > len(launches_of(case).launches)


def test_all_launches_have_the_arguments_of_the_one_kernel() -> None:
    launches = launches_of(PRODUCTS)
    (head,) = (line for line in launches.text.splitlines() if line.startswith("__kernel void run("))
    for launch in launches.launches:
        assert len(launch.buffers) + len(launch.numbers) == head.count(",") + 1
        used = {name for call in launch.calls for name in call.buffers}
        assert used == set(launch.buffers) - {"", "own"}


@pytest.mark.parametrize("most", [3, 8])
def test_launches_have_no_more_buffers_than_a_kernel_takes(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor_groups, "_MOST_BUFFERS", most)
    monkeypatch.setattr(processor_groups, "_LAUNCH_CYCLES", ALWAYS)
    for case in (CHAIN, PRODUCTS):
        for launch in launches_of(case).launches:
            used = {name for name in launch.buffers if name not in ("", "own")}
            assert len(used) <= most or len(launch.calls) == 1


def test_the_memory_of_work_items_is_one_allocation() -> None:
    whole = launches_of(PRODUCTS)
    own = whole.workspaces["own"].bytes
    most = max(launch.items for launch in whole.launches)
    limit = own - 1
    limited = launches_of(PRODUCTS, replace(PROCESSOR, largest_block_bytes=limit))
    assert limited.workspaces["own"].bytes <= limit
    assert max(launch.items for launch in limited.launches) < most


def test_equal_launches_share_a_case_of_the_kernel() -> None:
    case = Case("powers", ((7, 7),), lambda x: ops.matmul(ops.matmul(ops.matmul(x, x), x), x))
    launches = launches_of(case, apart=True)
    choices = {launch.numbers[0] for launch in launches.launches}
    assert len(choices) < len(launches.launches)
    assert launches.text.count("choice ==") == len(choices)


@pytest.mark.parametrize("cycles", [-1.0, 1e4, ALWAYS], ids=["never", "short", "always"])
@pytest.mark.parametrize("length", [1, 5])
def test_a_recurrence_has_the_same_results_in_one_launch_and_in_many(
    opencl_name: str, cycles: float, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor_groups, "_LAUNCH_CYCLES", cycles)
    monkeypatch.setenv("LAMINA_CACHE", "0")
    x = np.random.default_rng(0).normal(size=(3, length, 4)).astype("float32")
    network = lm.Sequential(Input(length, 4), LSTM(6), lm.Flatten(), lm.Linear(2))
    results = [
        lm.Model(network, engine=engine, seed=0).predict(x) for engine in ("cpu", opencl_name)
    ]
    np.testing.assert_allclose(*results, rtol=2e-6, atol=2e-6)


def test_a_loop_of_short_steps_is_one_launch(opencl_name: str) -> None:
    network = lm.Sequential(Input(50, 3), LSTM(4), lm.Flatten(), lm.Linear(2))
    engine = open_engine(opencl_name)
    bill = network.plan(2, lm.CrossEntropy(), lm.SGD(0.1), engine=opencl_name)
    assert bill.program.repeats
    assert engine.launch_count(bill.program) < 10


def test_the_tiny_training_step_is_one_launch(opencl_name: str) -> None:
    workload, engine = WORKLOADS["tiny-step"], open_engine(opencl_name)
    bill = workload.network().plan(1, workload.loss, workload.optimizer, engine=opencl_name)
    assert engine.launch_count(bill.program) == 1
    listing = engine.listing(bill.program, None, "opencl")
    assert listing.count("// step ") == len(bill.program.steps) == 13
    assert listing.rstrip().endswith("}")
    assert "__kernel void run(" in listing
    last = engine.listing(bill.program, 12, "opencl")
    assert last.count("// step ") == 1
    assert "__kernel" not in last


def test_the_time_of_each_step_is_measured(opencl_name: str) -> None:
    network = lm.Sequential(Input(6), lm.Linear(5), lm.Tanh(), lm.Linear(3))
    model = lm.Model(network, engine=opencl_name)
    profile = model.profile(4, lm.CrossEntropy(), lm.SGD(0.1), seconds=0.05)
    assert len(profile.seconds) > 3
    assert all(seconds > 0 for seconds in profile.seconds)
