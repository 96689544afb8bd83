"""Fitting: epochs of training steps with validation, checkpoints, progress and Ctrl-C."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import float16
from lamina.data import Dataset, Stream
from lamina.errors import DataError, DefinitionError, EngineError, LaminaError, NonFiniteError
from lamina.learning.protocols import Metric, TrainingOptions
from lamina.runtime import Parameters
from lamina.runtime.memories import Snapshot
from lamina.step.derive import GRADIENT_NORM
from lamina.step.loss_scaling import LEAST_SCALE
from lamina.step.precision import Precision
from lamina.training.batches import Recorded, joined
from lamina.training.callbacks.callback import RunningFit, TrainedModel
from lamina.training.callbacks.hooks import AnyCallback, Hooks, check_callbacks
from lamina.training.checkpoints import Begun, Checkpoint, kind_of_optimizer
from lamina.training.epochs import (
    ALL_FINITE,
    Epochs,
    EpochsOfDataset,
    EpochsOfStream,
    no_whole_batch,
    require_epochs,
)
from lamina.training.evaluation import directions_of, evaluating, summary
from lamina.training.history import VALIDATION, History
from lamina.training.interrupt import Interrupt, held_interrupts
from lamina.training.progress import Bar, display
from lamina.training.rates import warn_of_ends
from lamina.training.steps import TrainingSteps
from lamina.training.training import Training

if TYPE_CHECKING:
    from lamina.data.coding import Coding
    from lamina.training.population import PopulationTraining

# What Ctrl-C does: `fit` returns the history so far, or raises KeyboardInterrupt at its end.
RETURN = "return"
ON_INTERRUPT = (RETURN, "raise")
# The training steps of an epoch that loss scaling skipped, in the history.
SKIPPED_STEPS = "skipped_steps"


@final
@frozen_dataclass
class Fit:
    """One fit of a model, which `run` carries out; it has the options of `Model.fit`."""

    model: TrainedModel
    parameters: Parameters
    options: TrainingOptions
    train: Dataset | Stream
    validation: Dataset | Stream | None
    coding: Coding | None
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
    checkpoint_steps: int | None
    resume: bool
    on_interrupt: str

    def __post_init__(self) -> None:
        check_callbacks(self.callbacks)
        if self.drop_last and isinstance(self.train, Dataset) and len(self.train) < self.batch_size:
            raise no_whole_batch(len(self.train), self.batch_size, where="fit")
        require_epochs(self.train, self.epochs)
        if self.validation is not None:
            require_epochs(self.validation, self.epochs, "the validation data")
        if self.checkpoint is None and self.checkpoint_steps is not None:
            problem = "there is no file for a checkpoint after so many training steps"
            raise _no_checkpoint(problem, "Name the file that the fit shall write.")
        if self.checkpoint is None and self.resume:
            raise nothing_to_resume()

    def run(self) -> History:
        """Trains until all epochs are done; returns their history.

        Ctrl-C ends it between two training steps; the model keeps the parameters trained so far.
        After an EngineError or a NonFiniteError it has the values of the last good epoch.
        """
        checkpoint = None
        if self.checkpoint is not None:
            checkpoint = Checkpoint(self.checkpoint, self.parameters, self._resume_options())
        resumed = self.resume and checkpoint is not None and checkpoint.exists
        begun = checkpoint.begun() if checkpoint is not None and resumed else Begun()
        hooks = Hooks(self.callbacks)
        order = self.seed if self.shuffle else None
        if isinstance(self.train, Dataset):
            epochs = EpochsOfDataset(self.train, order)
        else:
            steps_done = 0 if begun.recorded is None else len(begun.recorded.losses)
            epochs = EpochsOfStream(
                self.train,
                order,
                self.epochs,
                begun.position,
                (begun.epochs, steps_done),
                keeps_states=self.checkpoint is not None,
                seconds=hooks.waits_at_most,
            )
        with ExitStack() as stack:
            stack.enter_context(closing(epochs))
            training = stack.enter_context(
                Training(
                    self.parameters,
                    self.options,
                    epochs.sample,
                    begun.batch_size or epochs.batch_size(self.batch_size),
                    seed=self.seed,
                    micro_batch=self.micro_batch,
                )
            )
            stack.enter_context(coded(self.parameters, self.coding, training))
            history = self._begin(training, hooks, checkpoint)
            better = measures_of(
                training,
                self.options,
                rates=training.rates if self.record_rate or hooks.changes_rate else (),
                is_validated=self.validation is not None,
            )
            history.measured = tuple(better)
            interrupt = stack.enter_context(held_interrupts())
            ready = (lambda: self.model), (lambda: training)
            fit = RunningFit(*ready, history, better, self.epochs, interrupt)
            try:
                hooks.call("fit_begins", fit)
                with ExitStack() as within:
                    measure = self._measure(within, interrupt)
                    within.enter_context(epochs.given_to(training, drop_last=self.drop_last))
                    shown = within.enter_context(display(self.progress))
                    run = _Run(fit, hooks, interrupt, checkpoint, epochs, shown, measure)
                    self._run_epochs(run, begun)
                hooks.call("fit_ends", fit)
            except BaseException as error:
                hooks.fit_fails(fit, error)
                raise
        say_of_end(interrupt, len(history), self.epochs)
        return history

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
        if checkpoint is not None and not checkpoint.exists:
            # A fit that is interrupted in its first epoch is resumed from here.
            checkpoint.write(training, History(), hooks.states(), Begun())
        elif checkpoint is not None and self.resume:
            return checkpoint.resume(training, hooks)
        return History()

    def _measure(self, stack: ExitStack, interrupt: Interrupt) -> Callable[[], Recorded] | None:
        """A function that evaluates the model on the validation data."""
        if self.validation is None:
            return None
        context = evaluating(
            self.parameters,
            *(self.validation, self.options.loss, self.options.metrics),
            lambda: interrupt.is_ending,
            measured=f"{VALIDATION}loss",
        )
        with of_validation():
            return stack.enter_context(context)

    def _run_epochs(self, run: _Run, begun: Begun) -> None:
        fit, hooks, interrupt, epochs = run.fit, run.hooks, run.interrupt, run.epochs
        training, history, parameters = fit.training, fit.history, self.parameters
        snapshot = Snapshot(parameters.engine, training.memories(), parameters.lock)
        with closing(snapshot):
            is_known = self._warn_of_schedules(epochs.steps)
            variables = [parameters.memories[name] for name in parameters.variables]
            are_finite = parameters.engine.finite_check(variables)
            for number in range(len(history), self.epochs):
                if fit.is_stopping or interrupt.is_ending:
                    break
                fit.epoch = number + 1
                started = time.perf_counter()
                if begun.recorded is None:
                    hooks.call("epoch_begins", fit)
                    rates = training.rates if self.record_rate or hooks.changes_rate else {}
                    begun = Begun(skipped=training.skipped_steps, rates=rates)
                with _restored_after_errors(snapshot, number):
                    scale = training.loss_scale
                    recorded = self._epoch(run, number, begun)
                    # The loss of the last training step was computed before its update, which may
                    # overflow.
                    if not are_finite():
                        read = parameters.read(list(parameters.variables)).items()
                        name = next(name for name, value in read if not np.isfinite(value).all())
                        what, last = f"the parameter {name!r} overflowed", len(recorded.losses) - 1
                        raise self._non_finite(what, epochs, number, last)
                    skipped = training.skipped_steps - begun.skipped
                    self._require_steps(len(recorded.losses) - skipped, scale, number)
                if interrupt.is_ending:
                    break
                is_known = is_known or self._warn_of_schedules(epochs.steps, measured=True)
                row = self._row(run, begun, recorded)
                begun = Begun()
                if row is None:
                    break
                history.add(row, time.perf_counter() - started)
                run.shown.epoch_ends(number + 1, self.epochs, row)
                note_averages(training, history)
                hooks.epoch_ends(fit)
                run.save(Begun(epochs.position))
                if hooks.call_functions(history) or fit.is_stopping:
                    break
            history.interrupted = interrupt.is_ending and len(history) < self.epochs
            if self.on_interrupt == RETURN:
                interrupt.handle()
            note_averages(training, history)

    def _warn_of_schedules(self, steps: int | None, *, measured: bool = False) -> bool:
        """Warns of schedules that end before the fit; whether an epoch's steps are known."""
        if steps is None:
            return False
        warn_of_ends(self.options.optimizer, steps * self.epochs, self.epochs, measured=measured)
        return True

    def _row(self, run: _Run, begun: Begun, recorded: Recorded) -> dict[str, Any] | None:
        """The values of an epoch for the history; None if the fit ends during its validation."""
        measured = None if run.measure is None else run.measure()
        if measured is not None and run.interrupt.is_ending and isinstance(self.validation, Stream):
            return None
        training = run.fit.training
        skipped = training.skipped_steps if training.scales_loss else None
        return row_of_epoch(self.options.metrics, begun, skipped, recorded, measured)

    def _epoch(self, run: _Run, number: int, begun: Begun) -> Recorded:
        """One epoch, or its training steps before Ctrl-C."""
        epochs, shown, interrupt, training = run.epochs, run.shown, run.interrupt, run.fit.training
        before = begun.recorded
        pieces = [] if before is None else [replace(before, terms=training.terms)]
        done = sum(len(piece.losses) for piece in pieces)
        saved, started = done, time.perf_counter()
        groups = epochs.groups(number, done, lambda: interrupt.is_ending)
        shown.epoch_begins(number + 1, self.epochs, epochs.steps)
        for piece in training.pieces(groups, interrupt):
            finite = np.isfinite(piece.losses)
            if not finite.all():
                bad = int(np.flatnonzero(~finite)[0])
                loss = piece.losses[bad]
                advice = getattr(self.options.loss, "of_infinity", "") if loss == math.inf else ""
                what = f"the loss became {loss}"
                raise self._non_finite(what, epochs, number, done + bad, advice)
            pieces.append(piece)
            done += len(piece.losses)
            epochs.advance(len(piece.losses))
            now = time.perf_counter()
            rate = float(piece.examples.sum()) / max(now - started, 1e-6)
            shown.advance(len(piece.losses), summary(piece, self.options.metrics), rate)
            started = now
            run.hooks.call("steps_done", run.fit, len(piece.losses))
            if self.checkpoint_steps is not None and done - saved >= self.checkpoint_steps:
                pieces = [joined(pieces)]
                run.save(replace(begun, position=epochs.position, recorded=pieces[0]))
                saved = done
        if not done and not interrupt.is_ending:
            raise no_steps(self.batch_size)
        return joined(pieces)

    def _require_steps(self, steps: int, scale: float | None, epoch: int) -> None:
        """Raises if all training steps of an epoch were skipped at the least scale of the loss."""
        if not steps and scale == LEAST_SCALE:
            raise NonFiniteError(
                "all training steps of an epoch were skipped: gradients overflow in float16",
                facts=(
                    ("epoch", str(epoch + 1)),
                    ("loss scale", f"{LEAST_SCALE:g}, the least"),
                    ("model", "restored to its state before this epoch"),
                ),
                where="fit",
                advice=_advice_on_non_finite(self.parameters.precision),
            )

    def _non_finite(
        self, what: str, epochs: Epochs, epoch: int, step: int, advice: str = ""
    ) -> NonFiniteError:
        steps, fault, number = epochs.steps, epochs.fault(), f"training step {step + 1}"
        if fault != ALL_FINITE:
            advice = CORRECT_DATA
        return NonFiniteError(
            f"{what} in {number} of epoch {epoch + 1}"
            if steps is None
            else f"{what} in training step {epoch * steps + step + 1}",
            facts=(
                ("epoch", f"{epoch + 1}, {number}" + (f" of {steps}" if steps else "")),
                ("data", fault),
                ("model", "restored to its state before this epoch"),
            ),
            where="fit",
            advice=advice or _advice_on_non_finite(self.parameters.precision),
        )


