"""The learning rates of a training, read and set from outside the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from types import MappingProxyType
from typing import Any, final

import numpy as np

from lamina.base.shapes import Array, converted, float32, float64, int64
from lamina.checks.kinds import Misfit, Number, refusal
from lamina.checks.origin import warn
from lamina.engines.engine import Memory
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import Graph, Hyperparameter, Tensor, evaluate, leaf, show
from lamina.layers.checks import origin_text
from lamina.layers.scope import Record, layers_built
from lamina.learning.protocols import Optimizer, RateFunction
from lamina.runtime.memories import write_all
from lamina.step.derive import RATE, TrainingNumbers, updated

_NOT_NEGATIVE = Number("[0, inf)")


@final
class LearningRates:
    """The rates of an optimizer: one, or one for each pattern of `lm.ByPath`, by name.

    Args:
        numbers: the hyper-parameters of the training step.
        memories: the memories of its leaves, by name.
        fields: other values of the fields on which the hyper-parameters depend, by name.
    """

    def __init__(
        self,
        numbers: TrainingNumbers,
        memories: Mapping[str, Memory],
        fields: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._fields = fields
        self._leaves = [
            (number, memories[name])
            for name, (_, number) in numbers.leaves.items()
            if isinstance(number, Hyperparameter) and name in memories
        ]
        used = frozenset[str]().union(*(number.sources for number, _ in self._leaves))
        rates = {name: pair for name, pair in numbers.rates.items() if pair[1] in used}
        self._optimizers = {name: optimizer for name, (optimizer, _) in rates.items()}
        self._names = {name: source for name, (_, source) in rates.items()}
        # The rates, or factors of functions, that were set.
        self._set: dict[str, float] = {}

    @property
    def names(self) -> Iterable[str]:
        """The names of the rates."""
        return self._optimizers.keys()

    def values(self, step: int) -> dict[str, float]:
        """The rate of each name in a training step."""
        return {name: self._value(name, step) for name in self._optimizers}

    def _value(self, name: str, step: int) -> float:
        rate: float | RateFunction = self._optimizers[name].rate
        if callable(rate):
            return _at(rate, step) * self._set.get(name, 1.0)
        return self._set.get(name, rate)

    def set(self, values: Mapping[str, float], step: int) -> None:
        """Sets rates by name.

        The rate of a function of the training step is set by a factor, which stays.
        """
        self.restore(self.checked(values, step))

    def checked(self, values: Mapping[str, float], step: int) -> dict[str, float]:
        """All rates and factors that are set with these rates, for `restore`."""
        if not self._optimizers:
            raise _not_settable("This optimizer has no learning rate, or makes a constant of it.")
        ready: dict[str, float] = {}
        for name, value in values.items():
            if name not in self._optimizers:
                facts = (("expected", ", ".join(self._optimizers)), ("found", repr(name)))
                raise DefinitionError(f"there is no rate {name!r}", facts=facts, where="rate")
            try:
                number = _NOT_NEGATIVE.read(value)
            except Misfit as misfit:
                raise refusal(misfit, name, value, where="training") from None
            ready[name] = self._factor(self._optimizers[name].rate, number, step)
            if not _is_input(self._optimizers[name], number):
                raise _not_settable(
                    "The optimizer computes a constant from it. Compute with tensors: "
                    "ops.sqrt(ops.cast(self.rate, 'float32')) instead of math.sqrt(self.rate)."
                )
        return self._set | ready

    def state(self) -> dict[str, Array]:
        """The rates and factors that were set, by name."""
        return {name: np.asarray(value) for name, value in self._set.items()}

    def divided(self, state: Mapping[str, Array]) -> tuple[dict[str, float], dict[str, Array]]:
        """The rates in a state of a training, and the rest of it."""
        # The shortest decimal number that is stored as this one: 0.01, not 0.00999999978.
        rates = {
            name: float(str(state[name]))
            for name in self._optimizers
            if name in state and state[name].dtype.kind == "f" and state[name].shape == ()
        }
        return rates, {name: value for name, value in state.items() if name not in rates}

    def restore(self, values: Mapping[str, float]) -> None:
        """Sets these rates and factors; all others are those that the optimizer was made with."""
        changed = {self._names[name]: value for name, value in values.items()}
        back = {self._names[name] for name in self._set} | changed.keys()
        fields = {**self._fields, **changed}
        write_all(
            (memory, converted(np.asarray(number.with_values(fields)), memory.dtype))
            for number, memory in self._leaves
            if number.sources & back
        )
        self._set = dict(values)

    def _factor(self, rate: float | RateFunction, value: float, step: int) -> float:
        if not callable(rate):
            return value
        now = _at(rate, step)
        if now == 0 and value:
            raise DefinitionError(
                "the learning-rate schedule is 0 now: no factor makes another rate of it",
                facts=(("wanted", str(value)),),
                where="rate",
                advice="Make the optimizer with a number as its rate, and set it.",
            )
        return value / now if now else 1.0


@final
class RatesOfMembers:
    """The rates of the members of a population: arrays (members,) by name, in which NaN is none."""

    def __init__(self, members: Sequence[LearningRates]) -> None:
        self.members = members

    def values(self, steps: Array) -> dict[str, Array]:
        """The rate of each name in the next training step of each member."""
        return self._stacked(
            r.values(int(step)) for r, step in zip(self.members, steps, strict=True)
        )

    def set(self, values: Mapping[str, Array], steps: Array) -> None:
        """Sets rates by name; all are checked before the first is set."""
        rows = [{name: row[number] for name, row in values.items()} for number in range(len(steps))]
        given = zip(self.members, rows, steps, strict=True)
        ready = [rates.checked(row, int(step)) for rates, row, step in given]
        for rates, row in zip(self.members, ready, strict=True):
            rates.restore(row)

    def state(self) -> dict[str, Array]:
        """The rates and factors that were set, by name."""
        return self._stacked({n: float(v) for n, v in r.state().items()} for r in self.members)

    def divided(self, state: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """The rates in a state of a training, and the rest of it."""
        names, shape = self.members[0].names, (len(self.members),)
        rates = {n: v for n, v in state.items() if n in names and np.shape(v) == shape}
        return rates, {name: value for name, value in state.items() if name not in rates}

    def restore(self, values: Mapping[str, Array]) -> None:
        """Sets these rates and factors; all others are those that the optimizers were made with."""
        for number, rates in enumerate(self.members):
            own = {name: row[number] for name, row in values.items()}
            ready, _ = rates.divided({name: x for name, x in own.items() if not np.isnan(x)})
            rates.restore(ready)

    def _stacked(self, each: Iterable[Mapping[str, float]]) -> dict[str, Array]:
        rows = list(each)
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}


def _not_settable(advice: str) -> DefinitionError:
    problem = "the learning rate of this training cannot be set"
    return DefinitionError(problem, where="rate", advice=advice)


def _is_input(optimizer: Any, rate: float) -> bool:
    """Whether an optimizer's update has the same operations and constants with another rate."""
    # Updates differ if Python computes with the rate as a plain number, in `math.sqrt` or a
    # comparison. Lamina's optimizers do not (`tests/unit/learning/test_hyperparameters.py`).
    if callable(optimizer.rate) or type(optimizer).__module__.startswith("lamina."):
        return True

    def operations(number: float, rank: int) -> str:
        changed = copy(optimizer)
        object.__setattr__(changed, RATE, number)
        parameter, gradient = (leaf(name, "input", (3,) * rank, float32) for name in "xg")
        step, named = leaf("step", "state", (), int64), TrainingNumbers().of(changed, "")
        new, after = updated(named, "", parameter, gradient, step, {})
        return show(Graph((parameter, gradient), (("new", new),), tuple(after)))

    for rank in range(1, 5):
        with suppress(ShapeError):  # some update matrices only, for example
            return operations(optimizer.rate, rank) == operations(rate, rank)
    return False


