"""Data named on the command line: files, folders, or the digits shipped with Lamina."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import lamina as lm
from lamina.base.shapes import Array
from lamina.data import Dataset
from lamina.data.idx import is_mnist_folder
from lamina.data.tables import NotNumbers, read_csv, read_numbers
from lamina.errors import DataError


def load_pair(
    data: str, targets: str | None, validation: str | None, seed: int, **table: Any
) -> tuple[Dataset, Dataset | None]:
    """The training data and the validation data.

    Args:
        data: the word digits, or a file or folder.
        targets: the name or number of the targets, if any.
        validation: other data, or the share to hold out.
        seed: the seed that chooses the examples to hold out.
        table: options of `lm.data.load`; None stands for the default.
    """
    options = {name: value for name, value in table.items() if value is not None}
    own = data == "digits" or is_mnist_folder(Path(data))
    if own and options:
        raise click.UsageError(f"{data} is no table: --gaps, --kind and the like are for tables.")
    if data == "digits":
        training, examined = lm.data.digits(), None
    elif own:
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


def load_data(data: str, targets: str | None, **table: Any) -> Dataset:
    """The training data; the arguments of `load_pair`."""
    return load_pair(data, targets, None, 0, **table)[0]


def first_examples(
    count: int, data: str | None, targets: str | None, **table: Any
) -> Dataset | None:
    """At most so many examples of the data; None without data."""
    if data is None:
        return None
    loaded = load_data(data, targets, **table)
    return loaded.subset(0, min(count, len(loaded)))


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


def is_table(data: str) -> bool:
    """Whether a file has the name of a table."""
    return Path(data).suffix.lower() in (".csv", ".tsv")


def _column(targets: str | None) -> str | int | None:
    """The number of a column, or a name."""
    try:
        return None if targets is None else int(targets)
    except ValueError:
        return targets
