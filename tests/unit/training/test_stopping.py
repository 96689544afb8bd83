"""Callbacks that watch a measure: early stopping, reduced rates; and limits of time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from callback_cases import Scripted, Seen, bits, fit, network
from error_texts import refused

import lamina as lm
from lamina.errors import DefinitionError, NonFiniteError
from lamina.training.callbacks.callback import RunningFit


def test_early_stopping_waits_and_restores_the_best_epoch() -> None:
    kept: list[bytes] = []

    class Keep(lm.Callback):
        def epoch_ends(self, fit: RunningFit) -> None:
            kept.append(bits(fit.model))

    model = lm.Model(network(), seed=1)
    stopping = lm.callbacks.EarlyStopping(patience=2)
    history = fit([Scripted([3, 1, 2, 1, 0]), Keep(), stopping], model, epochs=9)
    assert len(history) == 4
    assert stopping.best_epoch == 2
    assert bits(model) == kept[1]


def diverge(fit: RunningFit) -> None:
    huge = {name: np.full_like(v, 1e38) for name, v in fit.model.parameters().items()}
    fit.model.set_parameters(huge)


def interrupt(fit: RunningFit) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (diverge, NonFiniteError),
        (interrupt, KeyboardInterrupt),
        (lambda _: 1 / 0, ZeroDivisionError),
    ],
)
def test_the_best_epoch_comes_back_however_the_fit_ends(
    end: Callable[[RunningFit], None], error: type[BaseException]
) -> None:
    kept: list[bytes] = []

    class Ends(lm.Callback):
        def epoch_begins(self, fit: RunningFit) -> None:
            kept.append(bits(fit.model))
            if fit.epoch == 4:
                end(fit)

        def fit_fails(self, fit: RunningFit, error: BaseException) -> None:
            raise RuntimeError("also this one")

    model = lm.Model(network(), seed=1)
    callbacks = [Ends(), Scripted([3, 1, 2]), lm.callbacks.EarlyStopping()]
    raised = refused(error, lambda: fit(callbacks, model, epochs=9))
    assert bits(model) == kept[2]
    assert raised.__notes__ == [
        "Ends.fit_fails: RuntimeError('also this one')",
        "EarlyStopping: the model has the values of epoch 2.",
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_never_the_best(value: float, tmp_path: Path) -> None:
    stopping = lm.callbacks.EarlyStopping(patience=9, restore_best=False)
    saving = lm.callbacks.SaveModels(tmp_path)
    fit([Scripted([value, 2, value]), stopping, saving])
    assert stopping.best_epoch == 2
    assert saving.state()["best"] == [[2, 2]]


def test_early_stopping_needs_a_change_of_a_least_size() -> None:
    stopping = lm.callbacks.EarlyStopping("accuracy", patience=2, least_change=0.1)
    values = Scripted([0.5, 0.55, 0.59, 0.9], "accuracy")
    history = fit([values, stopping], metrics=[lm.Accuracy()], epochs=4)
    assert len(history) == 3
    assert stopping.best_epoch == 1


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("validation_accuracy", None),
        ("val_loss", "Here it is called 'validation_loss'."),
        ("acuracy", "Did you mean 'accuracy'?"),
    ],
)
def test_a_measure_that_is_not_there_is_named_before_the_training(
    name: str, advice: str | None, tmp_path: Path
) -> None:
    callbacks = lm.callbacks
    for callback in (
        callbacks.EarlyStopping(name),
        callbacks.ReduceOnPlateau(name),
        callbacks.SaveModels(tmp_path, name),
    ):
        seen, metrics = Seen(), [lm.Accuracy()] if advice else []
        error = refused(DefinitionError, fit, [callback, seen], metrics=metrics)
        assert error.where.startswith(type(callback).__name__)
        assert f"nothing named {name!r} is measured" in error.problem
        assert error.advice == advice or not advice
        assert seen.calls == ["fit fails: DefinitionError"]


PLATEAU = [5, 4, 4, 4, 4, 3.99999, 3, 3, 3, 3, 3, 2.9]


NEVER_FINITE = [math.nan, math.inf, -math.inf, math.nan, math.inf]
FINITE_LATE = [math.nan, math.inf, 5, math.nan, 4, math.inf, math.inf, 4]


@pytest.mark.parametrize("values", [PLATEAU, NEVER_FINITE, FINITE_LATE])
@pytest.mark.parametrize(
    "how", [{}, {"cooldown": 2}, {"threshold": 0.1}, {"threshold": 0}, {"least_rate": 0.04}]
)
def test_reduce_on_plateau_lowers_the_rate(how: Mapping[str, Any], values: list[float]) -> None:
    plateau = lm.callbacks.ReduceOnPlateau(factor=0.5, patience=1, **how)
    history = fit([Scripted(values), plateau], epochs=len(values))
    rates, best, waited, cooling, rate = [], math.inf, 0, 0, 0.1
    for value in values:
        rates.append(rate)
        if math.isfinite(value) and value < best * (1 - how.get("threshold", 1e-4)):
            best, waited = value, 0
        else:
            waited += 1
        if cooling:
            cooling, waited = cooling - 1, 0
        if waited > 1:
            rate, waited = max(rate * 0.5, how.get("least_rate", 0.0)), 0
            cooling = how.get("cooldown", 0)
    assert history["rate"] == pytest.approx(rates)
    assert history["rate"][0] == 0.1
    assert history["rate"][-1] < 0.1


@pytest.mark.torch
@pytest.mark.parametrize("how", [{}, {"cooldown": 2}, {"threshold": 0.1}, {"least_rate": 0.04}])
@pytest.mark.parametrize("monitor", ["validation_loss", "accuracy"])
@pytest.mark.parametrize("given", [PLATEAU, FINITE_LATE])
def test_reduce_on_plateau_decides_as_pytorch(
    given: list[float], monitor: str, how: Mapping[str, Any]
) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    values = given if monitor == "validation_loss" else [9 - value for value in given]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    names = {"least_rate": "min_lr"}
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        mode="min" if monitor == "validation_loss" else "max",
        factor=0.5,
        patience=1,
        **{names.get(name, name): value for name, value in how.items()},
    )
    expected = []
    for value in values:
        expected.append(optimizer.param_groups[0]["lr"])
        theirs.step(value)
    plateau = lm.callbacks.ReduceOnPlateau(monitor, factor=0.5, patience=1, **how)
    callbacks = [Scripted(values, monitor), plateau]
    history = fit(callbacks, epochs=len(values), metrics=[lm.Accuracy()])
    assert history["rate"] == pytest.approx(expected)


def test_a_time_limit_ends_the_fit() -> None:
    history = fit([lm.callbacks.TimeLimit(1e-6)])
    assert len(history) == 0
    assert history.interrupted
    assert len(fit([lm.callbacks.TimeLimit(3600)])) == 3
