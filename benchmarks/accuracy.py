"""Whether training in mixed precision ends as well as in float32: held-out accuracy over seeds.

    python benchmarks/accuracy.py --data FOLDER --results FOLDER [--picture curves.png]
    python benchmarks/accuracy.py --data FOLDER --results FOLDER --dtype mixed-float16

Three networks are trained in each precision with each seed. A seed gives the same initial
parameters and the same order of examples in all precisions.

    lenet      all 60,000 images of Fashion-MNIST, 3 epochs; 10,000 test images
    resnet-18  the first 10,000 images, 2 epochs; the first 2,000 test images
    sorting    the transformer of examples/sort_transformer.py: 20,000 sequences, 4 epochs;
               accuracy over the positions of 1,000 others

--data has the four IDX files of Fashion-MNIST; the transformer needs none. Each finished training
is a JSON file in --results. A later call only runs the trainings that are missing there, so a
call may be interrupted, and several processes may divide the work by --network, --dtype and
--seeds. The table and the picture show all trainings that were asked for. With --round-parameters
mixed precision rounds parameters, as on devices that multiply floats of 16 bits. Choose another
folder after a change of Lamina or of the settings in this file.
"""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from harness import machine

import lamina as lm
from lamina.data import Dataset
from lamina.reports import seconds_text, table_text
from lamina.reports.figure import BLUE, INK, ORANGE, clean_axes, new_figure, save_figure
from lamina.step.precision import MIXED, Rounding

FLOAT32 = "float32"
DTYPES = (FLOAT32, "mixed-bfloat16", "mixed-float16")
SEEDS = (0, 1, 2, 3, 4)
COLOURS = {FLOAT32: BLUE, "mixed-bfloat16": ORANGE, "mixed-float16": "#009E73"}
# Of a picture.
PALETTE_COLOURS = 64
LENGTH = 12
SORTING = Path(__file__).parents[1] / "examples" / "sort_transformer.py"
# The drawn points of the loss between two evaluations; each is a mean over training steps.
POINTS_AN_EVALUATION = 5

HEADER = ("network", "precision", "final accuracies, %", "mean", "least", "greatest")
HEADER += ("minus float32", "mean within float32's spread")

Data = tuple[Dataset, Dataset]
# Trainings of a network and precision, by seed: the contents of their files.
Runs = Mapping[tuple[str, str], Mapping[int, Mapping[str, Any]]]


@dataclass(frozen=True)
class Task:
    """A network and how it is trained.

    Attributes:
        title: above its curves.
        data: what to learn from and what to evaluate on, from the folder of Fashion-MNIST.
        network: the definition, for data of this shape.
        optimizer: with a learning rate that falls to 0 over this number of training steps.
        batch: examples of a training step.
        epochs: of a training.
        evaluations: in each epoch.
    """

    title: str
    data: Callable[[Path | None], Data]
    network: Callable[[tuple[int, ...]], lm.Network]
    optimizer: Callable[[int], Any]
    batch: int
    epochs: int
    evaluations: int


def fashion(folder: Path | None, train: int, test: int) -> Data:
    """The first images of Fashion-MNIST, as bytes.

    Raises:
        SystemExit: without a folder.
    """
    if folder is None:
        sys.exit("accuracy.py: --data FOLDER is needed, with the four files of Fashion-MNIST")
    known, unseen = lm.data.mnist(folder)
    return known.subset(0, min(train, len(known))), unseen.subset(0, min(test, len(unseen)))


def sequences(_: Path | None) -> Data:
    """Digits and the same in order, as in the example."""
    make = runpy.run_path(str(SORTING))["make_sequences"]
    return Dataset(*make(20_000, LENGTH, seed=0)), Dataset(*make(1_000, LENGTH, seed=1))


def lenet(shape: tuple[int, ...]) -> lm.Network:
    images = lm.Input(*shape), lm.Rescale(1 / 255)
    return lm.Sequential(*images, lm.networks.lenet(classes=10, input=shape))


def resnet(shape: tuple[int, ...]) -> lm.Network:
    # Images keep their 28x28 pixels: a margin up to 32x32 would add work and no information.
    ready = lm.networks.resnet(18, classes=10, stem="cifar", input=shape)
    return lm.Sequential(lm.Input(*shape), lm.Rescale(1 / 255), ready)


def sorting(shape: tuple[int, ...]) -> lm.Network:
    return runpy.run_path(str(SORTING))["make_network"](*shape)


