"""Searches of hyper-parameters: trials, folds, scores, and what is refused."""

import numpy as np
import pytest
from error_texts import error_text

import lamina as lm
from lamina.errors import LaminaWarning
from lamina.training.search import folds_of, trials_of

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3)).astype("float32")
Y = (X.sum(1) > 0).astype("int64")


def make(rate, features=4, kind=lm.Adam):
    net = lm.Sequential(lm.Input(3), lm.Linear(features), lm.Tanh(), lm.Linear(2))
    return net, kind(rate)


NET = make(0.1)[0]


def searched(space, function=make, **options):
    usual = {"loss": lm.CrossEntropy(), "metrics": [lm.Accuracy()], "epochs": 2, "batch_size": 8}
    return lm.Population.search(function, space, (X, Y), **usual | options)


def test_a_grid_has_the_scores_of_fits_one_by_one():
    space = {"rate": [0.01, 0.1], "features": [4, 6], "kind": [lm.Adam, lm.SGD]}
    found = searched(space, folds=2, seed=3, monitor="accuracy")
    assert len(found.trials) == 8
    data = lm.data.Dataset(X, Y)
    for number, trial in enumerate(found.trials):
        for fold, (inside, outside) in enumerate(folds_of(data, 2, 3)):
            net, optimizer = make(**trial)
            model = lm.Model(net, seed=3 + fold)
            model.fit(
                data.take(inside),
                loss=lm.CrossEntropy(),
                optimizer=optimizer,
                epochs=2,
                batch_size=8,
                seed=3 + fold,
                progress=False,
            )
            values = model.evaluate(data.take(outside), lm.CrossEntropy(), [lm.Accuracy()])
            assert found.measures["loss"][number, fold] == pytest.approx(values["loss"], rel=1e-5)
            assert found.measures["accuracy"][number, fold] == values["accuracy"]
            own = found.models[number][fold].parameters()
            assert np.allclose(own["1.weight"], model.parameters()["1.weight"], atol=1e-6)
            assert len(found.histories[number][fold]) == 2
    assert found.best == found.trials[found.scores.argmax()]
    lines = str(found).splitlines()
    assert lines[0].split() == ["trial", "rate", "features", "kind", "accuracy", "deviation"]
    assert lines[2].split()[0] == str(found.order[0])


def test_folds_divide_the_examples_and_their_classes():
    data = lm.data.Dataset(X, Y)
    folds = folds_of(data, 4, 0)
    assert sorted(np.concatenate([outside for _, outside in folds])) == list(range(40))
    for inside, outside in folds:
        assert sorted([*inside, *outside]) == list(range(40))
        assert abs(Y[outside].mean() - Y.mean()) < 0.06
    again, other = folds_of(data, 4, 0), folds_of(data, 4, 1)
    assert all(np.array_equal(a, b) for a, b in zip(folds[0], again[0], strict=True))
    assert not np.array_equal(folds[0][1], other[0][1])


class Loguniform:
    """A distribution as of scipy.stats."""

    def rvs(self, random_state):
        return np.float64(10 ** random_state.uniform(-3, -1))


def test_trials_are_a_grid_or_random_or_given():
    grid = {"a": [1, 2, 3], "b": "xy"}
    with pytest.raises(lm.errors.DefinitionError, match="no choices and no distribution"):
        trials_of(grid, None, 0)
    grid["b"] = ["x", "y"]
    every = trials_of(grid, None, 0)
    assert every == [{"a": a, "b": b} for a in (1, 2, 3) for b in "xy"]
    assert trials_of(grid, 100, 0) == every
    some = trials_of(grid, 4, 0)
    assert len({tuple(trial.values()) for trial in some}) == 4
    assert all(trial in every for trial in some)
    huge = {f"p{n}": np.arange(1000) for n in range(20)}
    assert len(trials_of(huge, 3, 0)) == 3
    assert type(trials_of(huge, 3, 0)[0]["p0"]) is int
    mixed = {"rate": Loguniform(), "decay": lambda random: random.uniform(), "a": [1, 2]}
    drawn = trials_of(mixed, 5, 1)
    assert drawn == trials_of(mixed, 5, 1) != trials_of(mixed, 5, 2)
    assert all(type(trial["rate"]) is float and 1e-3 <= trial["rate"] <= 0.1 for trial in drawn)
    assert trials_of([{"a": 1}], None, 0) == [{"a": 1}]


