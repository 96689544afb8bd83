"""The choice between one thread and all of them, fed with simulated times."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from lamina.engines.cpu.run.thread_choice import LONG_SECONDS, ThreadChoice

# A counter of nanoseconds.
SECOND = 1e9

# Seconds of a run, by the time that has passed and whether one thread runs alone.
Machine = Callable[[float, bool], float]


def simulated(choice: ThreadChoice, machine: Machine, seconds: float) -> tuple[float, float]:
    """Runs for some time; returns the mean time of a run and the share of runs made alone."""
    passed, runs, alone = 0.0, 0, 0
    while passed < seconds:
        count = choice.runs
        spent = sum(machine(passed, choice.alone) for _ in range(count))
        passed, runs = passed + spent, runs + count
        alone += count * choice.alone
        choice.record(int(spent * SECOND))
    return passed / runs, alone / runs


@pytest.mark.parametrize(("together", "alone"), [(20e-6, 30e-6), (30e-6, 20e-6), (7e-4, 12e-4)])
def test_the_faster_choice_is_taken_and_the_other_costs_little(
    together: float, alone: float
) -> None:
    def machine(passed: float, is_alone: bool) -> float:
        return alone if is_alone else together

    mean, share = simulated(ThreadChoice(SECOND), machine, 2.0)
    assert mean < 1.02 * min(together, alone)
    assert (share > 0.5) == (alone < together)


def test_rare_long_waits_lead_to_one_thread() -> None:
    generator = random.Random(0)

    def machine(passed: float, is_alone: bool) -> float:
        if is_alone:
            return 20e-6
        # Every hundredth time a core is missing for 3 milliseconds.
        return 15e-6 + (3e-3 if generator.random() < 0.01 else 0.0)

    mean, share = simulated(ThreadChoice(SECOND), machine, 2.0)
    assert mean < 1.1 * 20e-6
    assert share > 0.95


def test_the_choice_follows_a_machine_that_gets_busy_and_idle_again() -> None:
    def machine(passed: float, is_alone: bool) -> float:
        if is_alone:
            return 20e-6
        return 12e-6 if not 1.0 < passed < 2.0 else 600e-6

    choice = ThreadChoice(SECOND)
    _, share = simulated(choice, machine, 1.0)
    assert share < 0.1
    passed = [1.0]

    def later(since: float, is_alone: bool) -> float:
        return machine(passed[0] + since, is_alone)

    mean, share = simulated(choice, later, 1.0)
    assert mean < 1.5 * 20e-6
    assert share > 0.8
    passed[0] = 2.0
    simulated(choice, later, 4.0)
    _, share = simulated(choice, later, 0.5)
    assert share < 0.2


def test_one_thread_is_never_tried_for_long_jobs() -> None:
    def machine(passed: float, is_alone: bool) -> float:
        assert not is_alone
        return 2 * LONG_SECONDS

    simulated(ThreadChoice(SECOND), machine, 3.0)


def test_usual_times_that_change_are_noticed_within_milliseconds() -> None:
    choice = ThreadChoice(SECOND)

    def mean(together: float, alone: float, seconds: float) -> float:
        return simulated(choice, lambda _, is_alone: alone if is_alone else together, seconds)[0]

    assert mean(23e-6, 35e-6, 0.3) < 1.02 * 23e-6
    assert mean(46e-6, 35e-6, 0.03) < 1.15 * 35e-6
    assert mean(46e-6, 35e-6, 0.3) < 1.02 * 35e-6
    # Only a trial shows this.
    assert mean(23e-6, 35e-6, 1.0) < 1.1 * 23e-6


@pytest.mark.parametrize("reading", [-(10**15), 0, int(3600 * SECOND)])
@pytest.mark.parametrize("runs", [0, 1, 2, 1000])
def test_a_reset_counter_and_a_stopped_process_change_nothing(reading: int, runs: int) -> None:
    """As when the machine sleeps, or a user presses Ctrl-Z."""

    def machine(_: float, is_alone: bool) -> float:
        return 30e-6 if is_alone else 20e-6

    choice = ThreadChoice(SECOND)
    for _ in range(runs):
        choice.record(int(choice.runs * machine(0.0, choice.alone) * SECOND))
    choice.record(reading)
    mean, _ = simulated(choice, machine, 1.0)
    assert mean < 1.05 * 20e-6


def test_runs_that_try_one_thread_are_marked_as_trials() -> None:
    choice = ThreadChoice(SECOND)
    tried = 0
    for _ in range(1000):
        if choice.trial and choice.alone:
            tried += 1
        choice.record(int((20e-6 if choice.alone else 10e-6) * choice.runs * SECOND))
        assert choice.trial or not choice.alone
    assert tried > 0
