"""The history of a fit: unknown names, before and after the first epoch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_texts import error_text, refused

import lamina as lm
from lamina.errors import DefinitionError, UnknownNameError
from lamina.training.history import History, advice_on_measure

X = np.linspace(-1, 1, 24, dtype="float32").reshape(6, 4)
LABELS = np.arange(6) % 3


@pytest.fixture(scope="module")
def history() -> History:
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)), engine="interpreter")
    options = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "metrics": [lm.Accuracy()]}
    return model.fit((X, LABELS), validation=(X, LABELS), epochs=1, **options)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("acc", "Here it is called 'accuracy'."),
        ("val_loss", "Here it is called 'validation_loss'."),
        ("val_acc", "Here it is called 'validation_accuracy'."),
        ("los", "Did you mean 'loss'?"),
        ("auc", "fit(metrics=[lm.Accuracy()], validation=...) measures more."),
        (0, "Give a name first: history['loss'][0]."),
    ],
)
def test_an_unknown_name_lists_the_known_ones_and_says_what_it_is_called(
    history: History, name: Any, advice: str
) -> None:
    early = History(measured=history.measured)  # before the first epoch has ended
    for one in (history, early):
        assert error_text(UnknownNameError, one.__getitem__, name) == (
            f"in history: nothing named {name!r} was measured\n"
            "  expected  loss, accuracy, validation_loss, validation_accuracy\n"
            f"  found     {name!r}\n"
            f"  {advice}"
        )
    assert early["validation_accuracy"] == []
    assert History()["anything"] == []


def test_the_name_of_a_metric_in_keras_is_that_of_its_class_here() -> None:
    advice = advice_on_measure("val_mean_absolute_error", ["mae", "validation_mae"])
    assert advice == "Here it is called 'validation_mae'."


def test_a_picture_with_an_unknown_ending_is_refused(history: History) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(DefinitionError, match=r"pictures cannot be written as \.foo"):
        history.plot("curves.foo")


def per_class(folder: Path, *callbacks: Any, epochs: int = 2, resume: bool = False) -> Any:
    folder.mkdir(exist_ok=True)
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)), engine="interpreter", seed=0)
    metrics = [lm.F1(average="none"), lm.ConfusionMatrix()]
    how: Any = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "metrics": metrics}
    how |= {"checkpoint": folder / "checkpoint", "resume": resume, "callbacks": callbacks}
    data = (X, LABELS)
    history = model.fit(data, validation=data, batch_size=6, epochs=epochs, **how)
    return history, model.evaluate(data, lm.CrossEntropy(), metrics)["f1"]


def test_a_metric_with_a_number_for_each_class_has_a_name_for_each(
    tmp_path: Path, capsys: Any
) -> None:
    names = [f"{prefix}f1[{number}]" for prefix in ("", "validation_") for number in range(3)]
    table, lines = tmp_path / "a.csv", tmp_path / "a.jsonl"
    files = lm.callbacks.CSVLog(table), lm.callbacks.JSONLinesLog(lines)
    per_class(tmp_path)
    history, last = per_class(tmp_path, *files, lm.callbacks.PrintEpochs(), epochs=3, resume=True)
    assert [name for name in history if "f1" in name] == names
    assert [len(history[name]) for name in names] == [3] * 6
    found = [history[name][-1] for name in names[3:]]
    np.testing.assert_array_equal(found, last)
    printed = capsys.readouterr().out
    row = json.loads(lines.read_text(encoding="utf-8").splitlines()[-1])
    for name, value in zip(names[3:], found, strict=True):
        assert f"{name} {value:.6g}" in printed
        assert row[name] == (value if math.isfinite(value) else None)
        assert name in table.read_text(encoding="utf-8").splitlines()[0].split(",")
        assert name in str(history)
    for name, advice in (
        ("f1", "It has a number for each class: history['f1[0]']."),
        ("confusion_matrix", "It is a matrix: model.evaluate(data, loss, metrics) gives it."),
    ):
        assert refused(UnknownNameError, history.__getitem__, name).advice == advice


def test_a_number_of_a_class_may_be_monitored(tmp_path: Path) -> None:
    stopping = lm.callbacks.EarlyStopping("validation_f1[1]", patience=1)
    history, _ = per_class(tmp_path / "a", stopping, epochs=4)
    values = history["validation_f1[1]"]
    assert len(values) == 4 or values[-1] <= max(values[:-1])
    for monitor in ("f1", "f1[3]"):
        saving = lm.callbacks.SaveModels(tmp_path, monitor)
        error = refused(DefinitionError, per_class, tmp_path / monitor, saving)
        assert error.advice == (
            "It has a number for each class: monitor 'f1[0]', or a mean over the classes."
        )
    with pytest.raises(DefinitionError, match=r"nothing named 'g1\[0\]' is measured"):
        per_class(tmp_path / "b", lm.callbacks.SaveModels(tmp_path, "g1[0]"))
