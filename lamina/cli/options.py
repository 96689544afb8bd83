"""The arguments and options that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click

from lamina.engines import DEFAULT_ENGINE
from lamina.errors import DTypeError
from lamina.files.atomic import require_writable

FILE_PATH = click.Path(exists=True, dir_okay=False)
file = click.argument("file", metavar="FILE.py", type=FILE_PATH)
engine = click.option(
    "--engine",
    metavar="NAME",
    default=DEFAULT_ENGINE,
    show_default=True,
    help="The engine that runs it; `lamina devices` lists all.",
)
Function = TypeVar("Function", bound=Callable[..., Any])


def data(help: str, *, required: bool = False) -> Callable[[Function], Function]:
    """The option for data."""
    return click.option("--data", metavar="DATA", required=required, help=help)


def output(name: str, metavar: str, help: str) -> Callable[[Function], Function]:
    """The option for a file to write; raises DataError if the file cannot be written."""
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option(name, metavar=metavar, type=path, callback=_read_output, help=help)


def _read_output(_: click.Context, __: click.Parameter, value: Path | None) -> Path | None:
    if value is not None:
        require_writable(value)
    return value


# The annotations that have the kinds of options: `lamina --help` imports none.
_ANNOTATIONS = {
    "dtype": "checks.kinds FloatType",
    "precision": "step.precision Products",
    "gaps": "data.learned_coding Gaps",
    "delimiter": "data.columns Delimiter",
    "memory": "inspect.bill Memory",
}


def checked(_: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """The value, if its kind can read it; else DTypeError or DefinitionError with the option."""
    if value is None:
        return None
    from lamina.checks.kinds import Misfit, refusal

    name, where = parameter.opts[0].strip("-"), parameter.opts[0]
    module, annotation = _ANNOTATIONS[name].split()
    try:
        getattr(import_module(f"lamina.{module}"), annotation).__metadata__[0].read(value)
    except DTypeError as error:
        raise error.at(where) from None
    except Misfit as misfit:
        raise refusal(misfit, name, value, where=where) from None
    return value


def precision(note: str = "; overrides the file's") -> Callable[[Function], Function]:
    """The options for the precision of a model and of its products."""
    dtypes = "float32, mixed, mixed-bfloat16, mixed-float16, float64, bfloat16 or float16"
    products = "The products of float32: float32, or tf32 on devices that multiply TF32"
    rows = (("--precision", "PRODUCTS", products), ("--dtype", "PRECISION", dtypes))

    def decorate(command: Function) -> Function:
        for name, metavar, help in rows:
            option = click.option(name, metavar=metavar, callback=checked, help=f"{help}{note}.")
            command = option(command)
        return command

    return decorate


seed = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The seed of all random numbers.",
)
targets = click.option(
    "--targets",
    metavar="NAME",
    help="The targets: a column of a table (name or number from 0; by default the last), an array "
    "of an .npz or .h5 file, or the file of the labels.",
)


def _read_gaps(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    with suppress(TypeError, ValueError):
        return checked(context, parameter, float(value))
    return checked(context, parameter, value)


def _read_kinds(
    _: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> dict[str, str] | None:
    """The kinds of columns by name, of `NAME=KIND`."""
    from lamina.data.columns import KINDS  # `lamina --help` does not need it

    kinds: dict[str, str] = {}
    for value in values:
        name, sign, kind = value.rpartition("=")
        if not sign or kind not in KINDS:
            raise click.BadParameter(
                f"{value!r} is not NAME=KIND with one of the kinds {', '.join(KINDS)}.",
                param=parameter,
            )
        kinds[name] = kind
    return kinds or None


def table(command: Function) -> Function:
    """The options that say how the columns of a table are coded, as for `lm.data.load`."""
    for option in reversed(_TABLE_OPTIONS):
        command = option(command)
    return command


_TABLE_OPTIONS = (
    click.option(
        "--gaps",
        metavar="RULE",
        callback=_read_gaps,
        help="What replaces missing numbers of a table: mean, median, indicator (the mean, and a "
        "feature that is 1 where a number is missing), or a number. By default they are an error.",
    ),
    click.option(
        "--standardise",
        is_flag=True,
        default=None,
        help="Shift and scale numbers and dates of a table to mean 0 and deviation 1.",
    ),
    click.option(
        "--words",
        type=click.Choice(("one-hot", "index")),
        help="How words of a table are coded: a feature for each (the default), or an index.",
    ),
    click.option(
        "--kind",
        "kinds",
        metavar="NAME=KIND",
        multiple=True,
        callback=_read_kinds,
        help="What a column of a table is: number, date or word, or class for the targets. "
        "rent=number makes a regression of whole numbers. May be repeated.",
    ),
    click.option(
        "--delimiter",
        metavar="MARK",
        callback=checked,
        help="The character between the cells of a table; by default the comma, semicolon, tab or "
        "bar that divides all rows alike.",
    ),
    click.option(
        "--decimal",
        type=click.Choice(tuple(".,")),
        help="The decimal mark of a table; by default found in its numbers.",
    ),
)
batch_size = click.option(
    "--batch-size", type=click.IntRange(min=1), help="Examples in a batch; overrides the file's."
)
micro_batch = click.option(
    "--micro-batch",
    type=click.IntRange(min=1),
    help="Divide each batch into micro-batches of so many examples, to need less memory.",
)
