"""Calls the hooks of the callbacks of a fit, and keeps their states."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any, cast, final

import numpy as np

from lamina.base.shapes import Array
from lamina.checks.origin import warn
from lamina.checks.stored import read_stored
from lamina.errors import DefinitionError, FileFormatError
from lamina.layers.checks import Sourced
from lamina.learning.protocols import wrong_argument
from lamina.training.callbacks.callback import Callback, RunningFit
from lamina.training.history import History

AnyCallback = Callback | Callable[[History], bool | None]


def check_callbacks(callbacks: object) -> None:
    """Raises DefinitionError if it is not a sequence of functions or of objects with hooks."""
    if not isinstance(callbacks, list | tuple):
        raise _wrong(callbacks, "a list of callbacks")
    for callback in cast(Sequence[object], callbacks):
        if isinstance(callback, Callback):
            continue
        # Losses, optimizers and schedules may be called, but not with a history.
        if isinstance(callback, type | Sourced) or not callable(callback):
            raise _wrong(callback, "a callback")
        try:
            with suppress(ValueError):  # Python does not know its arguments
                inspect.signature(callback).bind(None)
        except TypeError:
            raise _wrong(callback, "a function of the history alone") from None


def _wrong(argument: object, kind: str) -> DefinitionError:
    advice = ""
    if isinstance(argument, FunctionType) and "list" not in kind:
        advice = "Write lambda history: ...; hooks are methods of a subclass of lm.Callback."
    elif hasattr(argument, "on_epoch_end"):
        advice = "Make it a subclass of lm.Callback; its hook is epoch_ends(self, fit)."
    expected = "[a function of the history, lm.callbacks.EarlyStopping()]"
    return wrong_argument("callbacks", kind, expected, argument, advice)


@final
class Hooks:
    """The callbacks of a fit, in their order."""

    def __init__(self, callbacks: Sequence[AnyCallback]) -> None:
        self.given = callbacks
        self._objects = [callback for callback in callbacks if isinstance(callback, Callback)]
        self._functions = [callback for callback in callbacks if not isinstance(callback, Callback)]

    @property
    def changes_rate(self) -> bool:
        """Whether one of them sets the learning rate."""
        return any(callback.changes_rate for callback in self._objects)

    @property
    def read_history_only(self) -> bool:
        """Whether all of them are objects whose hooks need nothing but the history."""
        return not self._functions and all(one.reads_history_only for one in self._objects)

    @property
    def waits_at_most(self) -> float:
        """The least of their limits for the first batch of a stream, in seconds."""
        return min((callback.waits_at_most for callback in self._objects), default=math.inf)

    def restore(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Continues from the states of a checkpoint; those without one begin anew."""
        for name, callback in self._named().items():
            state = dict(saved.get(name, {}))
            for key, kind in type(callback).state_kinds.items():
                if key in state:
                    state[key] = read_stored(kind, state[key], f"callbacks.{name}.{key}")
            callback.restore(state)

    def states(self) -> dict[str, dict[str, Any]]:
        """The state of each callback, by its class and its number within the class."""
        return {name: callback.state() for name, callback in self._named().items()}

    def _named(self) -> dict[str, Callback]:
        named: dict[str, Callback] = {}
        for callback in self._objects:
            kind = type(callback).__name__
            number = sum(name.rpartition("-")[0] == kind for name in named)
            named[f"{kind}-{number}"] = callback
        return named

    def call(self, name: str, fit: RunningFit, *further: Any) -> None:
        """Calls the hooks of this name, which return nothing."""
        for callback in self._objects:
            # A fit may have thousands of members, and of epochs.
            if getattr(type(callback), name) is not getattr(Callback, name):
                getattr(callback, name)(fit, *further)

    def epoch_ends(self, fit: RunningFit) -> None:
        """Calls the hooks of the same name; one that returns True ends the fit."""
        for callback in self._objects:
            if _ends_fit(callback, callback.epoch_ends(fit)):
                fit.stop()

    def call_functions(self, history: History) -> bool:
        """Calls the functions of the history; whether one of them ends the fit."""
        # All of them are called, even if the first one returns True.
        ends = [_ends_fit(function, function(history)) for function in self._functions]
        return any(ends)

    def fit_fails(self, fit: RunningFit, error: BaseException) -> None:
        """Calls all hooks of the same name; an error in one of them is a note of the first one."""
        for callback in self._objects:
            try:
                callback.fit_fails(fit, error)
            except Exception as failure:
                error.add_note(f"{type(callback).__name__}.fit_fails: {failure!r}")


