"""Helpers of the tests of fits."""

from __future__ import annotations

from typing import Any

import numpy as np

import lamina as lm
from lamina.data import Dataset
from lamina.training.history import History

Array = np.ndarray


def network() -> lm.Network:
    return lm.Sequential(lm.Input(4), lm.Linear(8), lm.Tanh(), lm.Dropout(0.3), lm.Linear(3))


def data(count: int, seed: int = 0) -> Dataset:
    """Points, and which of their first three coordinates is the largest."""
    x = np.random.default_rng(seed).normal(size=(count, 4)).astype("float32")
    return Dataset(x, x[:, :3].argmax(axis=1))


TRAIN, TEST = data(50), data(23, seed=1)


def fit(model: lm.Model, train: Any = TRAIN, **how: Any) -> History:
    usual: dict[str, Any] = {
        "loss": lm.CrossEntropy(),
        "optimizer": lm.Adam(0.01),
        "batch_size": 8,
        "epochs": 3,
    }
    return model.fit(train, **{**usual, **how})


def same(left: dict[str, Array], right: dict[str, Array]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].tobytes() == right[name].tobytes() for name in left
    )