def test_a_trial_that_fails_is_the_last():
    def descending(rate):
        return lm.Sequential(lm.Input(3), lm.Linear(3), lm.Linear(2)), lm.SGD(rate)

    how = {"validation": (X, Y), "epochs": 4}
    with pytest.warns(LaminaWarning, match="member 0 stopped"):
        found = searched([{"rate": 1e20}, {"rate": 0.1}], descending, **how)
    assert np.isnan(found.scores[0])
    assert found.order == [1, 0]
    assert found.best == {"rate": 0.1}
    with pytest.warns(LaminaWarning):
        none = searched([{"rate": 1e20}], descending, **how)
    with pytest.raises(lm.errors.DefinitionError, match="no trial has a score"):
        _ = none.best


def test_numbers_that_are_constants_of_the_program_are_other_programs():
    found = searched({"history": [3, 5, 7]}, lambda history: (NET, lm.LBFGS(history=history)))
    assert np.isfinite(found.scores).all()
    found = searched({"rate": [0.01, 0.1]}, lambda rate: (NET, lm.Rprop(rate)), folds=2)
    assert np.isfinite(found.scores).all()


def test_callbacks_watch_each_trial_alone():
    stopping = lm.callbacks.EarlyStopping(patience=1, least_change=10.0)
    found = searched({"rate": [0.0, 0.1]}, folds=2, epochs=9, callbacks=[stopping])
    assert [len(history) for each in found.histories for history in each] == [2, 2, 2, 2]
    assert "validation_loss" in found.histories[0][0]


@pytest.mark.parametrize(
    ("space", "options", "lines"),
    [
        ({"rate": Loguniform()}, {}, ["has a distribution, so there is no grid", "trials=20"]),
        ({}, {}, ["there is nothing to choose from", "{'rate': [0.01, 0.1]}"]),
        ([], {}, ["there is nothing to choose from", "{'rate': [0.01, 0.1]}"]),
        ({"rate": []}, {}, ["there is nothing to choose from", "rate: []"]),
        ([{"rate": 0.1}], {"trials": 3}, ["the trials are given as a list"]),
        ({"rate": [0.1]}, {"folds": 1}, ["folds must be", "at least 2"]),
        ({"rate": [0.1]}, {"folds": 41}, ["cannot be divided", "folds <= 40"]),
        ({"rate": [0.1]}, {"monitor": "f1"}, ["nothing named 'f1'", "loss, accuracy"]),
        ({"rtae": [0.1]}, {}, ["does not take the parameters of trial 0", "(rate, features=4"]),
        (
            {"rate": [0.1]},
            {"metrics": [lm.ConfusionMatrix()], "monitor": "confusion_matrix"},
            ["nothing says whether small or large values"],
        ),
        ({"rate": 0.1}, {}, ["the values of rate are no choices", "[0.01, 0.1]"]),
    ],
)
def test_what_cannot_be_searched_is_refused(space, options, lines):
    text = error_text(lm.errors.LaminaError, lambda: searched(space, **options))
    for line in lines:
        assert line in text


@pytest.mark.parametrize("made", [None, make(0.1)[0], (lm.Adam(), make(0.1)[0])])
def test_a_trial_is_a_network_with_an_optimizer(made):
    text = error_text(lm.errors.LaminaError, lambda: searched({"rate": [0.1]}, lambda rate: made))
    assert "trial 0 is no network with an optimizer" in text
    assert "return net, lm.Adam(rate)" in text


@pytest.mark.torch
def test_optuna_asks_and_is_told():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    space = {"rate": optuna.distributions.FloatDistribution(1e-3, 1e-1, log=True)}
    trials = [study.ask(space) for _ in range(5)]
    found = searched([trial.params for trial in trials], folds=2)
    for trial, score in zip(trials, found.scores, strict=True):
        study.tell(trial, score)
    assert study.best_params == found.best
