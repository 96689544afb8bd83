"""What losses take as targets: class numbers in place of shares, and what errors advise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_arrays import normal

from lamina import Adam, Model, Sequential
from lamina import layers as lm
from lamina.errors import ShapeError
from lamina.training import losses


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


@pytest.mark.parametrize(
    ("loss", "target"),
    [(losses.CrossEntropy(), lm.Input(dtype="int64")), (losses.MSE(), lm.Input(2))],
)
def test_positions_in_the_prediction_and_none_in_the_target_need_flatten(
    loss: Any, target: Any
) -> None:
    scores = lm.Linear(2)(lm.Conv2d(4, 3)(lm.Input(1, 6, 6)))
    with pytest.raises(ShapeError) as caught:
        loss(scores, target)
    assert caught.value.advice == (
        "The prediction has an axis for each position: put lm.Flatten() before the last "
        'lm.Linear, or returns="last" in a recurrent layer, for one result of each example.'
    )
