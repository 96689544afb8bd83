"""The fit loop: epochs of training steps, validation after each, progress, clean ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.data import Dataset
from lamina.engines.engine import Memory
from lamina.errors import NonFiniteError
from lamina.runtime import Evaluation, Parameters, Recorded, Training
from lamina.shapes import Array
from lamina.training.history import VALIDATION, History
from lamina.training.interrupt import Interrupt, held_interrupts
from lamina.training.metrics import Metric
from lamina.training.progress import Display, display

# The loop comes up for air, to show progress and notice Ctrl-C, after about this long.
PIECE_SECONDS = 0.05


@dataclass(frozen=True)
class Fit:
    """What `fit` works with.

    Attributes:
        parameters: of the model; put back to the last good epoch if the loss becomes non-finite.
        training: attached to the model.
        train: what is trained on.
        metrics: measured on both data sets.
        epochs: how many in all, those of a resumed history included.
        seed: of the order of the examples.
        evaluation, validation: measured after each epoch, where given.
        drop_last: leave out smaller last batches.
        progress: show a bar; None means on terminals only.
        after_epoch: called with the history at the end of every epoch; True ends the fit.
    """

    parameters: Parameters
    training: Training
    train: Dataset
    metrics: Sequence[Metric]
    epochs: int
    seed: int
    evaluation: Evaluation | None = None
    validation: Dataset | None = None
    drop_last: bool = False
    progress: bool | None = None
    after_epoch: Sequence[Callable[[History], bool | None]] = ()


def fit(job: Fit, history: History) -> History:
    """Trains until `job.epochs` epochs are done, adding to the history.

    Ctrl-C ends it between two steps; what was learned stays in the model.

    Raises:
        NonFiniteError: naming the step at which the loss became NaN or infinite; the model is
            put back to the end of the last good epoch.
    """
    resident = job.training.place(job.train)
    examined: Mapping[str, Memory] = {}
    if job.evaluation is not None and job.validation is not None:
        examined = job.evaluation.place(job.validation)
    with held_interrupts() as interrupt, display(job.progress) as shown:
        for epoch in range(len(history), job.epochs):
            started = time.perf_counter()
            recorded = _epoch(job, resident, epoch, shown, interrupt)
            if interrupt.pressed:
                history.interrupted = True
                break
            row = summary(recorded, job.metrics)
            if job.evaluation is not None and job.validation is not None:
                measured = job.evaluation.run(examined, len(job.validation))
                row |= {VALIDATION + k: v for k, v in summary(measured, job.metrics).items()}
            history.add(row, time.perf_counter() - started)
            shown.epoch_ends(epoch + 1, job.epochs, row)
            wishes_to_end = [after(history) for after in job.after_epoch]
            if any(wishes_to_end):
                break
    return history


def summary(recorded: Recorded, metrics: Sequence[Metric]) -> dict[str, Any]:
    """Loss, averaged over the examples, and metrics, by name."""
    total = recorded.examples.sum()
    row: dict[str, Any] = {"loss": float((recorded.losses * recorded.examples).sum() / total)}
    for number, metric in enumerate(metrics):
        prefix = f"metric{number}."
        sums = {
            name.removeprefix(prefix): values.sum(axis=0, dtype=np.float64)
            for name, values in recorded.statistics.items()
            if name.startswith(prefix)
        }
        row[metric.name] = metric.result(sums)
    return row


def _epoch(
    job: Fit,
    resident: Mapping[str, Memory],
    epoch: int,
    shown: Display,
    interrupt: Interrupt,
) -> Recorded:
    """One epoch, or as much of it as was done before Ctrl-C."""
    batches = job.training.batches_of(job.train, job.seed, epoch, drop_last=job.drop_last)
    good = job.parameters.read(list(job.parameters.memories)), job.training.state()
    shown.epoch_begins(epoch + 1, job.epochs, len(batches))
    pieces: list[Recorded] = []
    done, size = 0, 1
    while done < len(batches) and not interrupt.pressed:
        started = time.perf_counter()
        piece = job.training.run_batches(resident, batches[done : done + size])
        seconds = max(time.perf_counter() - started, 1e-6)
        if not np.isfinite(piece.losses).all():
            job.parameters.write(good[0])
            job.training.restore(good[1])
            bad = done + int(np.flatnonzero(~np.isfinite(piece.losses))[0])
            raise _non_finite(epoch, bad, len(batches), piece.losses[bad - done])
        pieces.append(piece)
        steps = len(piece.losses)
        done += steps
        shown.advance(steps, float(piece.losses[-1]), float(piece.examples.sum()) / seconds)
        size = max(1, min(int(steps * PIECE_SECONDS / seconds), 2 * steps))
    return _joined(pieces)


def _joined(pieces: Sequence[Recorded]) -> Recorded:
    def together(parts: Sequence[Array]) -> Array:
        return np.concatenate(parts) if parts else np.zeros(0)

    names = list(pieces[0].statistics) if pieces else []
    return Recorded(
        together([piece.losses for piece in pieces]),
        together([piece.examples for piece in pieces]),
        {name: together([piece.statistics[name] for piece in pieces]) for name in names},
    )


def _non_finite(epoch: int, step: int, steps: int, loss: float) -> NonFiniteError:
    return NonFiniteError(
        f"the loss became {loss} in step {epoch * steps + step + 1}",
        facts=(
            ("epoch", f"{epoch + 1}, its step {step + 1} of {steps}"),
            ("model", "put back to the end of the last good epoch"),
        ),
        where="fit",
        advice="Lower the learning rate, clip the gradients (clip=lm.ClipGlobalNorm(1.0)), or "
        "look for NaN in the data.",
    )
