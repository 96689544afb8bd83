"""Work in a thread that no signal interrupts; exceptions of handlers are raised after it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from types import FrameType

import pytest

from lamina.base.shielded import ShieldedThread, shielded
from lamina.errors import EngineError

THREAD = ShieldedThread("tests")

posix_only = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX's timers")


class Alarm(Exception):
    """The exception of the handler."""


@pytest.fixture
def raising() -> Iterator[list[int]]:
    """A handler of SIGALRM that raises, and notes that it was called."""
    called: list[int] = []

    def handle(number: int, _: object) -> None:
        called.append(number)
        raise Alarm

    before = signal.signal(signal.SIGALRM, handle)
    yield called
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def press_and_work(done: list[str]) -> str:
    """Work in whose middle the signal comes, to the process and to the main thread."""
    os.kill(os.getpid(), signal.SIGALRM)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
    time.sleep(0.05)
    done.append("all of it")
    return "result"


def test_results_and_errors_are_passed_on() -> None:
    assert THREAD.call(lambda: 7 * 6) == 42
    with pytest.raises(ZeroDivisionError):
        THREAD.call(lambda: 1 / 0)


def test_all_work_runs_in_one_thread() -> None:
    found = {THREAD.call(threading.get_ident) for _ in range(5)}
    callers = [
        threading.Thread(target=lambda: found.add(THREAD.call(threading.get_ident)))
        for _ in range(5)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 1
    assert threading.get_ident() not in found


def test_work_may_ask_for_more_work() -> None:
    assert THREAD.call(lambda: THREAD.call(lambda: 3)) == 3


@posix_only
def test_an_exception_of_a_handler_is_raised_after_the_work(raising: list[int]) -> None:
    done: list[str] = []
    with pytest.raises(Alarm):
        THREAD.call(lambda: press_and_work(done))
    assert done == ["all of it"]
    assert raising


def test_work_is_over_or_not_begun_wherever_a_handler_raises() -> None:
    # Code that handles the interruption uses what the work changes: the work must not be running.
    own = {ShieldedThread.call.__code__, ShieldedThread._finish.__code__}
    begun, over = 0, 0

    def work() -> None:
        nonlocal begun, over
        begun += 1
        time.sleep(0.001)
        over += 1

    def interrupted_at(instruction: int) -> bool:
        instructions = count()

        def trace(frame: FrameType, event: str, _: object) -> object:
            frame.f_trace_opcodes = frame.f_code in own
            if event == "opcode" and next(instructions) == instruction:
                raise Alarm
            return trace if frame.f_code in own else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            THREAD.call(work)
        except Alarm:
            return True
        finally:
            sys.settrace(before)
        return False

    THREAD.call(lambda: None)
    instruction = 0
    while interrupted_at(instruction):
        seen = begun, over
        THREAD.call(lambda: None)
        assert seen == (begun, over), f"at instruction {instruction} it was still to be done"
        assert begun == over <= instruction + 1
        instruction += 1
    assert instruction > 30
    assert 0 < over < instruction


@posix_only
def test_a_handler_may_ask_for_work_while_other_work_runs() -> None:
    found: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: found.append(THREAD.call(lambda: 5)))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        THREAD.call(lambda: time.sleep(0.1))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert found == [5]


def test_other_threads_do_their_work_themselves() -> None:
    found: list[int] = []
    caller = threading.Thread(target=lambda: found.append(shielded(threading.get_ident)))
    caller.start()
    caller.join()
    assert found == [caller.ident]


def test_the_collector_is_off_in_the_shielded_thread() -> None:
    assert gc.isenabled()
    assert not THREAD.call(gc.isenabled)
    assert gc.isenabled()
    gc.disable()
    try:
        THREAD.call(lambda: None)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_thread_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("lamina.base.shielded.start_new_thread", fail)
    with pytest.raises(EngineError) as caught:
        ShieldedThread("another").call(lambda: None)
    assert str(caught.value) == (
        "a thread cannot be started\n"
        "  thread  another\n"
        "  reason  can't start new thread\n"
        "  Raise the limit of threads (ulimit -u). At the end of a process no thread can be "
        "started: make the model earlier."
    )
    monkeypatch.setattr("lamina.base.shielded._writes", ShieldedThread("a third"))
    assert shielded(lambda: 3) == 3


def script(text: str) -> tuple[int, str, str]:
    """Runs a program that has a thread; gives its exit status, output and errors."""
    begin = "import os, signal, threading, time\nfrom lamina.base.shielded import ShieldedThread\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{begin}thread = ShieldedThread('one')\n{text}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@posix_only
@pytest.mark.parametrize("several", [2, 3])
def test_exceptions_of_several_handlers_are_held_until_the_work_is_done(several: int) -> None:
    # All come while this thread has the interpreter's lock: the main thread then runs the first
    # handler, and another one wherever it looks next. In a process of its own: what is raised in a
    # callback of the garbage collector is lost there, and pytest's plugins have such callbacks.
    text = f"""