def no_steps(batch_size: int) -> DataError:
    """The error for an epoch of a stream without a training step."""
    return DataError(
        "an epoch of the stream has no training step",
        facts=(("batch_size", str(batch_size)),),
        where="fit",
        advice="Leave drop_last out, or take a smaller batch_size.",
    )


def nothing_to_resume() -> DefinitionError:
    """The error for a fit that is resumed without the name of a file."""
    advice = "Name the checkpoint file that the earlier fit wrote."
    return _no_checkpoint("there is nothing to resume from", advice)


def _no_checkpoint(problem: str, advice: str) -> DefinitionError:
    facts = (("expected", "checkpoint=PATH"), ("found", "None"))
    return DefinitionError(problem, facts=facts, where="fit", advice=advice)


@frozen_dataclass
class _Run:
    """What all epochs of a fit share."""

    fit: RunningFit
    hooks: Hooks
    interrupt: Interrupt
    checkpoint: Checkpoint | None
    epochs: Epochs
    shown: Bar
    measure: Callable[[], Recorded] | None

    def save(self, begun: Begun) -> None:
        """Writes the checkpoint, if there is one; `begun` is the epoch that is not finished."""
        if self.checkpoint is not None:
            states = self.hooks.states()
            self.checkpoint.write(self.fit.training, self.fit.history, states, begun)


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