def warn_of_ends(optimizer: Optimizer, steps: int, epochs: int, *, measured: bool = False) -> None:
    """Warns of schedules that end before a fit does.

    One training step of each epoch does not count: many forget the smaller last batch,
    and it does no harm.
    """
    counted = ", if all epochs are as long as the first" if measured else ""
    numbers = TrainingNumbers()
    numbers.of(optimizer, "optimizer")
    for rate in [record.rate for record, _ in numbers.rates.values()]:
        end: int | None = getattr(rate, "ends_after", None)
        if end is not None and callable(rate) and end < steps - epochs:
            warn(
                f"in {origin_text(rate)}: the learning-rate schedule ends after {end:,} "
                f"training steps, and the fit has {steps:,}{counted}. The rate stays at "
                f"{_at(rate, end):.3g} in the others. Lengthen it by {steps - end:,}."
            )


def _at(rate: Callable[[Tensor], Any], step: int) -> float:
    """A function of the training step, in float64."""
    time = leaf("step", "input", (), float64)
    with layers_built(Record(float64, training=True), float64):
        value = rate(time)
    if not isinstance(value, Tensor):
        return float(value)
    outputs, _ = evaluate(Graph((time,), (("rate", value),)), {"step": np.asarray(step, "float64")})
    return float(outputs["rate"])
