"""The commands, one function each."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import lamina as lm
from lamina.cli import options
from lamina.cli.bench import bench
from lamina.cli.errors import Commands
from lamina.cli.inspection import explain, profile, tune
from lamina.errors import missing_extra
from lamina.files.atomic import require_writable
from lamina.reports import picture_format

if TYPE_CHECKING:
    from lamina.base.shapes import Array, DTypeLike


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(lm.__version__, prog_name="lamina", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Train and run neural networks on any processor, with all memory planned in advance.

    FILE.py is a Python file that defines `net`, a network, and may define `loss`, `optimizer`,
    `metrics`, `batch_size`, `epochs`, `dtype` and `precision`. It is your own code, and it is run.
    """


main.add_command(bench)
main.add_command(explain)
main.add_command(profile)
main.add_command(tune)


@main.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("lamina-demo"),
    show_default=True,
    help="The folder for the model and the curves.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=15, show_default=True)
@options.seed
@options.engine
def demo(out: Path, epochs: int, seed: int, engine: str) -> None:
    """Learn to read handwritten digits, with a small convolutional network.

    It takes seconds and needs no file: the digits are shipped with Lamina.
    """
    from lamina.cli.demo import run_demo

    run_demo(out, engine=engine, seed=seed, epochs=epochs)


@main.command()
@options.file
@options.data(
    "Training data: .npz, .h5, .csv, IDX, a folder of pictures, a folder with the files of MNIST, "
    "or the word digits for the set that comes with Lamina.",
    required=True,
)
@click.option(
    "--validation",
    metavar="DATA|SHARE",
    help="Validation data, evaluated after each epoch: data, or the share of --data to hold out, "
    "such as 0.1. For a folder of MNIST the default is its test set.",
)
@options.targets
@options.table
@options.engine
@click.option(
    "--epochs", type=click.IntRange(min=1), help="The number of epochs; overrides the file's."
)
@options.batch_size
@options.micro_batch
@options.precision()
@options.seed
@options.output(
    "--out", "MODEL", "The model file; by default FILE.safetensors in the current folder."
)
@options.output("--curves", "PNG", "A picture of loss and metrics over the epochs.")
@options.output("--checkpoint", "CHECKPOINT", "Written after each epoch.")
@click.option("--resume", is_flag=True, help="Continue from the checkpoint, if it exists.")
@click.option(
    "--patience",
    type=click.IntRange(min=1),
    metavar="EPOCHS",
    help="Stop when the loss on the validation data (without any: the loss) has not improved for "
    "so many epochs, and write the best model.",
)
@options.output(
    "--log", "FILE", "The history, written after each epoch: a table, or JSON lines for FILE.jsonl."
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop after so many minutes, between two training steps.",
)
def train(
    file: str,
    data: str,
    validation: str | None,
    targets: str | None,
    engine: str,
    epochs: int | None,
    batch_size: int | None,
    micro_batch: int | None,
    dtype: DTypeLike | None,
    precision: str | None,
    seed: int,
    out: Path | None,
    curves: Path | None,
    checkpoint: Path | None,
    resume: bool,
    patience: int | None,
    log: Path | None,
    minutes: float | None,
    **table: Any,
) -> None:
    """Train the network of FILE.py."""
    if resume and checkpoint is None:
        raise click.UsageError("--resume needs --checkpoint, the file to continue from.")
    from lamina.cli import progress
    from lamina.cli.data import load_pair
    from lamina.cli.definition import read_definition

    model_file = out or Path(f"{Path(file).stem}.safetensors")
    require_writable(model_file)
    if curves is not None:
        if importlib.util.find_spec("matplotlib") is None:
            raise missing_extra("matplotlib", "plot", "--curves")
        picture_format(curves)
    definition = read_definition(file)
    loss = definition.required_loss()
    training, examined = load_pair(data, targets, validation, seed, **table)
    click.echo(f"training    {training!r}")
    if examined is not None:
        click.echo(f"validation  {examined!r}")
    epochs = epochs or definition.epochs
    types = definition.types(dtype, precision)
    model = lm.Model(definition.network, engine=engine, seed=seed, **types)
    callbacks = progress.callbacks(patience, log, minutes, validated=examined is not None)
    with progress.best_model_written(model, model_file, callbacks):
        history = model.fit(
            training,
            validation=examined,
            epochs=epochs,
            batch_size=batch_size or definition.batch_size,
            micro_batch=micro_batch,
            loss=loss,
            optimizer=definition.optimizer,
            metrics=definition.metrics,
            progress=progress.on_terminal(),
            callbacks=[*progress.epoch_lines(epochs), *callbacks],
            checkpoint=checkpoint,
            resume=resume,
        )
    # The model is saved first, so that an error in the picture does not lose it.
    model.save(model_file)
    if history.interrupted:
        click.echo(f"interrupted after {len(history)} of {epochs} epochs")
    if len(history):
        for line in progress.result_lines(history, callbacks):
            click.echo(line)
    click.echo(f"wrote {model_file}")
    if curves is not None and len(history):
        history.plot(curves)
        click.echo(f"wrote {curves}")