@contextmanager
def coded(
    parameters: Parameters, coding: Coding | None, training: Training | PopulationTraining
) -> Generator[None]:
    """Gives a model the coding of the data, unless no training step changes the model."""
    before, parameters.coding = parameters.coding, coding
    try:
        yield
    finally:
        with suppress(EngineError):
            if not np.any(training.steps_done):
                parameters.coding = before


def measures_of(
    training: TrainingSteps, options: TrainingOptions, *, rates: Iterable[str], is_validated: bool
) -> dict[str, bool | None]:
    """The names of the history, and whether smaller values are better; None if nobody says.

    Args:
        rates: the names of the learning rates that it has.
    """
    measured = directions_of((term.name for term in training.terms if term.name), options.metrics)
    further = [*rates]
    further += [GRADIENT_NORM] * options.gradient_norm
    further += [SKIPPED_STEPS] * training.scales_loss
    measures = [*measured.items(), *((name, None) for name in further)]
    if is_validated:
        measures += [(VALIDATION + name, says) for name, says in measured.items()]
    names = [name for name, _ in measures]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise DefinitionError(
            f"two measures of the history have the name {repeated!r}",
            facts=(("measured", ", ".join(names)),),
            where="fit",
            advice="Give another name to the output or to the metric.",
        )
    return dict(measures)


