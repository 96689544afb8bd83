"""The commands `explain`, `tune` and `profile`: the program of a user's file, schedules, times."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import lamina as lm
from lamina.cli import options
from lamina.files.atomic import write_atomically

if TYPE_CHECKING:
    from lamina.base.shapes import DTypeLike


def _of_program(function: Callable[..., Any]) -> click.Command:
    """A command about the program of a training step, with the options of all such commands.

    The function gets the model, the batch size, loss and optimizer, and its own options. Loss and
    optimizer are None for a forward pass. What it returns is printed, and its `record` written to
    the file of the option `json`, if the command has it.
    """

    @click.command()
    @options.file
    @options.batch_size
    @click.option(
        "--inference", is_flag=True, help="Use the forward pass even if FILE.py defines a loss."
    )
    @options.precision()
    @options.engine
    @wraps(function)
    def command(
        file: str,
        batch_size: int | None,
        inference: bool,
        dtype: DTypeLike | None,
        precision: str | None,
        engine: str,
        **further: Any,
    ) -> None:
        from lamina.cli.definition import read_definition

        definition = read_definition(file)
        types = definition.types(dtype, precision)
        model = lm.Model(definition.network, engine=engine, seed=further.get("seed", 0), **types)
        is_training = definition.loss is not None and not inference
        training = (definition.loss, definition.optimizer) if is_training else (None, None)
        file_of_record: Path | None = further.pop("json", None)
        report = function(model, batch_size or definition.batch_size, *training, **further)
        click.echo(str(report))
        if file_of_record is not None:
            write_atomically(file_of_record, f"{dumps(report.record(), indent=1)}\n".encode())

    return command


_record = options.output("--json", "FILE", "Write all figures to this file.")


@_of_program
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
    model: lm.Model, size: int, *training: Any, step: int | None, language: str | None
) -> object:
    """Show the program of a training step.

    Lists its steps with their extents, arithmetic and memory traffic; or shows their schedules or
    generated code.

    If FILE.py defines no loss, it is the program of a forward pass.
    """
    explanation = model.explain(size, *training)
    if step is None and language is None:
        return explanation
    return explanation.listing(step, language or "program")


@_of_program
@_record
def tune(model: lm.Model, size: int, *training: Any) -> object:
    """Choose the schedules of a training step by their time on the device.

    The most expensive steps of the program are run with several schedules. Shows their times, those
    that the cost model expects, and the choices, which the cache on disk keeps for later runs of
    the program. Only OpenCL and CUDA devices tune.

    If FILE.py defines no loss, it is the program of a forward pass.
    """
    return model.tune(size, *training)


@_of_program
@options.data("Examples to run on; random ones by default.")
@options.targets
@options.table
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01, max=3600),
    default=0.5,
    show_default=True,
    help="About how long to run the program untimed, and again with timers.",
)
@options.seed
@_record
def profile(
    model: lm.Model,
    size: int,
    *training: Any,
    data: str | None,
    targets: str | None,
    seconds: float,
    seed: int,
    **table: Any,
) -> object:
    """Measure each step of the program of a training step.

    Shows the time of each step of the program, the slowest first, its GFLOP/s and GB/s, and the
    peak rates of this machine. On GPUs it is the device's own time of each step.

    If FILE.py defines no loss, it is the program of a forward pass.
    """
    from lamina.cli.data import first_examples

    examples = first_examples(size, data, targets, **table)
    size = size if examples is None else len(examples)
    return model.profile(size, *training, data=examples, seconds=seconds)
