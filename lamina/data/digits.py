"""1,797 handwritten digits shipped with the package, so that a first training needs no download.

The test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI
Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49), licence CC BY 4.0; see the
file NOTICE in this folder. `tools/make_digits.py` made the two IDX files.
"""

from __future__ import annotations

from pathlib import Path

from lamina.data.dataset import Dataset
from lamina.data.idx import as_images, as_labels, read_idx


def digits() -> Dataset:
    """The digits: uint8 images of shape (1, 8, 8) with values from 0 to 16, and int64 labels.

    >>> digits()
    1797 examples: x u8[1, 8, 8], y i64[]
    """
    folder = Path(__file__).parent
    images, labels = (folder / f"digits-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1"))
    return Dataset(as_images(read_idx(images)), as_labels(read_idx(labels)))
