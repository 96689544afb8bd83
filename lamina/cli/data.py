"""Data named on the command line, and the outputs of `lamina predict`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

import lamina as lm
from lamina.base.shapes import Array
from lamina.data import Coding, Dataset
from lamina.data.csv_text import NotNumbers, read_csv, read_numbers
from lamina.data.idx import is_mnist_folder
from lamina.errors import DataError
from lamina.files.atomic import write_atomically


def load_pair(
    data: str, targets: str | None, validation: str | None, seed: int, **table: Any
) -> tuple[Dataset, Dataset | None]:
    """The training and the validation data; `table` has the options of `lm.data.load`."""
    options = {name: value for name, value in table.items() if value is not None}
    is_ready = data == "digits" or is_mnist_folder(Path(data))
    if is_ready and options:
        raise click.UsageError(f"{data} is no table: --gaps, --kind and the like are for tables.")
    if data == "digits":
        training, examined = lm.data.digits(), None
    elif is_ready:
        training, examined = lm.data.mnist(data)
    else:
        training, examined = lm.data.load(data, _column(targets), **options), None
    if validation is None:
        return training, examined
    try:
        share = float(validation)
    except ValueError:
        coding = training.coding
        if coding is not None and (coding.columns or Path(validation).is_dir()):
            # Its words have the numbers that they have in the training data.
            return training, coding.dataset(validation)
        return training, lm.data.load(validation, _column(targets))
    if not 0 < share < 1:
        raise click.UsageError("--validation is a file, or a share between 0 and 1.")
    return training.split(1 - share, seed=seed)


def load_data(data: str | None, targets: str | None, **table: Any) -> Dataset | None:
    """The training data, by the arguments of `load_pair`; None without data."""
    if data is not None:
        return load_pair(data, targets, None, 0, **table)[0]
    if any(value is not None for value in (targets, *table.values())):
        raise click.UsageError("--targets, --gaps, --kind and the like are for --data DATA.")
    return None


def first_examples(
    count: int, data: str | None, targets: str | None, **table: Any
) -> Dataset | None:
    """At most so many examples of the data; None without data."""
    loaded = load_data(data, targets, **table)
    return None if loaded is None else loaded.subset(0, min(count, len(loaded)))


def table_inputs(model: lm.Model, data: str, targets: str | None) -> Array:
    """The inputs of a model that was trained on numbers, in a table.

    Without `targets`, the last column is dropped if the model has one feature fewer.
    """
    try:
        if targets is not None:
            return read_csv(Path(data), _column(targets))[0]
        numbers = read_numbers(Path(data))
    except NotNumbers as error:
        raise DataError(
            f"{error.problem}, and the model was trained on numbers",
            facts=error.facts,
            where=data,
            advice="Correct it, or train on a table with such entries.",
        ) from None
    features, count = model.network.inputs[0].shape[1:], numbers.shape[1]
    return numbers[:, :-1] if features == (count - 1,) else numbers


def _column(targets: str | None) -> str | int | None:
    try:
        return None if targets is None else int(targets)
    except ValueError:
        return targets


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
