"""The order of the examples of a data set in training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lamina.base.shapes import Array
from lamina.data import Dataset
from lamina.errors import DataError

# Several epochs of a small data set are shuffled and run in one call, of about this many examples.
EXAMPLES_AT_ONCE = 1 << 15


def batches_of_rows(rows: Array, size: int) -> list[Array]:
    """Rows split into batches, in order: arrays (batches, batch size), a smaller last one apart."""
    whole = len(rows) // size * size
    groups = [rows[:whole].reshape(-1, size), rows[whole:].reshape(1, -1)]
    return [group for group in groups if group.size]


def batches_after(
    dataset: Dataset, batch_size: int, done: int, steps: int, seed: int | None, *, drop_last: bool
) -> Iterator[Array]:
    """The batches of so many training steps after those that are done: (batches, batch size).

    The training steps that are done count from the first epoch on. Without a seed, examples stay
    in their order. Without a batch: a DataError.
    """
    size = min(batch_size, len(dataset))
    used = len(dataset) // batch_size * batch_size if drop_last else len(dataset)
    if not used:
        raise no_whole_batch(dataset, batch_size)
    epoch, skipped = divmod(done, -(-used // size))
    at_once = max(1, EXAMPLES_AT_ONCE // len(dataset))
    while steps:
        needed = -(-(skipped + steps) // -(-used // size))
        epochs = range(epoch, epoch + min(at_once, needed))
        orders = np.arange(len(dataset))[None].repeat(len(epochs), axis=0)
        if seed is not None:
            orders = dataset.orders(seed, epochs)
        orders = orders[:, :used]
        # If all batches have one size, the batches of several epochs are run at once.
        for order in orders if used % size else [orders.reshape(-1)]:
            for rows in batches_of_rows(order, size):
                taken = rows[skipped : skipped + steps]
                skipped = max(skipped - len(rows), 0)
                steps -= len(taken)
                if len(taken):
                    yield taken
        epoch = epochs.stop


def no_whole_batch(dataset: Dataset, batch_size: int, where: str = "") -> DataError:
    """The error for fewer examples than a batch holds, where smaller batches are dropped."""
    return DataError(
        "there are fewer examples than a batch holds, and the last one is dropped",
        facts=(("examples", str(len(dataset))), ("batch", str(batch_size))),
        where=where,
        advice="Leave drop_last out, or take a smaller batch_size.",
    )
