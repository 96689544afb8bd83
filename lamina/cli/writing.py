"""`lamina predict`: the inputs in a table, and writing the outputs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from lamina.data import Dataset
from lamina.errors import DataError
from lamina.files.atomic import write_atomically
from lamina.shapes import Array


def with_last_column(model: lm.Model, dataset: Dataset) -> Any:
    """The inputs of a table, with the column of targets appended if the model has one more feature.

    The last column of a table is read as targets by default.
    """
    inputs, targets = dataset.inputs, dataset.targets
    wanted = model.network.inputs
    if isinstance(inputs, np.ndarray) and isinstance(targets, np.ndarray) and len(wanted) == 1:
        features = wanted[0].shape[1:]
        if inputs.ndim == 2 and features == (inputs.shape[1] + 1,):
            return np.column_stack([inputs, targets]).astype(inputs.dtype)
    return inputs


def csv_text(array: Array) -> str:
    """CSV text: a line for each example, numbers in full precision."""
    text = io.StringIO()
    formats = {"bfloat16": "%.4g", "float16": "%.5g", "float32": "%.9g", "float64": "%.17g"}
    rows = _without_bfloat16(array).reshape(len(array), -1)
    np.savetxt(text, rows, fmt=formats.get(array.dtype.name, "%d"), delimiter=",")
    return text.getvalue()


def _without_bfloat16(array: Array) -> Array:
    """The array; bfloat16 as float32, because NumPy's files do not keep that type."""
    return array.astype("float32") if array.dtype.name == "bfloat16" else array


def write_outputs(path: Path, arrays: Sequence[Array]) -> Sequence[Array]:
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
        content.write(csv_text(arrays[0]).encode())
    write_atomically(path, content.getvalue())
    return arrays
