"""Fitting a population: epochs of all members together, and a fit of each for its callbacks."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final, overload

import numpy as np

from lamina.base.records import cached_property, frozen_dataclass
from lamina.base.shapes import Array
from lamina.checks.origin import warn
from lamina.data import Coding, Dataset, Stream
from lamina.data.positions import Position
from lamina.errors import DefinitionError, NonFiniteError
from lamina.learning.protocols import TrainingOptions
from lamina.reports import table_text, value_text
from lamina.runtime import Parameters
from lamina.runtime.memories import Snapshot
from lamina.training.batches import Recorded, joined
from lamina.training.callbacks.callback import RunningFit, TrainedModel
from lamina.training.callbacks.hooks import AnyCallback, Hooks, check_callbacks
from lamina.training.checkpoints import Begun, Checkpoint, MemberNotes, kind_of_optimizer
from lamina.training.epochs import ALL_FINITE, EpochsOfStream, Turn, no_whole_batch, require_epochs
from lamina.training.evaluation import evaluating_members
from lamina.training.fit import (
    CORRECT_DATA,
    coded,
    measures_of,
    no_steps,
    note_averages,
    nothing_to_resume,
    of_validation,
    row_of_epoch,
    say_of_end,
)
from lamina.training.history import History
from lamina.training.interrupt import Interrupt, held_interrupts
from lamina.training.population import EpochsOfMembers, PopulationTraining
from lamina.training.progress import Bar, display


@final
@frozen_dataclass
class Histories(Sequence[History]):
    """The histories of the members of a population: `histories[3]`, `histories["loss"]`.

    Attributes:
        members: the history of each member.
        failures: the errors of members that were stopped because their values became infinite or
            NaN, by number.
        callbacks: the callbacks of each member, copies of those of the fit.
    """

    members: tuple[History, ...]
    failures: Mapping[int, NonFiniteError]
    callbacks: tuple[Sequence[AnyCallback], ...] = ()

    def __len__(self) -> int:
        return len(self.members)

    @overload
    def __getitem__(self, key: int) -> History: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[History]: ...
    @overload
    def __getitem__(self, key: str) -> Array: ...
    def __getitem__(self, key: int | slice | str) -> Any:
        """The history of a member; or a measure, float64 (members, epochs), NaN after its end."""
        if not isinstance(key, str):
            return self.members[key]
        rows = [history[key] for history in self.members]
        values = np.full((len(rows), max(map(len, rows))), np.nan)
        for row, given in zip(values, rows, strict=True):
            row[: len(given)] = given
        return values

    def __str__(self) -> str:
        """The last epoch of each member, as a table."""
        names = list(dict.fromkeys(name for history in self.members for name in history))
        rows = [
            (
                str(number),
                str(len(history)),
                *(value_text(history[name][-1]) if name in history else "" for name in names),
            )
            for number, history in enumerate(self.members)
        ]
        return table_text(("member", "epochs", *names), rows, align="r")

    __repr__ = __str__


@final
class _Member:
    """The fit of one member."""

    def __init__(self, fit: RunningFit, hooks: Hooks) -> None:
        self.fit, self.hooks = fit, hooks
        self.begun = Begun()
        # Why its values became infinite or NaN, if they did, and where the data is not finite.
        self.failure = self.fault = ""


@final
@frozen_dataclass
class PopulationFit:
    """One fit of members of one shape, which `run` carries out, with options of `Population.fit`.

    Attributes:
        models: makes the model of a member, by its number in the population.
        numbers: the numbers of these members in the population.
        stream_seed: the seed of the order of a stream.
    """

    models: Callable[[int], TrainedModel]
    numbers: Array
    parameters: Parameters
    options: Sequence[TrainingOptions]
    train: Dataset | Stream
    coding: Coding | None
    subsets: Sequence[Array] | None
    validation: Dataset | Stream | None
    validation_subsets: Sequence[Array] | None
    epochs: int
    batch_size: int
    seeds: Array
    stream_seed: int
    drop_last: bool
    shuffle: bool
    record_rate: bool
    progress: bool | None
    callbacks: Sequence[AnyCallback]
    checkpoint: str | os.PathLike[str] | None
    resume: bool

    def __post_init__(self) -> None:
        check_callbacks(self.callbacks)
        if self.drop_last and isinstance(self.train, Dataset):
            each = map(len, self.subsets or [self.train])
            if (least := min(each)) < self.batch_size:
                raise no_whole_batch(least, self.batch_size, where="fit")
        require_epochs(self.train, self.epochs)
        if self.validation is not None:
            require_epochs(self.validation, self.epochs, "the validation data")
        if self.resume and self.checkpoint is None:
            raise nothing_to_resume()

    def run(self) -> Histories:
        """Trains until all epochs are done, or all members have stopped."""
        checkpoint, begun = None, Begun()
        if self.checkpoint is not None:
            checkpoint = Checkpoint(self.checkpoint, self.parameters, self._resume_options())
            if isinstance(self.train, Stream) and self.resume and checkpoint.exists:
                begun = checkpoint.begun()
        with ExitStack() as stack:
            epochs = stack.enter_context(closing(self._epochs_after(begun)))
            size = begun.batch_size or epochs.batch_size(self.batch_size)
            given = self.parameters, self.options, epochs.sample, size
            training = stack.enter_context(PopulationTraining(*given, seeds=self.seeds))
            stack.enter_context(coded(self.parameters, self.coding, training))
            interrupt = stack.enter_context(held_interrupts())
            members, running = self._begin(training, interrupt, checkpoint)
            try:
                for member in members:
                    member.hooks.call("fit_begins", member.fit)
                measure = stack.enter_context(self._measure(interrupt))
                stack.enter_context(epochs.given_to(training, drop_last=self.drop_last))
                shown = stack.enter_context(display(self.progress))
                memories, lock = training.memories(), self.parameters.lock
                snapshot = stack.enter_context(
                    closing(Snapshot(self.parameters.engine, memories, lock, len(members)))
                )
                variables = [self.parameters.memories[n] for n in self.parameters.variables]
                are_finite = self.parameters.engine.finite_check(variables)
                # Members that are running have as many epochs.
                first = max((len(member.fit.history) for member in running.values()), default=0)
                run = _Run(training, epochs, interrupt, shown, snapshot, are_finite, measure)
                done = first
                while done < self.epochs and running and not interrupt.is_ending:
                    done += self._epochs(run, done, running)
                    if checkpoint is not None and not interrupt.is_ending:
                        _save(checkpoint, training, members, running, epochs.position)
                for member in members:
                    if training.has_averages:
                        note_averages(member.fit.training, member.fit.history)
                    member.hooks.call("fit_ends", member.fit)
            except BaseException as error:
                for member in members:
                    member.hooks.fit_fails(member.fit, error)
                raise
            for member in running.values():
                history = member.fit.history
                history.interrupted = interrupt.is_ending and len(history) < self.epochs
            interrupt.handle()
        done = max(len(member.fit.history) for member in members)
        say_of_end(interrupt, done, self.epochs)
        each = zip(self.numbers.tolist(), members, strict=True)
        failures = {number: _failure(number, member) for number, member in each if member.failure}
        histories = tuple(member.fit.history for member in members)
        return Histories(histories, failures, tuple(member.hooks.given for member in members))

    def _resume_options(self) -> dict[str, Any]:
        """The options that must be equal in a resumed fit and in the fit that it continues."""
        subsets = None
        if self.subsets is not None:
            subsets = hashlib.sha256(b"".join(map(np.ndarray.tobytes, self.subsets))).hexdigest()
        return {
            "members": len(self.numbers),
            "optimizer": kind_of_optimizer(self.options[0].optimizer),
            "frozen": list(self.options[0].frozen),
            "batch_size": self.batch_size,
            "seeds": str(self.seeds.tolist()),
            "subsets": subsets,
            "drop_last": self.drop_last,
            "shuffle": self.shuffle,
            "dtype": self.parameters.precision.name,
            "precision": self.parameters.precision.products,
        }

    def _begin(
        self, training: PopulationTraining, interrupt: Interrupt, checkpoint: Checkpoint | None
    ) -> tuple[list[_Member], dict[int, _Member]]:
        """The fits of all members, and those that run; as in the checkpoint of a resumed fit."""
        numbers = range(len(self.numbers))
        hooks = [Hooks(list(map(_copied, self.callbacks))) for _ in numbers]
        histories, running = [History() for _ in numbers], list(numbers)
        failures = [""] * len(hooks)
        if checkpoint is not None and checkpoint.exists and self.resume:
            saved = checkpoint.resume_members(training, hooks)
            histories = [notes.as_history() for notes in saved]
            failures = [notes.failure for notes in saved]
            running = [number for number, notes in enumerate(saved) if not notes.has_ended]
        else:
            for own in hooks:
                own.restore({})
        members = [
            self._member(n, training, interrupt, own, history)
            for n, own, history in zip(numbers, hooks, histories, strict=True)
        ]
        for member, failure in zip(members, failures, strict=True):
            member.failure = failure
        if checkpoint is not None and not checkpoint.exists:
            # A fit that is interrupted in its first epoch is resumed from here.
            _save(checkpoint, training, members, dict(enumerate(members)))
        return members, {number: members[number] for number in running}

    def _member(
        self,
        number: int,
        training: PopulationTraining,
        interrupt: Interrupt,
        hooks: Hooks,
        history: History,
    ) -> _Member:
        """The fit of a member, with callbacks of its own."""
        options = self.options[number % len(self.options)]
        rates = training.rates if self.record_rate or hooks.changes_rate else ()
        is_validated = self.validation is not None
        better = measures_of(training, options, rates=rates, is_validated=is_validated)
        history.measured = tuple(better)
        ready = partial(self.models, int(self.numbers[number])), partial(training.member, number)
        given = history, better, self.epochs, interrupt, int(self.numbers[number])
        return _Member(RunningFit(*ready, *given), hooks)

    def _epochs_after(self, begun: Begun) -> EpochsOfMembers | EpochsOfStream:
        """The epochs of the data. Those of a stream have the same order for all members."""
        if isinstance(self.train, Dataset):
            return EpochsOfMembers(self.train, self.seeds if self.shuffle else None, self.subsets)
        order, done = self.stream_seed if self.shuffle else None, (begun.epochs, 0)
        waits, keeps = Hooks(self.callbacks).waits_at_most, self.checkpoint is not None
        given = self.train, order, self.epochs, begun.position, done
        return EpochsOfStream(*given, keeps_states=keeps, seconds=waits)

    @contextmanager
    def _measure(
        self, interrupt: Interrupt
    ) -> Generator[Callable[[Sequence[int]], dict[int, Recorded]]]:
        """A function that evaluates some members on the validation data."""
        if self.validation is None:
            yield lambda members: {}
            return
        options, stopped = self.options[0], lambda: interrupt.is_ending
        given = self.parameters, self.validation, options.loss, options.metrics, stopped
        with ExitStack() as stack:
            made = evaluating_members(*given, subsets=self.validation_subsets)
            with of_validation():
                measure = stack.enter_context(made)
            yield measure

    def _epochs(self, run: _Run, epoch: int, running: dict[int, _Member]) -> int:
        """Trains the running members for some epochs; returns how many.

        Several short epochs are trained at once if nothing but the history is needed in between. If
        one of them ends a member's fit, that member is trained again up to it.
        """
        count = min(run.at_once if self._may_join(run, running) else 1, self.epochs - epoch)
        run.snapshot.take()
        began = time.perf_counter()
        for member in running.values():
            fit, hooks = member.fit, member.hooks
            if not run.is_repeating:
                fit.epoch = epoch + 1
                hooks.call("epoch_begins", fit)
            rates = fit.training.rates if self.record_rate or hooks.changes_rate else {}
            skipped = fit.training.skipped_steps if run.training.scales_loss else 0
            member.begun = Begun(skipped=skipped, rates=rates)
        recorded = self._train(run, epoch, count, running)
        if count > 1 and not run.interrupt.is_ending and not run.are_finite_with(recorded):
            # The epoch in which values became infinite or NaN is found one by one.
            run.snapshot.restore()
            run.at_once, run.is_repeating = 1, True
            return 0
        run.is_repeating = False
        if run.interrupt.is_ending:
            count = min(map(len, recorded.values()), default=0) if count > 1 else 0
        elif count == 1:
            self._stop_failed(epoch, running, recorded, run)
        measured = run.measure(list(running)) if count else {}
        if run.interrupt.is_ending and isinstance(self.validation, Stream):
            # The stream may have been read in part.
            count = 0
        seconds = (time.perf_counter() - began) / max(count, 1)
        # The epochs of members whose fit has ended.
        ended: dict[int, int] = {}
        for number, member in running.items():
            for at, part in enumerate(recorded[number][:count]):
                if at:
                    member.fit.epoch = epoch + at + 1
                    member.hooks.call("epoch_begins", member.fit)
                if self._ends(run, member, part, measured.get(number), seconds):
                    ended[number] = at + 1
                    break
        for epochs in set(ended.values()) - {count}:
            again = {n: running[n] for n, last in ended.items() if last == epochs}
            run.snapshot.restore(np.array([*again], np.int64))
            # Ctrl-C must not leave them between two epochs.
            self._train(replace(run, interrupt=Interrupt()), epoch, epochs, again)
        if count:
            run.shown.epoch_ends(epoch + count, self.epochs, _mean_row(list(running.values())))
        for number in ended:
            del running[number]
        if time.perf_counter() - began < BLOCK_SECONDS:
            run.at_once = min(2 * run.at_once, MOST_EPOCHS_AT_ONCE)
        return max(count, 1)

    def _may_join(self, run: _Run, running: Mapping[int, _Member]) -> bool:
        """Whether nothing but the history is needed between two epochs."""
        if self.validation is not None or self.checkpoint is not None or self.record_rate:
            return False
        if isinstance(self.train, Stream):
            return False
        if run.training.scales_loss or run.has_averages:
            return False
        hooks = (member.hooks for member in running.values())
        return all(own.read_history_only and not own.changes_rate for own in hooks)

    def _train(
        self, run: _Run, epoch: int, count: int, members: Mapping[int, _Member]
    ) -> dict[int, list[Recorded]]:
        """Trains members for some epochs; returns what is recorded of each epoch, by number."""
        numbers, interrupt = np.array([*members], np.int64), run.interrupt
        turns = run.epochs.turns(numbers, epoch, count, lambda: interrupt.is_ending)
        known = [turn.steps for turn in turns if turn.steps is not None]
        total = count * sum(known) if len(known) == len(turns) else None
        run.shown.epoch_begins(epoch + 1, self.epochs, total)
        recorded: dict[int, list[Recorded]] = {}
        for turn in turns:
            how = turn.members, turn.groups, interrupt
            pieces = run.training.pieces_of(*how, are_there=turn.are_there)
            recorded |= self._recorded(run, turn, pieces)
        return recorded

    def _recorded(
        self, run: _Run, turn: Turn, pieces: Iterable[Recorded]
    ) -> dict[int, list[Recorded]]:
        """What is recorded of members in each epoch, by number."""
        members = turn.members
        started, done, taken = time.perf_counter(), 0, list[Recorded]()
        for piece in pieces:
            taken.append(piece)
            done += len(members) * int(piece.examples.sum())
            speed = done / max(time.perf_counter() - started, 1e-6)
            row = {"loss": float(piece.losses.mean(dtype=np.float64))}
            run.shown.advance(len(piece.examples), row, speed)
            run.epochs.advance(len(piece.examples))
        if not taken:
            if not run.interrupt.is_ending:
                raise no_steps(self.batch_size)
            return {number: [] for number in members.tolist()}
        whole = joined(taken)
        each = enumerate(members.tolist())
        # A stream has one epoch at a time.
        steps = len(whole.examples) if isinstance(self.train, Stream) else turn.steps or 0
        return {number: whole.of_member(at).by_steps(steps) for at, number in each}

    def _stop_failed(
        self,
        epoch: int,
        running: dict[int, _Member],
        recorded: Mapping[int, Sequence[Recorded]],
        run: _Run,
    ) -> None:
        """Restores and stops members whose values became infinite or NaN; the others go on."""
        failed: list[int] = []
        finite: dict[str, Array] = {}
        if not run.are_finite():
            values = self.parameters.read(list(self.parameters.variables))
            finite = {
                name: np.asarray(np.isfinite(array).reshape(len(array), -1).all(1))
                for name, array in values.items()
            }
        for number, member in running.items():
            losses = recorded[number][0].losses
            bad = np.flatnonzero(~np.isfinite(losses))
            broken = next((name for name, each in finite.items() if not each[number]), None)
            if len(bad):
                what = f"the loss became {losses[bad[0]]} in training step {bad[0] + 1}"
            elif broken is not None:
                what = f"the parameter {broken!r} overflowed"
            else:
                continue
            failed.append(number)
            member.failure = f"{what} of epoch {epoch + 1}"
        if not failed:
            return
        run.snapshot.restore(np.array(failed, np.int64))
        fault = run.epochs.fault()
        for number in failed:
            member = running.pop(number)
            member.fault = "" if fault == ALL_FINITE else fault
            error = _failure(int(self.numbers[number]), member)
            warn(f"{error.problem}: {fault}" if member.fault else error.problem)
            member.hooks.fit_fails(member.fit, error)

    def _ends(
        self,
        run: _Run,
        member: _Member,
        recorded: Recorded,
        measured: Recorded | None,
        seconds: float,
    ) -> bool:
        """Adds an epoch to a member's history, calls its callbacks; whether its fit ends."""
        fit, hooks, metrics = member.fit, member.hooks, self.options[0].metrics
        skipped = fit.training.skipped_steps if run.training.scales_loss else None
        fit.history.add(row_of_epoch(metrics, member.begun, skipped, recorded, measured), seconds)
        if run.has_averages:
            note_averages(fit.training, fit.history)
        hooks.epoch_ends(fit)
        return hooks.call_functions(fit.history) or fit.is_stopping