def row_of_epoch(
    metrics: Sequence[Metric],
    begun: Begun,
    skipped: int | None,
    recorded: Recorded,
    measured: Recorded | None,
) -> dict[str, Any]:
    """The values of an epoch for the history.

    Args:
        begun: what was known when the epoch began.
        skipped: how many training steps were skipped by its end, if the loss is scaled.
        recorded, measured: of its training steps, and on the validation data, if there is any.
    """
    row = {**summary(recorded, metrics), **begun.rates}
    if skipped is not None:
        row[SKIPPED_STEPS] = skipped - begun.skipped
    if measured is not None:
        row |= {VALIDATION + name: value for name, value in summary(measured, metrics).items()}
    return row


@contextmanager
def of_validation() -> Generator[None]:
    """Errors in the block say that they are about the validation data."""
    try:
        yield
    except LaminaError as error:
        error.facts = (*error.facts, ("data", "validation"))
        raise


def say_of_end(interrupt: Interrupt, done: int, epochs: int) -> None:
    """Says on standard error that Ctrl-C ended a fit, if it did."""
    if interrupt.handled:
        interrupt.say(
            f"Ctrl-C: the fit ended after {done} of {epochs} epochs, and the program goes on. "
            "Press Ctrl-C again within a second to end the program."
        )


def note_averages(training: Training, history: History) -> None:
    """Adds the averages that the optimizer keeps to the history."""
    if training.has_averages:
        history.averaged_parameters = training.averaged_parameters()


CORRECT_DATA = (
    "Correct that number, or leave out the example. In a table, missing numbers are filled in by "
    "lm.data.from_frame(..., gaps='mean')."
)


def _advice_on_non_finite(precision: Precision) -> str:
    """What to do about values that are not finite."""
    if precision.dtype == float16:
        return (
            "In float16, squares of small gradients become zero: train with dtype='mixed-float16' "
            "or 'mixed-bfloat16'."
        )
    usual = (
        "ower the learning rate, clip the gradients (clip=lm.ClipGlobalNorm(1.0)), or look in the "
        "data for batches whose targets are all ignored."
    )
    if precision.half == float16:
        range_ = "float16 holds numbers up to 65,504, and bfloat16 all of float32's range"
        return f"{range_}: take dtype='mixed-bfloat16', or l{usual}"
    return f"L{usual}"
