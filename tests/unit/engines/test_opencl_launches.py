"""Calls of kernels for processors share launches: side by side, or in order."""

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from gpu_cases import TRAITS, Case, compiled

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32
from lamina.codegen.words import OPENCL_PROCESSOR
from lamina.engines.gpu.executable import GpuProgram
from lamina.engines.opencl import launch_plan, processors
from lamina.engines.opencl.launch_plan import LaunchPlan
from lamina.engines.opencl.processors import ProcessorFamily
from lamina.layers import LSTM, Input
from lamina.learning.by_output import options_of
from lamina.step.planning import bill_of
from lamina.step.precision import Precision
from lamina.workloads import WORKLOADS

PROCESSOR = replace(TRAITS, is_processor=True, lanes=8, fused=True)
FAMILY = ProcessorFamily(PROCESSOR, OPENCL_PROCESSOR, "opencl")
# Launches are shared even if calls take long.
ALWAYS = 1e18


def launches_of(case, *, separate=False):
    program = compiled(case, FAMILY.target)
    return FAMILY.write(program, FAMILY.decide(program), separate=separate)


def chain(x):
    """Sums of rows of sums of columns: steps that depend on each other."""
    return ops.sum(ops.exp(x - ops.sum(x, 0, keepdims=True)), 1)


def products(count):
    """Products that do not depend on each other, then their sum."""

    def result(*leaves):
        found = [ops.matmul(x, y) for x, y in zip(leaves[:count], leaves[count:], strict=True)]
        return ops.concat(found, 0)

    return result


CHAIN = Case("chain", ((9, 7),), chain)
PRODUCTS = Case("products", ((300, 250),) * 2 + ((250, 200),) * 2, products(2))


def test_short_steps_are_one_launch_of_one_work_item():
    launches = launches_of(CHAIN)
    (launch,) = launches.launches
    assert len(launch.calls) > 1
    assert (launch.items, launch.group) == (1, 1)
    assert [call.step for call in launch.calls] == sorted(call.step for call in launch.calls)


def test_long_steps_are_launches_of_their_own_unless_they_are_independent():
    launches = launches_of(PRODUCTS)
    by_step = {call.step: launch for launch in launches.launches for call in launch.calls}
    several = [launch for launch in launches.launches if len(launch.calls) > 1]
    assert several
    for launch in several:
        assert launch.items == max(call.items for call in launch.calls)
        assert all(call.items > 1 for call in launch.calls)
    # The copy of the products needs both.
    assert by_step[max(by_step)] is not by_step[min(by_step)]


def test_calls_are_separate_if_their_times_are_measured():
    for case in (CHAIN, PRODUCTS):
        launches = launches_of(case, separate=True)
        assert all(len(launch.calls) == 1 for launch in launches.launches)
        assert len(launches.launches) > len(launches_of(case).launches)


def test_all_launches_have_the_arguments_of_the_one_kernel():
    launches = launches_of(PRODUCTS)
    (head,) = (line for line in launches.text.splitlines() if line.startswith("__kernel void run("))
    for launch in launches.launches:
        assert 2 * len(launch.buffers) + len(launch.numbers) == head.count(",") + 1
        used = {name for call in launch.calls for name in call.buffers}
        assert used == set(launch.buffers) - {"", "own"}


@pytest.mark.parametrize("cycles", [-1.0, ALWAYS], ids=["never", "always"])
@pytest.mark.parametrize("most", [3, 8])
def test_launches_have_no_more_buffers_than_a_kernel_takes(most, cycles, monkeypatch):
    monkeypatch.setattr(launch_plan, "_MOST_BUFFERS", most)
    monkeypatch.setattr(launch_plan, "_LAUNCH_CYCLES", cycles)
    many = Case("products", ((30, 25),) * 5 + ((25, 20),) * 5, products(5))
    for case in (CHAIN, PRODUCTS, many):
        launches = launches_of(case).launches
        for launch in launches:
            used = {name for name in launch.buffers if name not in ("", "own")}
            assert len(used) <= most or len(launch.calls) == 1
        single = launches_of(case, separate=True).launches
        steps = [call.step for launch in launches for call in launch.calls]
        assert steps == [launch.step for launch in single]


def test_calls_side_by_side_need_no_more_memory_than_separate_ones():
    for count in (2, 5):
        case = Case("products", ((300, 250),) * count + ((250, 200),) * count, products(count))
        own = launches_of(case).workspaces["own"].bytes
        assert own == launches_of(case, separate=True).workspaces["own"].bytes


@pytest.mark.sampled
@pytest.mark.parametrize("cycles", [-1.0, 8e4, ALWAYS], ids=["never", "short", "always"])
@pytest.mark.parametrize("name", ["tiny-step", "lenet", "lstm", "transformer"])
def test_the_launches_of_a_training_step_keep_its_calls_and_their_order(name, cycles, monkeypatch):
    monkeypatch.setattr(launch_plan, "_LAUNCH_CYCLES", cycles)
    program = training_program(name)
    decided = FAMILY.decide(program)
    launches, single = (FAMILY.write(program, decided, separate=apart) for apart in (False, True))
    calls = [call for launch in launches.launches for call in launch.calls]
    expected = [call for launch in single.launches for call in launch.calls]
    assert [(x.kernel, x.step) for x in calls] == [(x.kernel, x.step) for x in expected]
    # A loop is repeated by the same launches, or within one launch.
    separate = {
        (repeat.count, single.launches[repeat.first].step, single.launches[repeat.last - 1].step)
        for repeat in single.repeats
    }
    for repeat in launches.repeats:
        repeated = launches.launches[repeat.first : repeat.last]
        steps = [call.step for launch in repeated for call in launch.calls]
        assert (repeat.count, steps[0], steps[-1]) in separate
    inside = launches.text.count("for (ulong i") - single.text.count("for (ulong i")
    assert len(launches.repeats) + inside == len(single.repeats)


