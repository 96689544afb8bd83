"""Searches of hyper-parameters: their trials, the folds of their data, and their results.

All trials and folds whose networks have one shape are members of one population.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from lamina.step.member_numbers import kinds_of
from lamina.training.fit import of_validation
from lamina.training.history import History

# Makes the network and the optimizer of a trial from its parameters, which it gets by name.
Make = Callable[..., tuple[Network, Optimizer]]
# Choices or distributions by name; or the trials themselves.
Space = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@final
@frozen_dataclass
class Search:
    """The result of `Population.search`.

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


def run_search(
    population: Callable[..., Any],
    make: Make,
    trials: Sequence[Mapping[str, Any]],
    data: Dataset,
    validation: Dataset | None,
    folds: int,
    seed: int,
    *,
    monitor: str,
    smaller_is_better: bool | None,
    fitted: Mapping[str, Any],
    measured: Mapping[str, Any],
) -> Search:
    """Trains and evaluates all trials.

    Args:
        population: makes one from the networks and the seeds of its members.
        fitted, measured: further options of `fit` and of `evaluate`.
    """
    made = [_made(make, trial, number) for number, trial in enumerate(trials)]
    parts = [None] if validation is not None else folds_of(data, folds, seed)
    shape = len(trials), len(parts)
    validated = data if validation is None else validation
    models = np.empty(shape, object)
    histories = np.empty(shape, object)
    measures: dict[str, Array] = {}
    # Optimizers of several kinds need several programs, like networks of several shapes.
    for numbers in kinds_of([optimizer for _, optimizer in made]):
        members = [(number, fold) for number in numbers for fold in range(len(parts))]
        seeds = [seed + fold for _, fold in members]
        own = population([made[number][0] for number, _ in members], seeds=seeds)
        each = [parts[fold] for _, fold in members]
        inside = None if validation is not None else [part[0] for part in each if part]
        outside = None if validation is not None else [part[1] for part in each if part]
        # Without callbacks nobody asks for measures before the last epoch.
        watched = {"validation": validated, "validation_subsets": outside}
        of_fit = own.fit(
            data,
            optimizer=[made[number][1] for number, _ in members],
            subsets=inside,
            **fitted,
            **(watched if len(fitted["callbacks"]) else {}),
        )
        with nullcontext() if validation is None else of_validation():
            values = own.evaluate(validated, subsets=outside, **measured)
        for at, place in enumerate(members):
            models[place], histories[place] = own[at], of_fit[at]
            for name, rows in values.items():
                if rows.ndim == 1:
                    whole = measures.setdefault(name, np.full(shape, np.nan))
                    whole[place] = np.nan if at in of_fit.failures else rows[at]
    if monitor not in measures:
        raise DefinitionError(
            f"nothing named {monitor!r} is measured",
            facts=(("expected", ", ".join(measures)), ("found", repr(monitor))),
            where="search",
            advice="Give metrics=[lm.Accuracy()], for example; they have one number each.",
        )
    if smaller_is_better is None:
        raise DefinitionError(
            f"nothing says whether small or large values of {monitor!r} are better",
            facts=(("expected", 'best="min" or best="max"'), ("found", "None")),
            where="search",
        )
    nested = (tuple(map(tuple, array)) for array in (models, histories))
    return Search(tuple(trials), measures, monitor, smaller_is_better, *nested)


def _made(make: Make, trial: Mapping[str, Any], number: int) -> tuple[Network, Optimizer]:
    """Network and optimizer of a trial."""
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
        numbers: Sequence[int] = range(total)
        if count is not None and count < total:
            numbers = random.choice(total, count, replace=False).tolist()
        places = (map(int, np.unravel_index(number, lengths)) for number in numbers)
        pairs = [zip(choices.items(), each, strict=True) for each in places]
        return [{name: values[at] for (name, values), at in each} for each in pairs]
    if count is None:
        name = next(name for name, draw in drawn.items() if draw is not None)
        problem = f"{name} has a distribution, so there is no grid"
        raise _no_trials(problem, "trials=20, or a list of choices", "trials=None")

    def value(name: str) -> Any:
        draw = drawn[name]
        if draw is None:
            return choices[name][int(random.integers(len(choices[name])))]
        given: Any = draw(random)
        if isinstance(given, np.generic):
            given = cast(Any, given).item()
        return given

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


def _text(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.4g}"
    return shown(value)
