"""Which epoch is the best one: what metrics say, and measures without an order."""

from __future__ import annotations

from typing import Any

import pytest
from callback_cases import Scripted, fit

import lamina as lm
from lamina.errors import DefinitionError
from lamina.training.callbacks.callback import RunningFit


def test_a_callback_may_add_a_measure_for_others() -> None:
    class Adds(lm.Callback):
        def fit_begins(self, fit: RunningFit) -> None:
            fit.history.measured += ("own",)

        def epoch_ends(self, fit: RunningFit) -> None:
            fit.history.values.setdefault("own", []).append(float(fit.epoch))

    stopping = lm.callbacks.EarlyStopping("own", best="smallest", patience=2)
    assert len(fit([Adds(), stopping], epochs=9)) == 3


def test_a_matrix_is_no_measure_of_the_best_epoch() -> None:
    stopping = lm.callbacks.EarlyStopping("confusion_matrix")
    with pytest.raises(DefinitionError) as caught:
        fit([stopping], metrics=[lm.ConfusionMatrix()])
    assert "'confusion_matrix' is no number, so no epoch is the best one" in str(caught.value)


def share_of_hits(prediction: Any, target: Any) -> Any:
    return lm.ops.cast(lm.ops.equal(lm.ops.argmax(prediction, 1), target), "float32")


@pytest.mark.parametrize(
    ("metric", "name", "best", "expected"),
    [
        (lm.Perplexity(), "perplexity", None, 2),
        (lm.CalibrationError(logits=True), "calibration_error", None, 2),
        (lm.MultiMargin(), "multi_margin", None, 2),
        (lm.Accuracy(), "accuracy", None, 1),
        (share_of_hits, "share_of_hits", None, 1),
        (share_of_hits, "share_of_hits", "smallest", 2),
        (lm.Accuracy(), "accuracy", "smallest", 2),
        (lm.Perplexity(), "perplexity", "largest", 1),
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


def test_a_metric_of_an_output_knows_it_too() -> None:
    x = lm.Input(4)
    net = lm.Network(x, {"head": lm.Linear(3)(x)})
    stopping = lm.callbacks.EarlyStopping("head_perplexity", patience=1)
    falling = Scripted([0.9, 0.8, 0.8], "head_perplexity")
    fit([falling, stopping], lm.Model(net), metrics={"head": [lm.Perplexity()]})
    assert stopping.best_epoch == 2


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
