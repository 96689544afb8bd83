"""Checkpoints: the files that `fit` writes after each epoch and resumes from."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, final

import numpy as np

from lamina.base.records import cached_property, frozen_dataclass
from lamina.base.shapes import Array
from lamina.checks.kinds import Count, Measured, NotNegative
from lamina.checks.stored import stored
from lamina.data.positions import Counted, Position, plain_state
from lamina.errors import DefinitionError, FileFormatError
from lamina.files.atomic import require_writable
from lamina.files.encode import are_alike, classes_of
from lamina.files.model_file import ModelFile, read_model, with_prefix, write_model
from lamina.learning.optimizers import Averaging, ByPath
from lamina.learning.protocols import Optimizer
from lamina.network import Network
from lamina.runtime import Parameters
from lamina.training.batches import Recorded
from lamina.training.callbacks.hooks import Hooks, divided, together
from lamina.training.history import History
from lamina.training.steps import TrainingSteps
from lamina.training.training import Training

# The names of arrays of callbacks begin with it.
_CALLBACKS = "callback/"
# The options of files of earlier versions, which do not name them.
_EARLIER = {"precision": "float32", "micro_batch": None, "shuffle": True}
# Begins the names of the tensors that hold what is recorded of an epoch.
_RECORDED = "epoch/"


@frozen_dataclass
class Begun:
    """What a checkpoint holds of an epoch that is not finished.

    Attributes:
        position: the position of a stream; None for a data set, and for the beginning.
        recorded: losses and metrics of the training steps of the epoch that are done; None if the
            file was written after an epoch.
        batch_size: the most examples of a training step; None if the file does not have it.
    """

    position: Position | None = None
    recorded: Recorded | None = None
    skipped: int = 0
    rates: Mapping[str, float] = field(default_factory=dict[str, float])
    epochs: int = 0
    batch_size: int | None = None


@frozen_dataclass
class _Measured:
    """The JSON data of an epoch that is not finished, as in `Begun`; `kept` as in `Recorded`."""

    kept: tuple[str, ...]
    skipped: Counted
    rates: Mapping[str, NotNegative] = field(default_factory=dict[str, float])


@frozen_dataclass
class _History:
    """The JSON data of a history."""

    history: Mapping[str, tuple[Annotated[float, Measured()], ...]]
    seconds: tuple[NotNegative, ...]

    def __post_init__(self) -> None:
        epochs = len(self.seconds)
        for name, values in self.history.items():
            if len(values) != epochs:
                raise FileFormatError(
                    "the history of the checkpoint has not a value for each epoch",
                    facts=(("expected", f"{epochs} of {name!r}"), ("found", str(len(values)))),
                    advice="The file was changed: start a new fit.",
                )

    def as_history(self) -> History:
        values = {name: list(numbers) for name, numbers in self.history.items()}
        return History(values, list(self.seconds))


@frozen_dataclass
class _Notes(_History):
    """The JSON data of a checkpoint. Files of earlier versions lack fields with defaults."""

    terms: Mapping[str, Any] = field(default_factory=dict[str, Any])
    callbacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Any])
    position: Position | None = None
    epoch: _Measured | None = None
    batch_size: Count | None = None
    members: tuple[MemberNotes, ...] = ()


@frozen_dataclass
class MemberNotes(_History):
    """The JSON data of a member of a population.

    Attributes:
        has_ended: whether it is trained no more.
        failure: why its values became infinite or NaN; "" if they did not.
    """

    has_ended: bool = False
    failure: str = ""


@final
class Checkpoint:
    """The checkpoint file of a fit, whose options are equal in a resumed fit."""

    def __init__(
        self, path: str | os.PathLike[str], parameters: Parameters, options: Mapping[str, Any]
    ) -> None:
        require_writable(path)
        self._path = path
        self._parameters = parameters
        self._options = dict(options)

    @property
    def exists(self) -> bool:
        return Path(self._path).exists()

    def write(
        self,
        training: Training,
        history: History,
        callbacks: Mapping[str, Mapping[str, Any]],
        begun: Begun,
    ) -> None:
        """Writes model, optimizer state, history, the states of callbacks and the position."""
        state: dict[str, Array] = {}
        notes: dict[str, Any] = {
            "history": history.values,
            "seconds": history.seconds,
            "position": {} if begun.position is None else dict(vars(begun.position)),
        }
        if begun.recorded is not None:
            kept = sorted(begun.recorded.kept)
            notes["epoch"] = {"kept": kept, "skipped": begun.skipped, "rates": dict(begun.rates)}
            tensors = {"losses": begun.recorded.losses, "examples": begun.recorded.examples}
            statistics = begun.recorded.statistics.items()
            tensors |= {f"statistics/{name}": value for name, value in statistics}
            state |= {f"{_RECORDED}{name}": value for name, value in tensors.items()}
        self._write(training, callbacks, notes, state)

    def write_members(
        self,
        training: TrainingSteps,
        members: Sequence[MemberNotes],
        callbacks: Sequence[Mapping[str, Mapping[str, Any]]],
        position: Position | None,
    ) -> None:
        """Writes population, optimizer state, histories, callbacks, and a stream's position."""
        named = {
            f"{number}:{name}": state
            for number, own in enumerate(callbacks)
            for name, state in own.items()
        }
        notes: dict[str, Any] = {"history": {}, "seconds": (), "members": list(map(vars, members))}
        notes["position"] = {} if position is None else dict(vars(position))
        self._write(training, named, notes, {})

    def _write(
        self,
        training: TrainingSteps,
        callbacks: Mapping[str, Mapping[str, Any]],
        notes: Mapping[str, Any],
        further: Mapping[str, Array],
    ) -> None:
        values, state = training.snapshot()
        plain, arrays = divided(callbacks)
        state |= {_CALLBACKS + name: array for name, array in arrays.items()} | dict(further)
        always = {"terms": self._options, "callbacks": plain, "batch_size": training.batch_size}
        parameters = self._parameters
        network, precision, seed = parameters.network, parameters.precision, parameters.seed
        given = network, precision, seed, values, state, {**notes, **always}, parameters.coding
        write_model(self._path, ModelFile(*given, parameters.seeds, parameters.networks))

    @cached_property
    def _saved(self) -> ModelFile:
        """The contents of the file when the fit begins."""
        try:
            return read_model(self._path, classes_of(self._parameters.network))
        except FileFormatError as error:
            another = "Give an older checkpoint, or leave resume out for a new fit"
            error.advice = error.advice.replace("Save the model again", another)
            error.advice = error.advice.replace("model.save or lamina train", "fit(checkpoint=...)")
            raise

    @cached_property
    def _notes(self) -> _Notes:
        fields = dict(self._saved.notes)
        if not {"history", "seconds"} <= fields.keys():
            raise FileFormatError(
                "this file holds a model, not a checkpoint to resume from",
                facts=(("expected", "a file of fit(checkpoint=...)"), ("found", "a saved model")),
                where=os.fspath(self._path),
                advice="Start from its parameters: lm.load(path), and leave resume out.",
            )
        fields["position"] = fields.get("position") or None
        with self._named():
            notes = stored(_Notes, fields, "checkpoint")
            if notes.position is not None:
                plain_state(notes.position.state)
            return notes

    def begun(self) -> Begun:
        """The position of a stream, and the epoch that was not finished, without its terms."""
        notes, tensors = self._notes, with_prefix(self._saved.extra, _RECORDED)
        done = max(len(one.seconds) for one in (notes, *notes.members))
        begun = Begun(notes.position, epochs=done, batch_size=notes.batch_size)
        epoch = notes.epoch
        if epoch is None:
            return begun
        statistics, kept = with_prefix(tensors, "statistics/"), frozenset(epoch.kept)
        losses, examples = (tensors.get(name, np.zeros(())) for name in ("losses", "examples"))
        rows = [examples, *(array for name, array in statistics.items() if name not in kept)]
        if losses.ndim != 1 or any(row.shape[:1] != losses.shape for row in rows):
            raise FileFormatError(
                "the unfinished epoch of the checkpoint has not a loss for each training step",
                where=os.fspath(self._path),
                advice="The file was changed: start a new fit.",
            )
        recorded = Recorded(losses, examples, statistics, kept=kept)
        return replace(begun, recorded=recorded, skipped=epoch.skipped, rates=epoch.rates)

    def resume(self, training: Training, hooks: Hooks) -> History:
        """Restores training and callbacks from the file; returns the history."""
        saved = self._saved
        with self._named():
            saved.require_members(several=False)
        self._require_same()
        recorded = self.begun().recorded
        if recorded is not None and recorded.statistics.keys() ^ training.statistics:
            raise DefinitionError(
                "the unfinished epoch of the checkpoint was measured with other metrics",
                facts=(
                    ("in the file", ", ".join(sorted(recorded.statistics)) or "none"),
                    ("here", ", ".join(sorted(training.statistics)) or "none"),
                ),
                where=os.fspath(self._path),
                advice="Resume with the loss and the metrics of the fit that wrote it.",
            )
        callbacks = self._restored(training)
        if saved.coding is not None and self._parameters.coding is not None:
            from lamina.data.coding import require_equal  # only tables need it

            require_equal(saved.coding, self._parameters.coding, is_training=True)
        self._parameters.coding = self._parameters.coding or saved.coding
        with self._named():
            hooks.restore(callbacks)
        return self._notes.as_history()

    def resume_members(
        self, training: TrainingSteps, hooks: Sequence[Hooks]
    ) -> Sequence[MemberNotes]:
        """Restores the training of a population and the callbacks of its members from the file."""
        with self._named():
            self._saved.require_members(several=True)
        self._require_same()
        members = self._notes.members
        if len(members) != len(hooks):
            raise FileFormatError(
                "the checkpoint has not a history for each member",
                facts=(("expected", str(len(hooks))), ("found", str(len(members)))),
                where=os.fspath(self._path),
                advice="The file was changed: start a new fit.",
            )
        callbacks = self._restored(training)
        with self._named():
            for number, own in enumerate(hooks):
                own.restore(with_prefix(callbacks, f"{number}:"))
        return members

    def _require_same(self) -> None:
        """Raises DefinitionError if the file is of another network, or of another fit."""
        network, saved = self._parameters.network, self._saved
        if not are_alike(saved.network, network):
            raise DefinitionError(
                "the checkpoint belongs to a network with other layers or hyper-parameters",
                facts=(("in the file", _outline(saved.network)), ("here", _outline(network))),
                where=os.fspath(self._path),
                advice="Resume with the network it was made with, or take another file.",
            )
        self._require_same_options(self._notes.terms)

    def _restored(self, training: TrainingSteps) -> dict[str, dict[str, Any]]:
        """Restores the training; returns the states of callbacks."""
        extra, others = self._saved.extra, (_CALLBACKS, _RECORDED)
        state = {n: v for n, v in extra.items() if not n.startswith(others)}
        training.restore(state, self._saved.values)
        return together(self._notes.callbacks, with_prefix(extra, _CALLBACKS))

    @contextmanager
    def _named(self) -> Generator[None]:
        """Errors about the file's contents name it; errors of callbacks stay as they are."""
        try:
            yield
        except FileFormatError as error:
            raise error.at(os.fspath(self._path)) from None

    def _require_same_options(self, before: Mapping[str, Any]) -> None:
        options, before = self._options, {**_EARLIER, **before}
        differing = [name for name, value in options.items() if before.get(name) != value]
        if differing:
            converting = [name for name in ("dtype", "precision") if name in differing]
            arguments = "".join(f", {name}={options[name]!r}" for name in converting)
            load = f"lm.load(path{arguments})"
            if self._parameters.members is not None:
                load = "lm.Population.load(path)"
            raise DefinitionError(
                "the checkpoint was written by a fit with other options",
                facts=tuple(
                    (name, f"{before.get(name)} in the file, {options[name]} here")
                    for name in differing
                ),
                where=os.fspath(self._path),
                advice="Resume with the options in the file, or start a new fit from its "
                f"parameters: {load}.",
            )


def kind_of_optimizer(optimizer: Optimizer) -> str:
    """The classes of an optimizer and of the optimizers inside it: `"EMA(Adam)"`."""
    inner: list[Optimizer] = []
    if isinstance(optimizer, Averaging):
        inner = [optimizer.optimizer]
    elif isinstance(optimizer, ByPath):
        inner = [*optimizer.patterns.values(), optimizer.default]
    name = type(optimizer).__name__
    return f"{name}({', '.join(map(kind_of_optimizer, inner))})" if inner else name


def _outline(network: Network) -> str:
    """The layers in one line, with their options."""
    layers = (node.attributes.get("layer") for node in network.nodes)
    return ", ".join(repr(layer) for layer in layers if layer is not None)
