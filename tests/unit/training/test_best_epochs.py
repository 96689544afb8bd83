"""Which epoch is the best one: what metrics say, and measures without an order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from callback_cases import Scripted, Seen, X, Y, fit
from error_texts import error_text, refused

import lamina as lm
from lamina.errors import DefinitionError
from lamina.learning import metrics
from lamina.training.callbacks.callback import RunningFit


class Adds(lm.Callback):
    """Adds a measure for other callbacks."""

    def fit_begins(self, fit: RunningFit) -> None:
        fit.history.measured += ("own",)

    def epoch_ends(self, fit: RunningFit) -> None:
        fit.history.values.setdefault("own", []).append(float(fit.epoch))


def test_a_callback_may_add_a_measure_for_others() -> None:
    stopping = lm.callbacks.EarlyStopping("own", best="min", patience=2)
    assert len(fit([Adds(), stopping], epochs=9)) == 3


def test_a_matrix_is_no_measure_of_the_best_epoch() -> None:
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
def test_metrics_know_which_values_are_better(
    metric: Any, name: str, best: str | None, expected: int
) -> None:
    """The measure falls from the first epoch to the second."""
    stopping = lm.callbacks.EarlyStopping(f"validation_{name}", patience=1, best=best)
    falling = Scripted([0.9, 0.8, 0.8], f"validation_{name}")
    fit([falling, stopping], metrics=[metric])
    assert stopping.best_epoch == expected


def test_every_metric_of_a_number_says_which_values_are_better() -> None:
    """A matrix has no order."""
    found = {name: getattr(metrics, name) for name in metrics.__all__ if name != "Metric"}
    silent = [name for name, metric in found.items() if metric.smaller_is_better is None]
    assert len(found) > 10
    assert silent == ["ConfusionMatrix"]


@pytest.mark.sampled
def test_names_of_outputs_do_not_decide_which_values_are_better() -> None:
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


def test_a_metric_that_is_given_twice_is_known_by_the_name_of_its_history() -> None:
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
def test_what_has_no_better_values_needs_best(callback: str, name: str, tmp_path: Path) -> None:
    seen, folder = Seen(), [tmp_path] * (callback == "SaveModels")
    watching = getattr(lm.callbacks, callback)(*folder, monitor=name)
    how = {"metrics": [share_of_hits], "record": ["rate", "gradient_norm"]}
    error = refused(DefinitionError, lambda: fit([Adds(), watching, seen], **how))
    assert error.problem == f"nothing says whether small or large values of {name!r} are better"
    assert error.facts[0] == ("expected", 'best="min" or best="max"')
    assert seen.calls == ["fit fails: DefinitionError"]


@pytest.mark.parametrize("name", ["validation_loss", "gradient_norm"])
def test_two_measures_of_one_name_are_refused(name: str) -> None:
    metric = lm.FunctionMetric(share_of_hits, name=name)
    how = {"metrics": [metric], "record": ["gradient_norm"]}
    text = error_text(DefinitionError, lambda: fit([], **how))
    assert f"two measures of the history have the name {name!r}" in text


@pytest.mark.parametrize(
    "monitor", ["head_loss", "validation_head_loss", "validation_head_accuracy"]
)
def test_measures_of_outputs_are_known_before_the_first_epoch(monitor: str) -> None:
    x = lm.Input(4)
    net = lm.Network(x, {"head": lm.Linear(3)(x)})
    stopping = lm.callbacks.EarlyStopping(monitor, patience=1)
    how = {"loss": {"head": lm.CrossEntropy()}, "metrics": {"head": [lm.Accuracy()]}}
    fit([stopping], lm.Model(net), **how)
    assert stopping.best_epoch
