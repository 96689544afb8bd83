"""Data named on the command line: files, folders, or the digits shipped with Lamina."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

import lamina as lm
from lamina.data import Dataset
from lamina.data.idx import is_mnist_folder
from lamina.shapes import Array


def load_data(
    data: str, targets: str | None, validation: str | None, seed: int
) -> tuple[Dataset, Dataset | None]:
    """The training data and the validation data, floats as float32."""
    training, examined = _read(data, targets, validation, seed)
    return _single(training), None if examined is None else _single(examined)


def _single(dataset: Dataset) -> Dataset:
    """The data set with float64 arrays, NumPy's default, converted to float32."""
    arrays = (*dataset.input_arrays, *dataset.target_arrays)
    if all(array.dtype != np.float64 for array in arrays):
        return dataset
    click.echo("The float64 numbers in the file are used as float32.", err=True)

    def narrowed(found: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(a.astype("float32") if a.dtype == np.float64 else a for a in found)

    inputs, targets = narrowed(dataset.input_arrays), narrowed(dataset.target_arrays)
    return Dataset(
        inputs if isinstance(dataset.inputs, tuple) else inputs[0],
        targets if isinstance(dataset.targets, tuple) else next(iter(targets), None),
    )


def _read(
    data: str, targets: str | None, validation: str | None, seed: int
) -> tuple[Dataset, Dataset | None]:
    if data == "digits":
        training, examined = lm.data.digits(), None
    elif is_mnist_folder(Path(data)):
        training, examined = lm.data.mnist(data)
    else:
        training, examined = lm.data.load(data, _column(targets)), None
    if validation is None:
        return training, examined
    try:
        share = float(validation)
    except ValueError:
        return training, lm.data.load(validation, _column(targets))
    if not 0 < share < 1:
        raise click.UsageError("--validation is a file, or a share between 0 and 1.")
    return training.split(1 - share, seed=seed)


def _column(targets: str | None) -> str | int | None:
    """The number of a column, or a name."""
    try:
        return None if targets is None else int(targets)
    except ValueError:
        return targets
