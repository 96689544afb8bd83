"""Callbacks that watch a measure: stopping, reduced rates, the best epoch; limits of time."""

import math
from typing import Any

import numpy as np
import pytest
from callback_cases import Scripted, Seen, X, Y, bits, fit, hooked, keeping
from error_texts import error_text, refused
from training_cases import network

import lamina as lm
from lamina.errors import DefinitionError, NonFiniteError
from lamina.learning import metrics
from lamina.training.callbacks.callback import RunningFit


def test_early_stopping_waits_and_restores_the_best_epoch():
    kept: list[bytes] = []
    model = lm.Model(network(), seed=1)
    stopping = lm.callbacks.EarlyStopping(patience=2)
    history = fit([Scripted([3, 1, 2, 1, 0]), keeping(kept), stopping], model, epochs=9)
    assert len(history) == 4
    assert stopping.best_epoch == 2
    assert bits(model) == kept[1]


def diverge(fit: RunningFit) -> None:
    huge = {name: np.full_like(v, 1e38) for name, v in fit.model.parameters().items()}
    fit.model.set_parameters(huge)


def interrupt(fit: RunningFit) -> None:
    raise KeyboardInterrupt


def also_fails(*_: object) -> None:
    raise RuntimeError("also this one")


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (diverge, NonFiniteError),
        (interrupt, KeyboardInterrupt),
        (lambda _: 1 / 0, ZeroDivisionError),
    ],
)
def test_the_best_epoch_comes_back_however_the_fit_ends(end, error):
    kept: list[bytes] = []
    ends = hooked(
        epoch_begins=lambda _, fit: end(fit) if fit.epoch == 4 else None, fit_fails=also_fails
    )
    model = lm.Model(network(), seed=1)
    callbacks = [keeping(kept), ends, Scripted([3, 1, 2]), lm.callbacks.EarlyStopping()]
    raised = refused(error, lambda: fit(callbacks, model, epochs=9))
    assert bits(model) == kept[1]
    assert raised.__notes__ == [
        "Hooked.fit_fails: RuntimeError('also this one')",
        "EarlyStopping: the model has the values of epoch 2.",
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_never_the_best(value, tmp_path):
    stopping = lm.callbacks.EarlyStopping(patience=9, restore_best=False)
    saving = lm.callbacks.SaveModels(tmp_path)
    fit([Scripted([value, 2, value]), stopping, saving])
    assert stopping.best_epoch == 2
    assert saving.state()["best"] == [[2, 2]]


def test_early_stopping_needs_a_change_of_a_least_size():
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
def test_a_measure_that_is_not_there_is_named_before_the_training(name, advice, tmp_path):
    callbacks = lm.callbacks
    for callback in (
        callbacks.EarlyStopping(name),
        callbacks.ReduceOnPlateau(name),
        callbacks.SaveModels(tmp_path, name),
    ):
        seen, metrics = Seen(), [lm.Accuracy()] if advice else []
        error = refused(DefinitionError, fit, [callback, seen], metrics=metrics)
        assert error.where == type(callback).__name__
        assert f"nothing named {name!r} is measured" in error.problem
        assert error.advice == advice or not advice
        assert seen.calls == ["fit fails: DefinitionError"]


class Patient(lm.callbacks.EarlyStopping):
    last_value = "a name of the user's"


def test_errors_of_a_subclass_name_the_class_whose_documentation_explains_them():
    assert refused(DefinitionError, fit, [Patient("absent")]).where == "EarlyStopping"
    assert len(fit([Patient("loss")], epochs=1)) == 1


PLATEAU = [5, 4, 4, 4, 4, 3.99999, 3, 3, 3, 3, 3, 2.9]
SLOWER = [5, 4, 4, 4, 3.9, 3.9, 3.9, 3.9, 3.9]
FINITE_LATE = [math.nan, math.inf, 5, math.nan, 4, math.inf, math.inf, 4]


@pytest.mark.parametrize(
    ("how", "values", "rates"),
    [
        ({}, [math.nan, math.inf, -math.inf, math.nan, math.inf], [0.1, 0.1, 0.05, 0.05, 0.025]),
        ({}, SLOWER, [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025]),
        ({"cooldown": 2}, SLOWER, [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.025]),
        ({"threshold": 0.1}, SLOWER, [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.0125]),
        ({"least_rate": 0.04}, SLOWER, [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.04, 0.04]),
    ],
)
def test_reduce_on_plateau_lowers_the_rate(how, values, rates):
    plateau = lm.callbacks.ReduceOnPlateau(factor=0.5, patience=1, **how)
    history = fit([Scripted(values), plateau], epochs=len(values))
    assert history["rate"] == pytest.approx(rates)


@pytest.mark.parametrize(
    "how", [{}, {"cooldown": 2}, {"threshold": 0.1}, {"threshold": 0}, {"least_rate": 0.04}]
)
@pytest.mark.parametrize("monitor", ["validation_loss", "accuracy"])
@pytest.mark.parametrize("given", [PLATEAU, FINITE_LATE])
def test_reduce_on_plateau_decides_as_pytorch(given, monitor, how, torch):
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


def test_a_time_limit_ends_the_fit():
    history = fit([lm.callbacks.TimeLimit(1e-6)])
    assert len(history) == 0
    assert history.interrupted
    assert len(fit([lm.callbacks.TimeLimit(3600)])) == 3


class Adds(lm.Callback):
    """Adds a measure for other callbacks."""

    def fit_begins(self, fit: RunningFit) -> None:
        fit.history.measured += ("own",)

    def epoch_ends(self, fit: RunningFit) -> None:
        fit.history.values.setdefault("own", []).append(float(fit.epoch))


def test_a_callback_may_add_a_measure_for_others():
    stopping = lm.callbacks.EarlyStopping("own", best="min", patience=2)
    assert len(fit([Adds(), stopping], epochs=9)) == 3


def test_a_matrix_is_no_measure_of_the_best_epoch():
    stopping = lm.callbacks.EarlyStopping("confusion_matrix", best="max")
    text = error_text(DefinitionError, lambda: fit([stopping], metrics=[lm.ConfusionMatrix()]))
    assert "'confusion_matrix' is no number, so no epoch is the best one" in text


def share_of_hits(prediction: Any, target: Any) -> Any:
    return lm.ops.cast(lm.ops.equal(lm.ops.argmax(prediction, 1), target), "float32")


@pytest.mark.parametrize(
    ("metric", "name", "best", "expected"),
    [
        (lm.Perplexity(), "perplexity", None, 2),
        (lm.CalibrationError(logits=True), "calibration_error", None, 2),
        (lm.MultiMargin(), "multi_margin", None, 2),
        (lm.Accuracy(), "accuracy", None, 1),
        (share_of_hits, "share_of_hits", "max", 1),
        (share_of_hits, "share_of_hits", "min", 2),
        (lm.Accuracy(), "accuracy", "min", 2),
        (lm.Perplexity(), "perplexity", "max", 1),
    ],
)
def test_metrics_know_which_values_are_better(metric, name, best, expected):
    """The measure falls from the first epoch to the second."""
    stopping = lm.callbacks.EarlyStopping(f"validation_{name}", patience=1, best=best)
    falling = Scripted([0.9, 0.8, 0.8], f"validation_{name}")
    fit([falling, stopping], metrics=[metric])
    assert stopping.best_epoch == expected


def test_every_metric_of_a_number_says_which_values_are_better():
    """A matrix has no order."""
    found = {name: getattr(metrics, name) for name in metrics.__all__ if name != "Metric"}
    silent = [name for name, metric in found.items() if metric.smaller_is_better is None]
    assert len(found) > 10
    assert silent == ["ConfusionMatrix"]


@pytest.mark.sampled
def test_names_of_outputs_do_not_decide_which_values_are_better():
    x = lm.Input(4)
    names = ("normal", "loss", "error", "accuracy", "norm")
    net = lm.Network(x, {name: lm.Linear(3)(x) for name in names})
    how = {
        "loss": {name: lm.CrossEntropy() for name in names},
        "metrics": {name: [lm.Accuracy(), lm.Perplexity()] for name in names},
    }
    best = {"loss": 3, "accuracy": 1, "perplexity": 3}
    measures = {f"{name}_{kind}": epoch for name in names for kind, epoch in best.items()}
    measures |= {f"validation_{name}": epoch for name, epoch in measures.items()}
    scripted = [Scripted([0.9, 0.8, 0.7], name) for name in measures]
    stopping = [lm.callbacks.EarlyStopping(name, restore_best=False) for name in measures]
    targets = (Y,) * len(names)
    lm.Model(net).fit(
        (X, targets),
        validation=(X, targets),
        epochs=3,
        optimizer=lm.SGD(0.1),
        callbacks=[*scripted, *stopping],
        **how,
    )
    assert {one.monitor: one.best_epoch for one in stopping} == measures


def test_a_metric_that_is_given_twice_is_known_by_the_name_of_its_history():
    given = [lm.Perplexity(), lm.Perplexity(ignore_index=0)]
    names = ["validation_perplexity", "validation_perplexity_1"]
    stopping = [lm.callbacks.EarlyStopping(name, restore_best=False) for name in names]
    fit([*(Scripted([3, 2, 1], name) for name in names), *stopping], metrics=given)
    assert [one.best_epoch for one in stopping] == [3, 3]
    # No other name is replaced.
    given = [lm.FunctionMetric(share_of_hits, name=name) for name in ("x_2", "x", "x")]
    assert list(fit([], metrics=given))[1:4] == ["x_2", "x", "x_2_2"]


@pytest.mark.parametrize("callback", ["EarlyStopping", "ReduceOnPlateau", "SaveModels"])
@pytest.mark.parametrize("name", ["share_of_hits", "gradient_norm", "rate", "own"])
def test_what_has_no_better_values_needs_best(callback, name, tmp_path):
    seen, folder = Seen(), [tmp_path] * (callback == "SaveModels")
    watching = getattr(lm.callbacks, callback)(*folder, monitor=name)
    how = {"metrics": [share_of_hits], "record": ["rate", "gradient_norm"]}
    error = refused(DefinitionError, lambda: fit([Adds(), watching, seen], **how))
    assert error.problem == f"nothing says whether small or large values of {name!r} are better"
    assert error.facts[0] == ("expected", 'best="min" or best="max"')
    assert seen.calls == ["fit fails: DefinitionError"]


@pytest.mark.parametrize("name", ["validation_loss", "gradient_norm"])
def test_two_measures_of_one_name_are_refused(name):
    metric = lm.FunctionMetric(share_of_hits, name=name)
    how = {"metrics": [metric], "record": ["gradient_norm"]}
    text = error_text(DefinitionError, lambda: fit([], **how))
    assert f"two measures of the history have the name {name!r}" in text
