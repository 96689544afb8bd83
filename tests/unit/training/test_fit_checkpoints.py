"""Checkpoints of fits, and Ctrl-C: finished epochs are kept and resumed with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fit_cases import TEST, TRAIN, Array, fit, network, same

import lamina as lm
from lamina.errors import DataError, DefinitionError, FileFormatError, LaminaError
from lamina.training.history import History
from lamina.training.training import Training

ROOT = Path(__file__).parents[3]


def at_step(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], object]) -> None:
    """Calls `do` once, after that many training steps, in the middle of a fit."""
    run, did = Training._run_batches, [False]

    def counting(self: Training, *arguments: Any) -> Any:
        if not did[0] and isinstance(self, Training) and self.steps_done >= number:
            did[0] = True
            do()
        return run(self, *arguments)

    monkeypatch.setattr(Training, "_run_batches", counting)


# Checkpoints --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[dict[str, Array], dict[str, list[float]]]:
    """Parameters and history after five epochs."""
    model = lm.Model(network())
    history = fit(model, epochs=5, validation=TEST)
    return model.parameters(), history.values


Uninterrupted = tuple[dict[str, Array], dict[str, list[float]]]


def resumed(path: Path) -> tuple[lm.Model, History]:
    # The seed of the fresh model must not matter but for the order of the examples.
    model = lm.Model(network())
    model.set_parameters({name: 0 * value for name, value in model.parameters().items()})
    return model, fit(model, epochs=5, validation=TEST, checkpoint=path, resume=True)


def test_a_fit_in_two_calls_ends_in_the_same_bits(
    tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    path = tmp_path / "checkpoint"
    fit(lm.Model(network()), epochs=2, validation=TEST, checkpoint=path)
    model, history = resumed(path)
    assert same(model.parameters(), uninterrupted[0])
    assert history.values == uninterrupted[1]


@pytest.mark.parametrize("step", [7, 8, 10, 20, 29])
def test_a_fit_that_failed_in_an_epoch_is_resumed_with_the_same_bits(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Uninterrupted
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    path = tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        at_step(patch, step, fail)
        with pytest.raises(ZeroDivisionError):
            fit(lm.Model(network()), epochs=5, validation=TEST, checkpoint=path)
    model, history = resumed(path)
    assert same(model.parameters(), uninterrupted[0])
    assert history.values == uninterrupted[1]


@pytest.mark.sampled
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is of POSIX")
def test_a_fit_that_was_killed_in_an_epoch_is_resumed_with_the_same_bits(
    tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    path = tmp_path / "checkpoint"
    code = f"""
        import os, signal, sys
        sys.path[:0] = {[str(ROOT), *map(str, Path(__file__).parents[:2])]!r}
        import pytest, lamina as lm, test_fit_checkpoints as own
        kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
        own.at_step(pytest.MonkeyPatch(), 17, kill)
        model = lm.Model(own.network())
        own.fit(model, epochs=5, validation=own.TEST, checkpoint={str(path)!r})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.exists()
    model, history = resumed(path)
    assert same(model.parameters(), uninterrupted[0])
    assert history.values == uninterrupted[1]


def test_states_of_layers_are_resumed_too(tmp_path: Path) -> None:
    from test_network import Centred

    def make() -> lm.Model:
        return lm.Model(lm.Sequential(lm.Input(4), Centred(), lm.Linear(3)))

    path, whole, part, rest = tmp_path / "checkpoint", make(), make(), make()
    fit(whole, epochs=3)
    fit(part, epochs=1, checkpoint=path)
    fit(rest, epochs=3, checkpoint=path, resume=True)
    np.testing.assert_array_equal(rest.predict(TEST.inputs), whole.predict(TEST.inputs))


def test_a_model_with_the_users_classes_is_resumed(tmp_path: Path) -> None:
    from test_files import Own, Ramp

    def make() -> lm.Model:
        own = Own(scale=2.0, inner=lm.Linear(3, weight_init=Ramp(0.1)))
        return lm.Model(lm.Sequential(lm.Input(4), own))

    path = tmp_path / "checkpoint"
    fit(make(), epochs=1, checkpoint=path)
    assert len(fit(make(), epochs=3, checkpoint=path, resume=True)) == 3


def test_resuming_without_a_checkpoint_begins_at_the_start(tmp_path: Path) -> None:
    history = fit(lm.Model(network()), checkpoint=tmp_path / "checkpoint", resume=True)
    assert len(history) == 3


def test_resuming_a_fit_that_is_done_does_nothing(tmp_path: Path) -> None:
    path, model = tmp_path / "checkpoint", lm.Model(network())
    history = fit(model, checkpoint=path)
    before = model.parameters()
    assert fit(model, checkpoint=path, resume=True).values == history.values
    assert same(model.parameters(), before)


def test_a_checkpoint_loads_as_a_model(tmp_path: Path) -> None:
    path, model = tmp_path / "checkpoint", lm.Model(network())
    fit(model, checkpoint=path)
    assert same(lm.load(path).parameters(), model.parameters())


def test_a_callback_finds_the_checkpoint_of_its_epoch(tmp_path: Path) -> None:
    path, model = tmp_path / "checkpoint", lm.Model(network())

    def compare(_: History) -> None:
        assert same(lm.load(path).parameters(), model.parameters())

    fit(model, checkpoint=path, callbacks=[compare])


