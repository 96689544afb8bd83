"""The threads that run programs together: one pool for the process.

Helpers are Python threads inside native code, which they leave only when the process ends. ctypes
releases Python's global lock for them. They are started when a program first needs them. No program
waits for a helper to join: see `scheduler`.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, final

import numpy as np

from lamina.base.shapes import Array
from lamina.base.shielded import shielded
from lamina.engines.cpu.compilation import compiled
from lamina.engines.cpu.llvm import load
from lamina.engines.cpu.native import jobs, scheduler, waiting
from lamina.engines.cpu.native.jobs import Entry, Kernel
from lamina.engines.cpu.processor import host
from lamina.engines.cpu.run.thread_choice import TRIAL_SECONDS, ThreadChoice
from lamina.engines.host import address_of, aligned
from lamina.engines.simd.decide.work import slices

# How long the end of the process waits for a job that is running.
EXIT_WAIT_SECONDS = 10.0
# A working thread yields its core after this time, between two chunks.
YIELD_SECONDS = 0.002
# A gap of GAP_SECONDS between two readings of the counter means that a spinning thread was
# preempted. For BUSY_SECONDS another thread may need its core. Interrupts and the host of a virtual
# machine take shorter times.
GAP_SECONDS, BUSY_SECONDS = 0.0005, 0.05
# Helpers stay awake this long while one thread alone is tried. A trial takes a little longer than
# its planned time, because its last run is completed.
AWAKE_SECONDS = 2 * TRIAL_SECONDS
# Long enough that the delay between reading both clocks does not matter.
_CALIBRATION_SECONDS = 0.002
# A rough estimate of the bytes copied in a cycle.
_COPIED_PER_CYCLE = 8.0


# The words of an entry of a job's inputs or outputs: `SOURCE` and those after it.
Words = tuple[int, int, int, int, int, int]


@final
class Job:
    """Kernels bound to their buffers, ready to be run.

    Args:
        functions: the addresses of the kernels' functions.
        entry: the kernels and phases, and the most threads that may join.
        table: the addresses of the buffers, uint64.
        iteration: the array with the iteration of repeated phases, int64 (1,).
        timed: whether the ticks of each phase are summed.
        tries_alone: whether one thread alone is tried too.
    """

    def __init__(
        self,
        functions: Sequence[int],
        entry: Entry,
        table: Array,
        iteration: Array,
        *,
        timed: bool = False,
        tries_alone: bool = True,
    ) -> None:
        kernels, phases, threads = entry.kernels, entry.phases, entry.threads
        self.threads = threads
        self.runs = 1
        self._native = native()
        self._table, self._iteration = table, iteration
        self._words = words = np.zeros(jobs.JOB_WORDS, np.int64)
        self.address = int(words.ctypes.data)
        # Before the phases: an empty one, after which runs begin, and one that gathers examples.
        self._kernels = _rows(1 + len(kernels), jobs.KERNEL_WORDS)
        self._phases = _rows(_PRELUDE_PHASES + len(phases), jobs.PHASE_WORDS)
        self._chunk_counts = _rows(_PRELUDE_PHASES + len(phases), threads + 1)
        for number, kernel in enumerate(kernels, 1):
            section = table.ctypes.data + table.itemsize * kernel.section
            slicing = (kernel.items, kernel.chunk_items, kernel.slice_count, kernel.first_slot)
            self._kernels[number] = (functions[kernel.function], section, *slicing)
        for number, phase in enumerate(phases, _PRELUDE_PHASES):
            edges, back = (1 + phase.first, 1 + phase.last), _PRELUDE_PHASES + phase.back
            self._phases[number] = (*edges, phase.shared, back, phase.iterations)
            if phase.shared:
                self._count_chunks(number, kernels[phase.first : phase.last])
        self._ticks = np.zeros(len(self._phases), np.int64)
        words[jobs.KERNELS] = self._kernels.ctypes.data
        words[jobs.PHASES] = self._phases.ctypes.data
        words[jobs.CHUNK_COUNTS] = self._chunk_counts.ctypes.data
        words[jobs.PHASE_COUNT] = len(self._phases)
        words[jobs.JOB_THREADS] = threads
        words[jobs.ITERATION] = iteration.ctypes.data
        words[jobs.TICKS] = self._ticks.ctypes.data if timed else 0
        words[jobs.ALONE] = threads == 1
        words[jobs.RUNS] = 1
        words[jobs.PHASE_BEFORE_RUN] = _AFTER_GATHER
        has_choice = threads > 1 and tries_alone and not timed
        self._choice = ThreadChoice(ticks_per_second()) if has_choice else None
        if self._choice is not None:
            words[jobs.WINDOW_TICKS] = self._choice.window
        self._kept: Sequence[Array] = ()
        # What the phase that gathers examples was set for.
        self._gathered: object = None

    def _count_chunks(self, phase: int, kernels: Sequence[Kernel]) -> None:
        """Counts the chunks of a phase in each thread's slot, and in all slots."""
        for slot in range(self.threads):
            chunks = sum(kernel.chunks(slot, self.threads) for kernel in kernels)
            self._chunk_counts[phase, slot] = chunks
        self._chunk_counts[phase, self.threads] = self._chunk_counts[phase, : self.threads].sum()

    def set_single_run(self) -> None:
        """Makes `run` do one run, with the present contents of the input buffers."""
        if not self._kept:
            return
        self.runs = 1
        words = self._words
        words[jobs.PHASE_BEFORE_RUN] = _AFTER_GATHER
        words[jobs.FIRST_RUN], words[jobs.RUNS] = 0, 1
        words[jobs.OUTPUTS] = 0
        # Set last: if a signal interrupts this method, the next call does all of it again.
        self._kept = ()

    def set_runs(
        self, rows: Array, inputs: Sequence[Words], outputs: Sequence[Words], lanes: int = 0
    ) -> None:
        """Makes `run` do a run for each row.

        Args:
            rows: the examples of each run, int64 (runs, batch), or (members, runs, batch).
            inputs, outputs: entries for the inputs, whose examples are gathered, and for the
                results, which are recorded.
            lanes: the members of a run; 0 for a program without members, of whose entries the last
                three words do not matter.
        """
        lists = [np.array(x, np.int64).reshape(-1, jobs.ENTRY_WORDS) for x in (inputs, outputs)]
        self._kept = (rows, *lists)
        self.runs, batch = rows.shape[-2:]
        is_of_members = rows.ndim > 2
        words = self._words
        words[jobs.LANES] = lanes
        words[jobs.MEMBER_ROWS] = rows.strides[0] if is_of_members else 0
        words[jobs.PHASE_BEFORE_RUN : jobs.RUNS + 1] = _BEFORE_GATHER, 0, self.runs
        words[jobs.ROWS : jobs.OUTPUT_LIST + 1] = (
            *(rows.ctypes.data, batch),
            *(word for array in lists for word in (len(array), address_of(array))),
        )
        self._set_gather(is_of_members, batch, sum(entry[jobs.BYTES] for entry in inputs))

    def _set_gather(self, is_of_members: bool, batch: int, example_bytes: int) -> None:
        """Sets the kernel and the phase that gather examples."""
        setting = is_of_members, batch, example_bytes
        if setting == self._gathered:
            return
        # If a signal interrupts this method, the next call does all of it again.
        self._gathered = None
        slice_count, chunk_items = slices(
            batch, batch * example_bytes / _COPIED_PER_CYCLE, self.threads
        )
        kernel = Kernel(0, 0, batch, chunk_items, slice_count, 0)
        slicing = (batch, chunk_items, slice_count, 0)
        gather = self._native.gather_members if is_of_members else self._native.gather
        self._kernels[0] = (gather, self.address, *slicing)
        self._phases[_BEFORE_GATHER + 1, : jobs.BACK] = (0, 1, slice_count > 1)
        self._count_chunks(_BEFORE_GATHER + 1, [kernel] if slice_count > 1 else [])
        self._gathered = setting

    def run(self) -> None:
        """Does all runs, in this thread alone or with helpers: the variant measured as faster."""
        if self._choice is None:
            self._start(alone=self.threads == 1)
            return
        words = self._words
        while True:
            self._start(alone=self._choice.alone)
            if words.item(jobs.ELAPSED) >= words.item(jobs.WINDOW_TICKS):
                self._choose(self._choice)
            if (done := words.item(jobs.RUN)) >= self.runs:
                return
            words[jobs.FIRST_RUN] = done

    def bound(self) -> Callable[[], None]:
        """`run` as a function that is called quickly, as long as the runs stay the same."""
        if self.threads > 1 or self._choice is not None:
            return self.run
        return partial(self._native.run_job, None, self.address)

    def _start(self, *, alone: bool) -> None:
        if alone or not pool().run(self):
            self.forbid_helpers()
            self._native.run_job(None, self.address)

    def _choose(self, choice: ThreadChoice) -> None:
        words = self._words
        elapsed = int(words[jobs.ELAPSED])
        choice.record(elapsed, int(words[jobs.DONE]))
        words[jobs.ELAPSED] = words[jobs.DONE] = 0
        words[jobs.WINDOW_TICKS] = choice.window
        if choice.trial and choice.alone:
            pool().stay_awake(int(words[jobs.PHASE_START_TICKS]) + elapsed)

    def allow_helpers(self) -> None:
        """Lets helpers join the next run."""
        self._words[jobs.ALONE] = self.threads == 1

    def forbid_helpers(self) -> None:
        """Lets no helper join the next run."""
        if self.threads > 1:
            # For one thread the word is set from the beginning.
            self._words[jobs.ALONE] = True

    def lead(self, others: Sequence[Job], words: Array, count: int) -> None:
        """Does turns of this job and of others: the words of the native `run_turns`."""
        choice = self._choice
        for job in others:
            job._words[jobs.WINDOW_TICKS] = 0
        try:
            while words[0] < count:
                alone = self.threads == 1 if choice is None else choice.alone
                if alone or not pool().run(self, others, words):
                    for job in (self, *others):
                        job.forbid_helpers()
                    self._native.run_turns(None, words.ctypes.data, count)
                elapsed, window = (self._words.item(n) for n in (jobs.ELAPSED, jobs.WINDOW_TICKS))
                if choice is not None and elapsed >= window:
                    self._choose(choice)
        finally:
            for job in others:
                job._words[jobs.ELAPSED] = job._words[jobs.DONE] = 0
                if job._choice is not None:
                    job._words[jobs.WINDOW_TICKS] = job._choice.window

    def phase_ticks(self) -> Array:
        """The ticks of each phase since the last call."""
        ticks = self._ticks[_PRELUDE_PHASES:].copy()
        self._ticks[:] = 0
        return ticks


