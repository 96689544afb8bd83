"""Searches of hyper-parameters: their trials, the folds of their data, and their results.

All trials and folds whose networks have one shape are members of one population.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast, final

import numpy as np

from lamina.base.records import cached_property, frozen_dataclass
from lamina.base.shapes import Array
from lamina.checks.kinds import shown
from lamina.data import Dataset
from lamina.errors import DefinitionError
from lamina.learning.protocols import Optimizer
from lamina.network import Network
from lamina.reports import table_text, value_text
from lamina.step.member_numbers import OtherProgramError, kind_of
from lamina.training.fit import of_validation
from lamina.training.history import VALIDATION, History

# Makes the network and the optimizer of a trial from its parameters, which it gets by name.
Make = Callable[..., tuple[Network, Optimizer]]
# Choices or distributions by name; or the trials themselves.
Space = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@final
@frozen_dataclass(eq=False)
class Search:
    """The result of `Population.search`.

    After Ctrl-C, trials that were not completed have no scores.

    Attributes:
        trials: the parameters of each trial.
        measures: by name, the loss and the metrics on the validation data after the last epoch,
            float64 (trials, folds); NaN where values became infinite or NaN.
        monitor: the measure by which trials are compared.
        smaller_is_better: whether small values of it are better.
        models: the trained model of each trial and fold.
        histories: the history of each trial and fold.
    """

    trials: tuple[Mapping[str, Any], ...]
    measures: Mapping[str, Array]
    monitor: str
    smaller_is_better: bool
    models: tuple[tuple[Any, ...], ...]
    histories: tuple[tuple[History, ...], ...]

    @cached_property
    def scores(self) -> Array:
        """The mean over the folds of the monitored measure, float64 (trials,)."""
        return self.measures[self.monitor].mean(axis=1)

    @cached_property
    def order(self) -> list[int]:
        """The numbers of the trials, the best first; those that failed last."""
        ranks = self.scores if self.smaller_is_better else -self.scores
        return np.argsort(ranks, kind="stable").tolist()

    @property
    def best(self) -> Mapping[str, Any]:
        """The parameters of the best trial.

        Raises:
            DefinitionError: if the values of all trials became infinite or NaN.
        """
        best = self.order[0]
        if math.isnan(self.scores[best]):
            raise DefinitionError(
                "no trial has a score: the values of all became infinite or NaN",
                where="Search",
                advice="Search among smaller learning rates, or clip the gradients.",
            )
        return self.trials[best]

    def __str__(self) -> str:
        """A table of the trials, the best first."""
        names = list(dict.fromkeys(name for trial in self.trials for name in trial))
        scores, deviations = self.scores, self.measures[self.monitor].std(axis=1)
        rows = [
            (
                str(number),
                *(_text(self.trials[number].get(name, "")) for name in names),
                value_text(scores[number]),
                value_text(deviations[number]),
            )
            for number in self.order
        ]
        return table_text(("trial", *names, self.monitor, "deviation"), rows, align="r")


@final
@frozen_dataclass
class Comparison:
    """How the trials of a search are trained and compared; `run` does that.

    Attributes:
        population: makes one from the networks and the seeds of its members.
        data, validation: the data; without validation data its folds.
        directions: by name, whether small values of a measure are better; None if nobody says.
        fitted, measured: further options of `fit` and of `evaluate`.
        is_watched: whether callbacks see the measures of each epoch.
    """

    population: Callable[..., Any]
    make: Make
    data: Dataset
    validation: Dataset | None
    folds: int
    seed: int
    monitor: str
    directions: Mapping[str, bool | None]
    fitted: Mapping[str, Any]
    measured: Mapping[str, Any]
    is_watched: bool

    def __post_init__(self) -> None:
        if self.monitor not in self.directions:
            raise DefinitionError(
                f"nothing named {self.monitor!r} is measured",
                facts=(("expected", ", ".join(self.directions)), ("found", repr(self.monitor))),
                where="search",
                advice=f"It is called {bare!r} here."
                if (bare := self.monitor.removeprefix(VALIDATION)) in self.directions
                else "Give metrics=[lm.Accuracy()], for example.",
            )
        if self.directions[self.monitor] is None:
            raise DefinitionError(
                f"nothing says whether small or large values of {self.monitor!r} are better",
                facts=(("expected", 'best="min" or best="max"'), ("found", "None")),
                where="search",
            )

    def run(self, trials: Sequence[Mapping[str, Any]]) -> Search:
        """Trains and evaluates all trials, until Ctrl-C."""
        made = [_made(self.make, trial, number) for number, trial in enumerate(trials)]
        folds = None
        if self.validation is None:
            folds = folds_of(self.data, self.folds, self.seed)
        result = _Result((len(trials), len(folds or [None])), {}, {}, {})
        waiting = _by_kind(range(len(trials)), made, by_value=False)
        while waiting:
            numbers = waiting.pop(0)
            try:
                goes_on = self._compare(numbers, made, folds, result)
            except OtherProgramError:
                # Numbers that are constants of the program: those with equal ones are together.
                parts = _by_kind(numbers, made, by_value=True)
                if len(parts) == 1:
                    raise
                waiting = parts + waiting
                continue
            if not goes_on:
                break
        if self.monitor not in result.measures:
            raise DefinitionError(
                f"{self.monitor!r} is no number, so no trial is the best one",
                facts=(("expected", ", ".join(result.measures)), ("found", repr(self.monitor))),
                where="search",
            )
        is_smaller, rows = bool(self.directions[self.monitor]), range(len(trials))
        columns = range(result.shape[1])
        models = tuple(tuple(result.models.get((n, m)) for m in columns) for n in rows)
        histories = tuple(
            tuple(result.histories.get((n, m), History()) for m in columns) for n in rows
        )
        measures = result.measures
        return Search(tuple(trials), measures, self.monitor, is_smaller, models, histories)

    def _compare(
        self,
        numbers: Sequence[int],
        made: Sequence[tuple[Network, Optimizer]],
        folds: Sequence[tuple[Array, Array]] | None,
        result: _Result,
    ) -> bool:
        """Trains and evaluates some trials together; whether Ctrl-C did not end that."""
        places = [(number, fold) for number in numbers for fold in range(result.shape[1])]
        seeds = [self.seed + fold for _, fold in places]
        members = self.population([made[number][0] for number, _ in places], seeds=seeds)
        compared, trained, outside = self.data, dict(self.fitted), None
        if folds is not None:
            trained["subsets"] = [folds[fold][0] for _, fold in places]
            outside = [folds[fold][1] for _, fold in places]
        elif self.validation is not None:
            compared = self.validation
        if self.is_watched:
            trained |= {"validation": compared, "validation_subsets": outside}
        optimizers = [made[number][1] for number, _ in places]
        histories = members.fit(self.data, optimizer=optimizers, **trained)
        with of_validation() if folds is None else nullcontext():
            values = members.evaluate(compared, subsets=outside, **self.measured)
        for member, place in enumerate(places):
            history = histories[member]
            result.models[place], result.histories[place] = members[member], history
            has_ended = not history.interrupted and member not in histories.failures
            for name, rows in values.items():
                if rows.ndim == 1:
                    missing = np.full(result.shape, np.nan)
                    measure = result.measures.setdefault(name, missing)
                    measure[place] = rows[member] if has_ended else np.nan
        return not any(history.interrupted for history in histories)


@final
@frozen_dataclass(eq=False)
class _Result:
    """What is known so far, by trial and fold, of so many trials and folds."""

    shape: tuple[int, int]
    models: dict[tuple[int, int], Any]
    histories: dict[tuple[int, int], History]
    measures: dict[str, Array]


def _by_kind(
    numbers: Sequence[int], made: Sequence[tuple[Network, Optimizer]], *, by_value: bool
) -> list[list[int]]:
    """The trials in groups of one kind of optimizer."""
    kinds: dict[Hashable, list[int]] = {}
    for number in numbers:
        kinds.setdefault(kind_of(made[number][1], by_value=by_value), []).append(number)
    return list(kinds.values())


def _made(make: Make, trial: Mapping[str, Any], number: int) -> tuple[Network, Optimizer]:
    """Network and optimizer of a trial."""
    signature = inspect.signature(make)
    try:
        signature.bind(**trial)
    except TypeError as error:
        raise DefinitionError(
            f"the function does not take the parameters of trial {number}: {error}",
            facts=(("expected", str(signature)), ("found", ", ".join(trial))),
            where="search",
        ) from None
    made: Any = make(**trial)
    if isinstance(made, tuple) and len(cast(tuple[Any, ...], made)) == 2:
        network, optimizer = cast(tuple[Any, Any], made)
        if isinstance(network, Network) and hasattr(optimizer, "update"):
            return network, optimizer
    raise DefinitionError(
        f"trial {number} is no network with an optimizer",
        facts=(("expected", "(network, optimizer)"), ("found", _text(made))),
        where="search",
        advice="The function returns both: return net, lm.Adam(rate).",
    )


def trials_of(space: Space, count: int | None, seed: int) -> list[Mapping[str, Any]]:
    """The trials of a search: those given, a grid, or so many random ones.

    Raises:
        DefinitionError: if there is none, or for a grid of a distribution.
    """
    if not isinstance(space, Mapping):
        if count is not None:
            raise _no_trials("the trials are given as a list", "trials=None", str(count))
        if not space:
            raise _no_trials(_NOTHING, _CHOICES, "[]")
        return list(space)
    drawn = {name: _distribution(name, values) for name, values in space.items()}
    choices = {name: list(space[name]) for name, draw in drawn.items() if draw is None}
    empty = [name for name, values in choices.items() if not values]
    if empty or not space:
        found = f"{empty[0]}: []" if empty else "{}"
        raise _no_trials(_NOTHING, _CHOICES, found)
    random = _generator(seed)
    if len(choices) == len(space):
        lengths = [*map(len, choices.values())]
        total = math.prod(lengths)
        every: Iterable[tuple[int, ...]] = itertools.product(*map(range, lengths))
        if count is None or count >= total:
            places = list(every)
        elif total <= _LARGEST_GRID:
            grid = list(every)
            numbers: list[int] = random.choice(total, count, replace=False).tolist()
            places = [grid[number] for number in numbers]
        else:
            chosen: dict[tuple[int, ...], None] = {}
            while len(chosen) < count:
                chosen[tuple(int(random.integers(length)) for length in lengths)] = None
            places = list(chosen)
        pairs = [zip(choices.items(), place, strict=True) for place in places]
        return [{name: _plain(values[at]) for (name, values), at in each} for each in pairs]
    if count is None:
        name = next(name for name, draw in drawn.items() if draw is not None)
        problem = f"{name} has a distribution, so there is no grid"
        raise _no_trials(problem, "trials=20, or a list of choices", "trials=None")

    def value(name: str) -> Any:
        draw = drawn[name]
        if draw is None:
            return _plain(choices[name][int(random.integers(len(choices[name])))])
        return _plain(draw(random))

    return [{name: value(name) for name in drawn} for _ in range(count)]


_NOTHING, _CHOICES = "there is nothing to choose from", "{'rate': [0.01, 0.1]}"


def _generator(seed: int) -> np.random.Generator:
    """NumPy's generator, whose seeds are not negative."""
    return np.random.default_rng(seed % 2**64)


