"""Calls the hooks of the callbacks of a fit, and keeps their states."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, cast, final

import numpy as np

from lamina.errors import DefinitionError
from lamina.layers.checks import Sourced
from lamina.objective.protocols import wrong_argument
from lamina.shapes import Array
from lamina.training.callbacks.callback import Callback, RunningFit
from lamina.training.history import History

AnyCallback = Callback | Callable[[History], bool | None]


def check_callbacks(callbacks: object) -> None:
    """Raises DefinitionError if it is not a sequence of functions or of objects with hooks."""
    if not isinstance(callbacks, list | tuple):
        raise _wrong(callbacks, "a list of callbacks")
    for one in cast(Sequence[object], callbacks):
        if isinstance(one, Callback):
            continue
        # Losses, optimizers and schedules may be called, but not with a history.
        if isinstance(one, type | Sourced) or not callable(one):
            raise _wrong(one, "a callback")
        if not _takes_history(one):
            raise _wrong(one, "a function of the history alone")


def _takes_history(function: Callable[..., Any]) -> bool:
    """Whether a function may be called with one argument; True if Python does not know."""
    try:
        inspect.signature(function).bind(None)
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def _wrong(found: object, kind: str) -> DefinitionError:
    from lamina.training.schedules import Schedule  # only errors need it

    advice = ""
    if isinstance(found, Schedule):
        advice = "A schedule is the rate of an optimizer: lm.SGD(schedule)."
    elif isinstance(found, FunctionType):
        advice = "Write lambda history: ...; hooks are methods of a subclass of lm.Callback."
    elif hasattr(found, "on_epoch_end"):
        advice = "Make it a subclass of lm.Callback; its hook is epoch_ends(self, fit)."
    expected = "[a function of the history, lm.callbacks.EarlyStopping()]"
    return wrong_argument("callbacks", kind, expected, found, advice)


@final
class Hooks:
    """The callbacks of a fit, in their order.

    Args:
        callbacks: objects with hooks, and functions of the history.
    """

    def __init__(self, callbacks: Sequence[AnyCallback]) -> None:
        self._objects = [one for one in callbacks if isinstance(one, Callback)]
        self._functions = [one for one in callbacks if not isinstance(one, Callback)]

    @property
    def changes_rate(self) -> bool:
        """Whether one of them sets the learning rate."""
        return any(one.changes_rate for one in self._objects)

    def restore(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Continues from the states of a checkpoint; those without one begin anew."""
        for name, callback in self._named().items():
            callback.restore(saved.get(name, {}))

    def states(self) -> dict[str, dict[str, Any]]:
        """The state of each callback, by its class and its number among those of the class."""
        return {name: callback.state() for name, callback in self._named().items()}

    def _named(self) -> dict[str, Callback]:
        named: dict[str, Callback] = {}
        for callback in self._objects:
            kind = type(callback).__name__
            number = sum(name.rpartition("-")[0] == kind for name in named)
            named[f"{kind}-{number}"] = callback
        return named

    def fit_begins(self, fit: RunningFit) -> None:
        """Calls the hooks of the same name."""
        for callback in self._objects:
            callback.fit_begins(fit)

    def epoch_begins(self, fit: RunningFit) -> None:
        """Calls the hooks of the same name."""
        for callback in self._objects:
            callback.epoch_begins(fit)

    def steps_done(self, fit: RunningFit, steps: int) -> None:
        """Calls the hooks of the same name."""
        for callback in self._objects:
            callback.steps_done(fit, steps)

    def epoch_ends(self, fit: RunningFit) -> None:
        """Calls the hooks of the same name; one that returns True ends the fit."""
        for callback in self._objects:
            if callback.epoch_ends(fit):
                fit.stop()

    def call_functions(self, history: History) -> bool:
        """Calls the functions of the history; whether one of them ends the fit."""
        # All of them are called, even if the first one returns True.
        ends = [function(history) for function in self._functions]
        return any(ends)

    def fit_ends(self, fit: RunningFit) -> None:
        """Calls the hooks of the same name."""
        for callback in self._objects:
            callback.fit_ends(fit)

    def fit_fails(self, fit: RunningFit, error: BaseException) -> None:
        """Calls the hooks of the same name."""
        for callback in self._objects:
            callback.fit_fails(fit, error)


def divided(
    states: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, dict[str, Any]], dict[str, Array]]:
    """States as plain values, and arrays by names such as `"EarlyStopping-0/best/1.weight"`."""
    plain: dict[str, dict[str, Any]] = {}
    arrays: dict[str, Array] = {}
    for owner, state in states.items():
        plain[owner] = {k: v for k, v in state.items() if not isinstance(v, np.ndarray)}
        arrays |= {f"{owner}/{k}": v for k, v in state.items() if isinstance(v, np.ndarray)}
    return plain, arrays


def together(
    plain: Mapping[str, Mapping[str, Any]], arrays: Mapping[str, Array]
) -> dict[str, dict[str, Any]]:
    """The states from the results of `divided`."""
    states = {owner: dict(state) for owner, state in plain.items()}
    for name, array in arrays.items():
        owner, _, own = name.partition("/")
        states.setdefault(owner, {})[own] = array
    return states
