"""Threads that no signal reaches: work that must not be cut in two runs in one of them.

Python runs the handlers of signals in the main thread, between any two of its instructions, and a
handler may raise: Ctrl-C does. Whatever the main thread was doing then ends where it is: a pointer
is freed and not yet forgotten, half of the parameters are new. In another thread no handler runs.
So such work is done in a thread of its own while the caller waits; what a handler raises meanwhile
is held, and raised when the work is done.

The other ways do not hold. A signal mask (`pthread_sigmask`) stops the system, not Python: another
thread receives the signal, and its handler runs in the main thread all the same. Handlers that are
exchanged for the time of the work are exchanged one at a time, and with them goes what other
libraries have put beneath Python's.
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
from typing import Any, Generic, NoReturn, TypeVar, final

from lamina.errors import EngineError
from lamina.garbage import Pause

Result = TypeVar("Result")

# Faults of the thread itself: blocked, they would end the process without a word.
_FAULTS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")

# So many handlers may raise one right after the other, and one more.
_LOOPS = 3


@final
class _Task(Generic[Result]):
    """Something to do, and what became of it."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self.work = work
        self.result: list[Result] = []
        self.error: BaseException | None = None
        self.finished = False
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        if self.finished:  # Whoever asked was interrupted, and asked again.
            return
        try:
            self.result.append(self.work())
        except BaseException as error:
            self.error = error
        self.finish()

    def finish(self) -> None:
        self.finished = True
        with suppress(RuntimeError):  # It was asked for twice, and is finished already.
            self.done.release()


@final
class ShieldedThread:
    """A thread that does one thing after the other, each of them whole.

    It is started when there is something to do, and anew in a forked child; it ends with the
    process. A fork waits until the work under way is done.

    Args:
        name: of the thread.

    Attributes:
        over: whether the process is ending, and nothing more can be asked for.
    """

    def __init__(self, name: str) -> None:
        self.over = False
        self._name = name
        # The first one is under way.
        self._tasks: deque[_Task[Any]] = deque()
        # Held while the thread works, and by those who fork.
        self._gate = threading.RLock()
        self._left = False
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._after_fork,
                after_in_child=self._after_fork_in_child,
            )
        atexit.register(self._leave)

    def _begin(self) -> None:
        # Held by the thread as long as it lives: there is never a second one.
        self._seat = threading.Lock()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._identity = 0

    def call(self, work: Callable[[], Result]) -> Result:
        """Does some work in the thread, and gives its result or raises its error.

        What is raised in the calling thread meanwhile, by the handler of a signal for example, is
        raised when the work is done; before it was asked for at once, and then nothing is done. The
        result is lost: so whatever the work makes must be given back by its own destructor.

        Raises:
            EngineError: if the thread cannot be started, or the process is ending.
        """
        if threading.get_ident() == self._identity:
            return work()
        self.start()
        task = _Task(work)
        held = self._finish(task)
        raised = held or task.error
        if raised is None:
            return task.result.pop()
        # The traceback of an error knows the task: without the other half it is no circle.
        task.error = None
        try:
            raise raised
        finally:
            del raised, held

    def _finish(self, task: _Task[Any], around: int = _LOOPS) -> BaseException | None:
        """Has something done; gives what was raised here meanwhile.

        Python runs handlers before a loop begins anew, too. What one raises there, right after
        another one, the loop around this one catches; there are `around` of them.
        """
        held: BaseException | None = None
        while not task.finished:
            try:
                if around:
                    held = self._finish(task, around - 1) or held
                    continue
                # Once more after each interruption: it may have come before any of these.
                self._tasks.append(task)
                self._wake.put(None)
                if self._left:
                    self._dismiss()
                task.done.acquire()
            except BaseException as error:
                held = error
        return held

    def start(self) -> None:
        """Starts the thread unless it is there.

        Raises:
            EngineError: if that cannot be done, or not any more.
        """
        if self.over:
            _refuse_at_end()
        if self._seat.locked():
            return
        try:
            # Not `threading.Thread`: whoever is interrupted in its `start` leaves half a thread.
            start_new_thread(self._live, ())
        except RuntimeError as error:
            raise EngineError(
                "a thread cannot be started",
                facts=(("thread", self._name), ("reason", str(error))),
                advice="Raise the limit of threads (ulimit -u); at the end of a process, make the "
                "model before.",
            ) from error

    def _live(self) -> None:
        # Who starts a thread may be interrupted before it has its seat, and start another one.
        if not self._seat.acquire(blocking=False):
            return
        threading.current_thread().name = self._name
        self._identity = threading.get_ident()
        _block_signals()
        while not self.over:
            self._wake.get()
            with self._gate:
                self._work()
        self._left = True
        self._dismiss()

    def _work(self) -> None:
        # Collecting garbage would run destructors of others here. One that takes a lock, which the
        # caller holds while it waits, would wait forever.
        pause = Pause()
        try:
            while self._tasks:
                self._tasks[0].run()
                self._tasks.popleft()
        finally:
            pause.end()

    def _leave(self) -> None:
        """Ends the thread when it has done what there is to do."""
        self.over = True
        if self._seat.locked():
            held = self._finish(_Task(_nothing))
            if held is not None:
                raise held

    def _dismiss(self) -> None:
        """Lets those threads end that came too late."""
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
                self._gate.acquire()
                break
            except BaseException as error:
                held = error
        if held is not None:
            # Python prints it: nothing can be raised in front of a fork.
            raise held

    def _after_fork(self) -> None:
        # An interrupted wait may have taken it twice.
        with suppress(RuntimeError):
            while True:
                self._gate.release()

    def _after_fork_in_child(self) -> None:
        self._gate = threading.RLock()
        self._begin()
        if self._tasks:
            # The handler of a signal has forked, and what it interrupted waits for one of these.
            self.start()
            self._wake.put(None)


_writes = ShieldedThread("lamina-writes")


def shielded(work: Callable[[], Result]) -> Result:
    """Does what must be done wholly or not at all, as far as signals are concerned.

    Only the main thread has to be shielded. At the end of the process, and where no thread can be
    started, the work is done as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    try:
        _writes.start()
    except EngineError:
        return work()
    return _writes.call(work)


def _nothing() -> None:
    pass


def _block_signals() -> None:
    """Leaves the signals of the process to other threads, and to the main thread's own mask."""
    if hasattr(signal, "pthread_sigmask"):
        faults = {getattr(signal, name, None) for name in _FAULTS}
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)


def _refuse_at_end() -> NoReturn:
    """Ends what comes after the threads have left."""
    if threading.current_thread() is not threading.main_thread():
        # The thread ends in silence, and gives back the locks that exit handlers may want.
        raise SystemExit
    raise EngineError(
        "the process is ending: the thread that compiles programs has left",
        advice="Register an exit handler after its model is made: it then comes before it leaves.",
    )