OTHERS: dict[str, Callable[[Path], object]] = {
    "another optimizer": lambda path: fit(
        lm.Model(network()), optimizer=lm.SGD(0.1, momentum=0.9), checkpoint=path
    ),
    "another network": lambda path: fit(
        lm.Model(lm.Sequential(lm.Input(4), lm.Linear(5), lm.ReLU(), lm.Linear(3))), checkpoint=path
    ),
    "a saved model": lambda path: lm.Model(network()).save(path),
    "another file": lambda path: path.write_bytes(b"something else"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_that_does_not_fit_is_refused_and_the_model_kept(
    name: str, tmp_path: Path
) -> None:
    path, model = tmp_path / "checkpoint", lm.Model(network(), seed=5)
    OTHERS[name](path)
    contents, before = path.read_bytes(), model.parameters()
    with pytest.raises(LaminaError):
        fit(model, checkpoint=path, resume=True)
    assert same(model.parameters(), before)
    assert path.read_bytes() == contents


def test_resuming_from_a_saved_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model"
    lm.Model(network()).save(path)
    with pytest.raises(FileFormatError) as caught:
        fit(lm.Model(network()), checkpoint=path, resume=True)
    assert str(caught.value) == (
        f"in {path}: this file holds a model, not a checkpoint to resume from\n"
        "  expected  a file of fit(checkpoint=...)\n"
        "  found     a saved model\n"
        "  Start from its parameters: lm.load(path), and leave resume out."
    )


def test_a_checkpoint_that_cannot_be_written_ends_the_fit(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="could not be written"):
        fit(lm.Model(network()), checkpoint=tmp_path / "missing" / "checkpoint")


# Ctrl-C -------------------------------------------------------------------------------------------


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_in_an_epoch_ends_the_fit_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    at_step(monkeypatch, 15, press)
    history = fit(lm.Model(network()), epochs=1000)
    assert history.interrupted
    assert 1 <= len(history) < 1000


def test_ctrl_c_in_a_fit_leaves_whole_training_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, run = lm.Model(network()), lm.Model(network())
    done: list[int] = []
    whole = Training._run_batches

    def counting(self: Training, resident: Any, batches: Any) -> Any:
        if len(done) == 3:
            press()
        recorded = whole(self, resident, batches)
        done.append(len(batches))
        return recorded

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_run_batches", counting)
        fit(fitted, epochs=1000)
    with run.training(lm.CrossEntropy(), lm.Adam(0.01), 8) as trainer:
        trainer.run(TRAIN, steps=sum(done), seed=0)
    assert same(fitted.parameters(), run.parameters())


def test_ctrl_c_from_a_callback_ends_the_fit_after_its_epoch() -> None:
    history = fit(
        lm.Model(network()), epochs=1000, callbacks=[lambda h: press() if len(h) == 2 else None]
    )
    assert history.interrupted
    assert len(history) == 2


def test_a_second_ctrl_c_ends_the_fit_at_once() -> None:
    def twice(_: History) -> None:
        press()
        press()

    with pytest.raises(KeyboardInterrupt):
        fit(lm.Model(network()), callbacks=[twice])


def test_a_fit_restores_the_handler_of_ctrl_c() -> None:
    before = signal.getsignal(signal.SIGINT)
    fit(lm.Model(network()))
    assert signal.getsignal(signal.SIGINT) is before


def test_a_fit_that_was_interrupted_is_resumed_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Uninterrupted
) -> None:
    path = tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        at_step(patch, 16, press)
        fit(lm.Model(network()), epochs=5, validation=TEST, checkpoint=path)
    model, history = resumed(path)
    assert same(model.parameters(), uninterrupted[0])
    assert history.values == uninterrupted[1]
    assert not history.interrupted


@pytest.mark.parametrize("resume", [False, True])
def test_a_fit_interrupted_in_its_first_epoch_begins_again_with_its_first_parameters(
    resume: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Uninterrupted
) -> None:
    path, model = tmp_path / "checkpoint", lm.Model(network())
    first = model.parameters()
    with monkeypatch.context() as patch:
        at_step(patch, 3, press)
        history = fit(model, epochs=5, validation=TEST, checkpoint=path, resume=resume)
    assert history.interrupted
    assert len(history) == 0
    assert not same(model.parameters(), first)
    assert same(lm.load(path).parameters(), first)
    # The same model continues; the half epoch that it has learned does not count.
    history = fit(model, epochs=5, validation=TEST, checkpoint=path, resume=True)
    assert same(model.parameters(), uninterrupted[0])
    assert history.values == uninterrupted[1]


def test_a_checkpoint_of_an_earlier_fit_stays_until_an_epoch_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    fit(lm.Model(network()), checkpoint=path)
    before = path.read_bytes()
    at_step(monkeypatch, 3, press)
    assert fit(lm.Model(network(), seed=1), checkpoint=path).interrupted
    assert path.read_bytes() == before


def test_a_fit_works_in_a_thread() -> None:
    found: list[History] = []
    thread = threading.Thread(target=lambda: found.append(fit(lm.Model(network()))))
    thread.start()
    thread.join()
    assert len(found[0]) == 3


def test_ctrl_c_in_a_run_leaves_whole_training_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lm.Model(network())
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


def test_frozen_patterns_are_checked_before_a_checkpoint_is_written(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with pytest.raises(DefinitionError, match="given as a list of patterns"):
        fit(lm.Model(network()), checkpoint=path, frozen=5)
    assert not path.exists()
