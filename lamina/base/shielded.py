"""Threads that no signal reaches, for work that must not be interrupted.

Python runs signal handlers in the main thread, between any two of its instructions. A handler may
raise, like the handler of Ctrl-C. The work of the main thread then ends half done: a pointer is
freed and not yet cleared, half of the parameters are new. No handler runs in other threads. So such
work is done in another thread while the caller waits. An exception that a handler raises meanwhile
is held until the work is done, and then raised.

Two alternatives fail. A signal mask (`pthread_sigmask`) affects the system, not Python: another
thread receives the signal, and Python still runs its handler in the main thread. Handlers can only
be replaced one at a time for the duration of the work, and replacing them also removes handlers
that other libraries have installed beneath Python's.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, final

from lamina.base.garbage import Pause
from lamina.base.lazy import loading
from lamina.errors import EngineError

Result = TypeVar("Result")

# Faults of the thread's own code. If they were blocked, the process would end without a message.
_FAULTS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")

# How many more handlers may raise directly after the first one.
_NESTED_LOOPS = 3


@final
class _Task(Generic[Result]):
    """Work to do, and its result or error."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self.work = work
        self.result: list[Result] = []
        self.error: BaseException | None = None
        self.finished = False
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        if self.finished:  # The caller was interrupted, and has queued it again.
            return
        try:
            self.result.append(self.work())
        except BaseException as error:
            self.error = error
        self.finish()

    def finish(self) -> None:
        self.finished = True
        with suppress(RuntimeError):  # It was queued twice, and is finished already.
            self.done.release()


@final
class ShieldedThread:
    """A thread that does one task after the other, without interruption by signals.

    It is started with the first task, and again in a forked child; it ends with the process. A fork
    waits until the present task is done.

    Attributes:
        closed: whether the process is ending, and no more tasks are accepted.
    """

    def __init__(self, name: str) -> None:
        self.closed = False
        self._name = name
        # The first one is the present task.
        self._tasks: deque[_Task[Any]] = deque()
        # Held while the thread works, and during forks.
        self._work_lock = threading.RLock()
        self._ended = False
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._after_fork,
                after_in_child=self._after_fork_in_child,
            )
        atexit.register(self._close)

    def _begin(self) -> None:
        # The thread holds it while it lives, so that there is never a second thread.
        self._lifetime_lock = threading.Lock()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._identity = 0

    def call(self, work: Callable[[], Result]) -> Result:
        """Does some work in the thread, and returns its result or raises its error.

        An exception raised in the calling thread meanwhile, by a signal handler for example, is
        raised when the work is done, and the result is lost. So the destructors of objects that the
        work makes must release them. If such an exception comes before the work is queued, it is
        raised at once, and the work is not done.
        """
        if threading.get_ident() == self._identity:
            return work()
        self.start()
        task = _Task(work)
        held = self._finish(task)
        raised = held or task.error
        if raised is None:
            return task.result.pop()
        # The traceback of the error refers to the task: this breaks the reference cycle.
        task.error = None
        try:
            raise raised
        finally:
            del raised, held

    def _finish(self, task: _Task[Any], around: int = _NESTED_LOOPS) -> BaseException | None:
        """Queues a task and waits in `around` + 1 loops; returns the exception raised meanwhile."""
        # Python also runs handlers before each iteration of a loop. If one raises there, directly
        # after another exception, the loop around this one catches it.
        held: BaseException | None = None
        while not task.finished:
            try:
                if around:
                    held = self._finish(task, around - 1) or held
                    continue
                # Repeated after each interruption, which may come before any of these lines.
                self._tasks.append(task)
                self._wake.put(None)
                if self._ended:
                    self._end_late_tasks()
                task.done.acquire()
            except BaseException as error:
                held = error
        return held

    def start(self) -> None:
        """Starts the thread unless it is running."""
        if self.closed:
            if threading.current_thread() is not threading.main_thread():
                # The thread ends silently, and releases locks that exit handlers may need.
                raise SystemExit
            raise EngineError(
                "the process is ending: the thread that compiles programs has ended",
                advice="Register an exit handler after its model is made: it then runs before the "
                "thread ends.",
            )
        if self._lifetime_lock.locked():
            return
        try:
            # Not `threading.Thread`: an interruption of its `start` leaves half a thread.
            start_new_thread(self._main, ())
        except RuntimeError as error:
            raise EngineError(
                "a thread cannot be started",
                facts=(("thread", self._name), ("reason", str(error))),
                advice="Raise the limit of threads (ulimit -u). At the end of a process no thread "
                "can be started: make the model earlier.",
            ) from error

    def _main(self) -> None:
        # An interrupted `start` may start a second thread before the first one takes this lock.
        if not self._lifetime_lock.acquire(blocking=False):
            return
        threading.current_thread().name = self._name
        self._identity = threading.get_ident()
        if hasattr(signal, "pthread_sigmask"):
            # Other threads receive the signals of the process.
            faults = {getattr(signal, name, None) for name in _FAULTS}
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
        while not self.closed:
            self._wake.get()
            with self._work_lock:
                self._work()
        self._ended = True
        self._end_late_tasks()

    def _work(self) -> None:
        # A garbage collection would run destructors of other objects here. If one takes a lock that
        # the waiting caller holds, it would wait forever.
        pause = Pause()
        try:
            while self._tasks:
                self._tasks[0].run()
                self._tasks.popleft()
        finally:
            pause.end()

    def _close(self) -> None:
        """Ends the thread after its remaining tasks."""
        self.closed = True
        if self._lifetime_lock.locked():
            held = self._finish(_Task(lambda: None))
            if held is not None:
                raise held

    def _end_late_tasks(self) -> None:
        """Raises SystemExit in the threads that wait for tasks queued after the end."""
        with suppress(IndexError):
            while True:
                task = self._tasks.popleft()
                if not task.finished:
                    task.error = SystemExit()
                    task.finish()

    def _before_fork(self) -> None:
        held: BaseException | None = None
        while True:
            try:
                self._work_lock.acquire()
                break
            except BaseException as error:
                held = error
        if held is not None:
            # Python prints it: a handler before a fork cannot raise.
            raise held

    def _after_fork(self) -> None:
        # An interrupted wait may have taken it twice.
        with suppress(RuntimeError):
            while True:
                self._work_lock.release()

    def _after_fork_in_child(self) -> None:
        self._work_lock = threading.RLock()
        self._begin()
        if self._tasks:
            # The handler of a signal has forked, and the interrupted code waits for one of these.
            self.start()
            self._wake.put(None)


_writes = ShieldedThread("lamina-writes")


def shielded(work: Callable[[], Result]) -> Result:
    """Does work that no signal may interrupt, and returns its result.

    Signals interrupt only the main thread: other threads do the work themselves. So does the main
    thread at the end of the process, and where no thread can be started.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    try:
        _writes.start()
    except EngineError:
        return work()
    return _writes.call(work)


def loaded(load: Callable[[], Result]) -> Result:
    """What a function imports, which few programs need, so that it is imported when it is used."""
    # The handler of a signal may need the same modules, and would find them half loaded.

    def work() -> Result:
        with loading:
            return load()

    return shielded(work)