def run_turns(turns: Sequence[tuple[Job, int]]) -> None:
    """Does runs of jobs, which were set, in turns.

    Args:
        turns: the job of each turn, and how many of its runs are done then.
    """
    numbers, ended = [0], dict[Job, int]()
    for job, runs in turns:
        first = ended.get(job, 0)
        ended[job] = first + runs
        numbers += [job.address, first, first + runs]
    words = np.array(numbers, np.int64)
    # The threads for all of them follow from the runs of the job that has the most work.
    leader = max(ended, key=lambda job: (job.threads, ended[job]))
    leader.lead([job for job in ended if job is not leader], words, len(turns))


# The phase before a run: the one before the phase that gathers examples, or that phase.
_BEFORE_GATHER, _AFTER_GATHER = 0, 1
_PRELUDE_PHASES = 2


def _rows(count: int, words: int) -> Array:
    return np.zeros((count, words), np.int64)


@final
class Native:
    """The native functions, compiled once."""

    def __init__(self) -> None:
        self.waiting = waiting.waiting_for(platform.machine())
        module = scheduler.emit_scheduler(self.waiting)
        self._library = load(compiled(module.text(), host()), scheduler.EXPORTED)
        addresses = self._library.addresses
        self.gather = addresses["gather"]
        self.gather_members = addresses["gather_members"]
        self.run_members = addresses["run_members"]
        pointer, integer = ctypes.c_void_p, ctypes.c_int64

        def function(name: str, *arguments: Any) -> Callable[..., None]:
            return ctypes.CFUNCTYPE(None, *arguments)(addresses[name])

        self.run_job = function("run_job", pointer, pointer)
        self.run_turns = function("run_turns", pointer, pointer, integer)
        self.help = function("help", pointer, integer)
        self.leave = function("leave", pointer, integer)
        self.read_ticks = function("read_ticks", pointer)


