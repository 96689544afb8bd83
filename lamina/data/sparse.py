"""Sparse matrices of SciPy: their rows become dense arrays batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from lamina.data.dataset import Dataset, permutations
from lamina.data.fields import Arrays
from lamina.errors import DataError
from lamina.program.philox import ORDER_STREAM
from lamina.records import frozen_dataclass
from lamina.shapes import Array

# About the bytes of a batch of dense rows.
_BATCH_BYTES = 1 << 20


@final
@frozen_dataclass(eq=False)
class SparseRows:
    """A source of batches: the rows of a sparse matrix, in the order of a `Dataset`.

    Attributes:
        inputs: a sparse matrix, whose rows are the examples.
        targets: an array, tuple or dict of arrays as the inputs of a data set; or None.
    """

    inputs: Any
    targets: Dataset | None

    def __post_init__(self) -> None:
        inputs: Any = self.inputs.tocsr()
        object.__setattr__(self, "inputs", inputs)
        if self.targets is not None and len(self.targets) != inputs.shape[0]:
            raise DataError(
                "the inputs and the targets differ in the number of examples",
                facts=(
                    ("inputs", f"{inputs.shape[0]:,} rows of a sparse matrix"),
                    ("targets", f"{len(self.targets):,} examples"),
                ),
                advice="Give one target for each row.",
            )

    def __call__(
        self, epoch: int, skip: int, seed: int | None
    ) -> Iterator[tuple[Array, Arrays | None]]:
        """The batches of an epoch, shuffled if there is a seed."""
        count: int = self.inputs.shape[0]
        width: int = self.inputs.shape[1]
        size = max(1, _BATCH_BYTES // max(1, width * self.inputs.dtype.itemsize))
        order: Array = np.arange(count)
        if seed is not None:
            (order,) = permutations(count, seed, range(epoch, epoch + 1), ORDER_STREAM)
        for start in range(skip * size, count, size):
            rows = order[start : start + size]
            targets = None if self.targets is None else self.targets.take(rows).inputs
            yield self.inputs[rows].toarray(), targets
