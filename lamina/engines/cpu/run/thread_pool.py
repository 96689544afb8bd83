"""The threads that run programs together: one pool for the process.

Helpers are Python threads inside native code, which they leave only when the process ends; ctypes
releases the interpreter's lock for them. They are started when a program first needs them, and are
never waited for: see `scheduler`.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, final

import numpy as np

from lamina.engines.cpu.processor import host
from lamina.engines.cpu.run import jobs, scheduler, waiting
from lamina.engines.cpu.run.jobs import Kernel, Phase
from lamina.engines.cpu.run.machine_code import Library, compiled
from lamina.engines.cpu.run.thread_choice import TRIAL_SECONDS, ThreadChoice
from lamina.engines.cpu.slices import slices
from lamina.engines.host import aligned
from lamina.shapes import Array
from lamina.shielded import shielded

# How long the end of the process waits for a job that is under way.
PATIENCE_SECONDS = 10.0
# A thread that works offers its core to others so often, between two chunks.
YIELD_SECONDS = 0.002
# A waiting thread that misses so long another thread had its core, and may want it for a while.
# Interrupts, and the host of a virtual machine, take shorter times.
GAP_SECONDS, BUSY_SECONDS = 0.0005, 0.05
# Helpers stay awake so long while one thread alone is tried: a trial takes a little more than its
# time, as the run in which that ends is finished.
AWAKE_SECONDS = 2 * TRIAL_SECONDS
# Long enough that the moments of reading both clocks do not matter.
_CALIBRATION_SECONDS = 0.002
# Bytes that are copied in a cycle, roughly.
_COPIED_PER_CYCLE = 8.0


@final
class Job:
    """Kernels bound to their buffers, ready to be run.

    Args:
        functions: the addresses of the kernels' functions.
        kernels, phases: what is run; see `jobs`.
        threads: how many may take part.
        table: the addresses of the buffers, uint64.
        iteration: where the iteration of repeated phases is noted, int64.
        timed: whether the ticks of each phase are added up.
    """

    def __init__(
        self,
        functions: Sequence[int],
        kernels: Sequence[Kernel],
        phases: Sequence[Phase],
        threads: int,
        table: Array,
        iteration: Array,
        *,
        timed: bool = False,
    ) -> None:
        self.threads = threads
        self.runs = 1
        self._native = _native()
        self._table, self._iteration = table, iteration
        self._words = words = np.zeros(jobs.JOB_WORDS, np.int64)
        self.address = int(words.ctypes.data)
        # In front: the phase that runs begin behind, and the one that gathers their examples.
        self._kernels = _rows(1 + len(kernels), jobs.KERNEL_WORDS)
        self._phases = _rows(_IN_FRONT + len(phases), jobs.PHASE_WORDS)
        self._limits = _rows(_IN_FRONT + len(phases), threads + 1)
        for number, kernel in enumerate(kernels, 1):
            section = table.ctypes.data + table.itemsize * kernel.section
            slices = (kernel.units, kernel.at_once, kernel.share, kernel.offset)
            self._kernels[number] = (functions[kernel.function], section, *slices)
        for number, phase in enumerate(phases, _IN_FRONT):
            edges, back = (1 + phase.first, 1 + phase.last), _IN_FRONT + phase.back
            self._phases[number] = (*edges, phase.shared, back, phase.iterations)
            if phase.shared:
                self._limit(number, kernels[phase.first : phase.last])
        self._ticks = np.zeros(len(self._phases), np.int64)
        words[jobs.KERNELS] = self._kernels.ctypes.data
        words[jobs.PHASES] = self._phases.ctypes.data
        words[jobs.LIMITS] = self._limits.ctypes.data
        words[jobs.PHASE_COUNT] = len(self._phases)
        words[jobs.JOB_THREADS] = threads
        words[jobs.ITERATION] = iteration.ctypes.data
        words[jobs.TICKS] = self._ticks.ctypes.data if timed else 0
        words[jobs.ALONE] = threads == 1
        words[jobs.RUNS] = 1
        words[jobs.START] = _ONCE
        self._choice = ThreadChoice(ticks_per_second()) if threads > 1 and not timed else None
        # Runs until the choice is made anew.
        self._left = 1
        self._kept: Sequence[Array] = ()

    def _limit(self, phase: int, kernels: Sequence[Kernel]) -> None:
        """Notes how many chunks of a phase each thread has in its slot, and how many there are."""
        for slot in range(self.threads):
            chunks = sum(kernel.chunks(slot, self.threads) for kernel in kernels)
            self._limits[phase, slot] = chunks
        self._limits[phase, self.threads] = self._limits[phase, : self.threads].sum()

    def once(self) -> None:
        """From now on one run, on the inputs as they lie in their buffers."""
        if not self._kept:
            return
        self.runs = 1
        words = self._words
        words[jobs.START] = _ONCE
        words[jobs.FROM], words[jobs.RUNS] = 0, 1
        words[jobs.OUTPUTS] = 0
        # Last: whoever is interrupted here begins again.
        self._kept = ()

    def many(
        self,
        rows: Array,
        inputs: Sequence[tuple[int, int, int]],
        outputs: Sequence[tuple[int, int, int]],
    ) -> None:
        """From now on a run for each row.

        Args:
            rows: int64 (runs, batch): which examples each run takes.
            inputs: (address of the data set, address of the buffer, bytes of an example).
            outputs: (address of the buffer, address of the record, bytes of a result).
        """
        lists = [np.array(entries, np.int64).reshape(-1, 3) for entries in (inputs, outputs)]
        self._kept = (rows, *lists)
        self.runs, batch = rows.shape
        words = self._words
        words[jobs.START] = _GATHERING
        words[jobs.FROM], words[jobs.RUNS] = 0, self.runs
        words[jobs.BATCH] = batch
        words[jobs.ROWS] = rows.ctypes.data
        words[jobs.INPUTS], words[jobs.OUTPUTS] = map(len, lists)
        words[jobs.INPUT_LIST] = lists[0].ctypes.data
        words[jobs.OUTPUT_LIST] = lists[1].ctypes.data
        cycles = batch * sum(size for _, _, size in inputs) / _COPIED_PER_CYCLE
        share, at_once = slices(batch, cycles, self.threads)
        kernel = Kernel(0, 0, batch, at_once, share, 0)
        self._kernels[0] = (self._native.gather, self.address, batch, at_once, share, 0)
        self._phases[_GATHERING + 1, : jobs.BACK] = (0, 1, share > 1)
        self._limit(_GATHERING + 1, [kernel] if share > 1 else [])

    def run(self) -> None:
        """Runs all runs in this thread, or with the help of others, as it was measured to pay."""
        if self._choice is None:
            self._start(alone=self.threads == 1)
            return
        # Less where Ctrl-C came before the last choice was made.
        self._left = max(self._left, 1)
        if self.runs == 1:
            self._start(alone=self._choice.alone)
            self._left -= 1
            if not self._left:
                self._choose(self._choice)
            return
        words, done = self._words, 0
        while done < self.runs:
            following = min(self._left, self.runs - done)
            words[jobs.FROM], words[jobs.RUNS] = done, done + following
            self._start(alone=self._choice.alone)
            done += following
            self._left -= following
            if not self._left:
                self._choose(self._choice)

    def _start(self, *, alone: bool) -> None:
        if alone or not pool().run(self):
            if self.threads > 1:
                # One thread is alone from the beginning.
                self._words[jobs.ALONE] = True
            self._native.run_job(None, self.address)

    def _choose(self, choice: ThreadChoice) -> None:
        words = self._words
        elapsed = int(words[jobs.ELAPSED])
        choice.ran(elapsed)
        words[jobs.ELAPSED] = 0
        self._left = choice.runs
        if choice.trial and choice.alone:
            pool().stay_awake(int(words[jobs.BEFORE]) + elapsed)

    def share(self) -> None:
        """The next run may be helped with."""
        self._words[jobs.ALONE] = False

    def phase_ticks(self) -> Array:
        """The ticks of each phase since they were last asked for."""
        ticks = self._ticks[_IN_FRONT:].copy()
        self._ticks[:] = 0
        return ticks


# Behind which phase a run begins: the one that gathers its examples, or the first one.
_GATHERING, _ONCE = 0, 1
_IN_FRONT = 2


def _rows(count: int, words: int) -> Array:
    return np.zeros((count, words), np.int64)


@final
class _Native:
    """The native functions, compiled once."""

    def __init__(self) -> None:
        self.waiting = waiting.waiting_for(platform.machine())
        module = scheduler.emit_scheduler(self.waiting)
        self._library = Library(compiled(module.text(), host()), scheduler.EXPORTED)
        self.gather = self._library.address("gather")
        pointer, integer = ctypes.c_void_p, ctypes.c_int64

        def function(name: str, *arguments: Any) -> Callable[..., None]:
            return ctypes.CFUNCTYPE(None, *arguments)(self._library.address(name))

        self.run_job = function("run_job", pointer, pointer)
        self.help = function("help", pointer, integer)
        self.leave = function("leave", pointer, integer)
        self.read_ticks = function("read_ticks", pointer)


def _help(native: _Native, state: int, number: int) -> None:
    """What a helper does."""
    waiting.ask_for_short_slices(native.waiting.machine)
    native.help(state, number)


@final
class ThreadPool:
    """The calling thread and helpers, as many as jobs ask for."""

    def __init__(self) -> None:
        self._native = _native()
        self._lock = threading.Lock()
        size = scheduler.SLOTS + scheduler.SLOT_BYTES * scheduler.MOST_THREADS
        self._memory = aligned(size)
        self._state = int(self._memory.ctypes.data)
        calls = self._memory[scheduler.CALLS : scheduler.CALLS + waiting.CALLS_BYTES]
        self._kept = waiting.fill_calls(calls.view(np.uint64), self._native.waiting)
        words = self._memory[: scheduler.CALLS].view(np.int64)
        for place, seconds in (
            (scheduler.YIELD_TICKS, YIELD_SECONDS),
            (scheduler.GAP_TICKS, GAP_SECONDS),
            (scheduler.BUSY_TICKS, BUSY_SECONDS),
            (scheduler.AWAKE_TICKS, AWAKE_SECONDS),
        ):
            words[place // 8] = int(seconds * ticks_per_second())
        self._words = words
        # Whether a thread that runs jobs has asked for short slices.
        self._callers = threading.local()
        # Helpers that were started.
        self.helpers: list[threading.Thread] = []
        self._over = False

    def run(self, job: Job) -> bool:
        """Runs a job together with the helpers; False if they have no time for it."""
        # Another thread's job is not waited for.
        if self._lock.locked():
            return False
        with self._lock:
            if self._over:
                if threading.current_thread() is not threading.main_thread():
                    # The thread ends in silence, and gives back the locks that exit handlers
                    # may want.
                    raise SystemExit
                return False
            if len(self.helpers) < job.threads - 1:
                # Whole: a helper that is started and not noted would share its number, and so its
                # memory, with the next one.
                shielded(lambda: self._ensure(job.threads - 1))
            if not hasattr(self._callers, "asked"):
                waiting.ask_for_short_slices(self._native.waiting.machine)
                self._callers.asked = True
            job.share()
            self._native.run_job(self._state, job.address)
            return True

    def stay_awake(self, ticks: int) -> None:
        """Helpers that spin do not sleep for AWAKE_SECONDS from a reading of the counter.

        A trial of one thread alone is short, and whoever sleeps meanwhile is slow to come back.
        """
        self._words[scheduler.AWAKE_SINCE // 8] = ticks

    def _ensure(self, helpers: int) -> None:
        while len(self.helpers) < helpers:
            number = len(self.helpers) + 1
            helper = threading.Thread(
                target=_help,
                args=(self._native, self._state, number),
                name=f"lamina-{number}",
                daemon=True,
            )
            try:
                helper.start()
            except RuntimeError:
                # There may be no more threads. Who is there does the work.
                return
            self.helpers.append(helper)

    def leave(self) -> None:
        """Sends the helpers home, after the job under way."""
        if self._lock.acquire(timeout=PATIENCE_SECONDS):
            try:
                self._over = True
                self._native.leave(self._state, 1 + len(self.helpers))
                for helper in self.helpers:
                    helper.join(PATIENCE_SECONDS)
            finally:
                self._lock.release()


class _Current:
    """The native functions and the pool of this process; a forked child makes its own pool."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.native: _Native | None = None
        self.pool: ThreadPool | None = None


_current = _Current()


def _native() -> _Native:
    """The native functions; never two of them, as jobs keep only addresses."""
    if _current.native is None:
        with _current.lock:
            _current.native = _current.native or _Native()
    return _current.native


def pool() -> ThreadPool:
    """The pool of this process, made when first asked for."""
    if _current.pool is None:
        with _current.lock:
            _current.pool = _current.pool or ThreadPool()
    return _current.pool


@cache
def ticks_per_second() -> float:
    """How fast the processor's counter runs, measured once."""
    place = np.zeros(1, np.int64)
    readings: list[tuple[float, int]] = []
    for pause in (0.0, _CALIBRATION_SECONDS):
        time.sleep(pause)
        _native().read_ticks(place.ctypes.data)
        readings.append((time.perf_counter(), int(place[0])))
    (start, first), (end, last) = readings
    return (last - first) / (end - start)


def _reset_after_fork() -> None:
    """The child has no helpers, and locks may be held by threads it lacks."""
    _current.lock = threading.RLock()
    _current.pool = None


def _leave() -> None:
    if _current.pool is not None:
        _current.pool.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
atexit.register(_leave)
