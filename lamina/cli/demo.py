"""`lamina demo`: trains a network in seconds, on handwritten digits shipped with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

import lamina as lm
from lamina.base.shapes import Array
from lamina.cli.progress import epoch_lines, on_terminal
from lamina.engines.discovery import open_engine
from lamina.errors import DataError, MissingExtraError
from lamina.files.atomic import require_writable
from lamina.reports import bytes_text, map_text

BATCH_SIZE = 64
_SHOWN = 4


def run_demo(folder: Path, *, engine: str, seed: int, epochs: int) -> None:
    """Trains, writes model and curves to the folder, and prints predictions and accuracy."""
    open_engine(engine)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the folder cannot be made: {error.strerror}",
            where=str(folder),
            advice="Choose another with --out.",
        ) from error
    model_file = folder / "digits.safetensors"
    require_writable(model_file)
    train, test = lm.data.digits().split(0.8, seed=seed)
    network = network_of_demo()
    loss, optimizer = lm.CrossEntropy(), lm.Adam(5e-3)
    click.echo(f"{len(train)} handwritten digits to learn from, {len(test)} held out.\n")
    click.echo(f"{network}\n")
    bill = network.plan(BATCH_SIZE, loss, optimizer, engine=engine)
    click.echo(
        f"A training step on {BATCH_SIZE} digits takes {bytes_text(bill.peak_bytes)}, known before "
        "anything is allocated.\n"
    )
    model = lm.Model(network, engine=engine, seed=seed)
    history = model.fit(
        train,
        validation=test,
        epochs=epochs,
        batch_size=BATCH_SIZE,
        loss=loss,
        optimizer=optimizer,
        metrics=[lm.Accuracy()],
        progress=on_terminal(),
        callbacks=epoch_lines(epochs),
    )
    model.save(model_file)
    click.echo(f"wrote {model_file}")
    try:
        history.plot(folder / "curves.png")
        click.echo(f"wrote {folder / 'curves.png'}")
    except MissingExtraError as error:
        click.echo(f"no picture of the curves: {error}")
    scores: Array = model.predict(test.inputs)
    labels: Any = test.targets
    click.echo(f"\n{_examples(np.asarray(test.inputs), scores.argmax(axis=1), labels)}\n")
    measured = model.evaluate(test, loss=loss, metrics=[lm.Accuracy()])
    right = round(measured["accuracy"] * len(test))
    click.echo(f"accuracy on held-out digits: {measured['accuracy']:.1%} ({right} of {len(test)})")


def network_of_demo() -> lm.Network:
    """A small convolutional network for the digits."""
    return lm.Sequential(
        lm.Input(1, 8, 8),
        lm.Rescale(1 / 16),
        lm.Conv2d(16, 3, padding="same", bias=False),
        lm.BatchNorm(),
        lm.ReLU(),
        lm.MaxPool2d(2),
        lm.Conv2d(32, 3, padding="same", bias=False),
        lm.BatchNorm(),
        lm.ReLU(),
        lm.Flatten(),
        lm.Dropout(0.2),
        lm.Linear(10),
    )


def _examples(images: Array, predicted: Array, labels: Array) -> str:
    """Some digits drawn with characters, side by side: the first correct ones, and a wrong one."""
    right = np.flatnonzero(predicted == labels)
    wrong = np.flatnonzero(predicted != labels)[:1]
    chosen = [*right[: _SHOWN - len(wrong)], *wrong]
    columns: list[list[str]] = []
    for number in chosen:
        # A character is twice as tall as it is wide; the map's first row is the lowest.
        pixels = images[number, 0, ::-1].repeat(2, axis=1) / 16
        article = "an" if labels[number] == 8 else "a"
        wrong_text = f"it is {article} {labels[number]}"
        verdict = "right" if predicted[number] == labels[number] else wrong_text
        caption = f"{predicted[number]}: {verdict}".ljust(pixels.shape[1])
        columns.append([caption, *map_text(pixels).split("\n")])
    return "\n".join("   ".join(row).rstrip() for row in zip(*columns, strict=True))