def _ends_fit(callback: object, returned: object) -> bool:
    """Whether a callback has returned True; warns of anything but True, False and None."""
    if returned is None or isinstance(returned, bool | np.bool_):
        return bool(cast(object, returned))
    name = getattr(callback, "__name__", type(callback).__name__)
    warn(
        f"the callback {name} returned a value of type {type(returned).__name__}, and the fit goes "
        "on: only True ends it. Return None, or bool(value)."
    )
    return False


# The key of a dict of one entry that stands for an array within a state: the name of the array.
_ARRAY = "lamina.array"


def divided(
    states: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, dict[str, Any]], dict[str, Array]]:
    """States as plain values, and arrays by names such as `"EarlyStopping-0/best/1.weight"`."""
    plain: dict[str, dict[str, Any]] = {}
    arrays: dict[str, Array] = {}
    for owner, state in states.items():
        own_arrays = {k: v for k, v in state.items() if _is_array(v)}
        arrays |= {f"{owner}/{k}": v for k, v in own_arrays.items()}
        rest = {k: v for k, v in state.items() if k not in own_arrays}
        plain[owner] = _plain(owner, rest, arrays)
    return plain, arrays


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and cast(Array, value).dtype.kind not in "OUSMm"


def _plain(path: str, value: Any, arrays: dict[str, Array]) -> Any:
    """A value of a state as plain data; its arrays are added to `arrays`, by their paths."""
    if isinstance(value, Mapping):
        named = cast(Mapping[Any, Any], value)
        unnamed = next((key for key in named if not isinstance(key, str)), None)
        if unnamed is not None:
            raise _unknown_value(path, f"the key {unnamed!r}", "Make keys text: str(key).")
        return {key: _plain(f"{path}/{key}", child, arrays) for key, child in named.items()}
    if isinstance(value, list | tuple):
        items = cast(Sequence[Any], value)
        return [_plain(f"{path}/{number}", child, arrays) for number, child in enumerate(items)]
    if _is_array(value):
        name = path
        while name in arrays:
            name += "'"
        arrays[name] = value
        return {_ARRAY: name}
    if isinstance(value, np.generic):
        return _plain(path, value.item(), arrays)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    advice = "Convert it to one of these, and back in restore()."
    raise _unknown_value(path, type(value).__name__, advice)


def _unknown_value(path: str, content: str, advice: str) -> DefinitionError:
    owner, _, within = path.partition("/")
    return DefinitionError(
        f"the state of the callback {owner.rpartition('-')[0]} cannot be stored in a checkpoint",
        facts=(
            ("expected", "numbers, text, None, arrays of numbers, and lists and dicts of them"),
            ("found", f"{content} in state(){''.join(f'[{word!r}]' for word in within.split('/'))}")
            if within
            else ("found", f"{content} in state()"),
        ),
        advice=advice,
    )


def together(
    plain: Mapping[str, Mapping[str, Any]], arrays: Mapping[str, Array]
) -> dict[str, dict[str, Any]]:
    """The states from the results of `divided`."""
    taken: set[str] = set()
    states = {owner: _restored(state, arrays, taken) for owner, state in plain.items()}
    for name, array in arrays.items():
        if name not in taken:
            owner, _, key = name.partition("/")
            states.setdefault(owner, {})[key] = array
    return states


def _restored(value: Any, arrays: Mapping[str, Array], taken: set[str]) -> Any:
    """The inverse of `_plain`; the names of arrays that it holds are added to `taken`."""
    if isinstance(value, Mapping):
        named = cast(Mapping[str, Any], value)
        if list(named) == [_ARRAY]:
            name = str(named[_ARRAY])
            if name not in arrays:
                raise FileFormatError(
                    "the checkpoint lacks an array of a callback",
                    facts=(("expected", name), ("found", ", ".join(arrays) or "none")),
                    advice="Start a new fit; the file was changed.",
                )
            taken.add(name)
            return arrays[name]
        return {key: _restored(child, arrays, taken) for key, child in named.items()}
    if isinstance(value, list):
        return [_restored(child, arrays, taken) for child in cast(list[Any], value)]
    return value
