"""The choice between one thread and all threads for a job, by measurement.

A program's cycles are only estimated, and other processes come and go. So a job for several threads
is timed with two candidates, one thread and all of them, and the one with the smaller mean time is
chosen. The other one is tried now and then, for a small part of the time. Results do not depend on
the choice. This is a bandit with two arms and discounted means (Garivier and Moulines, *On
upper-confidence bound policies for switching bandit problems*, 2011).

A mean has two terms. The usual time of a run changes when another process starts, or when the host
of a virtual machine moves a core. A few milliseconds of measurements show that. Long waits for a
core are rare, and only a long memory shows their cost. The other candidate keeps the mean of its
last trial; after a change of the machine it is tried again soon.
"""

from __future__ import annotations

import math
from typing import final

# How long usual times and long waits are remembered: in seconds and in runs; the longer one counts.
USUAL_SECONDS, USUAL_RUNS = 0.005, 50.0
RARE_SECONDS, RARE_RUNS = 0.1, 1000.0
# The time of a window above this multiple of its usual time is a long wait.
_RARE = 3.0
# The time between two decisions, of a trial, and of a trial that looks bad. A trial that has lost
# the time of a bad one ends at once.
WINDOW_SECONDS, TRIAL_SECONDS, _BAD_TRIAL_SECONDS = 0.0005, 0.002, 0.001
_TRIAL_RUNS, _BAD_TRIAL_RUNS = 10, 5
# The share of the time that trials of the other candidate may take: at first, and after many trials
# have confirmed the choice.
FIRST_BUDGET, LAST_BUDGET = 1 / 32, 1 / 256
# The machine has changed, and those trials show nothing any more, if the usual time of the chosen
# candidate is larger or smaller by this factor.
_CHANGED = 1.5
# For longer jobs one thread alone is never tried.
LONG_SECONDS = 0.005
# A longer time between two decisions is not a measurement of threads: the process was stopped, the
# machine was asleep, or the job is a long one.
_STOPPED_SECONDS = 1.0
# The weight of a candidate's earlier measurements after a trial has begun.
_STALE = 1e-3


@final
class _Candidate:
    """Discounted sums of the measured times of one candidate."""

    def __init__(self, ticks_per_second: float) -> None:
        self._second = ticks_per_second
        self._usual = self._usual_runs = 0.0
        self._rare = self._runs = 0.0
        # The time spent so far.
        self.ticks = 0.0

    @property
    def has_runs(self) -> bool:
        return self._runs > 0.0

    def usual(self) -> float:
        """The usual ticks of a run, without long waits."""
        return self._usual / self._usual_runs

    def mean(self) -> float:
        """The mean ticks of a run, long waits included."""
        return self.usual() + self._rare / self._runs

    def record(self, ticks: int, runs: int) -> None:
        usual = min(ticks, _RARE * runs * self.usual()) if self.has_runs else ticks
        decay = self._decay_factor(usual, runs, USUAL_SECONDS, USUAL_RUNS)
        self._usual = self._usual * decay + usual
        self._usual_runs = self._usual_runs * decay + runs
        decay = self._decay_factor(ticks, runs, RARE_SECONDS, RARE_RUNS)
        self._rare = self._rare * decay + ticks - usual
        self._runs = self._runs * decay + runs
        self.ticks += ticks

    def _decay_factor(self, ticks: float, runs: int, seconds: float, most: float) -> float:
        return math.exp(-ticks / max(seconds * self._second, most * ticks / runs))

    def mark_stale(self) -> None:
        """Gives new measurements of the usual time far more weight than earlier ones."""
        self._usual *= _STALE
        self._usual_runs *= _STALE


