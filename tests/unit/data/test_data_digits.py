"""The digits that come with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lamina.data


def test_digits_have_the_known_counts_and_values() -> None:
    data = lamina.data.digits()
    images, labels = data.input_arrays[0], data.targets
    assert labels is not None
    assert repr(data) == "1797 examples: x u8[1, 8, 8], y i64[]"
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert labels[:10].tolist() == list(range(10))
    assert (images.min(), images.max()) == (0, 16)
    assert images[0, 0, 1].tolist() == [0, 0, 13, 15, 10, 15, 5, 0]
    assert data.classes == 10


def test_digits_equal_those_of_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="compares with scikit-learn's copy")
    source = datasets.load_digits()
    data = lamina.data.digits()
    assert np.array_equal(data.input_arrays[0][:, 0], source.images)
    assert np.array_equal(data.targets, source.target)


def test_digits_are_small_and_licensed() -> None:
    folder = Path(lamina.data.__file__).parent
    assert sum(file.stat().st_size for file in folder.glob("digits-*.gz")) < 60_000
    notice = (folder / "NOTICE").read_text(encoding="utf-8")
    assert "CC BY 4.0" in notice
    assert "E. Alpaydin, C. Kaynak" in notice
