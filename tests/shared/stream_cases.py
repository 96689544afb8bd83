"""Helpers of the tests of streams."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from error_texts import refused
from training_cases import data, fit, network

import lamina as lm
from lamina.data import Dataset, Stream
from lamina.data.background import Plan, Reader
from lamina.errors import LaminaError
from lamina.training.history import History

TRAIN, TEST = data(90), data(41, seed=1)
BATCH = 8


def batches_of(dataset: Dataset, size: int) -> Callable[[], Iterator[Any]]:
    """A function that returns the batches of a data set."""
    return lambda: dataset.batches(size)


def trained(train: Any, engine: str = "cpu", **how: Any) -> tuple[dict[str, Any], History]:
    model = lm.Model(network(), engine=engine, seed=3)
    usual: dict[str, Any] = {"batch_size": BATCH, "metrics": [lm.Accuracy()], "progress": False}
    history = fit(model, train, **(usual | how))
    return model.parameters(), history


def fault(source: Any, kind: type[LaminaError], **how: Any) -> str:
    error = refused(LaminaError, trained, source, **how)
    assert type(error) is kind
    return str(error)


class Endless:
    """A source that counts the batches that are read: 10 examples of `TRAIN` each."""

    def __init__(self) -> None:
        self.read = 0

    def __call__(self) -> Iterator[Any]:
        while True:
            for batch in batches_of(TRAIN, 10)():
                self.read += 1
                yield batch


@contextmanager
def reading(source: Any) -> Iterator[Reader]:
    """A reader that has begun to read inputs."""
    reader = Reader(source if isinstance(source, Stream) else Stream(source))
    try:
        reader.sample()
        reader.begin(Plan(lambda batch: batch.input_arrays, BATCH))
        yield reader
    finally:
        reader.close()
