"""Whether more than one thread pays for a job, as measured: how many threads run it.

A program's cycles are only estimated, and other processes come and go. So a job that may be run by
several threads is measured both ways, by one thread and by all of them, and the way with the lesser
mean time is taken. The other way is tried now and then, for a small part of the time. Results do
not depend on the choice. This is a bandit with two arms and discounted means (Garivier and
Moulines, *On upper-confidence bound policies for switching bandit problems*, 2011).

A mean has two parts. What runs usually take changes when a neighbour comes or the host of a virtual
machine moves a core, and a few milliseconds tell. Long waits for a core are rare, and only a long
memory tells how much they cost.
"""

from __future__ import annotations

import math
from typing import final

# Usual times are remembered for about so long, or so many runs; long waits as well.
USUAL_SECONDS, USUAL_RUNS = 0.005, 50.0
RARE_SECONDS, RARE_RUNS = 0.1, 1000.0
# What a window takes beyond so many times its usual time is a long wait.
_RARE = 3.0
# The time between two decisions; that of a trial, and of one that soon looks bad.
WINDOW_SECONDS, TRIAL_SECONDS, MOST_RUNS = 0.0005, 0.002, 1000
_BAD_TRIAL_SECONDS = 0.001
_TRIAL_RUNS, _BAD_TRIAL_RUNS = 10, 5
# Which part of the time trials of the other way may cost: at first, and when they have confirmed
# the choice again and again.
FIRST_BUDGET, LAST_BUDGET = 1 / 32, 1 / 256
# Of longer jobs every thread takes a part as it comes: one thread alone is never tried.
LONG_SECONDS = 0.005
# A longer time between two decisions says nothing of threads: the process was stopped, the machine
# was asleep, or the job is one of those long ones.
_STOPPED_SECONDS = 1.0
# What is known of a way before a trial counts so little after it.
_STALE = 1e-3


@final
class _Way:
    """What is known of one way to run a job, in discounted sums."""

    def __init__(self, ticks_per_second: float) -> None:
        self._second = ticks_per_second
        self._usual = self._usual_runs = 0.0
        self._rare = self._runs = 0.0
        # The time that was spent so far.
        self.ticks = 0.0

    @property
    def known(self) -> bool:
        return self._runs > 0.0

    def usual(self) -> float:
        """The ticks that a run usually takes."""
        return self._usual / self._usual_runs

    def mean(self) -> float:
        """The ticks of a run, long waits included."""
        return self.usual() + self._rare / self._runs

    def window(self, seconds: float) -> int:
        """How many runs take so long."""
        if not self.known:
            return 1
        # Not many more than are known: they may have been lucky.
        most = min(4 * self._runs, MOST_RUNS)
        return max(1, int(min(seconds * self._second / self.usual(), most)))

    def ran(self, ticks: int, runs: int) -> None:
        usual = min(ticks, _RARE * runs * self.usual()) if self.known else ticks
        kept = self._kept(usual, runs, USUAL_SECONDS, USUAL_RUNS)
        self._usual = self._usual * kept + usual
        self._usual_runs = self._usual_runs * kept + runs
        kept = self._kept(ticks, runs, RARE_SECONDS, RARE_RUNS)
        self._rare = self._rare * kept + ticks - usual
        self._runs = self._runs * kept + runs
        self.ticks += ticks

    def _kept(self, ticks: float, runs: int, seconds: float, most: float) -> float:
        return math.exp(-ticks / max(seconds * self._second, most * ticks / runs))

    def doubt(self) -> None:
        """What runs usually take is asked anew."""
        self._usual *= _STALE
        self._usual_runs *= _STALE


@final
class ThreadChoice:
    """Decides whether a job is run by one thread alone.

    Its owner makes `runs` runs, `alone` or together, and reports them by `ran`, which decides
    again. `trial` says that the way is only tried.

    Args:
        ticks_per_second: of the counter that times the runs.
    """

    def __init__(self, ticks_per_second: float) -> None:
        self.alone = False
        self.runs = 1
        self.trial = False
        self._second = ticks_per_second
        self._together, self._alone = _Way(ticks_per_second), _Way(ticks_per_second)
        self._first = True
        self._budget = FIRST_BUDGET
        # The ticks and runs of the trial so far, and what trials may still cost.
        self._tried = 0.0
        self._tried_runs = 0
        self._credit = 0.0

    def ran(self, ticks: int) -> None:
        """Takes note of what `runs` runs took, and decides about the next ones."""
        way, other = self._ways()
        # A counter may also begin anew while the machine sleeps.
        if not 0 < ticks < _STOPPED_SECONDS * self._second:
            return
        if self._first:
            # Its memory was not in the caches yet.
            self._first = False
        elif self.trial:
            self._credit -= max(ticks - other.mean() * self.runs, 0.0)
            # Helpers wake up in the first window of a trial.
            counts = self._tried > 0.0 or not way.known
            self._tried += ticks
            self._tried_runs += self.runs
            if counts:
                way.ran(ticks, self.runs)
                self._judge(way, other)
        else:
            way.ran(ticks, self.runs)
            self._credit += ticks * self._budget
            self._consider(way, other)
        way, _ = self._ways()
        self.runs = way.window(WINDOW_SECONDS)

    def _ways(self) -> tuple[_Way, _Way]:
        """The present way and the other one."""
        if self.alone:
            return self._alone, self._together
        return self._together, self._alone

    def _judge(self, way: _Way, other: _Way) -> None:
        """Ends a trial that has lasted long enough, or looks bad."""
        if way.mean() >= other.mean():
            if self._has_tried(_BAD_TRIAL_SECONDS, _BAD_TRIAL_RUNS):
                self.trial, self.alone = False, not self.alone
                self._budget = max(self._budget / 2, LAST_BUDGET)
        elif self._has_tried(TRIAL_SECONDS, _TRIAL_RUNS):
            self.trial, self._budget = False, FIRST_BUDGET

    def _has_tried(self, seconds: float, runs: int) -> bool:
        return self._tried >= seconds * self._second and self._tried_runs >= runs

    def _consider(self, way: _Way, other: _Way) -> None:
        """Tries the other way if it is thought to be better, or if that can be afforded."""
        if not self.alone and way.mean() > LONG_SECONDS * self._second:
            return
        if way.ticks < TRIAL_SECONDS * self._second:
            return
        if other.known:
            more = other.mean() - way.mean()
            if more < 0.0:
                self._budget = FIRST_BUDGET
            elif self._credit < more * max(other.window(_BAD_TRIAL_SECONDS), _BAD_TRIAL_RUNS):
                return
            other.doubt()
        self.trial, self._tried, self._tried_runs = True, 0.0, 0
        self.alone = not self.alone
