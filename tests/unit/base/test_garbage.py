"""Pauses of Python's garbage collector: nested, in several threads, interrupted."""

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import lamina as lm
from lamina.base.garbage import Pause, without_collections


@pytest.fixture(autouse=True)
def collecting():
    assert gc.isenabled()
    yield
    # The collector is on again after every test.
    assert gc.isenabled()


def test_the_last_pause_that_ends_or_is_deleted_lets_garbage_be_collected():
    first, second = Pause(), Pause()
    assert not gc.isenabled()
    first.end()
    first.end()
    assert not gc.isenabled()
    second.end()
    assert gc.isenabled()
    deleted = Pause()
    assert not gc.isenabled()
    del deleted
    assert gc.isenabled()


def test_an_interrupted_end_of_a_pause_is_completed_by_the_next_pause(monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    pause = Pause()
    with monkeypatch.context() as signals:
        signals.setattr(Pause, "__del__", interrupt)
        # Otherwise pytest keeps the exception, and with it the pause.
        signals.setattr(sys, "unraisablehook", lambda _: None)
        del pause
    Pause().end()
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        Pause().end()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_functions_that_fail_end_their_pause():
    @without_collections
    def fail(number):
        assert not gc.isenabled()
        return 1 // number

    assert fail(1) == 1
    with pytest.raises(ZeroDivisionError):
        fail(0)
    assert fail.__name__ == "fail"


def test_threads_may_pause_the_collector_at_once():
    together = threading.Barrier(8)

    def work(_):
        together.wait()
        states = []
        for _ in range(2000):
            pause = Pause()
            states.append(gc.isenabled())
            pause.end()
        return states

    with ThreadPoolExecutor(8) as threads:
        enabled = [state for states in threads.map(work, range(8)) for state in states]
    # Another thread may be about to switch it on; then it is switched off again at once.
    assert sum(enabled) < len(enabled) // 100


def test_the_collector_is_paused_while_a_training_step_is_compiled():
    enabled = []

    def loss(prediction, _target):
        enabled.append(gc.isenabled())
        return lm.ops.mean(prediction * prediction)

    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)))
    model.training(loss=loss, optimizer=lm.SGD(0.1), batch_size=4).release()
    assert enabled
    assert not any(enabled)


def test_compiling_leaves_little_for_the_collector():
    def garbage(layers):
        blocks = [x for _ in range(layers) for x in (lm.Linear(4), lm.ReLU())]
        network = lm.Sequential(lm.Input(4), *blocks, lm.Linear(2))
        gc.collect()
        pause = Pause()
        network.plan(8, loss=lm.CrossEntropy(), optimizer=lm.SGD(0.1))
        count = gc.collect()
        pause.end()
        return count

    garbage(2)
    # Graphs and programs are freed by counting references: the garbage does not grow with them.
    assert garbage(20) < garbage(5) + 50