@main.command()
@options.file
def check(file: str) -> None:
    """Check the shapes of a network.

    Prints its layers, and checks that the loss fits, if FILE.py defines one; needs no data.
    """
    from lamina.cli.definition import read_definition

    definition = read_definition(file)
    click.echo(str(definition.network))
    definition.check_loss()


@main.command()
@options.file
@options.batch_size
@options.micro_batch
@options.precision()
@click.option(
    "--memory",
    metavar="SIZE",
    callback=options.checked,
    help='Find the largest batch for this memory, such as "2 GiB".',
)
@click.option("--buffers", is_flag=True, help="List every buffer with its offset and lifetime.")
@options.output("--plot", "PNG", "A picture of the plan: bytes over time.")
@options.data("Data whose bytes, dtypes and weights count.")
@options.targets
@options.table
@options.engine
def plan(
    file: str,
    batch_size: int | None,
    micro_batch: int | None,
    dtype: DTypeLike | None,
    precision: str | None,
    memory: str | None,
    buffers: bool,
    plot: Path | None,
    data: str | None,
    targets: str | None,
    engine: str,
    **table: Any,
) -> None:
    """Print the memory that a training step needs.

    It is counted to the byte, and nothing is allocated.

    If FILE.py defines no loss, it is the memory of a forward pass.
    """
    from lamina.cli.data import load_data
    from lamina.cli.definition import read_definition

    if plot is not None:
        picture_format(plot)
    definition = read_definition(file)
    loss = definition.loss
    optimizer = None if loss is None else definition.optimizer
    network, types = definition.network, definition.types(dtype, precision)
    size = batch_size or definition.batch_size
    how: dict[str, Any] = {**types, "engine": engine, "data": load_data(data, targets, **table)}
    bill = network.plan(size, loss, optimizer, micro_batch=micro_batch, **how)
    click.echo(str(bill))
    if buffers:
        click.echo(f"\n{bill.buffers()}")
    if memory is not None:
        largest = network.max_batch_size(memory, loss, optimizer, **how)
        click.echo(f"\nlargest batch in {memory}: {largest:,} examples")
    if plot is not None:
        bill.plot(plot)
        click.echo(f"wrote {plot}")


@main.command()
@options.file
@options.data("Examples to check on; random ones by default.")
@options.targets
@options.table
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="The number of examples.",
)
@options.seed
def verify(
    file: str, data: str | None, targets: str | None, batch_size: int, seed: int, **table: Any
) -> None:
    """Check gradients and engines.

    Compares each gradient with finite differences, and a training step on all usable engines.
    """
    from lamina.cli.data import first_examples
    from lamina.cli.definition import read_definition

    definition = read_definition(file)
    loss = definition.required_loss()
    examples = first_examples(batch_size, data, targets, **table)
    report = lm.verify(definition.network, loss, data=examples, batch_size=batch_size, seed=seed)
    click.echo(str(report))
    if not report.passed:
        click.get_current_context().exit(1)


@main.command()
@click.argument("model", metavar="MODEL", type=options.FILE_PATH)
@options.data("The inputs; targets are ignored.", required=True)
@options.targets
@options.output(
    "--out", "SCORES", "The file of the outputs, .npy, .npz or .csv; by default they are printed."
)
@click.option(
    "--layers",
    metavar="FILE.py",
    type=options.FILE_PATH,
    help="A file that defines the layers of the model that are not Lamina's.",
)
@options.precision()
@options.engine
def predict(
    model: str,
    data: str,
    targets: str | None,
    out: Path | None,
    layers: str | None,
    dtype: DTypeLike | None,
    precision: str | None,
    engine: str,
) -> None:
    """Run a model file on data."""
    from lamina.cli.data import csv_text, load_pair, table_inputs, write_outputs
    from lamina.cli.definition import read_layers
    from lamina.data.csv_text import is_table

    if out is not None and out.suffix not in (".npy", ".npz", ".csv"):
        raise click.UsageError(f"--out ends in .npy, .npz or .csv, not {out.suffix!r}.")
    users = read_layers(layers) if layers else ()
    loaded = lm.load(model, engine=engine, dtype=dtype, precision=precision, layers=users)
    inputs: Any
    if not is_table(Path(data)):
        inputs = load_pair(data, targets, None, 0)[0].inputs
    elif loaded.coding is not None and loaded.coding.columns:
        inputs = loaded.coding.inputs(data)
    else:
        inputs = table_inputs(loaded, data, targets)
    outputs: Any = loaded.predict(inputs)
    listed: list[Array] = [outputs] if len(loaded.network.outputs) == 1 else list(outputs)
    if out is None:
        for array in listed:
            click.echo(csv_text(array, loaded.coding), nl=False)
        return
    written = write_outputs(out, listed, loaded.coding)
    click.echo(f"wrote {out}: {', '.join(f'{a.dtype}{list(a.shape)}' for a in written)}")


@main.command()
@click.option("--details", is_flag=True, help="Show all properties of each device.")
def devices(details: bool) -> None:
    """List the engines and their devices.

    Devices that cannot be used are listed with the reason and the remedy.
    """
    from lamina.cli.device_list import details_text, devices_text

    text = details_text if details else devices_text
    click.echo(text(lm.devices()))
