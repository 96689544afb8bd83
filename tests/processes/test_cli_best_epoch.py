"""What `lamina train --patience` prints: the last epoch, and the best one."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from cli_cases import DIGITS, fail, namespace, succeed, write

import lamina as lm


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_train_prints_the_last_and_the_best_epoch():
    rates = "lm.schedules.PiecewiseConstant([45], [0.1, 3.0])"
    path = write("digits.py", f"{DIGITS}\noptimizer = lm.SGD({rates})\n")
    result = succeed(
        "train", path, "--data", "digits", "--validation", 0.2, "--epochs", 9, "--patience", 2,
        "--log", "run.jsonl",
    )  # fmt: skip
    rows = [json.loads(line) for line in Path("run.jsonl").read_text().splitlines()]
    losses = [row["validation_loss"] for row in rows]
    best = losses.index(min(losses)) + 1
    assert len(rows) == best + 2
    for name, number, end in (("last", best + 2, ""), ("best", best, "  (of the written model)")):
        values = f"  validation_loss {losses[number - 1]:.4f}  .*{re.escape(end)}"
        line = rf"^{name} epoch, {number}:  loss \d\.\d{{4}}  .*{values}$"
        assert re.search(line, result.stdout, re.MULTILINE), result.stdout
    _, examined = lm.data.digits().split(0.8, seed=0)
    model = lm.load("digits.safetensors")
    found = model.evaluate(examined, namespace(DIGITS)["loss"])["loss"]
    assert found == pytest.approx(min(losses))


def test_train_writes_the_best_epoch_of_a_fit_that_diverges():
    rates = "lm.schedules.PiecewiseConstant([45], [0.1, 1e30])"
    path = write("digits.py", f"{DIGITS}\noptimizer = lm.SGD({rates})\n")
    how = ("--data", "digits", "--validation", 0.2, "--epochs", 9, "--patience", 2)
    errors = fail("train", path, *how, "--log", "run.jsonl").splitlines()
    rows = [json.loads(line) for line in Path("run.jsonl").read_text().splitlines()]
    losses = [row["validation_loss"] for row in rows]
    best = losses.index(min(losses)) + 1
    assert "wrote digits.safetensors" in errors
    assert errors[-1] == f"EarlyStopping: the model has the values of epoch {best}."
    _, examined = lm.data.digits().split(0.8, seed=0)
    model = lm.load("digits.safetensors")
    found = model.evaluate(examined, namespace(DIGITS)["loss"])["loss"]
    assert found == pytest.approx(min(losses))
