"""Work in a thread that no signal interrupts; exceptions of handlers are raised after it."""

import gc
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from error_texts import error_text
from fresh_python import printed

from lamina.base.shielded import ShieldedThread, shielded
from lamina.errors import EngineError

THREAD = ShieldedThread("tests")

posix_only = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX's timers")


class Alarm(Exception):
    """The exception of the handler."""


def test_results_and_errors_are_passed_on():
    assert THREAD.call(lambda: 7 * 6) == 42
    assert THREAD.call(lambda: THREAD.call(lambda: 3)) == 3
    with pytest.raises(ZeroDivisionError):
        THREAD.call(lambda: 1 / 0)


def test_all_work_runs_in_one_thread():
    with ThreadPoolExecutor(5) as callers:
        found = set(callers.map(lambda _: THREAD.call(threading.get_ident), range(20)))
    found.add(THREAD.call(threading.get_ident))
    assert len(found) == 1
    assert threading.get_ident() not in found


def test_work_is_over_or_not_begun_wherever_a_handler_raises():
    # Code that handles the interruption uses what the work changes: the work must not be running.
    traced = {ShieldedThread.call.__code__, ShieldedThread._finish.__code__}
    begun, over = 0, 0

    def work():
        nonlocal begun, over
        begun += 1
        time.sleep(0.001)
        over += 1

    def interrupted_at(instruction):
        instructions = count()

        def trace(frame, event, _):
            frame.f_trace_opcodes = frame.f_code in traced
            if event == "opcode" and next(instructions) == instruction:
                raise Alarm
            return trace if frame.f_code in traced else None

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
def test_a_handler_may_ask_for_work_while_other_work_runs():
    results = []
    before = signal.signal(signal.SIGALRM, lambda *_: results.append(THREAD.call(lambda: 5)))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        THREAD.call(lambda: time.sleep(0.1))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert results == [5]


def test_other_threads_do_their_work_themselves():
    found = []
    caller = threading.Thread(target=lambda: found.append(shielded(threading.get_ident)))
    caller.start()
    caller.join()
    assert found == [caller.ident]


def test_the_collector_is_off_in_the_shielded_thread():
    assert gc.isenabled()
    assert not THREAD.call(gc.isenabled)
    assert gc.isenabled()
    gc.disable()
    try:
        THREAD.call(lambda: None)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_thread_that_cannot_be_started_is_an_error(monkeypatch):
    def fail(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("lamina.base.shielded.start_new_thread", fail)
    assert error_text(EngineError, ShieldedThread("another").call, lambda: None) == (
        "a thread cannot be started\n"
        "  thread  another\n"
        "  reason  can't start new thread\n"
        "  Raise the limit of threads (ulimit -u). At the end of a process no thread can be "
        "started: make the model earlier."
    )
    monkeypatch.setattr("lamina.base.shielded._writes", ShieldedThread("a third"))
    assert shielded(lambda: 3) == 3


BEGIN = """
import os, signal, threading, time
from lamina.base.shielded import ShieldedThread
thread = ShieldedThread('one')
"""
# In processes of their own: what is raised in a callback of the garbage collector is lost there,
# and pytest's plugins have such callbacks; a handler may raise wherever it comes.
PROGRAMS = {
    "a forked child has a thread of its own and forks wait for running work": (
        """
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
""",
        "10\n",
    ),
    "a call interrupted by a handler that forks continues in the child": (
        # The interrupted call waits for an earlier one: the child has to do it itself.
        """
children = []
signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))
threading.Thread(target=lambda: thread.call(lambda: time.sleep(0.3)), daemon=True).start()
time.sleep(0.05)
signal.setitimer(signal.ITIMER_REAL, 0.1)
found = thread.call(lambda: 7)
if children == [0]:
    os._exit(found)
print(found, os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
""",
        "7 7\n",
    ),
    "the process ends after running work": (
        """
def work():
    time.sleep(0.2)
    print("done", flush=True)
threading.Thread(target=lambda: thread.call(work), daemon=True).start()
time.sleep(0.05)
""",
        "done\n",
    ),
    "exit handlers use the thread before it leaves": (
        """
import atexit
atexit.register(lambda: print(thread.call(lambda: "before")))
thread.call(lambda: None)
""",
        "before\n",
    ),
    "a daemon thread that calls at exit ends silently": (
        """
def ask():
    while True:
        thread.call(lambda: None)
threading.Thread(target=ask, daemon=True).start()
time.sleep(0.05)
print("leaving")
""",
        "leaving\n",
    ),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no signals and no fork here")
@pytest.mark.cases("program, expected", PROGRAMS)
def test_processes(program, expected):
    assert printed(BEGIN + program) == expected


SEVERAL = """
numbers = (signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)[:SEVERAL]
class Alarm(Exception):
    pass
def handle(*_):
    raise Alarm
def press_all_and_work():
    os.kill(os.getpid(), numbers[0])
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


@posix_only
@pytest.mark.parametrize("several", [1, 2, 3])
def test_exceptions_of_handlers_are_held_until_the_work_is_done(several):
    # All come while this thread has the interpreter's lock: the main thread then runs the first
    # handler, and another one wherever it looks next.
    assert printed(BEGIN + SEVERAL.replace("[:SEVERAL]", f"[:{several}]")) == "True\n" * 5


LATE = """
import atexit
def late():
    try:
        thread.call(lambda: None)
    except EngineError as error:
        print(error)
atexit.register(late)
from lamina.errors import EngineError
"""


def test_exit_handlers_after_the_thread_has_left_get_an_error():
    assert printed(f"{LATE}{BEGIN}thread.call(lambda: None)") == (
        "the process is ending: the thread that compiles programs has ended\n"
        "  Register an exit handler after its model is made: it then runs before the thread ends.\n"
    )
