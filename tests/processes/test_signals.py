"""Signals at any moment: nothing is freed twice, and training steps are completed."""

import gc
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import pytest
from callback_cases import Seen, hooked
from fresh_python import printed, run_python
from training_cases import same

import lamina as lm
from lamina.base.shielded import shielded
from lamina.engines.cpu import llvm
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.llvm import assemble, listing
from lamina.engines.cpu.native import jobs
from lamina.engines.cpu.native.jobs import Entry
from lamina.engines.cpu.processor import host
from lamina.engines.cpu.run.thread_pool import Job, ThreadPool
from lamina.engines.host import HostArena, HostMemory
from lamina.engines.interpreter import engine as interpreter
from lamina.training.interrupt import Interrupt, held_interrupts

ROOT = Path(__file__).parents[2]
X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
TEXT = "define void @program() {\n  ret void\n}\n"


posix_only = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX's signals")


@pytest.fixture
def pressing():
    """Presses Ctrl-C, with Python's own handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def network(width=5):
    return lm.Sequential(lm.Input(4), lm.Linear(width), lm.Tanh(), lm.Linear(4))


def training_of(model):
    return model.training(loss=lm.MSE(), optimizer=lm.SGD(0.1, momentum=0.9), batch_size=8)


@contextmanager
def writes_interrupted_by(action, *, shape=None):
    """The action is done before each write of an array, or of arrays of a shape."""
    plain = HostMemory.write

    def interrupted(memory, array):
        if shape in (None, array.shape):
            action()
        plain(memory, array)

    with patch.object(HostMemory, "write", interrupted):
        yield


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_every_call_into_llvm_is_made_in_one_thread(monkeypatch):
    """Also calls of destructors: no object of llvmlite is anywhere else."""
    kind = type(llvm.binding.ffi.lib.LLVMPY_DisposeString)
    plain = kind.__call__
    callers = set()

    def noted(self, *arguments):
        callers.add(threading.current_thread().name)
        return plain(self, *arguments)

    monkeypatch.setattr(kind, "__call__", noted)
    host()
    assemble(TEXT, host())
    listing(TEXT, host())
    with pytest.raises(RuntimeError, match="expected top-level entity"):
        assemble("no module", host())
    with pytest.raises(RuntimeError):
        llvm.load(b"no object code")
    model = lm.Model(network())
    model.predict(X)
    with training_of(model) as training:
        training.run((X, X), 3)
    # A circle, so that the model goes when garbage is collected: in this thread.
    model.itself = model
    del model, training
    gc.collect()
    lm.Model(network(6)).predict(X)
    assert callers == {"lamina-llvm"}


def test_code_without_references_is_unloaded():
    code = assemble(TEXT, host())
    llvm.load(code).release()
    before = len(llvm._loaded)
    loaded = [llvm.load(code) for _ in range(5)]
    assert len(llvm._loaded) == before + 5
    del loaded
    gc.collect()
    # Unloaded at the next call: the destructor itself calls nothing.
    library = llvm.load(code)
    assert len(llvm._loaded) <= before + 1
    library.release()
    library.release()
    assert library.number not in llvm._loaded


def test_an_interrupted_training_step_of_the_interpreter_is_completed(monkeypatch, pressing):
    models = [lm.Model(network(), engine="interpreter") for _ in range(2)]
    with training_of(models[1]) as training:
        training.step(X, X)
    plain, calls = interpreter.run_step, [0]

    def interrupted(*arguments):
        plain(*arguments)
        calls[0] += 1
        if calls[0] == 2:
            pressing()

    with training_of(models[0]) as training:
        with monkeypatch.context() as patches:
            patches.setattr(interpreter, "run_step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                training.step(X, X)
        assert calls[0] > 2
        assert training.steps_done == 1
    assert same(*(model.parameters() for model in models))


def test_parameters_are_replaced_together(pressing):
    model, other = lm.Model(network(), seed=0), lm.Model(network(), seed=1)
    with writes_interrupted_by(pressing), pytest.raises(KeyboardInterrupt):
        model.set_parameters(other.parameters())
    assert same(model.parameters(), other.parameters())


def test_a_handler_sees_the_parameters_before_a_change_or_after_it():
    """Such as a handler that saves the model when the process is to end."""
    model, other = lm.Model(network(), seed=0), lm.Model(network(), seed=1)
    seen = []
    handler = signal.signal(signal.SIGUSR1, lambda *_: seen.append(model.parameters()))

    def send():
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.02)

    try:
        with writes_interrupted_by(send):
            model.set_parameters(other.parameters())
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert seen
    assert all(same(parameters, other.parameters()) for parameters in seen)


def test_a_state_is_restored_together_with_the_parameters(pressing):
    with training_of(lm.Model(network())) as training:
        training.run((X, X), 3)
        values, state = training.snapshot()
        training.run((X, X), 3)
        with writes_interrupted_by(pressing), pytest.raises(KeyboardInterrupt):
            training.restore(state, values)
        restored = training.snapshot()
        assert same(restored[0], values)
        assert same(restored[1], state)


def test_weights_are_packed_again_after_an_interrupted_change():
    """A change counts before it is made: it may be the last thing that happens."""
    model = lm.Model(lm.Sequential(lm.Input(64), lm.Linear(64)))
    x = np.ones((4, 64), "float32")
    model.predict(x)
    weights = np.zeros((64, 64), "float32")

    def interrupted(target, source, casting):
        target[...] = source
        raise KeyboardInterrupt

    copy = patch("lamina.engines.host.np.copyto", interrupted)
    with copy, pytest.raises(KeyboardInterrupt):
        model.set_parameters({"1.weight": weights})
    bias = model.parameters()["1.bias"]
    assert (model.predict(x) == bias).all()


def test_a_training_cannot_be_run_after_an_interrupted_release():
    model = lm.Model(network())
    training = training_of(model)
    training.step(X, X)
    with patch.object(HostArena, "leave", interrupt), pytest.raises(KeyboardInterrupt):
        training.release()
    with pytest.raises(lm.errors.ReleasedError):
        training.step(X, X)
    assert model.predict(X).shape == (8, 4)


def job_of(threads):
    """A job without kernels."""
    return Job([], Entry(threads, 0, (), ()), np.zeros(1, np.uint64), np.zeros(1, np.int64))


def test_a_job_is_set_to_one_run_again_after_an_interrupted_change():
    """Otherwise it would access rows that were freed."""
    job = job_of(1)
    words = job._words
    job.set_runs(np.zeros((5, 2), np.int64), (), ())

    job._words = MagicMock(__setitem__=interrupt)
    with pytest.raises(KeyboardInterrupt):
        job.set_single_run()
    job._words = words
    job.set_single_run()
    assert words[jobs.RUNS] == 1
    assert words[jobs.OUTPUTS] == 0


def test_all_runs_are_made_after_ctrl_c_before_a_choice_of_threads(monkeypatch):
    job = job_of(2)
    first_runs = []

    def start(self, *, alone):
        first_runs.append(self._words[jobs.FIRST_RUN])
        self._words[jobs.RUN] = first_runs[-1] + 1
        self._words[jobs.ELAPSED] += 1000

    monkeypatch.setattr(Job, "_start", start)
    # The window was over, and no choice was made.
    job._words[jobs.ELAPSED] = 2 * job._words[jobs.WINDOW_TICKS]
    job.set_runs(np.zeros((9, 2), np.int64), (), ())
    job.run()
    assert first_runs == list(range(9))


def test_ctrl_c_while_a_helper_starts_leaves_no_two_helpers_with_one_number(monkeypatch, pressing):
    pool = ThreadPool()
    numbers = []

    def start(self):
        numbers.append(int(self.name.removeprefix("lamina-")))
        pressing()

    shielded(lambda: None)
    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "start", start)
        patches.setattr(pool, "_native", None)
        with pytest.raises(KeyboardInterrupt):
            pool.run(job_of(3))
        # The second time it gets as far as the native code, which is not there.
        with pytest.raises(AttributeError):
            pool.run(job_of(3))
    assert numbers == [1, 2]


def test_programs_move_to_another_arena_together(pressing):
    class Tenant:
        block: Any = None

        def move_to(self, block):
            pressing()
            self.block = block

    arena, tenants = HostArena(), [Tenant() for _ in range(3)]
    for number, tenant in enumerate(tenants):
        with pytest.raises(KeyboardInterrupt):
            arena.enter(tenant, 64 * (number + 1))
    assert {id(tenant.block) for tenant in tenants} == {id(tenants[0].block)}
    assert arena.bytes == 192


def test_ctrl_c_is_raised_at_the_end_unless_it_is_handled(pressing):
    def hold():
        with held_interrupts() as interrupt:
            assert not interrupt.handle()
            pressing()
            assert interrupt.pressed

    with pytest.raises(KeyboardInterrupt):
        hold()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with held_interrupts() as interrupt:
        pressing()
        assert interrupt.handle()


def test_the_previous_handler_is_restored_after_an_interrupted_restore(pressing, monkeypatch):
    seen = []

    def own(number, _):
        seen.append(number)

    signal.signal(signal.SIGINT, own)
    with pytest.raises(KeyboardInterrupt), held_interrupts():
        monkeypatch.setattr(signal, "signal", interrupt)
    monkeypatch.undo()
    gc.collect()
    pressing()
    assert seen == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is own


def test_ctrl_c_while_examples_are_copied_ends_a_fit_before_its_first_training_step(
    pressing, monkeypatch
):
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)))
    before, y = model.parameters(), X[:, :3]
    # As on a device with memory of its own.
    monkeypatch.setattr(CpuEngine, "shared", lambda *_: None)
    # A second time would raise at once.
    with writes_interrupted_by(pressing, shape=X.shape):
        history = model.fit((X, y), loss=lm.MSE(), optimizer=lm.SGD(0.1), progress=False)
        with model.training(lm.MSE(), lm.SGD(0.1), 4) as training:
            with pytest.raises(KeyboardInterrupt):
                training.run((X, y), 3)
            assert training.steps_done == 0
    assert history.interrupted
    assert len(history) == 0
    assert same(before, model.parameters())


HOW = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1), "progress": False}


def fits(pressing, seconds=0.0, **how):
    """Three fits; Ctrl-C is pressed in the second epoch of each, so many seconds apart."""
    results = []

    def press(history):
        if len(history) == 2:
            pressing()

    for _ in range(3):
        try:
            results.append(small_fit([press], epochs=4, **how))
        except KeyboardInterrupt:
            return results
        # As if the time had passed.
        Interrupt._last_said -= seconds
    return results


def small_fit(callbacks, **how):
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)))
    return model.fit((X, X[:, :3]), callbacks=callbacks, **HOW, **how)


def test_ctrl_c_ends_one_fit_of_a_loop_and_says_so(pressing, capsys):
    histories = fits(pressing, seconds=1.1)
    assert [(len(history), history.interrupted) for history in histories] == [(2, True)] * 3
    said = (
        "Ctrl-C: the fit ended after 2 of 4 epochs, and the program goes on. Press Ctrl-C again "
        "within a second to end the program.\n"
    )
    assert tuple(capsys.readouterr()) == ("", 3 * said)


def test_a_second_ctrl_c_within_a_second_ends_a_loop_of_fits(pressing):
    assert len(fits(pressing)) == 1


def test_ctrl_c_may_raise_once_the_fit_has_ended(pressing, capsys):
    assert not fits(pressing, on_interrupt="raise")
    assert not capsys.readouterr().err
    # A callback that ends a fit is no Ctrl-C.
    history = small_fit([lm.callbacks.TimeLimit(1e-9)], on_interrupt="raise")
    assert history.interrupted
    assert not capsys.readouterr().err


def test_callbacks_end_before_ctrl_c_raises(pressing):
    seen = Seen()
    with pytest.raises(KeyboardInterrupt):
        small_fit([hooked(epoch_begins=lambda *_: pressing()), seen], on_interrupt="raise")
    assert seen.calls[-1] == "fit ends, interrupted True"


@posix_only
def test_signals_at_random_moments_do_no_harm():
    """A short version of `tools/attack_signals.py`, which describes the attack."""
    done = run_python(ROOT / "tools" / "attack_signals.py", "40", "11", PYTHONPATH=str(ROOT))
    assert "0 failures" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


_PREDICTING = """
import importlib.abc, os, signal, sys, time
import numpy as np
import lamina as lm

x, y = np.zeros((2, 4), "float32"), np.zeros(2, int)
model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)), engine="cpu")
signal.signal(signal.SIGUSR1, lambda *_: print(model.predict(x).shape))

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("lamina.compiler.simplify", "lamina.engines.simd.emit.loops"):
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.2)  # a handler in another thread than this one would run now

sys.meta_path.insert(0, Finder())
model.fit((x, y), loss=lm.CrossEntropy(), optimizer=lm.SGD(0.1), progress=False)
"""


@posix_only
def test_a_handler_predicts_while_modules_are_loaded_for_the_first_time():
    assert printed(_PREDICTING, LAMINA_CACHE="off") == "(2, 3)\n(2, 3)\n"
