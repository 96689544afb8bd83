"""The command line: losses, by output too, and the warnings about them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from cli_cases import TABLE, a_table, fail, namespace, succeed, write

import lamina as lm

TWO_OUTPUTS = """
import lamina as lm

x = lm.Input(2, name="x")
net = lm.Network(x, {"size": lm.Linear(1)(x), "kind": lm.Linear(3)(x)})
loss = {"size": lm.MSE()}
metrics = {"size": [lm.R2()]}
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_train_prints_a_warning_about_the_loss_with_the_line_of_the_file():
    text = TABLE.replace("loss = lm.MSE()", "loss = lm.BCE()")
    path = write("net.py", text)
    values = np.random.default_rng(0).random((20, 3))
    np.savetxt("table.csv", values, delimiter=",", fmt="%.4f")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        trained = succeed("train", path, "--data", "table.csv", "--epochs", 1).stderr
        checked = succeed("check", path).stderr
    for found in (trained, checked):
        assert found.startswith("warning")
        assert "in BCE (net.py:5): the prediction is raw scores" in found
        assert "Write lm.BCEWithLogits() for raw scores" in found


def test_train_takes_losses_and_metrics_by_output():
    path = write("two.py", TWO_OUTPUTS)
    a_table()
    succeed("check", path)
    assert "two.safetensors" in succeed("train", path, "--data", "table.csv", "--epochs", 1).stdout
    names = namespace(TWO_OUTPUTS)
    data = lm.data.load("table.csv")
    own = lm.Model(names["net"], seed=0)
    how = {"loss": names["loss"], "optimizer": lm.Adam(), "metrics": names["metrics"]}
    history = own.fit(data, **how)
    assert list(history) == ["loss", "size_loss", "size_r2"]
    saved = lm.load("two.safetensors").parameters()
    for name, value in own.parameters().items():
        np.testing.assert_array_equal(saved[name], value)


@pytest.mark.parametrize("command", [("check",), ("plan",), ("train", "--data", "table.csv")])
def test_losses_of_other_outputs_are_refused(command):
    a_table()
    name, *options = command
    path = write("two.py", TWO_OUTPUTS.replace('loss = {"size"', 'loss = {"length"'))
    message = fail(name, path, *options)
    assert "DefinitionError in ByOutput" in message
    assert "the losses do not fit the outputs of the network" in message
    assert "size, kind" in message
