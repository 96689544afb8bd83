"""The base of callbacks, and the fit as callbacks see it."""

from __future__ import annotations

import inspect
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, Protocol, final

from lamina.base.records import cached_property
from lamina.base.shapes import Array
from lamina.checks import Called
from lamina.checks.kinds import Kind
from lamina.checks.origin import Origin, source_line
from lamina.errors import DefinitionError
from lamina.foreign import foreign_or_nearest
from lamina.training.history import History
from lamina.training.interrupt import Interrupt
from lamina.training.training import Training


class TrainedModel(Protocol):
    """An `lm.Model`, as callbacks here need it: `lamina.training` may not import `lamina.model`."""

    def parameters(self) -> dict[str, Array]: ...

    def states(self) -> dict[str, Array]: ...

    def set_parameters(self, values: Mapping[str, Any]) -> None: ...

    def save(self, path: str | os.PathLike[str]) -> None: ...

    def predict(self, inputs: Any) -> Any: ...

    def evaluate(self, data: Any, loss: Any, metrics: Any = ...) -> dict[str, Any]: ...


@final
class RunningFit:
    """A fit while it runs, for the hooks of callbacks.

    Attributes:
        history: the finished epochs; at `epoch_ends` with the epoch that has just ended. A callback
            that adds a measure adds its name to `history.measured` when the fit begins.
        smaller_is_better: whether smaller is better, of each measure by its name; None if not said.
        epochs: the number of epochs in total.
        epoch: the number of the current epoch, from 1.
        member: the number of the member of a population; None for a model.
    """

    def __init__(
        self,
        model: Callable[[], TrainedModel],
        training: Callable[[], Training],
        history: History,
        smaller_is_better: Mapping[str, bool | None],
        epochs: int,
        interrupt: Interrupt,
        member: int | None = None,
    ) -> None:
        # Members of populations have neither before a callback asks for it.
        self._model, self._training = model, training
        self.history = history
        self.smaller_is_better = smaller_is_better
        self.epochs = epochs
        self.epoch = len(history)
        self.member = member
        self.is_stopping = False
        self._interrupt = interrupt

    @cached_property
    def model(self) -> TrainedModel:
        """The model that is trained; its parameters may be read and set."""
        return self._model()

    @cached_property
    def training(self) -> Training:
        """The training, with the state of the optimizer."""
        return self._training()

    @property
    def rate(self) -> float:
        """The learning rate, as `Training.rate`; a callback may set it."""
        return self.training.rate

    @rate.setter
    def rate(self, value: float) -> None:
        self.training.rate = value

    def path_of(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """The path of a file or folder for this fit: of member 3 of a population `"log-3.csv"`."""
        if self.member is None:
            return path
        named = Path(path)
        return named.with_name(f"{named.stem}-{self.member}{named.suffix}")

    def stop(self, *, now: bool = False, after: float | None = None) -> None:
        """Ends the fit after this epoch.

        Args:
            now: whether to end it between two training steps, as Ctrl-C does; the epoch does not
                enter the history.
            after: the seconds until it ends as with `now`, also while it waits for data.
        """
        self.is_stopping = self.is_stopping or now or after is None
        if now or after is not None:
            end = time.monotonic() + (0.0 if now or after is None else after)
            self._interrupt.ends_at = min(self._interrupt.ends_at, end)


class Callback(metaclass=Called):
    """The base of callbacks. Each hook does nothing unless a subclass overrides it.

    `fit` calls the hooks of all callbacks, in their order, in the thread that called `fit`. They
    may read everything that `fit` gives them, set parameters and the rate, and stop the fit.

    Attributes:
        changes_rate: whether a hook sets `fit.rate`. Then the history has the rate of each epoch.
        waits_at_most: the seconds in which the first batch of a stream must be there, without
            which the fit cannot begin.
        state_kinds: kinds of the values in its state, which are checked before `restore`.

    Raises:
        DefinitionError: for a subclass with a hook that is misspelt, is one of another framework,
            or takes other arguments.

    Example:
        >>> import numpy as np, lamina as lm
        >>> class Halve(lm.Callback):
        ...     changes_rate = True
        ...     def epoch_ends(self, fit):
        ...         fit.rate = fit.rate / 2
        >>> model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)))
        >>> x, y = np.ones((4, 2), "float32"), np.zeros((4, 1), "float32")
        >>> history = model.fit((x, y), loss=lm.MSE(), optimizer=lm.SGD(0.5), epochs=3,
        ...                     callbacks=[Halve()])
        >>> history["rate"]
        [0.5, 0.25, 0.125]
    """

    changes_rate: ClassVar[bool] = False
    state_kinds: ClassVar[Mapping[str, Kind]] = {}

    @property
    def waits_at_most(self) -> float:
        """No limit."""
        return math.inf

    @property
    def reads_history_only(self) -> bool:
        """Whether its hooks need nothing but the history: no parameters, no state, no time.

        Then a fit of many short epochs may call them a little later.
        """
        return False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in vars(cls).items():
            if isinstance(method, FunctionType):
                _check_method(cls, name, method)

    def fit_begins(self, fit: RunningFit) -> None:
        """Called before the first epoch, and after `restore`."""

    def epoch_begins(self, fit: RunningFit) -> None:
        """Called before the first training step of an epoch; not where a fit resumes within one."""

    def steps_done(self, fit: RunningFit, steps: int) -> None:
        """Called about every 50 ms, after so many training steps since the last call."""

    def epoch_ends(self, fit: RunningFit) -> bool | None:
        """Called after an epoch and its validation, before the checkpoint is written.

        Returns:
            True ends the fit, as `fit.stop()` does.
        """

    def fit_ends(self, fit: RunningFit) -> None:
        """Called after the last epoch, also if the fit was stopped or interrupted."""

    def fit_fails(self, fit: RunningFit, error: BaseException) -> None:
        """Called before an error leaves `fit`, when the model is restored."""

    def state(self) -> dict[str, Any]:
        """Everything that a resumed fit needs of this callback.

        Returns:
            Numbers, text, None, and arrays of numbers by names of their own, also in lists and
            dicts; tuples become lists. Any other value is a DefinitionError when a checkpoint is
            written.
        """
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a result of `state()`; an empty one begins anew."""


_HOOKS = ["fit_begins", "epoch_begins", "steps_done", "epoch_ends", "fit_ends", "fit_fails"]
# Names that differ more from a hook are methods of the user's.
_LIKENESS = 0.85


def _check_method(cls: type[Callback], name: str, method: FunctionType) -> None:
    """Checks that a method of a user's class is no hook that `fit` would never call."""
    hooks = vars(Callback)
    if name in _HOOKS:
        try:
            inspect.signature(method).bind(*inspect.signature(hooks[name]).parameters)
        except TypeError:
            declared = _declared(name, method)
            raise DefinitionError(
                f"the hook {name} takes other arguments",
                facts=(("expected", _declared(name, hooks[name])), ("found", declared)),
                where=str(Origin(cls.__name__, source_line())),
            ) from None
        return
    ours = foreign_or_nearest("hook", _event(name), _HOOKS, _LIKENESS)
    # In a class that has Lamina's hook too, it is the user's own method.
    user_classes = cls.__mro__[: cls.__mro__.index(Callback)]
    if not ours or any(ours in vars(user_class) for user_class in user_classes):
        return
    is_hook = ours.isidentifier()
    expected = _declared(ours, hooks[ours]) if is_hook else ", ".join(_HOOKS)
    raise DefinitionError(
        f"fit calls no hook {name!r}",
        facts=(("expected", expected),),
        where=str(Origin(cls.__name__, source_line())),
        advice=f"Here it is called {ours}." if is_hook else ours,
    )


def _declared(name: str, method: FunctionType) -> str:
    return f"def {name}({', '.join(inspect.signature(method).parameters)})"


# Hooks of events in other frameworks, in any tense: `on_train_epoch_end`, `after_batch`.
_EVENT = re.compile(
    r"(?P<prefix>before_|after_|on_)?"
    r"(?P<phase>train(ing)?_|val(idat(e|ion))?_|test_|predict(ion)?_)?"
    r"(?P<event>fit|train(ing)?|epoch|batch|iteration|steps?|val(idat(e|ion))?|test|predict(ion)?)"
    r"(_(?P<moment>begin|began|start|end|finish|complete|done)(s|d|ed|es)?)?"
)


def _event(name: str) -> str:
    """The event of a hook of another framework, `"epoch-end"`; other names as they are."""
    match = _EVENT.fullmatch(name)
    if match is None:
        return name
    prefix, phase, event, moment = match.group("prefix", "phase", "event", "moment")
    if moment is None and prefix in (None, "on_"):
        return name
    moment = "begin" if prefix == "before_" or moment in ("begin", "began", "start") else "end"
    kind: str = phase or event
    is_step = event.startswith(("batch", "iteration", "step"))
    if kind.startswith("predict"):
        return "in-prediction"
    if kind.startswith(("val", "test")):
        return f"validation-{'step' if is_step else moment}"
    return f"{'step' if is_step else 'epoch' if event == 'epoch' else 'fit'}-{moment}"
