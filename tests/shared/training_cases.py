"""A small network and data, and helpers of the tests of trainings and fits."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from random_arrays import normal

import lamina as lm
from lamina.data import Dataset
from lamina.training.history import History
from lamina.training.training import Training

Array = np.ndarray


def network() -> lm.Network:
    return lm.Sequential(lm.Input(4), lm.Linear(8), lm.Tanh(), lm.Dropout(0.3), lm.Linear(3))


def labels(count: int, classes: int = 3) -> Array:
    return np.random.default_rng(1).integers(0, classes, count)


def data(count: int, seed: int = 0) -> Dataset:
    """Points, and which of their first three coordinates is the largest."""
    x = normal(count, 4, seed=seed)
    return Dataset(x, x[:, :3].argmax(axis=1))


def classifier() -> lm.Network:
    return lm.Sequential(lm.Input(20), lm.Linear(32), lm.ReLU(), lm.Linear(5))


def examples(count: int = 96) -> tuple[Array, Array]:
    """Twenty numbers, and which of five sums of their multiples is the largest."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((count, 20), "float32")
    return x, (x @ generator.standard_normal((20, 5))).argmax(1)


TRAIN, TEST = data(50), data(23, seed=1)
X, Y = normal(8, 4), labels(8)


def fit(model: lm.Model, train: Any = TRAIN, **how: Any) -> History:
    usual: dict[str, Any] = {
        "loss": lm.CrossEntropy(),
        "optimizer": lm.Adam(0.01),
        "batch_size": 8,
        "epochs": 3,
    }
    return model.fit(train, **{**usual, **how})


def training(model: lm.Model, batch_size: int = 8, **how: Any) -> Any:
    how = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(0.01), **how}
    return model.training(batch_size=batch_size, **how)


def same(left: dict[str, Array], right: dict[str, Array]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].tobytes() == right[name].tobytes() for name in left
    )


def in_threads(work: Callable[[int], object], count: int = 4) -> None:
    """Runs `work(number)` in several threads that are switched often; raises their errors."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(work, range(count)))
    finally:
        sys.setswitchinterval(interval)


def losses_of(read: Callable[[Any], None]) -> list[float]:
    """Losses of three training steps, each given to `read` as soon as it is made."""
    with training(lm.Model(network())) as trainer:
        kept = []
        for number in range(3):
            kept.append(trainer.step(normal(8, 4, seed=number), labels(8)))
            read(kept[-1])
    return [float(loss) for loss in kept]


def at_step(monkeypatch, number, do):
    """Calls `do` once, after that many training steps, in the middle of a fit."""
    run, did = Training._run_batches, [False]

    def counting(self, *arguments):
        if not did[0] and isinstance(self, Training) and self.steps_done >= number:
            did[0] = True
            do()
        return run(self, *arguments)

    monkeypatch.setattr(Training, "_run_batches", counting)