# Epochs are trained together that take about so many seconds, and at most so many.
BLOCK_SECONDS, MOST_EPOCHS_AT_ONCE = 0.05, 64


@final
@dataclass
class _Run:
    """What all epochs of a fit share.

    Attributes:
        at_once: the epochs that are trained together.
        is_repeating: whether an epoch that has begun is trained again.
    """

    training: PopulationTraining
    epochs: EpochsOfMembers | EpochsOfStream
    interrupt: Interrupt
    shown: Bar
    snapshot: Snapshot
    are_finite: Callable[[], bool]
    measure: Callable[[Sequence[int]], dict[int, Recorded]]
    at_once: int = 1
    is_repeating: bool = False

    @cached_property
    def has_averages(self) -> bool:
        """Whether the optimizer keeps averages of parameters."""
        return self.training.has_averages

    def are_finite_with(self, recorded: Mapping[int, Sequence[Recorded]]) -> bool:
        """Whether all parameters and losses are finite."""
        parts = (part for each in recorded.values() for part in each)
        return self.are_finite() and all(np.isfinite(part.losses).all() for part in parts)


def fitted_together(fits: Sequence[PopulationFit]) -> Histories:
    """Carries out the fits of the shapes of a population, one after the other, until Ctrl-C."""
    histories = {number: History() for fit in fits for number in fit.numbers.tolist()}
    failures: dict[int, NonFiniteError] = {}
    callbacks: dict[int, Sequence[AnyCallback]] = dict.fromkeys(histories, ())
    for fit in fits:
        of_shape, numbers = fit.run(), fit.numbers.tolist()
        histories |= zip(numbers, of_shape, strict=True)
        callbacks |= zip(numbers, of_shape.callbacks, strict=True)
        failures |= of_shape.failures
        if any(history.interrupted for history in of_shape):
            break
    places = range(len(histories))
    each = tuple(histories[number] for number in places)
    return Histories(each, failures, tuple(callbacks[number] for number in places))


