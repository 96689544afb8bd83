"""Calls of PyTorch and Keras have the right meaning, or are errors with the right spelling."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import foreign_names as data
import numpy as np
import pytest
from error_texts import refused

import lamina as lm
from lamina.errors import DefinitionError

pytestmark = pytest.mark.each_case

LINES = Path(__file__).with_name("foreign_calls.txt").read_text().splitlines()
ROWS = [tuple(map(str.strip, line.split("|"))) for line in LINES if line[0] != "#"]
NAMES = {"lm": lm, "params": [], "optimizer": lm.SGD(0.1)}


def called(call: str) -> Any:
    return eval(f"lm.{call}", NAMES)


@pytest.mark.parametrize(("framework", "call", "sign", "ours"), ROWS, ids=lambda v: v)
def test_a_foreign_call_is_right_or_refused_with_the_right_spelling(framework, call, sign, ours):
    assert framework in ("torch", "keras")
    if sign == "=":
        assert called(call) == called(ours)
        return
    if sign == "~":
        name = call.partition("(")[0]
        row = next(row for row in rows_of_the_page() if f"`lm.{name}(" in row[1] and ours in row[1])
        assert called(call) is not None, row
        return
    advice = refused(DefinitionError, called, call).advice
    # The whole call: after it a reason or the end of the sentence, or the other framework's.
    assert re.search(rf"(Write |, or |Here it is called ){re.escape(ours)}", advice)
    if ours.endswith(")"):
        name = call.split("(")[0].rpartition(".")[0]
        ours = ours.removesuffix(", ReLU()")
        called(f"{name}.{ours}" if name else ours)


def known(name: str, package: str = "lamina") -> bool:
    """Whether a name has a row or an entry that says what it is called here."""
    prefix = {"lamina.layers.init": "init.", "lamina.learning.schedules": "schedules."}
    begins = prefix.get(package, "") + name + "("
    return any(row[1].startswith(begins) for row in ROWS) or name in data.TABLES[package]


# These names have one meaning everywhere.
SAME = {"Input", "Layer", "Sequential"}


@pytest.mark.parametrize(
    ("names", "package"),
    [
        (data.TORCH_MODULES, "lamina"),
        (data.TORCH_OPTIMIZERS, "lamina"),
        (data.TORCH_SCHEDULERS, "lamina.learning.schedules"),
        (data.TORCH_INITIALISERS, "lamina.layers.init"),
        (data.KERAS_LAYERS, "lamina"),
        (data.KERAS_LOSSES, "lamina"),
        (data.KERAS_OPTIMIZERS, "lamina"),
        (data.KERAS_METRICS, "lamina"),
        (data.KERAS_SCHEDULES, "lamina.learning.schedules"),
        (data.KERAS_INITIALISERS, "lamina.layers.init"),
    ],
)
def test_every_name_of_the_frameworks_has_a_row(names, package):
    lacking = [n for n in names.split() if n not in SAME and not known(n, package)]
    assert lacking == []


def test_every_class_with_another_name_there_has_a_row():
    recorded = [names for key, names in vars(data).items() if key.startswith(("TORCH", "KERAS"))]
    there = {*" ".join(recorded).split()}
    pattern = r"lm\.((?:init\.|schedules\.)?\w+)\(.*\)"
    classes = {
        found[1]
        for names in data.TABLES.values()
        for name, text in names.items()
        if name in there and (found := re.fullmatch(pattern, text))
    }
    called_here = {row[1].split("(")[0] for row in ROWS}
    assert sorted(classes - called_here - SAME) == []


CLASSES = {
    f"{prefix}{name}": one
    for prefix, package in (("", lm), ("init.", lm.init), ("schedules.", lm.schedules))
    for name in dir(package)
    if isinstance(one := getattr(package, name), type)
    and issubclass(one, lm.layers.layer.Sourced)
    and dataclasses.is_dataclass(one)
}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("betas", (0.9, 0.99)), ("etas", (0.5, 1.2)), ("normalized_shape", (2, 2))),
        *(("num_parameters", 2), ("return_sequences", True), ("size_average", False)),
        ("translate", (0.1, 0.1)),
    ],
)
def test_a_call_in_advice_is_one_that_lamina_takes(option, value):
    for name, one in CLASSES.items():
        parameters = inspect.signature(one).parameters.values()
        given = {p.name: 2 for p in parameters if p.default is p.empty}
        advice = refused(DefinitionError, one, **given, **{option: value}).advice
        found = re.search(r"Write (\w+)(\(.*?\))(\.|: |, or )", advice)
        if found and "..." not in found[2]:
            assert found[1] == name.rpartition(".")[2]
            eval(f"one{found[2]}", {"one": one})


def test_the_recorded_names_are_those_of_pytorch(torch):
    nn, scheduler = torch.nn, torch.optim.lr_scheduler

    def classes(package, base):
        found = {n: one for n, one in vars(package).items() if inspect.isclass(one) and n[0] != "_"}
        return sorted(n for n, one in found.items() if issubclass(one, base))

    assert data.TORCH_MODULES.split() == classes(nn, nn.Module)
    optimizers = classes(torch.optim, torch.optim.Optimizer)
    assert sorted(["Optimizer", *data.TORCH_OPTIMIZERS.split()]) == optimizers
    assert data.TORCH_SCHEDULERS.split() == classes(scheduler, scheduler.LRScheduler)
    initialisers = sorted(n for n in dir(nn.init) if n.endswith("_") and n[0] != "_")
    assert data.TORCH_INITIALISERS.split() == initialisers


def rows_of_the_page() -> list[tuple[str, str]]:
    page = Path(__file__).parents[3] / "docs" / "coming-from.md"
    found = re.findall(r"^\| (.+) \| (.+) \|$", page.read_text(), re.MULTILINE)
    return [row for row in found if row[1] not in ("Lamina", "in Lamina", "---")]


def test_the_page_shows_calls_that_are_accepted():
    names = {"a": lm.Input(3), "b": lm.Input(3), "net": lm.Sequential(lm.Input(3), lm.Linear(2))}
    calls = [call for row in rows_of_the_page() for call in re.findall(r"`(lm\.[^`]+)`", row[1])]
    assert len(calls) > 60
    for call in calls:
        if "engine" not in call:  # a machine may lack the engine
            assert eval(call, {"lm": lm, **names}) is not None


def test_names_on_the_page_are_refused_or_known():
    names = set(data.TABLES["lamina"]) | {row[1].split("(")[0] for row in ROWS}
    there = [
        name
        for row in rows_of_the_page()
        for name in re.findall(r"`(?:nn|layers)\.([A-Z]\w+)", row[0])
    ]
    assert len(there) > 30
    assert [name for name in there if name not in names | SAME] == []


def test_probabilities_of_a_network_trained_on_scores_are_those_of_the_page():
    ((_, call),) = [row for row in rows_of_the_page() if "predict_proba" in row[0]]
    net = lm.Sequential(lm.Input(4), lm.Linear(3))
    names = {"lm": lm, "net": net, "model": lm.Model(net), "X": np.ones((2, 4), np.float32)}
    np.testing.assert_allclose(eval(call.strip("`"), names).sum(1), 1.0, rtol=1e-6)


def test_calls_with_two_meanings_are_refused_for_both():
    error = refused(DefinitionError, lm.RandomRotation, 0.1)
    assert error.problem.startswith("degrees must be a number of degrees, 0 or")
    assert error.advice == (
        "Write RandomRotation(36.0) for a share of a circle, as Keras' factor is. "
        "RandomAffine(degrees=0.1) takes less than a degree."
    )
    for values in ((2,), (2, 2), (24,)):
        assert refused(DefinitionError, lm.MaxUnpool, *values).advice.startswith(
            "Write MaxUnpool(size=...): the extents before pooling, instead of the window."
        )
    assert refused(DefinitionError, lm.TransformerEncoderBlock, 64, 8).advice == (
        "Write TransformerEncoderBlock(8, hidden=2048): the input's features are inferred, leave "
        "them out; hidden is 2048 by default in PyTorch."
    )
