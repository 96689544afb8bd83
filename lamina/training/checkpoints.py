"""Checkpoints: the files that `fit` writes after each epoch and resumes from."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, final

from lamina.errors import DefinitionError, FileFormatError
from lamina.files.atomic import require_writable
from lamina.files.classes import classes_of
from lamina.files.encode import encode
from lamina.files.model_file import ModelFile, read_model, write_model
from lamina.network import Network
from lamina.protocols import Optimizer
from lamina.runtime import Parameters
from lamina.training.callbacks.hooks import divided, together
from lamina.training.history import History
from lamina.training.optimizers import Averaging, ByPath
from lamina.training.training import Training

# The key of the options in the file. Files of earlier versions have it too.
_OPTIONS = "terms"
# The names of arrays of callbacks begin with it.
_CALLBACKS = "callback/"
# The options of files of earlier versions, which do not name them.
_EARLIER = {"precision": "float32", "micro_batch": None, "shuffle": True}


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
        self, path: str | os.PathLike[str], parameters: Parameters, options: Mapping[str, Any]
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
        self, training: Training, history: History, callbacks: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Writes model, optimizer state, history and the states of callbacks atomically."""
        values, state = training.snapshot()
        plain, arrays = divided(callbacks)
        state |= {_CALLBACKS + name: array for name, array in arrays.items()}
        notes = {"history": history.values, "seconds": history.seconds, _OPTIONS: self._options}
        notes["callbacks"] = plain
        parameters = self._parameters
        network, precision, seed = parameters.network, parameters.precision, parameters.seed
        write_model(self._path, ModelFile(network, precision, seed, values, state, notes))

    def resume(self, training: Training) -> tuple[History, dict[str, dict[str, Any]]]:
        """Restores the training from the file; returns the history and the states of callbacks.

        Raises:
            FileFormatError: if the file is damaged, or no checkpoint.
            DefinitionError: if it belongs to another network, or to a fit with other options.
        """
        network = self._parameters.network
        saved = read_model(self._path, classes_of(network))
        notes = saved.notes
        if not {"history", "seconds"} <= notes.keys():
            raise FileFormatError(
                "this file holds a model, not a checkpoint to resume from",
                facts=(("expected", "a file of fit(checkpoint=...)"), ("found", "a saved model")),
                where=os.fspath(self._path),
                advice="Start from its parameters: lm.load(path), and leave resume out.",
            )
        if encode(saved.network)[0] != encode(network)[0]:
            raise DefinitionError(
                "the checkpoint belongs to a network with other layers or hyper-parameters",
                facts=(("in the file", _outline(saved.network)), ("here", _outline(network))),
                where=os.fspath(self._path),
                advice="Resume with the network it was made with, or take another file.",
            )
        self._require_same_options(notes.get(_OPTIONS, {}))
        state = {k: v for k, v in saved.extra.items() if not k.startswith(_CALLBACKS)}
        training.restore(state, saved.values)
        arrays = {k.removeprefix(_CALLBACKS): v for k, v in saved.extra.items() if k not in state}
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
