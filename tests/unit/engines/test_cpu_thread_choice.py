"""The choice between one thread and all of them, fed with simulated times."""

import random

import pytest

from lamina.engines.cpu.run.thread_choice import LONG_SECONDS, ThreadChoice

# A counter of nanoseconds.
SECOND = 1e9


def simulated(choice, machine, seconds):
    """Runs for some time; returns the mean time of a run and the share of runs made alone."""
    passed, runs, alone = 0.0, 0, 0
    while passed < seconds:
        spent, count = 0.0, 0
        while spent * SECOND < choice.window:
            spent, count = spent + machine(passed + spent, choice.alone), count + 1
        passed, runs = passed + spent, runs + count
        alone += count * choice.alone
        choice.record(int(spent * SECOND), count)
    return passed / runs, alone / runs


def steady(together, alone):
    return lambda _, is_alone: alone if is_alone else together


def busy_machine(generator, together, alone):
    """Another process takes a core for 4 milliseconds after as much work of each thread."""

    def machine(_, is_alone):
        seconds, threads = (alone, 1) if is_alone else (together, 2)
        return seconds + 0.004 * (generator.random() < threads * seconds / 0.004)

    return machine


@pytest.mark.parametrize(("together", "alone"), [(20e-6, 30e-6), (30e-6, 20e-6), (7e-4, 12e-4)])
def test_the_faster_choice_is_taken_and_the_other_costs_little(together, alone):
    mean, share = simulated(ThreadChoice(SECOND), steady(together, alone), 2.0)
    assert mean < 1.02 * min(together, alone)
    assert (share > 0.5) == (alone < together)


def test_rare_long_waits_lead_to_one_thread():
    generator = random.Random(0)

    def machine(passed, is_alone):
        if is_alone:
            return 20e-6
        # Every hundredth time a core is missing for 3 milliseconds.
        return 15e-6 + (3e-3 if generator.random() < 0.01 else 0.0)

    mean, share = simulated(ThreadChoice(SECOND), machine, 2.0)
    assert mean < 1.1 * 20e-6
    assert share > 0.95


def test_the_choice_follows_a_machine_that_gets_busy_and_idle_again():
    def machine(passed, is_alone):
        if is_alone:
            return 20e-6
        return 12e-6 if not 1.0 < passed < 2.0 else 600e-6

    choice = ThreadChoice(SECOND)
    _, share = simulated(choice, machine, 1.0)
    assert share < 0.1
    passed = [1.0]

    def later(since, is_alone):
        return machine(passed[0] + since, is_alone)

    mean, share = simulated(choice, later, 1.0)
    assert mean < 1.5 * 20e-6
    assert share > 0.8
    passed[0] = 2.0
    simulated(choice, later, 4.0)
    _, share = simulated(choice, later, 0.5)
    assert share < 0.2


@pytest.mark.parametrize("seed", range(10))
def test_waits_of_the_past_do_not_keep_a_choice_that_has_become_slow(seed):
    """Other processes go, and spinning threads of another library in this process come."""
    choice = ThreadChoice(SECOND)
    simulated(choice, steady(20e-6, 33e-6), 0.5)
    simulated(choice, busy_machine(random.Random(seed), 20e-6, 33e-6), 1.0)
    mean, _ = simulated(choice, steady(100e-6, 33e-6), 0.1)
    assert mean < 1.3 * 33e-6


@pytest.mark.parametrize("together", [100e-6, 4e-3])
def test_helpers_that_find_no_core_cost_little_from_the_first_runs_on(together):
    choice = ThreadChoice(SECOND)
    choice.record(int(together * SECOND), 1)
    mean, _ = simulated(choice, steady(together, 10e-6), 0.1)
    assert mean < 1.1 * 10e-6


def test_one_thread_is_never_tried_for_long_jobs():
    def machine(passed, is_alone):
        assert not is_alone
        return 2 * LONG_SECONDS

    simulated(ThreadChoice(SECOND), machine, 3.0)


def test_usual_times_that_change_are_noticed_within_milliseconds():
    choice = ThreadChoice(SECOND)

    def mean(together, alone, seconds):
        return simulated(choice, steady(together, alone), seconds)[0]

    assert mean(23e-6, 35e-6, 0.3) < 1.02 * 23e-6
    assert mean(46e-6, 35e-6, 0.03) < 1.15 * 35e-6
    assert mean(46e-6, 35e-6, 0.3) < 1.02 * 35e-6
    # Only a trial shows this.
    assert mean(23e-6, 35e-6, 1.0) < 1.1 * 23e-6


@pytest.mark.parametrize("reading", [-(10**15), 0, int(3600 * SECOND)])
@pytest.mark.parametrize("runs", [0, 1, 2, 1000])
def test_a_reset_counter_and_a_stopped_process_change_nothing(reading, runs):
    """As when the machine sleeps, or a user presses Ctrl-Z."""
    choice, machine = ThreadChoice(SECOND), steady(20e-6, 30e-6)
    for _ in range(runs):
        choice.record(int(20 * machine(0.0, choice.alone) * SECOND), 20)
    choice.record(reading, 20)
    mean, _ = simulated(choice, machine, 1.0)
    assert mean < 1.05 * 20e-6


def test_runs_that_try_one_thread_are_marked_as_trials():
    choice = ThreadChoice(SECOND)
    simulated(choice, steady(10e-6, 20e-6), 0.01)
    tried = 0
    for _ in range(1000):
        if choice.trial and choice.alone:
            tried += 1
        choice.record(int((20e-6 if choice.alone else 10e-6) * 50 * SECOND), 50)
        assert choice.trial or not choice.alone
    assert tried > 0
