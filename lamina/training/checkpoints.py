"""Checkpoints: the files that `fit` writes after each epoch and resumes from."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from lamina.errors import DefinitionError, FileFormatError
from lamina.files.atomic import require_writable
from lamina.files.classes import classes_of
from lamina.files.encode import are_alike
from lamina.files.model_file import ModelFile, read_model, write_model
from lamina.network import Network
from lamina.objective.protocols import Optimizer
from lamina.records import cached_property, frozen_dataclass
from lamina.runtime import Parameters
from lamina.shapes import Array
from lamina.training.batches import Recorded
from lamina.training.callbacks.hooks import divided, together
from lamina.training.history import History
from lamina.training.optimizers import Averaging, ByPath
from lamina.training.training import Training

if TYPE_CHECKING:
    pass

# The key of the options in the file. Files of earlier versions have it too.
_OPTIONS = "terms"
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
        position: of a stream, as plain data; empty for a data set.
        recorded: losses and metrics of the training steps of the epoch that are done; None if the
            file was written after an epoch.
        skipped: the training steps before the epoch that loss scaling skipped.
        rates: the learning rates at the begin of the epoch, if the history has them.
        epochs: before it, which are done.
        batch_size: the most examples of a training step; None if the file does not have it.
    """

    position: Mapping[str, Any] = field(default_factory=dict[str, Any])
    recorded: Recorded | None = None
    skipped: int = 0
    rates: Mapping[str, float] = field(default_factory=dict[str, float])
    epochs: int = 0
    batch_size: int | None = None

    @property
    def done(self) -> tuple[int, int]:
        """The epochs that are done, and the training steps of the next one."""
        return self.epochs, 0 if self.recorded is None else len(self.recorded.losses)


@final
class Checkpoint:
    """The checkpoint file of a fit.

    Args:
        path: of the file.
        parameters: of the model.
        options: they must be equal in a resumed fit and in the fit that wrote the file.

    Raises:
        DataError: if the file could not be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        parameters: Parameters,
        options: Mapping[str, Any],
    ) -> None:
        require_writable(path)
        self._path = path
        self._parameters = parameters
        self._options = dict(options)

    @property
    def exists(self) -> bool:
        """Whether the file is there."""
        return Path(self._path).exists()

    def write(
        self,
        training: Training,
        history: History,
        callbacks: Mapping[str, Mapping[str, Any]],
        begun: Begun,
    ) -> None:
        """Writes model, optimizer state, history, the states of callbacks and the position."""
        values, state = training.snapshot()
        plain, arrays = divided(callbacks)
        state |= {_CALLBACKS + name: array for name, array in arrays.items()}
        notes = {"history": history.values, "seconds": history.seconds, _OPTIONS: self._options}
        notes["callbacks"] = plain
        notes["position"] = dict(begun.position)
        notes["batch_size"] = training.batch_size
        if begun.recorded is not None:
            kept = sorted(begun.recorded.kept)
            notes["epoch"] = {"kept": kept, "skipped": begun.skipped, "rates": dict(begun.rates)}
            state |= _tensors_of(begun.recorded)
        parameters = self._parameters
        network, precision, seed = parameters.network, parameters.precision, parameters.seed
        file = ModelFile(network, precision, seed, values, state, notes, parameters.coding)
        write_model(self._path, file)

    @cached_property
    def _saved(self) -> ModelFile:
        """The contents of the file when the fit begins."""
        return read_model(self._path, classes_of(self._parameters.network))

    def begun(self) -> Begun:
        """The position of a stream, and the epoch that was not finished, without its terms.

        Raises:
            FileFormatError: if the file is damaged.
        """
        notes, tensors = self._saved.notes, self._saved.extra
        begun = Begun(
            notes.get("position", {}),
            epochs=len(notes.get("seconds", ())),
            batch_size=notes.get("batch_size"),
        )
        if f"{_RECORDED}losses" not in tensors:
            return begun
        epoch, statistics = notes["epoch"], f"{_RECORDED}statistics/"
        recorded = Recorded(
            tensors[f"{_RECORDED}losses"],
            tensors[f"{_RECORDED}examples"],
            {n.removeprefix(statistics): v for n, v in tensors.items() if statistics in n},
            kept=frozenset(map(str, epoch["kept"])),
        )
        # Files of earlier versions have no rates.
        rates = epoch.get("rates", {})
        return replace(begun, recorded=recorded, skipped=int(epoch["skipped"]), rates=rates)

    def resume(self, training: Training) -> tuple[History, dict[str, dict[str, Any]]]:
        """Restores the training from the file; returns the history and the states of callbacks.

        Raises:
            FileFormatError: if the file is damaged, or no checkpoint.
            DefinitionError: if it belongs to another network, or to a fit with other options.
        """
        network = self._parameters.network
        saved = self._saved
        notes = saved.notes
        if not {"history", "seconds"} <= notes.keys():
            raise FileFormatError(
                "this file holds a model, not a checkpoint to resume from",
                facts=(("expected", "a file of fit(checkpoint=...)"), ("found", "a saved model")),
                where=os.fspath(self._path),
                advice="Start from its parameters: lm.load(path), and leave resume out.",
            )
        if not are_alike(saved.network, network):
            raise DefinitionError(
                "the checkpoint belongs to a network with other layers or hyper-parameters",
                facts=(("in the file", _outline(saved.network)), ("here", _outline(network))),
                where=os.fspath(self._path),
                advice="Resume with the network it was made with, or take another file.",
            )
        self._require_same_options(notes.get(_OPTIONS, {}))
        extra = {n: v for n, v in saved.extra.items() if not n.startswith(_RECORDED)}
        state = {n: v for n, v in extra.items() if not n.startswith(_CALLBACKS)}
        training.restore(state, saved.values)
        if saved.coding is not None and self._parameters.coding is not None:
            from lamina.data.coding import warn_of_another  # only tables need it

            warn_of_another(saved.coding, self._parameters.coding)
        self._parameters.coding = self._parameters.coding or saved.coding
        arrays = {n.removeprefix(_CALLBACKS): v for n, v in extra.items() if n not in state}
        # Checkpoints of earlier versions have no callbacks.
        states = together(notes.get("callbacks", {}), arrays)
        return History(dict(notes["history"]), list(notes["seconds"])), states

    def _require_same_options(self, before: Mapping[str, Any]) -> None:
        options, before = self._options, {**_EARLIER, **before}
        differing = [name for name, value in options.items() if before.get(name) != value]
        if differing:
            raise DefinitionError(
                "the checkpoint was written by a fit with other options",
                facts=tuple(
                    (name, f"{before.get(name)} in the file, {options[name]} here")
                    for name in differing
                ),
                where=os.fspath(self._path),
                advice="Resume with the options in the file, or start a new fit from its "
                f"parameters: lm.load(path{_converting(differing, options)}).",
            )


def _tensors_of(recorded: Recorded) -> dict[str, Array]:
    """What is recorded of an epoch as tensors of a file."""
    tensors = {"losses": recorded.losses, "examples": recorded.examples}
    tensors |= {f"statistics/{name}": value for name, value in recorded.statistics.items()}
    return {f"{_RECORDED}{name}": value for name, value in tensors.items()}


def _converting(differing: Collection[str], options: Mapping[str, Any]) -> str:
    """The arguments of `load` that convert a model whose precision differs."""
    names = [name for name in ("dtype", "precision") if name in differing]
    return "".join(f", {name}={options[name]!r}" for name in names)


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
