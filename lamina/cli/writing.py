"""`lamina predict`: writing the outputs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lamina.base.shapes import Array
from lamina.data import Coding
from lamina.errors import DataError
from lamina.files.atomic import write_atomically


def csv_text(array: Array, coding: Coding | None = None) -> str:
    """CSV text: a line for each example, numbers in full precision.

    With the coding of a table that fits the outputs, the first line has the words of the classes,
    or the name of the column of targets.
    """
    text = io.StringIO()
    formats = {"bfloat16": "%.4g", "float16": "%.5g", "float32": "%.9g", "float64": "%.17g"}
    rows = _without_bfloat16(array).reshape(len(array), -1)
    if coding is not None and coding.target is not None:
        names = coding.classes or (coding.target.name,)
        if len(names) == rows.shape[1]:
            csv.writer(text, lineterminator="\n").writerow(names)
    np.savetxt(text, rows, fmt=formats.get(array.dtype.name, "%d"), delimiter=",")
    return text.getvalue()


def _without_bfloat16(array: Array) -> Array:
    """The array; bfloat16 as float32, because NumPy's files do not keep that type."""
    return array.astype("float32") if array.dtype.name == "bfloat16" else array


def write_outputs(
    path: Path, arrays: Sequence[Array], coding: Coding | None = None
) -> Sequence[Array]:
    """Writes the outputs atomically, and returns them as they are written: bfloat16 as float32."""
    content, arrays = io.BytesIO(), [_without_bfloat16(array) for array in arrays]
    if path.suffix == ".npz":
        named: dict[str, Any] = {f"output{n}": array for n, array in enumerate(arrays)}
        np.savez(content, **named)
    elif len(arrays) > 1:
        raise DataError(
            "the model has several outputs, and this kind of file holds one",
            facts=(("outputs", str(len(arrays))),),
            where=str(path),
            advice="Give a file name that ends in .npz.",
        )
    elif path.suffix == ".npy":
        np.save(content, arrays[0])
    else:
        content.write(csv_text(arrays[0], coding).encode())
    write_atomically(path, content.getvalue())
    return arrays