numbers = (signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)[:{several}]
class Alarm(Exception):
    pass
def handle(*_):
    raise Alarm
def press_all_and_work():
    for number in numbers:
        signal.pthread_kill(threading.main_thread().ident, number)
    time.sleep(0.02)
    done.append("all of it")
for number in numbers:
    signal.signal(number, handle)
done = []
for times in range(1, 6):
    try:
        thread.call(press_all_and_work)
    except Alarm:
        print(len(done) == times)
"""
    assert script(text) == (0, "True\n" * 5, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_a_thread_of_its_own_and_forks_wait_for_running_work() -> None:
    text = """
done = []
def work():
    time.sleep(0.2)
    done.append(1)
caller = threading.Thread(target=lambda: thread.call(work))
caller.start()
time.sleep(0.05)
child = os.fork()
if child == 0:
    os._exit(thread.call(lambda: 10 * len(done)))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
caller.join()
"""
    assert script(text) == (0, "10\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_call_interrupted_by_a_handler_that_forks_continues_in_the_child() -> None:
    # The interrupted call waits for an earlier one: the child has to do it itself.
    text = """
children = []
signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))
threading.Thread(target=lambda: thread.call(lambda: time.sleep(0.3)), daemon=True).start()
time.sleep(0.05)
signal.setitimer(signal.ITIMER_REAL, 0.1)
found = thread.call(lambda: 7)
if children == [0]:
    os._exit(found)
print(found, os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
"""
    assert script(text) == (0, "7 7\n", "")


def test_the_process_ends_after_running_work() -> None:
    text = """
def work():
    time.sleep(0.2)
    print("done", flush=True)
threading.Thread(target=lambda: thread.call(work), daemon=True).start()
time.sleep(0.05)
"""
    assert script(text) == (0, "done\n", "")


def test_exit_handlers_use_the_thread_before_it_leaves_and_get_an_error_afterwards() -> None:
    text = """
import atexit
from lamina.errors import EngineError
atexit.register(lambda: print(thread.call(lambda: "before")))
thread.call(lambda: None)
"""
    late = """
import atexit
def late():
    try:
        thread.call(lambda: None)
    except EngineError as error:
        print(error)
atexit.register(late)
"""
    expected = (
        "the process is ending: the thread that compiles programs has ended\n"
        "  Register an exit handler after its model is made: it then runs before the thread ends.\n"
    )
    begin = (
        "from lamina.errors import EngineError\n"
        "from lamina.base.shielded import ShieldedThread\n"
        "thread = ShieldedThread('one')\n"
    )
    assert script(text) == (0, "before\n", "")
    done = subprocess.run(
        [sys.executable, "-c", f"{late}{begin}thread.call(lambda: None)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_a_daemon_thread_that_calls_at_exit_ends_silently() -> None:
    text = """
def ask():
    while True:
        thread.call(lambda: None)
threading.Thread(target=ask, daemon=True).start()
time.sleep(0.05)
print("leaving")
"""
    assert script(text) == (0, "leaving\n", "")


@posix_only
def test_work_is_never_interrupted_by_a_storm_of_signals() -> None:
    # In a process of its own: the handler raises wherever it comes while it is armed.
    text = """
from lamina.base.shielded import shielded
armed, pairs = [False], [0, 0]
class Alarm(Exception):
    pass
def handle(*_):
    if armed[0]:
        armed[0] = False
        raise Alarm
def work():
    pairs[0] += 1
    time.sleep(0)
    pairs[1] += 1
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
interrupted = 0
while interrupted < 200:
    try:
        armed[0] = True
        while True:
            shielded(work)
    except Alarm:
        interrupted += 1
signal.setitimer(signal.ITIMER_REAL, 0)
# What was not waited for is done all the same, before this.
shielded(lambda: None)
print(pairs[0] == pairs[1] > 0)
"""
    assert script(text) == (0, "True\n", "")
