"""The commands `explain`, `tune` and `profile`: the program of a training step or forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import lamina as lm
from lamina import cli
from lamina.cli.options import (
    batch_size_option,
    dtype_option,
    engine_option,
    file_argument,
    precision_option,
    seed_option,
    targets_option,
)

if TYPE_CHECKING:
    from lamina.base.shapes import DTypeLike
    from lamina.learning.protocols import Loss, Optimizer

_inference_option = click.option(
    "--inference", is_flag=True, help="Use the forward pass even if FILE.py defines a loss."
)


@click.command()
@file_argument
@batch_size_option
@_inference_option
@dtype_option
@precision_option
@engine_option
@click.option(
    "--step", type=click.IntRange(min=0), help="Show only this step of the program, as text."
)
@click.option(
    "--as",
    "language",
    metavar="LANGUAGE",
    help="Show one step or all steps as text in this language: program or schedule; llvm or "
    "assembly on the cpu engine, opencl on the opencl engine, cuda on the cuda engine.",
)
def explain(
    file: str,
    batch_size: int | None,
    inference: bool,
    dtype: DTypeLike | None,
    precision: str | None,
    engine: str,
    step: int | None,
    language: str | None,
) -> None:
    """Show the program of a training step.

    Lists its steps with their extents, arithmetic and memory traffic; or shows their schedules or
    generated code.

    If FILE.py defines no loss, it is the program of a forward pass.
    """
    definition = cli.read_definition(file)
    types = definition.types(dtype, precision)
    model = lm.Model(definition.network, engine=engine, **types)
    loss, optimizer = _training_of(definition, inference=inference)
    explanation = model.explain(batch_size or definition.batch_size, loss, optimizer)
    if step is None and language is None:
        click.echo(str(explanation))
    else:
        click.echo(explanation.listing(step, language or "program"))


@click.command()
@file_argument
@batch_size_option
@_inference_option
@dtype_option
@precision_option
@engine_option
def tune(
    file: str,
    batch_size: int | None,
    inference: bool,
    dtype: DTypeLike | None,
    precision: str | None,
    engine: str,
) -> None:
    """Choose the schedules of a training step by their time on the device.

    The most expensive steps of the program are run with several schedules. Shows their times and
    the choices, which the cache on disk keeps for later runs of the program. Only OpenCL devices
    tune.

    If FILE.py defines no loss, it is the program of a forward pass.
    """
    definition = cli.read_definition(file)
    types = definition.types(dtype, precision)
    model = lm.Model(definition.network, engine=engine, **types)
    loss, optimizer = _training_of(definition, inference=inference)
    click.echo(str(model.tune(batch_size or definition.batch_size, loss, optimizer)))


@click.command()
@file_argument
@batch_size_option
@_inference_option
@click.option("--data", metavar="DATA", help="Examples to run on; random ones by default.")
@targets_option
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01, max=3600),
    default=0.5,
    show_default=True,
    help="About how long to run the program untimed, and again with timers.",
)
@dtype_option
@precision_option
@engine_option
@seed_option
def profile(
    file: str,
    batch_size: int | None,
    inference: bool,
    data: str | None,
    targets: str | None,
    seconds: float,
    dtype: DTypeLike | None,
    precision: str | None,
    engine: str,
    seed: int,
) -> None:
    """Measure each step of the program of a training step.

    Shows the time of each step of the program, the slowest first, its GFLOP/s and GB/s, and the
    peak rates of this machine.

    If FILE.py defines no loss, it is the program of a forward pass.
    """
    definition = cli.read_definition(file)
    types = definition.types(dtype, precision)
    model = lm.Model(definition.network, engine=engine, seed=seed, **types)
    loss, optimizer = _training_of(definition, inference=inference)
    size = batch_size or definition.batch_size
    examples = None
    if data is not None:
        loaded, _ = cli.load_data(data, targets, None, seed)
        examples = loaded.subset(0, min(size, len(loaded)))
        size = len(examples)
    click.echo(str(model.profile(size, loss, optimizer, data=examples, seconds=seconds)))


def _training_of(
    definition: cli.Definition, *, inference: bool
) -> tuple[Loss | None, Optimizer | None]:
    """Loss and optimizer of the training step; None and None for a forward pass."""
    if inference or definition.loss is None:
        return None, None
    return definition.loss, definition.optimizer