def adam(steps: int) -> lm.Adam:
    return lm.Adam(lm.schedules.Cosine(1e-3, steps=steps))


def momentum(steps: int) -> lm.SGD:
    """SGD with a warm-up over the first fifth."""
    rise = max(1, steps // 5)
    falling = lm.schedules.Cosine(0.05, steps=max(1, steps - rise))
    return lm.SGD(lm.schedules.Warmup(rise, then=falling), momentum=0.9)


TASKS = {
    "lenet": Task(
        "LeNet, 60,000 images",
        lambda folder: fashion(folder, 60_000, 10_000),
        lenet,
        adam,
        batch=100,
        epochs=3,
        evaluations=6,
    ),
    "resnet-18": Task(
        "ResNet-18, 10,000 images",
        lambda folder: fashion(folder, 10_000, 2_000),
        resnet,
        momentum,
        batch=50,
        epochs=2,
        evaluations=4,
    ),
    "sorting": Task(
        f"Transformer, sorting {LENGTH} digits",
        sequences,
        sorting,
        adam,
        batch=100,
        epochs=4,
        evaluations=5,
    ),
}


# Training -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """What identifies a training: the same settings and seed give the same training."""

    network: str
    dtype: str
    engine: str
    epochs: int
    limit: int | None
    round_parameters: bool

    def file(self, folder: Path, seed: int) -> Path:
        """Where the training with a seed is kept."""
        kind = ".rounded" if self.round_parameters else ""
        return folder / f"{self.network}.{self.dtype}{kind}.{seed}.json"

    def record(self, seed: int) -> dict[str, Any]:
        """As plain data."""
        return {**vars(self), "batch": TASKS[self.network].batch, "seed": seed}


def trained(settings: Settings, seed: int, folder: Path | None) -> dict[str, Any]:
    """Trains once; the losses of all training steps, and the evaluations."""
    task = TASKS[settings.network]
    train, test = task.data(folder)
    if settings.limit is not None:
        train, test = (part.subset(0, min(settings.limit, len(part))) for part in (train, test))
    (shape,) = train.input_shapes
    each = -(-len(train) // task.batch)
    steps, every = settings.epochs * each, max(1, each // task.evaluations)
    model = lm.Model(task.network(shape), dtype=settings.dtype, engine=settings.engine, seed=seed)
    loss, accuracy = lm.CrossEntropy(), lm.Accuracy()
    losses: list[float] = []
    evaluations: list[dict[str, float]] = []
    started = time.perf_counter()
    with (
        rounded_parameters(settings),
        model.training(loss, task.optimizer(steps), task.batch, data=train) as training,
    ):
        while len(losses) < steps:
            # The order of the examples is the seed's too.
            losses += training.run(train, min(every, steps - len(losses)), seed=seed).tolist()
            metrics = model.evaluate(test, loss, [accuracy], batch_size=task.batch)
            evaluations.append({"step": len(losses), **metrics})
        skipped = training.skipped_steps
    return {
        "settings": settings.record(seed),
        "machine": machine(),
        "lamina": lm.__version__,
        "seconds": time.perf_counter() - started,
        "examples": {"train": len(train), "test": len(test)},
        "skipped_steps": skipped,
        "steps_an_epoch": each,
        "evaluations": evaluations,
        "losses": losses,
    }


def rounded_parameters(settings: Settings) -> AbstractContextManager[Any]:
    """Meanwhile parameters are rounded on every device, if settings say so."""
    half = MIXED.get(settings.dtype)
    if half is None or not settings.round_parameters:
        return nullcontext()
    rounding = Rounding(half, leaves=True)
    return patch("lamina.runtime.parameters.rounding_of", lambda *_: rounding)


def read(settings: Settings, seed: int, folder: Path) -> dict[str, Any] | None:
    """A finished training; None if it is not there.

    Raises:
        SystemExit: if the file's training had other settings.
    """
    path = settings.file(folder, seed)
    if not path.exists():
        return None
    run = json.loads(path.read_text())
    if run["settings"] != settings.record(seed):
        sys.exit(
            f"accuracy.py: {path} has other settings: {run['settings']}; expected "
            f"{settings.record(seed)}. Choose another folder for --results."
        )
    return run


def write(run: Mapping[str, Any], path: Path) -> None:
    """Writes the whole file or none."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(run) + "\n")
    unfinished.replace(path)


# Arithmetic and text ------------------------------------------------------------------------------


def final(run: Mapping[str, Any]) -> float:
    """The accuracy at the end of a training."""
    return run["evaluations"][-1]["accuracy"]


def percent(share: float) -> str:
    return f"{share:.2%}".replace("%", " %")


def row(
    network: str, dtype: str, accuracies: Mapping[int, float], reference: Mapping[int, float]
) -> tuple[str, ...]:
    """A line of the table.

    Args:
        network: its name.
        dtype: the precision.
        accuracies: final accuracy in this precision, for each seed.
        reference: the same in float32.
    """
    values = list(accuracies.values())
    mean = statistics.mean(values)
    text = (network, dtype, ", ".join(f"{100 * value:.2f}" for value in values))
    text += (percent(mean), percent(min(values)), percent(max(values)))
    if dtype == FLOAT32 or not reference:
        return (*text, "", "")
    return (*text, difference(accuracies, reference), compared(mean, list(reference.values())))


def compared(mean: float, reference: Sequence[float]) -> str:
    """Whether a mean is within the spread of other values, above it or below it."""
    if mean < min(reference):
        return "BELOW"
    return "above" if mean > max(reference) else "yes"


def difference(accuracies: Mapping[int, float], reference: Mapping[int, float]) -> str:
    """The mean over the seeds of the accuracy minus float32's, and its standard error."""
    pairs = [100 * (accuracies[seed] - reference[seed]) for seed in accuracies if seed in reference]
    if len(pairs) < 2:
        return ""
    error = statistics.stdev(pairs) / len(pairs) ** 0.5
    return f"{statistics.mean(pairs):+.2f} ± {error:.2f}"


def table(runs: Runs) -> str:
    """The final accuracies."""
    accuracies = {
        key: {seed: final(run) for seed, run in some.items()} for key, some in runs.items()
    }
    rows = [
        row(network, dtype, values, accuracies.get((network, FLOAT32), {}))
        for (network, dtype), values in accuracies.items()
    ]
    lines = [table_text(HEADER, rows, align="lllrrrrl")]
    for (network, dtype), some in runs.items():
        skipped = sum(run["skipped_steps"] for run in some.values())
        if skipped:
            steps = sum(len(run["losses"]) for run in some.values())
            lines.append(f"{network}, {dtype}: {skipped} of {steps:,} training steps were skipped")
    return "\n".join(lines)


# Picture ------------------------------------------------------------------------------------------


def draw(runs: Runs, path: Path) -> None:
    """A column for each network: the loss in training, the held-out accuracy, and its end."""
    networks = list(dict.fromkeys(network for network, _ in runs))
    figure = new_figure(3.2 * len(networks), 6.4, purpose="a picture of curves")
    grid = figure.subplots(3, len(networks), squeeze=False, height_ratios=(3, 3, 1.2))
    for column, network in enumerate(networks):
        by_dtype = {dtype: runs[name, dtype] for name, dtype in runs if name == network}
        draw_column(
            grid[:, column], {dtype: list(some.values()) for dtype, some in by_dtype.items()}
        )
        grid[0, column].set_title(TASKS[network].title, fontsize=10, color=INK, loc="left")
        if column:
            grid[2, column].set_yticklabels([])
    for axes, label in zip(grid[:2, 0], ("loss in training", "held-out accuracy, %"), strict=True):
        axes.set_ylabel(label, fontsize=9, color=INK)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    seeds = max(len(some) for some in runs.values())
    figure.legend(
        handles,
        labels,
        title=f"Medians of {seeds} seeds, and bands from the least to the greatest",
        loc="outside upper left",
        alignment="left",
        ncols=len(labels),
        frameon=False,
        fontsize=9,
        title_fontsize=9,
    )
    save_figure(figure, path)
    if path.suffix.lower() == ".png":
        from PIL import Image  # matplotlib needs it too

        # A palette makes the file of such a picture four times as small.
        Image.open(path).convert("RGB").quantize(PALETTE_COLOURS).save(path, optimize=True)


def draw_column(column: Sequence[Any], runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """The three panels of a network, from its runs in each precision."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

    losses, accuracies, ends = column
    for dtype, some in runs.items():
        curves = [smoothed(run) for run in some]
        band(losses, curves[0][0], [curve for _, curve in curves], dtype)
        epochs = [point["step"] / some[0]["steps_an_epoch"] for point in some[0]["evaluations"]]
        shares = [[100 * point["accuracy"] for point in run["evaluations"]] for run in some]
        band(accuracies, epochs, shares, dtype)
    losses.set_yscale("log")
    losses.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    losses.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:g}"))
    losses.yaxis.set_minor_formatter("")
    for axes in (losses, accuracies):
        axes.set_xlabel("epoch", fontsize=9, color=INK)
        axes.set_xlim(left=0)
        clean_axes(axes)
    ends.xaxis.set_major_locator(MaxNLocator(4))
    draw_ends(ends, {dtype: [100 * final(run) for run in some] for dtype, some in runs.items()})


def band(axes: Any, x: Sequence[float], curves: Any, dtype: str) -> None:
    """The median of the curves as a line, and all between the least and the greatest.

    Curves of both precisions nearly coincide: float32 is a wide line on a filled band, and the
    others are dashed lines over it, with the outline of their bands.
    """
    least, greatest, colour = np.min(curves, 0), np.max(curves, 0), COLOURS[dtype]
    if dtype == FLOAT32:
        axes.fill_between(x, least, greatest, color=colour, alpha=0.2, lw=0)
        axes.plot(x, np.median(curves, 0), color=colour, lw=2.6, alpha=0.6, label=dtype)
    else:
        axes.plot(x, least, color=colour, lw=0.7)
        axes.plot(x, greatest, color=colour, lw=0.7)
        axes.plot(x, np.median(curves, 0), color=colour, lw=1.4, ls=(0, (3, 1.5)), label=dtype)


def draw_ends(axes: Any, ends: Mapping[str, Sequence[float]]) -> None:
    """The final accuracies, in percent: a row of dots for each precision, and their mean."""
    reference = ends.get(FLOAT32)
    if reference is not None:
        axes.axvspan(min(reference), max(reference), color=COLOURS[FLOAT32], alpha=0.12, lw=0)
    for line, (dtype, values) in enumerate(ends.items()):
        mean = statistics.mean(values)
        axes.plot([mean, mean], [line - 0.3, line + 0.3], color=COLOURS[dtype], lw=1.6)
        axes.plot(values, [line] * len(values), "o", color=COLOURS[dtype], ms=4, alpha=0.7, mew=0)
    axes.set_ylim(len(ends) - 0.4, -0.6)
    axes.set_yticks(range(len(ends)), ends)
    axes.set_xlabel("final accuracy, %, and mean", fontsize=9, color=INK)
    axes.ticklabel_format(axis="x", useOffset=False)
    clean_axes(axes, grid="x")


def smoothed(run: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Epochs, and means of the loss over as many training steps each."""
    width = max(1, run["evaluations"][0]["step"] // POINTS_AN_EVALUATION)
    losses = run["losses"]
    starts = range(0, len(losses) - width + 1, width)
    epochs = [(start + width / 2) / run["steps_an_epoch"] for start in starts]
    return epochs, [statistics.mean(losses[start : start + width]) for start in starts]


# The command --------------------------------------------------------------------------------------


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with the files of Fashion-MNIST")
    parser.add_argument("--results", type=Path, required=True, help="folder of finished trainings")
    parser.add_argument("--network", action="append", choices=TASKS, default=[])
    parser.add_argument("--dtype", action="append", choices=DTYPES, default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--epochs", type=int, help="instead of the network's")
    parser.add_argument("--limit", type=int, help="use so many examples, the first ones")
    parser.add_argument(
        "--round-parameters",
        action="store_true",
        help="in mixed precision, as on devices that multiply floats of 16 bits",
    )
    parser.add_argument("--picture", type=Path, metavar="PNG", help="where to draw the curves")
    return parser


def main() -> None:
    arguments = options().parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    runs: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for name in arguments.network or TASKS:
        # Precisions alternate, so that an interrupted call has the same seeds of both.
        for seed in arguments.seeds:
            for dtype in arguments.dtype or DTYPES[:2]:
                epochs = arguments.epochs or TASKS[name].epochs
                rounds = arguments.round_parameters and dtype != FLOAT32
                settings = Settings(name, dtype, arguments.engine, epochs, arguments.limit, rounds)
                run = read(settings, seed, arguments.results)
                if run is None:
                    run = trained(settings, seed, arguments.data)
                    write(run, settings.file(arguments.results, seed))
                    taken = seconds_text(run["seconds"])
                    text = f"{name}, {dtype}, seed {seed}: {percent(final(run))} after {taken}"
                    print(text, flush=True)
                runs.setdefault((name, dtype), {})[seed] = run
    print(f"\n{table(runs)}")
    if arguments.picture is not None:
        draw(runs, arguments.picture)
        print(f"\nwrote {arguments.picture}")


if __name__ == "__main__":
    main()
