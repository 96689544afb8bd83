"""Sparse matrices as inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fit_cases import network, same
from stream_cases import TRAIN, trained

import lamina as lm
from lamina.data import sparse
from lamina.errors import DataError

scipy_sparse = pytest.importorskip("scipy.sparse")
DENSE = np.where(TRAIN.inputs > 0.5, TRAIN.inputs, np.float32(0))


@pytest.mark.parametrize("make", ["csr_matrix", "csc_matrix", "coo_matrix", "csr_array"])
def test_a_fit_on_a_sparse_matrix_gives_the_bits_of_the_dense_one(
    make: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = getattr(scipy_sparse, make)(DENSE)
    monkeypatch.setattr(sparse, "_BATCH_BYTES", 7 * 4 * 4)
    found = trained((matrix, TRAIN.targets), validation=(matrix, TRAIN.targets), epochs=3)
    expected = trained((DENSE, TRAIN.targets), validation=(DENSE, TRAIN.targets), epochs=3)
    assert same(found[0], expected[0])
    assert found[1]["loss"] == expected[1]["loss"]
    model = lm.Model(network(), seed=3)
    np.testing.assert_array_equal(model.predict(matrix), model.predict(DENSE))
    loss = lm.CrossEntropy()
    assert model.evaluate((matrix, TRAIN.targets), loss) == model.evaluate(
        (DENSE, TRAIN.targets), loss
    )


def test_few_rows_are_dense_at_a_time() -> None:
    made: list[tuple[int, ...]] = []
    matrix = scipy_sparse.random_array((100_000, 2_000), density=1e-4, dtype="float32", rng=0)

    class Noted(type(matrix.tocsr())):  # type: ignore[misc]
        def toarray(self, *arguments: Any, **options: Any) -> Any:
            made.append(self.shape)
            return super().toarray(*arguments, **options)

    model = lm.Model(lm.Sequential(lm.Input(2_000), lm.Linear(2)))
    model.predict(Noted(matrix.tocsr()[:2000]))
    assert len(made) > 1
    assert max(count for count, _ in made) * 2_000 * 4 <= 1 << 20


def test_targets_of_another_number_are_refused() -> None:
    with pytest.raises(DataError) as caught:
        trained((scipy_sparse.csr_matrix(DENSE), TRAIN.targets[:5]))
    assert str(caught.value).splitlines()[1:] == [
        "  inputs   90 rows of a sparse matrix",
        "  targets  5 examples",
        "  Give one target for each row.",
    ]
