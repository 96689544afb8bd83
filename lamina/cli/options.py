"""The arguments and options that several commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lamina.engines import DEFAULT_ENGINE
from lamina.errors import DTypeError

if TYPE_CHECKING:
    from lamina.shapes import DTypeLike

PRECISIONS = "float32, mixed, mixed-bfloat16, mixed-float16, float64, bfloat16 or float16"
PRODUCT_PRECISIONS = "The products of float32: float32, or tf32 on devices that multiply TF32"
FILE_PATH = click.Path(exists=True, dir_okay=False)
file_argument = click.argument("file", metavar="FILE.py", type=FILE_PATH)
engine_option = click.option(
    "--engine",
    metavar="NAME",
    default=DEFAULT_ENGINE,
    show_default=True,
    help="The engine that runs it; `lamina devices` lists all.",
)


def read_precision(
    _: click.Context, parameter: click.Parameter, value: str | None
) -> DTypeLike | None:
    """The precision of a model, as `Model` reads it.

    Raises:
        DTypeError: for a word that is none.
    """
    from lamina.graph.kinds import ModelType  # `lamina --help` does not need it

    try:
        return None if value is None else ModelType().read(value)
    except DTypeError as error:
        raise error.at(parameter.opts[0]) from None


dtype_option = click.option(
    "--dtype",
    metavar="PRECISION",
    callback=read_precision,
    help=f"{PRECISIONS}; overrides the file's.",
)


def read_products(_: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The precision of products of float32, as `Model` reads it.

    Raises:
        DefinitionError: for a word that is none.
    """
    from lamina.graph.kinds import Misfit, refusal
    from lamina.tf32_products import ProductPrecision

    try:
        return None if value is None else ProductPrecision().read(value)
    except Misfit as misfit:
        raise refusal(misfit, "precision", value, where=parameter.opts[0]) from None


precision_option = click.option(
    "--precision",
    metavar="PRODUCTS",
    callback=read_products,
    help=f"{PRODUCT_PRECISIONS}; overrides the file's.",
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
micro_batch_option = click.option(
    "--micro-batch",
    type=click.IntRange(min=1),
    help="Divide each batch into micro-batches of so many examples, to need less memory.",
)
