"""The arguments and options that several commands have."""

from __future__ import annotations

import click

from lamina.engines import DEFAULT_ENGINE

FILE_PATH = click.Path(exists=True, dir_okay=False)
file_argument = click.argument("file", metavar="FILE.py", type=FILE_PATH)
engine_option = click.option(
    "--engine",
    metavar="NAME",
    default=DEFAULT_ENGINE,
    show_default=True,
    help="The engine that runs it; `lamina devices` lists all.",
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The seed of all random numbers.",
)
targets_option = click.option(
    "--targets",
    metavar="NAME",
    help="The targets: a column of a table (name or number), an array of an .npz or .h5 file, or "
    "the file of the labels.",
)
batch_size_option = click.option(
    "--batch-size", type=click.IntRange(min=1), help="Examples in a batch; overrides the file's."
)
