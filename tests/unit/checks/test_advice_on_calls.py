"""Calls with options of other frameworks, or with wrong values: the advice says what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from error_texts import error_text, refused

import lamina as lm
from lamina.errors import DefinitionError, LaminaError

pytestmark = pytest.mark.each_case

NET = lm.Sequential(lm.Input(4), lm.Linear(2))
MODEL = lm.Model(NET, engine="interpreter")
X, Y = np.zeros((8, 4), np.float32), np.zeros(8, np.int64)
DATA = lm.data.Dataset(X, Y)


def fit(data: Any = DATA, **options: Any) -> Any:
    how: dict[str, Any] = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1)} | options
    return MODEL.fit(data, **how)


def step(*values: Any) -> None:
    with MODEL.training(loss=lm.CrossEntropy(), optimizer=lm.SGD(0.1), batch_size=8) as training:
        training.step(*values)


def call(function: Any, *values: Any, **options: Any) -> Any:
    return function(*values, **options)  # type checkers would refuse the call


NO_VALIDATION = (
    "Without validation data there is none: fit(validation=...) measures 'validation_loss'."
)
INPUTS = (
    "Give a tuple with one array for each input. Targets are an argument of their own: "
    "Dataset(x, y), step(x, y)."
)


CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: call(lm.CrossEntropy, size_average=True), "Write CrossEntropy(reduction='mean')."),
    (lambda: call(lm.CrossEntropy, size_average=False), "Write CrossEntropy(reduction='sum')."),
    (
        lambda: call(lm.RandomFlip, "horizontal_and_vertical"),
        (
            "Each axis is a layer: RandomFlip(axis=-1) exchanges left and right, "
            "RandomFlip(axis=-2) top and bottom."
        ),
    ),
    (
        lambda: call(lm.AdaptiveAvgPool, 3, 4),
        "Give the sizes as one tuple: AdaptiveAvgPool((3, 4)).",
    ),
    (
        lambda: fit(lr=0.1),
        "It is an option of the optimizer, and the first one: optimizer=lm.Adam(1e-3).",
    ),
    (lambda: fit(max_grad_norm=1.0), "Here it is clip=lm.ClipGlobalNorm(1.0)."),
    (
        lambda: fit(early_stopping=True),
        "It is a callback: callbacks=[lm.callbacks.EarlyStopping()].",
    ),
    (
        lambda: fit(steps_per_epoch=3),
        "It is an option of a stream: lm.data.Stream(batches, steps_per_epoch=100).",
    ),
    (
        lambda: fit(gradient_accumulation_steps=4),
        "Here it is micro_batch, a number of examples: micro_batch=batch_size // 4 for 4 parts.",
    ),
    (lambda: fit(adjustable_rate=True), "Leave it out: the rate of every training can be set."),
    (lambda: call(lm.Model, NET, random_state=1), "Here it is called seed."),
    (
        lambda: call(DATA.split, test_size=0.2),
        "The fraction is that of the first part: split(0.8) for test_size=0.2.",
    ),
    (lambda: call(lm.concat, lm.Input(3), lm.Input(3)), "Give them as one list: [a, b]."),
    (
        lambda: call(lm.from_torch, NET, {}, strict=False),
        "Every parameter of the network needs a value; skip=[...] names keys to leave out.",
    ),
    (lambda: lm.Input(4, dtype="long"), 'Write "int64".'),
    (lambda: lm.Input(4, dtype="torch.float32"), 'Write "float32".'),
    (lambda: lm.Input(4, dtype="fp16"), 'Write "float16".'),
    (lambda: fit()["val_loss"], NO_VALIDATION),
    (lambda: fit()["validation_loss"], NO_VALIDATION),
    (lambda: call(lm.Adam, "1e-3"), "A rate is a number, without quotes, or a schedule."),
    (lambda: call(MODEL.evaluate, X, Y), "Inputs and targets are one argument, a pair: (x, y)."),
    (lambda: fit(lm.data.Dataset((X, Y))), INPUTS),
    (lambda: step((X, Y)), INPUTS),
    (
        lambda: call(lm.Rescale, [1.0, 2.0]),
        (
            "The scale is one number. Normalise channels before training, or with arrays of the "
            "shape [channels, 1, 1]: (x - mean) / deviation."
        ),
    ),
    (
        lambda: fit(class_weights={"classes": {1: 2.0}}),
        (
            "For several outputs each loss has its own: "
            "loss=[lm.CrossEntropy(class_weights=[1.0, 2.5]), lm.MSE()]."
        ),
    ),
]


@pytest.mark.parametrize(("wrong", "advice"), CALLS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_wrong_call_says_what_to_write(wrong: Callable[[], Any], advice: str) -> None:
    assert refused(LaminaError, wrong).advice == advice


def test_functions_of_other_frameworks_are_refused_before_training() -> None:
    def old(epoch: int, logs: object) -> None: ...

    def accuracy_score(truth: Any, prediction: Any) -> float:
        raise AssertionError("it is refused before it is called")

    before = MODEL.parameters()["1.weight"].copy()
    error = refused(DefinitionError, fit, callbacks=[old])
    assert "not a function of the history alone" in error.problem
    assert error.advice.startswith("Write lambda history: ...; hooks are methods of a subc")
    accuracy_score.__module__ = "sklearn.metrics._classification"
    error = refused(DefinitionError, fit, metrics=[accuracy_score])
    assert "this is not a metric" in error.problem
    assert error.advice.startswith("It takes numbers: give it the results of model.predict.")
    np.testing.assert_array_equal(MODEL.parameters()["1.weight"], before)


def test_a_name_says_what_it_is_called() -> None:
    assert "Here it is lm.Model(net, seed=0)." in error_text(
        AttributeError, getattr, lm, "set_seed"
    )
    assert "Here it is lm.AUROC()." in error_text(AttributeError, getattr, lm, "ROCAUC")