def _no_trials(problem: str, expected: str, found: str) -> DefinitionError:
    return DefinitionError(
        problem, facts=(("expected", expected), ("found", found)), where="search"
    )


def _distribution(name: str, values: Any) -> Callable[[np.random.Generator], Any] | None:
    """The function that draws a value; None for choices."""
    if hasattr(values, "rvs"):
        return lambda random: values.rvs(random_state=random)
    if callable(values):
        return values
    if isinstance(values, Sequence | np.ndarray) and not isinstance(values, str):
        return None
    raise DefinitionError(
        f"the values of {name} are no choices and no distribution",
        facts=(("expected", "[0.01, 0.1]"), ("found", _text(values))),
        where="search",
        advice="Give a list of choices, a distribution of scipy.stats, or a function of a NumPy "
        "generator: lambda random: 10 ** random.uniform(-4, -1).",
    )


def folds_of(data: Dataset, count: int, seed: int) -> list[tuple[Array, Array]]:
    """The positions of the examples for training and for validation, in each fold.

    Classes, which are whole numbers, have about the same share in all folds.
    """
    if count > len(data):
        raise DefinitionError(
            "the examples cannot be divided into so many folds",
            facts=(("expected", f"folds <= {len(data):,}"), ("found", str(count))),
            where="search",
            advice="One part is for validation, the others for training; or give validation=...",
        )
    positions = _generator(seed).permutation(len(data))
    targets = data.target_arrays
    if len(targets) == 1 and targets[0].ndim == 1 and targets[0].dtype.kind in "iub":
        positions = positions[np.argsort(targets[0][positions], kind="stable")]
    parts = [np.sort(positions[fold::count]) for fold in range(count)]
    every = np.arange(len(data))
    return [(np.setdiff1d(every, part, assume_unique=True), part) for part in parts]


# The choices of a larger grid are drawn one by one.
_LARGEST_GRID = 1 << 16


def _plain(value: Any) -> Any:
    """A number of NumPy as one of Python."""
    return cast(Any, value).item() if isinstance(value, np.generic) else value


def _text(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.4g}"
    return shown(value)
