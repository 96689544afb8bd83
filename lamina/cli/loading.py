"""Data named on the command line: files, folders, or the digits shipped with Lamina."""

from __future__ import annotations

from pathlib import Path

import click

import lamina as lm
from lamina.data import Dataset
from lamina.data.idx import is_mnist_folder


def load_data(
    data: str, targets: str | None, validation: str | None, seed: int
) -> tuple[Dataset, Dataset | None]:
    """The training data and the validation data."""
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
        if training.coding is not None:
            # Its words have the numbers that they have in the training data.
            return training, training.coding.dataset(lm.data.read_table(validation))
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
