"""Sparse matrices of SciPy as inputs: their rows become dense arrays batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, size_of
from lamina.data.dataset import Batch, Dataset

# About the bytes of a batch of dense rows.
_BATCH_BYTES = 1 << 20


@final
@frozen_dataclass(eq=False)
class SparseRows:
    """A source of batches: the examples of a data set with sparse inputs, in its order.

    Attributes:
        dataset: whose inputs are sparse matrices, or also arrays.
    """

    dataset: Dataset

    def __call__(self, epoch: int, skip: int, seed: int | None) -> Iterator[Batch]:
        """The batches of an epoch, shuffled if there is a seed."""
        dataset = self.dataset
        each = sum(size_of(one.shape[1:]) * one.dtype.itemsize for one in dataset.input_arrays)
        size = max(1, _BATCH_BYTES // max(1, each))
        order: Array | None = None if seed is None else dataset.order(seed, epoch)
        for start in range(skip * size, len(dataset), size):
            stop = min(start + size, len(dataset))
            rows = np.arange(start, stop) if order is None else order[start:stop]
            (batch,) = dataset.take(rows).batches(size)
            yield batch