@final
class ThreadChoice:
    """Decides whether a job is run by one thread alone.

    Its owner does runs, `alone` or with all threads, until they have taken `window` ticks, and
    reports them to `record`, which decides again. `trial` is set while the present candidate is
    only tried.

    Args:
        ticks_per_second: the rate of the counter that times the runs.
    """

    def __init__(self, ticks_per_second: float) -> None:
        self.alone = False
        # The first window is one run.
        self.window = 1
        self.trial = False
        self._second = ticks_per_second
        self._together, self._alone = _Candidate(ticks_per_second), _Candidate(ticks_per_second)
        self._first = True
        self._budget = FIRST_BUDGET
        # The ticks and runs of the trial so far, the ticks that it has lost, and the ticks that
        # trials may still cost.
        self._tried = self._lost = 0.0
        self._tried_runs = 0
        self._credit = 0.0
        # The usual time of the chosen candidate at the end of the last trial.
        self._compared = 0.0

    def record(self, ticks: int, runs: int) -> None:
        """Records the ticks of the last runs, and decides about the next ones."""
        current, other = self._together, self._alone
        if self.alone:
            current, other = other, current
        # A counter may also restart while the machine sleeps.
        if not 0 < ticks < _STOPPED_SECONDS * self._second:
            return
        if self._first:
            # The first run is not a measurement: its memory was not in the caches yet. A short job
            # is measured alone first. At worst that takes as many times as long as there are
            # threads; threads that must share their cores can take a hundred times as long.
            self._first = False
            self.alone = ticks < LONG_SECONDS * self._second
            self.window = int(WINDOW_SECONDS * self._second)
        elif self.trial:
            self._lost += max(ticks - other.mean() * runs, 0.0)
            # Helpers wake up in the first window of a trial.
            counts = self._tried > 0.0 or self._lost >= self._most_lost(other)
            self._tried += ticks
            self._tried_runs += runs
            if counts:
                current.record(ticks, runs)
                self._end_trial_if_decided(current, other)
        else:
            current.record(ticks, runs)
            self._credit += ticks * self._budget
            self._begin_trial_if_affordable(current, other)

    def _end_trial_if_decided(self, current: _Candidate, other: _Candidate) -> None:
        """Ends a trial that has lasted long enough, or that looks bad."""
        most_lost = self._most_lost(other)
        if current.mean() >= other.mean():
            if self._lost < most_lost and not self._has_tried(_BAD_TRIAL_SECONDS, _BAD_TRIAL_RUNS):
                return
            self.alone, self._budget = not self.alone, max(self._budget / 2, LAST_BUDGET)
            self._compared = other.usual()
        elif self._has_tried(TRIAL_SECONDS, _TRIAL_RUNS):
            self._budget, self._compared = FIRST_BUDGET, current.usual()
        else:
            return
        self.trial = False
        # No more: a long wait during the trial may have come by chance.
        self._credit -= min(self._lost, most_lost)

    def _has_tried(self, seconds: float, runs: int) -> bool:
        return self._tried >= seconds * self._second and self._tried_runs >= runs

    def _most_lost(self, chosen: _Candidate) -> float:
        """The ticks that a trial may lose, compared with the chosen candidate."""
        return max(_BAD_TRIAL_SECONDS * self._second, _BAD_TRIAL_RUNS * chosen.mean())

    def _begin_trial_if_affordable(self, current: _Candidate, other: _Candidate) -> None:
        """Tries the other candidate if its mean is smaller, or if the budget allows a trial."""
        if current.ticks < TRIAL_SECONDS * self._second:
            return
        is_long = not self.alone and current.mean() > LONG_SECONDS * self._second
        if other.has_runs and other.mean() < current.mean():
            self._budget = FIRST_BUDGET
        elif is_long:
            return
        elif other.has_runs:
            # The ticks that a trial of the other candidate will lose.
            runs = max(_BAD_TRIAL_SECONDS * self._second / other.mean(), _BAD_TRIAL_RUNS)
            cost = min((other.mean() - current.mean()) * runs, self._most_lost(current))
            if not 1 / _CHANGED < current.usual() / self._compared < _CHANGED:
                # The other candidate's mean tells nothing about the changed machine.
                self._budget, cost = FIRST_BUDGET, 0.0
            if self._credit < cost:
                return
        other.mark_stale()
        self.trial, self.alone = True, not self.alone
        self._tried, self._lost, self._tried_runs = 0.0, 0.0, 0
