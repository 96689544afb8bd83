"""The threads that run programs together: one team for the process.

Helpers are Python threads parked inside native code, which they leave only when the process ends;
ctypes releases the interpreter's lock for them. They are started when a program first needs them.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import numpy as np

from lamina.engines.cpu import native_loop
from lamina.engines.cpu.machine_code import Library, compiled
from lamina.engines.cpu.processor import host
from lamina.engines.host import aligned
from lamina.errors import EngineError
from lamina.shapes import Array

# How long the end of the process waits for a job that is under way.
PATIENCE_SECONDS = 10.0


@final
class Job:
    """A program bound to its buffers, ready to be run.

    Args:
        program: the address of the compiled function.
        table: the addresses of the buffers, uint64.
        threads: how many take part.
    """

    def __init__(self, program: int, table: Array, threads: int) -> None:
        self.threads = threads
        self._words = np.zeros(native_loop.JOB_WORDS, np.int64)
        self._table = table
        self._kept: Sequence[Array] = ()
        self._words[native_loop.PROGRAM] = program
        self._words[native_loop.TABLE] = table.ctypes.data
        self._words[native_loop.THREADS] = threads
        self._words[native_loop.RUNS] = 1
        self.address = int(self._words.ctypes.data)
        self.alone = _native().run_job

    def meet_at(self, gate: int) -> None:
        """Tells the job where its threads meet."""
        self._words[native_loop.GATE] = gate

    def once(self) -> None:
        """From now on one run, on the inputs as they lie in their buffers."""
        if not self._kept:
            return
        self._kept = ()
        self._words[native_loop.RUNS] = 1
        self._words[native_loop.INPUTS] = self._words[native_loop.OUTPUTS] = 0

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
        words = self._words
        words[native_loop.RUNS], words[native_loop.BATCH] = rows.shape
        words[native_loop.ROWS] = rows.ctypes.data
        words[native_loop.INPUTS], words[native_loop.OUTPUTS] = map(len, lists)
        words[native_loop.INPUT_LIST] = lists[0].ctypes.data
        words[native_loop.OUTPUT_LIST] = lists[1].ctypes.data


class _Native:
    """The native functions, compiled once."""

    def __init__(self) -> None:
        processor = host()
        self.waiting = native_loop.waiting_for(platform.machine())
        module = native_loop.emit_native_loop(self.waiting)
        self._library = Library(compiled(module.text(), processor), native_loop.EXPORTED)
        pointer, integer = ctypes.c_void_p, ctypes.c_int64

        def function(name: str, *arguments: Any) -> Callable[..., None]:
            return ctypes.CFUNCTYPE(None, *arguments)(self._library.address(name))

        self.run_job = function("run_job", pointer, integer)
        self.park = function("park", pointer, integer)
        self.post = function("post", pointer, integer, pointer)


class _Gate:
    """A waiting place in native memory, with the functions that put to sleep and wake."""

    def __init__(self, waiting: native_loop.Waiting) -> None:
        self._memory = aligned(native_loop.GATE_BYTES)
        self.address = int(self._memory.ctypes.data)
        words = self._memory.view(np.uint64)
        library: Any = ctypes.CDLL(None)
        names = native_loop.FUTEX_CALLS if waiting.futex else native_loop.CONDITION_CALLS
        for number, name in enumerate(names):
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            words[native_loop.CALLS // 8 + number] = address or 0
        if not waiting.futex:
            self._lock = [ctypes.create_string_buffer(256) for _ in range(2)]
            for number, kind in enumerate(("mutex", "cond")):
                getattr(library, f"pthread_{kind}_init")(self._lock[number], None)
                words[native_loop.LOCK // 8 + number] = ctypes.addressof(self._lock[number])


@final
class Team:
    """The calling thread and helpers, as many as jobs ask for."""

    def __init__(self) -> None:
        self._native = _native()
        self._lock = threading.Lock()
        self._meeting = _Gate(self._native.waiting)
        # Helpers that were started, and the mailbox of each; no mailbox is ever given back.
        self._helpers: list[threading.Thread] = []
        self._mailboxes: list[_Gate] = []
        self._started: list[int] = []
        self._over = False
        self._addresses = np.zeros(0, np.uint64)
        self._gates = int(self._addresses.ctypes.data)

    def run(self, job: Job) -> None:
        """Runs a job of several threads and returns when it is done; jobs take turns."""
        with self._lock:
            if self._over:
                _refuse()
            self._ensure(job.threads - 1)
            job.meet_at(self._meeting.address)
            self._native.post(self._gates, job.threads - 1, job.address)

    def _ensure(self, helpers: int) -> None:
        while len(self._started) < helpers:
            number = len(self._started) + 1
            gate = _Gate(self._native.waiting)
            helper = threading.Thread(
                target=self._native.park,
                args=(gate.address, number),
                name=f"lamina-{number}",
                daemon=True,
            )
            self._mailboxes.append(gate)
            # May fail, or be interrupted: what was started before is used all the same.
            helper.start()
            self._helpers.append(helper)
            self._started.append(gate.address)
        if len(self._addresses) != len(self._started):
            self._addresses = np.array(self._started, np.uint64)
            self._gates = int(self._addresses.ctypes.data)

    def leave(self) -> None:
        """Sends the helpers home, after the job under way; nothing more is run."""
        if self._lock.acquire(timeout=PATIENCE_SECONDS):
            try:
                self._over = True
                self._native.post(self._gates, len(self._started), None)
                for helper in self._helpers:
                    helper.join(PATIENCE_SECONDS)
            finally:
                self._lock.release()


def _refuse() -> None:
    """Ends a run after the helpers have left."""
    if threading.current_thread() is not threading.main_thread():
        # The thread ends in silence, and gives back the locks that exit handlers may want.
        raise SystemExit
    raise EngineError(
        "the process is ending: the threads that run programs have left",
        advice="Register an exit handler after its model is made: it then comes before they leave.",
    )


def run(job: Job) -> None:
    """Runs a job and returns when it is done: alone in this thread, or with the team's help."""
    if job.threads == 1:
        job.alone(job.address, 0)
    else:
        team().run(job)


class Mendable(Protocol):
    """Something that a fork may find in the middle of a run."""

    def after_fork(self) -> None: ...


class _Current:
    """The native functions and the team of this process; a forked child makes its own team."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.native: _Native | None = None
        self.team: Team | None = None
        self.mended: weakref.WeakSet[Mendable] = weakref.WeakSet()


_current = _Current()


def _native() -> _Native:
    """The native functions; never two of them, as jobs keep only addresses."""
    if _current.native is None:
        with _current.lock:
            _current.native = _current.native or _Native()
    return _current.native


def team() -> Team:
    """The team of this process, made when first asked for."""
    with _current.lock:
        if _current.team is None:
            _current.team = Team()
        return _current.team


def mend_after_fork(owner: Mendable) -> None:
    """Has the owner's `after_fork` called in a forked child, which lacks the other threads."""
    _current.mended.add(owner)


def _forget() -> None:
    """After a fork: the child has no helpers, and locks may be held by threads it lacks."""
    _current.lock = threading.RLock()
    _current.team = None
    for owner in _current.mended:
        owner.after_fork()


def _leave() -> None:
    if _current.team is not None:
        _current.team.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(_leave)
