"""Ctrl-C in fits, runs, streams and copies: whole training steps, whole copies, the same bits."""

import _thread
import os
import signal
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
from callback_cases import hooked
from error_texts import refused
from fresh_python import run_python
from stream_cases import BATCH, batches_of, trained
from test_fit_checkpoints import resumed, uninterrupted
from test_streams_continued import CONTINUED, FEW, fitted
from training_cases import TEST, TRAIN, at_step, fit, network, same

import lamina as lm
from lamina.base.copies import PIECE_BYTES, by_threads
from lamina.data import Stream

pytestmark = pytest.mark.each_case

BLOCKED = [
    "training",
    *(pytest.param(where, marks=pytest.mark.sampled) for where in ("first validation", "both")),
    "second validation",
]


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_in_a_fit_leaves_whole_training_steps(monkeypatch):
    fitted, run = lm.Model(network()), lm.Model(network())
    done = []
    counting = hooked(steps_done=lambda _, fit, steps: done.append(steps))
    with monkeypatch.context() as patch:
        at_step(patch, 16, press)
        history = fit(fitted, epochs=1000, callbacks=[counting])
    assert history.interrupted
    with run.training(lm.CrossEntropy(), lm.Adam(0.01), 8) as trainer:
        trainer.run(TRAIN, steps=sum(done), seed=0)
    assert same(fitted.parameters(), run.parameters())


def test_a_second_ctrl_c_ends_a_fit_at_once(model):
    refused(KeyboardInterrupt, lambda: fit(model, callbacks=[lambda _: (press(), press())[0]]))


def test_a_fit_that_was_interrupted_is_resumed_with_the_same_bits(monkeypatch, path):
    with monkeypatch.context() as patch:
        at_step(patch, 16, press)
        fit(lm.Model(network()), epochs=5, validation=TEST, checkpoint=path)
    resumed(path)


@pytest.mark.parametrize("resume", [False, True])
def test_a_fit_interrupted_in_its_first_epoch_begins_again_with_its_first_parameters(
    resume, monkeypatch, path
):
    model = lm.Model(network())
    first = model.parameters()
    with monkeypatch.context() as patch:
        at_step(patch, 3, press)
        history = fit(model, epochs=5, validation=TEST, checkpoint=path, resume=resume)
    assert history.interrupted
    assert len(history) == 0
    assert not same(model.parameters(), first)
    assert same(lm.load(path).parameters(), first)
    parameters, values = uninterrupted()
    # The same model continues; the half epoch that it has learned does not count.
    history = fit(model, epochs=5, validation=TEST, checkpoint=path, resume=True)
    assert same(model.parameters(), parameters)
    assert history.values == values


def test_a_checkpoint_of_an_earlier_fit_stays_until_an_epoch_is_done(monkeypatch, path):
    fit(lm.Model(network()), checkpoint=path)
    before = path.read_bytes()
    at_step(monkeypatch, 3, press)
    assert fit(lm.Model(network(), seed=1), checkpoint=path).interrupted
    assert path.read_bytes() == before


def test_ctrl_c_in_a_run_leaves_whole_training_steps(monkeypatch, model):
    at_step(monkeypatch, 3, press)
    with model.training(lm.CrossEntropy(), lm.Adam(0.01), 8) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.run(TRAIN, steps=100_000)
        done = trainer.steps_done
    monkeypatch.undo()
    again = lm.Model(network())
    with again.training(lm.CrossEntropy(), lm.Adam(0.01), 8) as trainer:
        trainer.run(TRAIN, steps=done)
    assert same(model.parameters(), again.parameters())


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is of POSIX")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.sampled) for n in (*FEW[:2], *FEW[3:4], "state")]
)
def test_a_fit_that_was_killed_in_an_epoch_continues_from_its_training_step(name, path):
    code = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
import pytest
from test_streams_continued import CONTINUED, fitted
from training_cases import at_step
at_step(pytest.MonkeyPatch(), 8, lambda: os.kill(os.getpid(), signal.SIGKILL))
fitted(CONTINUED[{name!r}], checkpoint={str(path)!r}, checkpoint_steps=2)
"""
    done = run_python("-c", code)
    assert done.returncode == -signal.SIGKILL
    make = CONTINUED[name]
    reference, part = fitted(make), fitted(make, checkpoint=path, resume=True)
    assert same(reference[0], part[0])
    assert reference[1].values == part[1].values


@pytest.mark.parametrize("ending", ["Ctrl-C", "a time limit"])
@pytest.mark.parametrize("blocked", BLOCKED)
def test_a_source_that_blocks_keeps_no_fit(blocked, ending, monkeypatch):
    """At most 5 s are waited for sources, however many block and however often they are closed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    begun, released, unpressed = threading.Event(), threading.Event(), threading.Lock()
    waited = []

    class Begins(lm.Callback):
        def fit_begins(self, fit):
            if ending == "a time limit":
                fit.stop(after=0.3)
            begun.set()

    def source(blocks, readings):
        if blocks and not readings.pop():
            begun.wait(60)
            if ending == "Ctrl-C" and unpressed.acquire(blocking=False):
                os.kill(os.getpid(), signal.SIGINT)
            released.wait(60)
        yield from batches_of(TRAIN, BATCH)()

    def trains():
        yield TRAIN.inputs[:BATCH], TRAIN.targets[:BATCH]
        yield from source(blocked in ("training", "both"), [0])

    def join(thread, timeout=None):
        short = thread.name == "lamina reader" and timeout is not None
        plain(thread, 0.5 if short else timeout)
        if short and thread.is_alive():
            waited.append(timeout)

    plain = threading.Thread.join
    monkeypatch.setattr(threading.Thread, "join", join)
    # From the last reading on: whether one goes on without a block.
    readings = [0, 1] if blocked == "second validation" else [0]
    validation = Stream(lambda: source(blocked != "training", readings))
    started = time.perf_counter()
    try:
        _, history = trained(trains, validation=validation, epochs=2, callbacks=[Begins()])
    finally:
        released.set()
        signal.signal(signal.SIGINT, before)
        readers = [thread for thread in threading.enumerate() if thread.name == "lamina reader"]
        for reader in readers:
            plain(reader, 60)
    assert not any(reader.is_alive() for reader in readers)
    assert history.interrupted
    assert len(history) == (blocked == "second validation")
    assert 0 < sum(waited) <= 5
    assert time.perf_counter() - started < 30


def test_a_signal_does_not_end_a_copy_half_way():
    ended = []

    def work(number):
        _thread.interrupt_main()
        time.sleep(0.01)
        ended.append(number)

    done = []
    # A shell makes commands in the background ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            by_threads([partial(work, number) for number in range(6)], 2 * PIECE_BYTES, done.append)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(ended) == done == [*range(6)]


def test_after_ctrl_c_trials_of_a_search_that_were_not_completed_have_no_score():
    pressed = []

    class Stop(lm.Callback):
        def epoch_ends(self, fit):
            if not pressed:
                pressed.append(fit)
                signal.raise_signal(signal.SIGINT)

    def make(kind):
        return lm.Sequential(lm.Input(3), lm.Linear(2)), kind(0.1)

    data = np.ones((12, 3), "float32"), np.arange(12) % 2
    how = {"loss": lm.CrossEntropy(), "epochs": 9, "folds": 2, "callbacks": [Stop()]}
    found = lm.Population.search(make, {"kind": [lm.SGD, lm.Adam]}, data, **how)
    assert np.isnan(found.scores).all()
    assert [len(each[0]) for each in found.histories] == [1, 0]
