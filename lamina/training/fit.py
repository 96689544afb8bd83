"""The fit loop: epochs of training steps, validation after each, progress, clean ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from lamina.data import Dataset
from lamina.engines.engine import Memory
from lamina.errors import NonFiniteError
from lamina.records import frozen_dataclass
from lamina.runtime import Evaluation, Parameters, Recorded, Training
from lamina.runtime.attached import joined
from lamina.runtime.interrupt import Interrupt, held_interrupts
from lamina.training.history import VALIDATION, History
from lamina.training.metrics import Metric
from lamina.training.progress import Display, display


@frozen_dataclass
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
    with ExitStack() as stack:
        interrupt = stack.enter_context(held_interrupts())
        resident = stack.enter_context(job.training.placed(job.train))
        examined: Mapping[str, Memory] = {}
        if job.evaluation is not None and job.validation is not None:
            examined = stack.enter_context(job.evaluation.placed(job.validation))
        shown = stack.enter_context(display(job.progress))
        for epoch in range(len(history), job.epochs):
            started = time.perf_counter()
            recorded = _epoch(job, resident, epoch, shown, interrupt)
            if interrupt.pressed:
                break
            row = summary(recorded, job.metrics)
            if job.evaluation is not None and job.validation is not None:
                measured = job.evaluation.run(examined, len(job.validation))
                row |= {VALIDATION + k: v for k, v in summary(measured, job.metrics).items()}
            history.add(row, time.perf_counter() - started)
            shown.epoch_ends(epoch + 1, job.epochs, row)
            _note_averages(job.training, history)
            wishes_to_end = [after(history) for after in job.after_epoch]
            if any(wishes_to_end):
                break
        history.interrupted = interrupt.answer()
        _note_averages(job.training, history)
    return history


def _note_averages(training: Training, history: History) -> None:
    if training.has_averages:
        history.averaged_parameters = training.averaged_parameters()


def summary(recorded: Recorded, metrics: Sequence[Metric]) -> dict[str, Any]:
    """The loss over all examples, and metrics, by name; equal names are numbered."""
    row: dict[str, Any] = {"loss": recorded.loss}
    for number, metric in enumerate(metrics):
        prefix = f"metric{number}."
        sums = {
            name.removeprefix(prefix): values.sum(axis=0, dtype=np.float64)
            for name, values in recorded.statistics.items()
            if name.startswith(prefix)
        }
        name = f"{metric.name}_{number}" if metric.name in row else metric.name
        row[name] = metric.result(sums)
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
    values, state = job.training.snapshot()
    steps = sum(len(rows) for rows in batches)
    shown.epoch_begins(epoch + 1, job.epochs, steps)
    pieces: list[Recorded] = []
    done, before = 0, time.perf_counter()
    for piece in job.training.pieces(resident, batches, interrupt):
        finite = np.isfinite(piece.losses)
        if not finite.all():
            job.training.restore(state, values)
            bad = int(np.flatnonzero(~finite)[0])
            what = f"the loss became {piece.losses[bad]}"
            raise _non_finite(what, epoch, done + bad, steps, job.train)
        pieces.append(piece)
        done += len(piece.losses)
        now = time.perf_counter()
        rate = float(piece.examples.sum()) / max(now - before, 1e-6)
        shown.advance(len(piece.losses), summary(piece, job.metrics), rate)
        before = now
    # The last step's loss was measured before its update, which may have gone too far.
    for name, value in job.parameters.read(list(job.parameters.variables)).items():
        if not np.isfinite(value).all():
            job.training.restore(state, values)
            what = f"the parameter {name!r} overflowed"
            raise _non_finite(what, epoch, done - 1, steps, job.train)
    return joined(pieces)


def _first_fault(dataset: Dataset) -> str:
    """Where the data holds something that is not finite, for people."""
    for role, arrays in (("input", dataset.input_arrays), ("target", dataset.target_arrays)):
        for number, array in enumerate(arrays):
            rows = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
            if rows.any():
                return f"{role} {number} is not finite at example {int(rows.argmax())}"
    return "all finite"


def _non_finite(what: str, epoch: int, step: int, steps: int, dataset: Dataset) -> NonFiniteError:
    return NonFiniteError(
        f"{what} in step {epoch * steps + step + 1}",
        facts=(
            ("epoch", f"{epoch + 1}, its step {step + 1} of {steps}"),
            ("data", _first_fault(dataset)),
            ("model", "put back to where it was before this epoch"),
        ),
        where="fit",
        advice="Lower the learning rate, clip the gradients (clip=lm.ClipGlobalNorm(1.0)), or "
        "look for NaN in the data.",
    )
