"""Whether more than one thread pays for a job, as measured: how many threads run it.

A program's cycles are only estimated, and other processes come and go. So a job that may be run by
several threads is measured both ways, by one thread and by all of them, and the way with the lesser
mean time is taken. The other way is tried now and then, for a small part of the time. Results do
not depend on the choice. This is a bandit with two arms and discounted means (Garivier and
Moulines, *On upper-confidence bound policies for switching bandit problems*, 2011).
"""

from __future__ import annotations

import math
from typing import final

# Means are taken over about so much time of a way, and so many runs, so that they hold the rare
# long waits for a core, too.
MEMORY_SECONDS, MEMORY_RUNS = 0.1, 1000.0
# The time between two decisions, and that of a trial: helpers take some time to wake up.
WINDOW_SECONDS, TRIAL_SECONDS, MOST_RUNS = 0.0005, 0.002, 1000
# Which part of the time trials of the other way may cost: at first, and when they have confirmed
# the choice again and again.
FIRST_BUDGET, LAST_BUDGET = 1 / 32, 1 / 400
# Of longer jobs every thread takes a part as it comes: one thread alone is never tried.
LONG_SECONDS = 0.005
# A trial that takes so many times as long as the chosen way is given up early.
_HOPELESS = 2.0
# A mean that has changed so much since the last trial puts the choice into question.
_DOUBTFUL = 1.3


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
        self._second = ticks_per_second
        # Of each way, together and alone: discounted ticks and runs.
        self._ticks = [0.0, 0.0]
        self._count = [0.0, 0.0]
        self._first = True
        self.trial = False
        self._budget = FIRST_BUDGET
        # The ticks of the trial so far, and what trials may still cost.
        self._tried = 0.0
        self._credit = 0.0
        # The mean of the chosen way when a trial last confirmed it.
        self._confirmed = math.nan

    def seconds(self, *, alone: bool) -> float:
        """The mean time of a run of late; NaN before the first one."""
        count = self._count[alone]
        return self._ticks[alone] / count / self._second if count else math.nan

    def ran(self, ticks: int) -> None:
        """Takes note of what `runs` runs took, and decides about the next ones."""
        way, runs = self.alone, self.runs
        if self._first:
            # Its memory was not in the caches yet.
            self._first = False
            return
        memory = max(MEMORY_SECONDS * self._second, MEMORY_RUNS * ticks / runs)
        kept = math.exp(-ticks / memory)
        self._ticks[way] = self._ticks[way] * kept + ticks
        self._count[way] = self._count[way] * kept + runs
        if self.trial:
            other = self._mean(not way)
            self._credit -= max(ticks - other * runs, 0.0)
            self._tried += ticks
            hopeless = ticks > _HOPELESS * other * runs
            if hopeless or self._tried >= TRIAL_SECONDS * self._second:
                self._end_trial()
        else:
            self._credit += ticks * self._budget
            self._consider()
        self.runs = self._window(self.alone, WINDOW_SECONDS)

    def _window(self, way: bool, seconds: float) -> int:
        """How many runs take so long."""
        if not self._count[way]:
            return 1
        # Not many more than are known: they may have been lucky.
        most = min(4 * self._count[way], MOST_RUNS)
        return max(1, int(min(seconds * self._second / self._mean(way), most)))

    def _mean(self, way: bool) -> float:
        return self._ticks[way] / self._count[way]

    def _end_trial(self) -> None:
        """The better way is taken; if that is the one from before, all the surer."""
        self.trial = False
        together, alone = self._mean(False), self._mean(True)
        if (alone < together) == self.alone:
            self._budget = FIRST_BUDGET
        else:
            self._budget = max(self._budget / 2, LAST_BUDGET)
            self.alone = not self.alone
        self._confirmed = self._mean(self.alone)

    def _consider(self) -> None:
        """Takes the other way if it is known to be better, or tries it if that can be afforded."""
        way, mean = self.alone, self._mean(self.alone)
        if not way and mean > LONG_SECONDS * self._second:
            return
        if self._ticks[way] < TRIAL_SECONDS * self._second:
            return
        cost = 0.0
        if self._count[not way]:
            other = self._mean(not way)
            if other < mean:
                self.alone = not way
                self._budget, self._confirmed = FIRST_BUDGET, other
                return
            if not 1 / _DOUBTFUL < mean / self._confirmed < _DOUBTFUL:
                self._doubt()
            cost = (other - mean) * self._window(not way, TRIAL_SECONDS)
        if self._credit >= cost:
            self.trial, self._tried = True, 0.0
            self.alone = not way

    def _doubt(self) -> None:
        """The machine is another one than it was: what is known of the other way counts little."""
        self._budget, self._confirmed = FIRST_BUDGET, self._mean(self.alone)
        other = not self.alone
        if self._count[other]:
            part = min(1.0, self._window(other, TRIAL_SECONDS) / self._count[other])
            self._ticks[other] *= part
            self._count[other] *= part
