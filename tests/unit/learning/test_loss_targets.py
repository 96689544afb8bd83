"""What losses take as targets: class numbers in place of shares, and what errors advise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from error_texts import error_text, refused
from random_arrays import normal

from lamina import Adam, FunctionMetric, Model, Sequential, ops
from lamina import layers as lm
from lamina.errors import DataError, DefinitionError
from lamina.learning import losses


def test_dice_is_trained_with_class_numbers() -> None:
    """They are those of one-hot targets."""
    x = normal(8, 1, 4, 4)
    labels = np.random.default_rng(0).integers(0, 3, (8, 4, 4))
    found: list[list[float]] = []
    for y in (labels, np.moveaxis(np.eye(3, dtype="float32")[labels], -1, 1)):
        layers = lm.Conv2d(3, 3, padding="same"), lm.Softmax(axis=1)
        model = Model(Sequential(lm.Input(1, 4, 4), *layers), seed=0)
        how: Any = {"optimizer": Adam(0.1), "epochs": 3, "batch_size": 4, "seed": 0}
        losses_ = model.fit((x, y), loss=losses.Dice(), **how)["loss"]
        found.append([*losses_, model.evaluate((x, y), losses.Dice())["loss"]])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    assert found[0][2] < found[0][0]


SHARES = np.full((6, 3), 1 / 3, "float32")


@pytest.mark.parametrize(
    ("targets", "problem", "found"),
    [
        (SHARES * 255, "targets out of range", "85.0 at example 0"),
        (-SHARES, "targets out of range", "at example 0"),
        (np.eye(3, dtype="float32")[[0, 1, 2, 0, 1, 2]] + SHARES, "targets out", "at example 0"),
        (np.float32([[1, 0, 0]] * 5 + [[1, 0, 1]]), "no shares of classes", "2.0 at example 5"),
    ],
)
def test_cross_entropy_takes_shares_of_classes(targets: Any, problem: str, found: str) -> None:
    model = Model(Sequential(lm.Input(3), lm.Linear(3)), engine="interpreter")
    error = refused(DataError, lambda: model.evaluate((SHARES, targets), losses.CrossEntropy()))
    assert problem in error.problem
    assert found in str(error)


def test_shares_may_be_rounded_and_an_example_may_have_none() -> None:
    model = Model(Sequential(lm.Input(3), lm.Linear(3)), engine="interpreter")
    rounded = SHARES.astype("float16")
    rounded[2] = 0
    assert model.evaluate((SHARES, rounded), losses.CrossEntropy())["loss"] > 0


def test_a_loss_that_takes_the_target_first_is_refused() -> None:
    def divergence(y_true: Any, y_pred: Any) -> Any:
        return y_true - y_pred

    model = Model(Sequential(lm.Input(3), lm.Linear(3)), engine="interpreter")
    for call in (
        lambda: model.evaluate((SHARES, SHARES), divergence),
        lambda: model.evaluate((SHARES, SHARES), losses.MSE(), [divergence]),
    ):
        with pytest.raises(DefinitionError) as caught:
            call()
        assert str(caught.value).endswith(
            "the function takes the target first, and gets the prediction first\n"
            "  expected  (prediction, target)\n"
            "  found     (y_true, y_pred)\n"
            "  Swap them: lambda y_pred, y_true: divergence(y_true, y_pred)."
        )


def _by_layer(prediction: Any, target: Any) -> Any:
    return ops.mean((prediction - lm.OneHot(3)(target)) ** 2)


def _by_op(prediction: Any, target: Any) -> Any:
    chosen = ops.take_along_axis(prediction, ops.expand_dims(ops.cast(target, "int64"), 1), 1)
    return -ops.mean(chosen)


def _by_row(prediction: Any, target: Any) -> Any:
    return ops.mean(prediction[:, 0] * ops.take(np.ones(3, "float32"), target, 0))


@pytest.mark.parametrize("function", [_by_layer, _by_op, _by_row])
@pytest.mark.parametrize("as_metric", [False, True])
@pytest.mark.parametrize("wrong", [3, -1])
def test_targets_that_index_in_a_function_of_the_user_are_checked(
    function: Any, as_metric: bool, wrong: int
) -> None:
    """Programs clamp indices: the function would compare with another class."""
    how: dict[str, Any] = {"loss": losses.CrossEntropy(ignore_index=wrong)}
    how |= {"metrics": [FunctionMetric(function)]} if as_metric else {"loss": function}
    model, x = Model(Sequential(lm.Input(2), lm.Linear(3)), seed=0), normal(4, 2)
    before = model.parameters()
    calls = [
        lambda y: model.evaluate((x, y), **how),
        lambda y: model.fit((x, y), optimizer=Adam(), epochs=1, **how),
        lambda y: model.fit([(x, y)], optimizer=Adam(), epochs=1, **how),
    ]
    for call in calls:
        text = error_text(DataError, lambda call=call: call(np.array([0, 2, wrong, 1])))
        assert "indices out of range" in text
        assert f"expected  0..2\n  found     {wrong} at example 2 of target 0" in text
    for name, value in model.parameters().items():
        np.testing.assert_array_equal(value, before[name])
    for call in calls:
        call(np.array([0, 2, 2, 1]))


def test_computed_indices_of_targets_are_not_checked() -> None:
    def loss(prediction: Any, target: Any) -> Any:
        return _by_op(prediction, ops.clip(target, 0, 2))

    model = Model(Sequential(lm.Input(2), lm.Linear(3)), seed=0)
    assert np.isfinite(model.evaluate((normal(2, 2), np.array([5, -5])), loss)["loss"])