def _help(native: Native, state: int, number: int) -> None:
    """The main function of a helper."""
    waiting.ask_for_short_slices(native.waiting.machine)
    native.help(state, number)


@final
class ThreadPool:
    """The calling thread and helpers, as many as jobs have needed."""

    def __init__(self) -> None:
        self._native = native()
        self._lock = threading.Lock()
        size = scheduler.SLOTS + scheduler.SLOT_BYTES * scheduler.MOST_THREADS
        self._memory = aligned(size)
        self._state = int(self._memory.ctypes.data)
        calls = self._memory[scheduler.CALLS : scheduler.CALLS + waiting.CALLS_BYTES]
        self._kept = waiting.fill_calls(calls.view(np.uint64), self._native.waiting)
        words = self._memory[: scheduler.CALLS].view(np.int64)
        for offset, seconds in (
            (scheduler.YIELD_TICKS, YIELD_SECONDS),
            (scheduler.GAP_TICKS, GAP_SECONDS),
            (scheduler.BUSY_TICKS, BUSY_SECONDS),
            (scheduler.AWAKE_TICKS, AWAKE_SECONDS),
        ):
            words[offset // 8] = int(seconds * ticks_per_second())
        self._words = words
        # For each thread that runs jobs: whether it has asked for short time slices.
        self._callers = threading.local()
        # The helpers that were started.
        self.helpers: list[threading.Thread] = []
        self._closed = False

    def run(self, job: Job, others: Sequence[Job] = (), turns: Array | None = None) -> bool:
        """Runs a job together with the helpers; returns False if they are busy.

        Args:
            others, turns: further jobs, and the words of `run_turns`, if they are run in turns.
        """
        # It does not wait for the job of another thread.
        if self._lock.locked():
            return False
        with self._lock:
            if self._closed:
                if threading.current_thread() is not threading.main_thread():
                    # The thread ends silently, and releases locks that exit handlers may need.
                    raise SystemExit
                return False
            threads = max((other.threads for other in others), default=1)
            helpers = max(job.threads, threads) - 1
            if len(self.helpers) < helpers:
                # Shielded: a helper that is started but not in the list would share its number,
                # and so its slot, with the next helper.
                shielded(lambda: self._start_helpers(helpers))
            if not hasattr(self._callers, "asked"):
                waiting.ask_for_short_slices(self._native.waiting.machine)
                self._callers.asked = True
            for each in (job, *others):
                each.allow_helpers()
            if turns is None:
                self._native.run_job(self._state, job.address)
            else:
                count = len(turns) // scheduler.TURN_WORDS
                self._native.run_turns(self._state, turns.ctypes.data, count)
            return True

    def stay_awake(self, ticks: int) -> None:
        """Keeps spinning helpers awake for AWAKE_SECONDS after a reading of the counter.

        A trial of one thread alone is short, and helpers that sleep meanwhile are slow to wake.
        """
        self._words[scheduler.AWAKE_SINCE // 8] = ticks

    def _start_helpers(self, helpers: int) -> None:
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
                # The limit of threads is reached. The existing threads do the work.
                return
            self.helpers.append(helper)

    def shut_down(self) -> None:
        """Dismisses the helpers, after the job that is running."""
        if self._lock.acquire(timeout=EXIT_WAIT_SECONDS):
            try:
                self._closed = True
                self._native.leave(self._state, 1 + len(self.helpers))
                for helper in self.helpers:
                    helper.join(EXIT_WAIT_SECONDS)
            finally:
                self._lock.release()


class _Current:
    """The native functions and the pool of this process; a forked child makes its own pool."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.native: Native | None = None
        self.pool: ThreadPool | None = None


_current = _Current()


def native() -> Native:
    """The native functions; loaded only once, because jobs keep only their addresses."""
    if _current.native is None:
        with _current.lock:
            _current.native = _current.native or Native()
    return _current.native


def pool() -> ThreadPool:
    """The pool of this process, made at the first call."""
    if _current.pool is None:
        with _current.lock:
            _current.pool = _current.pool or ThreadPool()
    return _current.pool


@cache
def ticks_per_second() -> float:
    """The rate of the processor's counter, measured once."""
    reading = np.zeros(1, np.int64)
    readings: list[tuple[float, int]] = []
    for pause in (0.0, _CALIBRATION_SECONDS):
        time.sleep(pause)
        native().read_ticks(reading.ctypes.data)
        readings.append((time.perf_counter(), int(reading[0])))
    (start, first), (end, last) = readings
    return (last - first) / (end - start)


def _reset_after_fork() -> None:
    """The child has no helpers, and threads that it lacks may hold locks."""
    _current.lock = threading.RLock()
    _current.pool = None


def _shut_down() -> None:
    if _current.pool is not None:
        _current.pool.shut_down()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
atexit.register(_shut_down)
