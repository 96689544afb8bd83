"""Fitting: epochs of training steps with validation, checkpoints, progress and Ctrl-C."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

import numpy as np

from lamina.data import Dataset
from lamina.derive import GRADIENT_NORM, RATE
from lamina.errors import DefinitionError, EngineError, NonFiniteError
from lamina.loss_scaling import LEAST_SCALE
from lamina.precision import Precision
from lamina.protocols import TrainingOptions, check_callbacks
from lamina.records import frozen_dataclass
from lamina.runtime import Parameters
from lamina.shapes import float16
from lamina.training.batches import Examples, Recorded, joined, no_whole_batch
from lamina.training.callbacks.callback import RunningFit
from lamina.training.callbacks.hooks import AnyCallback, Hooks
from lamina.training.checkpoints import Checkpoint, kind_of_optimizer
from lamina.training.evaluation import Evaluation, summary
from lamina.training.history import VALIDATION, History
from lamina.training.interrupt import Interrupt, held_interrupts
from lamina.training.progress import Display, display
from lamina.training.snapshot import Snapshot
from lamina.training.training import Training


@frozen_dataclass
class _Epoch:
    """An epoch while it runs.

    Attributes:
        fit: for callbacks.
        hooks: of the callbacks.
        resident: the data set.
        shown: the progress bar.
        are_finite: whether all parameters are finite.
    """

    fit: RunningFit
    hooks: Hooks
    resident: Examples
    shown: Display
    are_finite: Callable[[], bool]


@final
@frozen_dataclass
class Fit:
    """One fit of a model, which `run` carries out.

    Attributes:
        model: which is trained; callbacks get it.
        parameters: of the model.
        options: of each training step.
        train, validation: the data sets.
        epochs, batch_size, seed, drop_last, micro_batch, shuffle, record_rate, progress, callbacks,
            checkpoint, resume: as in `Model.fit`.

    Raises:
        DataError, DefinitionError: for invalid options.
    """

    model: Any
    parameters: Parameters
    options: TrainingOptions
    train: Dataset
    validation: Dataset | None
    epochs: int
    batch_size: int
    seed: int
    drop_last: bool
    micro_batch: int | None
    shuffle: bool
    record_rate: bool
    progress: bool | None
    callbacks: Sequence[AnyCallback]
    checkpoint: str | os.PathLike[str] | None
    resume: bool

    def __post_init__(self) -> None:
        check_callbacks(self.callbacks)
        if self.drop_last and len(self.train) < self.batch_size:
            raise no_whole_batch(self.train, self.batch_size, where="fit")
        if self.resume and self.checkpoint is None:
            raise DefinitionError(
                "there is nothing to resume from",
                facts=(("expected", "checkpoint=PATH"), ("found", "None")),
                where="fit",
                advice="Name the checkpoint file that the earlier fit wrote.",
            )

    def run(self) -> History:
        """Trains until all epochs are done; returns their history.

        Ctrl-C ends it between two training steps; the model keeps the parameters trained so far.

        Raises:
            DataError: if the checkpoint file could not be written.
            EngineError: if the device fails; the model is restored to the end of the last good
                epoch.
            NonFiniteError: naming the training step at which the loss became NaN or infinite; the
                model is restored to the end of the last good epoch.
        """
        checkpoint = None
        if self.checkpoint is not None:
            checkpoint = Checkpoint(self.checkpoint, self.parameters, self._resume_options())
        size = min(self.batch_size, len(self.train))
        hooks = Hooks(self.callbacks)
        options = replace(self.options, adjustable_rate=hooks.changes_rate)
        how: Any = {"seed": self.seed, "micro_batch": self.micro_batch}
        with Training(self.parameters, options, self.train, size, **how) as training:
            history = self._begin(training, hooks, checkpoint)
            history.measured = self._measured(hooks)
            with held_interrupts() as interrupt:
                fit = RunningFit(self.model, training, history, self.epochs, interrupt)
                try:
                    hooks.fit_begins(fit)
                    with self._evaluation() as evaluation:
                        self._run_epochs(fit, hooks, evaluation, interrupt, checkpoint)
                    hooks.fit_ends(fit)
                except BaseException as error:
                    hooks.fit_fails(fit, error)
                    raise
        return history

    def _measured(self, hooks: Hooks) -> tuple[str, ...]:
        """The names of the history."""
        names = ("loss", *(metric.name for metric in self.options.metrics))
        examined = () if self.validation is None else names
        further = {
            RATE: self._records_rates(hooks),
            GRADIENT_NORM: self.options.gradient_norm,
        }
        recorded = tuple(name for name, is_wanted in further.items() if is_wanted)
        return (*names, *recorded, *(VALIDATION + name for name in examined))

    def _resume_options(self) -> dict[str, Any]:
        """The options that must be equal in a resumed fit and in the fit that it continues."""
        return {
            "optimizer": kind_of_optimizer(self.options.optimizer),
            "frozen": list(self.options.frozen),
            "batch_size": self.batch_size,
            "seed": str(self.seed),
            "drop_last": self.drop_last,
            "micro_batch": self.micro_batch,
            "shuffle": self.shuffle,
            "dtype": self.parameters.precision.name,
            "precision": self.parameters.precision.products,
        }

    def _begin(self, training: Training, hooks: Hooks, checkpoint: Checkpoint | None) -> History:
        """The history in the checkpoint if the fit is resumed, otherwise an empty one."""
        hooks.restore({})
        if checkpoint is None:
            return History()
        if not checkpoint.exists:
            # A fit that is interrupted in its first epoch is resumed from here.
            checkpoint.write(training, History(), hooks.states())
            return History()
        if not self.resume:
            return History()
        history, states = checkpoint.resume(training)
        hooks.restore(states)
        return history

    @contextmanager
    def _evaluation(self) -> Generator[Evaluation | None]:
        if self.validation is None:
            yield None
            return
        options = self.options
        evaluation = Evaluation(self.parameters, self.validation, options.loss, options.metrics)
        try:
            yield evaluation
        finally:
            evaluation.release()

    def _run_epochs(
        self,
        fit: RunningFit,
        hooks: Hooks,
        evaluation: Evaluation | None,
        interrupt: Interrupt,
        checkpoint: Checkpoint | None,
    ) -> None:
        training, history = fit.training, fit.history
        with (
            training.uploaded(self.train) as resident,
            self._uploaded_validation(evaluation) as validation,
            display(self.progress) as shown,
            self._snapshot(training) as snapshot,
        ):
            variables = [self.parameters.memories[name] for name in self.parameters.variables]
            are_finite = self.parameters.engine.finite_check(variables)
            for epoch in range(len(history), self.epochs):
                if fit.is_stopping:
                    break
                fit.epoch = epoch + 1
                hooks.epoch_begins(fit)
                started, skipped = time.perf_counter(), training.skipped_steps
                scale = training.loss_scale
                rates = training.rates if self._records_rates(hooks) else {}
                with _restored_after_errors(snapshot, epoch):
                    running = _Epoch(fit, hooks, resident, shown, are_finite)
                    recorded = self._epoch(running, interrupt)
                    skipped = training.skipped_steps - skipped
                    self._require_steps(len(recorded.losses) - skipped, scale, epoch)
                if interrupt.pressed:
                    break
                row = summary(recorded, self.options.metrics) | rates
                if training.scales_loss:
                    row["skipped_steps"] = skipped
                if evaluation is not None and self.validation is not None:
                    measured = evaluation.run(validation, len(self.validation))
                    found = summary(measured, self.options.metrics).items()
                    row |= {VALIDATION + name: value for name, value in found}
                history.add(row, time.perf_counter() - started)
                shown.epoch_ends(epoch + 1, self.epochs, row)
                if self._ends_after(fit, hooks, checkpoint):
                    break
            history.interrupted = interrupt.handle()
            _note_averages(training, history)

    def _records_rates(self, hooks: Hooks) -> bool:
        return self.record_rate or hooks.changes_rate

    @contextmanager
    def _uploaded_validation(self, evaluation: Evaluation | None) -> Generator[Examples]:
        """The validation data in the engine's memory."""
        if evaluation is None or self.validation is None:
            yield {}
            return
        with evaluation.uploaded(self.validation) as resident:
            yield resident

    def _ends_after(self, fit: RunningFit, hooks: Hooks, checkpoint: Checkpoint | None) -> bool:
        """Runs the callbacks and writes the checkpoint; whether one of them ends the fit."""
        _note_averages(fit.training, fit.history)
        hooks.epoch_ends(fit)
        if checkpoint is not None:
            checkpoint.write(fit.training, fit.history, hooks.states())
        return hooks.call_functions(fit.history) or fit.is_stopping

    def _epoch(self, running: _Epoch, interrupt: Interrupt) -> Recorded:
        """One epoch, or its training steps before Ctrl-C."""
        fit, shown = running.fit, running.shown
        training, epoch = fit.training, fit.epoch - 1
        batches = training.batches_of(
            self.train, self.seed, epoch, drop_last=self.drop_last, shuffled=self.shuffle
        )
        steps = sum(len(rows) for rows in batches)
        shown.epoch_begins(epoch + 1, self.epochs, steps)
        pieces: list[Recorded] = []
        done, before = 0, time.perf_counter()
        for piece in training.pieces(running.resident, batches, interrupt):
            finite = np.isfinite(piece.losses)
            if not finite.all():
                bad = int(np.flatnonzero(~finite)[0])
                what = f"the loss became {piece.losses[bad]}"
                raise self._non_finite(what, epoch, done + bad, steps)
            pieces.append(piece)
            done += len(piece.losses)
            now = time.perf_counter()
            rate = float(piece.examples.sum()) / max(now - before, 1e-6)
            shown.advance(len(piece.losses), summary(piece, self.options.metrics), rate)
            before = now
            running.hooks.steps_done(fit, len(piece.losses))
        # The loss of the last training step was computed before its update, which may overflow.
        if not running.are_finite():
            what = f"the parameter {self._not_finite()!r} overflowed"
            raise self._non_finite(what, epoch, done - 1, steps)
        return joined(pieces)

    def _require_steps(self, steps: int, scale: float | None, epoch: int) -> None:
        """Raises if all training steps of an epoch were skipped at the least scale of the loss.

        Args:
            steps: of the epoch, without the skipped ones.
            scale: at the beginning of the epoch.
            epoch: its number.
        """
        if not steps and scale == LEAST_SCALE:
            raise NonFiniteError(
                "all training steps of an epoch were skipped: gradients overflow in float16",
                facts=(
                    ("epoch", str(epoch + 1)),
                    ("loss scale", f"{LEAST_SCALE:g}, the least"),
                    ("model", "restored to its state before this epoch"),
                ),
                where="fit",
                advice=_advice(self.parameters.precision),
            )

    def _non_finite(self, what: str, epoch: int, step: int, steps: int) -> NonFiniteError:
        return NonFiniteError(
            f"{what} in training step {epoch * steps + step + 1}",
            facts=(
                ("epoch", f"{epoch + 1}, training step {step + 1} of {steps}"),
                ("data", _first_fault(self.train)),
                ("model", "restored to its state before this epoch"),
            ),
            where="fit",
            advice=_advice(self.parameters.precision),
        )

    def _not_finite(self) -> str:
        """The first parameter that is not finite."""
        parameters = self.parameters
        values = parameters.read(list(parameters.variables))
        return next(name for name, value in values.items() if not np.isfinite(value).all())

    @contextmanager
    def _snapshot(self, training: Training) -> Generator[Snapshot]:
        parameters = self.parameters
        snapshot = Snapshot(parameters.engine, training.memories(), parameters.lock)
        try:
            yield snapshot
        finally:
            snapshot.release()


@contextmanager
def _restored_after_errors(snapshot: Snapshot, epoch: int) -> Generator[None]:
    """Restores the model if its values become infinite or NaN, or the engine fails."""
    try:
        snapshot.take()
        yield
    except NonFiniteError:
        snapshot.restore()
        raise
    except EngineError as error:
        try:
            snapshot.restore()
            state = f"restored to its state before epoch {epoch + 1}"
        except EngineError as failure:
            state = f"not restored ({failure.problem}): load it from a file"
        error.facts = (*error.facts, ("model", state))
        raise


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


def _advice(precision: Precision) -> str:
    """What to do about values that are not finite."""
    if precision.dtype == float16:
        return (
            "In float16, squares of small gradients become zero: train with dtype='mixed-float16' "
            "or 'mixed-bfloat16'."
        )
    usual = (
        "ower the learning rate, clip the gradients (clip=lm.ClipGlobalNorm(1.0)), or look for NaN "
        "in the data."
    )
    if precision.half == float16:
        range_ = "float16 holds numbers up to 65,504, and bfloat16 all of float32's range"
        return f"{range_}: take dtype='mixed-bfloat16', or l{usual}"
    return f"L{usual}"
