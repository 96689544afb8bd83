"""The learning rates of a training, read and set from outside the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from lamina.derive import RATE
from lamina.engines.engine import Memory
from lamina.errors import DefinitionError
from lamina.graph import Graph, Tensor, evaluate, leaf, warn
from lamina.graph.kinds import Misfit, Number, refusal
from lamina.layers.checks import origin_text
from lamina.objective.protocols import Optimizer, RateFunction, with_rates
from lamina.shapes import float64

_NOT_NEGATIVE = Number("[0, inf)")


@final
class LearningRates:
    """The rates of an optimizer: one, or one for each pattern of `lm.ByPath`, by name.

    Args:
        optimizer: of the training.
        states: the memories of the rates, by name; empty if they cannot be set.
    """

    def __init__(self, optimizer: Optimizer, states: Mapping[str, Memory]) -> None:
        self._states = states
        # For each name the number, or the function of the training step.
        self._given: dict[str, float | RateFunction] = {}

        def seen(name: str, rate: float | RateFunction) -> RateFunction:
            self._given[name] = rate
            return lambda step: step

        with_rates(optimizer, seen, RATE)

    def values(self, step: int) -> dict[str, float]:
        """The rate of each name in a training step."""
        return {name: self._value(name, step) for name in self._given}

    def _value(self, name: str, step: int) -> float:
        given = self._given[name]
        state = self._states.get(name)
        # The shortest decimal number that is stored as this one: 0.01, not 0.00999999978.
        stored = None if state is None else float(str(state.read()))
        if callable(given):
            return _at(given, step) * (1.0 if stored is None else stored)
        return given if stored is None else stored

    def set(self, values: Mapping[str, float], step: int) -> None:
        """Sets rates by name.

        The rate of a function of the training step is set by a factor, which stays.

        Raises:
            DefinitionError: for a name without a rate, a rate that is no number from 0 on, or if
                rates cannot be set.
        """
        self._require_states()
        ready: list[tuple[Memory, float]] = []
        for name, value in values.items():
            if name not in self._given:
                raise DefinitionError(
                    f"there is no rate {name!r}",
                    facts=(("expected", ", ".join(self._given)), ("found", repr(name))),
                    where="rate",
                )
            try:
                number = _NOT_NEGATIVE.read(value)
            except Misfit as misfit:
                raise refusal(misfit, name, value, where="training") from None
            given = self._given[name]
            ready.append((self._states[name], self._factor(given, number, step)))
        for state, number in ready:
            state.write(np.asarray(number, state.dtype))

    def _factor(self, given: float | RateFunction, value: float, step: int) -> float:
        if not callable(given):
            return value
        now = _at(given, step)
        if now == 0 and value:
            raise DefinitionError(
                "the learning-rate schedule is 0 now: no factor makes another rate of it",
                facts=(("wanted", str(value)),),
                where="rate",
                advice="Make the optimizer with a number as its rate, and set it.",
            )
        return value / now if now else 1.0

    def warn_of_ends(self, steps: int, epochs: int, *, measured: bool = False) -> None:
        """Warns of schedules that end before a fit does.

        One training step of each epoch does not count: many forget that of a smaller last batch,
        and it does no harm.

        Args:
            steps: the training steps of the fit.
            epochs: of the fit.
            measured: whether the first epoch of a stream was counted; others may be longer.
        """
        counted = ", if all epochs are as long as the first" if measured else ""
        for given in self._given.values():
            end: int | None = getattr(given, "ends_after", None)
            if end is not None and callable(given) and end < steps - epochs:
                warn(
                    f"in {origin_text(given)}: the learning-rate schedule ends after {end:,} "
                    f"training steps, and the fit has {steps:,}{counted}. The rate stays at "
                    f"{_at(given, end):.3g} in the others. Lengthen it by {steps - end:,}."
                )

    def _require_states(self) -> None:
        if not self._states:
            has = bool(self._given)
            raise DefinitionError(
                "the learning rate of this training cannot be set",
                facts=(
                    ("in a training", "model.training(..., adjustable_rate=True)"),
                    ("in a fit", "changes_rate = True in the class of the callback"),
                )
                if has
                else (),
                where="rate",
                advice="Then the rate is an input of the program, which is compiled once."
                if has
                else "This optimizer has no learning rate.",
            )


def _at(rate: Callable[[Tensor], Any], step: int) -> float:
    """A function of the training step, in float64."""
    time = leaf("step", "input", (), float64)
    value = rate(time)
    if not isinstance(value, Tensor):
        return float(value)
    outputs, _ = evaluate(Graph((time,), (("rate", value),)), {"step": np.asarray(step, "float64")})
    return float(outputs["rate"])
