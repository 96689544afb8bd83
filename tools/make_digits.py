"""Makes the two data files of `lamina.data.digits` from scikit-learn's copy of the data set.

Needs scikit-learn, which Lamina itself does not: python tools/make_digits.py
The same input gives the same bytes: the compressed files hold no date and no name.
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

FOLDER = Path(__file__).parents[1] / "lamina" / "data"


def main() -> None:
    """Writes both files, and prints their sizes."""
    source: Any = load_digits()
    images = source.images.astype(np.uint8)
    labels = source.target.astype(np.uint8)
    if not ((images == source.images).all() and (labels == source.target).all()):
        raise SystemExit("the values do not fit into bytes: the source has changed")
    for name, array in (
        ("digits-images-idx3-ubyte.gz", images),
        ("digits-labels-idx1-ubyte.gz", labels),
    ):
        header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 0x08, array.ndim, *array.shape)
        content = gzip.compress(header + array.tobytes(), compresslevel=9, mtime=0)
        (FOLDER / name).write_bytes(content)
        print(f"{name}: {len(content):,} bytes")


if __name__ == "__main__":
    main()
