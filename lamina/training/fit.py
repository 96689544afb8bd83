"""Fitting: epochs of training steps with validation, checkpoints, progress and Ctrl-C."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from lamina.data import Dataset, as_dataset
from lamina.data.dataset import Data
from lamina.engines.engine import Memory
from lamina.errors import DefinitionError, NonFiniteError
from lamina.protocols import Clip, Loss, Optimizer, check_callbacks, check_frozen
from lamina.runtime import Parameters
from lamina.training.batches import Recorded, joined, no_whole_batch
from lamina.training.checkpoints import Checkpoint, kind_of_optimizer
from lamina.training.evaluation import Evaluation, summary
from lamina.training.history import VALIDATION, History
from lamina.training.interrupt import Interrupt, held_interrupts
from lamina.training.metrics import Metric
from lamina.training.progress import Display, display
from lamina.training.training import Training


@final
class Fit:
    """One fit of a model: `Fit(...).run()`. Arguments are those of `Model.fit`.

    Raises:
        DataError, DefinitionError: for invalid options, or a checkpoint file that could not be
            written.
    """

    def __init__(
        self,
        parameters: Parameters,
        train: Data,
        validation: Data | None,
        *,
        loss: Loss,
        optimizer: Optimizer,
        metrics: Sequence[Metric],
        clip: Clip | None,
        frozen: Sequence[str],
        epochs: int,
        batch_size: int,
        seed: int,
        drop_last: bool,
        progress: bool | None,
        callbacks: Sequence[Callable[[History], bool | None]],
        checkpoint: str | os.PathLike[str] | None,
        resume: bool,
    ) -> None:
        self._parameters = parameters
        self._train = as_dataset(train)
        self._validation = None if validation is None else as_dataset(validation)
        self._loss, self._optimizer, self._metrics = loss, optimizer, metrics
        self._clip, self._frozen = clip, frozen
        self._epochs, self._batch_size, self._seed = epochs, batch_size, seed
        self._drop_last, self._progress, self._resume = drop_last, progress, resume
        self._callbacks = callbacks
        check_callbacks(callbacks)
        check_frozen(frozen)
        if drop_last and len(self._train) < batch_size:
            raise no_whole_batch(self._train, batch_size, where="fit")
        if resume and checkpoint is None:
            raise DefinitionError(
                "there is nothing to resume from",
                facts=(("expected", "checkpoint=PATH"), ("found", "None")),
                where="fit",
                advice="Name the checkpoint file that the earlier fit wrote.",
            )
        self._checkpoint = None
        if checkpoint is not None:
            self._checkpoint = Checkpoint(checkpoint, parameters, self._terms())

    def _terms(self) -> dict[str, Any]:
        """The options that must be equal in a resumed fit and in the fit that it continues."""
        return {
            "optimizer": kind_of_optimizer(self._optimizer),
            "frozen": list(self._frozen),
            "batch_size": self._batch_size,
            "seed": str(self._seed),
            "drop_last": self._drop_last,
            "dtype": self._parameters.dtype.name,
        }

    def run(self) -> History:
        """Trains until all epochs are done; returns their history.

        Ctrl-C ends it between two training steps; the model keeps the parameters trained so far.

        Raises:
            NonFiniteError: naming the training step at which the loss became NaN or infinite; the
                model is restored to the end of the last good epoch.
        """
        with self._training() as training:
            history = self._begin(training)
            with self._evaluation() as evaluation:
                self._run_epochs(training, evaluation, history)
        return history

    def _training(self) -> Training:
        size = min(self._batch_size, len(self._train))
        return Training.of(
            self._parameters,
            self._train,
            self._loss,
            self._optimizer,
            size,
            metrics=self._metrics,
            clip=self._clip,
            frozen=self._frozen,
            seed=self._seed,
        )

    def _begin(self, training: Training) -> History:
        """The history in the checkpoint if the fit is resumed, otherwise an empty one."""
        if self._checkpoint is None:
            return History()
        if not self._checkpoint.exists:
            # A fit that is interrupted in its first epoch is resumed from here.
            self._checkpoint.write(training, History())
            return History()
        return self._checkpoint.resume(training) if self._resume else History()

    @contextmanager
    def _evaluation(self) -> Generator[Evaluation | None]:
        if self._validation is None:
            yield None
            return
        evaluation = Evaluation.of(self._parameters, self._validation, self._loss, self._metrics)
        try:
            yield evaluation
        finally:
            evaluation.release()

    def _run_epochs(
        self, training: Training, evaluation: Evaluation | None, history: History
    ) -> None:
        with (
            held_interrupts() as interrupt,
            training.uploaded(self._train) as resident,
            self._uploaded_validation(evaluation) as validation,
            display(self._progress) as shown,
        ):
            for epoch in range(len(history), self._epochs):
                started = time.perf_counter()
                recorded = self._epoch(training, resident, epoch, shown, interrupt)
                if interrupt.pressed:
                    break
                row = summary(recorded, self._metrics)
                if evaluation is not None and self._validation is not None:
                    measured = evaluation.run(validation, len(self._validation))
                    found = summary(measured, self._metrics).items()
                    row |= {VALIDATION + name: value for name, value in found}
                history.add(row, time.perf_counter() - started)
                shown.epoch_ends(epoch + 1, self._epochs, row)
                if self._ends_after(training, history):
                    break
            history.interrupted = interrupt.handle()
            _note_averages(training, history)

    @contextmanager
    def _uploaded_validation(
        self, evaluation: Evaluation | None
    ) -> Generator[Mapping[str, Memory]]:
        """The validation data in the engine's memory."""
        if evaluation is None or self._validation is None:
            yield {}
            return
        with evaluation.uploaded(self._validation) as resident:
            yield resident

    def _ends_after(self, training: Training, history: History) -> bool:
        """Writes the checkpoint and runs the callbacks; whether one of them ends the fit."""
        _note_averages(training, history)
        if self._checkpoint is not None:
            self._checkpoint.write(training, history)
        # All callbacks are called, whatever the first one returns.
        ends = [callback(history) for callback in self._callbacks]
        return any(ends)

    def _epoch(
        self,
        training: Training,
        resident: Mapping[str, Memory],
        epoch: int,
        shown: Display,
        interrupt: Interrupt,
    ) -> Recorded:
        """One epoch, or its training steps before Ctrl-C."""
        batches = training.batches_of(self._train, self._seed, epoch, drop_last=self._drop_last)
        values, state = training.snapshot()
        steps = sum(len(rows) for rows in batches)
        shown.epoch_begins(epoch + 1, self._epochs, steps)
        pieces: list[Recorded] = []
        done, before = 0, time.perf_counter()
        for piece in training.pieces(resident, batches, interrupt):
            finite = np.isfinite(piece.losses)
            if not finite.all():
                training.restore(state, values)
                bad = int(np.flatnonzero(~finite)[0])
                what = f"the loss became {piece.losses[bad]}"
                raise _non_finite(what, epoch, done + bad, steps, self._train)
            pieces.append(piece)
            done += len(piece.losses)
            now = time.perf_counter()
            rate = float(piece.examples.sum()) / max(now - before, 1e-6)
            shown.advance(len(piece.losses), summary(piece, self._metrics), rate)
            before = now
        # The loss of the last training step was computed before its update, which may overflow.
        parameters = self._parameters
        for name, value in parameters.read(list(parameters.variables)).items():
            if not np.isfinite(value).all():
                training.restore(state, values)
                what = f"the parameter {name!r} overflowed"
                raise _non_finite(what, epoch, done - 1, steps, self._train)
        return joined(pieces)


def _note_averages(training: Training, history: History) -> None:
    if training.has_averages:
        history.averaged_parameters = training.averaged_parameters()


def _first_fault(dataset: Dataset) -> str:
    """The first example with a value that is not finite, as text for the error."""
    for role, arrays in (("input", dataset.input_arrays), ("target", dataset.target_arrays)):
        for number, array in enumerate(arrays):
            rows = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
            if rows.any():
                return f"{role} {number} is not finite at example {int(rows.argmax())}"
    return "all finite"


def _non_finite(what: str, epoch: int, step: int, steps: int, dataset: Dataset) -> NonFiniteError:
    return NonFiniteError(
        f"{what} in training step {epoch * steps + step + 1}",
        facts=(
            ("epoch", f"{epoch + 1}, training step {step + 1} of {steps}"),
            ("data", _first_fault(dataset)),
            ("model", "restored to its state before this epoch"),
        ),
        where="fit",
        advice="Lower the learning rate, clip the gradients (clip=lm.ClipGlobalNorm(1.0)), or "
        "look for NaN in the data.",
    )