def _copied(callback: AnyCallback) -> AnyCallback:
    """A callback for one member."""
    try:
        return deepcopy(callback)
    except Exception as error:
        raise DefinitionError(
            f"the callback {type(callback).__name__} cannot be copied for each member",
            facts=(("found", f"{type(error).__name__}: {error}"),),
            where="fit",
            advice="Make what cannot be copied in its fit_begins.",
        ) from error


def _failure(number: int, member: _Member) -> NonFiniteError:
    """The error of a member whose values became infinite or NaN."""
    return NonFiniteError(
        f"member {number} stopped: {member.failure}",
        facts=(
            ("epoch", str(len(member.fit.history) + 1)),
            *([("data", member.fault)] if member.fault else []),
            ("member", "restored to its state before this epoch; the others go on"),
        ),
        where="fit",
        advice=CORRECT_DATA if member.fault else "Lower its learning rate, or clip its gradients.",
    )


def _save(
    checkpoint: Checkpoint,
    training: PopulationTraining,
    members: Sequence[_Member],
    running: Container[int],
    position: Position | None = None,
) -> None:
    notes = [
        MemberNotes(
            {name: tuple(row) for name, row in member.fit.history.values.items()},
            tuple(member.fit.history.seconds),
            has_ended=number not in running,
            failure=member.failure,
        )
        for number, member in enumerate(members)
    ]
    states = [member.hooks.states() for member in members]
    checkpoint.write_members(training, notes, states, position)


def _mean_row(members: Sequence[_Member]) -> dict[str, float]:
    """The means of the last epoch of those members that have one."""
    histories = [member.fit.history for member in members if len(member.fit.history)]
    if not histories:
        return {}
    return {
        name: float(np.mean([history[name][-1] for history in histories])) for name in histories[0]
    }