@pytest.mark.parametrize("name", ["mlp", "lenet", "lstm", "transformer"])
def test_calls_side_by_side_touch_no_memory_that_another_one_writes(name, on_call, monkeypatch):
    monkeypatch.setattr(launch_plan, "_LAUNCH_CYCLES", -1.0)
    program = training_program(name)
    captured = []
    on_call(processors, "launches_of", lambda _, written, *__, **___: captured.append(written))
    FAMILY.write(program, FAMILY.decide(program))
    (written,) = captured
    plan = LaunchPlan(program, written, PROCESSOR, separate=False)
    positions = program.plan.positions()
    memory = {}
    for allocation in program.plan.allocations:
        offset = positions[allocation.buffer]
        memory[allocation.buffer] = ("arena", offset, offset + allocation.bytes)
    workspaces = written.workspaces.extents
    memory |= {workspace: ("workspaces", *extent) for workspace, extent in workspaces.items()}
    several = 0
    for launch in plan.launches(written.calls, written.loops):
        assert not launch.in_order
        for call, other in permutations(launch.calls, 2):
            several += 1
            for changed, used in product(call.writes, other.reads | other.writes):
                assert changed != used
                owner, start, end = memory.get(changed, (changed, 0, 1))
                its, its_start, its_end = memory.get(used, (used, 0, 1))
                assert owner != its or end <= its_start or its_end <= start, (changed, used)
    assert several


def training_program(name):
    one = WORKLOADS[name]
    options = options_of(one.loss, one.optimizer, None, (), name)
    how = Precision(float32, None), lambda: None, FAMILY.target
    return bill_of(one.network(), one.batch, options, *how).program


def test_equal_launches_share_a_case_of_the_kernel():
    case = Case("powers", ((7, 7),), lambda x: ops.matmul(ops.matmul(ops.matmul(x, x), x), x))
    launches = launches_of(case, separate=True)
    numbers = {launch.numbers[0] for launch in launches.launches}
    assert len(numbers) < len(launches.launches)
    assert launches.text.count("number ==") == len(numbers)


@pytest.mark.parametrize("cycles", [-1.0, 1e4, ALWAYS], ids=["never", "short", "always"])
@pytest.mark.parametrize("length", [1, 5])
def test_a_recurrence_has_the_same_results_in_one_launch_and_in_many(
    opencl_name, cycles, length, monkeypatch
):
    monkeypatch.setattr(launch_plan, "_LAUNCH_CYCLES", cycles)
    monkeypatch.setenv("LAMINA_CACHE", "0")
    x = np.random.default_rng(0).normal(size=(3, length, 4)).astype("float32")
    network = lm.Sequential(Input(length, 4), LSTM(6), lm.Flatten(), lm.Linear(2))
    results = [
        lm.Model(network, engine=engine, seed=0).predict(x) for engine in ("cpu", opencl_name)
    ]
    np.testing.assert_allclose(*results, rtol=2e-6, atol=2e-6)


@pytest.fixture
def processor(engine):
    """The first device of OpenCL, if it takes kernels for processors."""
    if not isinstance(engine.family, ProcessorFamily):
        pytest.skip("the first device of OpenCL takes kernels for GPUs")
    return engine


def test_a_loop_of_short_steps_is_one_launch(processor):
    network = lm.Sequential(Input(50, 3), LSTM(4), lm.Flatten(), lm.Linear(2))
    bill = network.plan(2, lm.CrossEntropy(), lm.SGD(0.1), engine=processor.device.engine)
    assert len(bill.program.repeats) == 2
    assert processor.launch_count(bill.program) == 1


def test_the_tiny_training_step_is_one_launch(processor):
    workload, name = WORKLOADS["tiny-step"], processor.device.engine
    bill = workload.network().plan(1, workload.loss, workload.optimizer, engine=name)
    assert processor.launch_count(bill.program) == 1
    listing = processor.listing(bill.program, None, "opencl")
    assert listing.count("// step ") == len(bill.program.steps) == 13
    assert listing.rstrip().endswith("}")
    assert "__kernel void run(" in listing
    last = processor.listing(bill.program, 12, "opencl")
    assert last.count("// step ") == 1
    assert "__kernel" not in last


def test_the_time_of_each_step_is_measured(opencl_name, on_call):
    waited = []
    on_call(GpuProgram, "output", lambda _, name: waited.append(name))
    network = lm.Sequential(Input(6), lm.Linear(5), lm.Tanh(), lm.Linear(3))
    profile = lm.Model(network, engine=opencl_name).profile(
        4, lm.CrossEntropy(), lm.SGD(0.1), seconds=0.05
    )
    assert len(profile.seconds) > 3
    assert all(seconds > 0 for seconds in profile.seconds)
    # The device is waited for before and after the runs without clocks.
    assert waited == ["loss", "loss"]
